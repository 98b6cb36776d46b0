"""A stack's work beyond products: numpy, convolutions, other CUDA libraries, worker processes.

Compiled functions are a part of it too. Each framework reports the parts that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from gpufleet.components.base.holders import busy_finding
from gpufleet.components.base.items import for_each
from gpufleet.components.base.registry import (
    Evidence,
    Finding,
    check,
    no_stacks,
    timed_out,
    wrong_results,
)
from gpufleet.components.base.registry import SkipReason as Skip
from gpufleet.components.base.remedies import Component, otherwise, person, provision, see
from gpufleet.components.base.remedies import stack as parts_of
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan, PlannedStack
from gpufleet.documents.sections.stacks import Compiled, Convolution, Exchange, Framework, Workers
from gpufleet.documents.text import brief
from gpufleet.documents.verdict import Verdict
from gpufleet.frameworks import Part, framework_of, reporting, titles

from .framework_runs import (
    LISTED,
    NotRun,
    Ran,
    gpu_number,
    is_on_requested_device,
    named,
    runs,
    title,
)
from .products import exchanged

T = TypeVar("T")


def none_reports(key: Part) -> Skip:
    """The skip reason of a host that has no stack whose framework reports this part of a run."""

    def reason(plan: Plan) -> str | None:
        if any(key in framework_of(stack).parts for stack in plan["stacks"]):
            return None
        return no_stacks(plan) or f"gpu_stacks: none is {titles(lambda each: key in each.parts)}"

    return reason


def parts(
    part: Callable[[Framework], T | None], key: Part
) -> Callable[[Plan, Sections], Iterator[Ran[T] | Finding]]:
    """Each stack with that part of its run, by its `key`, or why there is none."""
    return runs(part, reporting(key), key, not_run=_not_reported)


def _not_reported(plan: Plan, observed: Sections, run: NotRun) -> Finding:
    if run.framework is None or run.framework["state"] != "ok":
        return run.finding
    # It ran to its end by a probe that does not try this.
    return Finding(
        f"{named(run.stack)} did not report it",
        "./gpufleet verify",
        verdict=Verdict.INCONCLUSIVE,
    )


@check("stack.numpy", reads=("stacks",), skip_reason=none_reports("numpy"))
@for_each(parts(lambda framework: framework.get("numpy"), "numpy"))
def numpy(plan: Plan, observed: Sections, run: Ran[Exchange]) -> Iterator[Finding | Evidence]:
    """Arrays of the stack's numpy reach PyTorch and come back unchanged."""
    stack, _, exchange = run
    if exchange["error"]:
        yield Finding(
            f"{named(stack)} exchanges no arrays with numpy {exchange['version']}:"
            f" {exchange['error']}; {title(stack)} before"
            f" {framework_of(stack).numpy_2_from} needs numpy 1",
            provision(plan, Component("stack", stack["name"])),
            exchange["error"],
            about=(f"numpy@{stack['name']}",),
            entails=(f"numpy@{stack['name']}",),
        )
    yield Evidence(f"{stack['name']}: numpy {exchange['version']}")


@check("stack.convolution", reads=("stacks",), skip_reason=none_reports("convolution"))
@for_each(parts(lambda framework: framework.get("convolution"), "convolution"))
def convolution(
    plan: Plan, observed: Sections, run: Ran[list[Convolution]]
) -> Iterator[Finding | Evidence]:
    """A convolution is exact on each device that a stack computes on."""
    stack, framework, entries = run
    for entry in entries:
        yield from _convolved(plan, observed, stack, framework, entry)


def _convolved(
    plan: Plan, observed: Sections, stack: PlannedStack, framework: Framework, entry: Convolution
) -> Iterator[Finding | Evidence]:
    name = stack["name"]
    where = f"{name} on {entry['requested']}"
    busy = busy_finding(
        f"A convolution of {where}", entry["error"], observed, device=entry["requested"]
    )
    if busy:
        yield busy
    elif entry["error"]:
        listed = LISTED.match(entry["error"])
        exchange = exchanged(name, framework)
        yield Finding(
            f"{where} could not convolve: {entry['error']}",
            see("stack.matmul and stack.libraries", provision(plan, *parts_of(plan, stack))),
            brief(entry),
            about=(exchange,)
            if exchange
            else (f"nothing/{gpu_number(entry)}@{name}",)
            if not listed
            else (f"gpus@{name}",)
            if listed[1] == "0"
            else (f"gpu/{gpu_number(entry)}@{name}",),
        )
    elif not is_on_requested_device(entry):
        yield Finding(
            f"{where} convolved on {entry['device'] or 'an unknown device'} instead",
            see("stack.libraries", provision(plan, Component("stack", name))),
            brief(entry),
        )
    elif entry["wrong"] != 0:
        yield Finding(
            f"A convolution of {where} gave {wrong_results(entry['wrong'], 'number')}",
            see(
                "stack.mapped, cudnn.convolution and gpu.formats",
                provision(plan, *parts_of(plan, stack)),
            ),
            brief(entry),
        )
    else:
        yield Evidence(f"{where}: exact on {entry['device']}")


@check("stack.routines", reads=("stacks",), skip_reason=none_reports("routines"))
@for_each(
    parts(
        lambda framework: (framework["routines"],) if "routines" in framework else None,
        "routines",
    )
)
def routines(
    plan: Plan, observed: Sections, run: Ran[tuple[dict[str, str | None]]]
) -> Iterator[Finding | Evidence]:
    """A Fourier transform and a linear solver are exact on the first device of each stack."""
    stack, framework, (results,) = run
    for name, error in sorted(results.items()):
        busy = busy_finding(
            f"{stack['name']}: {name}", error, observed, device=_first_device(framework)
        )
        if busy:
            yield busy
        elif error:
            yield Finding(
                f"{named(stack)} has no right result of {name}: {error}",
                see("stack.libraries", provision(plan, *parts_of(plan, stack))),
                error,
            )
    none = f"{title(stack)} {framework['version']} has neither"
    yield Evidence(f"{stack['name']}: {', '.join(sorted(results)) or none}")


def _first_device(framework: Framework) -> str | None:
    """The first one that the framework uses."""
    return next(
        (
            entry["requested"]
            for entry in framework["matmul"]
            if not LISTED.match(entry["error"] or "")
        ),
        None,
    )


@check("stack.workers", reads=("stacks",), skip_reason=none_reports("workers"))
@for_each(parts(lambda framework: framework.get("workers"), "workers"))
def workers(plan: Plan, observed: Sections, run: Ran[Workers]) -> Iterator[Finding | Evidence]:
    """PyTorch loads a data set by two worker processes, which hand it over in /dev/shm."""
    stack, _, result = run
    if result["error"] or result["wrong"] != 0:
        wrong = "an unknown number of" if result["wrong"] is None else result["wrong"]
        yield Finding(
            f"{named(stack)} cannot load data by {result['workers']} worker processes:"
            f" {result['error'] or f'{wrong} batches are wrong'}",
            otherwise(
                person(
                    "on the host: see df /dev/shm, ulimit -a and free; mount -o"
                    " remount,size=50% /dev/shm gives it room"
                ),
                "if they have room: see stack.files",
            ),
            brief(result),
        )
    else:
        yield Evidence(f"{stack['name']}: {result['workers']} workers")


@check("stack.compile", reads=("stacks",), severity="major", skip_reason=none_reports("compile"))
@for_each(
    parts(
        lambda framework: (framework["compile"],) if "compile" in framework else None,
        "compile",
    )
)
def compiled(
    plan: Plan, observed: Sections, run: Ran[tuple[Compiled | None]]
) -> Iterator[Finding | Evidence]:
    """torch.compile compiles a function for a GPU, exactly, if the host has a C compiler."""
    stack, framework, (result,) = run
    name, compiler = stack["name"], framework_of(stack).compiler
    if result is None:
        yield Evidence(f"{name}: {title(stack)} {framework['version']} has no {compiler}")
    elif result["lacks"] == "a GPU":
        yield Finding(f"{name} uses no GPU: nothing was compiled", "", verdict=Verdict.NOT_DECLARED)
    elif result["lacks"]:
        # Nobody declared that functions are to be compiled; the rest of the stack works.
        yield Finding(
            f"{name} cannot compile functions on this host, which lacks {result['lacks']}:"
            f" {compiler} was not tested",
            f"on the host: install it, if users need {compiler}; then ./gpufleet verify",
            verdict=Verdict.NOT_DECLARED,
        )
    elif result["error"]:
        yield (
            timed_out(f"{compiler} of {name}", result)
            or busy_finding(
                f"{compiler} of {name}", result["error"], observed, device=result["device"]
            )
            or Finding(
                f"{compiler} of {name} fails: {result['error']}",
                see("stack.libraries and stack.files", provision(plan, Component("stack", name))),
                result["error"],
            )
        )
    elif result["wrong"] != 0:
        yield Finding(
            f"{compiler} of {name} gave {wrong_results(result['wrong'], 'number')}",
            see("stack.matmul", provision(plan, Component("stack", name))),
            brief(result),
        )
    else:
        yield Evidence(f"{name}: exact on {result['device']}, {result['seconds']} s")
