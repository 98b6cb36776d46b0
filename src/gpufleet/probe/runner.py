"""Probe one host: every section in its own process, one JSON document: the snapshot.

It changes nothing on the host and judges nothing: raw values, units in the names, ``null`` for
what could not be read. The shape of the document is in docs/documents.md.
"""
import json
import os
import platform
import sys
import time

from .host import DEFAULTS, SCHEMA, SECTION_DEADLINE_S, Host
from .privileges import forbid_driver_changes
from .processes import Child, StartAfter, await_all
from .sections.compute import section_compute
from .sections.containers import section_containers
from .sections.cudnn import section_cudnn
from .sections.disks import section_disks
from .sections.driver import section_driver
from .sections.environment import section_environment
from .sections.gpus import section_gpus
from .sections.kernel import section_kernel
from .sections.kernel_log import section_kernel_log
from .sections.linker import section_linker
from .sections.operating_system import section_os
from .sections.packages import section_packages
from .sections.receipts import section_receipts
from .sections.smi import section_smi
from .sections.stacks import section_stacks
from .sections.toolkits import section_toolkits

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)

SECTIONS = {
    "os": section_os, "kernel": section_kernel, "disks": section_disks, "gpus": section_gpus,
    "driver": section_driver, "packages": section_packages, "receipts": section_receipts,
    "toolkits": section_toolkits, "cudnn": section_cudnn, "linker": section_linker,
    "environment": section_environment, "stacks": section_stacks, "containers": section_containers,
    "smi": section_smi, "kernel_log": section_kernel_log, "compute": section_compute,
}
# Those in which programs of other people's run, in mode full, and the one that looks at each file
# of every stack: 75,000 of five, each read for its content where that is asked for.
LONG = ("stacks", "containers", "smi", "compute", "receipts")
# Those that compute. On a GPU they would slow each other down, or shut each other out of one that
# lets a single process in: one comes after the other, with this share of the time that is left.
COMPUTING = {"compute": 1 / 3, "stacks": 2 / 3, "containers": 1}


def utc_now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def probe(config):
    """The snapshot of this host: every section in its own process, all at the same time.

    But for those that compute where there is a GPU.
    """
    settings = dict(DEFAULTS, **config)
    started = utc_now()
    children = start_in_turn(settings) if must_take_turns(settings) else {}
    for name in SECTIONS:
        if name in children:
            continue
        deadline = float(settings["deadline_s"])
        if name not in LONG or settings["mode"] != "full":
            deadline = min(deadline, SECTION_DEADLINE_S)
        children[name] = start_section(name, settings, deadline)
    sections, unseen = {}, []
    outcomes = await_all([children[name] for name in SECTIONS])
    for name, (state, answer, error, seconds) in zip(SECTIONS, outcomes):
        data, missed = answer or (None, [])
        sections[name] = {"state": state, "seconds": seconds, "error": error, "data": data}
        unseen += [dict(entry, section=name) for entry in missed]
    return replace_undecodable({"schema": SCHEMA, "host": settings["host"] or platform.node(),
                    "mode": settings["mode"], "euid": os.geteuid(), "started": started,
                    "finished": utc_now(), "unseen": unseen, "sections": sections})


def start_section(name, settings, deadline_s):
    """Start a section in a process of its own."""
    return Child(run_section, (SECTIONS[name], Host(settings, deadline_s)), deadline_s)


def must_take_turns(settings):
    """Whether sections that compute must take turns, because there may be a GPU."""
    return (settings["mode"] == "full" and settings["expect_gpus"] != 0
            and Host(settings).exists("/dev/nvidiactl"))


def start_in_turn(settings):
    """{section: child} of those that compute, one after the other within the one deadline."""
    ends = time.monotonic() + float(settings["deadline_s"])
    # The minutes of load, which are inner ones, come to the share of the toolkits.
    deep_s = 2.5 * float(settings["sustained_s"]) if settings["deep"] else 0

    def start(name, more_s=0):
        left_s = max(1, ends - time.monotonic() - more_s)
        return start_section(name, settings, left_s * COMPUTING[name] + more_s)

    compute = start("compute", min(deep_s, float(settings["deadline_s"]) / 2))
    stacks = StartAfter(compute, lambda: start("stacks"))
    return {"compute": compute, "stacks": stacks,
            "containers": StartAfter(stacks, lambda: start("containers"))}


def run_section(function, host):
    """(data of a section, what of it this account may not see)."""
    # An engine's runtime needs them for the nodes inside of a container, and opens no GPU then.
    if function is not section_containers and not host.exists("/proc/driver/nvidia/version"):
        forbid_driver_changes()
    return function(host), host.unseen


def replace_undecodable(document):
    """The same with `?` for each byte of a name that is no UTF-8: no reader would take it."""
    return json.loads(json.dumps(document, ensure_ascii=False).encode("utf-8", "replace").decode())


def settings_by_hand(arguments):
    """`mode=full expect_gpus=0 ...`: each value is JSON, or else a text."""
    settings = {}
    for argument in arguments:
        key, mark, value = argument.partition("=")
        if not mark or key not in DEFAULTS:
            sys.exit("usage: probe [KEY=VALUE ...] with KEY of: " + " ".join(sorted(DEFAULTS)))
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    return settings


def main(config=None):
    """Print the snapshot of this host. `config`: a JSON document; arguments by hand come before it.
    """
    settings = dict(json.loads(config or "{}"), **settings_by_hand(sys.argv[1:]))
    # The document is the last line: whatever a login prints stands before it.
    text = json.dumps(probe(settings))
    sys.stdout.write("\n" + text + "\n")
    sys.stdout.flush()
    # Threads or children that hang must not keep the interpreter.
    os._exit(0)
