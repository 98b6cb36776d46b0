"""The driver: how old it may be, whether the loaded one will do, and which is to be installed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpufleet.catalog import facts, gpus, versions
from gpufleet.catalog.records import Need, Toolkit
from gpufleet.model.problems import Code
from gpufleet.model.spec import DriverSpec

from . import cudnn, driver_constraints, driver_selection, kernel_module
from .context import ResolveContext
from .stacks import Stack
from .toolkits import Chosen

Row = dict[str, Any]


def highest(needs: Iterable[Need]) -> Need | None:
    """The need that covers them all."""
    return max(needs, key=lambda need: versions.key(need.version), default=None)


def of_toolkit(toolkit: Toolkit) -> list[Need]:
    """A toolkit's need: by minor-version compatibility from CUDA 11 on, exact before."""
    name = f"CUDA {toolkit.short}"
    if toolkit.driver_minor:
        return [Need(toolkit.driver_minor, f"{name}, minor-version compatibility")]
    return [Need(toolkit.driver_exact, f"{name}, exact minimum")] if toolkit.driver_exact else []


def of_cudnn(chosen: Chosen) -> list[Need]:
    """What the cuDNN of a toolkit ask for."""
    return [
        Need(rule["driver"], f"cuDNN {picked.archive.version} with CUDA {chosen.short}")
        for picked in chosen.majors.values()
        for rule in cudnn.needs(picked.archive, chosen.short)
        if "driver" in rule
    ]


def of_gpu(card: gpus.Gpu) -> list[Need]:
    """A GPU's own need: the driver of the CUDA release that first knew its architecture."""
    row = gpus.architecture(card)
    first = facts.toolkits_of(row.first_cuda)[:1] if row and row.first_cuda else []
    return [
        Need(each.driver_exact, f"{card.text}, first known to CUDA {each.short},")
        for each in first
        if each.driver_exact
    ]


def of_stack(context: ResolveContext, stack: Stack, chosen: Chosen | None) -> Need:
    """A stack's need: its build's, its toolkit's, its cuDNN's, and its GPUs'.

    GPUs that the build reaches only through PTX need a driver as new as the build's CUDA.
    """
    row = stack.build.row["min_driver"]
    name = f"CUDA {stack.cuda}"
    if row["minor_compat"]:
        needs = [Need(row["minor_compat"], f"{name}, minor-version compatibility")]
    else:
        needs = [Need(row["exact"], f"{name}, exact minimum")]
    if chosen:
        needs += of_toolkit(chosen.toolkit) + of_cudnn(chosen)
    for card in context.gpus:
        needs += of_gpu(card)
        if not gpus.native_to_build(card, stack.build):
            needs.append(Need(row["exact"], f"{name}, {card.text} reached through PTX"))
    return max(needs, key=lambda need: versions.key(need.version))


def plan(context: ResolveContext, need: Need | None) -> Row | None:
    """The driver as the plan carries it, with what is wrong noted; None where nothing is asked.

    A host declared without a GPU needs no driver, but one that is declared is installed.
    """
    wish, layout = context.spec.driver, context.spec.mig
    if wish is None and need is None and layout is None:
        return None
    offer = driver_selection.choose(context, wish, need) if wish else None
    managed = wish is not None and wish.managed
    if context.host.driver and need and not managed and not context.spec.without_gpu:
        _check_loaded(context, context.host.driver, need)
    if managed:
        _check_secure_boot(context)
    _check_mig(context)
    module, because = kernel_module.decide(context, offer) if offer and managed else (None, None)
    branch = offer.branch.number if offer else None
    exact = offer.version if offer and wish and wish.source == "runfile" else None
    return {
        "minimum": need.version if need else None,
        "because": need.because if need else None,
        "branch": wish.branch if wish and wish.branch else branch,
        "version": (wish.version if wish else None) or exact,
        "source": wish.source if wish else None,
        "managed": managed,
        "module": module or (wish.module if wish else None),
        "module_because": because,
        "persistence": wish.persistence if wish else False,
        "fabric_manager": bool(driver_constraints.fabric(context)),
        "mig": layout,
        "reboot": context.spec.driver_reboot,
    }


def _check_loaded(context: ResolveContext, loaded: str, need: Need) -> None:
    if versions.key(loaded) < versions.key(need.version):
        better = driver_selection.suggestion(context, DriverSpec(), need)
        managed = f"have it managed (gpu_driver: {better}), " if better else ""
        context.refuse(
            Code.DRIVER_TOO_OLD,
            f"the host's driver is {loaded}; {need.because} needs {need.version} or newer",
            "gpu_driver",
            f"install driver {need.version} or newer, {managed}or ask for an older CUDA",
        )


def _check_secure_boot(context: ResolveContext) -> None:
    """Refuse a host whose firmware would not let DKMS's modules be loaded.

    Where those of a driver of ours are loaded, their key is one that was not looked for.
    """
    runs = context.host.driver and context.host.receipt("driver", "driver")
    if not context.host.rejects_modules or context.spec.without_gpu or runs:
        return
    keys = "/var/lib/dkms/mok"
    context.refuse(
        Code.SECURE_BOOT,
        "Secure Boot is on and DKMS's key is not enrolled: the kernel would not load the driver's "
        "modules after they are built",
        "gpu_driver",
        f"on the host, as root: (1) unless {keys}.pub is there, openssl req -new -x509 -newkey "
        f"rsa:2048 -nodes -days 36500 -subj /CN=DKMS/ -keyout {keys}.key -outform DER -out "
        f"{keys}.pub; (2) mokutil --import {keys}.pub (the package mokutil has it), and think of a "
        "password; (3) reboot, and at "
        "the console choose Enroll MOK and type that password; (4) provision again. Or switch "
        "Secure Boot off in the firmware",
    )


def _check_mig(context: ResolveContext) -> None:
    """Refuse a MIG layout where no GPU of the host can be split."""
    layout = context.spec.mig or {}
    if not any(layout.values()) or not context.gpus or any(map(gpus.can_be_split, context.gpus)):
        return
    context.refuse(
        Code.MIG_UNSUPPORTED,
        f"{context.gpus[0].text} cannot be split into MIG instances",
        "gpu_mig",
        "take gpu_mig out, or say gpu_mig: []",
    )
