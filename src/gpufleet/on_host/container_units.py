"""Read which device nodes systemd would leave to the running containers that have GPUs.

At `systemctl daemon-reload` systemd writes the device rules of each unit again. A container keeps
the nodes that are in its unit's DeviceAllow, and loses those that were allowed behind systemd's
back, as NVIDIA's legacy hook does it. All of it is read here; nothing is reloaded.
"""

import os
import re
import stat

from .processes import run_command

# The units that Docker, Podman, containerd and CRI-O have systemd make for a container.
SCOPES = (
    "docker-*.scope",
    "libpod-*.scope",
    "cri-containerd-*.scope",
    "nerdctl-*.scope",
    "crio-*.scope",
)
PROPERTIES = "Id,LoadState,ControlGroup,DevicePolicy,DeviceAllow"
# Where the tree of control groups may be, by the version that the host has mounted.
CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified")
# NVIDIA's nodes: cards, control nodes, the capabilities of MIG instances, the channels of IMEX.
GPU_NODE = re.compile(r"/dev/nvidia[-/\w]{1,60}\Z", re.ASCII)
# Memory (null, zero), terminals and pseudo-terminals: every engine allows them by rules of its own.
ENGINE_MAJORS = (1, 5, 136)
# A container can fill its /dev with anything: more than this is not read, and reported as UNREAD.
MOST_ENTRIES = 4096
DEEPEST = 8
UNREAD = {"node": "nodes of a /dev too large to be read", "numbers": "unread"}


def show_units(host, patterns):
    """The output of systemd about these units; None where it does not answer or is not there."""
    if not host.real:
        return None
    status, out, _ = run_command(
        ["systemctl", "show", "-p", PROPERTIES, *patterns], host.inner_s / 8
    )
    return out if status == 0 else None


def containers_with_gpus(host, patterns=SCOPES):
    """The units of running containers that have GPUs; None where systemd could not be asked."""
    units = units_with_gpus(host, patterns)
    return units and [
        {
            "unit": unit["unit"],
            "name": None,
            "policy": unit["policy"],
            "allow": unit["allow"],
            "nodes": [node for node in unit["nodes"] if node is UNREAD or is_gpu(node)],
        }
        for unit in units
    ]


def units_with_gpus(host, patterns=SCOPES):
    """The same units, each with a process of the container and with all nodes of its /dev."""
    text = show_units(host, patterns)
    if text is None:
        return None
    found = []
    for block in text.split("\n\n"):
        lines = [line.partition("=") for line in block.splitlines()]
        unit = {key: value for key, _, value in lines}
        if unit.get("LoadState") != "loaded" or not unit.get("ControlGroup"):
            continue
        pid = first_process(host, unit["ControlGroup"])
        nodes = nodes_in_container(host, pid)
        if any(map(is_gpu, nodes)):
            found.append(
                {
                    "unit": unit["Id"],
                    "pid": pid,
                    "policy": unit.get("DevicePolicy"),
                    "allow": [value for key, _, value in lines if key == "DeviceAllow"],
                    "nodes": nodes,
                }
            )
    return found


def is_gpu(node):
    """Return whether a node is NVIDIA's."""
    return bool(GPU_NODE.match(node["node"]))


def first_process(host, group):
    """A process of a control group or of one below it; None where all have ended."""
    for top in CGROUPS:
        for directory, _, files in os.walk(host.path(top + group)):
            if "cgroup.procs" in files:
                try:
                    with open(os.path.join(directory, "cgroup.procs")) as stream:
                        pid = stream.readline().strip()
                except OSError:  # the group has just ended
                    continue
                # Processes outside of this name space are shown as 0.
                if pid and pid != "0":
                    return pid
    return None


def nodes_in_container(host, pid):
    """The character devices (node, numbers) in the /dev of a process, at any depth.

    Nodes of ENGINE_MAJORS are left out. No link is followed: it could point out of the container.
    """
    found = []
    if pid:
        read_directory(host.path("/proc/%s/root/dev" % pid), None, "/dev", found, [MOST_ENTRIES])
    return found


def read_directory(name, parent, path, found, left):
    """Add the nodes of a directory that is named below `parent`, of at most `left` entries."""
    try:
        directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except OSError:  # the container has ended, or has changed it meanwhile
        return
    try:
        below = []
        for entry in sorted(os.listdir(directory)):
            if not left[0] or path.count("/") > DEEPEST:
                if UNREAD not in found:
                    found.append(UNREAD)
                return
            left[0] -= 1
            try:
                state = node_state(entry, directory)
            except OSError:
                continue
            if stat.S_ISDIR(state.st_mode):
                below.append(entry)
            elif stat.S_ISCHR(state.st_mode) and os.major(state.st_rdev) not in ENGINE_MAJORS:
                numbers = "%d:%d" % (os.major(state.st_rdev), os.minor(state.st_rdev))
                found.append({"node": path + "/" + entry, "numbers": numbers})
        for entry in below:
            read_directory(entry, directory, path + "/" + entry, found, left)
    finally:
        os.close(directory)


def node_state(name, directory):
    """The state of an entry of an open directory, of a link itself."""
    return os.stat(name, dir_fd=directory, follow_symlinks=False)


def character_majors(host):
    """The majors of the kernel's character devices by name: DeviceAllow may name a group."""
    text = (host.text_or_none("/proc/devices") or "").partition("Block devices:")[0]
    return {
        name: int(major)
        for major, name in re.findall(r"^ *(\d+) (\S+)$", text, re.MULTILINE)
        if "nvidia" in name
    }
