"""The stages of a toolkit's run, each in a process of its own.

One that crashes or hangs is a finding, and the others are still judged.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from gpufleet.on_host.constants import COMPUTE_MARK

from .consensus import agree
from .copies import copy_between, copy_on_device
from .cublas import multiply
from .cudnn import convolve
from .driver import query_devices
from .entries import RUNNING, WAITING
from .formats import multiply_in_formats
from .host_copies import copy_to_and_from_host
from .library import Refused, library_directories
from .loaded import mapped_files
from .nvrtc import compile_and_run
from .output import emit, plain
from .sustained import sustain
from .timing import now

STAGES = {
    "driver": query_devices,
    "nvrtc": compile_and_run,
    "cublas": multiply,
    "formats": multiply_in_formats,
    "cudnn": convolve,
    "consensus": agree,
    "host_copies": copy_to_and_from_host,
    "bandwidth": copy_on_device,
    "peer": copy_between,
    "sustained": sustain,
}


def run_stage(options):
    """One stage, in this process; its parent reads its output."""
    reported = {}

    def report(**more):
        reported.update(more, mapped=sorted(mapped_files()))
        emit(reported, COMPUTE_MARK)

    try:
        STAGES[options.stage](options, report)
    except (Refused, OSError) as error:
        report(error=str(error))
    except Exception as error:
        report(error=plain(error))


def scratch():
    """A file with no name, in memory where the kernel can: a full disk is no obstacle."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("gpufleet"), "w+b")
    return tempfile.TemporaryFile()


def own_command():
    """The command that starts this program again: the script, or the package by hand."""
    started_as = getattr(sys.modules["__main__"], "__spec__", None)
    if started_as is None:
        return [sys.executable, "-I", "-S", os.path.abspath(sys.argv[0])]
    return [sys.executable, "-m", started_as.name.rpartition(".")[0]]


def in_process(options, stage, deadline_s, more):
    """A stage's output, why it ended early (or None), and whether it hung, by an own process."""
    args = [
        *own_command(),
        "--toolkit",
        options.toolkit,
        "--stage",
        stage,
        "--budget",
        str(options.budget),
        "--sustained",
        str(options.sustained),
        "--settle",
        str(options.settle),
        "--fill",
        str(options.fill),
        "--block",
        str(options.block),
        "--deadline",
        str(deadline_s),
    ]
    args += ["--size", str(options.size)] if options.size else []
    args += ["--fabric"] if options.fabric else []
    given = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    environment = dict(
        os.environ,
        CUDA_DEVICE_ORDER="PCI_BUS_ID",
        LD_LIBRARY_PATH=":".join(filter(None, [*library_directories(options.toolkit), *given])),
    )
    with scratch() as out, scratch() as err:
        with open(os.devnull) as null:
            process = subprocess.Popen(
                [*args, *more], stdin=null, stdout=out, stderr=err, env=environment
            )
        deadline = now() + deadline_s
        while process.poll() is None and now() < deadline:
            time.sleep(0.005)
        status = process.returncode
        if status is None:
            # Killed and not waited for: it may be in a D state.
            process.kill()
        out.seek(0)
        err.seek(0)
        reported, complaint = last_report(out.read()), err.read().decode("utf-8", "replace")
    if status == 0:
        return reported, None, False
    if status is None:
        return reported, "no answer within %g s" % deadline_s, True
    reason = "killed by %s" % signal_name(-status) if status < 0 else "ended with %d" % status
    return reported, ": ".join([reason, *complaint.strip().splitlines()[-1:]])[:500], False


def last_report(raw):
    reported = {}
    for line in raw.decode("utf-8", "replace").splitlines():
        if line.startswith(COMPUTE_MARK):
            try:
                reported = json.loads(line[len(COMPUTE_MARK) :])
            except ValueError:  # cut off
                continue
    return reported


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def with_reason(value, reason, *, hung):
    """Set the reason in each entry that was not finished; `hung`: it is a missing answer."""
    entries = [value, *value.get("ran", [])] if isinstance(value, dict) else value
    started = any(entry["error"] == RUNNING for entry in entries)
    for entry in entries:
        entry.pop("budget", None)
        if entry["error"] == RUNNING:
            entry.update(error=reason or RUNNING, hung=hung)
        elif entry["error"] == WAITING:
            entry["error"] = (
                "%s, since before it: %s" % (WAITING, reason) if started else reason or WAITING
            )
            entry["hung"] = hung and not started
    return value
