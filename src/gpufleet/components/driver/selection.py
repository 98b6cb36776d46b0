"""Select the driver branch of a host, or refuse the declared one.

Both use the same constraints: a declared branch is refused for each violation; where none is
declared, the best branch without a violation is selected.
"""

from __future__ import annotations

from dataclasses import replace

from gpufleet.catalog import facts, pci, versions
from gpufleet.catalog.records import DriverMinimum
from gpufleet.components.base.context import ResolveContext
from gpufleet.documents.problems import Code
from gpufleet.documents.spec import PREINSTALLED, DriverSpec

from . import constraints as driver_constraints
from . import kernel_module
from . import sources as driver_sources
from .constraints import BRANCH, MODULE, SOURCE, Violation
from .sources import Offer

PACKAGED = ("distro", "nvidia_repo")  # the sources that depend on the system


def judged(context: ResolveContext, spec: DriverSpec | None) -> DriverSpec | None:
    """The driver as it can be judged: one that only somebody else can install on this system is
    refused, and planned as preinstalled."""
    about = context.host.os
    if spec is None or spec.source not in PACKAGED:
        return spec
    if about is None or driver_sources.system_of(context.host):
        return spec
    context.refuse(
        Code.OS_UNSUPPORTED,
        f"the driver branches in {spec.source} for {about['id']} {about['version_id']} are not "
        f"known; known systems: {driver_sources.known()}",
        SOURCE,
        "set source: preinstalled and install the driver yourself, or set source: runfile",
    )
    return replace(spec, source=PREINSTALLED)


def choose(context: ResolveContext, spec: DriverSpec, need: DriverMinimum | None) -> Offer | None:
    """The branch to install, with problems noted; None where there is none.

    A host declared without a GPU gets a declared driver too, whatever its stacks need.
    """
    if kernel_module.clashes(context):
        return None
    if spec.branch:
        return _requested(context, spec, need)
    if driver_sources.system_of(context.host) is None and spec.source in PACKAGED:
        context.note("The driver's branch is selected when the host is probed")
        return None
    return _best(context, spec, need) if spec.managed else None


def listed(context: ResolveContext, source: str) -> list[Offer]:
    """The branches that a source has for this host, oldest first; all where that is not known."""
    system = driver_sources.system_of(context.host)
    if source == "runfile":
        return driver_sources.runfiles()
    if system and source in driver_sources.SOURCES:
        return system.offers(source, context.arch)
    return driver_sources.anywhere()


def suggestion(context: ResolveContext, spec: DriverSpec, need: DriverMinimum | None) -> str | None:
    """A gpu_driver to declare, of the first source with a fitting branch.

    The declared branch is kept where a source has it and it fits.
    """
    found = [
        (source, offer)
        for source in driver_sources.SOURCES
        for offer in _fitting(context, listed(context, source), replace(spec, source=source), need)
    ]
    if not found:
        return None
    kept = [each for each in found if each[1].branch.number == spec.branch]
    lasting = [each for each in found if each[1].branch.supported]
    source = (kept or lasting or found)[0][0]
    offer = max((each for at, each in kept or lasting or found if at == source), key=_rank)
    return f'{{branch: "{offer.branch.number}", source: {source}}}'


def _fitting(
    context: ResolveContext, offered: list[Offer], spec: DriverSpec, need: DriverMinimum | None
) -> list[Offer]:
    return [
        each
        for each in offered
        if not any(driver_constraints.violations(context, each, spec, need))
    ]


def _rank(offer: Offer) -> tuple[bool, bool, int]:
    """Maintained branches rank first, then production and long-term ones, then the newest."""
    return offer.branch.supported, offer.branch.lasting, int(offer.branch.number)


def _best(context: ResolveContext, spec: DriverSpec, need: DriverMinimum | None) -> Offer | None:
    """The best branch of the declared source; where none fits, what the nearest one violates.

    A branch that gpufleet installed is kept while it fits: no host changes its driver because a
    newer one exists.
    """
    offered = listed(context, spec.source)
    if fitting := _fitting(context, offered, spec, need):
        best = max(fitting, key=_rank)
        installed = (context.host.receipt("driver", "driver") or {}).get("branch")
        kept = next((each for each in fitting if each.branch.number == installed), best)
        if kept is not best:
            context.note(
                f"Driver branch {installed} is installed and kept; {best.branch.number} fits "
                "as well: set gpu_driver.branch to change it"
            )
        return _selected(context, kept)
    system = driver_sources.system_of(context.host)
    source = system.source_name(spec.source) if system else spec.source
    other = suggestion(context, spec, need)
    if not offered:
        context.refuse(
            Code.DRIVER_NOT_OFFERED,
            _none(context, spec, source),
            SOURCE,
            f"set gpu_driver: {other}" if other else "set source: preinstalled",
        )
        return None
    nearest = max(
        offered,
        key=lambda each: (
            -len(list(driver_constraints.violations(context, each, spec, need))),
            _rank(each),
        ),
    )
    for violation in driver_constraints.violations(context, nearest, spec, need):
        context.refuse(
            violation.code,
            f"no driver branch of {source} fits; the nearest is {nearest.branch.number}: "
            f"{violation.message}",
            violation.where if violation.where != BRANCH else "gpu_driver",
            f"set gpu_driver: {other}" if other else _without(context, violation, system),
        )
    return None


def _none(context: ResolveContext, spec: DriverSpec, source: str) -> str:
    """Why a source has no branch at all."""
    system = driver_sources.system_of(context.host)
    if system and not system.is_read(spec.source, context.arch):
        return f"which NVIDIA drivers {source} has for {context.arch} is not known"
    return f"{source} has no NVIDIA driver"


def _without(
    context: ResolveContext, violation: Violation, system: driver_sources.System | None
) -> str:
    """The remedy where no branch of any source fits."""
    if len(context.gpus) > 1:
        return "one driver must support all GPUs of a host: move some of them to another host"
    where = f" for {system.name}" if system else ""
    return f"{violation.remedy}; no source has a fitting branch{where}"


def _requested(
    context: ResolveContext, spec: DriverSpec, need: DriverMinimum | None
) -> Offer | None:
    branch = facts.branches().get(spec.branch or "")
    if branch is None:
        near = versions.nearest(str(spec.branch), facts.branches())
        context.refuse(
            Code.DRIVER_UNKNOWN,
            f"no driver branch {spec.requested} is known; nearest: {', '.join(near)}",
            BRANCH,
            f'declare one of these, such as "{near[0]}"',
        )
        return None
    offered = listed(context, spec.source)
    offer = next((each for each in offered if each.branch is branch), None)
    if offer is None:
        _not_offered(context, spec, need, offered)
        return None
    found = list(driver_constraints.violations(context, offer, spec, need))
    other = suggestion(context, replace(spec, branch=None, version=None), need) if found else None
    for violation in found:
        remedy = violation.remedy
        if other and violation.where != MODULE:
            remedy += f", such as gpu_driver: {other}"
        context.refuse(violation.code, violation.message, violation.where, remedy)
    if spec.version and offer.version and spec.source == "distro" and spec.version != offer.version:
        context.note(
            f"Driver {spec.version} is declared; the distribution had branch {branch.number} as "
            f"{offer.version}: the installation fails if it no longer has the declared one"
        )
    return _selected(context, offer) if spec.managed else offer


def _not_offered(
    context: ResolveContext, spec: DriverSpec, need: DriverMinimum | None, offered: list[Offer]
) -> None:
    system = driver_sources.system_of(context.host)
    source = system.source_name(spec.source) if system else spec.source
    have = ", ".join(each.branch.number for each in offered)
    unread = system is not None and not system.is_read(spec.source, context.arch)
    other = suggestion(context, spec, need)
    remedy = f"set gpu_driver: {other}" if other else "use another branch"
    if fitting := _fitting(context, offered, replace(spec, branch=None, version=None), need):
        remedy += f', or branch "{max(fitting, key=_rank).branch.number}"'
    context.refuse(
        Code.DRIVER_NOT_OFFERED,
        _none(context, spec, source)
        if unread
        else f"{source} has no driver branch {spec.branch}; it has {have or 'none'}",
        BRANCH,
        remedy,
    )


def _selected(context: ResolveContext, offer: Offer) -> Offer:
    """The selected offer, with notes on its maintenance and its GPUs."""
    branch = offer.branch
    if not branch.supported:
        until = f" (until {branch.eol})" if branch.eol else ""
        context.note(f"NVIDIA no longer maintains driver branch {branch.number}{until}")
    for card in context.gpus:
        first = pci.listed_from(card.device) if card.device else None
        if first and int(branch.number) < int(first):
            context.note(
                f"Driver branch {branch.number} does not list {card.label}; the first branch "
                f"known to list it is {first}"
            )
    return offer
