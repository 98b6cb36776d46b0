"""Why CUDA does not start: its status is a symptom, and the rest of the snapshot decides.

The reasons that the host shows come before the status's general meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from gpufleet.components.base import mig, subjects
from gpufleet.components.base.driver_state import part, texts
from gpufleet.components.base.host import Host, mapping, mappings
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.text import quoted

from . import running
from .installed_checks import RESTART_FABRIC

NOT_INITIALIZED, STUB, NO_CARD, NOT_READY, MISMATCH, COMPATIBILITY, UNKNOWN = (
    *(3, 34, 100),
    *(802, 803, 804, 999),
)
# The meaning of each status of cuInit, where nothing else is known.
MEANINGS = {
    NOT_INITIALIZED: "it is not initialised",
    STUB: "a stub of the toolkit is loaded as libcuda.so.1",
    35: "the driver is older than CUDA needs",
    46: "one program uses every GPU exclusively",
    NO_CARD: "it finds no card",
    NOT_READY: "the system is not ready: the fabric manager does not run",
    MISMATCH: "driver and libraries are of different versions",
    COMPATIBILITY: "its compatibility library (cuda-compat) does not support this GPU",
    UNKNOWN: "unknown error",
}
REMEDIES = {
    STUB: "remove the stub, or its directory, from the linker's path (/etc/ld.so.conf.d), and run"
    " ldconfig",
    NO_CARD: "see gpu.visible, driver.nodes, and environment.login for CUDA_VISIBLE_DEVICES",
    NOT_READY: f"on the host: {RESTART_FABRIC}; see driver.fabric",
    MISMATCH: "see driver.loaded: reboot {host}",
    COMPATIBILITY: "remove cuda-compat, which supports data center GPUs only",
    UNKNOWN: "see driver.nodes: nvidia-modprobe -u -c 0 makes /dev/nvidia-uvm; else reboot {host}",
}
# What another check may have found that gives this status.
ABOUT: Mapping[int, subjects.Subjects] = {
    **dict.fromkeys((NOT_INITIALIZED, NO_CARD, MISMATCH, UNKNOWN), (subjects.GPUS,)),
    NOT_READY: ("fabric",),
}
MEMORY_MODULE = "nvidia_uvm"
OPEN_LICENSE = "Dual MIT/GPL"


class Refusal(NamedTuple):
    """Why CUDA does not start, what repairs that, and which other finding explains it."""

    meaning: str
    remedy: str
    about: subjects.Subjects = ()


def refusal(plan: Plan, observed: Sections, status: int) -> Refusal:
    """The first reason that the snapshot shows for a status of cuInit."""
    host = Host(observed.snapshot)
    general = Refusal(
        MEANINGS.get(status, "see the CUDA documentation, CUresult"),
        REMEDIES.get(status, "reboot {host}; if it persists, reinstall the driver").format(
            host=plan["host"]
        ),
        ABOUT.get(status, ()),
    )
    if status == NO_CARD and (split := mig.no_card(observed)):
        return general._replace(meaning=f"{general.meaning}: {split[0]}", remedy=split[1])
    found = next((each for reason in REASONS.get(status, ()) for each in reason(plan, host)), None)
    if found is None:
        return general
    named = general.meaning.partition(":")[0]
    return Refusal(f"{named}: {found.meaning}", found.remedy, found.about)


# -- 802 -------------------------------------------------------------------------------------------


def _not_attested(plan: Plan, host: Host) -> Iterator[Refusal]:
    """With confidential computing the GPUs wait until somebody has attested them."""
    nvml = mapping(host.evidence("smi").get("nvml"))
    ready = nvml.get("ready")
    if nvml.get("confidential") and ready is not True:
        yield Refusal(
            "confidential computing is on, and the GPUs"
            + (" are not set ready" if ready is False else " may not be set ready"),
            "attest the GPUs (NVIDIA's nvtrust), then on the host, as root: nvidia-smi conf-compute"
            " -srs 1; nvidia-smi conf-compute -grs shows the ready state, and a reset clears it",
            () if ready is False else ("fabric",),
        )


def _fabric_is_down(plan: Plan, host: Host) -> Iterator[Refusal]:
    for fault in running.fabric(plan, host):
        yield Refusal(fault.cause, "see driver.fabric", ("fabric",))


def _fabric_of_the_machine_below(plan: Plan, host: Host) -> Iterator[Refusal]:
    gpus = part(host, "gpus")
    running_here = mapping(part(host, "driver").get("fabric")).get("active") is True
    if gpus.get("hypervisor") and not gpus.get("nvswitches") and not running_here:
        yield Refusal(
            "this virtual machine has no NVSwitch and no fabric manager that runs, so the machine"
            " below has to set up the fabric of its GPUs",
            "on the machine below: activate the fabric manager's partition with these GPUs, or"
            " pass the NVSwitches to this virtual machine as well; of a cloud instance: contact"
            " the provider, or use its image, which has the fabric manager; see driver.fabric",
            ("fabric",),
        )


# -- 803 -------------------------------------------------------------------------------------------


def _other_library(plan: Plan, host: Host) -> Iterator[Refusal]:
    """Programs open another libcuda than the loaded driver's, and no reboot changes that."""
    driver = part(host, "driver")
    path, loaded = str(driver.get("library_path") or ""), host.driver
    if loaded is None or driver.get("on_disk") not in {None, loaded}:
        return
    if "compat" in path:
        yield Refusal(
            f"programs open the compatibility library {path}, which does not fit driver {loaded}",
            f"on the host: take the directory of {quoted(path)} out of the linker's paths"
            " (LD_LIBRARY_PATH, /etc/ld.so.conf.d), and run ldconfig",
            (subjects.GPUS,),
        )
    elif host.driver_library == loaded:
        yield Refusal(
            f"the loaded module, its file and libcuda.so are all {loaded}, so a program opens"
            " another of the driver's libraries",
            "on the host: ldconfig -p | grep -e libcuda -e libnvidia shows those of other versions;"
            " remove them, and run ldconfig",
            (subjects.GPUS,),
        )


# -- 3, 100, 999 -----------------------------------------------------------------------------------


def _no_memory_module(plan: Plan, host: Host) -> Iterator[Refusal]:
    """CUDA's memory is in a module of its own, without which nvidia-smi works all the same."""
    loaded = texts(part(host, "driver").get("modules"))
    if host.driver is None or not loaded or MEMORY_MODULE in loaded:
        return
    for row in mappings(part(host, "driver").get("blocked")):
        if row.get("module") == MEMORY_MODULE:
            path = quoted(str(row.get("by")))
            yield Refusal(
                f"{path} keeps the module {MEMORY_MODULE} from being loaded",
                f"on the host: take out of {path} what is there about {MEMORY_MODULE}, then"
                f" modprobe {MEMORY_MODULE}",
                (subjects.GPUS,),
            )
    yield Refusal(
        f"the module {MEMORY_MODULE} is not loaded",
        f"on the host, as root: modprobe {MEMORY_MODULE}, then nvidia-modprobe -u -c 0; where it is"
        " refused, journalctl -k shows why",
        (subjects.GPUS,),
    )


def _memory_encryption(plan: Plan, host: Host) -> Iterator[Refusal]:
    """The processor encrypts all memory, which some drivers and cards cannot address."""
    command_line = str(host.evidence("machine").get("command_line") or "")
    events = mappings(host.evidence("kernel_log").get("events"))
    if "mem_encrypt=on" in command_line.split() or any(
        event.get("kind") == "memory-encryption" for event in events
    ):
        yield Refusal(
            "the processor encrypts all memory (SME), with which the driver's access to memory"
            " (DMA) may fail",
            "in the kernel's command line write mem_encrypt=off, not mem_encrypt=on, and reboot; or"
            " keep it, and try iommu=pt and a newer driver branch",
            (subjects.GPUS,),
        )


def _heterogeneous_memory(plan: Plan, host: Host) -> Iterator[Refusal]:
    """With some kernels the open modules cannot start their HMM, and so no memory of CUDA."""
    kernel = host.evidence("kernel")
    licenses = [
        module.get("license")
        for row in mappings(kernel.get("installed"))
        if row.get("version") == kernel.get("running")
        for module in mappings(row.get("modules"))
    ]
    if OPEN_LICENSE in licenses and host.evidence("smi").get("status") == 0:
        yield Refusal(
            "nvidia-smi works, and the open kernel modules do not start CUDA's memory, as they do"
            " with some kernels by their HMM",
            "on the host: put options nvidia_uvm uvm_disable_hmm=1 into a file of /etc/modprobe.d,"
            " end all programs on the GPUs, modprobe -r nvidia_uvm && modprobe nvidia_uvm; or"
            " install a newer driver branch",
            (subjects.GPUS,),
        )


Reason = Callable[[Plan, Host], Iterator[Refusal]]
REASONS: Mapping[int, tuple[Reason, ...]] = {
    NOT_READY: (_not_attested, _fabric_is_down, _fabric_of_the_machine_below),
    MISMATCH: (_other_library,),
    NOT_INITIALIZED: (_no_memory_module, _memory_encryption, _heterogeneous_memory),
    NO_CARD: (_no_memory_module,),
    UNKNOWN: (_no_memory_module, _memory_encryption),
}
