"""Values of gathered facts as the catalogue keeps them. Pure."""

from __future__ import annotations

import re
from typing import Any

Row = dict[str, Any]


def clean(value: Any) -> Any:
    """The value with `unknown` as null and readable references to index files, at any depth."""
    if isinstance(value, dict):
        result: Row = {}
        for key, part in value.items():
            result[str(key)] = clean(part)
            if isinstance(part, str) and (match := re.fullmatch(r"unknown \((.*)\)", part)):
                result[f"{key}_note"] = match.group(1)
        return result
    if isinstance(value, list):
        return [clean(part) for part in value]
    if isinstance(value, str):
        if value == "unknown" or value.startswith("unknown ("):
            return None
        return re.sub(r"\bstored (public )?(file|id)s?( ids?)?(?= \d)", "index file", value)
    return value


def floor(value: Any) -> str | None:
    """`>=450.80.02` as `450.80.02`; text after the figure is dropped; None without a figure."""
    if not isinstance(value, str) or value.startswith("not applicable"):
        return None
    match = re.match(r"(?:>=)?(\d[\d.]*)", value)
    return match.group(1) if match else None
