"""The host itself: probed completely, with a valid plan, free space and complete installations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from gpufleet.components.base import driver_state, subjects
from gpufleet.components.base.holders import DRIVER_SECTIONS, behind_driver
from gpufleet.components.base.registry import (
    AS_ROOT,
    INSPECT,
    INVENTORY,
    READS,
    Evidence,
    Finding,
    check,
    shortened,
)
from gpufleet.components.base.remedies import Component, Remedy, command, person, provision, then
from gpufleet.components.base.sections import Sections, by_name
from gpufleet.documents.plan import Component as Kind
from gpufleet.documents.plan import Plan
from gpufleet.documents.problems import INSTALLATION_ONLY, Code
from gpufleet.documents.sections.cuda import JournalStatus
from gpufleet.documents.snapshot import SNAPSHOT_SCHEMA, Section, Snapshot
from gpufleet.documents.snapshot import Sections as Documented
from gpufleet.documents.text import plain, quoted, shell
from gpufleet.documents.validator import DAMAGED
from gpufleet.documents.verdict import Verdict

from .clock import clock
from .remounted import remounted

# A section that is read again exists only where something ran on GPUs.
SECOND_READINGS = tuple(name for name in Documented.__annotations__ if name.endswith("_after"))
SECTIONS = tuple(name for name in Documented.__annotations__ if name not in SECOND_READINGS)

# Sections that the probes of earlier releases do not read: the checks that read them report it.
ADDED = ("network", "machine")


def unreadable_section(snapshot: Snapshot, name: str) -> Finding | None:
    """Why a section cannot be judged, if it cannot."""
    section = by_name(snapshot).get(name)
    if section is not None and section["state"] == "ok" and section["data"] is not None:
        return None
    if name in SECOND_READINGS and name not in snapshot["sections"] and snapshot["mode"] == "full":
        return Finding(
            "The GPUs were not read again after the work: no driver was loaded, or an earlier"
            " release's probe took the snapshot",
            "see driver.loaded; then ./gpufleet verify",
            verdict=Verdict.INCONCLUSIVE,
            about=(subjects.section("after"),),
        )
    return replace(_unreadable(name, section), about=(subjects.section(name),))


def _unreadable(name: str, section: Section[object] | None) -> Finding:
    if section is None:
        return Finding(
            f"The probe did not read section '{name}'",
            "take a new snapshot with this release's probe",
            verdict=Verdict.INCONCLUSIVE,
        )
    error = section["error"] or "no data"
    if section["state"] == DAMAGED:
        return Finding(
            f"Section '{name}' is damaged or from another release: {error}",
            "take a new snapshot with this release's probe",
            error,
            Verdict.INCONCLUSIVE,
        )
    if name == "environment" and section["state"] in {"hung", "error"}:
        return Finding(
            f"The login environment cannot be read: {error}",
            "on the host: find what blocks or ends the shell in the profile files (bash -lxc true)",
            error,
            Verdict.HUNG if section["state"] == "hung" else Verdict.INCONCLUSIVE,
        )
    if section["state"] == "hung":
        return Finding(
            f"Probing '{name}' hung: {error}",
            "on the host: check for processes in state D (ps -eo pid,stat,wchan:32,cmd), dead"
            " network mounts and kernel log errors; a hung driver needs a reboot; a host that is"
            " only slow needs more time: ./gpufleet verify --deadline 900",
            f"section {name}: {error} after {section['seconds']} s",
            Verdict.HUNG,
        )
    remedy = (
        f"on the host: fix this error, with which '{name}' cannot be read; then ./gpufleet verify"
    )
    if section["state"] == "denied":
        remedy = AS_ROOT
    return Finding(f"Probing '{name}' failed: {error}", remedy, error, verdict=Verdict.INCONCLUSIVE)


@check("host.probe", reads=(), repair=INSPECT)
def probed(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The probe read every section, on the host of the plan."""
    snapshot = observed.snapshot
    if snapshot["schema"] != SNAPSHOT_SCHEMA:
        yield Finding(
            f"The snapshot has schema {snapshot['schema']}, this release reads {SNAPSHOT_SCHEMA}:"
            " its values may have another meaning",
            "take a new snapshot with this release's probe",
            verdict=Verdict.INCONCLUSIVE,
        )
    if snapshot["host"] != plan["host"]:
        yield Finding(
            f"The snapshot is of {snapshot['host']}, the plan is for {plan['host']}",
            "use a plan and a snapshot of the same host",
        )
    yield from clock(observed)
    again = [name for name in SECOND_READINGS if name in snapshot["sections"]]
    former = [name for name in ADDED if name not in snapshot["sections"]]
    for name in (*SECTIONS, *again):
        if name in former:
            yield Evidence(f"an earlier release's probe did not read section '{name}'")
        elif finding := unreadable_section(snapshot, name):
            yield behind_driver(finding, observed, name) if name in DRIVER_SECTIONS else finding
    unreadable = [f"{row['what']} ({row['because']})" for row in snapshot.get("unseen", [])]
    needed = [row["what"] for row in snapshot.get("unseen", []) if _needed(plan, row["what"])]
    if needed:
        yield Finding(
            f"The plan cannot be verified: the probe may not read {shortened(needed)}",
            AS_ROOT,
            "\n".join(unreadable),
            Verdict.INCONCLUSIVE,
        )
    if unreadable:
        yield Evidence(f"not read: {shortened(unreadable)}")
    yield Evidence(
        f"{len(snapshot['sections'])} sections, mode {snapshot['mode']}, as"
        f" {'root' if snapshot['euid'] == 0 else 'user ' + str(snapshot['euid'])}"
    )


def _needed(plan: Plan, what: str) -> bool:
    """Return whether a path is in the plan, or is above or below such a path."""
    paths = [
        "/var/lib/gpufleet",
        *(row["path"] for row in plan["toolkits"]),
        *(row["venv"] for row in plan["stacks"]),
    ]
    paths += ["/boot", "/lib/modules"] if driver_state.managed(plan) else []
    return any(
        f"{what}/".startswith(f"{path}/") or f"{path}/".startswith(f"{what}/") for path in paths
    )


# Parts of a plan that can be declared for a host, besides its GPUs.
DECLARED = ("driver", "toolkits", "stacks", "containers", "service_user", "environment")


@check("host.plan", reads=(), repair=INVENTORY)
def planned(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The inventory declares this host, and the declaration can be satisfied."""
    for problem in plan["problems"]:
        # A declaration that cannot be installed can still be judged.
        judged = problem["code"] in INSTALLATION_ONLY
        yield Finding(
            f"{problem['where']}: {problem['message']}",
            problem["remedy"],
            problem["code"],
            Verdict.INCONCLUSIVE if judged else Verdict.FAIL,
            about=(subjects.REPOSITORIES,)
            if problem["code"] == Code.PACKAGES_STOPPED.value
            else (),
        )
    if twins := plan.get("twins"):
        yield Finding(
            f"{shortened(twins)} of the inventory {'is' if len(twins) == 1 else 'are'} this very"
            " machine: the GPUs are the same",
            "correct ansible_host of the wrong one: the machine of that name was not verified",
            verdict=Verdict.INCONCLUSIVE,
        )
    if claims := plan.get("claims"):
        yield Evidence(
            f"{shortened(claims)} of the inventory {'reports' if len(claims) == 1 else 'report'}"
            " the boot and the GPUs of this host, and nothing proves that both are one machine:"
            " compare ansible_host; a host that reports what another one has is damaged, or lies"
        )
    # A count of 0 is a declaration as well.
    expected = any(value is not None for value in plan["expect"].values())
    if not expected and not any(plan.get(name) for name in DECLARED):
        yield Finding(
            "Nothing is declared for this host: its GPUs are not verified",
            "check that the host is in the right groups of the inventory, and that their variables"
            " are set; for a host without GPUs declare gpu_expect: {count: 0}",
            verdict=Verdict.INCONCLUSIVE,
        )


# Below this, installations, logs and temporary files fail soon.
LEAST_MIB, LEAST_FILES = 100, 1000


@check("host.disk", reads=("disks",), repair=INSPECT, severity="major")
def disk(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """/, /tmp and gpufleet's directories have free space; /tmp and the records are writable."""
    disks = observed.data["disks"]
    paths = ("/", "/tmp", "/var/lib/gpufleet")
    # A file system with several of these directories is named by the first one.
    shared = {disks["filesystem"][path] for path in paths}
    space = {
        path: (disks["free_mib"][path], disks["free_files"][path])
        for path in dict.fromkeys((*paths, *disks["free_mib"]))
        if path in paths or disks["filesystem"][path] not in shared
    }
    full = [
        f"{path} ({mib} MiB, {'any number of' if files is None else files} files)"
        for path, (mib, files) in space.items()
        # A read-only file system cannot fill up: an image has no free space by design.
        if path not in disks["readonly"]
        and (mib < LEAST_MIB or (files is not None and files < LEAST_FILES))
    ]
    if full:
        yield Finding(
            f"No space is left in {', '.join(full)}",
            "on the host: find what fills it (df -h; df -i; du -xh --max-depth=2 / | sort -h |"
            " tail), and free space",
        )
    readonly = [path for path in paths[1:] if path in disks["readonly"]]
    if readonly:
        yield Finding(
            f"{', '.join(readonly)} cannot be written: the file system is read-only",
            "on the host: check the kernel log for disk errors (dmesg -T), repair the file"
            " system and mount it again",
        )
    yield from remounted(observed, readonly)
    yield Evidence(", ".join(f"{path}: {disks['free_mib'][path]} MiB free" for path in paths))


def _damaged_record(plan: Plan, path: str, planned: set[tuple[str, str]]) -> Remedy:
    """The remedy that repairs a record that cannot be used."""
    for kind, identity in sorted(planned):
        if path.endswith(f"/{kind}-{identity}.json"):
            return provision(
                plan,
                Component(cast(Kind, kind), identity),
                note="it writes the record again, or recreates what it described",
            )
    away = shell("mv", path, f"{path}.old", instead=f"move {quoted(path)} away")
    return person(
        f"on the host: {away}: nothing that is declared needs it; what it described stays"
        " where it is, and is yours to remove"
    )


def _unfinished(plan: Plan, entry: JournalStatus, planned: bool) -> Remedy:
    """The remedy that ends an installation or removal that was not finished."""
    undeclared = "it is no longer declared"
    if planned:
        return provision(
            plan,
            Component(cast(Kind, entry["kind"]), entry["id"]),
            note="it cleans up what is incomplete and repeats it",
        )
    if entry["state"] == "removing" or plan.get("prune"):
        return provision(plan, note=undeclared)
    if entry["kind"] in {"cudnn", "containers"}:
        return then(person("set gpu_prune: true"), provision(plan, note=undeclared))
    if entry["kind"] == "driver":
        return then(person("restore gpu_driver"), provision(plan, note=undeclared))
    if entry["kind"] not in {"toolkit", "stack"} or not plain(entry["id"]):
        return person(
            f"on the host: find out who made {quoted(entry['path'])}, and remove it: gpufleet"
            f" installs nothing by the name {quoted(entry['kind'])} {quoted(entry['id'])}"
        )
    return command(
        "remove", f"--{entry['kind']}", entry["id"], "--limit", plan["host"], note=undeclared
    )


@check("install.complete", reads=("receipts",), severity="major")
def complete(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """No installation, repair or removal is unfinished or due, and every receipt is readable."""
    planned = {("toolkit", row["short"]) for row in plan["toolkits"]}
    planned |= {("stack", row["name"]) for row in plan["stacks"]}
    planned |= {("cudnn", f"{row['toolkit']}-{row['major']}") for row in plan["cudnn"]}
    planned.add(("environment", "files"))
    planned |= {driver_state.RECEIPT} if driver_state.managed(plan) else set()
    if plan.get("containers"):
        planned.add(("containers", "engine"))
    for entry in observed.data["receipts"]["journal"]:
        removing = entry["state"] == "removing"
        what = "removal" if removing else "installation"
        yield Finding(
            f"The {what} of {entry['kind']} {entry['id']} in {entry['path']} was started at"
            f" {entry.get('started')} and not finished",
            _unfinished(plan, entry, (entry["kind"], entry["id"]) in planned),
        )
    for record in observed.data["receipts"]["unreadable"]:
        yield Finding(
            f"{record['path']} cannot be read: {record['error']}",
            _damaged_record(plan, record["path"], planned),
        )


@check(
    "install.owned",
    reads=("receipts", "toolkits", "stacks"),
    repair=INSPECT,
    severity="major",
    effect=READS,
)
def owned(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Only root can change installed files, and nothing is mounted over them."""
    receipts = observed.data["receipts"]["receipts"]
    causes = {entry["path"]: entry for row in receipts for entry in row["exposed"]}
    # Trees without a receipt count where they are declared: others belong to other people.
    declared = {row["path"] for row in plan["toolkits"] if not row.get("found")}
    declared |= {row["venv"] for row in plan["stacks"]}
    trees = [(tree["path"], tree.get("exposed", [])) for tree in observed.data["toolkits"]["trees"]]
    trees += [
        (stack["venv"], stack.get("exposed", [])) for stack in observed.data["stacks"]["stacks"]
    ]
    causes |= {entry["path"]: entry for path, found in trees if path in declared for entry in found}
    exposed = [f"{path} ({entry['what']})" for path, entry in causes.items()]
    links = [path for path, entry in causes.items() if "link" in entry]
    if exposed:
        acts = []
        if links:
            acts.append(
                f"move away the links {shortened([quoted(path) for path in links])},"
                " and change no owner of what they lead to"
            )
        if len(links) < len(causes):
            acts.append(
                "unmount what is mounted over them; chown -h root:root and chmod go-w the"
                " others, directories first"
            )
        # Whoever could change them may have done so: contents count only when they are compared.
        yield Finding(
            f"Users other than root can replace installed files: {shortened(exposed)}",
            then(
                person(f"on the host: {'; '.join(acts)}"),
                provision(plan, contents=True, note="what they contain may have been changed"),
            ),
            "\n".join(exposed),
        )
    yield Evidence(f"{sum(row['files'] for row in receipts)} files of {len(receipts)} receipts")
