"""Stacks as they are installed: release, packages, files, interpreter and permissions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpufleet.components.base import subjects
from gpufleet.components.base.registry import (
    INSPECT,
    READS,
    Evidence,
    Finding,
    check,
    files_unchanged,
    no_stacks,
    not_executable,
    required,
    shortened,
    timed_out,
    unreadable_paths,
)
from gpufleet.components.base.remedies import provision
from gpufleet.components.base.remedies import stack as parts_of
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan, PlannedStack
from gpufleet.documents.sections.cuda import ReceiptStatus
from gpufleet.documents.sections.stacks import InstalledStack
from gpufleet.documents.text import quoted
from gpufleet.documents.verdict import Verdict


def installed(plan: Plan, observed: Sections) -> Iterator[tuple[PlannedStack, InstalledStack]]:
    """Each planned stack that is installed, with what was observed of it."""
    found = {stack["venv"]: stack for stack in observed.data["stacks"]["stacks"]}
    for stack in plan["stacks"]:
        if stack["venv"] in found:
            yield stack, found[stack["venv"]]


def _absent(plan: Plan, observed: Sections, unknown: str) -> Iterator[Finding]:
    """The planned stacks that are not installed, with what is `unknown` of them therefore."""
    present = {stack["name"] for stack, _ in installed(plan, observed)}
    for stack in plan["stacks"]:
        if stack["name"] not in present:
            yield Finding(
                f"{stack['venv']} does not exist: {unknown}",
                provision(plan, *parts_of(plan, stack)),
                verdict=Verdict.INCONCLUSIVE,
                about=(stack["venv"],),
            )


@check("stack.release", reads=("stacks", "receipts"), skip_reason=no_stacks, effect=READS)
def release(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each stack has the planned Python, framework and packages."""
    receipts = {r["id"]: r for r in observed.data["receipts"]["receipts"] if r["kind"] == "stack"}
    present = {stack["name"]: found for stack, found in installed(plan, observed)}
    for stack in plan["stacks"]:
        name, found = stack["name"], present.get(stack["name"])
        repair = provision(plan, *parts_of(plan, stack))
        if found is None:
            yield Finding(
                f"{stack['venv']} contains no environment", repair, about=(stack["venv"],)
            )
            continue
        python = ".".join((found["python"] or "").split(".")[:2])
        if python != stack["python"]:
            yield Finding(
                f"{name} runs Python {found['python']}, planned is {stack['python']}", repair
            )
        packages = _normalized(found["packages"])
        distribution = _normal(stack["distribution"])
        if packages.get(distribution) != stack["version"]:
            yield Finding(
                f"{name} has {distribution} {packages.get(distribution, 'not at all')},"
                f" planned is {stack['version']}",
                repair,
                entails=(f"build@{name}",),
            )
        receipt = receipts.get(name)
        if receipt is None:
            yield Finding(
                f"{name} has no receipt: it was not installed by gpufleet",
                repair,
                entails=(stack["venv"],),
            )
            continue
        if distribution not in _normalized(receipt["packages"]):
            yield Finding(f"The receipt of {name} does not list {distribution}", repair)
        differ = _differences(_normalized(receipt["packages"]), packages)
        if differ:
            yield Finding(
                f"Since {name} was installed, {len(differ)} of its packages changed:"
                f" {shortened(differ)}",
                repair,
                "\n".join(differ),
                entails=(
                    *(f"numpy@{name}" for each in differ if each.startswith("numpy ")),
                    *(f"{stack['venv']}/{path}" for path in _records_of(differ, receipt)),
                ),
            )
        if receipt.get("activation") != stack["activation"]:
            yield Finding(f"bin/activate of {name} does not source {stack['activation']}", repair)
        lock = stack.get("lock_sha256")
        if lock and receipt.get("lock_sha256") != lock:
            yield Finding(
                f"{name} was installed from another lock than the inventory's {stack['lock']}",
                repair,
            )
        yield Evidence(
            f"{name}: Python {found['python']}, {distribution}"
            f" {packages.get(distribution)}, {len(packages)} packages"
        )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _normalized(packages: dict[str, str]) -> dict[str, str]:
    return {_normal(name): version for name, version in packages.items()}


def _records_of(differ: list[str], receipt: ReceiptStatus) -> Iterator[str]:
    """The changed RECORD files of packages that have another version now."""
    names = {each.partition(" ")[0] for each in differ}
    for entry in receipt["changed"]:
        directory, _, file = entry["path"].rpartition("/")
        name, _, kind = directory.rpartition("/")[2].rpartition(".")
        distribution, _, version = name.rpartition("-")
        record = file == "RECORD" and kind == "dist-info" and distribution and version
        if record and _normal(distribution) in names:
            yield entry["path"]


def _differences(was: dict[str, str], now: dict[str, str]) -> list[str]:
    # Packages that users installed in addition are left alone.
    return [
        f"{name} {version} -> {now.get(name, 'none')}"
        for name, version in sorted(was.items())
        if now.get(name) != version
    ]


@check("stack.files", reads=("receipts",), deep=True, skip_reason=no_stacks)
def files(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Every file of each stack, its binding to CUDA included, is unchanged since installation."""
    receipts = {r["id"]: r for r in observed.data["receipts"]["receipts"] if r["kind"] == "stack"}
    for stack in plan["stacks"]:
        name = stack["name"]
        yield from files_unchanged(plan, observed.data["receipts"], "stack", name, stack["venv"])
        if name in receipts and receipts[name].get("recorded") is False:
            yield Evidence(
                f"The receipt of {name} is of an earlier release, without its packages' records:"
                " files are compared with the records, but nothing shows that these are unchanged."
                " The next repair or installation of the stack adds them to the receipt"
            )


@check("stack.python", reads=("stacks",), skip_reason=no_stacks, effect=READS)
def python(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each stack starts the planned Python, and loads only its own code."""
    yield from _absent(plan, observed, "its Python was not started")
    for stack, found in installed(plan, observed):
        name, start = stack["name"], required(found["start"], "a stack's start")
        repair = provision(plan, *parts_of(plan, stack))
        if start["error"]:
            yield timed_out(f"The Python of {name}", start) or Finding(
                f"The Python of {name} does not start: {start['error']}",
                repair,
                start["error"],
                about=(subjects.noexec(found["venv"]),),
                entails=(subjects.stopped(name),),
            )
            continue
        version = required(start["python"], "the version of a stack's Python")
        if ".".join(version.split(".")[:2]) != stack["python"]:
            yield Finding(
                f"{name} starts Python {start['python']}, planned is {stack['python']}", repair
            )
        if start["prefix"] not in {found["venv"], found["realpath"]}:
            yield Finding(f"{found['venv']}/bin/python runs in {start['prefix']}", repair)
        # Other libraries of its own toolkit belong to the toolkit.
        framework = found["framework"]
        foreign = [
            path
            for path in (framework["strangers"] if framework else [])
            if not path.startswith(f"{stack['toolkit_path']}/")
        ]
        for what, paths in (
            ("searches for modules in", start["strange"]),
            ("runs at every start, though no package contains it:", found["hooks"]),
            ("runs code that is neither its own nor the system's:", foreign),
        ):
            if paths:
                yield Finding(
                    f"{name} {what} {shortened(paths)}",
                    "on the host: move that away, or remove what refers to it (a .pth file,"
                    " sitecustomize.py, pyvenv.cfg, /etc/ld.so.conf.d)",
                    "\n".join(paths),
                )
        if sets := start.get("sets"):
            values = [f"{key}={value}" for key, value in sorted(sets.items())]
            files = start.get("customized") or [f"{found['venv']}/lib/python3*/site-packages/*.pth"]
            yield Finding(
                f"The Python of {name} sets {shortened(values)} at every start",
                f"on the host: remove that from {shortened([*map(quoted, files)])}",
                "\n".join(values),
            )
        yield Evidence(f"{name}: Python {start['python']} in {start['prefix']}")


@check(
    "stack.readable",
    reads=("stacks", "disks"),
    repair=INSPECT,
    severity="major",
    skip_reason=no_stacks,
    effect=READS,
)
def readable(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Every user can start each stack's interpreter and read its packages."""
    present = {stack["name"]: found for stack, found in installed(plan, observed)}
    yield from _absent(plan, observed, "no permissions were checked")
    yield from unreadable_paths((name, found["closed"]) for name, found in present.items())
    for name, found in present.items():
        binding = found["binding"] or {"error": None}
        reason = binding.get("ordinary")
        # An error that root has too is no matter of permissions.
        if reason and not binding["error"] and not found["closed"]:
            path = found["bound_to"]
            yield Finding(
                f"{name} works for root alone, not for other users: {reason.splitlines()[-1]}",
                "on the host: see which permissions on the way to the file that is named keep users"
                " out (namei -l FILE), and give them back: chmod a+rX FILE",
                reason,
                about=(path.rpartition("/")[0],) if path else (),
            )
    yield from not_executable(observed, [found["venv"] for found in present.values()])
