"""The remedies of a host that a person would follow and that cost more than the fault."""

from __future__ import annotations

from collections.abc import Iterable

from .healthy_host import Document


def harmful(checks: dict[str, Document], words: Iterable[str]) -> list[str]:
    """The check and the remedy of each finding whose remedy has one of these words."""
    return [
        f"{name}: {row['remedy']}"
        for name, row in checks.items()
        if row["verdict"] not in {"PASS", "NOT-DECLARED"} and not row.get("explained_by")
        if any(word in row["remedy"] for word in words)
    ]
