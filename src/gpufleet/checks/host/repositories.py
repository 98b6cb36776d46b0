"""Package repositories: nothing stops apt or dnf."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.checks.base import subjects
from gpufleet.checks.base.registry import INSPECT, Evidence, Finding, check
from gpufleet.checks.base.sections import Sections
from gpufleet.host_state import repositories
from gpufleet.host_state.host import Host
from gpufleet.model.plan import Plan
from gpufleet.model.verdict import Verdict


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
