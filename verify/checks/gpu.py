"""Cards and driver, on hosts that are declared to have them."""

from __future__ import annotations

from collections.abc import Iterator

from .registry import (
    HARDWARE,
    REBOOT,
    Document,
    Finding,
    Sections,
    Seen,
    check,
    declared_none,
    numbers,
)


def _count_not_set(plan: Document) -> str | None:
    excuse = declared_none(plan)
    # That there is none is a declaration too, and can be wrong.
    return None if excuse and "count: 0" in excuse else excuse


@check("gpu.count", reads=("gpus",), repair=HARDWARE, excuse=_count_not_set)
def count(plan: Document, seen: Sections) -> Iterator[Finding | Seen]:
    """The host has as many NVIDIA GPUs on its PCI bus as are declared."""
    wanted, cards = plan["expect"]["count"], seen["gpus"]["pci"]
    listed = ", ".join(f"{card['address']} ({card['device']})" for card in cards)
    if len(cards) > wanted:
        yield Finding(
            f"{len(cards)} NVIDIA GPUs are in the host, declared is gpu_expect:"
            f" {{count: {wanted}}}",
            f"declare them for {plan['host']} in the inventory: gpu_expect: {{count:"
            f" {len(cards)}}}",
            listed,
        )
    elif len(cards) < wanted:
        yield Finding(
            f"{wanted - len(cards)} of {wanted} declared GPUs are not on the PCI bus",
            "look in the kernel log for Xid 79 (fallen off the bus), power the host off and on;"
            " if it stays away: reseat or replace the card",
            listed or "no NVIDIA GPU on the PCI bus",
        )
    yield Seen(listed or "no NVIDIA GPU on the PCI bus")


def _driver_not_asked(plan: Document) -> str | None:
    excuse = declared_none(plan)
    if excuse and "count: 0" in excuse:
        return excuse
    return None if plan["driver"] or not excuse else "gpu_driver: not set"


@check("driver.loaded", reads=("driver", "gpus"), repair=REBOOT, excuse=_driver_not_asked)
def driver(plan: Document, seen: Sections) -> Iterator[Finding | Seen]:
    """A driver is loaded, equal to its user-space libraries, and new enough for every toolkit."""
    there = seen["driver"]
    loaded, library = there["loaded"], there["library"]
    held = [card["address"] for card in seen["gpus"]["pci"] if card["driver"] == "nouveau"]
    reboot = f"reboot {plan['host']}; if it stays so, install the driver again"
    if held:
        yield Finding(f"nouveau holds {', '.join(held)}: CUDA cannot use a card that it holds",
                      "blacklist nouveau, rebuild the initramfs, reboot")
    if loaded is None:
        yield Finding("The NVIDIA kernel module is not loaded",
                      "on the host: modprobe nvidia, and read what it says; look at dkms status",
                      f"modules: {', '.join(there['modules']) or 'none'}")
    if library is None:
        yield Finding("The driver's user-space library, libcuda.so, is not installed",
                      "install the driver's libraries (libcuda1 on Debian)")
    if loaded and library and loaded != library:
        yield Finding(
            f"The loaded driver is {loaded}, its libraries are {library}: they were upgraded"
            " under it", reboot)
    minimum = plan["driver"]["minimum"] if plan["driver"] else None
    if loaded and minimum and numbers(loaded) < numbers(minimum):
        yield Finding(
            f"The driver is {loaded}; {plan['driver']['because']} needs {minimum} or newer",
            "install a newer driver branch, or declare an older TensorFlow")
    if loaded and loaded == library and there["cuinit"]:
        yield Finding(f"The driver refuses to start (cuInit returned {there['cuinit']})", reboot)
    yield Seen(f"loaded {loaded}, libraries {library}, cuInit {there['cuinit']}")
