"""Section `compute`: what each toolkit, or a stack's wheels, compute by their own libraries."""

import os
import shutil
import sys
import time

from ..constants import COMPUTE_MARK
from ..deep_time import SETTLE_S
from ..host import INNER_SHARE
from ..processes import run_command
from ..receipts import receipts_of_kind
from ..trees import library_directories, toolkit_trees, with_unfit_libraries
from ..trust import CACHE, RefusedError, account_for
from ..wheels import newest_wheels
from ..workload_run import gpu_variables, parse_output, write_script

COMPUTE_SILENT = {
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
    "mapped": [],
    "seconds": None,
}


def section_compute(host):
    """The results of each toolkit's own libraries; one after the other, as there may be a GPU."""
    deep = bool(host["deep"]) and host["expect_gpus"] != 0
    found = {"deep": deep, "runs": []}
    if host["mode"] != "full" or not host["matmul"]:
        return found
    trees = toolkit_trees(host)
    # Where CUDA comes from wheels alone, those with the newest cuBLAS load the GPUs.
    ours = {receipt["path"] for receipt in receipts_of_kind(host, "toolkit")}
    wheels = newest_wheels(host) if host["expect_gpus"] != 0 and not ours & set(trees) else None
    if wheels:
        trees = [*trees, wheels]
    for at, (tree, (share_s, load_s)) in enumerate(zip(trees, shares(host, len(trees)))):  # noqa: B905 (no `strict` before Python 3.10)
        more = [] if at < len(trees) - 1 else ["--once"] + ["--deep"] * deep
        found["runs"].append(run_toolkit(host, tree, share_s, load_s, more))
    return found


def shares(host, count):
    """The seconds of each of so many toolkits, and what the load adds to them, in their order.

    The load is reserved outside of the share in which the inner processes end: hours of it left
    nothing to the other toolkits. It is for the newest one, which comes last: it would disturb the
    others.
    """
    reserved = host["reserved"]
    reserved_s = reserved["load_s"] + reserved["toolkits_s"]
    ends = time.monotonic() + host.inner_s - INNER_SHARE * reserved_s + reserved["toolkits_s"]
    for left in range(count, 0, -1):
        share_s = max(1, (ends - time.monotonic()) / left)
        yield share_s, reserved["load_s"] if left == 1 else 0


def run_toolkit(host, tree, share_s, load_s, more):
    """Run the workload for one toolkit (or stack), with an empty environment; its document.

    `load_s`: what the load of a deep run has beside the toolkit's share.
    """
    silent = dict(COMPUTE_SILENT, toolkit=tree)
    expect = "any" if host["expect_gpus"] is None else str(host["expect_gpus"])
    code = [
        sys.executable,
        CACHE,
        *(
            path
            for path in (host.path(name) for name in library_directories(host, tree))
            if os.path.isdir(path)
        ),
    ]
    try:
        account = account_for(code, as_owner=True)
        home, script = write_script(host, account)
    except RefusedError as error:
        return dict(silent, state="failed", error=str(error))
    except OSError as error:
        return dict(silent, state="failed", error="no directory to write the script in: %s" % error)
    args = [
        "--expect-gpus",
        expect,
        "--budget",
        str(host["budget_mib"]),
        "--deadline",
        str(share_s * 0.9 + load_s),
        "--sustained",
        str(host["sustained_s"]),
        "--settle",
        str(SETTLE_S),
    ]
    if host["disk_load"] and "--deep" in more:
        args += ["--disk", host.path(host["disk_load"])]
    if host["fabric_load"] and "--deep" in more:
        args += ["--fabric"]
    try:
        # The interpreter of the probe may be in root's own directory.
        python = (
            "/usr/bin/python3" if account and os.path.exists("/usr/bin/python3") else sys.executable
        )
        ended = run_command(
            [python, "-I", "-S", script, "--toolkit", host.path(tree), *args, *more],
            share_s + load_s,
            env=dict(gpu_variables(host), PATH="/usr/bin:/bin", HOME=home),
            cwd="/",
            partial=True,
            code=[home, *code],
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)
    found = parse_output(silent, COMPUTE_MARK, *ended)
    found = with_unfit_libraries(host, found, (tree,))
    return dict(found, toolkit=tree, mapped=[host.name(path) for path in found["mapped"]])
