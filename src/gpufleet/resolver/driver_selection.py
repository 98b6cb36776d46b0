"""Choice: which driver branch a host gets, or why the wished one cannot be.

One list of objections serves both: the branch that is wished is refused for each of its own, and
where none is wished, the best of those without any is taken.
"""

from __future__ import annotations

from dataclasses import replace

from gpufleet.catalog import facts, pci, versions
from gpufleet.catalog.records import Need
from gpufleet.model.problems import Code
from gpufleet.model.spec import DriverSpec

from . import driver_constraints, driver_sources, kernel_module
from .context import ResolveContext
from .driver_constraints import BRANCH, MODULE, SOURCE, Objection
from .driver_sources import Offer


def choose(context: ResolveContext, wish: DriverSpec, need: Need | None) -> Offer | None:
    """The branch to install, with what is wrong noted; None where none can be named.

    A host declared without a GPU is given a branch all the same, whatever its stacks need.
    """
    if kernel_module.clashes(context):
        return None
    system = driver_sources.of(context.host)
    everywhere = wish.source not in {"distro", "nvidia_repo"}
    if context.host.os and system is None and not everywhere:
        about = context.host.os
        context.refuse(
            Code.OS_UNSUPPORTED,
            f"what {wish.source} offers for {about['id']} {about['version_id']} is not known; "
            f"known are {driver_sources.known()}",
            SOURCE,
            "say source: preinstalled and install the driver yourself, or source: runfile",
        )
        return None
    if wish.branch:
        return _wished(context, wish, need)
    if system is None and not everywhere:
        context.note("the driver's branch is chosen when the host is looked at")
        return None
    return _best(context, wish, need) if wish.managed else None


def listed(context: ResolveContext, source: str) -> list[Offer]:
    """What a source offers to this host, oldest first; every branch where that is not known."""
    system = driver_sources.of(context.host)
    if source == "runfile":
        return driver_sources.runfiles()
    if system and source in driver_sources.SOURCES:
        return system.offers(source)
    return driver_sources.anywhere()


def suggestion(context: ResolveContext, wish: DriverSpec, need: Need | None) -> str | None:
    """A gpu_driver of the nearest source that has a fitting branch, as a person would write it.

    The wished branch is kept where a source has it and it fits.
    """
    found = [
        (source, offer)
        for source in driver_sources.SOURCES
        for offer in _good(context, listed(context, source), replace(wish, source=source), need)
    ]
    if not found:
        return None
    kept = [each for each in found if each[1].branch.number == wish.branch]
    lasting = [each for each in found if each[1].branch.supported]
    source = (kept or lasting or found)[0][0]
    offer = max((each for at, each in kept or lasting or found if at == source), key=_rank)
    return f'{{branch: "{offer.branch.number}", source: {source}}}'


def _good(
    context: ResolveContext, offered: list[Offer], wish: DriverSpec, need: Need | None
) -> list[Offer]:
    return [each for each in offered if not any(driver_constraints.of(context, each, wish, need))]


def _rank(offer: Offer) -> tuple[bool, bool, int]:
    """Branches that NVIDIA maintains first, then those that are made to last, then the newest."""
    return offer.branch.supported, offer.branch.lasting, int(offer.branch.number)


def _best(context: ResolveContext, wish: DriverSpec, need: Need | None) -> Offer | None:
    """The best branch of the wished source; where none fits, what is wrong with the nearest.

    A branch that we installed is kept while it fits: no host changes its driver because the world
    has a newer one.
    """
    offered = listed(context, wish.source)
    if good := _good(context, offered, wish, need):
        best = max(good, key=_rank)
        installed = (context.host.receipt("driver", "driver") or {}).get("branch")
        kept = next((each for each in good if each.branch.number == installed), best)
        if kept is not best:
            context.note(
                f"driver branch {installed} is installed and kept, and {best.branch.number} would "
                "do as well: gpu_driver.branch changes it"
            )
        return _taken(context, kept)
    system = driver_sources.of(context.host)
    place = system.told(wish.source) if system else wish.source
    other = suggestion(context, wish, need)
    if not offered:
        context.refuse(
            Code.DRIVER_NOT_OFFERED,
            f"{place} has no driver of NVIDIA's",
            SOURCE,
            f"say gpu_driver: {other}" if other else "say source: preinstalled",
        )
        return None
    nearest = max(
        offered,
        key=lambda each: (
            -len(list(driver_constraints.of(context, each, wish, need))), _rank(each)),
    )
    for objection in driver_constraints.of(context, nearest, wish, need):
        context.refuse(
            objection.code,
            f"no driver branch of {place} will do; nearest is {nearest.branch.number}: "
            f"{objection.message}",
            objection.where if objection.where != BRANCH else "gpu_driver",
            f"say gpu_driver: {other}" if other else _without(context, objection, system),
        )
    return None


def _without(
    context: ResolveContext, objection: Objection, system: driver_sources.System | None
) -> str:
    """What to do where no branch of any source will do."""
    if len(context.gpus) > 1:
        return "one driver must know all GPUs of a host: move some of them to another host"
    where = f" for {system.name}" if system else ""
    return f"{objection.remedy}; no source has a fitting branch{where}"


def _wished(context: ResolveContext, wish: DriverSpec, need: Need | None) -> Offer | None:
    branch = facts.branches().get(wish.branch or "")
    if branch is None:
        near = versions.nearest(str(wish.branch), facts.branches())
        context.refuse(
            Code.DRIVER_UNKNOWN,
            f"no driver branch {wish.asked} is known; nearest: {', '.join(near)}",
            BRANCH,
            f'ask for one of these, such as "{near[0]}"',
        )
        return None
    offered = listed(context, wish.source)
    offer = next((each for each in offered if each.branch is branch), None)
    if offer is None:
        _not_offered(context, wish, need, offered)
        return None
    other = suggestion(context, replace(wish, branch=None, version=None), need)
    for objection in driver_constraints.of(context, offer, wish, need):
        remedy = objection.remedy
        if other and objection.where != MODULE:
            remedy += f", such as gpu_driver: {other}"
        context.refuse(objection.code, objection.message, objection.where, remedy)
    if wish.version and offer.version and wish.source == "distro" and wish.version != offer.version:
        context.note(
            f"driver {wish.version} is wished; branch {branch.number} was seen there as "
            f"{offer.version}: whether it is still to be had shows when it is installed"
        )
    return _taken(context, offer) if wish.managed else offer


def _not_offered(
    context: ResolveContext, wish: DriverSpec, need: Need | None, offered: list[Offer]
) -> None:
    system = driver_sources.of(context.host)
    place = system.told(wish.source) if system else wish.source
    have = ", ".join(each.branch.number for each in offered)
    other = suggestion(context, wish, need)
    remedy = f"say gpu_driver: {other}" if other else "use another branch"
    if fitting := _good(context, offered, replace(wish, branch=None, version=None), need):
        remedy += f', or branch "{max(fitting, key=_rank).branch.number}"'
    context.refuse(
        Code.DRIVER_NOT_OFFERED,
        f"{place} has no driver branch {wish.branch}; it has {have or 'none'}",
        BRANCH,
        remedy,
    )


def _taken(context: ResolveContext, offer: Offer) -> Offer:
    """The chosen offer, with notes on what a person should know of it."""
    branch = offer.branch
    if not branch.supported:
        until = f" (until {branch.eol})" if branch.eol else ""
        context.note(f"NVIDIA no longer maintains driver branch {branch.number}{until}")
    for card in context.gpus:
        first = pci.listed_from(card.device) if card.device else None
        if first and int(branch.number) < int(first):
            context.note(
                f"driver branch {branch.number} does not list {card.label}; the first that was "
                f"seen to is {first}"
            )
    return offer
