"""Kernels: whether each that can boot has the driver's module, and nouveau is disabled."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.components.base.driver_state import Fault, installed, part, provision, without_card
from gpufleet.components.base.host import Host, mapping, mappings
from gpufleet.documents.plan import Plan
from gpufleet.documents.text import quoted, shell
from gpufleet.documents.types import Row
from gpufleet.on_host.pci_drivers import OWN_DRIVER, given_away

from . import secure_boot

COMMAND_LINE = "/proc/cmdline"
# The kind of a kernel module by its licence.
KINDS = {"NVIDIA": "proprietary", "Dual MIT/GPL": "open"}
# The modules that CUDA needs.
NEEDED = ("nvidia", "nvidia-uvm")


def modules(plan: Plan, host: Host) -> Iterator[Fault]:
    """Each kernel that can boot has the driver's module, of its version and kind."""
    driver, have = mapping(plan["driver"]), installed(plan, host)
    dkms = bool(part(host, "driver").get("dkms"))
    yield from blocked_modules(host)
    for kernel in judged_kernels(host):
        version = str(kernel.get("version"))
        name, lacks_headers = _kernel_name(host, version), not kernel.get("headers")
        module = loaded_module(kernel, "nvidia")
        remedy = f"{provision(plan)} (on the host: {_repair(host, version, lacks_headers)})"
        if not module:
            why = f", and no headers ({headers(host, version)}) to build it with" * lacks_headers
            # dkms autoinstall leaves modules that DKMS lists as installed as they are.
            if not lacks_headers and _is_marked(host, version, have):
                remedy = f"{provision(plan)} (on the host: {_rebuild(host, version)})"
            yield Fault(
                f"{name} has no NVIDIA module{why}: a host that boots it has no GPU", remedy
            )
            continue
        for row in (loaded_module(kernel, needed) for needed in NEEDED):
            if row.get("error"):
                yield Fault(
                    f"{name} cannot load {quoted(str(row.get('path')))}: {row['error']}",
                    f"{provision(plan)} (on the host: {_rebuild(host, version)})",
                )
        version_found = module.get("version")
        if have and version_found and version_found != have:
            yield Fault(f"the module of {name} is {version_found}, the driver is {have}", remedy)
        kind = KINDS.get(str(module.get("license")))
        if kind and driver.get("module") not in {None, kind}:
            yield Fault(
                f"the module of {name} is {kind}, planned is {driver['module']}", provision(plan)
            )
        if dkms and lacks_headers:
            yield Fault(
                f"{name} has no headers ({headers(host, version)}): the next driver cannot be"
                " built for it",
                remedy,
            )


def blocked_modules(host: Host) -> Iterator[Fault]:
    """Faults that keep every kernel from loading the driver; none in a container."""
    if part(host, "kernel").get("container") and not host.is_image:
        return
    for row in mappings(part(host, "driver").get("blocked")):
        module, path = quoted(str(row.get("module"))), quoted(str(row.get("by")))
        yield Fault(
            f"{path} keeps the module {module} from being loaded: a boot leaves the host without"
            " CUDA",
            f"on the host: take out of {path} what is there about {module}, make the initramfs"
            " again, and reboot"
            if path != COMMAND_LINE
            else f"on the host: take module_blacklist={module} out of the boot loader's"
            " configuration, and reboot",
            "",
        )


def keeps_out(host: Host) -> bool:
    """Return whether the driver is not loaded, since something keeps its modules out."""
    return host.driver is None and any(blocked_modules(host))


def keeps_memory_out(host: Host) -> bool:
    """Return whether nvidia_uvm, which is blocked, is not loaded beside the driver."""
    loaded = part(host, "driver").get("modules")
    return host.driver is not None and any(
        row.get("module") == "nvidia_uvm" and "nvidia_uvm" not in (loaded or [])
        for row in mappings(part(host, "driver").get("blocked"))
    )


def loaded_module(kernel: Row, name: str) -> Row:
    """The module of a kernel that is loaded by a name; empty where it has none."""
    rows = mappings(kernel.get("modules"))
    return next((row for row in rows if row.get("name") == name), {})


def judged_kernels(host: Host) -> list[Row]:
    """The kernels that can boot, and the running one unless the host is a container."""
    state = part(host, "kernel")
    running = None if state.get("container") else state.get("running")
    rows = mappings(state.get("installed"))
    found = [
        row
        for row in rows
        if (row.get("image") and "rescue" not in str(row.get("version")))
        or row.get("version") == running
    ]
    if running and running not in [row.get("version") for row in rows]:
        found.append({"version": running, "headers": False, "modules": []})
    return found


def headers(host: Host, kernel: str) -> str:
    """The package with a kernel's headers: kernel-64k-devel-VERSION of Red Hat's VERSION+64k."""
    if part(host, "packages").get("manager") != "rpm":
        return f"linux-headers-{kernel}"
    version, _, variant = kernel.partition("+")
    return "-".join(["kernel", *([variant] if variant else []), "devel", version])


def _kernel_name(host: Host, version: str) -> str:
    state = part(host, "kernel")
    runs = version == state.get("running") and not state.get("container")
    notes = ["it runs"] * runs + ["it boots next"] * (version == state.get("next_boot"))
    return f"kernel {version}" + (f" ({', '.join(notes)})" if notes else "")


def _rebuild(host: Host, kernel: str) -> str:
    """How a module is built and installed again that DKMS takes for installed."""
    trees = [
        f"{row.get('module')}/{row.get('version')}"
        for row in mappings(part(host, "driver").get("dkms"))
        if row.get("kernel") == kernel
    ]
    if not trees:
        again = "reinstall the package that has the module, then depmod"
        return shell(again, kernel, instead=f"{again} {quoted(kernel)}")
    by_hand = f"remove and install it again for {quoted(kernel)}: dkms remove, dkms install"
    # Before DKMS 3.0.7 neither build nor install changes with --force what is there already.
    remove = shell("dkms remove -k", kernel, trees[0], instead=by_hand)
    install = shell("dkms install --force -k", kernel, trees[0], instead=by_hand)
    return by_hand if remove == install else f"{remove} && {install}"


def _is_marked(host: Host, kernel: str, driver: str | None) -> bool:
    """Return whether DKMS lists the modules of this driver as installed."""
    return any(
        row.get("kernel") == kernel
        and row.get("version") == driver
        and row.get("state") == "installed"
        for row in mappings(part(host, "driver").get("dkms"))
    )


def _repair(host: Host, kernel: str, lacks_headers: bool) -> str:
    tool = "dnf" if part(host, "packages").get("manager") == "rpm" else "apt-get"
    install = f"{tool} install {headers(host, kernel)}; " if lacks_headers else ""
    build = shell(
        f"{install}dkms autoinstall -k",
        kernel,
        instead=(f"build the module for {quoted(kernel)}, if there is such a kernel"),
    )
    return f"{build}; or remove that kernel, if it is not needed"


def nouveau(plan: Plan, host: Host) -> Iterator[Fault]:
    """nouveau is not loaded, and no boot loads it."""
    state, again = mapping(part(host, "driver").get("nouveau")), provision(plan)
    if not state.get("blacklisted"):
        yield Fault("nothing keeps the module nouveau from being loaded at boot", again)
    for kernel in judged_kernels(host):
        if kernel.get("initramfs_nouveau"):
            yield Fault(
                f"the initramfs {kernel.get('initramfs')} has the module nouveau, and nothing in"
                " it blocks it",
                f"{again} (on the host: {_initramfs(str(kernel.get('version')))})",
            )
    own = not part(host, "kernel").get("container")
    # It may stay, loaded for a display that is gone: others have every card, and CUDA works.
    harmless = (
        bool(host.gpus)
        and all(
            card.get("driver") == OWN_DRIVER or given_away(card.get("driver")) for card in host.gpus
        )
        and part(host, "driver").get("cuinit") == 0
    )
    if state.get("loaded") and own and not without_card(plan, host) and not harmless:
        yield Fault(
            "the module nouveau is loaded: CUDA cannot use a card that it holds",
            f"reboot {plan['host']} ({again} does, where gpu_driver_reboot allows it)",
            "",
        )


def _initramfs(kernel: str) -> str:
    made = f"make the initramfs of {quoted(kernel)} again, if there is such a kernel"
    return shell(f"update-initramfs -u -k {kernel}, or dracut -f --kver", kernel, instead=made)


def key_enrolled(plan: Plan, host: Host) -> Iterator[Fault]:
    """Where the kernel refuses unsigned modules, the key that signs ours is enrolled."""
    if secure_boot.refuses_modules(host) and host.driver is None:
        cause, remedy = secure_boot.problem(host)
        yield Fault(cause, f"on {plan['host']}, {remedy}", "")
