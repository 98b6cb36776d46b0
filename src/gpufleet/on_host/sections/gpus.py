"""Section `gpus`: NVIDIA's devices on the PCI bus, their device nodes and access to them."""

import os
import re
import stat

from ..accounts import NoAccountError, account, account_name
from ..holders import mps_processes
from ..manifest import mode_of
from ..mig import mig_of
from ..pci import port_of
from ..processes import in_child
from ..text import natural
from .kernel import container_of

NVIDIA_VENDOR = "0x10de"


def nvidia_devices(host):
    """NVIDIA's devices (vendor, device, class, address) on the PCI bus.

    Without virtual functions, which a GPU that is shared with virtual machines has for them.
    """
    found = []
    for directory in host.glob("/sys/bus/pci/devices/*"):
        if host.exists(directory + "/physfn"):
            continue
        values = {}
        for key in ("vendor", "device", "class"):
            values[key] = (host.text_or_none(directory + "/" + key) or "").strip()
        if values["vendor"] == NVIDIA_VENDOR:
            found.append(dict(values, address=os.path.basename(directory)))
    return found


def pci_cards(host):
    """NVIDIA's devices on the PCI bus that are graphics cards."""
    return [device for device in nvidia_devices(host) if device["class"].startswith("0x03")]


def section_gpus(host):
    cards = pci_cards(host)
    switches = [
        device["address"] for device in nvidia_devices(host) if device["class"].startswith("0x0680")
    ]
    for card in cards:
        driver = host.path("/sys/bus/pci/devices/%s/driver" % card["address"])
        card["port"] = port_of(host, "/sys/bus/pci/devices/" + card["address"])
        card["driver"] = os.path.basename(os.readlink(driver)) if os.path.islink(driver) else None
    # A container sees all cards of the machine on the bus, and here those that it was given.
    given = [os.path.basename(name) for name in host.glob("/proc/driver/nvidia/gpus/*")]
    if given and container_of(host):
        cards = [card for card in cards if card["address"] in given]
    nodes = sorted(host.glob("/dev/nvidia*"), key=natural)
    return {
        "pci": cards,
        "nvswitches": switches,
        "hypervisor": hypervisor(host),
        "platform": platform(host),
        "mig": mig_of(host),
        "nodes": nodes,
        "node_access": node_access(host, nodes),
        "mps": mps_processes(host),
    }


def hypervisor(host):
    """True if the processor has the flag that hypervisors set; None where it lists no flags."""
    flags = re.search(r"^flags\s*:(.*)$", host.text_or_none("/proc/cpuinfo") or "", re.MULTILINE)
    return "hypervisor" in flags.group(1).split() if flags else None


def platform(host):
    """`wsl` or `jetson`, whose GPUs are on no PCI bus; None for every other machine."""
    kernel = (host.text_or_none("/proc/sys/kernel/osrelease") or "").lower()
    if "microsoft" in kernel or host.exists("/dev/dxg"):
        return "wsl"
    board = host.text_or_none("/proc/device-tree/compatible") or ""
    return "jetson" if "nvidia,tegra" in board else None


# The device files that every CUDA program opens, and that a driver's own tools do not.
COMPUTE_NODE = re.compile(r"^/dev/nvidia(\d+|ctl|-uvm)$")


def node_access(host, nodes):
    """The device files that CUDA opens (path, mode, uid, gid, major, tried, kind, error).

    `error`: why the account that uses them could not. Only root can try that for another one.
    """
    found = []
    for name in nodes:
        if COMPUTE_NODE.match(name):
            info = os.stat(host.path(name))
            major = os.major(info.st_rdev) if stat.S_ISCHR(info.st_mode) else None
            found.append(
                {
                    "path": name,
                    "mode": mode_of(info),
                    "uid": info.st_uid,
                    "gid": info.st_gid,
                    "major": major,
                    "tried": False,
                    "kind": None,
                    "error": None,
                }
            )
    if not found:
        return []
    names = [row["path"] for row in found]
    # A directory service that gives no answer must not take the section with it.
    state, errors, reason = in_child(
        access_as, (host, host["service_user"], names), host.inner_s / 8
    )
    if state in ("denied", "hung"):
        return found
    for row in found:
        row["tried"] = True
        row["kind"], row["error"] = errors[row["path"]] if state == "ok" else (None, reason)
    return found


def access_as(host, user, names):
    """The kind and the reason why an account cannot read and write a path (or Nones), by path.

    Nothing is opened.
    """
    if os.geteuid() == 0:
        # Without a name: an account that owns nothing and is in no group.
        try:
            number, group, groups = account(host, user) if user else (65534, 65534, [])
        except NoAccountError as error:
            return dict.fromkeys(names, ("no-account", str(error)))
        if not host.real:
            os.chroot(host.root)
        os.setgroups(groups)
        os.setgid(group)
        os.setuid(number)
        names = {name: name for name in names}
    elif user in (None, account_name(os.geteuid())):
        names = {name: host.path(name) for name in names}
    else:
        raise PermissionError("only root can try what %s may" % user)
    return {
        name: (None, None)
        if os.access(path, os.R_OK | os.W_OK)
        else ("permission", "permission denied")
        for name, path in names.items()
    }
