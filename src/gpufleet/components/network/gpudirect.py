"""GPUDirect: what keeps GPUs and network adapters from copying to each other, or makes it slow.

A module for it is no condition: with the open kernel modules programs use DMA-BUF instead. In a
virtual machine access control has to be on, the opposite of bare metal, and the machine's own
settings are not visible: there it is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.catalog import network as facts
from gpufleet.components.base import subjects
from gpufleet.components.base.ports import COMPUTE, Port
from gpufleet.components.base.registry import AS_ROOT, INSPECT, Evidence, Finding, check, shortened
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.network import Network
from gpufleet.documents.text import quoted
from gpufleet.documents.verdict import Verdict

from .reading import none_declared, not_judged, ports_of

# The device file of gdrdrv, and what has the modules that can be declared.
GDRDRV = "/dev/gdrdrv"
PACKAGES = {"gdrdrv": "gdrdrv-dkms (GDRCopy)", "nvidia_peermem": "the driver's modules"}


@check(
    "network.gpudirect",
    reads=("network", "kernel", "gpus", "driver"),
    repair=INSPECT,
    severity="major",
    skip_reason=none_declared,
)
def direct(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Nothing keeps the GPUs and the adapters that serve them from copying to each other."""
    found = ports_of(plan, observed)
    yield from not_judged(plan, observed, found)
    yield from _modules(plan["expect"].get("modules") or [], found.network)
    serving = [port for port in found.judged if port.role == COMPUTE and port.device]
    if not serving:
        if found.groups:
            yield Evidence("no RDMA port has the role compute")
        return
    network = found.network
    near = [
        gpu
        for gpu in network["gpus"]
        if any(set(gpu["path"]) & set(port.device["path"]) for port in serving if port.device)
    ]
    # On Grace none does, and that is how it is built.
    yield Evidence(f"{len(near)} of {len(network['gpus'])} GPUs share a PCI port with an adapter")
    yield from _peermem(network, observed.data["driver"]["loaded"])
    hypervisor = observed.data["gpus"].get("hypervisor")
    # The processors of ARM do not say whether they are a virtual machine's, and their IOMMU may
    # translate.
    arm = plan["arch"] == "aarch64"
    if hypervisor or arm:
        where = "a virtual machine" if hypervisor else "a processor that says nothing of it"
        yield Evidence(f"access control and IOMMU are not judged on {where}")
        return
    if hypervisor is None:
        yield Finding(
            "Access control and IOMMU are not judged: whether this is a virtual machine is unknown,"
            " its processor does not say so",
            "on bare metal, on the host: lspci -vvv shows the control words (ACSCtl) of the ports"
            " above GPUs and adapters",
            verdict=Verdict.NOT_DECLARED,
        )
        return
    yield from _access_control(serving, network)
    yield from _iommu(serving, network)


def _modules(declared: list[str], network: Network) -> Iterator[Finding]:
    """The declared modules are loaded, and programs can open the device file of gdrdrv."""
    modules = network["modules"]
    if declared and modules is None:
        yield Finding(
            f"Whether {shortened(declared)} {'is' if len(declared) == 1 else 'are'} loaded was not"
            " read",
            "on the host: see whether /sys is mounted (ls /sys/module)",
            verdict=Verdict.INCONCLUSIVE,
            about=(subjects.MODULES,),
        )
        return
    for name in declared:
        if not (modules or {}).get(name):
            yield Finding(
                f"The module {name} is not loaded, gpu_expect.modules declares it",
                f"on the host: modprobe {name} (at boot: a line in /etc/modules-load.d); if it is"
                f" not found, install {PACKAGES[name]}, built for this kernel",
            )
    files = {row["path"] for row in network["nodes"] if row["exists"]}
    if "gdrdrv" in declared and (modules or {}).get("gdrdrv") and GDRDRV not in files:
        yield Finding(
            f"The module gdrdrv is loaded, and {GDRDRV} is not there",
            "on the host: load it by the unit of its package (systemctl restart gdrcopy), which"
            " makes the device file",
        )


def _peermem(network: Network, driver: str | None) -> Iterator[Finding | Evidence]:
    version = network["peermem"]
    if version and driver and version != driver:
        yield Finding(
            f"The module nvidia_peermem is of driver {version}, loaded is {driver}",
            "reboot, or on the host: modprobe -r nvidia_peermem && modprobe nvidia_peermem while no"
            " program uses the GPUs; if it stays so, provision the driver",
        )
    modules = network["modules"] or {}
    names = [name for name in ("nvidia_peermem", "nv_peer_mem") if modules.get(name)]
    yield Evidence(f"module of GPUDirect RDMA: {names[0] if names else 'none (DMA-BUF, or none)'}")


def _between(serving: list[Port], network: Network) -> list[str]:
    """The PCI ports that copies between a GPU and an adapter below the same switch pass."""
    found: dict[str, None] = {}
    for gpu in network["gpus"]:
        for port in serving:
            mine = port.device["path"] if port.device else []
            shared = len([1 for a, b in zip(gpu["path"], mine, strict=False) if a == b])
            if shared:
                found.update(dict.fromkeys([*gpu["path"][shared:], *mine[shared:]]))
    return list(found)


def _access_control(serving: list[Port], network: Network) -> Iterator[Finding | Evidence]:
    words = {name: network["access_control"].get(name) for name in _between(serving, network)}
    redirecting = {
        name: names for name, word in words.items() if word and (names := facts.redirects(word))
    }
    if redirecting:
        listed = [f"{name} ({', '.join(names)})" for name, names in redirecting.items()]
        yield Finding(
            "Access control (ACS) of PCI ports sends copies between GPUs and adapters through the"
            f" processor: {shortened(listed)}",
            "declare gpu_network: {acs: off} and provision, or switch ACS off in the firmware's"
            " settings; on the host, for each port and until the next boot:"
            f" setpci -s {quoted(next(iter(redirecting)))} ECAP_ACS+6.w=0000",
            "\n".join(listed),
            about=(subjects.ACCESS_CONTROL,),
        )
    unread = [name for name, word in words.items() if word is None]
    if unread:
        yield Finding(
            f"The access control (ACS) of {shortened(unread)} cannot be read",
            AS_ROOT,
            verdict=Verdict.INCONCLUSIVE,
        )
    if words:
        yield Evidence(f"access control of {len(words)} PCI ports between GPUs and adapters read")


def _iommu(serving: list[Port], network: Network) -> Iterator[Finding | Evidence]:
    types = {gpu["address"]: gpu["iommu"] for gpu in network["gpus"]}
    types |= {port.name: port.device["iommu"] for port in serving if port.device}
    translated = [name for name, kind in types.items() if kind and facts.translates(kind)]
    if translated:
        yield Finding(
            f"The IOMMU translates addresses of {shortened(translated)}"
            f" ({types[translated[0]]}), which breaks copies between GPUs and adapters",
            "boot the host with iommu=pt on the kernel's command line, or switch the IOMMU off in"
            " the firmware's settings",
        )
    unread = [name for name, kind in types.items() if kind is None]
    if unread:
        yield Finding(
            f"How the IOMMU treats {shortened(unread)} cannot be read",
            "on the host: cat /sys/bus/pci/devices/ADDRESS/iommu_group/type (kernel 4.19 and later"
            " have it), or see its command line (cat /proc/cmdline)",
            verdict=Verdict.INCONCLUSIVE,
        )
    yield Evidence(f"IOMMU: {', '.join(sorted({kind for kind in types.values() if kind}))}")
