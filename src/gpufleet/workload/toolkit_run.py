"""Compute with a toolkit's own libraries, stage by stage."""

import concurrent.futures
import glob
import os
import re

from gpufleet.on_host.constants import COMPUTE_MARK

from .consensus import NAMES
from .entries import RUNNING
from .formats import FORMATS
from .library import has_wheels, library_directories
from .output import emit
from .runtime import available_mib
from .timing import SIZE_DEEP, SIZE_GPU, now
from .toolkit_stages import in_process, with_reason

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)


# So many GPUs have a process at once.
AT_ONCE = 8
# Where a stage lasts longer, more GPUs have one at once, each if the host has so much memory: its
# CUDA context, the libraries, operands and products.
PROCESS_MIB = 1024


def batches_of(gpus):
    """The number of GPUs with a process at once in a stage that lasts, and of batches."""
    room = (available_mib() or 0) // PROCESS_MIB
    at_once = max(1, min(gpus, max(AT_ONCE, room)))
    return at_once, -(-gpus // at_once) or 1


class Run:
    """A toolkit's document, stage by stage."""

    def __init__(self, options):
        self.options, self.begin, self.ended, self.mapped = options, now(), "ok", set()
        # The seconds that earlier stages leave to the load, and the first ones to the planned work.
        self.load_s = 0
        self.document = {
            "toolkit": options.toolkit,
            "state": "failed",
            "error": None,
            "driver": {"cuinit": None, "version": None, "error": None},
            "devices": [],
            "cublas": [],
            "formats": [],
            "nvrtc": None,
            "cudnn": [],
            "consensus": None,
            "host_copies": None,
            "bandwidth": None,
            "peer": None,
            "sustained": None,
            "disk": None,
            "fabric": None,
            "mapped": [],
            "seconds": None,
        }

    def report(self, **more):
        self.document.update(more, mapped=sorted(self.mapped), seconds=round(now() - self.begin, 2))
        emit(self.document, COMPUTE_MARK)

    def stage(self, name, otherwise, share=0.5, **more):
        """Run a stage; its result, or `otherwise` where it reports none."""
        self.report(error="stopped in the stage " + name)
        return self.done(name, otherwise, share, more)

    def each(self, name, groups, at_once=AT_ONCE, own_s=0):
        """The same in a process for each GPU, many at once: eight in a row would take minutes.

        `groups`: (entries of a GPU, arguments of its process); all entries. Each process
        computes for `own_s` seconds, beside what it prepares.
        """
        self.report(error="stopped in the stage " + name)
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            reported = pool.map(
                lambda group: self.done(
                    name, group[0], 0.5, dict(group[1], gpu=group[0][0]["gpu"]), own_s
                ),
                groups,
            )
        return [entry for entries in reported for entry in entries]

    def done(self, name, otherwise, share, more, own_s=0):
        args = [word for key, value in more.items() for word in ("--" + key, str(value))]
        left_s = self.begin + self.options.deadline - now()
        if name != "sustained":
            left_s -= self.load_s
        # The seconds of a stage are in no share, unless there is too little time for them.
        spare_s = left_s - own_s
        deadline_s = max(2, left_s * share if spare_s < 0 else own_s + spare_s * share)
        reported, ended, hung = in_process(self.options, name, deadline_s, args)
        self.mapped |= set(reported.pop("mapped", []))
        if ended and self.ended != "hung":
            self.ended = "hung" if hung else "failed"
        own = reported.pop("error", None)
        self.document["devices"] = reported.get("devices", self.document["devices"])
        for beside in ("disk", "fabric"):
            self.document[beside] = reported.get(beside, self.document[beside])
        return with_reason(reported.get(name, otherwise), own or ended, hung=hung and not own)


def cudnn_libraries(toolkit):
    """The files of the cuDNNs in a toolkit, by soname; a framework tries those of wheels."""
    if has_wheels(toolkit):
        return {}
    return {
        name: os.path.join(directory, name)
        for directory in library_directories(toolkit)
        for name in sorted(os.listdir(directory))
        if re.match(r"libcudnn\.so\.\d+$", name)
    }


# How long a deep run multiplies in each number format: this part of its sustained load.
FORMAT_SHARE = 1 / 24
# How long it computes sums in each, otherwise.
CONSENSUS_S = 0.2
# The seconds of a load beside its own and those to cool down: operands and their product on the
# processor, and for each GPU its context, its copy of them and its proof of the comparison.
PREPARE_S, PREPARE_GPU_S = 20, 5
# The load leaves this part of the time to the other stages, where there is too little for all.
OTHER_STAGES = 0.25
# The GPUs' own files.
NODES = "/dev/nvidia[0-9]*"


def open_gpu_nodes():
    """Open files of all GPUs. Where nothing else has one open, a driver without persistence shuts
    it down at the end of each stage, and takes seconds to start it for the next."""
    held = []
    for node in glob.glob(NODES):
        try:
            held.append(open(node, "r+b", buffering=0))  # noqa: SIM115 (to the end)
        except OSError:  # the stages report it
            continue
    return held


def load_seconds(options, gpus):
    """How long the stage of the load takes on so many GPUs, until they are cool again."""
    return options.sustained + options.settle + PREPARE_S + PREPARE_GPU_S * gpus


def through_toolkit(options):
    run, wanted = Run(options), options.expect_gpus
    if wanted != "0":
        silent = {"cuinit": None, "version": None, "error": RUNNING}
        # It is the one that waits until each GPU has started.
        run.report(driver=run.stage("driver", silent, 0.8))
    gpu_count = len(run.document["devices"])
    # Not of a driver that hung: this process is to go on.
    held = open_gpu_nodes() if gpu_count and run.ended == "ok" else []
    at_once, batches = batches_of(gpu_count)
    # One batch after the other has the time of one.
    seconds = options.sustained * FORMAT_SHARE / batches if options.deep else 0
    formats_s, sums_s = seconds * len(FORMATS), seconds * len(NAMES) if options.once else 0

    def leave(planned_s):
        """Have the next stages leave its time to the load, and what is planned before it."""
        if options.deep and gpu_count:
            wanted_s = load_seconds(options, gpu_count) + planned_s
            run.load_s = min(wanted_s, (1 - OTHER_STAGES) * options.deadline)

    leave((formats_s + sums_s) * batches)

    def entries(numbers, **more):
        return [dict(more, gpu=gpu, wrong=None, busy=None, error=RUNNING) for gpu in numbers]

    def on_each(stage, fields, **more):
        """The entries of each GPU, made by a process for each."""
        return run.each(stage, [([entry], more) for entry in entries(range(gpu_count), **fields)])

    run.report(
        nvrtc=run.stage(
            "nvrtc",
            {"version": None, "arch": None, "ptx": False, "ran": [], "error": RUNNING},
            gpus=gpu_count,
        )
    )
    run.report(
        cublas=on_each(
            "cublas",
            {
                "n": options.size or SIZE_GPU,
                "first_s": None,
                "steady_s": None,
                "tflops": None,
                "checked": 0,
            },
        )
    )
    leave(sums_s * batches)
    run.report(
        formats=run.each(
            "formats",
            [
                (
                    [
                        entry
                        for each in FORMATS
                        for entry in entries(
                            [gpu], format=each.name, checked=0, not_applicable=None
                        )
                    ],
                    {"seconds": seconds},
                )
                for gpu in range(gpu_count)
            ],
            at_once,
            formats_s,
        )
    )
    for soname, path in cudnn_libraries(options.toolkit).items():
        found = on_each("cudnn", {"soname": soname, "version": None}, cudnn=path)
        run.report(cudnn=run.document["cudnn"] + found)
    everywhere = {
        "gpus": gpu_count,
        "places": ",".join(device["address"] for device in run.document["devices"]),
    }
    leave(0)
    if options.once and gpu_count:
        run.report(
            consensus=run.each(
                "consensus",
                [
                    (
                        [
                            entry
                            for name in NAMES
                            for entry in entries(
                                [gpu],
                                format=name,
                                seed=None,
                                sums=[],
                                not_applicable=None,
                            )
                        ],
                        {"seconds": seconds or CONSENSUS_S},
                    )
                    for gpu in range(gpu_count)
                ],
                at_once,
                sums_s,
            )
        )
        rows = run.stage(
            "host_copies", entries(range(gpu_count), copies=None, link=None), 0.5, **everywhere
        )
        for device, row in zip(run.document["devices"], rows):
            device.update(link=row.pop("link"), copies=row.pop("copies"))
        run.report(host_copies=rows)
    if options.deep and gpu_count:
        run.report(
            bandwidth=run.stage(
                "bandwidth",
                entries(range(gpu_count), gib_s=None, filled_mib=None, unfilled=None),
                0.5,
                **everywhere,
            )
        )
        pairs = [
            {"from": a, "to": b, "access": None, "gib_s": None, "wrong": None, "error": RUNNING}
            for a in range(gpu_count)
            for b in range(gpu_count)
            if a != b
        ]
        run.report(peer=run.stage("peer", pairs, 0.8, gpus=gpu_count) if pairs else [])
        run.report(
            sustained=run.stage(
                "sustained",
                entries(
                    range(gpu_count),
                    n=options.size or SIZE_DEEP,
                    seconds=None,
                    samples=[],
                    settled_s=None,
                    checked=0,
                ),
                1,
                **dict(everywhere, **({"disk": options.disk} if options.disk else {})),
            )
        )
    for node in held:
        node.close()
    run.report(state=run.ended, error=None if run.ended == "ok" else "a stage did not end")
