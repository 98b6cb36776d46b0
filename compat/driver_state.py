"""The state of a managed driver: what a host's packages, modules, kernels and services lack of it.

Pure functions from the plan and the host to plain sentences, used by `changes` (what is to be
done) and by the checks (what is wrong) alike. A kernel that has no module, or a package that
nothing holds, is a fault before the boot or the night that would make it an outage.

On a host declared to have no GPU everything is judged but what needs a card.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import versions
from .host import Host, Row, mapping, mappings

RECEIPT = ("driver", "driver")  # kind and id
SECTIONS = ("kernel", "gpus", "driver", "packages")  # of the snapshot, that are read here
PACKAGED = ("distro", "nvidia_repo")  # sources whose files belong to packages
PIN = "/etc/apt/preferences.d/gpufleet-driver"
PERSISTENCE = "nvidia-persistenced.service"
FABRIC = "nvidia-fabricmanager.service"

# What a kernel's modules say of their licence, by flavour.
FLAVOURS = {"NVIDIA": "proprietary", "Dual MIT/GPL": "open"}

# Of the driver's packages, those with a version of their own, or that of a firmware in the name.
_OWN_VERSION = re.compile(r"nvidia-(modprobe|persistenced|settings|xconfig|firmware-.*)")
_UPSTREAM = re.compile(r"(?:\d+:)?(\d{3}\.\d+(?:\.\d+)?)(?![.\d])")
# Packages whose scripts build the driver's modules, and stay half-configured where that fails.
_BUILDERS = re.compile(r"(dkms|linux-(image|headers|modules)-.*|kernel(-core|-devel)?)$")
# The repositories of NVIDIA that have drivers: not the container toolkit's, nor another tool's.
_OTHER_REPOSITORY = re.compile(r"container|docker|devtools|nsight", re.IGNORECASE)


@dataclass(frozen=True)
class Fault:
    """Something that is not as planned. `action`: what a run does about it, of `changes`' words;
    empty where only a restart or a person can help."""

    cause: str
    remedy: str
    action: str = "repair"


def managed(plan: Mapping[str, Any]) -> Row | None:
    """The plan's driver where gpufleet installs it, else None."""
    driver = mapping(plan.get("driver"))
    return driver if driver.get("managed") else None


def without_card(plan: Mapping[str, Any], host: Host) -> bool:
    """Whether nothing has to run: no card is declared, and none is there unless that is said."""
    count = mapping(plan.get("expect")).get("count")
    return count == 0 or (count is None and not host.gpus)


def provision(plan: Mapping[str, Any]) -> str:
    """What sets it right: the command, or those who look after a driver that is not managed."""
    if managed(plan):
        return f"./gpufleet provision --limit {plan['host']}"
    return f"have it set right by whoever installs the driver of {plan['host']}"


def upstream(version: Any) -> str | None:
    """NVIDIA's version in a package's: 535.261.03 in 3:535.261.03-1.el9; None for others."""
    match = _UPSTREAM.match(str(version or ""))
    return match[1] if match else None


def driver_packages(host: Host) -> list[Row]:
    """What is installed of the driver's packages, whatever their state."""
    return mappings(_packages(host).get("driver"))


def core(host: Host) -> dict[str, str]:
    """{package: the driver's version} of the packages that must be of one version."""
    return {
        str(row.get("name")): version
        for row in driver_packages(host)
        if (version := upstream(row.get("version"))) and not _OWN_VERSION.match(str(row.get("name")))
    }


def installed(plan: Mapping[str, Any], host: Host) -> str | None:
    """The version that is installed: of the packages, or of the libraries that a runfile left.

    Where packages are of several versions, that of the kernel module's counts.
    """
    packages = core(host)
    by_weight = sorted(packages, key=lambda name: ("dkms" not in name, "kernel" not in name, name))
    if by_weight:
        return packages[by_weight[0]]
    driver = managed(plan)
    return host.driver_library if driver and driver.get("source") == "runfile" else None


# -- packages -------------------------------------------------------------------------------------


def packages(plan: Mapping[str, Any], host: Host) -> Iterator[Fault]:
    """The driver's packages are there, whole, of one version, and the planned one."""
    driver, there, have = mapping(plan["driver"]), core(host), installed(plan, host)
    again, manager = provision(plan), _packages(host).get("manager")
    for row in mappings(_packages(host).get("broken")):
        name, status = str(row.get("name")), row.get("status")
        if name in [each.get("name") for each in driver_packages(host)] or _BUILDERS.match(name):
            yield Fault(
                f"package {name} is {status}: {manager} did not finish with it",
                f"{again} (on the host: dpkg --configure -a tells what stops it)")
    if driver["source"] not in PACKAGED:
        if there:
            yield Fault(
                f"packages of a driver ({_listed(there)}) stand beside the runfile's: each"
                " overwrites the other's files",
                "on the host: remove them (apt-get purge, dnf remove), or say gpu_driver: {source:"
                " distro}", "refuse")
    elif not there and host.driver_library:
        yield Fault(
            f"driver {host.driver_library} is there (libcuda.so) and belongs to no package: a"
            " runfile installed it, and packages would mix with it",
            "on the host: nvidia-uninstall, or say gpu_driver: {source: preinstalled}", "refuse")
        return
    elif not there:
        yield Fault("no package of the driver is installed", again, "install")
        return
    if len(set(there.values())) > 1:
        yield Fault(f"the driver's packages are of several versions: {_by_version(there)}", again)
    if have is None or host.driver_library is None:
        what = "the driver" if have is None else "its user-space library, libcuda.so,"
        yield Fault(f"{what} is not installed", again, "install" if have is None else "repair")
    receipt = host.receipt(*RECEIPT) or {}
    if have is not None:
        yield from _other_version(plan, receipt, have)
    ours = {name: own for name, own in mapping(receipt.get("packages")).items() if upstream(own)}
    now = {str(row.get("name")): _without_epoch(row.get("version")) for row in driver_packages(host)}
    if gone := set(ours) - set(now):
        yield Fault(f"packages installed with the driver are gone since: {_listed(gone)}", again)
    exchanged = {
        f"{name} {now[name]} (was {own})"
        for name, own in ours.items() if now.get(name) not in {None, _without_epoch(own)}
    }
    if exchanged:
        yield Fault(f"packages were exchanged by somebody else: {_listed(exchanged, 2)}", again)
    yield from _repositories(plan, host)


def _other_version(plan: Mapping[str, Any], receipt: Row, have: str) -> Iterator[Fault]:
    driver, again = mapping(plan["driver"]), provision(plan)
    if (wanted := driver.get("version")) and have != wanted:
        yield Fault(f"driver {have} is installed, {wanted} is planned", again, "upgrade")
    elif driver.get("branch") and not versions.begins(have, str(driver["branch"])):
        cause = f"driver {have} is installed, branch {driver['branch']} is planned"
        yield Fault(cause, again, "upgrade")
    elif driver["source"] not in PACKAGED and str(receipt.get("version") or have) != have:
        yield Fault(
            f"driver {receipt['version']} was installed by gpufleet, and {have} is there now:"
            " somebody else exchanged it", again)
    for key in ("source", "branch", "module"):
        wanted = str(driver.get(key))
        if driver.get(key) and str(receipt.get(key) or wanted) != wanted:
            yield Fault(
                f"the driver was installed with {key} {receipt[key]}, planned is {wanted}",
                again, "upgrade")


def _without_epoch(version: Any) -> str:
    """Some tools name a package's epoch, some do not."""
    return re.sub(r"^\d+:", "", str(version))


def _repositories(plan: Mapping[str, Any], host: Host) -> Iterator[Fault]:
    """Two definitions of one repository with two keys stop apt; two repositories mix drivers."""
    sources = [
        row for row in mappings(_packages(host).get("sources"))
        if not _OTHER_REPOSITORY.search(f"{row.get('path')} {row.get('uris')}")
    ]
    places: dict[str, list[Row]] = {}
    for row in sources:
        for uri in _texts(row.get("uris")):
            suites = " ".join(_texts(row.get("suites")))
            places.setdefault(f"{uri.rstrip('/')} {suites}", []).append(row)
    for place, rows in places.items():
        paths = sorted({str(row.get("path")) for row in rows})
        if len(rows) > 1 and len({str(row.get("signed_by")) for row in rows}) > 1:
            yield Fault(
                f"the repository {place} is defined with different keys, in {_listed(paths)}: the"
                " package manager refuses to read either",
                f"{provision(plan)} (it removes the older definition)")
    if len(places) > 1 and mapping(plan["driver"])["source"] == "nvidia_repo":
        paths = sorted({str(row.get("path")) for row in sources})
        yield Fault(
            f"drivers come from several repositories, of {_listed(paths)}: packages of both would"
            " be mixed", f"{provision(plan)} (it removes what is not gpufleet's)")


def holds(plan: Mapping[str, Any], host: Host) -> Iterator[Fault]:
    """Nothing exchanges the driver by itself: held, pinned, left alone by upgrades at night."""
    there, again = core(host), provision(plan)
    if mapping(plan["driver"])["source"] not in PACKAGED or not there:
        return
    held = {str(row.get("name")) for row in driver_packages(host) if row.get("held")}
    receipt = host.receipt(*RECEIPT)
    ours = mapping((receipt or {}).get("packages")) or there
    names = {str(row.get("name")) for row in driver_packages(host)}
    if loose := sorted(name for name in ours if name in names and name not in held):
        yield Fault(
            f"packages are not held, and can be upgraded under the running driver: "
            f"{_listed(loose)}", again)
    if _packages(host).get("manager") == "dpkg":
        pinned = {str(row.get("path")) for row in mappings(_packages(host).get("pins"))}
        if PIN not in pinned:
            yield Fault(f"no pin of the driver's version stands in {PIN}", again)
    night = mapping(_packages(host).get("unattended"))
    if night.get("installed") and not night.get("excluded"):
        yield Fault("unattended upgrades do not leave the driver's packages out", again)


# -- kernels --------------------------------------------------------------------------------------


def modules(plan: Mapping[str, Any], host: Host) -> Iterator[Fault]:
    """Each kernel that can boot has the driver's module, of its version and flavour."""
    driver, have = mapping(plan["driver"]), installed(plan, host)
    dkms = bool(_driver(host).get("dkms"))
    for kernel in judged_kernels(host):
        version = str(kernel.get("version"))
        name, lacks_headers = _kernel_name(host, version), not kernel.get("headers")
        module: Row = next(
            (row for row in mappings(kernel.get("modules")) if row.get("name") == "nvidia"), {})
        remedy = f"{provision(plan)} (on the host: {_mend(host, version, lacks_headers)})"
        if not module:
            why = f", and no headers ({headers(host, version)}) to build it with" * lacks_headers
            yield Fault(f"{name} has no NVIDIA module{why}: a host that boots it has no GPU",
                        remedy)
            continue
        told = module.get("version")
        if have and told and told != have:
            yield Fault(f"the module of {name} is {told}, the driver is {have}", remedy)
        flavour = FLAVOURS.get(str(module.get("license")))
        if flavour and driver.get("module") not in {None, flavour}:
            yield Fault(f"the module of {name} is {flavour}, planned is {driver['module']}",
                        provision(plan))
        if dkms and lacks_headers:
            yield Fault(
                f"{name} has no headers ({headers(host, version)}): the next driver cannot be"
                " built for it", remedy)


def judged_kernels(host: Host) -> list[Row]:
    """The kernels that can boot here, and the one that runs, unless it is not the host's own."""
    running = None if _kernel(host).get("container") else _kernel(host).get("running")
    rows = mappings(_kernel(host).get("installed"))
    found = [
        row for row in rows
        if (row.get("image") and "rescue" not in str(row["version"]))
        or row.get("version") == running
    ]
    if running and running not in [row.get("version") for row in rows]:
        found.append({"version": running, "headers": False, "modules": []})
    return found


def headers(host: Host, kernel: str) -> str:
    """The package with a kernel's headers."""
    kind = "kernel-devel" if _packages(host).get("manager") == "rpm" else "linux-headers"
    return f"{kind}-{kernel}"


def _kernel_name(host: Host, version: str) -> str:
    runs = version == _kernel(host).get("running") and not _kernel(host).get("container")
    words = ["it runs"] * runs + ["it boots next"] * (version == _kernel(host).get("next_boot"))
    return f"kernel {version}" + (f" ({', '.join(words)})" if words else "")


def _mend(host: Host, kernel: str, lacks_headers: bool) -> str:
    tool = "dnf" if _packages(host).get("manager") == "rpm" else "apt-get"
    install = f"{tool} install {headers(host, kernel)}; " if lacks_headers else ""
    return f"{install}dkms autoinstall -k {kernel}; or remove that kernel, if it is not wanted"


def nouveau(plan: Mapping[str, Any], host: Host) -> Iterator[Fault]:
    """nouveau is not loaded, and no boot loads it."""
    state, again = mapping(_driver(host).get("nouveau")), provision(plan)
    if not state.get("blacklisted"):
        yield Fault("nothing keeps the module nouveau from being loaded at boot", again)
    for kernel in mappings(_kernel(host).get("installed")):
        if kernel.get("initramfs_nouveau"):
            yield Fault(
                f"the initramfs {kernel.get('initramfs')} has the module nouveau, and nothing in"
                " it that forbids it",
                f"{again} (on the host: update-initramfs -u -k {kernel['version']}, or dracut -f"
                f" --kver {kernel['version']})")
    if state.get("loaded") and not without_card(plan, host) and not _kernel(host).get("container"):
        yield Fault("the module nouveau is loaded: CUDA cannot use a card that it holds",
                    f"reboot {plan['host']} ({again} does, where gpu_driver_reboot lets it)", "")


# -- what needs a card ----------------------------------------------------------------------------


def nodes(plan: Mapping[str, Any], host: Host) -> Iterator[Fault]:
    """Each GPU of the loaded driver has its device file, and so have control and memory."""
    there = _texts(_gpus(host).get("nodes"))
    if host.driver is None or not host.gpus:
        return
    wanted = [f"/dev/nvidia{at}" for at in range(len(host.gpus))]
    wanted += ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    if missing := [name for name in wanted if name not in there]:
        yield Fault(
            f"device files are missing, without which programs find no GPU: {_listed(missing)}",
            "on the host, as root: nvidia-modprobe -u -c 0 (nvidia-smi makes those of the cards);"
            " the persistence daemon makes them at each boot (gpu_driver: {persistence: true})", "")


def persistence(plan: Mapping[str, Any], host: Host) -> Iterator[Fault]:
    """The persistence daemon runs, and starts at boot, where it is declared."""
    if mapping(plan["driver"]).get("persistence") and not without_card(plan, host):
        yield from _service(plan, host, "persistence", PERSISTENCE)


def fabric(plan: Mapping[str, Any], host: Host) -> Iterator[Fault]:
    """The fabric manager runs exactly where an NVSwitch is, of the driver's very version."""
    state = mapping(_driver(host).get("fabric"))
    if not mapping(plan["driver"]).get("fabric_manager"):
        if state.get("enabled"):
            yield Fault(f"service {FABRIC} starts at boot where no NVSwitch is, and fails",
                        f"{provision(plan)} (on the host: systemctl disable {FABRIC})")
        return
    yield from _service(plan, host, "fabric", FABRIC)
    have = host.driver or installed(plan, host)
    if state.get("version") and have and state["version"] != have:
        yield Fault(
            f"the fabric manager is {state['version']}, the driver is {have}: CUDA starts only"
            " where they are equal", provision(plan))


def _service(plan: Mapping[str, Any], host: Host, key: str, unit: str) -> Iterator[Fault]:
    state = mapping(_driver(host).get(key))
    if state.get("unit") is None:
        yield Fault(f"service {unit} is not installed", provision(plan))
    elif not state.get("enabled"):
        yield Fault(f"service {unit} does not start at boot",
                    f"{provision(plan)} (on the host: systemctl enable {unit})")
    # Without the driver it cannot run, and that is another fault.
    elif state.get("active") is False and host.driver is not None:
        yield Fault(f"service {unit} does not run",
                    f"{provision(plan)} (on the host: systemctl status {unit} tells why)")


def secure_boot(plan: Mapping[str, Any], host: Host) -> Iterator[Fault]:
    """Where the firmware refuses unsigned modules, the key that signs ours is enrolled."""
    if host.rejects_modules and host.driver is None:
        yield Fault(
            "Secure Boot is on, and the key that signs the driver's modules is not enrolled: the"
            " kernel refuses them",
            f"on {plan['host']}: mokutil --import /var/lib/dkms/mok.pub (Ubuntu:"
            " /var/lib/shim-signed/mok/MOK.der), reboot, and enrol the key at the console; or"
            " switch Secure Boot off in the firmware", "")


def mismatch(plan: Mapping[str, Any], host: Host) -> Iterator[Fault]:
    """The module that runs, the one on disk and the libraries are of one version."""
    loaded, library = host.driver, host.driver_library
    on_disk = _driver(host).get("on_disk")
    if without_card(plan, host):
        return
    pending = host.reboot_pending
    if loaded is None:
        cause = (
            f"the NVIDIA kernel module is not loaded (on disk is {on_disk or 'none'}, the libraries"
            f" are {library or 'none'})"
        )
    elif library is None:
        cause = "the driver's user-space library, libcuda.so, is not installed"
    elif library != loaded or on_disk not in {None, loaded}:
        cause = (
            f"the loaded driver is {loaded}, on disk is {on_disk or 'none'}, its libraries are"
            f" {library}: they were upgraded under it"
        )
    else:
        return
    if pending:
        cause += f"; a reboot is pending since {pending.get('since')} ({pending.get('because')})"
    yield Fault(
        cause,
        f"{provision(plan)} (it loads the driver anew, or reboots where gpu_driver_reboot lets it)"
        if managed(plan)
        else f"reboot {plan['host']}; if it stays so, install the driver again",
        "",
    )


def mig(plan: Mapping[str, Any], host: Host) -> Iterator[Fault]:
    """Each GPU is split into the declared instances, and no others."""
    layout, seen = mapping(mapping(plan["driver"]).get("mig")), _gpus(host).get("mig")
    if not layout or seen is None or without_card(plan, host):
        return
    by_index = {str(row.get("gpu")): row for row in mappings(seen)}
    for index in [*by_index, *(each for each in layout if each not in {"all", *by_index})]:
        wanted = layout.get(index, layout.get("all"))
        if wanted is None:
            continue
        row, again = by_index.get(index), provision(plan)
        if row is None:
            yield Fault(f"there is no GPU {index} to split as gpu_mig declares", again, "")
            continue
        have = sorted(_texts(row.get("instances")))
        if wanted and row.get("mode") is None:
            yield Fault(f"GPU {index} knows no MIG, declared is {', '.join(wanted)}",
                        f"take GPU {index} out of gpu_mig", "")
        elif have != sorted(map(str, wanted)) or (row.get("mode") == "on") != bool(wanted):
            there = ", ".join(have) or ("MIG without instances" if row.get("mode") == "on" else
                                        "no MIG")
            yield Fault(f"GPU {index} has {there}, declared is {', '.join(wanted) or 'no MIG'}",
                        again)


# -- the sections; one that could not be read says nothing here, and its reader says so ------------


def _kernel(host: Host) -> Row:
    return mapping(host.section("kernel"))


def _gpus(host: Host) -> Row:
    return mapping(host.section("gpus"))


def _driver(host: Host) -> Row:
    return mapping(host.section("driver"))


def _packages(host: Host) -> Row:
    return mapping(host.section("packages"))


def _texts(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


# -- all of it ------------------------------------------------------------------------------------

Judge = Callable[[Mapping[str, Any], Host], Iterator[Fault]]

# In the order in which they matter, and in which a run sets them right. Whether the driver that
# is installed also runs is for `restart`.
ALL: tuple[Judge, ...] = (
    packages, holds, modules, nouveau, persistence, fabric, mig)


def faults(plan: Mapping[str, Any], host: Host) -> list[Fault]:
    """Everything that a run has to do something about; a refusal comes first."""
    found = [each for judge in ALL for each in judge(plan, host) if each.action]
    return sorted(found, key=lambda each: each.action != "refuse")


def _listed(names: Any, most: int = 4) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def _by_version(there: Mapping[str, str]) -> str:
    found = sorted(set(there.values()))
    return "; ".join(
        f"{version} ({_listed([name for name, own in there.items() if own == version], 2)})"
        for version in found)
