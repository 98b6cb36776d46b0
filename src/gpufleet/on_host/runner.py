"""Probe one host: every section in its own process, one JSON document: the snapshot.

It changes nothing on the host and judges nothing: raw values, units in the names, ``null`` for
what could not be read. The shape of the document is in docs/reference/schemas/snapshot.json.
"""

import json
import os
import platform
import sys
import time

from .challenge import answer as answer_challenge
from .constants import IMAGE
from .host import DEFAULTS, SCHEMA, Host
from .processes import await_all
from .schedule import SECOND_READINGS, Schedule
from .sections.compute import section_compute
from .sections.containers import section_containers
from .sections.cudnn import section_cudnn
from .sections.disks import section_disks
from .sections.driver import section_driver
from .sections.environment import section_environment
from .sections.gpus import section_gpus
from .sections.kernel import container_of, section_kernel
from .sections.kernel_log import section_kernel_log
from .sections.linker import section_linker
from .sections.machine import section_machine
from .sections.network import section_network
from .sections.operating_system import section_os
from .sections.packages import section_packages
from .sections.receipts import section_receipts
from .sections.smi import section_smi
from .sections.stacks import section_stacks
from .sections.toolkits import section_toolkits
from .session import Session, keep_orphans, kill_descendants

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)

SECTIONS = {
    "os": section_os,
    "kernel": section_kernel,
    "disks": section_disks,
    "gpus": section_gpus,
    "driver": section_driver,
    "network": section_network,
    "machine": section_machine,
    "packages": section_packages,
    "receipts": section_receipts,
    "toolkits": section_toolkits,
    "cudnn": section_cudnn,
    "linker": section_linker,
    "environment": section_environment,
    "stacks": section_stacks,
    "containers": section_containers,
    "smi": section_smi,
    "kernel_log": section_kernel_log,
    "compute": section_compute,
}


def utc_now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def probe(config, each_time=lambda: None):
    """The snapshot of this host: every section in its own process, in the order of the schedule.

    `each_time` is called again and again while the sections run.
    """
    settings = dict(DEFAULTS, **config)
    if container_of(Host(settings)) == IMAGE:
        # No GPU is there to compute on, and nothing that runs would be the image's own.
        settings["mode"] = "facts"
    started = utc_now()
    schedule = Schedule(settings, SECTIONS)
    children = schedule.start()
    sections, unseen = {}, []
    names = [name for name in (*SECTIONS, *SECOND_READINGS) if name in children]
    try:
        outcomes = await_all([children[name] for name in names], each_time)
    finally:
        schedule.release_cards()
    for name, (state, answer, error, seconds) in zip(names, outcomes):
        data, missed = answer or (None, [])
        sections[name] = {"state": state, "seconds": seconds, "error": error, "data": data}
        unseen += [dict(entry, section=name) for entry in missed]
    return replace_undecodable(
        {
            "schema": SCHEMA,
            "host": settings["host"] or platform.node(),
            "mode": settings["mode"],
            "euid": os.geteuid(),
            "started": started,
            "finished": utc_now(),
            "unseen": unseen,
            "sections": sections,
        }
    )


def replace_undecodable(document):
    """Return a document with `?` for each byte that is not UTF-8, which no reader would accept."""
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
    """Print the snapshot of this host. `config`: a JSON document; arguments come before it."""
    settings = dict(json.loads(config or "{}"), **settings_by_hand(sys.argv[1:]))
    session = Session()
    keep_orphans()

    def end_with_session():
        if session.ended():
            kill_descendants()
            os._exit(1)

    document = probe(settings, end_with_session)
    if settings.get("challenge"):
        document["answer"] = answer_challenge(Host(settings))
    # The document is the last line: whatever a login prints stands before it.
    text = json.dumps(document)
    # The processes that hung sections have started, however deep.
    kill_descendants()
    sys.stdout.write("\n" + text + "\n")
    sys.stdout.flush()
    # Threads or children that hang must not keep the interpreter.
    os._exit(0)
