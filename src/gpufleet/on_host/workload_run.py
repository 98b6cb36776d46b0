"""Run the workload in an interpreter of the host, and read its document."""

import glob
import json
import os
import re
import shutil
import tempfile
import time

from .constants import FRAMEWORK_MARK
from .frameworks import FRAMEWORKS, each_of
from .processes import STARTED_AS, NoAnswer, run_command, signal_description
from .python_start import interpreter_code
from .text import last_lines
from .trust import RefusedError, account_for, compiler_code

PREFIX, SCRIPT = "gpufleet-", "matmul.py"
# No burn-in lasts longer than a week.
ABANDONED_S = 8 * 24 * 3600
FRAMEWORK_SILENT = {
    "version": None,
    "build": None,
    "loader": None,
    "devices": [],
    "matmul": [],
    "tower_sum": None,
    "mapped": [],
    "strangers": [],
    "seconds": None,
    "small": None,
    "capabilities": [],
    "said": [],
}
# The frameworks' log lines when they leave a GPU unused, or compile their code again for it.
TELLING = re.compile("^.*(?:%s).*$" % "|".join(each_of("log_lines")), re.MULTILINE)


def remove_abandoned(directory):
    """Remove what killed probes have left in a directory."""
    for home in glob.glob(os.path.join(directory, PREFIX + "*")):
        script = os.path.join(home, SCRIPT)
        try:
            if (
                os.lstat(home).st_uid == os.geteuid()
                and os.lstat(script).st_mtime < time.time() - ABANDONED_S
            ):
                shutil.rmtree(home, ignore_errors=True)
        except OSError:  # another's, or removed meanwhile
            pass


def write_script(host, account=None):
    """A new directory and the script in it, where there is room: a full /tmp is no obstacle.

    Both belong to the account that runs it, where that is another one.
    """
    for directory in (host.path(host["tmpdir"]), "/dev/shm", "/run", tempfile.gettempdir()):
        home = None
        try:
            remove_abandoned(directory)
            home = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
            script = os.path.join(home, SCRIPT)
            with open(script, "w", encoding="utf-8") as stream:
                stream.write(host["matmul"])
            if account:
                os.chown(home, account.uid, account.gid)
                os.chmod(script, 0o644)
            return home, script
        except OSError as error:
            problem = error
            if home:
                shutil.rmtree(home, ignore_errors=True)
    raise problem


def gpu_variables(host):
    """The environment of what computes on GPUs: not through an MPS server of another account,
    which root would wait for; and GPUs have the same numbers for all, not the fastest one 0."""
    if host["expect_gpus"] == 0:
        return {}
    return {"CUDA_MPS_PIPE_DIRECTORY": os.devnull, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def run_framework(host, stack, deadline_s, variables=None):
    """Run the workload in a stack's interpreter, with an empty environment; its document."""
    python = host.path(stack["venv"] + "/bin/python")
    expect = "any" if host["expect_gpus"] is None else str(host["expect_gpus"])
    framework = stack["runs"]

    def code():
        return interpreter_code(python)

    silent = dict(FRAMEWORK_SILENT, framework=framework, state="failed")
    try:
        # Only whose directory the script is in: the start itself is judged once more.
        account = STARTED_AS[python] if python in STARTED_AS else account_for(code, as_owner=True)
        home, script = write_script(host, account)
    except RefusedError as error:
        return dict(silent, error=str(error))
    except OSError as error:
        return dict(silent, error="no directory to write the script in: %s" % error)
    more = []
    if account:
        variables = {}  # the cache of what the driver compiled is root's
    elif FRAMEWORKS[framework].starts_compiler:
        try:
            account_for(compiler_code(python), as_owner=False)
        except RefusedError as error:
            more = [
                "--no-compile",
                "a C compiler and headers that nobody else can change: %s" % error,
            ]
    try:
        status, out, err = run_command(
            [
                python,
                script,
                "--framework",
                framework,
                "--expect-gpus",
                expect,
                "--deadline",
                str(deadline_s),
                *more,
            ],
            deadline_s,
            env=dict(gpu_variables(host), PATH="/usr/bin:/bin", HOME=home, **(variables or {})),
            cwd="/",
            partial=True,
            # Where it has become another account's meanwhile, the directory of its script tells.
            code=lambda: dict(code(), **{home: ""}),
        )
    except RefusedError as error:
        return dict(silent, error=str(error))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return parse_framework_output(status, out, err, framework)


def parse_framework_output(status, out, err, framework=None):
    """The document of a framework's run, from its exit status and output."""
    messages = list(dict.fromkeys(line.strip()[:500] for line in TELLING.findall(err)))[:20]
    found = dict(FRAMEWORK_SILENT, framework=framework, said=messages)
    return parse_output(found, FRAMEWORK_MARK, status, out, err)


def parse_output(found, mark, status, out, err):
    """`found` with the last document that the script printed, and why it ended early if it did."""
    # It reports before each stage, so that what it learned outlives a crash in the next one.
    found = dict(found, state="failed", error=None)
    for line in reversed(out.splitlines()):
        if line.startswith(mark):
            try:
                found.update(json.loads(line[len(mark) :]))
                break
            except ValueError:
                continue
    if found["state"] == "ok" and status == 0:
        return found
    if status is None:
        found["state"], reason = "hung" if isinstance(err, NoAnswer) else "failed", err
    else:
        found["state"] = "failed"
        reason = signal_description(-status) if status < 0 else None
        if not found.get("error"):
            reason = "%s: %s" % (
                reason or "ended with status %d" % status,
                last_lines(err or out, 600),
            )
    found["error"] = ", ".join(part for part in (found.get("error"), reason) if part)
    return found
