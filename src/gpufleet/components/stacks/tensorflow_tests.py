"""The well-known one-line tests of TensorFlow, each with an assertion."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from gpufleet.catalog.gpus import Gpu, runs_code_for
from gpufleet.catalog.versions import key
from gpufleet.components.base import subjects
from gpufleet.components.base.holders import busy_finding
from gpufleet.components.base.items import for_each
from gpufleet.components.base.registry import (
    INVENTORY,
    Evidence,
    Finding,
    check,
    no_gpus_declared,
    no_stacks,
    required,
    visible_gpus,
    wrong_gpu_count,
)
from gpufleet.components.base.remedies import Component, provision, see
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import ComputeCapability, Plan, PlannedStack
from gpufleet.documents.sections.stacks import Framework, Hello, LocalDevice, SmallChecks
from gpufleet.documents.text import brief, is_number, quantity
from gpufleet.documents.verdict import Verdict
from gpufleet.frameworks import FRAMEWORKS, framework_id, framework_of, reporting, titles

from .framework_runs import Ran, named, runs, title

T = TypeVar("T")

WITH_TESTS = reporting("small")
GREETING = "Hello, TensorFlow!"
# How a framework says that it has no code for a GPU.
IGNORED = re.compile(
    "|".join(phrase for each in FRAMEWORKS.values() for phrase in each.ignored_gpu)
)
# An entry of torch.cuda.get_arch_list(): sm_90, sm_90a, compute_90.
LISTED_CODE = re.compile(r"(sm|compute)_(\d+)(\d)[af]?")
# A first product that took longer than this was compiled for the GPU first.
SLOW_S = 60


def no_tests(plan: Plan) -> str | None:
    """The skip reason of a host without a framework that has such tests."""
    if any(framework_id(stack) in WITH_TESTS for stack in plan["stacks"]):
        return None
    return no_stacks(plan) or f"gpu_stacks: none is {titles(lambda each: each.id in WITH_TESTS)}"


def small_results(
    name: str, result: Callable[[SmallChecks], T]
) -> Callable[[Plan, Sections], Iterator[tuple[PlannedStack, T] | Finding]]:
    """Each stack and the result of one of its small tests, or why that cannot be judged."""
    small_runs = runs(lambda framework: framework["small"], WITH_TESTS)

    def results(plan: Plan, observed: Sections) -> Iterator[tuple[PlannedStack, T] | Finding]:
        for run in small_runs(plan, observed):
            if isinstance(run, Finding):
                yield run
            elif name in run.part["errors"]:
                stack, error = run.stack["name"], run.part["errors"][name]
                yield busy_finding(f"{stack}: {name}", error, observed) or Finding(
                    f"{stack}: {name} fails: {error}",
                    see("stack.libraries", provision(plan, Component("stack", stack))),
                )
            else:
                yield run.stack, result(run.part)

    return results


@check("stack.hello", reads=("stacks",), skip_reason=no_tests)
@for_each(small_results("hello", lambda small: small["hello"]))
def hello(
    plan: Plan, observed: Sections, found: tuple[PlannedStack, Hello | None]
) -> Iterator[Finding | Evidence]:
    """TensorFlow evaluates a string and returns it unchanged."""
    stack, result = found
    if not result or result["value"] != GREETING:
        yield Finding(
            f"{stack['name']} evaluates {GREETING!r} to {result['value'] if result else None!r}",
            provision(plan, Component("stack", stack["name"])),
            brief(result),
        )
    else:
        yield Evidence(f"{stack['name']}: {result['value']} on {result['device']}")


@check("stack.local-devices", reads=("stacks",), skip_reason=no_tests)
@for_each(small_results("local_devices", lambda small: small["local_devices"]))
def local_devices(
    plan: Plan, observed: Sections, found: tuple[PlannedStack, list[LocalDevice] | None]
) -> Iterator[Finding | Evidence]:
    """device_lib.list_local_devices() lists a CPU and each declared GPU as a GPU, with memory."""
    stack, result = found[0], required(found[1], "the list of local devices")
    kinds = [device["type"] for device in result]
    gpus = [device for device in result if device["type"] == "GPU"]
    if "CPU" not in kinds:
        yield Finding(
            f"{stack['name']} lists no CPU",
            provision(plan, Component("stack", stack["name"])),
            brief(result),
        )
    count = visible_gpus(plan)
    if count is not None and wrong_gpu_count(plan, len(gpus), count):
        only = (
            " (XLA_GPU does not count: operations do not run on it)" if "XLA_GPU" in kinds else ""
        )
        yield Finding(
            f"{stack['name']} lists {quantity(len(gpus), 'GPU')}, declared is gpu_expect: {{count:"
            f" {count}}}{only}",
            "see gpu.count, driver.loaded, stack.libraries and stack.capability",
            brief(result),
            about=subjects.missing_gpus(len(gpus), count, stack["name"]),
        )
    yield from (
        Finding(
            f"{stack['name']} has {device['memory_mib']} MiB to use on {device['name']}",
            "see which processes use the GPU's memory: nvidia-smi",
            brief(device),
            Verdict.INCONCLUSIVE,
        )
        for device in gpus
        if required(device["memory_mib"], "a device's memory") <= 0
    )
    yield from _little_memory(observed, stack["name"], gpus)
    yield Evidence(
        f"{stack['name']}: " + ", ".join(f"{device['name']} {device['type']}" for device in result)
    )


# TensorFlow takes the free memory of a GPU but for a small part.
LEAST_OFFERED = 0.5


def _little_memory(observed: Sections, name: str, gpus: Sequence[LocalDevice]) -> Iterator[Finding]:
    """GPUs of which TensorFlow offers far less memory than CUDA reports as free."""
    data = observed.read_elsewhere()
    free = {
        device["index"]: device["free_mib"] or 0
        for run in (data["compute"]["runs"] if "compute" in data else [])
        for device in run["devices"]
    }
    for device in gpus:
        number = device["name"].rpartition(":")[2]
        there = free.get(int(number), 0) if is_number(number) else 0
        if 0 < (device["memory_mib"] or 0) < LEAST_OFFERED * there:
            yield Finding(
                f"{name} has {device['memory_mib']} MiB to use on {device['name']}, CUDA reports"
                f" {there} MiB as free",
                "see which processes use the GPU's memory (nvidia-smi), and whether"
                " TF_GPU_ALLOCATOR or a memory limit is set; then ./gpufleet verify again",
                brief(device),
                Verdict.INCONCLUSIVE,
            )


@check("stack.gpu-device-name", reads=("stacks",), skip_reason=no_tests)
@for_each(small_results("gpu_device_name", lambda small: small["gpu_device_name"]))
def gpu_device_name(
    plan: Plan, observed: Sections, found: tuple[PlannedStack, str | None]
) -> Iterator[Finding | Evidence]:
    """tf.test.gpu_device_name() returns GPU 0 if a GPU is declared, else an empty string."""
    stack, result = found[0], required(found[1], "the device name")
    count = visible_gpus(plan)
    right = result.lower().endswith("gpu:0") if count else result == ""
    if count is not None and not right:
        yield Finding(
            f"tf.test.gpu_device_name() of {stack['name']} is {result!r}, declared is"
            f" gpu_expect: {{count: {count}}}",
            "see gpu.count, driver.loaded and stack.libraries",
            about=(f"gpus@{stack['name']}",) if not result else (),
        )
    yield Evidence(f"{stack['name']}: {result!r}")


@check("stack.device-placement", reads=("stacks",), skip_reason=no_tests)
@for_each(small_results("placement", lambda small: small["placement"]))
def device_placement(
    plan: Plan, observed: Sections, found: tuple[PlannedStack, list[str] | None]
) -> Iterator[Finding | Evidence]:
    """The device placement log has a product on the GPU if one is declared, else on the CPU."""
    stack, result = found[0], required(found[1], "the log of device placement")
    count = visible_gpus(plan)
    kind = "gpu" if count else "cpu"
    if not result:
        yield Finding(
            f"{stack['name']} logs no device for its product",
            see("stack.matmul", provision(plan, Component("stack", stack["name"]))),
            verdict=Verdict.INCONCLUSIVE,
        )
    elsewhere = [device for device in result if f"{kind}:" not in device.lower()]
    if elsewhere and count is not None:
        yield Finding(
            f"{stack['name']} places its product on {elsewhere[0]} instead of a {kind.upper()}",
            "see gpu.count, driver.loaded and stack.libraries",
            "\n".join(result),
            about=(f"gpus@{stack['name']}",) if kind == "gpu" else (),
        )
    yield Evidence(f"{stack['name']}: {', '.join(result)}")


@check(
    "stack.capability",
    reads=("stacks", "compute"),
    repair=INVENTORY,
    skip_reason=lambda plan: no_stacks(plan) or no_gpus_declared(plan),
)
@for_each(runs(lambda framework: framework["version"]))
def capability(plan: Plan, observed: Sections, run: Ran[str]) -> Iterator[Finding | Evidence]:
    """Each framework has code for each GPU: machine code, or PTX to compile."""
    stack, framework, _ = run
    used = {
        device["compute_capability"]
        for tested in observed.data["compute"]["runs"]
        for device in tested["devices"]
    }
    log_lines = framework.get("said") or []
    capabilities = sorted(
        {
            *(required(capability, "a device's compute_capability") for capability in used),
            *framework["capabilities"],
        },
        key=key,
    )
    if not capabilities:
        yield Finding(
            f"The GPUs that {stack['name']} would use are unknown: CUDA shows none",
            "see gpu.count and driver.loaded",
            verdict=Verdict.INCONCLUSIVE,
            about=(f"gpus@{stack['name']}",),
        )
    ignored = [line for line in log_lines if IGNORED.search(line)]
    if ignored:
        yield Finding(
            f"{named(stack)} ignores a GPU: {ignored[0]}", _declare(stack), "\n".join(ignored)
        )
    for number in capabilities:
        yield from _fits(stack, framework, Gpu(number, number, ""), ignored)
    # It is slow but right: no fault.
    for line in log_lines:
        if "jit-compiled" in line:
            yield Evidence(f"{stack['name']} logged: {line}")


def _declare(stack: PlannedStack) -> str:
    return (
        f"declare a {title(stack)} release with code for this GPU instead of"
        f" {stack['version']}: ./gpufleet resolve --{framework_id(stack)} VERSION --gpu"
        " COMPUTE_CAPABILITY shows what fits"
    )


def code_of(stack: PlannedStack, framework: Framework) -> ComputeCapability:
    """The compute capabilities of the stack's code: as its build lists them, else as planned."""
    planned = stack["compute_capability"]
    build = framework["build"]
    names = (build.get("compute_capabilities") if build else None) or ()
    listed = [match.groups() for name in names if (match := LISTED_CODE.fullmatch(name))]
    if not framework_of(stack).lists_own_code or not listed:
        return planned
    code = {
        kind: [f"{major}.{minor}" for each, major, minor in listed if each == kind]
        for kind in ("sm", "compute")
    }
    return {"min": planned["min"], "native": code["sm"], "ptx": code["compute"]}


def _fits(
    stack: PlannedStack, framework: Framework, gpu: Gpu, ignored: list[str]
) -> Iterator[Finding | Evidence]:
    known, name = code_of(stack, framework), stack["name"]
    if known["min"] and key(gpu.capability) < key(known["min"]):
        if not ignored:
            yield Finding(
                f"A GPU of compute capability {gpu.capability} is below the minimum of"
                f" {name}, {known['min']}: {title(stack)} ignores it",
                _declare(stack),
            )
        return
    if any(runs_code_for(gpu.capability, target) for target in known["native"]):
        yield Evidence(f"{name}: machine code for compute capability {gpu.capability}")
    elif any(key(target) <= key(gpu.capability) for target in known["ptx"]):
        first = max((entry["first_s"] or 0 for entry in framework["matmul"]), default=0)
        yield Evidence(
            f"{name} has no machine code for compute capability {gpu.capability}: the driver"
            f" compiles PTX at the first use, which took {first} s, and is kept for verifications"
            f" in {framework.get('jit_cache') or 'no directory'}; each user's first program"
            " compiles it again, into that user's own cache"
            + (" (other users wait as long)" if first > SLOW_S else "")
        )
    else:
        yield Finding(
            f"{name} has neither machine code nor PTX for compute capability {gpu.capability}",
            _declare(stack),
        )
