"""The differences of two sets of documents, for people: each kind of change once, in three lines."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import takewhile

from tests.golden.documents import Values

# A word, or a character between words.
WORD = re.compile(r"[\w/:-]+(?:\.[\w/:-]+)*|.", re.DOTALL)
# The most changes that are shown, and the words that are shown before, of and after a change.
MOST, AROUND, CHANGED = 12, 16, 60
ABSENT = "(absent)"

# The name of a document, a place in it, and the texts there before and after.
Change = tuple[str, str, str, str]


def differences(before: Mapping[str, Values], after: Mapping[str, Values]) -> list[str]:
    """The changes as lines, the most frequent first: where, the old text, the new one."""
    groups: dict[Hashable, list[Change]] = {}
    for name in sorted(before.keys() | after.keys()):
        for change in changes(name, before.get(name), after.get(name)):
            groups.setdefault(kind(change), []).append(change)
    lines = []
    for group in sorted(groups.values(), key=len, reverse=True)[:MOST]:
        name, place, *texts = group[0]
        lines.append(f"{name} / {place}{others(group)}" if place else f"{name}{others(group)}")
        old, new = (WORD.findall(text.replace("\n", "\\n")) for text in texts)
        lines += [f"-{cut(old, *ends(old, new))}", f"+{cut(new, *ends(old, new))}"]
    if (rest := len(groups) - MOST) > 0:
        lines.append(f"... and {rest} more changes")
    return lines


def changes(name: str, old: Values | None, new: Values | None) -> Iterator[Change]:
    """Each place of a document whose value changed; a whole document is one place."""
    if old is None or new is None:
        old, new = ({} if each is None else {"": "(document)"} for each in (old, new))
    for place in sorted(old.keys() | new.keys()) if old != new else ():
        before, after = (each.get(place, ABSENT) for each in (old, new))
        if before != after:
            yield name, place, text(before), text(after)


def text(value: object) -> str:
    """A value as people read it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def kind(change: Change) -> Hashable:
    """The key of alike changes: words within sentences, otherwise the place and the values."""
    _, place, *texts = change
    if not all(" " in each for each in texts):
        return place, *texts
    old, new = map(WORD.findall, texts)
    start, end = ends(old, new)
    return tuple(old[start : len(old) - end]), tuple(new[start : len(new) - end])


def ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """The numbers of words before and after those that differ."""
    start = alike(old, new)
    return start, alike(old[start:][::-1], new[start:][::-1])


def alike(one: Sequence[str], other: Sequence[str]) -> int:
    """The number of words with which both begin."""
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))])


def cut(words: Sequence[str], start: int, end: int) -> str:
    """A text with few of the words that did not change."""
    head, part, tail = words[:start], words[start : len(words) - end], words[len(words) - end :]
    shown = ["..."] * (len(head) > AROUND) + head[-AROUND:] + part[:CHANGED]
    shown += ["..."] * (len(part) > CHANGED) + tail[:AROUND] + ["..."] * (len(tail) > AROUND)
    return "".join(shown)


def others(group: Sequence[Change]) -> str:
    """The number of other documents that have the same change, by area."""
    names = dict.fromkeys(name for name, *_ in group if name != group[0][0])
    areas = Counter(name.partition(": ")[0] for name in names)
    counts = ", ".join(f"{count} of {area}" for area, count in areas.most_common(4))
    return f" (and {areas.total()} more: {counts})" if areas else ""
