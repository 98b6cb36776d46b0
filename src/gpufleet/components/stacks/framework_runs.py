"""The runs of the stacks' frameworks, and why a run or a part of it cannot be judged."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from gpufleet.components.base import subjects
from gpufleet.components.base.holders import busy_finding
from gpufleet.components.base.registry import Finding, required
from gpufleet.components.base.remedies import command, otherwise, provision, see
from gpufleet.components.base.remedies import stack as parts_of
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan, PlannedStack
from gpufleet.documents.sections.stacks import Convolution, Framework, Product
from gpufleet.documents.verdict import Verdict
from gpufleet.frameworks import FRAMEWORKS, framework_id, framework_of

from .installed import installed

T = TypeVar("T")
# How a run reports a GPU that its framework does not list.
LISTED = re.compile(
    f"(?:{'|'.join(each.title for each in FRAMEWORKS.values())})"
    r" reports (\d+) GPU"
)
DRIVER_LIBRARY = re.compile(r"^lib(cuda|nvidia-ml|nvidia-ptxjitcompiler)\.so")


def title(stack: PlannedStack) -> str:
    """The usual name of the stack's framework."""
    return framework_of(stack).title


def named(stack: PlannedStack) -> str:
    """A stack's framework, as findings name it: `PyTorch of pytorch-2.6.0`."""
    return f"{title(stack)} of {stack['name']}"


class Ran(NamedTuple, Generic[T]):
    """A planned stack, its framework's run, and a part of that run."""

    stack: PlannedStack
    framework: Framework
    part: T


class NotRun(NamedTuple):
    """A planned stack whose run cannot be judged in part, and the reason."""

    stack: PlannedStack
    finding: Finding
    framework: Framework | None = None


def ended_in(stack: PlannedStack, framework: Framework) -> str | None:
    """The part in which a run ended, after its products; None where it ran on, or ended before."""
    if framework["state"] != "failed" or not framework["matmul"]:
        return None
    # `loader` has its place in the document from the beginning.
    missing = (
        key
        for key in framework_of(stack).parts_after_products
        if key not in framework or (key == "loader" and framework["loader"] is None)
    )
    return next(missing, None)


def _why_not(plan: Plan, observed: Sections, run: NotRun) -> Finding:
    return run.finding


def runs(
    part: Callable[[Framework], T | None],
    frameworks: Collection[str] = FRAMEWORKS,
    key: str | None = None,
    not_run: Callable[[Plan, Sections, NotRun], Finding] = _why_not,
) -> Callable[[Plan, Sections], Iterator[Ran[T] | Finding]]:
    """The run of each planned stack's framework, or why a part of it cannot be judged.

    Only stacks of these `frameworks` count. `key` is the part's, if a run that ends in it fails.
    `not_run` may give another finding for a part that cannot be judged.
    """

    def found(plan: Plan, observed: Sections) -> Iterator[Ran[T] | Finding]:
        for run in _attempts(plan, observed, part, frameworks, key):
            yield not_run(plan, observed, run) if isinstance(run, NotRun) else run

    return found


def _attempts(
    plan: Plan,
    observed: Sections,
    part: Callable[[Framework], T | None],
    frameworks: Collection[str],
    key: str | None,
) -> Iterator[Ran[T] | NotRun]:
    present = {stack["name"] for stack, _ in installed(plan, observed)}
    for stack in plan["stacks"]:
        if stack["name"] not in present and framework_id(stack) in frameworks:
            yield NotRun(
                stack,
                Finding(
                    f"{stack['name']} is not installed: nothing ran",
                    provision(plan, *parts_of(plan, stack)),
                    verdict=Verdict.INCONCLUSIVE,
                    about=(stack["venv"],),
                ),
            )
    for stack, found in installed(plan, observed):
        framework = found["framework"]
        if framework_id(stack) not in frameworks:
            continue
        if framework is None:
            yield NotRun(
                stack,
                Finding(
                    f"{stack['name']} was not started: the snapshot has mode"
                    f" '{observed.snapshot['mode']}'",
                    "./gpufleet verify (it probes in mode 'full')",
                    verdict=Verdict.INCONCLUSIVE,
                ),
            )
        elif key and ended_in(stack, framework) == key:
            yield NotRun(stack, _ended(plan, stack, framework, observed), framework)
        elif not (result := part(framework)):
            yield NotRun(stack, stopped_before(plan, stack, framework), framework)
        else:
            yield Ran(stack, framework, result)


def _ended(plan: Plan, stack: PlannedStack, framework: Framework, observed: Sections) -> Finding:
    """A run that ended in a step, which is that step's failure."""
    finding = busy_finding(stack["name"], framework["error"], observed) or Finding(
        f"{named(stack)} ended in this step: {framework['error']}",
        otherwise(
            provision(plan, *parts_of(plan, stack)),
            "if stack.files and toolkit.files pass, the host prevents it: check ulimit -a,"
            " free and dmesg",
        ),
        about=(subjects.stopped(stack["name"]),),
    )
    return replace(finding, entails=(subjects.stopped(stack["name"]),))


def stopped_before(plan: Plan, stack: PlannedStack, framework: Framework) -> Finding:
    """A run that ended before a part of it that it has."""
    if framework["state"] == "hung" and framework.get("compiled"):
        return Finding(
            f"{stack['name']} has no machine code for a GPU of this host, and the driver was still"
            f" compiling it: {framework['error']}; what it has compiled is kept",
            command(
                "provision",
                "--limit",
                plan["host"],
                "--force",
                note="its verification has half an hour for each such stack",
            ),
            verdict=Verdict.INCONCLUSIVE,
            about=(subjects.stopped(stack["name"]),),
        )
    if framework["state"] == "hung":
        return Finding(
            f"{named(stack)} hung: {framework['error']}",
            "check the host's driver and load; then ./gpufleet verify",
            verdict=Verdict.HUNG,
            about=(subjects.stopped(stack["name"]),),
        )
    part = ended_in(stack, framework) or "matmul"
    its_check = "stack." + {"loader": "libraries"}.get(part, part)
    return Finding(
        f"{named(stack)} stopped before this step: {framework['error']}",
        see(its_check, provision(plan, *parts_of(plan, stack))),
        verdict=Verdict.INCONCLUSIVE,
        about=(subjects.stopped(stack["name"]),),
    )


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


def library_subject(stack: PlannedStack, soname: str) -> str:
    """A library that the stack loads: of the driver, or of its own CUDA."""
    return "libcuda" if DRIVER_LIBRARY.match(soname) else subjects.library(home(stack), soname)


def home(stack: PlannedStack) -> str:
    """The place of the stack's CUDA libraries: its toolkit, or its own environment."""
    if stack["cuda_source"] == "toolkit":
        return required(stack["toolkit_path"], "a stack's toolkit_path")
    return stack["venv"]
