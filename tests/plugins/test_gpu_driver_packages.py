"""The driver's packages: what pins and excludes them, and what a transaction must not do.

The transactions themselves run on a lab host: tests/acceptance/test_driver_failures.py.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.ansible_modules import load

from ansible_collections.gpufleet.gpu.plugins.module_utils import (  # isort: skip
    dkms,
    driver_files,
    driver_rules,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.driver_apt import (  # isort: skip
    AptDriver,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError  # isort: skip

MODULES = load("gpu_driver_modules")
PACKAGES = {"libcuda1": "535.261.03-1", "nvidia-smi": "535.261.03-1", "nvidia-modprobe": "535.1-1"}


def test_packages_are_pinned_to_their_versions() -> None:
    assert driver_files.pins(PACKAGES).count("Pin-Priority: 1001") == 2
    text = driver_files.pins(PACKAGES)
    assert "Package: libcuda1 nvidia-smi\nPin: version 535.261.03-1\n" in text


def test_each_package_is_excluded_by_its_whole_name() -> None:
    text = driver_files.exclusions({"libstdc++6-nvidia": "1", "nvidia-smi": "1"})
    assert r'"^libstdc\+\+6-nvidia$";' in text
    assert '"^nvidia-smi$";' in text


def test_a_transaction_prefers_the_branch_to_the_repositorys_own_choice() -> None:
    assert "Pin: release o=Debian\nPin-Priority: 1001" in driver_files.transaction_pins(
        "release o=Debian", None
    )
    exact = driver_files.transaction_pins("origin x", "570.")
    assert exact.index("Pin: version 570.*") < exact.index("Pin: origin x")


@pytest.mark.parametrize(
    ("packages", "other"),
    [
        ({"libcuda1": "535.261.03-1"}, []),
        ({"libcuda1": "470.256.02-2", "nvidia-smi": "535.261.03-1"}, ["libcuda1"]),
        # These have versions of their own.
        ({"nvidia-modprobe": "570.133.07-1", "nvidia-persistenced": "470.103.01-2"}, []),
        ({"nvidia-support": "20220217+3~deb12u1"}, []),
        # Ubuntu's own builds have the kernel's version, and the branch in the name.
        ({"linux-modules-nvidia-535-server-generic": "5.15.0-134.145"}, []),
        (
            {"linux-modules-nvidia-580-server-5.15.0-134-generic": "5.15.0-134.145"},
            ["linux-modules-nvidia-580-server-5.15.0-134-generic"],
        ),
    ],
)
def test_packages_of_another_branch_are_reported(
    packages: dict[str, str], other: list[str]
) -> None:
    assert driver_rules.other_branch(packages, "535") == other


def test_firmware_of_the_version_before_is_reported() -> None:
    """Ubuntu has the driver's version in its name: each upgrade left a package, held for ever."""
    old, new = "nvidia-firmware-580-server-580.126.09", "nvidia-firmware-580-server-580.126.20"
    packages = {old: "1", new: "1", "firmware-nvidia-gsp": "1", "nvidia-firmware": "1"}
    assert driver_rules.other_firmware(packages, "580.126.20") == [old]


@pytest.mark.parametrize(
    ("installs", "removes", "reported"),
    [
        ({"linux-image-6.1.0-50-amd64": {}}, [], "install, change or remove a kernel"),
        ({}, ["linux-modules-6.8.0-31-generic"], "install, change or remove a kernel"),
        ({}, ["libcuda1", "theirs"], "not the driver's: theirs"),
    ],
)
def test_harm_is_refused(installs: dict[str, Any], removes: list[str], reported: str) -> None:
    with pytest.raises(StateError, match=reported):
        driver_rules.refuse_harm(installs, removes)


def test_what_belongs_to_the_driver_may_go() -> None:
    headers = {"linux-headers-6.1.0-50-amd64": {}, "linux-modules-nvidia-535-server-generic": {}}
    driver_rules.refuse_harm(headers, ["libcuda1", "glx-alternative-nvidia", "nvidia-kernel-dkms"])


@pytest.mark.parametrize(
    ("modules", "wrong"),
    [
        ([], "has no module of the driver"),
        ([("535.261.03", "NVIDIA")], None),
        ([("470.256.02", "NVIDIA")], "has the module of 470.256.02"),
        ([("535.261.03", "Dual MIT/GPL")], "has the open module"),
        ([("535.261.03", None)], None),
    ],
)
def test_a_kernels_module_is_judged(modules: list[tuple[str, str]], wrong: str | None) -> None:
    rows = [{"name": "nvidia", "version": own, "license": word} for own, word in modules]
    declared = SimpleNamespace(params={"version": "535.261.03", "flavour": "proprietary"})
    assert MODULES.Modules.wrong(declared, {"modules": rows}) == wrong


def test_a_module_that_cannot_be_loaded_is_built_again() -> None:
    """DKMS takes it for installed, and may keep a damaged copy of it."""
    row = {"name": "nvidia", "version": "535.261.03", "license": "NVIDIA", "error": None}
    broken = {**row, "name": "nvidia-uvm", "path": "/x/nvidia-uvm.ko", "error": "it is empty"}
    declared = SimpleNamespace(params={"version": "535.261.03", "flavour": "proprietary"})
    kernel = {"modules": [row, broken]}
    assert MODULES.Modules.wrong(declared, kernel) == "cannot load /x/nvidia-uvm.ko (it is empty)"
    runs: list[list[str]] = []
    host = SimpleNamespace(
        kernels={"6.1": {**kernel, "headers": True}},
        params={"version": "535.261.03"},
        host=SimpleNamespace(path=str),
        module=SimpleNamespace(
            get_bin_path=lambda *_: "dkms",
            run_command=lambda words, pass_fds: runs.append([*words, *pass_fds]) or (0, "", ""),
        ),
    )
    with pytest.MonkeyPatch.context() as patch:
        tree = {"module": "nvidia", "version": "535.261.03", "kernel": "6.1", "state": "installed"}
        patch.setattr(MODULES, "dkms_of", lambda _: [tree])
        patch.setattr(MODULES, "has_whole_build", lambda *_: True)
        patch.setattr(MODULES, "forget_build", lambda *_: runs.append(["", "forgotten"]))
        MODULES.Modules.build(host, "6.1", "the lock")
        host.kernels["6.1"]["modules"] = [row]
        MODULES.Modules.build(host, "6.1", "the lock")
    assert [words[1] for words in runs] == [
        *("uninstall", "forgotten", "install"),
        *("uninstall", "install"),
    ]


@pytest.mark.parametrize(
    ("version", "image", "judged"),
    [
        ("6.1", True, True),
        ("6.0", False, False),
        ("5.9", False, True),
        ("0-rescue-abc", True, False),
    ],
)
def test_only_kernels_that_start_the_host_get_modules(
    version: str, image: bool, judged: bool
) -> None:
    assert MODULES.is_judged({"version": version, "image": image}, "5.9") is judged


@pytest.mark.parametrize(
    ("known", "address", "listed"),
    [
        ("http://deb.debian.org/debian/\n", "https://mirror.example/nvidia", False),
        (
            "http://a/\nhttps://me:secret@mirror.example/nvidia/\n",
            "https://mirror.example/nvidia",
            True,
        ),
        ("http://deb.debian.org/debian/\n", None, True),
        ("", None, False),
    ],
)
def test_check_mode_judges_only_by_lists_that_are_there(
    known: str, address: str | None, listed: bool
) -> None:
    declared = SimpleNamespace(
        params={"repository": {"uri": address} if address else None},
        apt=SimpleNamespace(run=lambda *words: (0, known)),
    )
    assert AptDriver.listed(declared) is listed


def test_a_small_file_that_somebody_touched_is_written_again(tmp_path: Path) -> None:
    """Else each night would find it changed, and no run would end that."""
    place = tmp_path / "pins"
    place.write_text("ours")
    place.chmod(0o644)
    assert not driver_files.differs(place, "ours")
    kept = [{"path": str(place)[1:], "type": "file", "size": 4, "mtime": 1, "mode": "0644"}]
    known = {"branch": "535", "module": "open", "source": "distro", "packages": {}}
    driver = SimpleNamespace(
        receipt={**known, "manifest": kept},
        installation=SimpleNamespace(half_done=False),
        params={**known, "flavour": "open", "version": None, "packages": [], "helpers": []},
        missing_headers=lambda rows: [],
        installed=lambda rows: {},
        hold_differences=lambda rows: [],
    )
    assert AptDriver.differences(driver, {}) == [f"{place} has changed (mtime)"]
    place.chmod(0o666)
    assert driver_files.differs(place, "ours")
    assert driver_files.differs(tmp_path / "none", "ours")


def test_a_build_that_failed_names_its_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the kernel, of several, for which DKMS could not build."""
    log = tmp_path / "make.log"
    log.write_text(
        "DKMS make.log for nvidia-580.126.20 for kernel 6.8.0-52-generic (x86_64)\n"
        "/bin/sh: 3: gcc-12: not found\n"
    )
    monkeypatch.setattr(dkms, "open", lambda path, **options: log.open(**options), raising=False)
    path = "/var/lib/dkms/nvidia/580.126.20/build/make.log"
    assert dkms.end_of_log(f"Consult {path} for more information.") == (
        f"{path} (kernel 6.8.0-52-generic) says: /bin/sh: 3: gcc-12: not found"
    )


def test_a_held_package_that_has_to_give_way_is_reported_to_apt(tmp_path: Path) -> None:
    """The simulation knew no holds: the installation then failed on those of an administrator."""
    rows = {
        "nvidia-dkms-580-server": {"version": "1", "status": "installed", "held": True},
        "nvidia-utils-580": {"version": "1", "status": "installed", "held": False},
    }
    driver = AptDriver(SimpleNamespace(
        params={"state_dir": str(tmp_path), "patience_s": 1}, tmpdir=str(tmp_path)))  # fmt: skip
    driver.apt.query = lambda: rows
    assert driver.held([*rows, "gone"]) == ["nvidia-dkms-580-server"]


KERNEL = {"version": "6.1.0-50-amd64", "image": True, "headers": False, "modules": []}


@pytest.mark.parametrize(
    "has",
    [
        {"headers": True},
        {"image": False},
        {"version": "0-rescue-5f1c"},
        {"modules": [{"name": "nvidia", "version": "580.126.20"}]},
    ],
)
def test_a_kernel_that_needs_no_headers_is_not_refused(has: dict[str, Any]) -> None:
    rows = [{**KERNEL, **has}]
    driver_rules.refuse_without_headers(rows, [], "580.126.20", driver_rules.DEBIAN_HEADERS)


def test_a_kernel_whose_headers_nobody_has_is_refused() -> None:
    """The driver's packages were installed, and the kernel booted without one."""
    before = {"name": "nvidia", "version": "535.261.03"}
    rows, names = [{**KERNEL, "modules": [before]}], driver_rules.DEBIAN_HEADERS
    obtainable = ["linux-headers-6.1.0-50-amd64"]
    driver_rules.refuse_without_headers(rows, obtainable, "580.126.20", names)
    with pytest.raises(
        StateError, match=r"kernel 6\.1\.0-50-amd64: .*linux-image-6.*Nothing was changed"
    ):
        driver_rules.refuse_without_headers(rows, [], "580.126.20", names)
