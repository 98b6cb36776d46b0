"""The programs that compute or draw on a GPU, as NVML lists them."""

import collections
import ctypes
import os
import struct

from .library import Absent, Refused
from .runtime import MIB
from .sensors import Sensors

# The versions of a list, newest first; an old driver has the last one only.
VERSIONS = tuple("nvmlDeviceGet%sRunningProcesses" + end for end in ("_v3", "_v2", ""))
# The bytes that drivers write for one program, and the room for so many programs. The number is a
# prime, so that the bytes of a few programs are never as many as those of a whole cleared room.
SIZES, MOST = (16, 24, 32), 257
# A byte of memory that NVML has not written.
UNTOUCHED = b"\xa5"
# NVML's status where there are more programs than room, and its number for a size it does not know.
MORE, UNKNOWN = 7, (1 << 64) - 1

# NVML's mode of a GPU that is a guest's share of one.
VGPU = 2
# Programs of a desktop may compute as well, and are no job. The kernel keeps 15 letters of a name.
DESKTOPS = {
    "Xorg",
    "Xwayland",
    "cinnamon",
    "cosmic-comp",
    "gnome-shell",
    "gnome-remote-de",
    "kwin_wayland",
    "kwin_x11",
    "plasmashell",
    "sway",
    "weston",
    "xfwm4",
}

# The users of a GPU. `others`: True if other programs compute on it; `own_mib`: this process's
# memory there; each is None where NVML does not say it. `drawn_mib`: the memory of programs that
# draw; None where NVML lists none. `alone`: True if NVML lists this process, and no other that
# computes. `virtual`: True if it is a guest's share of a GPU.
Use = collections.namedtuple("Use", "others own_mib drawn_mib alone virtual")


def on_gpu(pci_address):
    """The `Use` of a GPU. In a container NVML may list no program at all, not even this one."""
    try:
        nvml = Sensors(pci_address)
    except (Refused, OSError):
        return Use(None, None, None, False, False)
    pid, drawing = os.getpid(), []
    try:
        drawing = listed(nvml, "Graphics")
    except Refused:  # its driver draws nothing
        pass
    others = own_mib = None
    alone = False
    try:
        computing = without_desktop(listed(nvml, "Compute"), drawing)
        others, own_mib = shares(computing, pid)
        alone = others is False and pid in [each[0] for each in computing]
    except Refused:
        pass
    virtual = nvml.read("nvmlDeviceGetVirtualizationMode", ctypes.c_uint) == VGPU
    return Use(others, own_mib, drawn(drawing, pid), alone, virtual)


def listed(nvml, kind="Compute"):
    """The pid, bytes and MIG instance (or None) of each program; None where there are too many."""
    room = ctypes.create_string_buffer(UNTOUCHED * (MOST * SIZES[-1]))
    for function in (version % kind for version in VERSIONS):
        count = ctypes.c_uint(MOST)
        try:
            query = getattr(nvml.library, function)
        except AttributeError:
            continue
        status = query(nvml.handle, ctypes.byref(count), room)
        if status == MORE:
            return None
        if status:
            raise Refused("%s returned %d" % (function, status))
        return programs(room.raw[: MOST * SIZES[-1]], count.value, function[-3:] in ("_v3", "_v2"))
    raise Absent("it has no %s" % VERSIONS[-1] % kind)


def programs(raw, count, versioned):
    """The programs in memory that NVML wrote; `versioned`: the function's name has a version.

    What it writes for each has 16, 24 or 32 bytes: drivers of one branch differ under one name. So
    the size follows from where the writing ended: after the programs, or after the whole room,
    which a driver may clear. Otherwise the function has the size that nvml.h declares for it.
    """
    written = len(raw.rstrip(UNTOUCHED))
    declared = 24 if versioned else 16
    size = next((size for size in SIZES if written in (size * count, size * MOST)), declared)
    found = []
    for at in range(0, size * min(count, MOST), size):
        pid, held = struct.unpack_from("<I4xQ", raw, at)
        instance = struct.unpack_from("<I", raw, at + 16)[0] if size > 16 else None
        # No program has the number 0: a driver that hides the programs of others may list it.
        if pid:
            found.append((pid, held, instance))
    return found


def without_desktop(computing, drawing):
    """The programs that compute, without the display servers and compositors among them."""
    if computing is None:
        return None
    pids = {each[0] for each in drawing or []}
    return [each for each in computing if each[0] not in pids or command(each[0]) not in DESKTOPS]


def command(pid):
    """The name of that process; empty where it is not visible."""
    try:
        with open("/proc/%d/comm" % pid, errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def drawn(found, pid):
    """How many MiB other programs that draw have; None where there are none."""
    if found is None:
        return UNKNOWN // MIB
    held = [each[1] for each in found if each[0] != pid]
    return min(sum(held), UNKNOWN) // MIB if held else None


def shares(found, pid):
    """The values `others` and `own_mib` of `Use`. Another instance of MIG has its own memory."""
    if found is None:
        return True, None
    own = [each for each in found if each[0] == pid]
    if not own and len(found) == 1 and not runs_here(found[0][0]):
        # In a container NVML may list this process by its number on the host.
        return False, None
    others = [each for each in found if each[0] != pid and (not own or each[2] == own[0][2])]
    held = own[0][1] if own else UNKNOWN
    return bool(others), None if held == UNKNOWN else held // MIB


def runs_here(pid):
    """Return whether this container, or this host, has a process of that number."""
    return os.path.exists("/proc/%d" % pid)
