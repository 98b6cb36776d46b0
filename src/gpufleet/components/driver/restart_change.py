"""Decide what makes the installed driver the running one: nothing, a reload, a reboot.

Decided from what the probe found, never from what a run remembers: so the next run continues one
that was killed. The marker of a pending restart (`model.receipt`) adds only what cannot be
probed: that a reboot was tried, and what loading the modules reported. A reboot that did not
help is never repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpufleet.components.base.cards import held_by_another
from gpufleet.components.base.host import Host, mapping, mappings
from gpufleet.components.driver.running import given_away
from gpufleet.documents.plan import Plan, Restart, RestartAction
from gpufleet.documents.text import gpufleet
from gpufleet.documents.types import Row

# The units that hold the GPU for the driver itself, in the order of their start: a reload stops
# them and starts them again. The same daemon in a container, or started by hand, is a holder.
SERVICES = ("nvidia-fabricmanager", "nvidia-persistenced", "nvidia-dcgm", "dcgm")

# The modules beside the driver's own, which is nvidia, or nvidia-current on Debian.
BESIDE = ("uvm", "drm", "modeset", "peermem")


def decide(
    plan: Plan, host: Host, control_node: bool = False, held: Sequence[str] | None = None
) -> Restart:
    """`action`, `because` and `remedy`.

    `none`: nothing to do, a marker can be removed; `reload`: the modules can be exchanged while the
    host runs; `reboot`; `wait`: a reboot is needed, and a person must do it; `stuck`: neither
    helps, or a reboot did not. `control_node`: Ansible itself runs on this host. `held`: the
    processes for which a reload was refused after this probe. One that the probe did not find began
    meanwhile, so it may be a job of somebody, or end within a second: it is no reason to reboot.
    """
    driver, name = mapping(plan["driver"]), plan["host"]
    if not driver.get("managed"):
        return _decision("none", "the driver is not managed")
    if host.is_image:
        return _decision("none", "this is an image: its first boot loads the driver")
    if missing := host.unobserved(("kernel", "gpus", "driver")):
        because = host.unread(missing)
        return _decision("wait", because, f"see why: {gpufleet('verify', '--limit', name)}")
    state = _State(plan, host, None if held is None else tuple(held))
    off = state.off
    if off is None:
        if state.interrupted and not state.idle:
            because = f"a reload of the kernel modules was interrupted{state.also}"
            return _decision("reload", because, gpufleet("provision", "--limit", name))
        changed = state.marker.get("boot_id") == state.boot_id
        if not (changed and driver["reboot"] == "always"):
            return _decision("none", state.idle or f"driver {state.loaded} runs as it is installed")
        off = str(state.marker.get("because"))
    elif state.reload_fixes and not state.holders and not state.load_error:
        because = f"{off}{state.meanwhile}"
        return _decision("reload", because, gpufleet("provision", "--limit", name))
    elif state.rebooted:
        because = f"{off}, after the reboot that should have fixed it{state.also}"
        return _decision("stuck", because, state.mig_by_hand or _by_hand(name))
    elif not state.reboot_fixes:
        because = f"{off}, and no restart fixes that: {state.next}"
        remedy = f"{gpufleet('provision', '--limit', name)}, or run dkms status on the host"
        return _decision("stuck", because, remedy)
    because = f"{off}{state.also}"
    if control_node:
        because += "; Ansible itself runs on this host, so it is not rebooted"
        return _decision("wait", because, f"reboot {name} yourself")
    if driver["reboot"] == "never":
        because += "; gpu_driver_reboot: never"
        return _decision("wait", because, f"reboot {name} at a suitable time")
    # CUDA works while only a MIG mode is pending, so nothing justifies ending what people run.
    if state.only_mig and state.holders and driver["reboot"] != "always":
        because += f"; a reboot would end {', '.join(state.holders)}"
        remedy = f"end them, then {gpufleet('provision', '--limit', name)}"
        return _decision("wait", because, f"{remedy}; or reboot {name} at a suitable time")
    return _decision("reboot", because, f"{gpufleet('provision', '--limit', name)} (it reboots)")


def runs_as_installed(plan: Plan, host: Host) -> bool:
    """Return whether the loaded driver is the installed one: daemons fail beside another."""
    return (
        not host.unobserved(("kernel", "gpus", "driver")) and _State(plan, host).driver_off is None
    )


def _decision(action: RestartAction, because: str, remedy: str = "") -> Restart:
    return {"action": action, "because": because, "remedy": remedy}


def _by_hand(name: str) -> str:
    return (
        f"on {name}: modprobe nvidia; journalctl -k | grep -iE 'nvrm|nvidia' shows why; fix that,"
        f" and reboot {name} yourself"
    )


def _named(holders: list[Row]) -> list[str]:
    return [f"{row.get('command')} (pid {row.get('pid')} of {row.get('user')})" for row in holders]


@dataclass(frozen=True)
class _State:
    """The facts that decide, read from the documents; all sections were probed."""

    plan: Plan
    host: Host
    held: tuple[str, ...] | None = None

    @cached_property
    def driver(self) -> Row:
        return mapping(self.host.section("driver"))

    @cached_property
    def kernel(self) -> Row:
        return mapping(self.host.section("kernel"))

    @cached_property
    def cards(self) -> list[Row]:
        return mappings(mapping(self.host.section("gpus")).get("pci"))

    @property
    def boot_id(self) -> Any:
        return self.kernel.get("boot_id")

    @property
    def loaded(self) -> Any:
        return self.driver.get("loaded")

    @property
    def marker(self) -> Row:
        return self.host.reboot_pending

    @property
    def idle(self) -> str | None:
        """Why the host needs no running driver; None where it does."""
        count = mapping(self.plan["expect"]).get("count")
        if count == 0:
            return "gpu_expect: {count: 0}"
        if count is None and not self.cards:
            return "no NVIDIA GPU is on the PCI bus, and none is declared"
        if count is None and given_away(self.host):
            return "all NVIDIA GPUs are passed to virtual machines, and none is declared"
        return None

    @cached_property
    def others(self) -> dict[str, list[str]]:
        """The addresses of the GPUs that another driver holds, by driver."""
        return held_by_another(self.cards)

    @property
    def staying(self) -> str:
        """The other driver that takes its GPUs again after a reboot; empty where none does."""
        forbidden = mapping(self.driver.get("nouveau")).get("blacklisted")
        # Only of nouveau the probe reads what keeps it from being loaded.
        return next((name for name in self.others if name != "nouveau" or forbidden is False), "")

    @property
    def off(self) -> str | None:
        """The reason why the driver does not run as installed or declared; None where it does."""
        return None if self.idle else self.driver_off or self.mig_off

    @cached_property
    def driver_off(self) -> str | None:
        """How the running driver differs from the installed one; None where it does not."""
        for name, addresses in self.others.items():
            return f"{name} holds {', '.join(addresses)}"
        on_disk, library = self.driver.get("on_disk"), self.driver.get("library")
        if self.loaded is None:
            return "the kernel module is not loaded"
        if self.loaded != library or on_disk not in {None, self.loaded}:
            return (
                f"the loaded kernel module is {self.loaded}, on disk is {on_disk or 'none'},"
                f" the libraries are {library or 'missing'}"
            )
        return None

    @property
    def mig_off(self) -> str | None:
        """Which declared MIG mode is pending, and who holds the GPU; None where none is."""
        if not self.mig_waits:
            return None
        return (
            f"the declared MIG mode of GPU {', '.join(self.mig_waits)} is pending until the GPU is"
            f" reset; the GPU is held by {', '.join(_named(self.all_holders)) or 'no process'}"
        )

    @property
    def only_mig(self) -> bool:
        """True if the driver runs as it is installed, and only a MIG mode is pending."""
        return self.driver_off is None and bool(self.mig_waits)

    @cached_property
    def mig_waits(self) -> list[str]:
        """The GPUs whose declared MIG mode is set, and applied only by a reset of the GPU."""
        layout = mapping(mapping(self.plan["driver"]).get("mig"))
        found = []
        for row in mappings(mapping(self.host.section("gpus")).get("mig")):
            gpu, pending = str(row.get("gpu")), row.get("pending")
            wanted = layout.get(gpu, layout.get("all"))
            # A mode that somebody else has set is not a reason to reboot.
            if wanted is not None and pending == ("on" if wanted else "off") != row.get("mode"):
                found.append(gpu)
        return found

    @property
    def mig_by_hand(self) -> str:
        """The act of a person where no reboot applied the MIG mode; empty for other reasons."""
        if not self.only_mig:
            return ""
        name = self.plan["host"]
        return (
            f"on {name}: stop what holds the GPU (often DCGM's nv-hostengine, or nvsm), and"
            f" nvidia-smi --gpu-reset -i {','.join(self.mig_waits)};"
            f" then {gpufleet('provision', '--limit', name)}"
        )

    @property
    def reload_fixes(self) -> bool:
        on_disk = self.driver.get("on_disk")
        return not self.others and on_disk not in {None, self.loaded} and self._fits(on_disk)

    @property
    def reboot_fixes(self) -> bool:
        return self._fits(self.after_reboot) and not self.staying

    def _fits(self, module: Any) -> bool:
        return module is not None and module == self.driver.get("library")

    @property
    def next_boot(self) -> Any:
        return self.kernel.get("next_boot") or self.kernel.get("running")

    @property
    def after_reboot(self) -> Any:
        """The version of the module that the kernel of the next boot has."""
        if self.next_boot == self.kernel.get("running"):
            return self.driver.get("on_disk")
        for kernel in mappings(self.kernel.get("installed")):
            if kernel.get("version") == self.next_boot:
                rows = [(str(row["name"]), row["version"]) for row in mappings(kernel["modules"])]
                return next((own for each, own in rows if not each.endswith(BESIDE)), None)
        return None

    @property
    def next(self) -> str:
        """Why a reboot does not help."""
        if self.staying:
            return f"{self.staying} is not blacklisted"
        return (
            f"the next boot's kernel {self.next_boot} has module {self.after_reboot or 'none'},"
            f" the libraries are {self.driver.get('library') or 'missing'}"
        )

    @property
    def rebooted(self) -> bool:
        """True if the host was rebooted for this before."""
        return bool(self.marker.get("tried")) and self.marker.get("boot_id") != self.boot_id

    @property
    def interrupted(self) -> bool:
        """True if a reload of this boot was killed after it had loaded the installed module."""
        reload = mapping(self.marker.get("reload"))
        loaded = self.loaded is not None and self.driver.get("on_disk") == self.loaded
        return loaded and bool(reload) and reload.get("boot_id") == self.boot_id

    @property
    def load_error(self) -> str | None:
        """The error of loading the modules, if it was tried in this boot and failed."""
        failed = mapping(self.marker.get("failed"))
        return str(failed.get("said")) if failed.get("boot_id") == self.boot_id else None

    @property
    def holders(self) -> list[str]:
        """The processes that hold a GPU, without the driver's own daemons.

        After a refused reload, those for which it was refused and which the probe found too.
        """
        others = [
            row
            for row in self.all_holders
            if str(row.get("unit")).removesuffix(".service") not in SERVICES
        ]
        found = _named(others)
        return found if self.held is None else [name for name in self.held if name in found]

    @property
    def meanwhile(self) -> str:
        """The processes that hold a GPU since the probe, and for which a reload was refused."""
        if not self.held:
            return ""
        return f"; since the probe of this run the GPU is held by {', '.join(self.held)}"

    @property
    def all_holders(self) -> list[Row]:
        """The processes that hold a GPU."""
        return mappings(self.driver.get("holders"))

    @property
    def also(self) -> str:
        """Why a reload does not help, where one might."""
        if self.load_error:
            return f"; loading it reports: {self.load_error}"
        if self.holders and self.reload_fixes:
            return f"; the GPU is held by {', '.join(self.holders)}"
        return ""
