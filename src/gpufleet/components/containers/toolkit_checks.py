"""NVIDIA's container toolkit: whether the installed release has known vulnerabilities."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.catalog import container_toolkit
from gpufleet.components.base import subjects
from gpufleet.components.base.registry import INVENTORY, READS, Evidence, Finding, check, required
from gpufleet.components.base.remedies import CONTAINERS, person, provision, then
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.verdict import Verdict

from .checks import not_declared


@check(
    "containers.vulnerable",
    reads=("containers",),
    repair=INVENTORY,
    skip_reason=not_declared,
    effect=READS,
)
def vulnerable(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The installed container toolkit has no known vulnerability that is not accepted."""
    declared = required(plan["containers"], "the plan's containers")
    toolkit = observed.data["containers"]["toolkit"]
    release = container_toolkit.release(toolkit["version"]) if toolkit else None
    if release is None:
        yield Finding(
            f"The container toolkit's release is not known: {toolkit['version']!r}"
            if toolkit
            else "No container toolkit was found",
            "see containers.runtime",
            verdict=Verdict.INCONCLUSIVE,
            about=(subjects.CONTAINER_TOOLKIT,),
        )
        return
    accepted = declared.get("accept_cves") or []
    found = container_toolkit.vulnerabilities(release, accepted)
    if found:
        first, planned = container_toolkit.first_without(found), declared["toolkit"]
        # The host has another release than a declared one that is without them.
        other = planned and not container_toolkit.vulnerabilities(planned, accepted)
        upgrade = provision(plan, CONTAINERS)
        yield Finding(
            f"The container toolkit {release} has known vulnerabilities:"
            f" {', '.join(each.cve for each in found)}",
            upgrade
            if other
            else then(person(f'declare gpu_containers.toolkit: "{first}" or newer'), upgrade),
            "\n".join(f"{each.cve}: fixed in {each.fixed}, {each.source}" for each in found),
            about=(subjects.CONTAINER_TOOLKIT,) if other else (),
        )
    accepted_here = [
        each.cve for each in container_toolkit.vulnerabilities(release) if each.cve in accepted
    ]
    yield Evidence(
        f"The container toolkit is {release}; accepted: {', '.join(accepted_here) or 'none'}"
    )
