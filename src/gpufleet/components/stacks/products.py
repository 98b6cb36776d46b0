"""The products that each stack's framework computes on each device, and the sum of all results."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from gpufleet.catalog import facts
from gpufleet.components.base import subjects
from gpufleet.components.base.holders import addresses, busy_finding, used_by_others
from gpufleet.components.base.host import Host
from gpufleet.components.base.items import for_each
from gpufleet.components.base.registry import Evidence, Finding, check, no_stacks, wrong_results
from gpufleet.components.base.remedies import Component, otherwise, provision, see
from gpufleet.components.base.remedies import stack as parts_of
from gpufleet.components.base.sections import Sections
from gpufleet.components.host import processor
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.gpu import SmiDevice
from gpufleet.documents.sections.stacks import Framework, Product, TowerSum
from gpufleet.documents.text import brief
from gpufleet.documents.verdict import Verdict
from gpufleet.frameworks import framework_of

from .framework_runs import (
    LISTED,
    NotRun,
    Ran,
    ended_in,
    gpu_number,
    is_on_requested_device,
    library_subject,
    named,
    runs,
    stopped_before,
)
from .installed import installed

# The error of a loader that does not find a library.
ABSENT = re.compile(r"(?<![\w.+-])(lib[\w.+-]+\.so[\d.]*): cannot open shared object file")
# Traces of a processor without an instruction: the signal, or what TensorFlow, jaxlib and numpy
# find themselves.
NO_INSTRUCTION = re.compile(
    r"killed by SIGILL|compiled to use (\S+) instructions, but these aren't available"
    r"|built using (\S+) instructions, which your CPU|baseline optimizations: \s*\(([^)]+)\)"
)
# Where to look if a framework uses no GPU at all.
NO_GPU = (
    "see stack.build, stack.libraries, driver.loaded, driver.cuda, driver.nodes and"
    " gpu.count; if all of them pass: reboot the host"
)


def _does_not_run(plan: Plan, observed: Sections, run: NotRun) -> Finding:
    if run.framework is None or run.framework["state"] != "failed":
        return run.finding
    name, error = run.stack["name"], run.framework["error"]
    starts = {stack["name"]: found["start"] for stack, found in installed(plan, observed)}
    absent, start = ABSENT.search(error or ""), starts[name]
    # Without its Python no framework runs: stack.python reports it.
    about = (
        (library_subject(run.stack, absent[1]),)
        if absent and not (start and start["error"])
        else (subjects.stopped(name),)
    )
    finding = (
        busy_finding(name, error, observed)
        or _instructions(observed, run)
        or Finding(
            f"{named(run.stack)} does not run: {error}",
            otherwise(
                provision(plan, *parts_of(plan, run.stack)),
                "if stack.files and toolkit.files pass, the host prevents it: check"
                " noexec in findmnt, ulimit -a, free",
            ),
            about=about,
        )
    )
    return replace(finding, entails=(subjects.stopped(name),))


def _instructions(observed: Sections, run: NotRun) -> Finding | None:
    """The finding of a framework that used an instruction which the processor does not have."""
    error = (run.framework and run.framework["error"]) or ""
    found = NO_INSTRUCTION.search(error)
    if not found:
        return None
    host, stack = Host(observed.snapshot), run.stack
    framework, version = framework_of(stack).id, stack["version"]
    names = processor.lacking(host, framework, version)
    which = processor.shown(names) or next(filter(None, found.groups()), "")
    lack = f"{which}, which the wheel was built for" if which else "an instruction of a package"
    needs = processor.shown(facts.cpu_features(framework, version))
    if not which and needs and host.cpu_features is None:
        lack += f" (this wheel needs {needs}: see the flags in /proc/cpuinfo)"
    return Finding(
        f"{named(stack)} does not run: {error.rstrip(': ')}: the processor lacks {lack}",
        processor.REMEDY
        + ("" if which else "; journalctl -k | grep 'invalid opcode' names the file"),
        about=(subjects.stopped(stack["name"]),),
    )


@check("stack.matmul", reads=("stacks",), skip_reason=no_stacks)
@for_each(runs(lambda framework: framework["matmul"], not_run=_does_not_run))
def matmul(plan: Plan, observed: Sections, run: Ran[list[Product]]) -> Iterator[Finding | Evidence]:
    """Matrices are multiplied on the declared devices only, with exact results."""
    stack, framework, results = run
    # The stages after the products have checks of their own.
    if (
        framework["state"] != "ok"
        and "convolution" not in framework
        and not ended_in(stack, framework)
    ):
        yield stopped_before(plan, stack, framework)
    yield from _slower_than_siblings(stack["name"], results, observed)
    yield from _without_numpy(
        products(plan, observed, stack["name"], results), stack["name"], framework
    )
    total: TowerSum = framework["tower_sum"] or {
        "error": "it was not computed",
        "wrong": None,
        "devices": [],
    }
    busy = busy_finding(f"{stack['name']} on all devices together", total["error"], observed)
    # A busy GPU has no result to add.
    lacking = any(busy_device("", entry, observed) for entry in results)
    if total["error"] and not total["wrong"] and (busy or lacking):
        yield from [busy] if busy else []
    elif total["error"] or total["wrong"] != 0:
        yield Finding(
            f"{stack['name']}: the sum of all devices' results is wrong or missing"
            f" ({total['error'] or wrong_results(total['wrong'], 'row')})",
            "see the devices' own results above",
            about=() if total["devices"] else _without_devices(stack["name"], framework, results),
        )


def _without_devices(name: str, framework: Framework, results: list[Product]) -> subjects.Subjects:
    """Why no device has a result to add: arrays, errors on each GPU, or no GPU at all."""
    if subject := exchanged(name, framework):
        return (subject,)
    failed = all(entry["error"] and not LISTED.match(entry["error"]) for entry in results)
    each = tuple(f"result/{gpu_number(entry)}@{name}" for entry in results)
    return each if each and failed else (f"gpus@{name}",)


def _on_card(entry: Product, observed: Sections) -> subjects.Subjects:
    """An error on a GPU that the framework uses, by the card's address."""
    if not entry["error"] or LISTED.match(entry["error"]) or not gpu_number(entry):
        return ()
    own = addresses(observed, gpu_number(entry))
    return subjects.computing(own.pop(), entry["error"]) if len(own) == 1 else ()


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
            yield (
                replace(
                    finding,
                    about=finding.about or _on_card(entry, observed),
                    entails=tuple(entails),
                )
                if isinstance(finding, Finding)
                else finding
            )


# A product of a moment is no measurement: one that takes more than twice as long as those of the
# siblings is no matter of chance. The same on GPUs in gpu.throughput, which measures.
LEAST_SHARE = 0.4


def _slower_than_siblings(
    name: str, entries: list[Product], observed: Sections
) -> Iterator[Finding]:
    """GPUs on which one product takes far longer than on most others of their model."""
    data = observed.read_elsewhere()
    listed = data["smi"]["devices"] if "smi" in data else []
    cards: dict[str | None, SmiDevice] = {card["address"]: card for card in listed}
    places = {
        str(device["index"]): cards.get(device["address"])
        for run in (data["compute"]["runs"] if "compute" in data else [])
        for device in run["devices"]
    }
    models: dict[object, list[tuple[Product, float, SmiDevice]]] = defaultdict(list)
    for entry in entries:
        card = places.get(gpu_number(entry))
        if card and not entry["error"] and (rate := entry["tflops"]):
            conditions = (card["name"], card["power_limit_w"], entry["n"], entry.get("precision"))
            models[conditions].append((entry, rate, card))
    for own in models.values():
        usual = sorted(rate for _, rate, _ in own)[len(own) // 2]
        for entry, rate, card in own:
            if rate < LEAST_SHARE * usual and used_by_others(card, observed) is None:
                yield Finding(
                    f"{_where(name, entry)} multiplies at {rate} TFLOP/s, GPUs of the same model"
                    f" and settings in this host reach {usual}",
                    "see gpu.throughput, gpu.throttle and gpu.pcie; then ./gpufleet verify again",
                    brief(entry),
                    Verdict.INCONCLUSIVE,
                    about=subjects.slow(card["address"]),
                )


def _planned(plan: Plan, name: str) -> list[Component]:
    """The stack of that name; none of a container, whose name the host reports."""
    return [Component("stack", row["name"]) for row in plan["stacks"] if row["name"] == name]


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
        yield Finding(
            f"{where} could not multiply: {entry['error']}",
            "see gpu.count, driver.loaded and stack.libraries" if not none else NO_GPU,
            brief(entry),
            about=()
            if not listed
            else (f"gpus@{name}",)
            if none
            else (f"gpu/{gpu_number(entry)}@{name}",),
        )
    elif not is_on_requested_device(entry):
        yield Finding(
            f"{where} was computed on {entry['device'] or 'an unknown device'} instead",
            see("stack.libraries", provision(plan, *_planned(plan, name))),
            brief(entry),
        )
    elif entry["wrong"] != 0:
        yield Finding(
            f"{where} gave {wrong_results(entry['wrong'], 'row')}"
            + ("" if entry["wrong"] is None else f" of {entry['n']}"),
            "take the device out of service: wrong numbers from exact operands are a hardware"
            " or library fault",
            brief(entry),
        )
    elif not entry["tflops"]:
        yield Finding(f"{where} has no measured throughput", "see gpu.throughput", brief(entry))
    else:
        yield Evidence(
            f"{where}: {entry['n']}x{entry['n']} exact on {entry['device']},"
            f" {entry['tflops']} TFLOP/s, first {entry['first_s']} s"
        )
