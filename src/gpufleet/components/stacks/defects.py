"""Defects of CUDA's parts: refused or noted where a stack or toolkit meets one on its GPUs.

Refused is what gives a framework's own programs wrong results and has a remedy; the rest is noted
(rules.yml, cuda_defects).
"""

from __future__ import annotations

from functools import cache, partial

from packaging.requirements import Requirement

from gpufleet.catalog import facts, gpus, versions
from gpufleet.catalog.records import Build, Toolkit
from gpufleet.components.base import alternatives
from gpufleet.components.base.context import ResolveContext
from gpufleet.components.cuda.toolkit_plan import Chosen
from gpufleet.documents.problems import Code
from gpufleet.documents.types import Row

from .plan import Stack


def check_toolkit(context: ResolveContext, chosen: Chosen) -> None:
    """Note the defects of a toolkit's parts that any program uses."""
    for rule in facts.rules("cuda_defects"):
        if "toolkit" in rule["users"] and _affected(chosen.toolkit.version, rule["toolkits"]):
            for card in _cards(context, rule):
                context.note(
                    f"CUDA {chosen.toolkit.version}: on {card.text}, its {rule['part']} "
                    f"{rule['defect']}{_corrected(rule)}"
                )


def check_stack(context: ResolveContext, stack: Stack, chosen: Chosen | None) -> None:
    """Refuse or note the defects of the CUDA that a stack has."""
    build = stack.build
    for rule in facts.rules("cuda_defects"):
        verdict = rule["users"].get(build.framework)
        if verdict is None or (chosen and "toolkit" in rule["users"]):
            continue
        have = _has(rule, build, chosen)
        if have is None:
            continue
        cards = _cards(context, rule)
        if chosen:
            cards = [card for card in cards if not gpus.newer_than_toolkit(card, chosen.toolkit)]
        for card in cards:
            if verdict == "refuse":
                _refuse(context, stack, rule, card, have, chosen=chosen)
                return
            context.note(
                f"{stack.spec.name}: on {card.text}, {have} {rule['defect']}{_corrected(rule)}"
            )
        if verdict == "refuse" and not context.gpus and not context.spec.without_gpu:
            context.note(
                f"{stack.spec.name}: on GPUs of compute capability {rule['gpus']['from']} "
                f"and newer, {have} {rule['defect']}{_corrected(rule)}"
            )


def _has(rule: Row, build: Build, chosen: Chosen | None) -> str | None:
    """The affected part that a stack has, in words; None: it has another version, or it floats."""
    part, toolkits = rule["part"], rule["toolkits"]
    if chosen:
        version = chosen.toolkit.version
        return f"{part} of CUDA {version}" if _affected(version, toolkits) else None
    if build.variant and not build.cuda_pins:
        # A variant of PyTorch tells only X.Y of its CUDA, and no release of it has a corrected one.
        same = any(versions.short(each["from"]) == build.cuda for each in toolkits)
        return f"{part} of CUDA {build.cuda}" if same else None
    for pin, exact in map(_pin, build.cuda_pins):
        if exact and part.lower() in pin.extras and _affected(exact, toolkits):
            return f"{part} of CUDA {exact}"
        if exact and _affected(exact, rule["packages"].get(pin.name, [])):
            return f"{part} {exact}"
    return None


@cache
def _pin(text: str) -> tuple[Requirement, str | None]:
    """A pin of the catalog, parsed once, and the one version that it allows."""
    pin = Requirement(text)
    return pin, next((each.version for each in pin.specifier if each.operator == "=="), None)


def _affected(version: str, ranges: list[Row]) -> bool:
    return any(versions.within(version, each) for each in ranges)


def _cards(context: ResolveContext, rule: Row) -> list[gpus.Gpu]:
    return [card for card in context.gpus if versions.within(card.capability, rule["gpus"])]


def _corrected(rule: Row) -> str:
    """Which CUDA releases have the correction."""
    first = [_after(each["to"]) for each in rule["toolkits"]]
    return f"; corrected in CUDA {', '.join(each for each in first if each)}"


def _after(version: str) -> str:
    """The release after the last affected one of a series."""
    return f"{versions.short(version)}.{int(version.split('.')[2]) + 1}"


def _refuse(
    context: ResolveContext,
    stack: Stack,
    rule: Row,
    card: gpus.Gpu,
    have: str,
    *,
    chosen: Chosen | None,
) -> None:
    own = f"{stack.spec.where}.cuda"
    context.refuse(
        Code.CUDA_MISMATCH,
        f"on {card.text}, {have} {rule['defect']}",
        own,
        partial(_remedy, context, stack, rule, own, chosen),
    )


def _remedy(
    context: ResolveContext, stack: Stack, rule: Row, own: str, chosen: Chosen | None
) -> str:
    """Another toolkit, or the packages, or another release."""
    code, spec, ways = Code.CUDA_MISMATCH, stack.spec, []
    first = _first_usable(context, stack.build, chosen.toolkit) if chosen else None
    if chosen and first and alternatives.accepted(context, spec, code, cuda=first.version):
        # A release that is declared in full keeps the whole toolkit to it.
        pinned = [want.where for want in chosen.wants if want.cuda != chosen.short]
        where = ", ".join(dict.fromkeys(pinned)) if chosen.short == first.short else ""
        ways.append(f'declare cuda: "{first.version}" or newer in {where or own}')
    for keys in (("cuda",), ("cuda", "cudnn")):
        if alternatives.accepted(context, spec, code, **dict.fromkeys(keys)):
            ways.append(f"remove {' and '.join(keys)}: its packages have another {rule['part']}")
            break
    others = alternatives.nearest(stack.build.version, facts.releases(spec.framework, context.arch))
    if not ways and (found := alternatives.release(context, spec, code, others)):
        ways.append(f"declare {stack.build.title} {found}")
    return ", or ".join(ways) or alternatives.none_fits(stack.build.title)


def _first_usable(context: ResolveContext, build: Build, toolkit: Toolkit) -> Toolkit | None:
    """The first toolkit after one that serves a build on all of the host's GPUs, without a defect
    for which it would be refused."""
    refused = [
        rule
        for rule in facts.rules("cuda_defects")
        if rule["users"].get(build.framework) == "refuse" and _cards(context, rule)
    ]
    for each in facts.toolkits(context.arch):
        if (
            versions.key(each.version) > versions.key(toolkit.version)
            and each.installer is not None
            and each.row["channel"] == "ga"
            and build.serves(each.version)
            and not any(
                gpus.older_than_toolkit(card, each) or gpus.newer_than_toolkit(card, each)
                for card in context.gpus
            )
            and not any(_affected(each.version, rule["toolkits"]) for rule in refused)
        ):
            return each
    return None
