"""Faults that came back on a card in one boot, though each time they were cleared.

An event has the number of its messages and the time of the last one: only what is printed once in
an incident, or more often than an incident can print it, counts as repeated.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from gpufleet.catalog import facts, xids
from gpufleet.components.base import subjects
from gpufleet.components.base.registry import Evidence, Finding
from gpufleet.documents.sections.host import Event
from gpufleet.documents.text import plain
from gpufleet.documents.verdict import Verdict


def repeats(events: Sequence[Event], found: Sequence[Finding | Evidence]) -> Iterator[Finding]:
    """A finding for each card with repeated incidents, where `found` has none of that card."""
    blamed = {about for item in found if isinstance(item, Finding) for about in item.about}
    by_card = defaultdict[str | None, list[Event]](list)
    for event in events:
        if event["kind"] == "xid":
            by_card[event["address"]].append(event)
    for address, own in by_card.items():
        about, said = subjects.card(address), [*_repeated(own)]
        if address and said and blamed.isdisjoint({*about, *subjects.memory(address)}):
            texts = [text for text, _ in said]
            yield Finding(
                f"{address} had the same failure again in this boot: {'; '.join(texts)}; each was"
                " cleared",
                xids.remedy("repeated", address if plain(address) else "ADDRESS"),
                said[-1][1],
                Verdict.INCONCLUSIVE,
                about,
            )


def _repeated(events: Sequence[Event]) -> Iterator[tuple[str, str]]:
    """The events that a card had too often, each with its last line."""
    limits = facts.document("xids/judgement.yml")["repeats"]
    counts: Counter[tuple[str, int]] = Counter()
    lines: dict[tuple[str, int], tuple[str, str]] = {}
    for event in events:
        code = event["code"] or 0
        action = xids.recovery_action(event["text"]) if code == xids.RECOVERY else None
        if action and "from 0x0 " in event["text"]:
            key, name = ("actions", action[0]), xids.recovery_rule(*action)[0]
        else:
            meaning = xids.meaning(code, event["text"])
            if meaning.effect != "fail":
                continue
            key, name = ("messages", code), meaning.name
        counts[key] += event["count"]
        lines[key] = f"Xid {code} ({name})", event["text"]
    for key, count in counts.items():
        if (most := limits[key[0]].get(key[1])) and count >= most:
            name, line = lines[key]
            yield f"{name}, {count} times", line
