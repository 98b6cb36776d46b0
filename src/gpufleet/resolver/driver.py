"""The driver: whether the loaded one is new enough, and which one to install."""

from __future__ import annotations

from typing import Any

from gpufleet.catalog import gpus, versions
from gpufleet.catalog.records import Need
from gpufleet.model.problems import Code
from gpufleet.model.spec import DriverSpec

from . import driver_constraints, driver_selection, kernel_module
from .context import ResolveContext

Row = dict[str, Any]


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
