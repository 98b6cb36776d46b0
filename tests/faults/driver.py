"""Faults of the driver: its versions, modules, device files, and whether it answers at all."""

from __future__ import annotations

import os

from gpufleet.components.checks import CHECKS
from tests.faults.catalogue import Fault
from tests.support.machine import deadline
from tests.support.planted_gpu_host import CARDS, LATER, NODES, GpuHost

NEWER, OLDER = "550.163.01", "535.216.03"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\n"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that"
    " the latest NVIDIA driver is installed and running.\n"
)


def readers(section: str, *without: str) -> tuple[str, ...]:
    """The checks that can say nothing when a section hangs, and the one that says that it does."""
    return tuple(
        sorted(
            {"host.probe", *(name for name, check in CHECKS.items() if section in check.reads)}
            - {*without}
        )
    )


# What cannot be judged where nvidia-smi lists no GPU.
UNKNOWN = tuple(name for name in readers("smi") if name.startswith("gpu.") and name != "gpu.smi")
STOPPED = ("driver.loaded", "driver.cuda", "driver.pending", "gpu.smi", "gpu.mig", *UNKNOWN)


def _but(*checks: str) -> tuple[str, ...]:
    return tuple(name for name in STOPPED if name not in checks)


def _not_running(host: GpuHost) -> None:
    host.loaded(None)
    host.cuda(100)
    host.nvml(9)
    host.smi_says(NO_DRIVER, 9)


def _libraries_upgraded(host: GpuHost) -> None:
    host.cuda(803, NEWER, 12040)
    host.nvml(18, NEWER)
    host.smi_says(MISMATCH, 18)


def _all_upgraded(host: GpuHost) -> None:
    host.loaded(OLDER)
    host.cuda(803)
    host.nvml(18)
    host.smi_says(MISMATCH, 18)
    host.put(
        "var/lib/gpufleet/reboot-pending.json",
        '{"schema": 1, "boot_id": "0b3233d7-a511-4351-8094-a2709db98e31", "because":'
        ' "the driver was upgraded", "since": "2026-11-20T12:00:00Z", "tried": false,'
        ' "failed": null}',
    )
    host.log(
        f"NVRM: API mismatch: the client has the version 535.261.03, but NVRM: this kernel"
        f" module has the version {OLDER}."
    )


def _old_libcuda(host: GpuHost) -> None:
    host.cuda(cuda=10020)


def _too_old(host: GpuHost) -> None:
    host.cuda(35, cuda=10020)


def _no_fabric_manager(host: GpuHost) -> None:
    host.plan["driver"]["fabric_manager"] = True
    host.cuda(802)


def _no_uvm(host: GpuHost) -> None:
    host.remove("dev/nvidia-uvm")
    host.cuda(999)


def _nodes_of_root(host: GpuHost) -> None:
    for node in NODES:
        (host.root / "dev" / node).chmod(0o600)


def _nodes_of_a_group(host: GpuHost) -> None:
    host.plan["service_user"] = host.service_user = "slurm"
    for node in NODES:
        (host.root / "dev" / node).chmod(0o660)
        os.chown(host.root / "dev" / node, 0, 44)


def _no_such_account(host: GpuHost) -> None:
    host.plan["service_user"] = host.service_user = "trainer"


def _nouveau(host: GpuHost) -> None:
    _not_running(host)
    host.put("proc/modules", "nouveau 1 0\next4 1 0\n")
    host.remove("etc/modprobe.d/nvidia-blacklists-nouveau.conf")
    for address in CARDS:
        host.card(address, "nouveau")


def _kernel_without_module(host: GpuHost) -> None:
    host.kernel(LATER, driver=None)


def _no_module_at_all(host: GpuHost) -> None:
    _not_running(host)
    for path in host.root.glob("lib/modules/*/updates/dkms/nvidia*.ko"):
        path.unlink()


def _key_rejected(host: GpuHost) -> None:
    _not_running(host)
    for address in CARDS:
        host.card(address, None)
    host.log("Loading of module with unavailable key is rejected")


def _smi_hangs(host: GpuHost) -> None:
    host.deadline_s = deadline(4)
    host.smi_says("", before="sleep 600\n")


def _libcuda_hangs(host: GpuHost) -> None:
    host.deadline_s = deadline(2)
    host.cuda(hangs=True)


FAULTS = [
    Fault(
        "21",
        "Driver/library version mismatch",
        "stub",
        "driver.loaded",
        "its libraries are 550.163.01: they were upgraded while it was loaded",
        "reloads the driver",
        _libraries_upgraded,
        also=_but("driver.loaded", "driver.pending"),
    ),
    Fault(
        "21",
        "Failed to initialize NVML (18)",
        "stub",
        "gpu.smi",
        r"different versions \(status 18\)",
        "reboot",
        _libraries_upgraded,
        also=_but("gpu.smi", "driver.pending"),
    ),
    Fault(
        "22",
        "kernel version does not match DSO version",
        "root",
        "driver.loaded",
        "loaded driver is 535.216.03.* a reboot is pending since .*upgraded",
        "reloads the driver, or reboots",
        _all_upgraded,
        also=_but("driver.loaded"),
    ),
    Fault(
        "23",
        "CUDA driver version is insufficient for CUDA runtime version",
        "stub",
        "driver.cuda",
        r"libcuda.so.1 supports CUDA 10.2, too old for toolkit 11.8",
        "newer driver branch",
        _old_libcuda,
    ),
    Fault(
        "23",
        "cuInit returned 35",
        "stub",
        "driver.cuda",
        "older than CUDA needs",
        "newer driver branch",
        _too_old,
    ),
    Fault(
        "25",
        "system not yet initialized (802)",
        "stub",
        "driver.cuda",
        "the system is not ready: service nvidia-fabricmanager.service is not installed",
        "see driver.fabric",
        _no_fabric_manager,
        also=("driver.fabric",),
    ),
    Fault(
        "27",
        "CUDA_ERROR_UNKNOWN (999): no /dev/nvidia-uvm",
        "root",
        "driver.nodes",
        "Device files are missing.*: /dev/nvidia-uvm",
        "nvidia-modprobe -u",
        _no_uvm,
        also=("driver.cuda",),
    ),
    Fault(
        "28",
        "/dev/nvidia0: Permission denied",
        "root",
        "driver.access",
        r"An ordinary account cannot open .*mode 0600",
        "NVreg_DeviceFileMode=0666",
        _nodes_of_root,
    ),
    Fault(
        "28",
        "Permission denied for the service's account",
        "root",
        "driver.access",
        r"Account slurm cannot open .*mode 0660, 0:44",
        "to the group",
        _nodes_of_a_group,
    ),
    Fault(
        "28",
        "the service's account does not exist",
        "root",
        "driver.access",
        "there is no account trainer",
        "correct gpu_service_user",
        _no_such_account,
    ),
    Fault(
        "29",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
        "root",
        "gpu.smi",
        "couldn't communicate with the NVIDIA driver",
        "see driver.loaded",
        _not_running,
        also=_but("gpu.smi"),
    ),
    Fault(
        "29",
        "no module was built for the running kernel",
        "root",
        "driver.modules",
        r"Kernel 6\.1\.0-27-amd64 .* has no NVIDIA module",
        "dkms autoinstall|provision",
        _no_module_at_all,
        also=_but("driver.pending"),
    ),
    Fault(
        "30",
        "nouveau holds the GPU",
        "root",
        "driver.loaded",
        "nouveau is bound to 0000:01:00.0, 0000:02:00.0",
        "blacklist nouveau",
        _nouveau,
        also=("driver.nouveau", *_but("driver.loaded", "driver.pending")),
    ),
    Fault(
        "31",
        "after a kernel upgrade the next boot has no driver",
        "root",
        "driver.modules",
        r"6\.1\.0-50-amd64 \(it boots next\)",
        "dkms autoinstall|provision",
        _kernel_without_module,
    ),
    Fault(
        "32",
        "Key was rejected by service",
        "root",
        "kernel.log",
        "refused a module: the key of its signature is not enrolled",
        "mokutil --import",
        _key_rejected,
        also=STOPPED,
    ),
    Fault(
        "33",
        "nvidia-smi hangs",
        "root",
        "gpu.smi",
        "Probing 'smi' hung: nvidia-smi",
        "a hung driver needs a reboot",
        _smi_hangs,
        verdict="HUNG",
        also=(*readers("smi", "gpu.smi"), "gpu.mig", "gpu.after-load"),
    ),
    Fault(
        "33",
        "every CUDA program hangs",
        "stub",
        "driver.cuda",
        "Probing 'driver' hung: libcuda.so.1 gave no answer",
        "a hung driver needs a reboot",
        _libcuda_hangs,
        verdict="HUNG",
        also=readers("driver", "driver.cuda"),
    ),
]
