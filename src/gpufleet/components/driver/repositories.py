"""Package repositories: which of them stop every command of apt or dnf, whoever wrote them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpufleet.catalog import facts, versions
from gpufleet.components.base.driver_state import Fault, part, texts
from gpufleet.components.base.host import Host, mappings
from gpufleet.documents.plan import Plan
from gpufleet.documents.text import cut, gpufleet, quoted

from .packages import removed_by_run, repository_conflicts

# apt's last line wherever it cannot read a source.
SUMMARY = "could not be read"
# Files that a message names.
_FILES = re.compile(r"/etc/(?:apt|yum\.repos\.d)/(?:[\w.-]+/)*([\w.-]+\.\w+)")
SHOWN = 400  # characters of what apt or dnf says


def stopping(plan: Plan, host: Host) -> Iterator[Fault]:
    """Faults that stop the package manager, unless a run removes them before apt or dnf."""
    packages = part(host, "packages")
    tool = "dnf" if packages.get("manager") == "rpm" else "apt-get"
    again = f"then {tool} {'makecache' if tool == 'dnf' else 'update'} shows whether it works"
    reasons: dict[str, str] = {}
    said = [text for text in texts(packages.get("stopped")) if not _of_ours(text)]
    # Where apt itself read its sources they have no conflict.
    conflicts = {} if packages.get("stopped") == [] else repository_conflicts(host)
    for repository, rows in conflicts.items():
        # apt names one conflict alone, and sums it up.
        said = [text for text in said if repository.split()[0] not in text]
        if not removed_by_run(plan, rows):
            files = ", ".join(sorted({quoted(str(row.get("path"))) for row in rows}))
            reasons[f"{quoted(repository)} is defined with different keys, in {files}"] = (
                f"keep one of the definitions of {quoted(repository)}, remove the others ({files})"
            )
    if conflicts and all(SUMMARY in text for text in said):
        said = []
    for row in mappings(packages.get("sources")):
        for uri in texts(row.get("uris")):
            if _refused_key(host, uri):
                path = quoted(str(row.get("path")))
                reasons[f"{path} has {quoted(uri)}, whose key apt refuses (SHA-1)"] = (
                    f"remove that entry of {path}"
                )
    if said:
        reasons[f"it says: {cut('; '.join(said), SHOWN)}"] = "correct or remove what it names"
    for cause, remedy in reasons.items():
        yield Fault(
            f"{tool} stops, whatever it is called for: {cause}",
            f"on the host: {remedy}; {again}; then {gpufleet('verify', '--limit', plan['host'])}",
            "refuse",
        )


def unknown(host: Host) -> bool:
    """Return whether the probe asked apt, and had no answer."""
    packages = part(host, "packages")
    return "stopped" in packages and packages["stopped"] is None


def _of_ours(text: str) -> bool:
    """Return whether a text names files of gpufleet alone, which the roles write before apt."""
    named = _FILES.findall(text)
    return bool(named) and all(name.startswith("gpufleet-") for name in named)


def _refused_key(host: Host, uri: str) -> bool:
    system = host.os
    return system is not None and any(
        row["address"] in f"{uri}/"
        and system["id"] == row["distribution"]
        and versions.key(str(system["version_id"])) >= versions.key(row["first"])
        for row in facts.rules("refused_keys")
    )
