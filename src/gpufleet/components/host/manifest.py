"""The parts and settings of a host, compared with the manifest of its group."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.components.base import subjects
from gpufleet.components.base.machine import Manifest, link_text, manifest_of, same
from gpufleet.components.base.registry import AS_ROOT, INSPECT, Evidence, Finding, check
from gpufleet.components.base.sections import Sections
from gpufleet.documents.manifest import MOUNT, NONE
from gpufleet.documents.plan import Plan
from gpufleet.documents.text import cut
from gpufleet.documents.verdict import Verdict

# Characters of a line in a cause. Of longer lines the cause has the parts that differ, and the
# evidence has all.
MOST_SHOWN = 240
PERMIT = "if it is right, permit it too in gpu_manifest"
# The act of a person, by the beginning of a name.
REMEDIES = {
    "system": "check that the host is in the right group",
    "board": "check that the host is in the right group",
    "bios": "on the host: install the group's version of the BIOS, and reboot",
    "bmc": "install the group's firmware of the management controller",
    "cpu.microcode": "on the host: install the group's microcode package and BIOS, and reboot",
    "cpu.governor": "on the host: set the governor (cpupower frequency-set), also for each boot",
    "cpu.": "on the host: compare the BIOS settings of both (SMT, disabled cores), then the CPUs",
    "memory.": "on the host: read the management controller's event log for memory errors, compare"
    " the BIOS settings, and seat or replace the module",
    "numa.": "on the host: compare the BIOS settings of both (nodes per socket, sub-NUMA"
    " clustering), and then the memory modules",
    "pci.links": "on the host: see dmesg for errors of the PCIe link; seat the drive or adapter,"
    " and its cable",
    "pci.": "on the host: compare lspci -nn of both hosts; seat or replace what is missing",
    "nvme.media_errors": "on the host: read smartctl -x of the drives; back up and replace the one"
    " whose errors increase",
    "nvme.": "on the host: see dmesg for a drive that was lost; seat, replace or update it",
    "network.adapters": "on the host: update the adapter's firmware, or seat or replace it",
    "network.": "on the host: check the port, its cable and its switch",
    "gpu.vbios": "ask the machine's maker for the firmware of the group",
    "gpu.": "on the host: see dmesg for a GPU that was lost; seat or replace it",
    "kernel.release": "on the host: install and boot the group's kernel",
    "kernel.": "on the host: set the group's command line in the boot loader, and reboot",
    "clock.": "on the host: start the service that sets the clock, and check its servers",
    "limits.": "on the host: set the group's limits, and restart the service",
    MOUNT: "on the host: compare /etc/fstab of both hosts, and mount it in the same way",
}


def _undeclared(plan: Plan) -> str | None:
    return None if plan.get("manifest") else "gpu_manifest: not set"


@check(
    "host.manifest", reads=("machine",), repair=INSPECT, severity="major", skip_reason=_undeclared
)
def as_the_group(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Hardware, firmware and settings are those of the host's group."""
    data = observed.read_elsewhere()
    found = manifest_of(data)
    declared = plan.get("manifest") or {}
    for name, permitted in declared.items():
        value = found.value(name)
        if value is None:
            yield _unread(found, name, observed)
        elif not any(same(value, each) for each in permitted):
            group = " or ".join(permitted)
            yield Finding(
                f"{name} {_compared(name, value, group)}",
                f"{_remedy(name)}; {PERMIT}",
                f"{name}, here: {value}\n{name}, group: {group}{_details(name, observed)}",
            )
    yield Evidence(f"{len(declared)} names of gpu_manifest are compared")


def _compared(name: str, value: str, group: str) -> str:
    if max(len(value), len(group)) <= MOST_SHOWN:
        return f"is {value}; the group has {group}"
    between = " " if name == "kernel.command_line" else "; " if ";" in group else ", "
    here, there = value.split(between), group.split(between)
    own = between.join(part for part in here if part not in there) or NONE
    others = between.join(part for part in there if part not in here) or NONE
    return (
        f"differs: here {cut(own, MOST_SHOWN)}; in place of it the group has"
        f" {cut(others, MOST_SHOWN)}"
    )


def _remedy(name: str) -> str:
    return next(text for beginning, text in REMEDIES.items() if name.startswith(beginning))


def _unread(found: Manifest, name: str, observed: Sections) -> Finding:
    why = found.reason(name) or ""
    hidden = "this account" in why
    return Finding(
        f"{name} cannot be compared with the group's: {why}",
        AS_ROOT
        if hidden or observed.snapshot.get("euid")
        else f"on the host: find why it cannot be read, or remove {_shown(name)} from gpu_manifest",
        verdict=Verdict.INCONCLUSIVE,
        about=tuple(
            subjects.section(section)
            for section in ("network", "kernel", "disks")
            if f"section {section} " in why
        ),
    )


def _shown(name: str) -> str:
    return "the mount" if name.startswith(MOUNT) else name


def _details(name: str, observed: Sections) -> str:
    """Which slots are empty and which drive is which, where a line has only their numbers."""
    machine = observed.data["machine"]
    if name == "memory.modules":
        empty = [slot["slot"] or "?" for slot in machine["memory"] or [] if slot["mib"] == 0]
        return f"\nempty slots: {', '.join(empty) or NONE}"
    if name == "pci.links":
        links = machine["pci"]["links"]
        return "".join(f"\n{link['address']}: {link_text(link)}" for link in links)
    if name.startswith("nvme."):
        return "".join(
            f"\n{drive['name']} ({drive['address']}): {drive['model']}, firmware"
            f" {drive['firmware']}"
            for drive in machine["drives"]
        )
    return ""
