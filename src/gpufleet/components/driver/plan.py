"""The driver: whether the loaded one is new enough, and which one to install."""

from __future__ import annotations

from gpufleet.catalog import gpus, versions
from gpufleet.catalog.records import DriverMinimum
from gpufleet.components.base.context import ResolveContext
from gpufleet.components.driver import secure_boot
from gpufleet.documents.problems import Code
from gpufleet.documents.spec import DriverSpec
from gpufleet.documents.types import Row

from . import constraints as driver_constraints
from . import kernel_module
from . import selection as driver_selection


def plan(context: ResolveContext, need: DriverMinimum | None) -> Row | None:
    """The driver as the plan carries it, with problems noted; None where nothing needs one.

    A host declared without a GPU needs no driver, but a declared driver is installed.
    """
    spec, layout = driver_selection.judged(context, context.spec.driver), context.spec.mig
    if spec is None and need is None and layout is None:
        return None
    offer = driver_selection.choose(context, spec, need) if spec else None
    managed = spec is not None and spec.managed
    if context.host.driver and need and not managed and not context.spec.without_gpu:
        _check_loaded(context, context.host.driver, need)
    if context.host.driver and not managed and not context.spec.without_gpu:
        _check_branch(context, context.host.driver, need)
    if managed:
        _check_secure_boot(context)
    _check_mig(context)
    module, because = kernel_module.decide(context, offer) if offer and managed else (None, None)
    branch = offer.branch.number if offer else None
    exact = offer.version if offer and spec and spec.source == "runfile" else None
    return {
        "minimum": need.version if need else None,
        "because": need.because if need else None,
        "branch": spec.branch if spec and spec.branch else branch,
        "version": (spec.version if spec else None) or exact,
        "source": spec.source if spec else None,
        "managed": managed,
        "module": module or (spec.module if spec else None),
        "module_because": because,
        "persistence": spec.persistence if spec else False,
        "fabric_manager": bool(driver_constraints.fabric(context)),
        "subnet_manager": driver_constraints.subnet_manager(context, spec),
        "mig": layout,
        "reboot": context.spec.driver_reboot,
    }


def _check_loaded(context: ResolveContext, loaded: str, need: DriverMinimum) -> None:
    if versions.key(loaded) < versions.key(need.version):
        better = driver_selection.suggestion(context, DriverSpec(), need)
        managed = f"let gpufleet install one (gpu_driver: {better}), " if better else ""
        context.refuse(
            Code.DRIVER_TOO_OLD,
            f"the host's driver is {loaded}; {need.because} needs {need.version} or newer",
            "gpu_driver",
            f"install driver {need.version} or newer, {managed}or declare an older CUDA",
        )


def _check_branch(context: ResolveContext, loaded: str, need: DriverMinimum | None) -> None:
    """Refuse GPUs that the loaded driver's branch no longer supports.

    Beside other GPUs one that is not declared may be for the display: the driver leaves it alone.
    """
    branch = str(versions.major(loaded))
    old = [card for card in context.gpus if gpus.older_than_branch(card, branch)]
    alone = len(old) == len(context.gpus)
    for card in old:
        last = gpus.last_branch(card)
        text = (
            f"the host's driver is {loaded}, and branch {branch} does not support {card.text}: the "
            f"last branch that does is {last}"
        )
        if alone or not card.device:
            better = driver_selection.suggestion(context, DriverSpec(), need)
            managed = f", or let gpufleet install it (gpu_driver: {better})" if better else ""
            remedy = f"install driver branch {last}{managed}"
            context.refuse(Code.GPU_TOO_OLD, text, "gpu_driver", remedy)
        else:
            context.note(text)


def _check_secure_boot(context: ResolveContext) -> None:
    """Refuse a host whose firmware keeps DKMS's modules from loading.

    Where gpufleet's driver is loaded, its modules have another, enrolled key.
    """
    runs = context.host.driver and context.host.receipt("driver", "driver")
    if secure_boot.refuses_modules(context.host) and not context.spec.without_gpu and not runs:
        cause, remedy = secure_boot.problem(context.host)
        context.refuse(Code.SECURE_BOOT, cause, "gpu_driver", f"on the host, {remedy}")


def _check_mig(context: ResolveContext) -> None:
    """Refuse a MIG layout where no GPU of the host can be split."""
    layout = context.spec.mig or {}
    if not any(layout.values()) or not context.gpus or any(map(gpus.supports_mig, context.gpus)):
        return
    context.refuse(
        Code.MIG_UNSUPPORTED,
        f"{context.gpus[0].text} cannot be split into MIG instances",
        "gpu_mig",
        "remove gpu_mig, or set gpu_mig: []",
    )
