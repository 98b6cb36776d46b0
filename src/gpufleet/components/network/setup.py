"""The network setup that `gpu_network` declares: driver, modules at boot, and PCI settings."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.components.base import subjects
from gpufleet.components.base.host import Host
from gpufleet.components.base.registry import AS_ROOT, Evidence, Finding, check, required, shortened
from gpufleet.components.base.remedies import Remedy, person, provision
from gpufleet.components.base.sections import Sections
from gpufleet.components.network import judge as network_setup
from gpufleet.documents.plan import Plan
from gpufleet.documents.verdict import Verdict


def _not_declared(plan: Plan) -> str | None:
    return None if plan.get("network") else "gpu_network: not set"


@check(
    "network.setup",
    reads=network_setup.SECTIONS,
    severity="major",
    skip_reason=_not_declared,
)
def declared(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The declared network driver, kernel modules and PCI settings are in place."""
    wanted = required(plan.get("network"), "the plan's network")
    host = Host(observed.snapshot)
    modules = tuple(f"{subjects.MODULE}/{name}" for name in network_setup.not_loaded(plan, host))
    for judge, entails in (
        (network_setup.leftovers, ()),
        (network_setup.drivers, modules),
        (network_setup.settings, (subjects.PCI,)),
    ):
        for fault in judge(plan, host):
            cause = f"{fault.cause[:1].upper()}{fault.cause[1:]}"
            remedy = _remedy(plan, fault.remedy, done=bool(fault.action))
            yield Finding(cause, remedy, entails=entails)
    if not network_setup.setup(host):
        yield Finding(
            "What is set up for the network adapters was not read",
            "verify the host again with this release of gpufleet",
            verdict=Verdict.INCONCLUSIVE,
        )
    unread = [
        *(name for name, size in network_setup.read_requests(plan, host).items() if size is None),
        *(name for name, word in network_setup.access_control(plan, host).items() if word is None),
    ]
    if unread:
        yield Finding(
            f"The PCI settings of {shortened(unread)} cannot be read",
            AS_ROOT,
            verdict=Verdict.INCONCLUSIVE,
        )
    yield Evidence(
        f"driver: {wanted['driver'] or 'not declared'}; modules: {shortened(wanted['modules'], 8)};"
        f" adapters with role compute: {shortened(wanted['adapters'] or ['none'], 12)}"
    )


def _remedy(plan: Plan, text: str, *, done: bool) -> Remedy:
    """The run that does it, or what a person has to do."""
    if not done:
        return person(text)
    return provision(plan, note=text.partition(" (")[2].rstrip(")"))
