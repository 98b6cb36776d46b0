"""Faults of a host against `gpu_network`: driver, modules at boot, PCI settings. Pure.

`change` uses it (what to do) and so does the check (what is wrong). Nothing here loads another
network driver: that would cut the connections of the host, so a person reboots it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gpufleet.components.base.driver_state import Fault, listed, part, texts
from gpufleet.components.base.host import Host, mapping, mappings
from gpufleet.documents.plan import Plan
from gpufleet.documents.text import gpufleet
from gpufleet.documents.types import Row

IDENTITY: tuple[Literal["network"], str] = ("network", "adapters")
SECTIONS = ("network", "kernel", "packages")
UNIT = "gpufleet-network.service"
BOOT_MODULES = "/etc/modules-load.d/gpufleet-network.conf"
# Below it are the kernel's own modules.
KERNELS_OWN = "kernel/"
DRIVER = "mlx5_core"


def provision(plan: Plan) -> str:
    """The command that does what the plan says."""
    return gpufleet("provision", "--limit", plan["host"])


def setup(host: Host) -> Row:
    """The probe's reading of the network setup; empty where it, or an earlier one, read none."""
    return mapping(part(host, "network").get("setup"))


def on_disk(host: Host) -> Row | None:
    """The files of the kernel's network modules; None where they were not read."""
    found = setup(host).get("on_disk")
    return found if isinstance(found, dict) else None


def installed_beside_kernel(host: Host) -> str | None:
    """The file of a driver that is not the kernel's own, and that would be loaded."""
    path = (on_disk(host) or {}).get(DRIVER)
    return str(path) if path and not str(path).startswith(KERNELS_OWN) else None


def faults(plan: Plan, host: Host) -> Iterator[Fault]:
    """Everything that differs from the declaration, in the order in which a run sets it right."""
    for judge in (leftovers, drivers, settings):
        yield from judge(plan, host)


def drivers(plan: Plan, host: Host) -> Iterator[Fault]:
    """Faults of the network driver and its kernel modules."""
    if wanted := mapping(plan.get("network")):
        yield from _driver(plan, wanted, host)
        yield from _modules(plan, wanted, host)


def settings(plan: Plan, host: Host) -> Iterator[Fault]:
    """Faults of the PCI settings, and of the unit that applies them."""
    if wanted := mapping(plan.get("network")):
        yield from _unit(plan, wanted, host)
        yield from _values(plan, wanted, host)


def not_loaded(plan: Plan, host: Host) -> list[str]:
    """The declared kernel modules that are not loaded."""
    loaded = mapping(part(host, "network").get("modules"))
    names = texts(mapping(plan.get("network")).get("modules"))
    return [name for name in names if loaded.get(name) is False]


def leftovers(plan: Plan, host: Host) -> Iterator[Fault]:
    """Files that the role wrote, and that nothing needs any longer."""
    wanted = mapping(plan.get("network"))
    needed = ["/network/pci_settings", UNIT] if _has_settings(wanted) else []
    needed += [BOOT_MODULES] if wanted.get("modules") else []
    needed += ["gpufleet-doca"] if wanted.get("repository") else []
    found = texts(setup(host).get("files"))
    left = [name for name in found if not any(each in name for each in needed)]
    if left:
        yield Fault(f"{listed(left)} is no longer declared (gpu_network)", provision(plan))


def _has_settings(wanted: Row) -> bool:
    """Return whether the unit is needed: a setting is declared, and a device can be set."""
    adapters = wanted.get("adapters")
    sized = wanted.get("max_read_request") and adapters
    return bool(sized or (wanted.get("acs_off") and adapters is not None))


def _driver(plan: Plan, wanted: Row, host: Host) -> Iterator[Fault]:
    packages = part(host, "packages").get("network")
    there = packages if isinstance(packages, dict) else {}
    missing = [name for name in texts(wanted.get("packages")) if name not in there]
    if missing:
        yield Fault(
            f"packages of the {wanted['driver']} network driver are not installed:"
            f" {listed(missing)}",
            provision(plan),
        )
    state, kernel = setup(host), part(host, "kernel").get("running")
    if wanted.get("driver") != "doca" or on_disk(host) is None:
        return
    if installed_beside_kernel(host) is None:
        if not missing:
            yield Fault(
                f"DOCA is declared, and the kernel {kernel} would load its own network driver:"
                " DOCA's modules are not built for it",
                "on the host: dkms status shows why (it needs this kernel's headers); then dkms"
                " autoinstall, and reboot",
                "",
            )
        return
    loaded, installed = state.get("loaded_driver"), state.get("installed_driver")
    if loaded and installed and loaded != installed:
        yield Fault(
            f"the loaded {DRIVER} is not the one of DOCA that is installed",
            f"reboot {plan['host']}: gpufleet exchanges no network driver while the host runs",
            "",
        )


def _modules(plan: Plan, wanted: Row, host: Host) -> Iterator[Fault]:
    names, state = texts(wanted.get("modules")), setup(host)
    if not names:
        return
    disk = on_disk(host)
    absent = [name for name in names if disk is not None and _on_disk(name) and name not in disk]
    if absent:
        kernel = part(host, "kernel").get("running")
        yield Fault(
            f"the kernel {kernel} has no module {listed(absent)}",
            "on the host: install the package of the kernel's further modules (Ubuntu:"
            " linux-modules-extra-$(uname -r); RHEL: kernel-modules)",
            "",
        )
    missing = [name for name in not_loaded(plan, host) if name not in absent]
    if missing:
        yield Fault(f"kernel modules are not loaded: {listed(missing)}", provision(plan))
    if state and texts(state.get("modules")) != names:
        yield Fault(f"{BOOT_MODULES} does not load {', '.join(names)} at boot", provision(plan))


def _on_disk(name: str) -> bool:
    """Return whether the probe looks for the module's file: for all but the NVIDIA driver's."""
    return not name.startswith("nvidia")


def _unit(plan: Plan, wanted: Row, host: Host) -> Iterator[Fault]:
    state = setup(host)
    if wanted.get("max_read_request") and wanted.get("adapters") == []:
        yield Fault(
            "MaxReadReq is declared (gpu_network), and no port of an adapter has role compute",
            "declare the ports (gpu_expect.network), or remove gpu_network.max_read_request_bytes",
            "",
        )
    if not state:
        return
    if not _has_settings(wanted):
        return
    applied = mapping(state.get("settings"))
    if not applied:
        yield Fault(f"service {UNIT}, which applies the PCI settings, is missing", provision(plan))
        return
    there = {row.get("address") for row in mappings(part(host, "network").get("adapters"))}
    have, want = set(texts(applied.get("adapters"))), set(texts(wanted.get("adapters")))
    # An adapter that is broken is gone, and comes back.
    same = want <= have and not {each for each in have - want if each in there}
    if not same or any(
        applied.get(key) != wanted.get(key) for key in ("max_read_request", "acs_off")
    ):
        yield Fault(f"service {UNIT} applies other PCI settings than declared", provision(plan))
    elif not state.get("enabled"):
        yield Fault(f"service {UNIT} does not start at boot", provision(plan))
    elif state.get("active") is False:
        yield Fault(
            f"service {UNIT} did not apply the PCI settings",
            f"{provision(plan)} (on the host: journalctl -u {UNIT} shows why)",
        )


def _values(plan: Plan, wanted: Row, host: Host) -> Iterator[Fault]:
    size = wanted.get("max_read_request")
    different = {
        name: value
        for name, value in read_requests(plan, host).items()
        if size and value not in (None, size)
    }
    if different:
        shown = listed(f"{name} has {value}" for name, value in different.items())
        yield Fault(f"MaxReadReq is not {size} bytes: {shown}", provision(plan))
    words = access_control(plan, host)
    if on := [name for name, word in words.items() if word]:
        yield Fault(
            f"access control (ACS) of PCI ports is on, declared is off: {listed(on)}",
            provision(plan),
        )


def read_requests(plan: Plan, host: Host) -> dict[str, int | None]:
    """The MaxReadReq of the adapters that the declaration sets, by device; None: not read."""
    wanted = mapping(plan.get("network"))
    addresses = texts(wanted.get("adapters")) if wanted.get("max_read_request") else []
    return {
        str(row.get("name")): row.get("max_read_request")
        for row in mappings(part(host, "network").get("devices"))
        if row.get("address") in addresses
    }


def access_control(plan: Plan, host: Host) -> dict[str, int | None]:
    """The ACS word of ports above GPUs and adapters, by PCI port, where `acs: off` is declared."""
    wanted, network = mapping(plan.get("network")), part(host, "network")
    if not wanted.get("acs_off") or not _has_settings(wanted):
        return {}
    rows = [
        row
        for row in mappings(network.get("devices"))
        if row.get("address") in texts(wanted.get("adapters"))
    ]
    rows += mappings(network.get("gpus"))
    above = sorted({name for row in rows for name in texts(row.get("path"))})
    words = mapping(network.get("access_control"))
    return {name: words.get(name) for name in above}
