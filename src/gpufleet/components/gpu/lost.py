"""Which cards are lost: those that an error names, and those that nvidia-smi does not list."""

from __future__ import annotations

import re

from gpufleet.components.base import subjects
from gpufleet.components.base.cards import release
from gpufleet.components.base.registry import AS_ROOT, Finding, shortened
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.gpu import PciDevice
from gpufleet.documents.text import quantity

ADDRESS = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
# The Xid of a card that has fallen off the bus.
OFF_THE_BUS = ("xid", 79)
# NVML_ERROR_GPU_IS_LOST: a card has fallen off the bus, or no longer answers.
GPU_IS_LOST = 15


def named_in(text: str, observed: Sections, *, lost: bool) -> subjects.Subjects:
    """The cards that an error of nvidia-smi names; the only one where a card is lost."""
    bus = _bus(observed)
    # nvidia-smi writes the domain of an address with eight digits, or with four.
    written = {found[-len("0000:00:00.0") :] for found in ADDRESS.findall(text.lower())}
    named = [address for address in bus if address in written]
    return _cards(named or (bus if lost and len(bus) == 1 else []))


def unlisted(observed: Sections, count: int | None) -> subjects.Subjects:
    """The cards on the bus that nvidia-smi does not list, if these make up such a count."""
    bus, listed = _bus(observed), {card["address"] for card in observed.data["smi"]["devices"]}
    return _cards([address for address in bus if address not in listed and count == len(bus)])


def fallen_off(observed: Sections, missing: int) -> list[str]:
    """The cards that fell off the bus by the kernel's word, and are not on it, if so many miss."""
    data = observed.read_elsewhere()
    events = data["kernel_log"]["events"] if "kernel_log" in data else []
    off = {
        event["address"] or "" for event in events if (event["kind"], event["code"]) == OFF_THE_BUS
    }
    gone = sorted(off - {"", *_bus(observed)})
    return gone if len(gone) == missing else []


def _bus(observed: Sections) -> list[str]:
    data = observed.read_elsewhere()
    return [card["address"] for card in data["gpus"]["pci"]] if "gpus" in data else []


def _cards(addresses: list[str]) -> subjects.Subjects:
    return tuple(subject for address in addresses for subject in subjects.card(address))


def passed_on(cards: list[PciDevice], own: int, wanted: int) -> Finding:
    """The finding of declared GPUs that are there, and passed to virtual machines."""
    where = shortened([f"{card['address']} ({card['driver']})" for card in cards])
    numbers = subjects.missing_gpus(own, wanted)
    return Finding(
        f"{len(cards)} of {quantity(wanted, 'declared GPU')} {'is' if len(cards) == 1 else 'are'}"
        " on the PCI bus, and held by a driver that"
        f" passes them to virtual machines: {where}",
        "if this host is to compute with them: give them back (driverctl unset-override, or take"
        " their ids out of the vfio-pci line in /etc/modprobe.d and of the kernel's command line,"
        " make the initramfs again, and reboot); if not, declare what is left: gpu_expect:"
        f" {{count: {own}}}",
        where,
        about=numbers,
        entails=(*numbers, subjects.DRIVER) if not own else numbers,
    )


def taken(card: PciDevice, listed: int, wanted: int | None) -> Finding:
    """The finding of a GPU that nvidia-smi does not list, since another driver holds it."""
    return Finding(
        f"The GPU at {card['address']} is on the PCI bus and held by {card['driver']}, so"
        " nvidia-smi does not list it",
        release(str(card["driver"])),
        about=(*subjects.card(card["address"]), "nouveau"),
        entails=subjects.missing_gpus(listed, wanted),
    )


def in_container(observed: Sections) -> bool:
    """True where a container has the host's driver, such as the GPU operator's."""
    return bool(observed.data["driver"].get("of_container"))


# No package: a second driver's would break a host whose driver is a container's.
_ASK_CONTAINER = (
    "install no package of a driver here, it would be a second one; on the host, as root: chroot"
    " /run/nvidia/driver nvidia-smi; if that fails too, restart the driver's container"
)


def no_smi(observed: Sections) -> str:
    """The cause of a snapshot without a report of nvidia-smi."""
    if not observed.data["smi"]["asked"]:
        return "nvidia-smi was not run"
    if in_container(observed):
        return (
            "The driver is a container's, below /run/nvidia/driver, and this account cannot read"
            " its nvidia-smi"
        )
    return "nvidia-smi is not installed"


def without_smi(observed: Sections) -> str:
    """The remedy where no nvidia-smi was run."""
    if not observed.data["smi"]["asked"]:
        return "take a snapshot in mode full"
    if in_container(observed):
        return f"{AS_ROOT}; {_ASK_CONTAINER}"
    packages = observed.read_elsewhere().get("packages")
    # A system without packages, such as Talos, has the driver as its image has it.
    by = " (Debian: apt-get install nvidia-smi)" if packages and packages["manager"] else ""
    return f"install it with the driver{by}"


def failed_smi(plan: Plan, observed: Sections) -> str:
    """The remedy where nvidia-smi fails, and names no GPU."""
    if in_container(observed):
        return _ASK_CONTAINER
    return (
        "see driver.loaded: the module must be loaded (dkms status, lsmod); if it is, reboot"
        f" {plan['host']}"
    )
