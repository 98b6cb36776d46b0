# Apache-2.0, see LICENSE
"""The files of a stack compared by content: what changed, what was added, whether Python starts.

Reads only, and starts nothing but an interpreter that is the recorded one.
"""

from __future__ import annotations

import contextlib
import glob
import os
import signal
import subprocess

from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.manifest import (
    compare_manifest,
    read_record,
    recorded_files,
    records_of,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import walk

# Suffixes of files that Python imports or runs by their presence alone.
CODE = (".py", ".pyc", ".so", ".pth")
START_S = 60


def is_compiled(name):
    """Return whether Python compiled a file, and compiles it again where it is missing."""
    return name.endswith(".pyc") and os.path.basename(os.path.dirname(name)) == "__pycache__"


def sites(venv):
    """The directories of packages."""
    return sorted(glob.glob(os.path.join(glob.escape(venv), "lib", "python3*", "site-packages")))


def written_by_uv(venv):
    """Relative paths of what uv puts beside the packages of a Python before 3.10, in no record."""
    pattern = os.path.join(glob.escape(venv), "lib", "python3*", "site-packages", "_virtualenv.p*")
    return [
        os.path.relpath(name, venv) for name in glob.glob(pattern) if name.endswith((".py", ".pth"))
    ]


def recorded(venv, site):
    """Relative paths that the records of all packages list, whoever installed them."""
    found = set()
    for record in glob.glob(os.path.join(glob.escape(site), "*.dist-info", "RECORD")):
        found.add(os.path.relpath(record, venv))
        for path, _, _ in read_record(record, sized=False):
            found.add(os.path.relpath(os.path.normpath(os.path.join(site, path)), venv))
    return found


def unrecorded_code(venv, manifest):
    """Code in the packages that neither a package's record nor the receipt lists.

    Files of packages that people installed are in those packages' records.
    """
    listed = {entry["path"] for entry in manifest}
    found = []
    for site in sites(venv):
        known = recorded(venv, site) | listed
        below = [os.path.relpath(os.path.join(site, name), venv) for name in walk(site)]
        found += [
            name
            for name in below
            if name not in known
            and not is_compiled(name)
            and (name.endswith(CODE) or ".so." in os.path.basename(name))
            and not os.path.basename(name).startswith("_virtualenv.")
        ]
    return found


def compiled_code(venv):
    """Compiled Python: whether it is that of its source cannot be shown, and it is made again."""
    return [name for name in walk(venv) if is_compiled(name)]


def own_names(venv, receipt):
    """Relative paths of what gpufleet installed, as far as records list it."""
    files = [entry["path"] for entry in receipt["manifest"]]
    files += [path for path, _, _ in recorded_files(venv, receipt["packages"])]
    records = [os.path.relpath(path, venv) for path in records_of(venv, receipt["packages"])]
    return {*files, *records}


def has_own_python(venv, manifest):
    """Return whether the interpreter is as recorded, and starts. No other one is ever executed."""
    own = [
        entry
        for entry in manifest
        if entry["path"] == "pyvenv.cfg" or entry["path"].startswith(os.path.join("bin", "python"))
    ]
    if compare_manifest(venv, own, deep=True):
        return False
    python = os.path.join(venv, "bin", "python")
    try:
        with open(python, "rb") as stream:
            if stream.read(4) != b"\x7fELF":
                return False
    except OSError:
        return False
    return starts(python)


def starts(python):
    """Return whether an interpreter starts within a minute, as from a clean login."""
    try:
        with subprocess.Popen(
            [python, "-I", "-c", ""],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin"},
            start_new_session=True,
        ) as running:
            try:
                return running.wait(START_S) == 0
            except subprocess.TimeoutExpired:
                with contextlib.suppress(OSError):
                    os.killpg(running.pid, signal.SIGKILL)
                return False
    except OSError:
        return False
