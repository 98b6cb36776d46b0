"""Stacks: the planned release, its own libraries mapped, and matrices really multiplied."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from gpufleet.model.verdict import Verdict

from .holders import held
from .registry import (
    INVENTORY,
    LOOK,
    Document,
    Evidence,
    Finding,
    Sections,
    check,
    closed,
    declared_none,
    no_stacks,
    not_executable,
    one_instance,
    provision,
    shortened,
    shown,
    silent,
    unchanged,
)

DRIVER_LIBRARY = re.compile(r"^lib(cuda|nvidia-ml|nvidia-ptxjitcompiler)\.so")

def installed(plan: Document, seen: Sections) -> Iterator[tuple[Document, dict[str, Any]]]:
    """Each planned stack with what was seen of it, for those that are there."""
    found = {stack["venv"]: stack for stack in seen["stacks"]["stacks"]}
    for stack in plan["stacks"]:
        if stack["venv"] in found:
            yield stack, found[stack["venv"]]


def ran(
    plan: Document, seen: Sections, part: str
) -> Iterator[tuple[Document, dict[str, Any], Finding | None]]:
    """Each planned stack, its framework run, and why `part` of the run cannot be judged."""
    there = {stack["name"] for stack, _ in installed(plan, seen)}
    for stack in plan["stacks"]:
        if stack["name"] not in there:
            yield stack, {}, Finding(
                f"{stack['name']} is not installed: nothing ran",
                provision(plan),
                verdict=Verdict.INCONCLUSIVE,
            )
    for stack, found in installed(plan, seen):
        framework = found["framework"]
        if framework is None:
            yield stack, {}, Finding(
                f"{stack['name']} was not started: the snapshot is of mode"
                f" '{seen.snapshot['mode']}'",
                "./gpufleet verify (it takes snapshots of mode 'full')",
                verdict=Verdict.INCONCLUSIVE,
            )
        elif not framework[part]:
            yield stack, framework, _silent(plan, stack, framework)
        else:
            yield stack, framework, None


def _silent(plan: Document, stack: Document, framework: dict[str, Any]) -> Finding:
    if framework["state"] == "hung":
        return Finding(
            f"TensorFlow of {stack['name']} hung: {framework['error']}",
            "look at the host's driver and load; then ./gpufleet verify",
            verdict=Verdict.HUNG,
        )
    return Finding(
        f"TensorFlow of {stack['name']} did not get that far: {framework['error']}",
        f"see stack.matmul; {provision(plan)}",
        verdict=Verdict.INCONCLUSIVE,
    )


@check("stack.release", reads=("stacks", "receipts"), excuse=no_stacks)
def release(plan: Document, seen: Sections) -> Iterator[Finding | Evidence]:
    """Each stack has the planned Python and TensorFlow, and the packages that were installed."""
    receipts = {r["id"]: r for r in seen["receipts"]["receipts"] if r["kind"] == "stack"}
    there = {stack["name"]: found for stack, found in installed(plan, seen)}
    for stack in plan["stacks"]:
        name, found = stack["name"], there.get(stack["name"])
        if found is None:
            yield Finding(f"There is no environment in {stack['venv']}", provision(plan))
            continue
        python = ".".join((found["python"] or "").split(".")[:2])
        if python != stack["python"]:
            yield Finding(f"{name} runs Python {found['python']}, planned is {stack['python']}",
                          provision(plan))
        packages = _normalized(found["packages"])
        distribution = _normal(stack["distribution"])
        if packages.get(distribution) != stack["version"]:
            yield Finding(f"{name} has {distribution} {packages.get(distribution, 'not at all')},"
                          f" planned is {stack['version']}", provision(plan))
        receipt = receipts.get(name)
        if receipt is None:
            yield Finding(f"{name} has no receipt: it was not installed by gpufleet",
                          provision(plan))
            continue
        if distribution not in _normalized(receipt["packages"]):
            yield Finding(f"The receipt of {name} does not list {distribution}: it proves nothing",
                          f"move {stack['venv']} away; then {provision(plan)}")
        differ = _differences(_normalized(receipt["packages"]), packages)
        if differ:
            yield Finding(
                f"Since {name} was installed, {len(differ)} of its packages changed:"
                f" {shortened(differ)}", provision(plan), "\n".join(differ))
        if receipt.get("activation") != stack["activation"]:
            yield Finding(f"bin/activate of {name} does not read {stack['activation']}",
                          provision(plan))
        lock = stack.get("lock_sha256")
        if lock and receipt.get("lock_sha256") != lock:
            yield Finding(f"{name} was installed from another lock than the inventory's"
                          f" {stack['lock']}", provision(plan))
        yield Evidence(f"{name}: Python {found['python']}, {distribution}"
                   f" {packages.get(distribution)}, {len(packages)} packages")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _normalized(packages: dict[str, str]) -> dict[str, str]:
    return {_normal(name): version for name, version in packages.items()}


def _differences(was: dict[str, str], now: dict[str, str]) -> list[str]:
    # What people installed beside the lock is theirs, as long as it leaves the lock's own alone.
    return [
        f"{name} {version} -> {now.get(name, 'none')}"
        for name, version in sorted(was.items())
        if now.get(name) != version
    ]


@check("stack.files", reads=("receipts",), deep=True, excuse=no_stacks)
def files(plan: Document, seen: Sections) -> Iterator[Finding | Evidence]:
    """What binds each stack to its toolkit, and each file of its packages, is as installed."""
    for stack in plan["stacks"]:
        yield from unchanged(plan, seen["receipts"], "stack", stack["name"], stack["venv"])


@check("stack.python", reads=("stacks",), excuse=no_stacks)
def python(plan: Document, seen: Sections) -> Iterator[Finding | Evidence]:
    """Each stack starts the planned Python, and it runs nothing but the stack's own code."""
    for stack, found in installed(plan, seen):
        name, start = stack["name"], found["start"]
        if start["error"]:
            yield silent(f"The Python of {name}", start["error"]) or Finding(
                f"The Python of {name} does not start: {start['error']}",
                          provision(plan), start["error"])
            continue
        if ".".join(start["python"].split(".")[:2]) != stack["python"]:
            yield Finding(f"{name} starts Python {start['python']}, planned is {stack['python']}",
                          provision(plan))
        if start["prefix"] not in {found["venv"], found["realpath"]}:
            yield Finding(f"{found['venv']}/bin/python runs in {start['prefix']}", provision(plan))
        # What it maps of its own toolkit beside CUDA's usual names is the toolkit's.
        strangers = [path for path in (found["framework"] or {"strangers": []})["strangers"]
                     if not path.startswith(f"{stack['toolkit_path']}/")]
        for what, places in (("looks for modules in", start["strange"]),
                             ("runs at every start, with no package that brought it,",
                              found["hooks"]),
                             ("runs code that is neither its own nor the system's:", strangers)):
            if places:
                yield Finding(
                    f"{name} {what} {shortened(places)}",
                    "on the host: move that away, or take away what leads there (a .pth file,"
                    " sitecustomize.py, pyvenv.cfg, /etc/ld.so.conf.d)", "\n".join(places))
        yield Evidence(f"{name}: Python {start['python']} in {start['prefix']}")


@check("stack.readable", reads=("stacks", "disks"), repair=LOOK, severity="major", excuse=no_stacks)
def readable(plan: Document, seen: Sections) -> Iterator[Finding | Evidence]:
    """Every user of the host can start each stack's interpreter and read its packages."""
    there = {stack["name"]: found for stack, found in installed(plan, seen)}
    for stack in plan["stacks"]:
        if stack["name"] not in there:
            yield Finding(f"There is no {stack['venv']} to look at", provision(plan),
                          verdict=Verdict.INCONCLUSIVE)
    yield from closed(there.items())
    yield from not_executable(seen, [found["venv"] for found in there.values()])


@check("stack.build", reads=("stacks",), excuse=no_stacks)
def build(plan: Document, seen: Sections) -> Iterator[Finding | Evidence]:
    """TensorFlow is the planned release, built for the planned CUDA and cuDNN."""
    for stack, framework, problem in ran(plan, seen, "build"):
        if problem:
            yield problem
            continue
        told, wanted = framework["build"], stack["build"]
        if framework["version"] != stack["version"]:
            yield Finding(f"{stack['name']} imports TensorFlow {framework['version']}, planned is"
                          f" {stack['version']}", provision(plan))
        if not told["cuda_build"]:
            yield Finding(f"TensorFlow of {stack['name']} is a CPU-only build",
                          provision(plan), str(told))
        # Before 2.3 a build does not say what it was made for; its loader does.
        elif told["cuda"] and told["cuda"] != wanted["cuda"]:
            yield Finding(f"TensorFlow of {stack['name']} was built for CUDA {told['cuda']},"
                          f" planned is {wanted['cuda']}", provision(plan))
        elif told["cudnn"] and int(str(told["cudnn"]).partition(".")[0]) != wanted["cudnn_major"]:
            yield Finding(f"TensorFlow of {stack['name']} was built for cuDNN {told['cudnn']},"
                          f" planned is {wanted['cudnn_major']}", provision(plan))
        yield Evidence(f"{stack['name']}: {framework['version']}, CUDA {told['cuda']}, cuDNN"
                   f" {told['cudnn']}")


@check("stack.libraries", reads=("stacks",), excuse=no_stacks)
def libraries(plan: Document, seen: Sections) -> Iterator[Finding | Evidence]:
    """TensorFlow's own loader opens every CUDA and cuDNN library that the build needs."""
    bound = {found["venv"]: found["binding"] for found in seen["stacks"]["stacks"]}
    for stack, framework, problem in ran(plan, seen, "loader"):
        if problem:
            yield problem
            continue
        loader = framework["loader"]
        binding = bound.get(stack["venv"])
        if binding is None:
            yield Finding(f"Whether what {stack['name']} is bound to can be opened is not known",
                          "./gpufleet verify", verdict=Verdict.INCONCLUSIVE)
        elif binding["error"]:
            yield silent(f"What {stack['name']} is bound to", binding["error"]) or Finding(
                f"{stack['name']} is bound to a library that cannot be opened with all"
                          f" its symbols: {binding['error'].splitlines()[0]}",
                          provision(plan), binding["error"])
        opened = set(loader["opened"])
        failed = {entry["library"]: entry["error"] for entry in loader["failed"]}
        optional = set(stack["sonames_optional"])
        wanted = [soname for soname in stack["sonames"] if soname not in optional]
        if not declared_none(plan):
            wanted += sorted(name for name in failed if DRIVER_LIBRARY.match(name))
        # A release linked against its libraries has mapped them by being imported at all.
        mapped = {PurePosixPath(path).name for path in framework["mapped"]}
        unknown = []
        for soname in wanted:
            if soname in failed:
                yield Finding(
                    f"TensorFlow of {stack['name']} cannot open {soname}, and would leave the GPU"
                    f" unused: {failed[soname]}", provision(plan), failed[soname])
            elif soname not in opened and not any(
                name == soname or name.startswith(f"{soname}.") for name in mapped
            ):
                unknown.append(soname)
        if unknown:
            yield Finding(
                f"Whether TensorFlow of {stack['name']} finds {shortened(unknown)} is not known:"
                " its loader " + ("did not try" if loader["ran"] else "cannot be asked"),
                "run it on a host with a GPU", verdict=Verdict.INCONCLUSIVE)
        yield Evidence(f"{stack['name']}: opened {', '.join(loader['opened']) or 'nothing'}")


@check("stack.mapped", reads=("stacks", "toolkits", "receipts"), excuse=no_stacks)
def mapped(plan: Document, seen: Sections) -> Iterator[Finding | Evidence]:
    """Every CUDA and cuDNN file that the computing process maps is of the stack's own receipts."""
    # Maps name real paths; a tree may be reached through a link.
    real = {tree["path"]: tree["realpath"] for tree in seen["toolkits"]["trees"]}
    real |= {found["venv"]: found["realpath"] for found in seen["stacks"]["stacks"]}
    for stack, framework, problem in ran(plan, seen, "mapped"):
        if problem:
            # Without a single file there is nothing to prove from, however well it ran.
            yield problem if framework.get("state") != "ok" else Finding(
                f"TensorFlow of {stack['name']} mapped no CUDA library at all",
                "see stack.libraries", verdict=Verdict.INCONCLUSIVE)
            continue
        own = stack["toolkit_path"] if stack["cuda_source"] == "toolkit" else stack["venv"]
        homes = (f"{own}/", f"{real.get(own, own)}/")
        strangers = [path for path in framework["mapped"] if not path.startswith(homes)]
        unknown = [path for path in framework["mapped"] if path not in strangers
                   and path not in _ought_to_be_mapped(stack, seen["receipts"], path)]
        # A link that was turned leads to what another stack needs: it is not to be moved away.
        others = [path for path in unknown if any(
            path in row["libraries"] for row in seen["receipts"]["receipts"])]
        unknown = [path for path in unknown if path not in others]
        if others:
            yield Finding(
                f"TensorFlow of {stack['name']} maps {shortened(others)}, which was installed for"
                " something else", provision(plan), "\n".join(others))
        if unknown:
            yield Finding(
                f"TensorFlow of {stack['name']} maps {shortened(unknown)}: no receipt of its own"
                " toolkit, cuDNN or packages knows such a file",
                f"on the host: move it away; then {provision(plan)}", "\n".join(unknown))
        unseen = _not_mapped(framework)
        if unseen:
            yield Finding(
                f"TensorFlow of {stack['name']} opened {shortened(unseen)}, yet maps no file of"
                " such a name: it came from a file of another name",
                f"on the host: look where the links of these names lead; {provision(plan)}")
        if strangers:
            yield Finding(
                f"TensorFlow of {stack['name']} maps libraries from outside {own}:"
                f" {shortened(strangers)}",
                f"{provision(plan)} (it binds the stack to its toolkit again)",
                "\n".join(strangers))
        yield Evidence(f"{stack['name']}: {len(framework['mapped'])} files, of {own}")


def _ought_to_be_mapped(stack: Document, receipts: Document, path: str) -> list[str]:
    """The files of the stack's own receipt for a library like this one.

    Where there is no such receipt another check says so, and nothing can be concluded here.
    """
    place, kind = stack["venv"], "stack"
    if stack["cuda_source"] == "toolkit":
        place, kind = stack["toolkit_path"], "cudnn" if "/libcudnn" in path else "toolkit"
    own = [row for row in receipts["receipts"] if (row["kind"], row["path"]) == (kind, place)]
    major = f"-{stack['build']['cudnn_major']}"
    return [each for row in own if kind != "cudnn" or row["id"].endswith(major)
            for each in row["libraries"]] if own else [path]


def _not_mapped(framework: dict[str, Any]) -> list[str]:
    """Libraries that the loader opened, and of which no file is mapped."""
    stems = {PurePosixPath(path).name.partition(".so")[0] for path in framework["mapped"]}
    opened = (framework["loader"] or {"opened": []})["opened"]
    return [name for name in opened
            if name.partition(".so")[0] not in stems and not DRIVER_LIBRARY.match(name)]


def _place(device: str | None) -> tuple[str, str] | None:
    """`/job:localhost/.../device:GPU:0`, `/GPU:0` and 1.0's `.../gpu:0` as ("gpu", "0")."""
    found = re.search(r"(?:^|[:/])(cpu|gpu):(\d+)$", (device or "").lower())
    return (found.group(1), found.group(2)) if found else None


@check("stack.matmul", reads=("stacks",), excuse=no_stacks)
def matmul(plan: Document, seen: Sections) -> Iterator[Finding | Evidence]:
    """Matrices are multiplied on the declared devices and nowhere else, with exact results."""
    for stack, framework, problem in ran(plan, seen, "matmul"):
        if problem and framework.get("state") == "failed":
            yield held(stack["name"], {"error": framework["error"]}, seen) or Finding(
                f"TensorFlow of {stack['name']} does not run: {framework['error']}",
                f"{provision(plan)}; where stack.files and toolkit.files pass, the host keeps it"
                " from running: look at noexec in findmnt, at ulimit -a, free")
            continue
        if problem:
            yield problem
            continue
        if framework["state"] != "ok":
            yield _silent(plan, stack, framework)
        yield from products(plan, seen, stack, framework["matmul"])
        total = framework["tower_sum"] or {"error": "it was not made", "wrong": None, "devices": []}
        busy = held(f"{stack['name']} on all devices together", total, seen)
        # What is held gives nothing to be added.
        lacking = any(held("", entry, seen) for entry in framework["matmul"])
        if total["error"] and not total["wrong"] and (busy or lacking):
            yield from [busy] if busy else []
        elif total["error"] or total["wrong"] != 0:
            yield Finding(
                f"{stack['name']}: the sum of all devices' results is wrong or missing"
                f" ({total['error'] or total['wrong']})", "see the devices' own results above")


def products(
    plan: Document, seen: Sections, stack: Document, entries: list[Document]
) -> Iterator[Finding | Evidence]:
    """Each device's product, or that others hold the device."""
    for entry in entries:
        busy = held(f"{stack['name']} on {entry['requested']}", entry, seen)
        yield from [busy] if busy else product(plan, stack, entry)


def product(plan: Document, stack: Document, entry: Document) -> Iterator[Finding | Evidence]:
    """One device's product."""
    where = f"{stack['name']} on {entry['requested']}"
    if entry["error"]:
        yield Finding(f"{where} could not multiply: {entry['error']}",
                      "see gpu.count, driver.loaded and stack.libraries", str(entry))
    elif _place(entry["device"]) is None or _place(entry["device"]) != _place(entry["requested"]):
        yield Finding(f"{where} was computed on {entry['device'] or 'an unknown device'} instead",
                      f"see stack.libraries; {provision(plan)}", str(entry))
    elif entry["wrong"] != 0:
        yield Finding(
            f"{where} gave {entry['wrong'] if entry['wrong'] is not None else 'unchecked'} wrong"
            f" rows of {entry['n']}",
            "take the device out of service: wrong numbers from exact operands are a hardware"
            " or library fault", str(entry))
    elif not entry["tflops"]:
        yield Finding(f"{where} has no measured throughput", "see gpu.throughput", str(entry))
    else:
        yield Evidence(f"{where}: {entry['n']}x{entry['n']} exact on {entry['device']},"
                   f" {entry['tflops']} TFLOP/s, first {entry['first_s']} s")


@check(
    "stack.gpu",
    reads=("stacks",),
    repair=INVENTORY,
    excuse=lambda plan: no_stacks(plan) or declared_none(plan),
)
def gpu(plan: Document, seen: Sections) -> Iterator[Finding | Evidence]:
    """Every declared GPU has multiplied matrices in every stack."""
    wanted = {("gpu", str(index)) for index in range(shown(plan) or 0)}
    yield from one_instance(plan)
    for stack, framework, problem in ran(plan, seen, "matmul"):
        if problem:
            yield problem
            continue
        proven = {_place(entry["device"]) for entry in framework["matmul"]
                  if entry["wrong"] == 0 and not entry["error"]}
        busy = [(entry, finding) for entry in framework["matmul"]
                if (finding := held(f"{stack['name']} on {entry['requested']}", entry, seen))]
        yield from (finding for _, finding in busy)
        held_up = {_place(entry["requested"]) for entry, _ in busy}
        missing = sorted(index for _, index in wanted - proven - held_up)
        if missing:
            yield Finding(
                f"{stack['name']}: no proof of GPU {', '.join(missing)} of {len(wanted)} declared",
                "see gpu.count, driver.loaded and stack.matmul; if the host has fewer GPUs:"
                " correct gpu_expect in the inventory")
        yield Evidence(
            f"{stack['name']}: {len(wanted) - len(missing)} of {len(wanted)} GPUs computed"
        )
