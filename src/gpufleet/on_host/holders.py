"""Processes that have a device file of the driver open, and NVIDIA's MPS daemons."""

import os
import re

from .accounts import account_name
from .processes import in_child
from .text import natural

# The probe's own, as they are started: they hold a GPU for as long as they prove it.
OWN_RUN = re.compile(r"/gpufleet[^/\0]*/matmul\.py\0")


def holders_of(host):
    """The processes (pid, user, command, nodes, unit) that have a device file of the driver open.

    None for anybody but root, who cannot see the open files of others.
    """
    if not host.glob("/dev/nvidia*"):
        return []
    if host.real and os.geteuid() != 0:
        host.miss("holders", "only root can list the open files of other accounts")
        return None
    held = {}
    for name in host.glob("/proc/[0-9]*/fd/*"):
        try:
            target = os.readlink(host.path(name))
        except OSError:
            continue
        if target.startswith("/dev/nvidia"):
            held.setdefault(name.split("/")[2], set()).add(target)
    found = []
    for pid in sorted(held, key=int):
        try:
            owner = os.stat(host.path("/proc/" + pid)).st_uid
            command = host.text("/proc/%s/comm" % pid).strip()
            if OWN_RUN.search(host.text_or_none("/proc/%s/cmdline" % pid) or ""):
                continue
        except OSError:
            continue
        found.append(
            {
                "pid": int(pid),
                "user": user_of(owner),
                "command": command,
                "nodes": sorted(held[pid], key=natural),
                "unit": unit_of(host, pid),
            }
        )
    return found


def unit_of(host, pid):
    """The unit of this host's systemd that a process belongs to; None where it belongs to none.

    It is the outermost one: within a container another systemd may have units of the same names.
    """
    for line in (host.text_or_none("/proc/%s/cgroup" % pid) or "").splitlines():
        parts = ([*line.split(":", 2), "", ""])[2].split("/")
        first = next((part for part in parts if part and not part.endswith(".slice")), "")
        if first.endswith((".service", ".scope")):
            return first
    return None


def user_of(number):
    # A directory service that gives no answer must not hide who it is.
    state, name, _ = in_child(account_name, (number,), 2)
    return name if state == "ok" else str(number)


def process_names(host):
    """Directory in /proc and name of each process; the kernel keeps 15 characters of a name."""
    for path in sorted(host.glob("/proc/[0-9]*/comm"), key=natural):
        try:
            yield os.path.dirname(path), host.text(path).strip()
        except OSError:  # it has ended, or is not shown to this account
            continue


def mps_processes(host):
    """MPS' control daemons and servers (pid, user, command), whoever started them."""
    found = []
    for directory, name in process_names(host):
        try:
            # nvidia-cuda-mps-control and -server
            if name.startswith("nvidia-cuda-mps"):
                words = (host.text_or_none(directory + "/cmdline") or "").split("\0")
                found.append(
                    {
                        "pid": int(os.path.basename(directory)),
                        "user": user_of(os.stat(host.path(directory)).st_uid),
                        "command": os.path.basename(words[0]) or "nvidia-cuda-mps",
                    }
                )
        except OSError:
            continue
    return found
