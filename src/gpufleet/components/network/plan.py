"""The network adapters: their driver, kernel modules and PCI settings, as the plan carries them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, cast

from gpufleet.catalog import network as facts
from gpufleet.components.base import ports
from gpufleet.components.base.context import ResolveContext
from gpufleet.components.base.host import Host, mapping, mappings
from gpufleet.components.driver import sources as driver_sources
from gpufleet.components.network import judge as network_setup
from gpufleet.documents.problems import Code
from gpufleet.documents.sections.network import Network
from gpufleet.documents.spec import NetworkSpec
from gpufleet.documents.types import Row

# Whose adapters a host that was not probed has.
_USUAL_VENDOR = "0x15b3"


def describe(context: ResolveContext) -> Row | None:
    """The plan's `network`; None where nothing of it is declared."""
    spec, host = context.spec.network, context.host
    if spec is None:
        return None
    if spec.acs_off:
        _check_bare_metal(context)
    if spec.peermem and context.spec.without_gpu:
        context.refuse(
            Code.NETWORK_SETTING,
            "gpu_network declares nvidia-peermem, and gpu_expect a host without GPUs",
            "gpu_network.peermem",
            "remove gpu_network.peermem, or correct gpu_expect.count",
        )
    if spec.driver:
        _check_driver(context, spec)
    return {
        "driver": spec.driver,
        "packages": _packages(context, spec),
        "repository": asdict(spec.repository) | {"fingerprints": [*spec.repository.fingerprints]}
        if spec.repository
        else None,
        "modules": _modules(host, spec),
        "max_read_request": spec.max_read_request,
        "acs_off": spec.acs_off,
        "adapters": _adapters(context),
    }


def _check_bare_metal(context: ResolveContext) -> None:
    """Refuse to switch access control off in a virtual machine."""
    if mapping(context.host.section("gpus")).get("hypervisor") is not True:
        return
    context.refuse(
        Code.NETWORK_SETTING,
        "gpu_network declares acs: off, and the host is a virtual machine: there, copies between"
        " devices need access control (ACS) and address translation (ATS)",
        "gpu_network.acs",
        "remove gpu_network.acs for this host; the machine below it decides",
    )


def _check_driver(context: ResolveContext, spec: NetworkSpec) -> None:
    """Refuse a driver that cannot be installed, or in whose place another one is installed."""
    host = context.host
    if not host.reached or _container(host):
        return
    foreign = network_setup.installed_beside_kernel(host)
    if spec.driver == "inbox" and foreign:
        context.refuse(
            Code.NETWORK_DRIVER,
            f"gpu_network declares driver: inbox, and the kernel would load {foreign}, which is"
            " another one (DOCA or MLNX_OFED)",
            "gpu_network.driver",
            "declare driver: doca, or remove the other driver yourself (ofed_uninstall.sh) and"
            " reboot: gpufleet removes no network driver",
        )
    if spec.driver == "doca" and spec.repository is None and foreign is None:
        if network_setup.on_disk(host) is None:
            context.note(
                "Whether DOCA is installed was not read, and gpu_network declares no repository"
            )
            return
        context.refuse(
            Code.NETWORK_DRIVER,
            "gpu_network declares driver: doca without a repository, and DOCA's drivers are not"
            " installed for the running kernel",
            "gpu_network.repository",
            "declare the repository of your site (gpu_network: {repository: {uri, key,"
            " fingerprints}}), or install DOCA yourself",
        )


def _packages(context: ResolveContext, spec: NetworkSpec) -> list[str]:
    """The packages that a run installs; DOCA without a repository is only verified."""
    if spec.driver is None or (spec.driver == "doca" and spec.repository is None):
        return []
    if not context.host.reached:
        return facts.packages(spec.driver, "debian")
    system = driver_sources.system_of(context.host)
    if system is None:
        context.refuse(
            Code.OS_UNSUPPORTED,
            "the network drivers for the host's distribution are not known",
            "gpu_network.driver",
            f"remove gpu_network.driver for this host; known are {driver_sources.known()}",
        )
        return []
    return facts.packages(spec.driver, system.family)


def _modules(host: Host, spec: NetworkSpec) -> list[str]:
    """The modules that are loaded at boot; in a container they are the machine's."""
    if _container(host) or not (spec.driver or spec.peermem):
        return []
    found = mappings(mapping(host.section("network")).get("adapters"))
    vendors = {str(row.get("vendor")) for row in found} if host.reached else {_USUAL_VENDOR}
    return facts.modules(vendors, peermem=spec.peermem)


def _container(host: Host) -> bool:
    return bool(mapping(host.section("kernel")).get("container"))


def _adapters(context: ResolveContext) -> list[str] | None:
    """The PCI addresses of the adapters whose ports have role compute."""
    section: Any = context.host.section("network")
    if not section or section.get("devices") is None:
        return None
    declared = context.spec.expect.get("network") or []
    found = ports.ports(cast(Network, section), declared, context.spec.expect.get("count") or 0)
    return sorted(
        {
            port.device["address"]
            for port in found
            if port.role == ports.COMPUTE and port.device and port.device["address"]
        }
    )
