"""Facts that only a boot can prove: an image has no kernel and no GPU, and none of it runs."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.components.base.host import Host
from gpufleet.components.base.registry import READS, Check, Evidence, Finding, check
from gpufleet.components.base.remedies import person
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.text import gpufleet
from gpufleet.documents.verdict import Verdict

BOOTED = "host.booted"
# The sections that describe a running system.
OF_A_BOOT = {
    "compute",
    "containers",
    "driver",
    "gpus",
    "kernel",
    "kernel_log",
    "kernel_log_after",
    "network",
    "smi",
    "smi_after",
}
# The checks that read such a section, and in it what files show without a boot.
OF_FILES = {"driver.modules", "driver.packages"}
SUBJECT = "boot"


def left_to_boot(checked: Check, plan: Plan, observed: Sections) -> Finding | None:
    """The finding of a check of an image that only its first boot can prove."""
    if checked.id in OF_FILES or not Host(observed.snapshot).is_image:
        return None
    if OF_A_BOOT.isdisjoint(checked.reads) and checked.effect == READS:
        return None
    return Finding(
        "This is an image that has not booted: its kernel, driver, GPUs, services and containers,"
        " and what its stacks compute, are proved by the first boot",
        person(f"boot a host from the image; then {gpufleet('verify', '--limit', plan['host'])}"),
        verdict=Verdict.INCONCLUSIVE,
        about=(SUBJECT,),
    )


@check(BOOTED, reads=("kernel",), repair="boot the image")
def booted(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The host has booted: what was provisioned as an image is proved on a running host."""
    if since := observed.data["kernel"].get("provisioned_as_image"):
        yield Evidence(f"provisioned as an image at {since}, and booted since")
