"""Compare, shorten and match version numbers. Pure.

A version is a string of dotted numbers ("11.8", "8.6.0.163", "450.80.02"); TensorFlow's may end
in `rc0` or `.post1`. Check other text with `is_version` first: `key` raises on it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from packaging.version import Version

from gpufleet.documents.text import is_number

# No release has more digits in a part, and Python reads no number of thousands of them.
_NUMBERS = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18}){0,9}")
_EXTRAS = re.compile(r"\[[^][]*\]")


@lru_cache(maxsize=4096)
def key(version: str) -> Version:
    """The sort key of a version. Raises `packaging.version.InvalidVersion` on other text."""
    return Version(version)


def is_version(text: str) -> bool:
    """Return whether the text is a version."""
    try:
        key(text)
    except ValueError:  # InvalidVersion, or more digits than Python reads
        return False
    return True


def is_dotted(text: str) -> bool:
    """Return whether the text is dotted numbers and nothing else."""
    return _NUMBERS.fullmatch(text) is not None


def short(version: str) -> str:
    """The first two parts: `11.8.0` is `11.8`; a lone `9` stays `9`."""
    return ".".join(version.split(".")[:2])


def major(version: str) -> int:
    """The first part as a number."""
    return int(version.split(".", maxsplit=1)[0])


def has_prefix(version: str, prefix: str) -> bool:
    """Return whether the version starts with the prefix's parts: 8.6 begins 8.6.0.163, not 8.60.

    Parts are compared as numbers: driver 450.80.02 has prefix 450.80.2.
    """
    whole, start = _parts(version), _parts(prefix)
    return whole[: len(start)] == start


def within(version: str, rule: Mapping[str, Any]) -> bool:
    """Return whether the version lies between a rule's `from` and `to`, both included."""
    return key(rule["from"]) <= key(version) <= key(rule["to"])


def newest(versions: Iterable[str]) -> str:
    """The highest version. Raises ValueError if there is none."""
    return max(versions, key=key)


def nearest(wanted: str, known: Iterable[str], count: int = 4) -> list[str]:
    """The known versions most similar to the wanted one, best first.

    Those with the same prefix come first (1.4: 1.4.1 1.4.0), then the others of its X.Y, the next
    higher and the lower ones; release candidates last. Of other text the version in it counts
    (torch==2.6.0, jax[cuda12]==0.5.3), or its likeness.
    """
    ordered = sorted(known, key=key, reverse=True)
    final = [version for version in ordered if not key(version).is_prerelease]
    plain = _NUMBERS.search(_EXTRAS.sub("", wanted))
    alike = [] if is_dotted(wanted) else difflib.get_close_matches(wanted, final, count, 0.75)
    beside = final
    if plain:
        for prefix in dict.fromkeys((plain[0], short(plain[0]))):
            alike += [version for version in final if has_prefix(version, prefix)]
        above = [version for version in final if key(version) > key(plain[0])]
        beside = [*above[-1:], *[version for version in final if version not in above]]
    return list(dict.fromkeys([*alike, *beside, *ordered]))[:count]


@lru_cache(maxsize=1024)
def _parts(version: str) -> tuple[int | str, ...]:
    return tuple(int(part) if is_number(part) else part for part in version.split("."))
