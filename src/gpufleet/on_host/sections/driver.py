"""Section `driver`: the loaded driver, its libraries, services and holders."""

import ctypes
import json
import os

from ..constants import IMAGE
from ..driver_files import LIBRARY_LOCATIONS, driver_library, judge_library, of_container
from ..holders import holders_of
from ..kernel_modules import driver_modules
from ..mig import BOOT_UNIT, boot_layout
from ..modprobe import COMMAND_LINE, blocked, kept_out, modprobe_files
from ..nvlink import subnet_manager
from ..processes import NoAnswerError, in_child, open_library, run_command
from ..text import first_match, natural
from .kernel import container_of, running_kernel

# The states of units that start at boot; a static one is started by others, such as the rules for
# devices.
ENABLED = ("enabled", "enabled-runtime", "static")
MASKED = ("masked", "masked-runtime")
# The modules that CUDA needs, as modprobe writes them.
NEEDED = ("nvidia", "nvidia_uvm")
LIBRARY_FILE = r"libcuda\.so\.(\d{2,}\.\d+(?:\.\d+)?)$"


def section_driver(host):
    loaded = first_match(
        r"Kernel Module[^\n]*?\s(\d+\.\d+(?:\.\d+)?)\s",
        host.text_or_none("/proc/driver/nvidia/version"),
    )
    modules = [line.split()[0] for line in (host.text_or_none("/proc/modules") or "").splitlines()]
    library = installed_library(host)
    found = {"version": None, "cuinit": None, "path": None, "capabilities": None}
    if library or host.real:
        name = driver_library(host, "libcuda.so.1")
        judge_library(name)
        state, answer, error = in_child(query_driver, (name,), host.inner_s)
        if state == "hung":
            raise NoAnswerError("libcuda.so.1 gave no answer: %s" % error)
        found = answer if state == "ok" else found
    # A newer one that programs open first (cuda-compat) is not the driver's own.
    library = library or library_version(found["path"] or "")
    own = [
        row["version"]
        for row in driver_modules(host, running_kernel(host))
        if row["name"] == "nvidia"
    ]
    # An image does not boot with that of the machine where it is built.
    built_here = container_of(host) == IMAGE
    command_line = "" if built_here else host.text_or_none(COMMAND_LINE) or ""
    files = modprobe_files(host)
    fabric = unit_state(host, "nvidia-fabricmanager.service")
    fabric["version"] = None
    if fabric["unit"] and host.real:
        _, out, _ = run_command(["nv-fabricmanager", "--version"], host.inner_s / 8)
        fabric["version"] = first_match(r"(\d+\.\d+(?:\.\d+)?)", out)
    return {
        "loaded": loaded,
        "library": library,
        "library_path": found["path"] and host.name(found["path"]),
        "cuda_version": found["version"],
        "cuinit": found["cuinit"],
        "capabilities": found["capabilities"],
        "modules": [m for m in modules if m == "nouveau" or m.startswith("nvidia")],
        "on_disk": own[0] if own else None,
        "dkms": dkms_of(host),
        "blocked": blocked(files, command_line, NEEDED),
        "nouveau": {
            "loaded": "nouveau" in modules,
            "blacklisted": kept_out(files, command_line, "nouveau"),
        },
        "of_container": of_container(host),
        "persistence": unit_state(host, "nvidia-persistenced.service"),
        "fabric": fabric,
        "nvlsm": subnet_manager(host),
        "imex": imex(host),
        "coherent_memory": coherent_memory(host),
        "mig_boot": dict(unit_state(host, BOOT_UNIT), layout=boot_layout(host)),
        "holders": holders_of(host),
        "reboot_pending": pending_reboot(host),
    }


def imex(host):
    """The service that shares GPU memory between the trays of a rack, its nodes and channels."""
    text = host.text_or_none("/etc/nvidia-imex/nodes_config.cfg")
    lines = None if text is None else [line.strip() for line in text.splitlines()]
    return dict(
        unit_state(host, "nvidia-imex.service"),
        nodes=lines and [line for line in lines if line and not line.startswith("#")],
        channels=len(host.glob("/dev/nvidia-caps-imex-channels/channel*")),
    )


def coherent_memory(host):
    """The memory that CPU and GPU share: the driver's "mode", and the NUMA "nodes".

    The nodes have memory and no CPU.
    """
    place, nodes = "/sys/devices/system/node/", []
    for name in host.glob(place + "node[0-9]*"):
        total = first_match(r"MemTotal:\s+(\d+)", host.text_or_none(name + "/meminfo"))
        cpus = host.text_or_none(name + "/cpulist")
        if cpus is not None and not cpus.strip() and int(total or 0):
            nodes.append(int(name[len(place + "node") :]))
    mode = first_match(
        r'^CoherentGPUMemoryMode: "?(\w+)', host.text_or_none("/proc/driver/nvidia/params")
    )
    return {"mode": mode, "nodes": sorted(nodes)}


def unit_state(host, name):
    """The "unit", "enabled" and "active" of a service; systemd alone knows if it is active."""
    directories = [
        location
        for location in ("/etc/systemd/system/", "/usr/lib/systemd/system/", "/lib/systemd/system/")
        if host.exists(location + name)
    ]
    if not directories:
        return {"unit": None, "enabled": None, "active": None}
    found = {
        "unit": name,
        "active": None,
        "enabled": bool(host.glob("/etc/systemd/system/*/" + name)),
        "masked": is_masked(host, name),
    }
    if host.real and container_of(host) == IMAGE:
        # No systemd runs in an image; which units it will start is in files.
        _, out, _ = run_command(["systemctl", "is-enabled", name], host.inner_s / 8)
        found["enabled"] = out.strip() in ENABLED
    elif host.real:
        status, out, _ = run_command(
            ["systemctl", "show", "-p", "UnitFileState,ActiveState,ExecStart", name],
            host.inner_s / 8,
        )
        if status == 0:
            properties = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
            found["enabled"] = properties.get("UnitFileState") in ENABLED
            found["masked"] = properties.get("UnitFileState") in MASKED
            found["active"] = properties.get("ActiveState") == "active"
            found["command"] = first_match(r"argv\[\]=(.*?) ;", properties.get("ExecStart"))
    return found


def is_masked(host, name):
    """Return whether a unit's file is empty, or a link to nothing, as systemctl mask writes it."""
    path = host.path("/etc/systemd/system/" + name)
    if os.path.islink(path):
        return os.readlink(path) == os.devnull
    return os.path.isfile(path) and os.path.getsize(path) == 0


def dkms_of(host):
    """The DKMS modules (module, version, kernel, state), from the files that dkms goes by."""
    found = []
    for source in host.glob("/var/lib/dkms/nvidia*/*/source"):
        tree = os.path.dirname(source)
        entry = {"module": tree.split("/")[-2], "version": tree.split("/")[-1]}
        built = [
            location for location in host.glob(tree + "/*/*/module") if "/build/" not in location
        ]
        if not built:
            found.append(dict(entry, kernel=None, state="added"))
        for location in built:
            kernel, arch = location.split("/")[-3:-1]
            link = host.path("%s/kernel-%s-%s" % (os.path.dirname(tree), kernel, arch))
            installed = os.path.islink(link) and os.path.normpath(os.readlink(link)).endswith(
                "%s/%s/%s" % (entry["version"], kernel, arch)
            )
            found.append(dict(entry, kernel=kernel, state="installed" if installed else "built"))
    return found


def pending_reboot(host):
    """The marker of a run that the host must be rebooted; None without one."""
    try:
        return json.loads(host.text_or_none(host["state_dir"] + "/reboot-pending.json") or "null")
    except ValueError:
        return {"because": "its marker cannot be read"}


def installed_library(host):
    """The version of the libcuda in the known places; None without one.

    It is the one that libcuda.so.1 is: a file of another version beside it is not opened.
    """
    for directory in LIBRARY_LOCATIONS:
        names = sorted(host.glob(directory + "/libcuda.so.*"), key=natural)
        names += host.glob(directory + "/libcuda.so.1")
        versions = [library_version(host.realpath(name)) for name in names]
        if any(versions):
            return list(filter(None, versions))[-1]
    return None


def library_version(path):
    return first_match(LIBRARY_FILE, os.path.basename(path))


def query_driver(name):
    """The answers of libcuda: file, newest supported CUDA, result of its start, capabilities.

    The compute capabilities are those of each card.
    """
    # Not through another account's MPS server, which root would wait for.
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.devnull
    cuda, version = open_library(name), ctypes.c_int()
    found = {"version": None, "cuinit": None, "path": mapped_library(), "capabilities": None}
    if cuda.cuDriverGetVersion(ctypes.byref(version)) == 0:
        found["version"] = "%d.%d" % (version.value // 1000, version.value % 1000 // 10)
    found["cuinit"] = cuda.cuInit(0)
    if found["cuinit"] == 0:
        found["capabilities"] = capabilities(cuda)
    return found


def capabilities(cuda):
    """The compute capability of each card; None where libcuda does not answer."""
    count, major, minor, found = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), []
    try:
        if cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return None
        for device in range(count.value):
            if (
                cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device) != 0
                or cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device) != 0
            ):
                return None
            found.append("%d.%d" % (major.value, minor.value))
    except AttributeError:
        return None
    return found


def mapped_library():
    """The real path of the libcuda in this process."""
    with open("/proc/self/maps") as maps:
        return first_match(r"\s(/\S*/libcuda\.so\.[\d.]+)$", maps.read())
