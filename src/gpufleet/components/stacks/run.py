"""The run of each stack's framework: its build, and the libraries it loaded and mapped."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.components.base.items import for_each
from gpufleet.components.base.paths import name_of
from gpufleet.components.base.registry import (
    Evidence,
    Finding,
    check,
    no_gpus_declared,
    no_stacks,
    shortened,
    timed_out,
)
from gpufleet.components.base.remedies import otherwise, person, provision, then
from gpufleet.components.base.remedies import stack as parts_of
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan, PlannedStack
from gpufleet.documents.sections.cuda import Receipts
from gpufleet.documents.sections.stacks import Framework, FrameworkBuild, Loader
from gpufleet.documents.text import brief
from gpufleet.documents.verdict import Verdict
from gpufleet.frameworks import framework_of

from .framework_runs import DRIVER_LIBRARY, NotRun, Ran, home, library_subject, named, runs, title


@check("stack.build", reads=("stacks",), skip_reason=no_stacks)
@for_each(runs(lambda framework: framework["build"]))
def build(plan: Plan, observed: Sections, run: Ran[FrameworkBuild]) -> Iterator[Finding | Evidence]:
    """The framework is the planned release, built for the planned CUDA and cuDNN."""
    stack, framework, actual = run
    repair = provision(plan, *parts_of(plan, stack))
    wanted = stack["build"]
    # A local version tells the variant: torch 2.6.0+cu124.
    if framework["version"] != stack["version"].partition("+")[0]:
        yield Finding(
            f"{stack['name']} imports {title(stack)} {framework['version']},"
            f" planned is {stack['version']}",
            repair,
            about=(f"build@{stack['name']}",),
        )
    if not actual["cuda_build"]:
        yield Finding(
            f"{named(stack)} is a CPU-only build",
            repair,
            brief(actual),
            about=(f"build@{stack['name']}",),
            entails=(f"gpus@{stack['name']}",),
        )
    # Before 2.3 a build does not report its CUDA; its loader does.
    elif actual["cuda"] and actual["cuda"] != wanted["cuda"]:
        yield Finding(
            f"{named(stack)} was built for CUDA {actual['cuda']}, planned is {wanted['cuda']}",
            repair,
            about=(f"build@{stack['name']}",),
        )
    elif actual["cudnn"] and (int(str(actual["cudnn"]).partition(".")[0]) != wanted["cudnn_major"]):
        yield Finding(
            f"{named(stack)} was built for cuDNN {actual['cudnn']},"
            f" planned is {wanted['cudnn_major']}",
            repair,
            about=(f"build@{stack['name']}",),
        )
    yield Evidence(
        f"{stack['name']}: {framework['version']}, CUDA {actual['cuda']}, cuDNN {actual['cudnn']}"
    )


@check("stack.libraries", reads=("stacks",), skip_reason=no_stacks)
@for_each(runs(lambda framework: framework["loader"], key="loader"))
def libraries(plan: Plan, observed: Sections, run: Ran[Loader]) -> Iterator[Finding | Evidence]:
    """The framework loads every CUDA and cuDNN library that its build needs."""
    bindings = {found["venv"]: found["binding"] for found in observed.data["stacks"]["stacks"]}
    stack, framework, loader = run
    repair = provision(plan, *parts_of(plan, stack))
    binding = bindings.get(stack["venv"])
    if binding is None:
        yield Finding(
            f"It is unknown whether the libraries of {stack['name']} can be loaded",
            "./gpufleet verify",
            verdict=Verdict.INCONCLUSIVE,
        )
    elif binding["error"]:
        what = f"Loading the libraries of {stack['name']}"
        yield timed_out(what, binding) or Finding(
            f"{stack['name']} is bound to a library that cannot be loaded with all its"
            f" symbols: {binding['error'].splitlines()[0]}",
            repair,
            binding["error"],
            about=_unbound(stack, binding["error"]),
        )
    opened = set(loader["opened"])
    failed = {entry["library"]: entry["error"] for entry in loader["failed"]}
    optional = set(stack["sonames_optional"])
    wanted = [soname for soname in stack["sonames"] if soname not in optional]
    if framework_of(stack).own_libraries:
        # Tried were the environment's own libraries, and no others.
        spared = optional if stack["cuda_source"] == "toolkit" else set()
        wanted += sorted(
            name
            for name in failed
            if name not in {*wanted, *spared} and not DRIVER_LIBRARY.match(name)
        )
    if not no_gpus_declared(plan):
        wanted += sorted(name for name in failed if DRIVER_LIBRARY.match(name))
    # A release linked against its libraries has mapped them by being imported at all.
    mapped = {name_of(path) for path in framework["mapped"]}
    unknown = []
    for soname in wanted:
        if soname in failed:
            yield Finding(
                f"{named(stack)} cannot load {soname}, and does not use the GPU: {failed[soname]}",
                repair,
                failed[soname] or "",
                about=(library_subject(stack, soname),),
                entails=(f"gpus@{stack['name']}",),
            )
        elif soname not in opened and not any(
            name == soname or name.startswith(f"{soname}.") for name in mapped
        ):
            unknown.append(soname)
    if unknown:
        yield Finding(
            f"It is unknown whether {named(stack)} finds {shortened(unknown)}:"
            " its loader " + ("did not try" if loader["ran"] else "cannot be queried"),
            "run it on a host with a GPU",
            verdict=Verdict.INCONCLUSIVE,
            about=(f"gpus@{stack['name']}",),
        )
    yield Evidence(f"{stack['name']}: opened {', '.join(loader['opened']) or 'nothing'}")


def _unbound(stack: PlannedStack, error: str) -> tuple[str, ...]:
    """The stack's own libraries by which binding failed: each line starts with a path.

    Another finding explains this one only where it is about the same libraries.
    """
    paths = [line.partition(": ")[0] for line in error.splitlines()]
    if not all(path.startswith(f"{home(stack)}/") for path in paths):
        return ()
    return tuple(dict.fromkeys(library_subject(stack, name_of(path)) for path in paths))


def _nothing_mapped(plan: Plan, observed: Sections, run: NotRun) -> Finding:
    """Without a mapped file nothing is proven, even if it ran."""
    if run.framework is None or run.framework["state"] != "ok":
        return run.finding
    return Finding(
        f"{named(run.stack)} mapped no CUDA library",
        "see stack.libraries",
        verdict=Verdict.INCONCLUSIVE,
        about=(f"gpus@{run.stack['name']}",),
    )


@check("stack.mapped", reads=("stacks", "toolkits", "receipts"), skip_reason=no_stacks)
@for_each(runs(lambda framework: framework["mapped"], not_run=_nothing_mapped))
def mapped(plan: Plan, observed: Sections, run: Ran[list[str]]) -> Iterator[Finding | Evidence]:
    """The process maps only CUDA and cuDNN files that the stack's own receipts list."""
    stack, framework, paths = run
    # Maps name real paths; a tree may be reached through a link.
    real = {tree["path"]: tree["realpath"] for tree in observed.data["toolkits"]["trees"]}
    real |= {found["venv"]: found["realpath"] for found in observed.data["stacks"]["stacks"]}
    repair = provision(plan, *parts_of(plan, stack))
    own = home(stack)
    homes = tuple(f"{each}/" for home in _homes(stack) for each in (home, real.get(home, home)))
    foreign = [path for path in paths if not path.startswith(homes)]
    unknown = [
        path
        for path in paths
        if path not in foreign
        and path not in _expected_files(stack, observed.data["receipts"], path)
    ]
    # A changed symlink may point to what another stack needs: that must not be moved away.
    others = [
        path
        for path in unknown
        if any(path in row["libraries"] for row in observed.data["receipts"]["receipts"])
    ]
    unknown = [path for path in unknown if path not in others]
    if others:
        yield Finding(
            f"{named(stack)} maps {shortened(others)}, which was installed for something else",
            repair,
            "\n".join(others),
        )
    if unknown:
        yield Finding(
            f"{named(stack)} maps {shortened(unknown)}: no receipt of its own"
            " toolkit, cuDNN or packages lists that file",
            then(person("on the host: move it away"), repair),
            "\n".join(unknown),
        )
    unmapped = _not_mapped(framework)
    if unmapped:
        yield Finding(
            f"{named(stack)} opened {shortened(unmapped)}, but maps no file of"
            " that name: it was loaded from a file of another name",
            otherwise(repair, "on the host: check the symlinks of these names"),
        )
    if foreign:
        yield Finding(
            f"{named(stack)} maps libraries from outside {own}: {shortened(foreign)}",
            provision(plan, *parts_of(plan, stack), note="it binds the stack to its toolkit again"),
            "\n".join(foreign),
        )
    yield Evidence(f"{stack['name']}: {len(paths)} files, of {own}")


def _homes(stack: PlannedStack) -> list[str]:
    """The directories of all its libraries: beside a toolkit, an environment may have NCCL."""
    more = [stack["venv"]] if framework_of(stack).own_libraries else []
    return list(dict.fromkeys([home(stack), *more]))


def _expected_files(stack: PlannedStack, receipts: Receipts, path: str) -> list[str]:
    """The files of the stack's own receipt for a library like this one.

    Where there is no such receipt another check reports it, and nothing can be concluded here.
    """
    root, kind = stack["venv"], "stack"
    if stack["cuda_source"] == "toolkit" and not path.startswith(f"{root}/"):
        root, kind = home(stack), "cudnn" if "/libcudnn" in path else "toolkit"
    own = [row for row in receipts["receipts"] if (row["kind"], row["path"]) == (kind, root)]
    major = f"-{stack['build']['cudnn_major']}"
    return (
        [
            library
            for row in own
            if kind != "cudnn" or row["id"].endswith(major)
            for library in row["libraries"]
        ]
        if own
        else [path]
    )


def _not_mapped(framework: Framework) -> list[str]:
    """Libraries that the loader opened although none of their files is mapped."""
    stems = {name_of(path).partition(".so")[0] for path in framework["mapped"]}
    loader = framework["loader"]
    opened = loader["opened"] if loader else []
    return [
        name
        for name in opened
        if name.partition(".so")[0] not in stems and not DRIVER_LIBRARY.match(name)
    ]
