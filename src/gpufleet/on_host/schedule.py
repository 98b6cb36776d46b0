"""The schedule of the sections: the start of each, and its time limit.

Where no driver is loaded, all sections start at once. A loaded driver is used by one after the
other: `driver` starts it, which without the persistence daemon takes seconds for each card; then
come `gpus` and `smi`. Where there are cards to prove, `compute`, `stacks` and `containers` follow,
and last the second readings: what those of before the work did not show was caused by the work.
Time that one leaves unused is the next one's.
"""

import os
import signal
import time

from .deep_time import load_seconds, toolkits_seconds
from .host import SECTION_DEADLINE_S, Host
from .privileges import forbid_driver_changes
from .processes import Child, StartAfter
from .sections.containers import section_containers
from .sections.gpus import pci_cards

# Those in which programs of other people's run, in mode full, and the one that looks at each file
# of every stack: 75,000 of five, each read for its content where that is asked for.
LONG = ("stacks", "containers", "smi", "compute", "receipts")
# Those that start the driver, or wait until it has started.
PATIENT = ("driver", "gpus")
# Those that compute. On a GPU they would slow each other down, or shut each other out of one that
# lets a single process in: one comes after the other, with this share of the time that is left.
COMPUTING = {"compute": 1 / 3, "stacks": 2 / 3, "containers": 1}
# The sections that are read once more after the work, under another name.
SECOND_READINGS = {"smi_after": "smi", "kernel_log_after": "kernel_log"}
# The seconds that a card needs to start with and without the persistence daemon; eight without it
# were seen to take 18 s and more.
CARD_S = {True: 3, False: 10}
# A section may take this part of the deadline: more than its usual time only on a slow host, for
# which somebody asks by a longer deadline than the default one.
SHARES = 15
# The seconds that a deadline leaves for other work, where it is too short for that and to compile,
# or for that and a deep probe's load.
LEAST_WORK_S = 240
# Fixed work that takes so many seconds at most on an idle host, ten years old, with Python 3.6.
ROUNDS, ROUNDS_S = 200000, 0.02
PERSISTENCE = "/run/nvidia-persistenced/socket"


class Schedule:
    """The sections' processes of one probe; `children` has them by name."""

    def __init__(self, settings, sections):
        self.settings, self.sections, self.children = settings, sections, {}
        host = Host(settings)
        self.full = settings["mode"] == "full"
        self.loaded = host.exists("/proc/driver/nvidia/version")
        self.works = (
            self.full
            and settings["expect_gpus"] != 0
            and (self.loaded or host.exists("/dev/nvidiactl"))
        )
        deadline_s = float(settings["deadline_s"])
        self.ends = time.monotonic() + deadline_s
        # The time in which stacks compile their code for the cards is in no other section's share.
        self.compile_s = min(
            max(deadline_s / 2, deadline_s - LEAST_WORK_S),
            self.works and sum(stack["seconds"] for stack in settings["compiles"].values()),
        )
        # Nor is what the toolkits need for a deep probe's load.
        self.load_s, self.toolkits_s = self.reserved(host, deadline_s - self.compile_s)
        self.deep_s = self.load_s + self.toolkits_s
        self.total_s = deadline_s - self.compile_s - self.deep_s
        self.section_s = max(SECTION_DEADLINE_S, self.total_s / SHARES)
        # Where the same work takes longer, a section may; but one that hangs ends before the probe.
        self.section_s = max(self.section_s, min(self.total_s / 2, self.section_s * slowness()))
        self.patient_s = (
            patience(host, self.total_s) if self.loaded else min(self.total_s, self.section_s)
        )
        self.holder = None

    def reserved(self, host, left_s):
        """The seconds that a deep probe reserves for the load, and for all toolkits."""
        settings = self.settings
        if not (self.full and settings["deep"] and settings["expect_gpus"] != 0):
            return 0, 0
        gpus = settings["expect_gpus"] or max(1, len(pci_cards(host)))
        most_s = max(left_s / 2, left_s - LEAST_WORK_S)
        load_s = min(most_s, load_seconds(float(settings["sustained_s"]), gpus))
        return load_s, min(most_s - load_s, toolkits_seconds(settings["toolkits"], gpus))

    def start(self):
        """Start what can start now, and have the others start in their turn."""
        after = {}
        if self.loaded:
            after = dict.fromkeys(("gpus", "smi") if self.full else ("gpus",), "driver")
        if self.works:
            turns = [name for name in ("driver", "smi", *COMPUTING) if name in self.sections]
            after.update(zip(turns[1:], turns))  # noqa: B905 (no `strict` before Python 3.10)
            after.update(
                (name, turns[-1])
                for name, first in SECOND_READINGS.items()
                if self.loaded and first in self.sections
            )
        waiting = [
            name for name in (*self.sections, *SECOND_READINGS) if after.get(name) in self.sections
        ]
        for name in self.sections:
            if name not in waiting:
                self.children[name] = self.start_section(
                    name, self.total_s + self.compile_s + self.deep_s
                )
        while waiting:
            for name in [name for name in waiting if after[name] in self.children]:
                waiting.remove(name)
                self.children[name] = StartAfter(
                    self.children[after[name]],
                    lambda name=name: self.start_section(name, self.ends - time.monotonic()),
                )
        return self.children

    def start_section(self, name, left_s):
        """Start a section in a process of its own, with its share of the time that is left."""
        if name == "smi":
            self.hold_cards()
        function = self.sections[SECOND_READINGS.get(name, name)]
        deadline_s = round(self.deadline_of(name, left_s), 1)
        settings = dict(
            self.settings,
            capabilities=(self.driver() or {}).get("capabilities"),
            reserved={"load_s": self.load_s, "toolkits_s": self.toolkits_s},
        )
        arguments = (function, Host(settings, deadline_s))
        # The sections that follow still have their time.
        return Child(run_section, arguments, deadline_s, patient=self.ends - self.total_s / 5)

    def driver(self):
        """The reading of section `driver`; None as long as it is not read, or could not be."""
        child = self.children.get("driver")
        state, answer = child.outcome[:2] if child and child.outcome else (None, None)
        return answer[0] if state == "ok" else None

    def deadline_of(self, name, left_s):
        if name == "containers":
            left_s = min(left_s, self.total_s)
        elif name not in SECOND_READINGS:
            left_s -= self.compile_s
        if name in ("smi", "compute") and self.works:
            left_s -= self.deep_s
        if name in COMPUTING and self.works:
            if self.loaded:
                left_s -= min(self.patient_s, self.total_s / 10)
            beside_s = {"compute": self.deep_s, "stacks": self.compile_s}.get(name, 0)
            return max(1, left_s) * COMPUTING[name] + beside_s
        if name in SECOND_READINGS:
            return max(1, min(self.patient_s, left_s))
        if name == "smi" and self.works:
            # NVML and nvidia-smi may each have to start the cards.
            return max(1, min(2 * self.patient_s, left_s / 3))
        if name in LONG and self.full:
            return max(1, left_s)
        return max(1, min(self.patient_s if name in PATIENT else self.section_s, left_s))

    def hold_cards(self):
        """Keep the cards awake, where the driver starts: else each process would start them."""
        if self.works and (self.driver() or {}).get("cuinit") == 0:
            most_s = self.total_s + self.compile_s + self.deep_s
            self.holder = Child(hold_nodes, (Host(self.settings), most_s), most_s)

    def release_cards(self):
        if self.holder:
            self.holder.abandon()


def slowness(work=ROUNDS):
    """How many times longer some fixed work takes here and now than on an idle, ordinary host."""
    begin, total = time.monotonic(), 0
    for number in range(work):
        total += number & 7
    return max(1, (time.monotonic() - begin) / ROUNDS_S)


def patience(host, total_s):
    """How long the driver may take to start: by its cards, and by the deadline of the probe."""
    card_s = CARD_S[host.exists(PERSISTENCE)]
    wanted_s = max(SECTION_DEADLINE_S + card_s * len(pci_cards(host)), total_s / 6)
    return min(wanted_s, max(total_s / 2, min(total_s, SECTION_DEADLINE_S)))


def hold_nodes(host, most_s):
    """Hold the cards' device files open, which computes nothing; ended by the probe, at the latest
    by the kernel's alarm."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(most_s) + 1)
    for node in host.glob("/dev/nvidia[0-9]*"):
        try:
            os.open(host.path(node), os.O_RDWR)
        except OSError:  # the sections report it
            continue
    signal.pause()


def run_section(function, host):
    """The data of a section, and the parts of it that this account may not see."""
    # An engine's runtime needs them for the nodes inside of a container, and opens no GPU then.
    if function is not section_containers and not host.exists("/proc/driver/nvidia/version"):
        forbid_driver_changes()
    return function(host), host.unseen
