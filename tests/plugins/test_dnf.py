"""The output of dnf is read as it is meant, and harm is refused."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.gpu.plugins.module_utils import dnf  # isort: skip
from ansible_collections.gpufleet.gpu.plugins.module_utils import driver_dnf  # isort: skip
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.dnf import switched_off  # isort: skip
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError  # isort: skip

TABLE = """\
Last metadata expiration check: 0:00:05 ago on Mon 01 Jan 2026.
Dependencies resolved.
================================================================================
 Package                 Arch     Version                  Repository      Size
================================================================================
Installing:
 kmod-nvidia-open-dkms   x86_64   3:580.65.06-1.el9        gpufleet-nvidia 12 M
     replacing  dkms-nvidia.x86_64 3:570.124.06-1.el9
Upgrading:
 nvidia-driver-cuda      x86_64   3:580.65.06-1.el9        gpufleet-nvidia 30 M
Installing dependencies:
 kmod-nvidia-580.65.06-5.14.0-570.12.1
                         x86_64   3:580.65.06-1.el9        gpufleet-nvidia 60 M
 kernel-core             x86_64   5.14.0-570.17.1.el9_6    baseos          18 M
Removing dependent packages:
 cuda-drivers            x86_64   570.124.06-1             @cuda           0  

Transaction Summary
================================================================================
Install  3 Packages
"""
PROBLEM = """\
Last metadata expiration check: 0:00:05 ago on Mon 01 Jan 2026.
Error: 
 Problem: package kmod-nvidia-open-dkms-3:575.57.08-1.el9.x86_64 requires dkms >= 3.1.8
  - conflicting requests
  - nothing provides dkms >= 3.1.8 needed by kmod-nvidia-open-dkms-3:575.57.08-1.el9.x86_64
(try to add '--skip-broken' to skip uninstallable packages)
"""


def test_a_table_is_read_with_names_that_have_a_line_of_their_own() -> None:
    installs, removes = dnf.parse_transaction(TABLE)
    assert list(installs) == [
        "kmod-nvidia-open-dkms",
        "nvidia-driver-cuda",
        "kmod-nvidia-580.65.06-5.14.0-570.12.1",
        "kernel-core",
    ]
    assert installs["nvidia-driver-cuda"] == {
        "version": "3:580.65.06-1.el9",
        "repo": "gpufleet-nvidia",
    }
    assert removes == ["dkms-nvidia", "cuda-drivers"]


def test_why_there_is_no_solution_is_reported_without_what_says_nothing() -> None:
    reported = dnf.problems(PROBLEM)
    assert "nothing provides dkms >= 3.1.8" in reported
    assert "conflicting requests" not in reported


@pytest.mark.parametrize(
    ("line", "name", "ours"),
    [
        ("nvidia-driver-cuda-3:570.124.06-1.el9.*", "nvidia-driver-cuda", True),
        ("kmod-nvidia-open-dkms-3:570.124.06-1.el9.*", "kmod-nvidia-open-dkms", True),
        ("nvidia-container-toolkit-base-0:1.17.8-1.*", "nvidia-container-toolkit-base", False),
        ("bash-0:5.1.8-9.el9.*", "bash", False),
        ("# Added lock on Mon Nov 23 2026", "# Added lock on Mon Nov 23 2026", False),
    ],
)
def test_the_drivers_version_locks_are_distinguished_from_others(
    line: str, name: str, ours: bool
) -> None:
    assert dnf.is_driver_lock(line) is ours
    if not line.startswith("#"):
        assert dnf.locked_name(line) == name


@pytest.mark.parametrize(
    ("installs", "removes", "reported"),
    [
        (["kernel-core"], [], "a kernel (kernel-core)"),
        (["kernel-rt-core"], [], "a kernel (kernel-rt-core)"),
        ([], ["kernel"], "a kernel (kernel)"),
        (["nvidia-driver-cuda"], ["cuda-drivers-12"], None),
        (["nvidia-driver-cuda"], ["slurm-slurmd"], "not the driver's: slurm-slurmd"),
        (["kernel-devel", "kernel-devel-matched", "kernel-rt-devel"], ["kernel-devel"], None),
        (["kmod-nvidia-open-dkms"], ["kmod-nvidia-latest-dkms"], None),
    ],
)
def test_a_transaction_that_does_harm_is_refused(
    installs: list[str], removes: list[str], reported: str | None
) -> None:
    if reported is None:
        driver_dnf.DnfDriver.refuse_harm(dict.fromkeys(installs), removes)
        return
    with pytest.raises(StateError) as caught:
        driver_dnf.DnfDriver.refuse_harm(dict.fromkeys(installs), removes)
    assert reported in str(caught.value)
    assert "Nothing was changed" in str(caught.value)


def test_headers_are_found_by_kernel() -> None:
    kernels = ["kernel-devel-5.14.0-570.12.1.el9_6.x86_64", "kernel-devel-5.14.0-1.el9.x86_64"]
    known = [("kernel-devel", "0:5.14.0-570.12.1.el9_6")]
    assert driver_dnf.among(kernels, known) == kernels[:1]


@pytest.mark.parametrize(
    ("text", "off"),
    [
        ("[main]\nplugins=0\n", True),
        ("[main]\nplugins = False\n", True),
        ("[main]\nplugins=0\nplugins=1\n", False),
        ("[main]\n# plugins=0\n", False),
        ("[main]\ngpgcheck=0\n", False),
        ("", False),
    ],
)
def test_the_last_line_of_a_setting_counts(text: str, off: bool) -> None:
    assert switched_off(text, "plugins") is off
