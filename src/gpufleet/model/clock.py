"""The time as documents have it."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> str:
    """The current time in the documents' format."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
