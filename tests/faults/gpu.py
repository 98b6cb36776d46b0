"""Faults of the cards: gone, damaged, slowed down, or set otherwise than is declared."""

from __future__ import annotations

from collections.abc import Callable

from lab.gpus.tree import TEXTS
from tests.faults.catalogue import Fault
from tests.support.healthy_host import data
from tests.support.planted_gpu_host import GpuHost

Injection = Callable[[GpuHost], None]
XID = "NVRM: Xid (PCI:0000:01:00): "
UNCORRECTED = "ecc_errors/volatile/dram_uncorrectable"
LINK = "pci/pci_gpu_link_info/"
REASON = "clocks_event_reasons/clocks_event_reason_"
BUSY = {REASON + "gpu_idle": "Not Active", "utilization/gpu_util": "80 %"}


def _said(*lines: str) -> Injection:
    return lambda host: host.log(*lines)


def _counted(element: str, text: str, *lines: str) -> Injection:
    """The kernel says it, and the card's counters show that no reset has repaired it since."""

    def inject(host: GpuHost) -> None:
        host.log(*lines)
        host.smi({element: text}, {})

    return inject


def _card(**texts: str) -> Injection:
    """The first card says otherwise: elements by their last two names, two lines for the slash."""
    return _first({name.replace("__", "/"): text for name, text in texts.items()})


def _first(texts: dict[str, str]) -> Injection:
    return lambda host: host.smi(texts, {})


def _link(element: str, text: str, **read: int) -> Injection:
    """The first card's link, as nvidia-smi and whoever loads the card read it."""

    def inject(host: GpuHost) -> None:
        host.smi({**BUSY, LINK + element: text}, {})
        for run in data(host.saved, "compute")["runs"]:
            run["devices"][0]["link"].update(read)

    return inject


def _one_left(host: GpuHost) -> None:
    host.smi({})
    host.nvml(count=1)


def _fell_off(host: GpuHost) -> None:
    _one_left(host)
    host.log(
        "NVRM: GPU at PCI:0000:02:00: GPU-00000000-1111-2222-3333-444444444401",
        "NVRM: Xid (PCI:0000:02:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off"
        " the bus.",
        "NVRM: GPU 0000:02:00.0: GPU has fallen off the bus.",
    )


def _gone_from_the_bus(host: GpuHost) -> None:
    _one_left(host)
    host.remove("sys/bus/pci/devices/0000:02:00.0")


def _mig(host: GpuHost) -> None:
    host.put(f"{TEXTS}/mig.csv", "0, Enabled\n1, Disabled\n")
    host.put(
        f"{TEXTS}/list.txt",
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n"
        "  MIG 3g.40gb     Device  0: (UUID: MIG-1)\nGPU 1: NVIDIA H100\n",
    )


def _other_cards(host: GpuHost) -> None:
    host.smi({"product_name": "NVIDIA A100-SXM4-40GB", "fb_memory_usage/total": "40960 MiB"}, {})


FAULTS = [
    Fault(
        "34",
        "GPU has fallen off the bus",
        "root",
        "kernel.log",
        "Xid 79 of 0000:02:00.0.*fallen off the bus",
        "power it off and on.*reseat",
        _fell_off,
        also=("gpu.visible", "gpu.identity"),
    ),
    Fault(
        "35",
        "Xid 48: double-bit ECC error",
        "root",
        "kernel.log",
        "Xid 48 of 0000:01:00.0: .*could not be corrected",
        "--gpu-reset -i 0000:01:00.0",
        _counted(
            UNCORRECTED,
            "2",
            XID + "48, pid=812, name=python, DBE (double bit error) ECC Error detected",
        ),
        also=("gpu.memory-errors",),
    ),
    Fault(
        "35",
        "Xid 64: a row could not be remapped",
        "root",
        "kernel.log",
        "Xid 64 of 0000:01:00.0",
        "replace the card",
        _counted(
            "remapped_rows/remapped_row_failure",
            "Yes",
            XID + "64, pid='<unknown>', name=<unknown>, Row Remapper error",
        ),
        also=("gpu.memory-errors",),
    ),
    Fault(
        "35",
        "Xid 94: contained ECC error",
        "root",
        "kernel.log",
        r"Xid 94 of 0000:01:00.0 \(2 times\): .*contained to one program: nothing to do",
        "",
        _said(*[XID + "94, pid=812, name=python, Contained: CE User Channel"] * 2),
        verdict="PASS",
    ),
    Fault(
        "35",
        "Xid 109: a program did not give the card back",
        "root",
        "kernel.log",
        "Xid 109 of 0000:01:00.0: context switch",
        "--gpu-reset -i 0000:01:00.0",
        _said(XID + "109, pid=812, name=python, Ch 00000076, errorString CTX SWITCH TIMEOUT"),
        verdict="INCONCLUSIVE",
    ),
    Fault(
        "35",
        "SXid 26006: fatal without the word",
        "root",
        "kernel.log",
        "SXid 26006 of the NVSwitch 0000:05:00.0: soe halt",
        "all GPUs and NVSwitches",
        _said("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 26006, SOE Halt"),
    ),
    Fault(
        "35",
        "Xid 95: uncontained ECC error",
        "root",
        "kernel.log",
        "Xid 95 of 0000:01:00.0: .*not contained",
        "drain the host",
        _counted(UNCORRECTED, "1", XID + "95, pid='<unknown>', name=<unknown>, Uncontained: FBHUB"),
        also=("gpu.memory-errors",),
    ),
    Fault(
        "37",
        "Xid 31: MMU fault of a program",
        "root",
        "kernel.application-errors",
        "Xid 31 of 0000:01:00.0, 2 times, last by python 4567",
        "",
        _said(*[XID + "31, pid=4567, name=python, Ch 00000008, intr 00000000. MMU Fault"] * 2),
        verdict="PASS",
    ),
    Fault(
        "38",
        "a row remap is pending",
        "root",
        "gpu.memory-errors",
        "GPU 0 .*will remap a faulty memory row",
        "--gpu-reset -i 0",
        _card(remapped_rows__remapped_row_pending="Yes"),
    ),
    Fault(
        "38",
        "a row remap failed",
        "root",
        "gpu.memory-errors",
        "could not remap a faulty memory row",
        "replace the GPU",
        _card(remapped_rows__remapped_row_failure="Yes"),
    ),
    Fault(
        "38",
        "uncorrected errors since the driver was loaded",
        "root",
        "gpu.memory-errors",
        "had 10 uncorrected memory errors",
        "replace the GPU",
        _card(ecc_errors__volatile__dram_uncorrectable="10"),
    ),
    Fault(
        "39",
        "one GPU of two is missing",
        "root",
        "gpu.visible",
        "GPU at 0000:02:00.0 is on the PCI bus, but nvidia-smi does not list it",
        "kernel.log",
        _one_left,
        also=("gpu.identity",),
    ),
    Fault(
        "39",
        "one GPU is not on the PCI bus",
        "root",
        "gpu.count",
        "1 of 2 declared GPUs is not on the PCI bus",
        "reseat or replace",
        _gone_from_the_bus,
        also=("gpu.identity", "gpu.mig"),
    ),
    Fault(
        "39",
        "another model is installed",
        "root",
        "gpu.identity",
        "has the model NVIDIA A100-SXM4-40GB, declared is NVIDIA H100 80GB HBM3",
        "correct gpu_expect",
        _other_cards,
        # CUDA of the planted host still shows the declared one.
        also=("toolkit.device-query",),
    ),
    Fault(
        "40",
        "the PCIe link has 8 lanes of 16",
        "root",
        "gpu.pcie",
        "uses 8 of 16 PCIe lanes",
        "reseat",
        _link("link_widths/current_link_width", "8x", width=8),
    ),
    Fault(
        "40",
        "the PCIe link is slow under load",
        "root",
        "gpu.pcie",
        "generation 2 under load, it can be 5",
        "riser",
        _link("pcie_gen/current_link_gen", "2", generation=2),
    ),
    Fault(
        "41",
        "hardware thermal slowdown",
        "root",
        "gpu.throttle",
        "throttled by heat",
        "fans",
        _first(
            {**BUSY, REASON + "hw_slowdown": "Active", REASON + "hw_thermal_slowdown": "Active"}
        ),
    ),
    Fault(
        "41",
        "power brake",
        "root",
        "gpu.throttle",
        "by the power brake",
        "power supplies",
        _first(
            {**BUSY, REASON + "hw_slowdown": "Active", REASON + "hw_power_brake_slowdown": "Active"}
        ),
    ),
    Fault(
        "42",
        "power limit lowered",
        "root",
        "gpu.settings",
        "power limit of 400 W, declared are 700",
        "-pl 700",
        _card(gpu_power_readings__current_power_limit="400.00 W"),
    ),
    Fault(
        "43",
        "persistence off",
        "root",
        "gpu.settings",
        "persistence off",
        "-pm 1",
        _card(persistence_mode="Disabled"),
    ),
    Fault(
        "44",
        "ECC switched off",
        "root",
        "gpu.settings",
        "ECC off, declared is on",
        "-e 1",
        _card(ecc_mode__current_ecc="Disabled", ecc_mode__pending_ecc="Disabled"),
    ),
    Fault(
        "44",
        "the compute mode differs from the declaration",
        "root",
        "gpu.settings",
        "compute mode exclusive_process, declared is default",
        "-c DEFAULT",
        _card(compute_mode="Exclusive_Process"),
    ),
    Fault(
        "44",
        "MIG differs from the declaration",
        "root",
        "gpu.mig",
        "GPU 0 has 3g.40gb, declared is no MIG",
        "provision",
        _mig,
    ),
    Fault(
        "x38",
        "A CPU has another frequency governor than declared",
        "root",
        "host.governor",
        "CPU 2 has powersave",
        "cpupower frequency-set -g performance",
        lambda host: host.governor(2, "powersave"),
    ),
]
