"""The NVLink domain of a declared rack, which all hosts of the rack share.

The hosts that are verified together are compared: one host alone has nothing to be compared with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpufleet.catalog.smi import no_value
from gpufleet.components.base import subjects
from gpufleet.components.base.registry import (
    HARDWARE,
    Evidence,
    Finding,
    check,
    no_gpus_declared,
    required,
    shortened,
)
from gpufleet.components.base.sections import Sections
from gpufleet.components.gpu.nvlink_domain import Place, place_of
from gpufleet.documents.plan import ExpectedFabric, Plan, RackPlace
from gpufleet.documents.sections.gpu import SmiDevice
from gpufleet.documents.verdict import Verdict

from .identity import cards, unknown_without_cards
from .smi_elements import NO_MIG, label, virtual

WHERE = "gpu_expect.fabric"
SWITCH_TRAYS = (
    "have the partitions of the rack's NVLink fabric and this host's cables checked (the NVLink"
    " management software of the switch trays); see gpu.nvlink and kernel.log"
)


def _not_declared(plan: Plan) -> str | None:
    if skip_reason := no_gpus_declared(plan):
        return skip_reason
    return None if plan["expect"].get("fabric") else f"{WHERE}: not set"


@check("gpu.rack", reads=("smi",), repair=HARDWARE, skip_reason=_not_declared)
def rack(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The GPUs are in the NVLink domain of the hosts that declare the same rack."""
    declared = required(plan["expect"].get("fabric"), WHERE)
    yield from unknown_without_cards(observed, "The NVLink domain of the GPUs")
    places: dict[Place, list[SmiDevice]] = {}
    for card in cards(observed):
        if place := place_of(card):
            places.setdefault(place, []).append(card)
        else:
            yield from _nowhere(card, declared)
    for place, own in places.items():
        yield from _place(place, own, declared)
    domains = Counter({place.domain: len(own) for place, own in places.items()})
    if declared["rack"] and domains:
        yield from _among_hosts(declared, list(places), plan.get("rack") or [])
    yield Evidence(
        "; ".join(
            f"{_named(own)}: domain {place.domain}, clique {place.clique}"
            for place, own in places.items()
        )
    )


def _named(own: Sequence[SmiDevice]) -> str:
    return shortened([label(card) for card in own])


def _is(own: Sequence[object]) -> str:
    return "is" if len(own) == 1 else "are"


def _nowhere(card: SmiDevice, declared: ExpectedFabric) -> Iterator[Finding | Evidence]:
    """A GPU that reports no place."""
    elements = card.get("elements") or {}
    state = elements.get("fabric/state", "")
    if virtual(card) or elements.get("mig_mode/current_mig", "N/A") not in NO_MIG:
        yield Evidence(f"{label(card)} is split: its NVLink domain is not judged")
    elif state and no_value(state):
        yield Finding(
            f"{label(card)} is in no NVLink domain (fabric state: {state}), declared is"
            f" {_declared(declared)}",
            SWITCH_TRAYS,
            entails=subjects.card(card["address"], "fabric"),
        )
    else:
        yield Finding(
            f"{label(card)} does not report its NVLink domain"
            + (f" (fabric state: {state})" if state else ""),
            "see gpu.fabric; drivers from 570.124 on report it (on the host: nvidia-smi -q, under"
            " Fabric)",
            verdict=Verdict.INCONCLUSIVE,
            about=subjects.reported(card["address"], "fabric state")
            if state not in {"", "Completed"}
            else subjects.card(card["address"], "fabric"),
        )


def _declared(declared: ExpectedFabric) -> str:
    values = (f"{key}: {value}" for key, value in declared.items() if value is not None)
    return f"{WHERE}: {{{', '.join(values)}}}"


def _place(place: Place, own: list[SmiDevice], declared: ExpectedFabric) -> Iterator[Finding]:
    """Findings about a place that contradicts the declaration by itself."""
    if not place.in_rack:
        yield Finding(
            f"{_named(own)} {_is(own)} in an NVLink domain of this host alone (its UUID is zero),"
            f" declared is {_declared(declared)}",
            f"{SWITCH_TRAYS}; or correct {WHERE}",
            entails=(subjects.DOMAINS,),
        )
    elif declared["clique"] is not None and place.clique != str(declared["clique"]):
        yield Finding(
            f"{_named(own)} {_is(own)} in clique {place.clique}, declared is {_declared(declared)}",
            f"{SWITCH_TRAYS}; or correct {WHERE}.clique",
            entails=(subjects.DOMAINS,),
        )


def _among_hosts(
    declared: ExpectedFabric, places: list[Place], rack: list[RackPlace]
) -> Iterator[Finding | Evidence]:
    """The domain, then the clique, that most hosts of the rack have."""
    name = declared["rack"]
    total = sum(row["hosts"] for row in rack)
    if total < 2:
        yield Evidence(f"no other host of rack {name} was verified with this one")
        return
    domains: Counter[str] = Counter()
    for row in rack:
        domains[row["domain"]] += row["hosts"]
    domain = _most(domains)
    if domain is None:
        yield _undecided(name, "NVLink domains", domains, {place.domain for place in places})
    others = sorted({place.domain for place in places if domain and place.domain != domain})
    if others:
        yield Finding(
            f"The GPUs are in NVLink domain {shortened(others)}; {domains[domain or '']} of {total}"
            f" hosts of rack {name} are in {domain}",
            f"{SWITCH_TRAYS}; if this host is in another rack, correct {WHERE}.rack",
            entails=(subjects.DOMAINS,),
        )
    # Hosts that declare their clique are in a rack that is partitioned.
    cliques = {
        row["clique"]: row["hosts"] for row in rack if row["domain"] == domain and row["clique"]
    }
    if domain and declared["clique"] is None and cliques:
        yield from _cliques(name, [each for each in places if each.domain == domain], cliques)
    yield Evidence(f"compared with {total - 1} other hosts of rack {name}")


def _cliques(
    name: str | None, places: list[Place], cliques: dict[str, int]
) -> Iterator[Finding | Evidence]:
    clique = _most(cliques)
    declare = f"if the rack is partitioned, declare {WHERE}.clique of each of its hosts"
    if clique is None:
        own = {place.clique for place in places}
        yield _undecided(name, "cliques", cliques, own, f"; {declare}")
        return
    others = sorted({place.clique for place in places if place.clique != clique})
    if others:
        yield Finding(
            f"The GPUs are in clique {shortened(others)} of their NVLink domain; {cliques[clique]}"
            f" of {sum(cliques.values())} hosts of rack {name} are in clique {clique}",
            f"{SWITCH_TRAYS}; {declare}",
            entails=(subjects.DOMAINS,),
        )


def _most(counts: dict[str, int]) -> str | None:
    """The value that more than half have; None if no value has a majority."""
    common = max(counts, key=lambda each: counts[each])
    return common if 2 * counts[common] > sum(counts.values()) else None


def _undecided(
    name: str | None, what: str, counts: dict[str, int], own: set[str], more: str = ""
) -> Finding | Evidence:
    """The result where no majority decides: a note if no two others agree against this host."""
    listed = [f"{value} ({number} hosts)" for value, number in sorted(counts.items())]
    cause = (
        f"The hosts of rack {name} are in different {what}, and no one has most of them:"
        f" {shortened(listed)}"
    )
    if len(own) == 1 and max(number for value, number in counts.items() if value not in own) < 2:
        return Evidence(f"{cause}; that other host may be the wrong one: verify more hosts of it")
    return Finding(
        cause,
        f"{SWITCH_TRAYS}{more}",
        verdict=Verdict.INCONCLUSIVE,
    )
