"""What each stack's framework did: its build, the libraries it mapped, its products on each GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from gpufleet.model.frameworks import FRAMEWORKS, framework_id
from gpufleet.model.plan import Plan, PlannedStack
from gpufleet.model.sections.cuda import Receipts
from gpufleet.model.sections.stacks import Convolution, Framework, Product, TowerSum
from gpufleet.model.text import brief
from gpufleet.model.verdict import Verdict

from . import subjects
from .holders import busy_finding
from .paths import name_of
from .registry import (
    Evidence,
    Finding,
    check,
    no_gpus_declared,
    no_stacks,
    required,
    shortened,
    timed_out,
)
from .remedies import Component, command, otherwise, person, provision, see, then
from .remedies import stack as parts_of
from .sections import Sections
from .stack import installed

T = TypeVar("T")
# What a loader reports of a library that it does not find, and the runs of a GPU.
ABSENT = re.compile(r"(lib[\w.+-]+\.so[\d.]*): cannot open shared object file")
LISTED = re.compile(f"(?:{'|'.join(each.title for each in FRAMEWORKS.values())})"
                    r" reports (\d+) GPU")
# Where to look if a framework uses no GPU at all.
NO_GPU = ("see stack.build, stack.libraries, driver.loaded, driver.cuda, driver.nodes and"
          " gpu.count; if all of them pass: reboot the host")
DRIVER_LIBRARY = re.compile(r"^lib(cuda|nvidia-ml|nvidia-ptxjitcompiler)\.so")


def title(stack: PlannedStack) -> str:
    """What people call the stack's framework."""
    return FRAMEWORKS[framework_id(stack)].title


def named(stack: PlannedStack) -> str:
    """A stack's framework, as findings name it: `PyTorch of pytorch-2.6.0`."""
    return f"{title(stack)} of {stack['name']}"


class Ran(NamedTuple, Generic[T]):
    """A planned stack, its framework's run, and a part of that run."""

    stack: PlannedStack
    framework: Framework
    part: T


class NotRun(NamedTuple):
    """A planned stack of which a part of the run cannot be judged, and why."""

    stack: PlannedStack
    finding: Finding
    framework: Framework | None = None


# What a run reports after its products, in the order of its stages.
AFTER_PRODUCTS = {
    "pytorch": ("convolution", "routines", "loader", "workers", "compile"),
    "jax": ("convolution", "routines", "loader"),
}


def ended_in(stack: PlannedStack, framework: Framework) -> str | None:
    """The part in which a run ended, after its products; None where it ran on, or ended before."""
    if framework["state"] != "failed" or not framework["matmul"]:
        return None
    # `loader` has its place in the document from the beginning.
    missing = (key for key in AFTER_PRODUCTS.get(framework_id(stack), ())
               if key not in framework or (key == "loader" and framework["loader"] is None))
    return next(missing, None)


def framework_runs(
    plan: Plan, observed: Sections, part: Callable[[Framework], T | None],
    frameworks: Collection[str] = FRAMEWORKS, key: str | None = None,
) -> Iterator[Ran[T] | NotRun]:
    """The run of each planned stack's framework, or why a part of it cannot be judged.

    Of stacks of these `frameworks`. `key`: the part's, if a run that ends in it fails.
    """
    present = {stack["name"] for stack, _ in installed(plan, observed)}
    for stack in plan["stacks"]:
        if stack["name"] not in present and framework_id(stack) in frameworks:
            yield NotRun(stack, Finding(
                f"{stack['name']} is not installed: nothing ran",
                provision(plan, *parts_of(plan, stack)),
                verdict=Verdict.INCONCLUSIVE, about=(stack["venv"],),
            ))
    for stack, found in installed(plan, observed):
        framework = found["framework"]
        if framework_id(stack) not in frameworks:
            continue
        if framework is None:
            yield NotRun(stack, Finding(
                f"{stack['name']} was not started: the snapshot has mode"
                f" '{observed.snapshot['mode']}'",
                "./gpufleet verify (it probes in mode 'full')",
                verdict=Verdict.INCONCLUSIVE,
            ))
        elif key and ended_in(stack, framework) == key:
            yield NotRun(stack, _ended(plan, stack, framework, observed), framework)
        elif not (result := part(framework)):
            yield NotRun(stack, _stopped(plan, stack, framework), framework)
        else:
            yield Ran(stack, framework, result)


def _ended(
    plan: Plan, stack: PlannedStack, framework: Framework, observed: Sections
) -> Finding:
    """A run that ended in a step, which is that step's failure."""
    finding = busy_finding(stack["name"], framework["error"], observed) or Finding(
        f"{named(stack)} ended in this step: {framework['error']}",
        otherwise(provision(plan, *parts_of(plan, stack)),
                  "if stack.files and toolkit.files pass, the host prevents it: check ulimit -a,"
                  " free and dmesg"), about=(subjects.stopped(stack["name"]),))
    return replace(finding, entails=(subjects.stopped(stack["name"]),))


def _stopped(plan: Plan, stack: PlannedStack, framework: Framework) -> Finding:
    if framework["state"] == "hung" and framework.get("compiled"):
        return Finding(
            f"{stack['name']} has no machine code for a GPU of this host, and the driver was still"
            f" compiling it: {framework['error']}; what it has compiled is kept",
            command(f"./gpufleet provision --limit {plan['host']} --force",
                    "its verification has half an hour for each such stack"),
            verdict=Verdict.INCONCLUSIVE, about=(subjects.stopped(stack["name"]),))
    if framework["state"] == "hung":
        return Finding(
            f"{named(stack)} hung: {framework['error']}",
            "check the host's driver and load; then ./gpufleet verify",
            verdict=Verdict.HUNG, about=(subjects.stopped(stack["name"]),),
        )
    part = ended_in(stack, framework) or "matmul"
    its_check = "stack." + {"loader": "libraries"}.get(part, part)
    return Finding(
        f"{named(stack)} stopped before this step: {framework['error']}",
        see(its_check, provision(plan, *parts_of(plan, stack))),
        verdict=Verdict.INCONCLUSIVE, about=(subjects.stopped(stack["name"]),),
    )


@check("stack.build", reads=("stacks",), skip_reason=no_stacks)
def build(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The framework is the planned release, built for the planned CUDA and cuDNN."""
    for run in framework_runs(plan, observed, lambda framework: framework["build"]):
        if isinstance(run, NotRun):
            yield run.finding
            continue
        stack, framework, actual = run
        repair = provision(plan, *parts_of(plan, stack))
        wanted = stack["build"]
        # A local version tells the variant: torch 2.6.0+cu124.
        if framework["version"] != stack["version"].partition("+")[0]:
            yield Finding(f"{stack['name']} imports {title(stack)} {framework['version']},"
                          f" planned is {stack['version']}", repair,
                          about=(f"build@{stack['name']}",))
        if not actual["cuda_build"]:
            yield Finding(f"{named(stack)} is a CPU-only build",
                          repair, brief(actual), about=(f"build@{stack['name']}",),
                          entails=(f"gpus@{stack['name']}",))
        # Before 2.3 a build does not report its CUDA; its loader does.
        elif actual["cuda"] and actual["cuda"] != wanted["cuda"]:
            yield Finding(f"{named(stack)} was built for CUDA {actual['cuda']},"
                          f" planned is {wanted['cuda']}", repair,
                          about=(f"build@{stack['name']}",))
        elif actual["cudnn"] and (
                int(str(actual["cudnn"]).partition(".")[0]) != wanted["cudnn_major"]):
            yield Finding(f"{named(stack)} was built for cuDNN {actual['cudnn']},"
                          f" planned is {wanted['cudnn_major']}", repair,
                          about=(f"build@{stack['name']}",))
        yield Evidence(f"{stack['name']}: {framework['version']}, CUDA {actual['cuda']}, cuDNN"
                   f" {actual['cudnn']}")


@check("stack.libraries", reads=("stacks",), skip_reason=no_stacks)
def libraries(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The framework loads every CUDA and cuDNN library that its build needs."""
    bindings = {found["venv"]: found["binding"] for found in observed["stacks"]["stacks"]}
    for run in framework_runs(
            plan, observed, lambda framework: framework["loader"], key="loader"):
        if isinstance(run, NotRun):
            yield run.finding
            continue
        stack, framework, loader = run
        repair = provision(plan, *parts_of(plan, stack))
        binding = bindings.get(stack["venv"])
        if binding is None:
            yield Finding(f"It is unknown whether the libraries of {stack['name']} can be loaded",
                          "./gpufleet verify", verdict=Verdict.INCONCLUSIVE)
        elif binding["error"]:
            what = f"Loading the libraries of {stack['name']}"
            yield timed_out(what, binding["error"]) or Finding(
                f"{stack['name']} is bound to a library that cannot be loaded with all its"
                f" symbols: {binding['error'].splitlines()[0]}",
                repair, binding["error"])
        opened = set(loader["opened"])
        failed = {entry["library"]: entry["error"] for entry in loader["failed"]}
        optional = set(stack["sonames_optional"])
        wanted = [soname for soname in stack["sonames"] if soname not in optional]
        if framework_id(stack) != "tensorflow":
            # Tried were the environment's own libraries, and no others.
            spared = optional if stack["cuda_source"] == "toolkit" else set()
            wanted += sorted(name for name in failed if name not in {*wanted, *spared}
                             and not DRIVER_LIBRARY.match(name))
        if not no_gpus_declared(plan):
            wanted += sorted(name for name in failed if DRIVER_LIBRARY.match(name))
        # A release linked against its libraries has mapped them by being imported at all.
        mapped = {name_of(path) for path in framework["mapped"]}
        unknown = []
        for soname in wanted:
            if soname in failed:
                yield Finding(
                    f"{named(stack)} cannot load {soname}, and does not use the"
                    f" GPU: {failed[soname]}", repair, failed[soname] or "",
                    about=(_subject(stack, soname),), entails=(f"gpus@{stack['name']}",))
            elif soname not in opened and not any(
                name == soname or name.startswith(f"{soname}.") for name in mapped
            ):
                unknown.append(soname)
        if unknown:
            yield Finding(
                f"It is unknown whether {named(stack)} finds {shortened(unknown)}:"
                " its loader " + ("did not try" if loader["ran"] else "cannot be queried"),
                "run it on a host with a GPU", verdict=Verdict.INCONCLUSIVE,
                about=(f"gpus@{stack['name']}",))
        yield Evidence(f"{stack['name']}: opened {', '.join(loader['opened']) or 'nothing'}")


@check("stack.mapped", reads=("stacks", "toolkits", "receipts"), skip_reason=no_stacks)
def mapped(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The process maps only CUDA and cuDNN files that the stack's own receipts list."""
    # Maps name real paths; a tree may be reached through a link.
    real = {tree["path"]: tree["realpath"] for tree in observed["toolkits"]["trees"]}
    real |= {found["venv"]: found["realpath"] for found in observed["stacks"]["stacks"]}
    for run in framework_runs(plan, observed, lambda framework: framework["mapped"]):
        if isinstance(run, NotRun):
            # Without a mapped file nothing is proven, even if it ran.
            ended = run.framework is not None and run.framework["state"] == "ok"
            yield run.finding if not ended else Finding(
                f"{named(run.stack)} mapped no CUDA library",
                "see stack.libraries", verdict=Verdict.INCONCLUSIVE,
                about=(f"gpus@{run.stack['name']}",))
            continue
        stack, framework, paths = run
        repair = provision(plan, *parts_of(plan, stack))
        own = _home(stack)
        homes = tuple(f"{each}/" for home in _homes(stack) for each in (home, real.get(home, home)))
        foreign = [path for path in paths if not path.startswith(homes)]
        unknown = [path for path in paths if path not in foreign
                   and path not in _expected_files(stack, observed["receipts"], path)]
        # A changed symlink may point to what another stack needs: that must not be moved away.
        others = [path for path in unknown if any(
            path in row["libraries"] for row in observed["receipts"]["receipts"])]
        unknown = [path for path in unknown if path not in others]
        if others:
            yield Finding(
                f"{named(stack)} maps {shortened(others)}, which was installed for"
                " something else", repair, "\n".join(others))
        if unknown:
            yield Finding(
                f"{named(stack)} maps {shortened(unknown)}: no receipt of its own"
                " toolkit, cuDNN or packages lists that file",
                then(person("on the host: move it away"),
                     repair), "\n".join(unknown))
        unmapped = _not_mapped(framework)
        if unmapped:
            yield Finding(
                f"{named(stack)} opened {shortened(unmapped)}, but maps no file of"
                " that name: it was loaded from a file of another name",
                otherwise(repair,
                          "on the host: check the symlinks of these names"))
        if foreign:
            yield Finding(
                f"{named(stack)} maps libraries from outside {own}:"
                f" {shortened(foreign)}",
                provision(plan, *parts_of(plan, stack),
                          note="it binds the stack to its toolkit again"),
                "\n".join(foreign))
        yield Evidence(f"{stack['name']}: {len(paths)} files, of {own}")


def _subject(stack: PlannedStack, soname: str) -> str:
    """A library that the stack loads: of the driver, or of its own CUDA."""
    return "libcuda" if DRIVER_LIBRARY.match(soname) else subjects.library(_home(stack), soname)


def _home(stack: PlannedStack) -> str:
    """Where the stack's CUDA libraries are: in its toolkit, or in its own environment."""
    if stack["cuda_source"] == "toolkit":
        return required(stack["toolkit_path"], "a stack's toolkit_path")
    return stack["venv"]


def _homes(stack: PlannedStack) -> list[str]:
    """Where all of them are: JAX on a toolkit has NCCL and others in its environment."""
    more = [] if framework_id(stack) == "tensorflow" else [stack["venv"]]
    return list(dict.fromkeys([_home(stack), *more]))


def _expected_files(stack: PlannedStack, receipts: Receipts, path: str) -> list[str]:
    """The files of the stack's own receipt for a library like this one.

    Where there is no such receipt another check reports it, and nothing can be concluded here.
    """
    root, kind = stack["venv"], "stack"
    if stack["cuda_source"] == "toolkit" and not path.startswith(f"{root}/"):
        root, kind = _home(stack), "cudnn" if "/libcudnn" in path else "toolkit"
    own = [row for row in receipts["receipts"] if (row["kind"], row["path"]) == (kind, root)]
    major = f"-{stack['build']['cudnn_major']}"
    return [library for row in own if kind != "cudnn" or row["id"].endswith(major)
            for library in row["libraries"]] if own else [path]


def _not_mapped(framework: Framework) -> list[str]:
    """Libraries that the loader opened, but of which no file is mapped."""
    stems = {name_of(path).partition(".so")[0] for path in framework["mapped"]}
    loader = framework["loader"]
    opened = loader["opened"] if loader else []
    return [name for name in opened
            if name.partition(".so")[0] not in stems and not DRIVER_LIBRARY.match(name)]


def parse_device(device: str | None) -> tuple[str, str] | None:
    """`/job:localhost/.../device:GPU:0`, `/GPU:0` and 1.0's `.../gpu:0` as ("gpu", "0")."""
    found = re.search(r"(?:^|[:/])(cpu|gpu):(\d+)$", (device or "").lower())
    return (found.group(1), found.group(2)) if found else None


def gpu_number(entry: Product | Convolution) -> str:
    """The number of the GPU that a product was requested on; empty for the CPU."""
    device = parse_device(entry["requested"])
    return device[1] if device and device[0] == "gpu" else ""


def is_on_requested_device(entry: Product | Convolution) -> bool:
    device = parse_device(entry["device"])
    return device is not None and device == parse_device(entry["requested"])


@check("stack.matmul", reads=("stacks",), skip_reason=no_stacks)
def matmul(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Matrices are multiplied on the declared devices only, with exact results."""
    starts = {stack["name"]: found["start"] for stack, found in installed(plan, observed)}
    for run in framework_runs(plan, observed, lambda framework: framework["matmul"]):
        if isinstance(run, NotRun) and run.framework and run.framework["state"] == "failed":
            name, error = run.stack["name"], run.framework["error"]
            absent, start = ABSENT.search(error or ""), starts[name]
            # Without its Python no framework runs: stack.python reports it.
            about = (_subject(run.stack, absent[1]),) if absent and not (
                start and start["error"]) else (subjects.stopped(name),)
            finding = busy_finding(name, error, observed) or Finding(
                f"{named(run.stack)} does not run: {error}",
                otherwise(provision(plan, *parts_of(plan, run.stack)),
                          "if stack.files and toolkit.files pass, the host prevents it: check"
                          " noexec in findmnt, ulimit -a, free"),
                about=about)
            yield replace(finding, entails=(subjects.stopped(name),))
            continue
        if isinstance(run, NotRun):
            yield run.finding
            continue
        stack, framework, results = run
        # What came after the products has checks of its own.
        if framework["state"] != "ok" and "convolution" not in framework \
                and not ended_in(stack, framework):
            yield _stopped(plan, stack, framework)
        yield from _without_numpy(
            products(plan, observed, stack["name"], results), stack["name"], framework)
        total: TowerSum = framework["tower_sum"] or {
            "error": "it was not computed", "wrong": None, "devices": []}
        busy = busy_finding(
            f"{stack['name']} on all devices together", total["error"], observed)
        # A busy GPU has no result to add.
        lacking = any(busy_device("", entry, observed) for entry in results)
        if total["error"] and not total["wrong"] and (busy or lacking):
            yield from [busy] if busy else []
        elif total["error"] or total["wrong"] != 0:
            yield Finding(
                f"{stack['name']}: the sum of all devices' results is wrong or missing"
                f" ({total['error'] or total['wrong']})", "see the devices' own results above",
                about=() if total["devices"] else (
                    exchanged(stack["name"], framework) or f"gpus@{stack['name']}",))


def exchanged(name: str, framework: Framework) -> str | None:
    """The subject of arrays that numpy and the framework do not exchange; None where they do."""
    exchange = framework.get("numpy")
    return f"numpy@{name}" if exchange and exchange["error"] else None


def _without_numpy(
    found: Iterator[Finding | Evidence], stack: str, framework: Framework
) -> Iterator[Finding | Evidence]:
    """The same findings; nothing computes where numpy's arrays do not reach the framework."""
    subject = exchanged(stack, framework)
    for item in found:
        yield replace(item, about=(subject,)) if subject and isinstance(item, Finding) else item


def busy_device(where: str, entry: Product, observed: Sections) -> Finding | None:
    return busy_finding(where, entry["error"], observed, device=entry["requested"])


def products(
    plan: Plan, observed: Sections, name: str, entries: list[Product]
) -> Iterator[Finding | Evidence]:
    """The product of each device, or that other processes use the device."""
    for entry in entries:
        busy = busy_device(_where(name, entry), entry, observed)
        device = f"{gpu_number(entry)}@{name}"
        entails = [f"result/{device}"]
        if entry["error"] and not busy and "precision" not in entry:
            entails.append(f"nothing/{device}")
        for finding in [busy] if busy else product(plan, name, entry):
            yield replace(finding, entails=tuple(entails)) if isinstance(
                finding, Finding) else finding


def _where(name: str, entry: Product) -> str:
    precision = f" in {entry['precision']}" if "precision" in entry else ""
    return f"{name} on {entry['requested']}{precision}"


def product(plan: Plan, name: str, entry: Product) -> Iterator[Finding | Evidence]:
    """One device's product."""
    where = _where(name, entry)
    if reason := entry.get("not_applicable"):
        yield Evidence(f"{where}: not applicable, {reason}")
    elif entry["error"]:
        listed = LISTED.match(entry["error"])
        none = listed and listed[1] == "0"
        yield Finding(f"{where} could not multiply: {entry['error']}",
                      "see gpu.count, driver.loaded and stack.libraries" if not none else NO_GPU,
                      brief(entry), about=() if not listed else (f"gpus@{name}",) if none else (
                          f"gpu/{gpu_number(entry)}@{name}",))
    elif not is_on_requested_device(entry):
        yield Finding(f"{where} was computed on {entry['device'] or 'an unknown device'} instead",
                      see("stack.libraries", provision(plan, Component("stack", name))),
                      brief(entry))
    elif entry["wrong"] != 0:
        yield Finding(
            f"{where} gave {entry['wrong'] if entry['wrong'] is not None else 'unchecked'} wrong"
            f" rows of {entry['n']}",
            "take the device out of service: wrong numbers from exact operands are a hardware"
            " or library fault", brief(entry))
    elif not entry["tflops"]:
        yield Finding(f"{where} has no measured throughput", "see gpu.throughput", brief(entry))
    else:
        yield Evidence(f"{where}: {entry['n']}x{entry['n']} exact on {entry['device']},"
                   f" {entry['tflops']} TFLOP/s, first {entry['first_s']} s")
