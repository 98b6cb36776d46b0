"""Hosts whose driver is a container's, such as that of NVIDIA's GPU operator."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from gpufleet.judge import judge
from gpufleet.on_host.driver_files import nvidia_smi, of_container
from gpufleet.on_host.host import Host
from lab.gpus.tree import LIBRARIES, TEXTS
from tests.support.healthy_host import data
from tests.support.planted_gpu_host import KERNEL, MODULES, NODES, GpuHost

CONTAINER = "run/nvidia/driver"
# Where containers of several distributions have programs and libraries.
LAYOUTS = {
    "ubuntu": ("usr/bin", "usr/lib/x86_64-linux-gnu"),
    "ubuntu-arm": ("usr/bin", "usr/lib/aarch64-linux-gnu"),
    "red-hat": ("usr/bin", "usr/lib64"),
    "not-merged": ("bin", "usr/lib64"),
    "local": ("usr/local/bin", "usr/lib/x86_64-linux-gnu"),
}
PRELOADED = """case "$LD_PRELOAD" in
*/run/nvidia/driver/*/libnvidia-ml.so.*:*/run/nvidia/driver/*/libcuda.so.*) ;;
*) echo not preloaded >&2; exit 127;;
esac
"""
HARMS = ("apt-get", "dnf", "provision", "nvidia-modprobe", "reseat", "replace", "reboot")


@pytest.fixture
def host(tmp_path: Path) -> GpuHost:
    if os.geteuid() != 0:
        pytest.skip("the probe as root tries what other accounts may")
    tmp_path.chmod(0o755)
    host = GpuHost(tmp_path / "host")
    host.plan["driver"].update(source="preinstalled", managed=False)
    return host


def into_container(host: GpuHost, programs: str = "usr/bin", libraries: str = LIBRARIES) -> None:
    """The host has nothing of the driver but what its kernel shows."""
    text = (host.root / "usr/bin/nvidia-smi").read_text(encoding="utf-8")
    host.remove("usr/bin/nvidia-smi")
    host.put(f"{CONTAINER}/{programs}/nvidia-smi", text, 0o755)
    there = host.root / CONTAINER / libraries
    there.mkdir(parents=True, exist_ok=True)
    for path in list((host.root / LIBRARIES).glob("lib*")):
        path.rename(there / path.name)
    for name in ("var/lib/dkms", "etc/modprobe.d", "lib/systemd", "etc/systemd"):
        host.remove(name)
    host.remove(f"lib/modules/{KERNEL}/{MODULES}")


def unhealthy(checks: dict[str, Any]) -> dict[str, Any]:
    return {
        name: row for name, row in checks.items() if row["verdict"] not in {"PASS", "NOT-DECLARED"}
    }


def judged(host: GpuHost, snapshot: dict[str, Any]) -> dict[str, Any]:
    checks: Any = judge.judge(host.plan, snapshot)["checks"]
    return {row["id"]: row for row in checks}


def harmful(checks: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {row['remedy']}"
        for name, row in unhealthy(checks).items()
        if any(word in row["remedy"] for word in HARMS)
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_programs_and_libraries_of_a_container_are_asked(host: GpuHost, layout: str) -> None:
    text = (host.root / TEXTS / "smi.xml").read_text(encoding="utf-8")
    host.smi_says(text, before=PRELOADED)
    into_container(host, *LAYOUTS[layout])
    checks = host.checks()
    assert unhealthy(checks) == {}
    evidence = checks["gpu.smi"]["evidence"]
    assert f"/{CONTAINER}/{LAYOUTS[layout][0]}/nvidia-smi" in evidence
    assert "NVML status 0 with 2" in evidence
    assert checks["driver.cuda"]["verdict"] == checks["gpu.mig"]["verdict"] == "PASS"
    assert checks["driver.modules"]["verdict"] == "NOT-DECLARED"


def test_the_hosts_own_programs_go_before_those_of_a_container(host: GpuHost) -> None:
    host.put(f"{CONTAINER}/usr/bin/nvidia-smi", "#!/bin/sh\nexit 9\n", 0o755)
    checks = host.checks()
    assert unhealthy(checks) == {}
    assert checks["gpu.smi"]["evidence"].startswith("/usr/bin/nvidia-smi")


def test_a_managed_driver_beside_that_of_a_container_is_refused(host: GpuHost) -> None:
    host.plan["driver"].update(source="distro", managed=True)
    into_container(host)
    snapshot = host.snapshot()
    data(snapshot, "packages")["driver"] = []
    row = judged(host, snapshot)["driver.packages"]
    assert "packages would be a second one" in row["cause"]
    assert row["remedy"].startswith("set gpu_driver: {source: preinstalled}")


def test_device_files_of_the_container_alone_are_not_called_missing_for_good(
    host: GpuHost,
) -> None:
    into_container(host)
    for node in NODES:
        host.remove(f"dev/{node}")
        host.put(f"{CONTAINER}/dev/{node}")
    checks = host.checks()
    row = checks["driver.nodes"]
    assert (row["verdict"], row["cause"]) == (
        "INCONCLUSIVE",
        "Device files are missing, without which programs find no GPU: /dev/nvidia0, /dev/nvidia1,"
        " /dev/nvidiactl; the driver's container has its own",
    )
    assert "run as root" in row["remedy"]
    assert harmful(checks) == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9),
        ("Failed to initialize NVML: Insufficient Permissions", 4),
        ("Failed to initialize NVML: Unknown Error", 255),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", 12),
        ("nvidia-smi: Permission denied", 126),
    ],
)
def test_an_nvidia_smi_that_fails_there_gets_no_remedy_that_harms(
    host: GpuHost, error: str, status: int
) -> None:
    host.smi_says(error, status)
    into_container(host)
    checks = host.checks()
    assert checks["gpu.smi"]["verdict"] == "FAIL"
    assert error in checks["gpu.smi"]["cause"]
    assert "chroot /run/nvidia/driver nvidia-smi" in checks["gpu.smi"]["remedy"]
    assert checks["gpu.mig"]["explained_by"] == "gpu.smi"
    assert harmful(checks) == []


def test_a_root_that_is_closed_to_the_account_is_still_a_containers(
    host: GpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    into_container(host)
    snapshot = host.snapshot()
    stat = os.stat

    def closed(path: Any, *arguments: Any, **more: Any) -> os.stat_result:
        if f"/{CONTAINER}/" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *arguments, **more)

    monkeypatch.setattr(os, "stat", closed)
    root = Host({"root": str(host.root)})
    assert (nvidia_smi(root), of_container(root)) == (None, True)
    monkeypatch.undo()
    # The section smi of such an account.
    data(snapshot, "smi").update(program=None, status=None, driver_version=None, devices=[])
    data(snapshot, "gpus")["mig"] = None
    checks = judged(host, snapshot)
    assert "this account cannot read its nvidia-smi" in checks["gpu.smi"]["cause"]
    assert checks["gpu.smi"]["remedy"].startswith("let the probe run as root")
    assert checks["gpu.mig"]["explained_by"] == "gpu.smi"
    assert harmful(checks) == []
