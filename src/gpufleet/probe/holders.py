"""Processes that have a device file of the driver open."""
import os
import re

from .accounts import account_name
from .processes import in_child
from .text import natural

# The probe's own, as they are started: they hold a GPU for as long as they prove it.
OWN_RUN = re.compile(r"/gpufleet[^/\0]*/matmul\.py\0")


def holders_of(host):
    """[{"pid", "user", "command", "nodes"}] of processes with a device file of the driver open.

    None for anybody but root, who cannot see what others have open.
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
        # A directory service that gives no answer must not hide who it is.
        state, user, _ = in_child(account_name, (owner,), 2)
        found.append({"pid": int(pid), "user": user if state == "ok" else str(owner),
                      "command": command, "nodes": sorted(held[pid], key=natural)})
    return found
