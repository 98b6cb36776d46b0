"""Package repositories: nothing stops apt or dnf."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.components.base import subjects
from gpufleet.components.base.host import Host
from gpufleet.components.base.registry import INSPECT, Evidence, Finding, check
from gpufleet.components.base.sections import Sections
from gpufleet.components.driver import repositories
from gpufleet.documents.plan import Plan
from gpufleet.documents.verdict import Verdict


@check("host.repositories", reads=("packages", "os"), repair=INSPECT, severity="major")
def readable(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """No package repository stops apt or dnf, whoever wrote it."""
    host = Host(observed.snapshot)
    for fault in repositories.stopping(plan, host):
        yield Finding(
            fault.cause,
            fault.remedy,
            about=(subjects.REPOSITORIES,),
            entails=(subjects.REPOSITORIES,),
        )
    if repositories.unknown(host):
        yield Finding(
            "It is unknown whether apt can read its repositories",
            "on the host, as root: apt-get indextargets; then ./gpufleet verify",
            verdict=Verdict.INCONCLUSIVE,
        )
    packages = observed.data["packages"]
    yield Evidence(
        f"{packages['manager'] or 'no package manager'},"
        f" {'read without an error' if packages.get('stopped') == [] else 'their entries compared'}"
    )
