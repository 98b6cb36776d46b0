"""Section `machine`: what a machine consists of and how it is set, to compare it with its siblings.

Names and numbers of one machine alone (serial numbers, UUIDs, addresses) are left out.
"""

import ctypes
import os
import re

from ..dmi import TABLE, memory_modules
from ..filesystems import MOUNTINFO, parse_mounts
from ..nvme import nvme_drives
from ..pci import BUS, word
from ..privileges import LIBC
from ..processes import in_child
from ..text import natural, read_bytes

FIRMWARE = (
    "sys_vendor",
    "product_name",
    "board_vendor",
    "board_name",
    "bios_vendor",
    "bios_version",
    "bios_date",
)
CPUS, NODES = "/sys/devices/system/cpu", "/sys/devices/system/node"
BMC = "/sys/devices/platform/ipmi_bmc.*/firmware_revision"
# Parts of the kernel's command line that name this host's own disks, addresses and files.
OWN_PARTS = re.compile(
    r"(BOOT_IMAGE|BOOTIF|initrd|root|resume|hostname|ip|ifname|nfsroot|ostree|ds|boot|netconsole|fsck\.\w+"
    r"|systemd\.(hostname|machine_id)|rd\.(luks|lvm|md|iscsi|znet|zfcp|dasd)[\w.]*)(=|$)|.*"
    r"([0-9a-f]{8}(-[0-9a-f]{4}){3}-|([0-9a-f]{2}:){5}|://|passw|secret|token|credential|key=)",
    re.IGNORECASE,
)
# File systems of disks and of servers.
REAL = re.compile(
    r"(ext[234]|xfs|btrfs|zfs|f2fs|jfs|v?fat|exfat|bcachefs|nfs4?|lustre|gpfs|ceph|wekafs|beegfs\w*"
    r"|pvfs2|panfs|cifs|smb3|glusterfs|9p|virtiofs|orangefs|daos"
    r"|fuse\.(?!gvfsd|portal|lxcfs|snapfuse|sshfs)\S+)$"
)
# Places of containers, of packages, of sessions and of whoever plugs in a disk.
OTHERS = re.compile(
    r"/(proc|sys|dev|run|snap|media|etc|tmp"
    r"|var/(tmp|snap|lib/(docker|containers|containerd|kubelet|rancher|snapd|enroot)))(/|$)"
)
OPTIONS = re.compile(
    r"(noexec|nosuid|nodev|noatime|relatime|strictatime|sync|hard|soft|(local|no)?flock|nolock"
    r"|dax|prjquota|emergency_ro|shutdown|(vers|proto|nconnect|rsize|wsize|sec|timeo|retrans|lookupcache)=.*)$"
)
# Storage, networks, NVSwitches and accelerators, by the class of the PCI bus.
LINKED = re.compile("0x(01|02|0680|0b40|12)")
MOST_MOUNTS, MOST_LINES = 128, 128
LIMITS = re.compile(r"[^#\s]\S*\s+(-|soft|hard)\s+(nofile|memlock|nproc|stack|core)\s+\S+$")
DEFAULT_LIMITS = re.compile(r"DefaultLimit(NOFILE|MEMLOCK|NPROC|STACK|CORE)\s*=")
# Services from which jobs and logins get their limits, and those that set the clock.
STARTERS = ("sshd", "slurmd", "containerd", "dockerd", "kubelet", "pbs_mom")
CLOCKS = ("chronyd", "ntpd", "systemd-timesyn", "ptp4l", "phc2sys", "timemaster")
INHERITED = {"Max open files": "nofile", "Max locked memory": "memlock"}
UNSYNCHRONISED = 0x40
# The programs that start what a login runs; from OpenSSH 9.8 on the second one.
SSHD = ("sshd", "sshd-session")


def section_machine(host):
    unread = {}
    running = services(host)
    return {
        "firmware": {name: word(host, "/sys/class/dmi/id/" + name) for name in FIRMWARE},
        "pci": pci_functions(host),
        "bmc": asked(host, unread, "bmc", bmc_firmware),
        "memory": asked(host, unread, "memory", modules),
        "cpus": cpus(host),
        "numa": numa_nodes(host),
        "drives": nvme_drives(host),
        "gpus": gpus(host),
        "command_line": asked(host, unread, "command_line", command_line),
        "mounts": asked(host, unread, "mounts", mounts),
        "clock": dict(clock(host), services=sorted(set(running) & set(CLOCKS))),
        "limits": asked(host, unread, "limits", limits),
        "inherited": {name: inherited(host, running[name]) for name in STARTERS if name in running},
        "login": login_limits(host, os.getpid()),
        "unread": unread,
    }


def asked(host, unread, key, function):
    """The value of a function in a process of its own; else None, and the reason in `unread`."""
    state, value, error = in_child(function, (host,), host.inner_s / 4)
    if state == "ok":
        return value
    unread[key] = "this account cannot read it" if state == "denied" else error
    return None


def pci_functions(host):
    """How many functions of each kind are on the PCI bus, and the link of each that has one to
    compare. A GPU and the ports above it change theirs with the load. Virtual functions come and
    go."""
    kinds, links = {}, []
    for name in host.glob(BUS + "/*"):
        if host.exists(name + "/physfn"):
            continue
        code, vendor, device = (
            word(host, name + "/" + key) for key in ("class", "vendor", "device")
        )
        kind = "%s %s:%s" % (code, vendor, device)
        kinds[kind] = kinds.get(kind, 0) + 1
        speed, width = (word(host, name + "/current_link_" + key) for key in ("speed", "width"))
        if LINKED.match(code or "") and "GT/s" in (speed or "") and width != "0":
            row = {"address": os.path.basename(name), "class": code, "speed": speed, "width": width}
            links.append(row)
    return {"kinds": kinds, "links": links}


def bmc_firmware(host):
    """The firmware of each management controller that a driver of the kernel serves."""
    found = []
    for name in host.glob(BMC):
        parts = [word(host, name), word(host, os.path.dirname(name) + "/aux_firmware_revision")]
        found.append(" ".join(part for part in parts if part) or None)
    return found


def modules(host):
    try:
        return memory_modules(read_bytes(host.path(TABLE)))
    except FileNotFoundError:
        return []


def cpus(host):
    """Models and microcode by the threads that have them, and how many packages and cores."""
    models, microcode, cores = {}, {}, set()
    for block in (host.text_or_none("/proc/cpuinfo") or "").split("\n\n"):
        row = dict(re.findall(r"^([^\t:\n]+?)\s*: ?(.*)$", block, re.MULTILINE))
        arm = " ".join(row.get("CPU " + key, "") for key in ("implementer", "part", "variant"))
        model = row.get("model name") or row.get("cpu") or arm.strip()
        if "processor" in row and model:
            models[model] = models.get(model, 0) + 1
            if "microcode" in row:
                microcode[row["microcode"]] = microcode.get(row["microcode"], 0) + 1
    for name in host.glob(CPUS + "/cpu[0-9]*/topology"):
        cores.add((word(host, name + "/physical_package_id"), word(host, name + "/core_id")))
    return {
        "models": models,
        "microcode": microcode,
        "packages": len({package for package, _ in cores}) or None,
        "cores": len(cores) or None,
    }


def numa_nodes(host):
    """The NUMA nodes that have CPUs or memory."""
    found = []
    for name in sorted(host.glob(NODES + "/node[0-9]*"), key=natural):
        size = re.search(r"MemTotal:\s+(\d+) kB", word(host, name + "/meminfo") or "")
        listed = word(host, name + "/cpulist")
        memory = int(size.group(1)) // 1024 if size else None
        if listed or memory:
            found.append({"node": int(name[len(NODES) + 5 :]), "cpus": listed, "mib": memory})
    return found


def gpus(host):
    """The "model" and "vbios" of each GPU of the driver; a VBIOS that it has not read is null."""
    found = []
    for name in host.glob("/proc/driver/nvidia/gpus/*/information"):
        row = dict(re.findall(r"^([^:\n]+?)\s*:[ \t]*(.*\S)", word(host, name) or "", re.MULTILINE))
        vbios = row.get("Video BIOS", "?")
        found.append({"model": row.get("Model"), "vbios": None if "?" in vbios else vbios.lower()})
    return found


def command_line(host):
    """The kernel's command line without what names this host's own disks, addresses and files."""
    parts = host.text("/proc/cmdline").split()
    return " ".join(part for part in parts if not OWN_PARTS.match(part))


def mounts(host):
    """The file systems of disks and servers, each with the options that change what jobs see."""
    rows, found = parse_mounts(host.text(MOUNTINFO)), {}
    # Places of file systems that are mounted for one account when it logs in.
    automatic = tuple(row["path"] + "/" for row in rows if row["type"] == "autofs")
    for row in rows:
        path = row["path"]
        if REAL.match(row["type"]) and not OTHERS.match(path) and not path.startswith(automatic):
            options = {part for part in row["options"] if OPTIONS.match(part)}
            found[path] = {
                "path": path,
                "type": row["type"],
                "options": sorted(options | {"ro" if row["readonly"] else "rw"}),
            }
    return list(found.values())[:MOST_MOUNTS]


def clock(host):
    """The synchronisation of the kernel's clock, and its greatest error, by adjtimex(2)."""
    # struct timex, of which no mode is set: nothing changes. Its places are those of 64 bits.
    data, whole = ctypes.create_string_buffer(256), ctypes.sizeof(ctypes.c_long) == 8
    if not host.real or not whole or LIBC.adjtimex(data) < 0:
        return {"unsynchronised": None, "max_error_us": None}
    return {
        "unsynchronised": bool(int.from_bytes(data.raw[40:44], "little") & UNSYNCHRONISED),
        "max_error_us": int.from_bytes(data.raw[24:32], "little"),
    }


def limits(host):
    """The lines that limit files, memory and processes of logins, and those of all services."""
    found = {}
    for key, names, pattern in (
        ("logins", ("/etc/security/limits.conf", "/etc/security/limits.d/*.conf"), LIMITS),
        ("services", ("/etc/systemd/system.conf", "/etc/systemd/system.conf.d/*"), DEFAULT_LIMITS),
    ):
        lines = [
            " ".join(line.split())
            for pattern_of_names in names
            for name in host.glob(pattern_of_names)
            for line in host.text(name).splitlines()
            if pattern.match(line.strip())
        ]
        found[key] = lines[:MOST_LINES]
    return found


def services(host):
    """The processes that the first process started, by name, the oldest of each name."""
    found = {}
    for name in sorted(host.glob("/proc/[0-9]*/stat"), key=natural):
        text = word(host, name) or ""
        command, rest = text.partition("(")[2].rpartition(")")[::2]
        if rest.split()[1:2] == ["1"]:
            found.setdefault(command, name.split("/")[2])
    return found


def inherited(host, pid):
    """The "nofile" and "memlock" of a process, as `SOFT:HARD`; null: not read."""
    found = dict.fromkeys(INHERITED.values())
    for line in (word(host, "/proc/%s/limits" % pid) or "").splitlines():
        for name, key in INHERITED.items():
            if line.startswith(name):
                found[key] = ":".join(line[len(name) :].split()[:2])
    return found


def login_limits(host, pid):
    """The "account" and "memlock" of the ssh login that this probe came by; None: by none.

    What sshd started has the limits of the login's account, which PAM set; sudo may have given this
    process those of root. A timer (pull mode), Slurm and a console have other limits than logins.
    """
    seen = set()
    while pid not in seen and pid > 1:
        seen.add(pid)
        parent = parent_of(host, pid)
        if parent and name_of(host, parent) in SSHD:
            owner = re.search(r"^Uid:\s+(\d+)", word(host, "/proc/%d/status" % pid) or "", re.M)
            return {
                "account": int(owner.group(1)) if owner else None,
                "memlock": inherited(host, pid)["memlock"],
            }
        pid = parent
    return None


def name_of(host, pid):
    return (word(host, "/proc/%d/stat" % pid) or "").partition("(")[2].rpartition(")")[0]


def parent_of(host, pid):
    """The number of a process's parent, 0 where it is not known."""
    rest = (word(host, "/proc/%d/stat" % pid) or "").rpartition(")")[2].split()
    return int(rest[1]) if rest[1:] and rest[1].isdigit() else 0
