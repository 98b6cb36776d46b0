"""What a stack's framework does beyond products: arrays of numpy, convolutions, routines of other
CUDA libraries, worker processes, compiled functions. Each framework reports those that it has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from gpufleet.model.frameworks import FRAMEWORKS, framework_id
from gpufleet.model.plan import Plan, PlannedStack
from gpufleet.model.sections.stacks import Convolution, Framework
from gpufleet.model.text import brief
from gpufleet.model.verdict import Verdict

from .holders import busy_finding
from .registry import Evidence, Finding, check, no_stacks, timed_out
from .registry import SkipReason as Skip
from .remedies import Component, otherwise, person, provision, see
from .remedies import stack as parts_of
from .sections import Sections
from .stack_run import (
    LISTED,
    NotRun,
    exchanged,
    framework_runs,
    gpu_number,
    is_on_requested_device,
    named,
)

T = TypeVar("T")

# The frameworks that report each of these.
PYTORCH, BOTH = ("pytorch",), ("pytorch", "jax")


def none_of(frameworks: Collection[str]) -> Skip:
    """The skip reason of a host that has no stack of these frameworks."""
    titles = " or ".join(FRAMEWORKS[name].title for name in frameworks)

    def reason(plan: Plan) -> str | None:
        if any(framework_id(stack) in frameworks for stack in plan["stacks"]):
            return None
        return no_stacks(plan) or f"gpu_stacks: none is {titles}"
    return reason


def parts(
    plan: Plan, observed: Sections, frameworks: Collection[str],
    part: Callable[[Framework], T | None], key: str,
) -> Iterator[tuple[PlannedStack, Framework, T] | Finding]:
    """Each stack with that part of its run, by its `key`, or why there is none."""
    for run in framework_runs(plan, observed, part, frameworks, key):
        if not isinstance(run, NotRun):
            yield run.stack, run.framework, run.part
        elif run.framework and run.framework["state"] == "ok":
            # It ran to its end by a probe that does not try this.
            yield Finding(f"{named(run.stack)} did not report it", "./gpufleet verify",
                          verdict=Verdict.INCONCLUSIVE)
        else:
            yield run.finding


@check("stack.numpy", reads=("stacks",), skip_reason=none_of(PYTORCH))
def numpy(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Arrays of the stack's numpy reach PyTorch and come back unchanged."""
    for found in parts(plan, observed, PYTORCH, lambda framework: framework.get("numpy"), "numpy"):
        if isinstance(found, Finding):
            yield found
            continue
        stack, _, exchange = found
        if exchange["error"]:
            yield Finding(
                f"{named(stack)} exchanges no arrays with numpy {exchange['version']}:"
                f" {exchange['error']}; PyTorch before 2.3 needs numpy 1",
                provision(plan, Component("stack", stack["name"])), exchange["error"],
                about=(f"numpy@{stack['name']}",), entails=(f"numpy@{stack['name']}",))
        yield Evidence(f"{stack['name']}: numpy {exchange['version']}")


@check("stack.convolution", reads=("stacks",), skip_reason=none_of(BOTH))
def convolution(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """A convolution is exact on each device that a stack computes on."""
    for found in parts(plan, observed, BOTH, lambda framework: framework.get("convolution"),
                       "convolution"):
        if isinstance(found, Finding):
            yield found
            continue
        stack, framework, entries = found
        for entry in entries:
            yield from _convolved(plan, observed, stack, framework, entry)


def _convolved(
    plan: Plan, observed: Sections, stack: PlannedStack, framework: Framework, entry: Convolution
) -> Iterator[Finding | Evidence]:
    name = stack["name"]
    where = f"{name} on {entry['requested']}"
    busy = busy_finding(f"A convolution of {where}", entry["error"], observed,
                        device=entry["requested"])
    if busy:
        yield busy
    elif entry["error"]:
        listed = LISTED.match(entry["error"])
        exchange = exchanged(name, framework)
        yield Finding(
            f"{where} could not convolve: {entry['error']}",
            see("stack.matmul and stack.libraries", provision(plan, *parts_of(plan, stack))),
            brief(entry), about=(exchange,) if exchange else (
                f"nothing/{gpu_number(entry)}@{name}",) if not listed else (
                f"gpus@{name}",) if listed[1] == "0" else (f"gpu/{gpu_number(entry)}@{name}",))
    elif not is_on_requested_device(entry):
        yield Finding(f"{where} convolved on {entry['device'] or 'an unknown device'} instead",
                      see("stack.libraries", provision(plan, Component("stack", name))),
                      brief(entry))
    elif entry["wrong"] != 0:
        yield Finding(
            f"{where}: {entry['wrong'] if entry['wrong'] is not None else 'unchecked'} numbers of"
            " a convolution are wrong",
            see("stack.mapped, cudnn.convolution and gpu.formats",
                provision(plan, *parts_of(plan, stack))), brief(entry))
    else:
        yield Evidence(f"{where}: exact on {entry['device']}")


@check("stack.routines", reads=("stacks",), skip_reason=none_of(BOTH))
def routines(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """A Fourier transform and a linear solver are exact on the first device of each stack."""
    for found in parts(plan, observed, BOTH, lambda framework: (
            framework["routines"],) if "routines" in framework else None, "routines"):
        if isinstance(found, Finding):
            yield found
            continue
        stack, framework, (results,) = found
        for name, error in sorted(results.items()):
            busy = busy_finding(f"{stack['name']}: {name}", error, observed,
                                device=_first_device(framework))
            if busy:
                yield busy
            elif error:
                yield Finding(
                    f"{named(stack)} has no right result of {name}: {error}",
                    see("stack.libraries", provision(plan, *parts_of(plan, stack))), error)
        none = f"PyTorch {framework['version']} has neither"
        yield Evidence(f"{stack['name']}: {', '.join(sorted(results)) or none}")


def _first_device(framework: Framework) -> str | None:
    """The first one that the framework uses."""
    return next((entry["requested"] for entry in framework["matmul"]
                 if not LISTED.match(entry["error"] or "")), None)


@check("stack.workers", reads=("stacks",), skip_reason=none_of(PYTORCH))
def workers(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """PyTorch loads a data set by two worker processes, which hand it over in /dev/shm."""
    for found in parts(plan, observed, PYTORCH, lambda framework: framework.get("workers"),
                       "workers"):
        if isinstance(found, Finding):
            yield found
            continue
        stack, _, result = found
        if result["error"] or result["wrong"] != 0:
            wrong = "an unknown number of" if result["wrong"] is None else result["wrong"]
            yield Finding(
                f"{named(stack)} cannot load data by {result['workers']} worker processes:"
                f" {result['error'] or f'{wrong} batches are wrong'}",
                otherwise(
                    person("on the host: see df /dev/shm, ulimit -a and free; mount -o"
                           " remount,size=50% /dev/shm gives it room"),
                    "if they have room: see stack.files"), brief(result))
        else:
            yield Evidence(f"{stack['name']}: {result['workers']} workers")


@check("stack.compile", reads=("stacks",), severity="major", skip_reason=none_of(PYTORCH))
def compiled(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """torch.compile compiles a function for a GPU, exactly, if the host has a C compiler."""
    for found in parts(plan, observed, PYTORCH, lambda framework: (
            framework["compile"],) if "compile" in framework else None, "compile"):
        if isinstance(found, Finding):
            yield found
            continue
        stack, framework, (result,) = found
        name = stack["name"]
        if result is None:
            yield Evidence(f"{name}: PyTorch {framework['version']} has no torch.compile")
        elif result["lacks"] == "a GPU":
            yield Finding(f"{name} uses no GPU: nothing was compiled", "",
                          verdict=Verdict.NOT_DECLARED)
        elif result["lacks"]:
            # Nobody declared that functions are to be compiled; the rest of the stack works.
            yield Finding(
                f"{name} cannot compile functions on this host, which lacks {result['lacks']}:"
                " torch.compile was not tested", "on the host: install it, if users need"
                " torch.compile; then ./gpufleet verify", verdict=Verdict.NOT_DECLARED)
        elif result["error"]:
            yield (timed_out(f"torch.compile of {name}", result["error"])
                   or busy_finding(f"torch.compile of {name}", result["error"], observed,
                                   device=result["device"])
                   or Finding(
                       f"torch.compile of {name} fails: {result['error']}",
                       see("stack.libraries and stack.files",
                           provision(plan, Component("stack", name))), result["error"]))
        elif result["wrong"] != 0:
            yield Finding(
                f"torch.compile of {name} gave"
                f" {'unchecked' if result['wrong'] is None else result['wrong']} wrong numbers",
                see("stack.matmul", provision(plan, Component("stack", name))), brief(result))
        else:
            yield Evidence(f"{name}: exact on {result['device']}, {result['seconds']} s")
