"""Resolve a host's variables, once, into its plan: everything that the host is to have.

Pure: reads documents and the catalog. `model.plan` describes the plan; one with problems is never
acted on. The steps, in order: stacks, toolkits, cuDNN, linker, driver, environment, then what the
host itself refuses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from gpufleet.catalog import facts, performance, versions
from gpufleet.catalog.records import DRIVER_SONAME, DriverMinimum
from gpufleet.components import leftovers
from gpufleet.components.base import expectation
from gpufleet.components.base.host import Host
from gpufleet.components.declare import declaration_of
from gpufleet.documents.plan import DriverLibrary, Plan, PlannedLink, PlannedLinker, PlannedStack
from gpufleet.documents.problems import Code, Problems
from gpufleet.documents.spec import PREINSTALLED, Declaration, StackSpec
from gpufleet.documents.text import quoted, shell
from gpufleet.documents.types import Row

from . import space
from .base.context import ResolveContext
from .containers import plan as containers
from .cuda import cudnn_plan as cudnn
from .cuda import linker_plan as linker
from .cuda import toolkit_plan as toolkits
from .cuda.toolkit_plan import Chosen
from .driver import needs as driver_needs
from .driver import plan as driver
from .driver import repository_plan as repositories
from .driver import sources as driver_sources
from .gpu import plan as gpus
from .network import plan as network
from .stacks import conflicts, defects, pins, ptx
from .stacks import environment_plan as environment
from .stacks import plan as stacks

SCHEMA = 1


def resolve(
    variables: Mapping[str, Any],
    host: Mapping[str, Any] | None = None,
    name: str = "",
    locks: Collection[str] | None = None,
) -> Plan:
    """The plan for a host: `variables` are its gpu_* variables, `host` its snapshot or None.

    `locks` are the names of the user's lock files; None where they are not known.
    Never raises on what a user wrote: `problems` lists everything that is wrong.
    """
    return resolve_declaration(declaration_of(variables), host, name, locks)


def resolve_declaration(
    declaration: Declaration,
    host: Mapping[str, Any] | None = None,
    name: str = "",
    locks: Collection[str] | None = None,
) -> Plan:
    """The plan for a host whose variables are parsed."""
    problems = Problems([*declaration.problems])
    context = ResolveContext(declaration.spec, Host(host), problems, locks=locks)
    context.accepts = partial(_accepts, context, {})
    _note_unobserved(context)
    _check_arch(context)
    context.gpus = gpus.select(context)
    software = _software(context)
    chosen = software.toolkits
    own_driver = driver.plan(context, driver_needs.highest(software.needs))
    _check_eula(context, cuda=software.cuda_wanted)

    plan: Row = {
        "schema": SCHEMA,
        "host": name or context.host.name,
        "arch": context.arch,
        "expect": {
            **{key: context.spec.expect.get(key) for key in expectation.KEYS},
            **_throughput(context),
        },
        "manifest": context.spec.manifest or None,
        "service_user": context.spec.service_user,
        "os": driver_sources.describe(context.host),
        "driver": own_driver,
        "network": network.describe(context),
        "containers": containers.describe(context),
        "driver_library": _driver_library(context, software.stacks),
        "toolkits": [toolkits.describe(context, each) for each in chosen.values()],
        "cudnn": [
            cudnn.describe(context, each, picked)
            for each in chosen.values()
            # The default last: it takes over header and unversioned link.
            for _, picked in sorted(each.majors.items(), key=lambda row: (row[1].default, row[0]))
        ],
        "stacks": software.rows,
        "linker": software.linker,
        "default_link": _default_link(context, chosen),
        "adopt": context.spec.adopt,
        "prune": context.spec.prune,
        "tmpdir": space.tmpdir(context),
    }
    plan["environment"] = environment.files(context, plan)
    plan["artifacts"] = _artifacts(plan)
    if context.host.reached:
        declared_at = {each.path(context): each.where for each in chosen.values()}
        declared_at |= {
            f"{context.spec.stack_root}/{each.spec.name}": each.spec.where
            for each in software.stacks
        }
        conflicts.check(context, plan, declared_at)
        _refuse_hidden_records(context)
        space.check(context, plan)
        repositories.check(context, cast(Plan, plan))
    plan["problems"] = problems.documents()
    # A refused declaration takes effect nowhere, so it leaves no component undeclared.
    if context.host.reached and not plan["problems"]:
        for text in leftovers.notes(cast(Plan, plan), context.host):
            context.note(text)
    plan["notes"] = context.notes
    # Tests hold each plan against the schema of `Plan`.
    return cast(Plan, plan)


@dataclass
class _Software:
    """The stacks of a host with their toolkits, and the oldest drivers that each needs."""

    stacks: list[stacks.Stack]
    rows: list[PlannedStack]
    toolkits: dict[str, Chosen]
    linker: PlannedLinker
    needs: list[DriverMinimum]
    cuda_wanted: bool


def _software(context: ResolveContext) -> _Software:
    found = stacks.select(context)
    # The name of a release that is not known says nothing about its module.
    environment.check(context, [stack.spec for stack in found])
    cuda_wants: list[toolkits.Want] = []
    cudnn_wants: list[cudnn.Want] = []
    for stack in found:
        for_cuda, for_cudnn = stacks.wants(context, stack)
        cuda_wants += for_cuda
        cudnn_wants += for_cudnn
    for spec in context.spec.toolkits:
        cuda_wants.append(toolkits.Want(spec.cuda, spec.where, spec.where))
        for version in spec.cudnn:
            where = f"{spec.where}.cudnn"
            short = versions.short(spec.cuda)
            cudnn_wants.append(cudnn.Want(short, where, spec.where, pinned=version))
    chosen = toolkits.choose(context, cuda_wants)
    cudnn.choose(context, cudnn_wants, chosen)
    toolkits.default(context, chosen, cuda_wants)
    for each in chosen.values():
        cudnn.check_gpus(context, each)
        defects.check_toolkit(context, each)
    linked = linker.register(context, chosen)
    stacks.check_linker(context, found, chosen)

    needs = [n for each in chosen.values() for n in driver_needs.of_toolkit(each.toolkit)]
    needs += [n for each in chosen.values() for n in driver_needs.of_cudnn(each)]
    rows: list[PlannedStack] = []
    for stack in found:
        own = chosen.get(stack.cuda) if stack.source == "toolkit" else None
        if own is None and stack.source == "toolkit":
            continue
        if own:
            pins.toolkit_fits(context, stack.spec, stack.build, own)
        defects.check_stack(context, stack, own)
        ptx.note_unchecked(context, stack.build, stack.spec.name)
        need = driver_needs.of_stack(context, stack, own)
        needs.append(need)
        rows.append(stacks.describe(context, stack, own, need.version))
    return _Software(found, rows, chosen, linked, needs, bool(cuda_wants))


def _accepts(
    context: ResolveContext, tried: dict[str, set[str]], stack: StackSpec, code: Code
) -> bool:
    """Return whether a changed stack loses this problem and adds none to those as declared.

    `tried` keeps the problems of each stack that was tried.
    """
    own = next(each for each in context.spec.stacks if each.where == stack.where)
    for each in (own, stack):
        if repr(each) not in tried:
            tried[repr(each)] = _problems_alone(context, each)
    return tried[repr(stack)] <= tried[repr(own)] - {code.value}


def _problems_alone(context: ResolveContext, stack: StackSpec) -> set[str]:
    """The codes of the problems that a stack alone has with the host's GPUs, Pythons and glibc."""
    alone = replace(stack, name="trial", environment={})
    trial = replace(
        context,
        spec=replace(context.spec, stacks=[alone], toolkits=[], cuda_default=None, environment={}),
        problems=Problems(),
        notes=[],
        trial=True,
    )
    _software(trial)
    return {problem.code for problem in trial.problems.found}


def _refuse_hidden_records(context: ResolveContext) -> None:
    """Refuse a host whose records are covered: everything would be installed once more."""
    if (mount := context.host.hidden_records) is not None:
        where, source = quoted(str(mount.get("path"))), quoted(str(mount.get("source")))
        context.refuse(
            Code.RECORDS_HIDDEN,
            f"{source} is mounted at {where}, over the records of what gpufleet installed",
            f"host {context.host.name}".strip(),
            f"unmount it on the host: {shell('umount', str(mount.get('path')), instead='umount')}",
        )


def _throughput(context: ResolveContext) -> Row:
    """The least float32 throughput of each GPU: as declared, else the declared model's floor."""
    declared = context.spec.expect.get("tflops")
    if declared is not None:
        return {"tflops": declared, "tflops_because": "gpu_expect.tflops"}
    floor = performance.floors(context.spec.expect.get("model") or "")
    return {
        "tflops": floor.tflops if floor else None,
        "tflops_because": floor.tflops_because if floor else None,
    }


def _note_unobserved(context: ResolveContext) -> None:
    """Note what could not be probed."""
    if not context.host.reached:
        context.note(
            "The host was not probed: its Pythons, glibc, disks, driver and existing installations "
            "are unchecked"
        )
        return
    sections = ("os", "disks", "driver", "receipts", "toolkits", "stacks")
    for name in context.host.unobserved(sections):
        context.note(f"The host's {name} could not be probed: what depends on it is unchecked")


def _check_arch(context: ResolveContext) -> None:
    """Refuse a declared architecture that is not the host's, and leave out what cannot be installed
    on the host's: the rest of the declaration is planned, and what is there is judged."""
    spec, arch = context.spec, context.arch
    if spec.arch and spec.arch != arch:
        context.refuse(
            Code.ARCH_MISMATCH,
            f"{spec.arch} is declared, and the host is {arch}",
            "gpu_arch",
            f"set gpu_arch: {arch}, or remove it",
        )
    if arch in facts.machines():
        return
    driver = spec.driver
    declared = {
        "gpu_stacks": bool(spec.stacks),
        "gpu_toolkits": bool(spec.toolkits),
        "gpu_driver": driver is not None and driver.managed,
        "gpu_containers": spec.containers is not None,
    }
    known = " and ".join(facts.machines())
    for where, wanted in declared.items():
        if wanted:
            context.refuse(
                Code.HOST_UNSUPPORTED,
                f"the host is {arch}, and gpufleet installs on {known} only",
                where,
                "set source: preinstalled, and install the driver yourself"
                if where == "gpu_driver"
                else "remove it for this host, and install it yourself",
            )
    context.spec = replace(
        spec,
        stacks=[],
        toolkits=[],
        cuda_default=None,
        driver=replace(driver, source=PREINSTALLED) if driver else None,
        containers=None,
    )


def _check_eula(context: ResolveContext, *, cuda: bool) -> None:
    """Refuse what NVIDIA's own installers install until a person has accepted the licence."""
    runfile = context.spec.driver is not None and context.spec.driver.source == "runfile"
    if (cuda or runfile) and not context.spec.eula_accepted:
        what = "CUDA toolkits are" if cuda else "the driver's runfile is"
        context.refuse(
            Code.EULA_NOT_ACCEPTED,
            f"{what} declared, and NVIDIA's licence is not accepted. "
            "Installing means that you accept this licence",
            "gpu_accept_nvidia_eula",
            "read https://docs.nvidia.com/cuda/eula/ and set gpu_accept_nvidia_eula: true",
        )


def _driver_library(context: ResolveContext, found: list[stacks.Stack]) -> DriverLibrary | None:
    """The driver's library, for builds that are linked against it on a host without a GPU."""
    linked = [
        each.spec.name
        for each in found
        if facts.linked_to_driver(each.build.framework, each.build.version)
    ]
    if not linked or not context.spec.without_gpu:
        return None
    return {"soname": DRIVER_SONAME, "because": linked}


def _default_link(context: ResolveContext, chosen: dict[str, Chosen]) -> PlannedLink | None:
    for each in chosen.values():
        if each.default:
            return {"path": f"{context.spec.prefix}/cuda", "target": f"cuda-{each.short}"}
    return None


def _artifacts(plan: Row) -> list[Row]:
    """Everything to download, with what it is for."""
    keys = ("file", "url", "sha256", "md5", "checksum", "size_bytes", "login_required")
    wanted = []
    for row in plan["toolkits"]:
        wanted.append((row["artifact"], f"toolkit {row['short']}"))
        wanted += [
            (patch, f"patch {patch['version']} of toolkit {row['short']}")
            for patch in row["patches"]
        ]
    for row in plan["cudnn"]:
        wanted.append((row["artifact"], f"cudnn {row['version']} in toolkit {row['toolkit']}"))
    return [{**{key: row[key] for key in keys}, "for": what} for row, what in wanted]
