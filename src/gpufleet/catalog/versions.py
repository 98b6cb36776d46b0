"""Versions as people write them: compared, cut short, and matched by their beginning.

A version is a string of dotted numbers ("11.8", "8.6.0.163", "450.80.02"); TensorFlow's may end
in `rc0` or `.post1`. Nothing here raises on text that is no version: `is_version` asks first.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from packaging.version import InvalidVersion, Version

_NUMBERS = re.compile(r"[0-9]+(\.[0-9]+)*")


@lru_cache(maxsize=4096)
def key(version: str) -> Version:
    """What to sort and compare by. Raises `packaging.version.InvalidVersion` on other text."""
    return Version(version)


def is_version(text: str) -> bool:
    """Whether the text is a version at all."""
    try:
        key(text)
    except InvalidVersion:
        return False
    return True


def is_dotted(text: str) -> bool:
    """Whether the text is dotted numbers and nothing else."""
    return _NUMBERS.fullmatch(text) is not None


def short(version: str) -> str:
    """The first two parts: `11.8.0` is `11.8`; a lone `9` stays `9`."""
    return ".".join(version.split(".")[:2])


def major(version: str) -> int:
    """The first part as a number."""
    return int(version.split(".", maxsplit=1)[0])


def begins(version: str, prefix: str) -> bool:
    """Whether the version has the prefix's parts: 8.6.0.163 begins 8.6, and 8.60 does not.

    Parts are compared as numbers, so that driver 450.80.02 begins 450.80.2.
    """
    whole, start = _parts(version), _parts(prefix)
    return whole[: len(start)] == start


def within(version: str, rule: Mapping[str, Any]) -> bool:
    """Whether the version lies between a rule's `from` and `to`, both included."""
    return key(rule["from"]) <= key(version) <= key(rule["to"])


def newest(versions: Iterable[str]) -> str:
    """The highest of some versions. Raises ValueError on none."""
    return max(versions, key=key)


def nearest(wanted: str, known: Iterable[str], count: int = 4) -> list[str]:
    """The known versions that a reader most likely meant, best first.

    Those with the same beginning come first (1.4: 1.4.1 1.4.0), then those that look alike, then
    the next above and those below; release candidates last.
    """
    ordered = sorted(known, key=key, reverse=True)
    final = [version for version in ordered if not key(version).is_prerelease]
    if is_dotted(wanted):
        alike = [version for version in final if begins(version, wanted)]
        above = [version for version in final if key(version) > key(wanted)]
        beside = [*above[-1:], *[version for version in final if version not in above]]
    else:
        alike, beside = [], final
    alike += difflib.get_close_matches(wanted, final, n=count, cutoff=0.75)
    return list(dict.fromkeys([*alike, *beside, *ordered]))[:count]


def _parts(version: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in version.split(".")]
