"""Known vulnerabilities of NVIDIA's container toolkit (catalog/data/container_toolkit.yml)."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from . import facts, versions

# A package's version: an epoch, the release, a candidate's mark (1.18.0~rc.1), the revision.
_PACKAGE = re.compile(
    r"(?:\d+:)?(\d{1,9}(?:\.\d{1,9}){0,5})(?:~rc\.?(\d{1,9}))?(?:-[\w.+~]+)?", re.ASCII
)


@dataclass(frozen=True)
class Vulnerability:
    """One CVE: the first release without it, and where that is stated."""

    cve: str
    fixed: str
    source: str


def release(package: object) -> str | None:
    """The release that a package's version contains: `1.17.8-1` is 1.17.8; None: none is known."""
    found = _PACKAGE.fullmatch(package) if isinstance(package, str) else None
    return found and found[1] + (f"rc{found[2]}" if found[2] else "")


def known() -> list[Vulnerability]:
    """All vulnerabilities, the one that was fixed last at the end."""
    document = facts.document("container_toolkit.yml")
    return [
        Vulnerability(cve, str(row["fixed"]), document["sources"][row["source"]])
        for row in document["vulnerabilities"]
        for cve in row["cves"]
    ]


def vulnerabilities(version: str, accepted: Collection[str] = ()) -> list[Vulnerability]:
    """The known vulnerabilities of a release, without those that are accepted."""
    at = versions.key(version)
    return [each for each in known() if at < versions.key(each.fixed) and each.cve not in accepted]


def first_without(found: list[Vulnerability]) -> str:
    """The first release that has none of these vulnerabilities."""
    return versions.newest(each.fixed for each in found)
