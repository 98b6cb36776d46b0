"""Values worse than those of siblings, or than the fleet's own nights, as changes. Pure.

A card has one change for all of its measures, a host that is worse as a whole and a group have one
for all of their cards.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ParamSpec

from gpufleet.catalog import yardstick as facts
from gpufleet.documents.nightly import Standing
from gpufleet.documents.verdict import Verdict
from gpufleet.errors import Defect, guarded
from gpufleet.yardstick.values import ALL, ERRORS, Analysis, Finding

from .change import OUTLIER, Change, count_nights

CARD, GROUP, FLEET = "fleet.outlier", "fleet.group", "fleet"
KIND = "outlier"
CARD_REMEDY = (
    "see gpu.throttle, gpu.settings and gpu.pcie; compare the card in another slot;"
    " ./gpufleet verify --deep (temperatures and clocks under load)"
)
START_REMEDY = (
    "look for what slows the host: the disk or network file system that programs are read from,"
    " other work; see host.governor"
)
HOST_REMEDY = (
    "look for what slows all of its cards: other work, cooling, power limits or the processors;"
    " see gpu.throttle, gpu.settings and host.governor"
)
GROUP_REMEDY = "look for what these hosts share: a new driver, their room, rack, power or load"

Arguments = ParamSpec("Arguments")
# A card's key is its host and UUID; a group's is its name, and what is worse in it: all of its
# cards, some hosts, or cards of some hosts.
Key = tuple[str, str]


@dataclass
class Outliers:
    """The comparison with siblings in the night before, and tonight; a defect if it failed."""

    before: Analysis = field(default_factory=Analysis)
    tonight: Analysis = field(default_factory=Analysis)
    defect: Defect | None = None


def compared(
    compare: Callable[Arguments, tuple[Analysis, Analysis]],
    *arguments: Arguments.args,
    **named: Arguments.kwargs,
) -> Outliers:
    """Compare; where that fails, the cards are compared with their own past alone."""
    return guarded(
        "compared the cards with their siblings",
        lambda: Outliers(*compare(*arguments, **named)),
        lambda defect: Outliers(defect=defect),
    )


def changes(outliers: Outliers) -> Iterator[Change]:
    """Yield what is worse since tonight, and what is not any more."""
    if outliers.defect:
        yield _not_compared(outliers.defect)
    tonight = outliers.tonight
    last, now = _worst(outliers.before), _worst(tonight)
    for key, findings in now.items():
        known = last.get(key)
        # Between a fault and what is over lies a note.
        if known is None or findings[0].fails != known[0].fails:
            yield _change(key, findings)
    for key, findings in last.items():
        over = findings[0].fails and key not in now
        if over and all(_is_judged(each, tonight) for each in findings if each.fails):
            yield Change(
                KIND,
                key[0],
                _check(findings[0]),
                OUTLIER,
                "PASS",
                _recovered(findings[0], tonight),
                "",
                "good",
            )


def standing(tonight: Analysis, nights: int) -> Iterator[Standing]:
    """Yield a row for each card and group that is worse than the bound tonight.

    `nights`: how many are known; a card that has always been slow is slow in all of them.
    """
    for key, findings in _worst(tonight).items():
        if findings[0].fails:
            change = _change(key, findings)
            row: Standing = {
                "host": key[0],
                "check": _check(findings[0]),
                "verdict": OUTLIER,
                "cause": change.text,
                "remedy": change.remedy,
                "strikes": change.strikes,
                "known_as": change.known_as,
            }
            slow = [
                each.nights or nights
                for each in findings
                if each.fails and each.card and facts.is_speed(each.kind)
            ]
            if slow:
                row["slow_card"] = {"gpu": key[1], "nights": max(slow)}
            yield row


def causes_before(outliers: Outliers, host: str) -> list[str]:
    """The outliers of a host or a group in the night before, as silences compare them."""
    return [
        _known_as(findings)
        for key, findings in _worst(outliers.before).items()
        if key[0] == host and findings[0].fails
    ]


def _not_compared(defect: Defect) -> Change:
    return Change(
        KIND,
        FLEET,
        None,
        None,
        Verdict.INCONCLUSIVE.value,
        f"gpufleet failed while it {defect.step}: {defect.error}.",
        "report it, with what ./gpufleet history --distributions prints; the cards were compared"
        " with their own past",
        "note",
    )


def _worst(analysis: Analysis) -> dict[Key, list[Finding]]:
    """The findings of each card and group, the clearest first."""
    found: dict[Key, list[Finding]] = defaultdict(list)
    for each in analysis.findings:
        key = (each.host, each.card) if each.host else (each.group, f"{each.method} {each.card}")
        found[key].append(each)
    for findings in found.values():
        findings.sort(key=lambda each: (not each.fails, -abs(each.change / each.bound)))
    return found


def _is_judged(finding: Finding, tonight: Analysis) -> bool:
    """Return whether tonight says that a finding is over, and does not only lack the values."""
    host, card, measure = finding.host, finding.card, finding.measure
    if finding.method == "shift":
        whole = _is_whole(finding, tonight)
        shared = {
            name for each in tonight.findings if (each.card == ALL) == whole for name in each.hosts
        }
        return (host, card, measure) in tonight.judged and host not in shared
    if finding.method == "rise":
        return (host, card) in tonight.counted
    if finding.hosts:
        return 2 * len(_recovered_hosts(finding, tonight)) > len(finding.hosts)
    if not host:
        return any(spread.group == finding.group for spread in tonight.spreads)
    whole = any(each.host == host and each.card == ALL and each.fails for each in tonight.findings)
    return (host, card, measure) in tonight.levelled and not (whole and card != ALL)


def _is_whole(finding: Finding, tonight: Analysis) -> bool:
    """Return whether a finding is of a whole host, or of its only card."""
    key = (finding.host, ALL, finding.measure)
    return finding.card == ALL or key not in tonight.compared


def _recovered_hosts(finding: Finding, tonight: Analysis) -> set[str]:
    """The hosts that shared a finding and are not worse tonight, but for single cards of theirs."""
    worse = {
        name
        for each in tonight.findings
        if each.fails and each.kind == finding.kind
        for name in each.hosts or ((each.host,) if _is_whole(each, tonight) else ())
    }
    return {name for name, _, _ in tonight.judged} & set(finding.hosts) - worse


def _check(finding: Finding) -> str:
    return CARD if finding.host else GROUP


def _title(finding: Finding) -> str:
    if finding.hosts:
        return f"{len(finding.hosts)} hosts" if finding.hosts[1:] else f"Host {finding.hosts[0]}"
    if finding.card == ALL:
        return "All GPUs"
    if finding.card:
        return finding.card if "-" in finding.card else f"GPU {finding.card}"
    if finding.host:
        return "The host"
    return "The group"


def _recovered(finding: Finding, tonight: Analysis) -> str:
    if finding.hosts:
        hosts = sorted(_recovered_hosts(finding, tonight))
        return f"{_title(replace(finding, hosts=tuple(hosts)))} {_verb(hosts)} as before again."
    title, whole = _title(finding), finding.card == ALL
    if finding.method == "level":
        others = "the other hosts" if finding.card in {"", ALL} else "its siblings"
        return f"{title} {'are' if whole else 'is'} as {others}."
    if whole:
        return f"{title} are as before again."
    return f"{title} is as its siblings again." if finding.host else f"{title} is as before again."


def _verb(names: Sequence[str]) -> str:
    return "are" if names[1:] else "is"


def _change(key: Key, findings: Sequence[Finding]) -> Change:
    first = findings[0]
    more = len({each.measure for each in findings}) - 1
    others = f" ({more} more {'measure' if more == 1 else 'measures'} likewise)" if more else ""
    since = f" for {count_nights(first.nights)}" if first.nights else ""
    size = facts.amount(first.kind, abs(first.change))
    siblings = "siblings" if first.card not in {"", ALL} else "other hosts"
    against = {
        "shift": f"than before{since}, compared with {first.siblings} {siblings}",
        "level": f"than the usual of {first.siblings} {siblings}",
        "group": f"than before{since} on all of its {first.siblings} cards",
        "shared": f"than before{since}: {_hosts(first.hosts)}",
        "rise": f"than before{since}",
    }[first.method]
    bound = (
        facts.amount(first.kind, abs(first.bound))
        if math.isfinite(first.bound)
        else "not known after so few nights"
    )
    return Change(
        KIND,
        key[0],
        _check(first),
        None,
        facts.amount(first.kind, first.change, "+"),
        f"{_title(first)}: {first.measure} is {size} {_way(first)} {against}{others}; the bound is"
        f" {bound} ({first.group}).",
        _remedy(first),
        "bad" if first.fails else "note",
        max(first.nights, 1) if first.fails else 0,
        known_as=_known_as(findings),
    )


def _known_as(findings: Sequence[Finding]) -> str:
    """The cause of findings without figures: a sentence for each kind of values and direction.

    Which measure is the clearest one differs from night to night, and so do the hosts that share
    a finding: fewer of them are a part of it.
    """
    sentences = {
        f"{name}: {each.measure if each.kind == ERRORS else each.kind} is {_way(each)}"
        for each in [each for each in findings if each.fails] or findings
        for name in [f"Host {host}" for host in each.hosts] or [_title(each)]
    }
    return ". ".join(sorted(sentences))


def _way(finding: Finding) -> str:
    return "lower" if finding.change < 0 else "higher"


def _remedy(finding: Finding) -> str:
    """The remedy of a finding; that of a counter where errors rise."""
    counter = next((each for each in facts.counters() if each.name == finding.measure), None)
    if counter and finding.kind == ERRORS:
        return counter.remedy
    if not finding.host:
        return GROUP_REMEDY
    return {"": START_REMEDY, ALL: HOST_REMEDY}.get(finding.card, CARD_REMEDY)


def _hosts(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
