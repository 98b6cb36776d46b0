"""Section `stacks`: virtual environments with a framework, and whether it computes."""

import concurrent.futures.thread
import json
import os
import threading
import time

from ..frameworks import FRAMEWORKS
from ..jit_cache import cache_path, cache_variables, is_warm, must_compile, open_cache, record_warm
from ..login import login_identity
from ..processes import NoAnswer, run_command
from ..python_start import interpreter_code
from ..receipts import receipts_of_kind
from ..settings_files import STEERING_VARIABLES
from ..text import first_match, last_lines, natural
from ..trees import foreign_parts, unreadable_by_others, with_unfit_libraries
from ..trust import RefusedError
from ..venvs import bound_to, framework_of, packages_of, start_hooks, venvs
from ..workload_run import run_framework

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)


def section_stacks(host):
    received = {r["path"]: r["id"] for r in receipts_of_kind(host, "stack")}
    stacks = []
    for venv in venvs(host, received):
        settings = host.text_or_none(venv + "/pyvenv.cfg")
        python = first_match(r"^version(?:_info)?\s*=\s*(\d+\.\d+(?:\.\d+)?)", settings)
        packages = packages_of(host, venv)
        runs = framework_of(host, venv, packages)
        stacks.append(
            {
                "name": received.get(venv, os.path.basename(venv)),
                "venv": venv,
                "python": python,
                "packages": packages,
                "runs": runs,
                "bound_to": bound_to(host, venv),
                "receipt": venv in received,
                "framework": None,
                "exposed": foreign_parts(host, venv, venv in received),
                "start": None,
                "binding": None,
                "hooks": start_hooks(host, venv),
                "realpath": host.realpath(venv),
                "closed": unreadable_by_others(
                    host,
                    [
                        venv,
                        venv + "/bin/python",
                        *host.glob(venv + "/lib/python3*/site-packages"),
                        *host.glob(
                            venv + "/lib/python3*/site-packages/%s*" % FRAMEWORKS[runs].module
                        ),
                    ],
                ),
            }
        )
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for stack, start in zip(
            stacks, pool.map(lambda stack: start_interpreter(host, stack["venv"]), stacks)
        ):
            stack["start"] = start
    if host["mode"] == "full" and host["matmul"]:
        # Beside each other only where no GPU can be fought for.
        workers = min(4, os.cpu_count() or 1) if host["expect_gpus"] == 0 else 1
        shares = Shares(host.inner_s, len(stacks), workers)
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            # Newer releases take longer: started last, they would run alone at the end.
            runs = [
                (stack, pool.submit(run_stack, host, stack, shares)) for stack in reversed(stacks)
            ]
            tries = [(stack, pool.submit(try_binding, host, stack)) for stack in stacks]
            for stack, run in runs:
                stack["framework"] = run.result()
            for stack, run in tries:
                stack["binding"] = run.result()
    stacks = [
        with_unfit_libraries(host, stack, (os.path.dirname(stack["bound_to"] or ""), stack["venv"]))
        for stack in stacks
    ]
    return {"stacks": stacks, "occupied": sorted(host.glob(host["stack_root"] + "/*"), key=natural)}


class Shares:
    """The time of each of several runs: one that hangs may not use up the others', and what one
    leaves unused is for those after it."""

    def __init__(self, seconds, runs, workers):
        self.ends, self.left, self.workers = time.monotonic() + seconds, runs, workers
        self.lock = threading.Lock()

    def next(self, more_s=0):
        """The time of the run that starts now; `more_s` come to it, and to the end of all."""
        with self.lock:
            rounds = max(1, -(-self.left // self.workers))
            self.left -= 1
            share_s = max(1, self.ends - time.monotonic()) / rounds
            self.ends += more_s
            return round(share_s + more_s, 1)


def compile_times(host, stacks):
    """The seconds of the stacks whose code the driver has to compile now, by venv."""
    return {
        stack["venv"]: host["compiles"][stack["venv"]]["seconds"]
        for stack in stacks
        if must_compile(host, stack["venv"])
        and not is_warm(host, cache_path(stack["name"]), stack["packages"])
    }


def run_stack(host, stack, shares):
    """Run a stack's framework, with what the driver compiled for it before."""
    cache = (
        open_cache(host, stack["name"])
        if host["expect_gpus"] != 0 and host.exists("/proc/driver/nvidia/version")
        else None
    )
    compiles = compile_times(host, [stack])
    found = run_framework(
        host, stack, shares.next(sum(compiles.values())), cache_variables(host, cache)
    )
    if compiles:
        found["compiled"] = True
    if cache:
        found["jit_cache"] = cache
        if found["state"] == "ok":
            record_warm(host, cache, stack["packages"])
    return found


# Where an environment's interpreter searches for modules before its own, beside its Python's.
START = """
import sys
# No module comes from the working directory.
sys.path = [path for path in sys.path if path]
import json, os
NAMES = %r
real = os.path.realpath
own, library = real(sys.prefix) + "/", real(os.path.dirname(os.__file__))
site = [n for n, p in enumerate(sys.path) if real(p).startswith(own) and "-packages" in p]
# What comes after its own packages cannot shadow any of them.
strange = [p for p in sys.path[:min(site or [None])] if not (real(p) + "/").startswith(own)
           and not (real(p) + "/").startswith(library + "/") and not p.endswith(".zip")]
hooks = [getattr(sys.modules.get(n), "__file__", None) for n in ("sitecustomize", "usercustomize")]
print(json.dumps({"python": "%d.%d.%d" % sys.version_info[:3], "prefix": sys.prefix,
                  "strange": sorted(set(strange)), "error": None,
                  "sets": {n: os.environ[n] for n in NAMES if n in os.environ},
                  "customized": [real(h) for h in hooks if h]}))
"""
BINDING = """
import sys
sys.path = [path for path in sys.path if path]
import runpy
runpy.run_module("_gpufleet_binding", run_name="__main__")
"""


def start_interpreter(host, venv):
    """Start a stack's interpreter as users do: its version, prefix and foreign module paths."""
    python = host.path(venv + "/bin/python")
    try:
        status, out, err = run_command(
            [python, "-c", START.replace("%r", repr(STEERING_VARIABLES), 1)],
            # In mode full the time is for programs that compute.
            host.inner_s / (10 if host["mode"] == "full" else 2),
            env={"PATH": "/usr/bin:/bin", "HOME": login_identity()["HOME"]},
            cwd="/",
            code=lambda: interpreter_code(python),
        )
    except RefusedError as error:
        return failed_start(str(error))
    try:
        reported = json.loads(out.splitlines()[-1])
        return dict(reported, prefix=host.name(reported["prefix"]))
    except (ValueError, LookupError, TypeError):
        message = last_lines(err or out, 300) or "it ended with status %s" % status
        return failed_start(message, hung=isinstance(err, NoAnswer))


def failed_start(error, *, hung=False):
    return {
        "python": None,
        "prefix": None,
        "strange": [],
        "error": error,
        "hung": hung,
        "sets": {},
        "customized": [],
    }


def try_binding(host, stack):
    """Why a library that a stack is bound to cannot be opened with all its symbols, if so: by
    root (`error`), and by an ordinary account, which opens all that the interpreter needs too."""
    if stack["bound_to"] is None:
        return None
    python, errors, hung = host.path(stack["venv"] + "/bin/python"), [], False
    try:
        for ordinary in (True, False):
            status, out, err = run_command(
                [python, "-c", BINDING],
                host.inner_s / 10,
                env={"PATH": "/usr/bin:/bin", "HOME": "/"},
                cwd="/",
                code=lambda: interpreter_code(python),
                ordinary=ordinary,
            )
            if status == 0:
                break
            hung = isinstance(err, NoAnswer)
            errors.append(last_lines(err or out, 600) or "status %s" % status)
    except RefusedError as error:
        return {"error": str(error), "ordinary": None}
    return {
        "error": errors[1] if len(errors) == 2 else None,
        "hung": hung and len(errors) == 2,
        "ordinary": errors[0] if errors else None,
    }
