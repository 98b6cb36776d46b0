"""Section `stacks`: virtual environments with a framework, and whether it computes."""
import concurrent.futures.thread
import json
import os

from ..processes import run_command
from ..receipts import receipts_of_kind
from ..text import first_match, last_lines, natural
from ..trees import unreadable_by_others
from ..venvs import bound_to, packages_of, start_hooks, venvs
from ..workload_run import run_framework

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)


def section_stacks(host):
    received = {r["path"]: r["id"] for r in receipts_of_kind(host, "stack")}
    stacks = []
    for venv in venvs(host, received):
        settings = host.text_or_none(venv + "/pyvenv.cfg")
        python = first_match(r"^version(?:_info)?\s*=\s*(\d+\.\d+(?:\.\d+)?)", settings)
        stacks.append({"name": received.get(venv, os.path.basename(venv)), "venv": venv,
                       "python": python, "packages": packages_of(host, venv),
                       "bound_to": bound_to(host, venv),
                       "receipt": venv in received, "framework": None, "start": None,
                       "binding": None, "hooks": start_hooks(host, venv),
                       "realpath": host.realpath(venv), "closed": unreadable_by_others(host, [
                           venv, venv + "/bin/python",
                           *host.glob(venv + "/lib/python3*/site-packages"),
                           *host.glob(venv + "/lib/python3*/site-packages/tensorflow*")])})
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for stack, start in zip(stacks, pool.map(
                lambda stack: start_interpreter(host, stack["venv"]), stacks)):
            stack["start"] = start
    if host["mode"] == "full" and host["matmul"]:
        # Beside each other only where no GPU can be fought for.
        workers = min(4, os.cpu_count() or 1) if host["expect_gpus"] == 0 else 1
        # One that hangs may not use up the others' time.
        share_s = host.inner_s / max(1, -(-len(stacks) // workers))
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            # Newer releases take longer: started last, they would run alone at the end.
            runs = [(stack, pool.submit(run_framework, host, stack, share_s))
                    for stack in reversed(stacks)]
            tries = [(stack, pool.submit(try_binding, host, stack)) for stack in stacks]
            for stack, run in runs:
                stack["framework"] = run.result()
            for stack, run in tries:
                stack["binding"] = run.result()
    return {"stacks": stacks,
            "occupied": sorted(host.glob(host["stack_root"] + "/*"), key=natural)}

# Where an environment's interpreter searches for modules before its own, beside its Python's.
START = """
import json, os, sys
real = os.path.realpath
own, library = real(sys.prefix) + "/", real(os.path.dirname(os.__file__))
site = [n for n, p in enumerate(sys.path) if real(p).startswith(own) and "-packages" in p]
# What comes after its own packages cannot shadow any of them.
strange = [p for p in sys.path[1:min(site or [None])] if not (real(p) + "/").startswith(own)
           and not (real(p) + "/").startswith(library + "/") and not p.endswith(".zip")]
print(json.dumps({"python": "%d.%d.%d" % sys.version_info[:3], "prefix": sys.prefix,
                  "strange": sorted(set(strange)), "error": None}))
"""


def start_interpreter(host, venv):
    """Start a stack's interpreter as users do: its version, prefix and foreign module paths."""
    status, out, err = run_command(
        [host.path(venv + "/bin/python"), "-c", START],
        # What computes has the time in mode full.
        host.inner_s / (10 if host["mode"] == "full" else 2),
        env={"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME") or "/"}, cwd="/")
    try:
        reported = json.loads(out.splitlines()[-1])
        return dict(reported, prefix=host.name(reported["prefix"]))
    except (ValueError, LookupError, TypeError):
        message = last_lines(err or out, 300) or "it ended with status %s" % status
        return {"python": None, "prefix": None, "strange": [], "error": message}


def try_binding(host, stack):
    """Why a library that a stack is bound to cannot be opened with all its symbols, if so."""
    if stack["bound_to"] is None:
        return None
    status, out, err = run_command(
        [host.path(stack["venv"] + "/bin/python"), "-m", "_gpufleet_binding"], host.inner_s / 10,
        env={"PATH": "/usr/bin:/bin", "HOME": "/"}, cwd="/")
    return {"error": None if status == 0 else last_lines(err or out, 600) or "status %s" % status}
