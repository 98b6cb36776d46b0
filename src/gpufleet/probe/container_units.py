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
SCOPES = ("docker-*.scope", "libpod-*.scope", "cri-containerd-*.scope", "nerdctl-*.scope",
          "crio-*.scope")
PROPERTIES = "Id,LoadState,ControlGroup,DevicePolicy,DeviceAllow"
# Where the tree of control groups may be, by the version that the host has mounted.
CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified")
# Without any one of them a program finds no GPU.
GPU_NODE = re.compile(r"nvidia(\d+|ctl|-uvm)$")


def show_units(host, patterns):
    """What systemd prints about these units; None where it does not answer or is not there."""
    if not host.real:
        return None
    status, out, _ = run_command(["systemctl", "show", "-p", PROPERTIES, *patterns],
                                 host.inner_s / 8)
    return out if status == 0 else None


def containers_with_gpus(host, patterns=SCOPES):
    """The units of running containers that have GPUs; None where systemd could not be asked."""
    text = show_units(host, patterns)
    if text is None:
        return None
    found = []
    for block in text.split("\n\n"):
        lines = [line.partition("=") for line in block.splitlines()]
        unit = {key: value for key, _, value in lines}
        if unit.get("LoadState") != "loaded" or not unit.get("ControlGroup"):
            continue
        nodes = nodes_in_container(host, first_process(host, unit["ControlGroup"]))
        if nodes:
            found.append({"unit": unit["Id"], "name": None, "policy": unit.get("DevicePolicy"),
                          "allow": [value for key, _, value in lines if key == "DeviceAllow"],
                          "nodes": nodes})
    return found


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
    """[{"node", "numbers"}] of the GPUs as a process has them in its /dev."""
    found = []
    directory = host.path("/proc/%s/root/dev" % pid)
    try:
        names = sorted(os.listdir(directory)) if pid else []
    except OSError:
        return found
    for name in filter(GPU_NODE.match, names):
        try:
            state = os.stat(os.path.join(directory, name))
        except OSError:
            continue
        if stat.S_ISCHR(state.st_mode):
            numbers = "%d:%d" % (os.major(state.st_rdev), os.minor(state.st_rdev))
            found.append({"node": "/dev/" + name, "numbers": numbers})
    return found


def character_majors(host):
    """{name: major} of the kernel's character devices: DeviceAllow may name a whole group."""
    text = (host.text_or_none("/proc/devices") or "").partition("Block devices:")[0]
    return {name: int(major) for major, name in re.findall(r"^ *(\d+) (\S+)$", text, re.MULTILINE)
            if "nvidia" in name}
