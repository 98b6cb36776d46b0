"""Damage to what gpufleet installed, and to its own records, that sizes and times do not show.

The scripts run as root on a lab host with the default stack. Each is repaired as its remedy says.
"""

from __future__ import annotations

from tests.faults.catalogue import Fault
from tests.faults.libraries import LIB, PROVISION, SITE, VENV

STATE = "/var/lib/gpufleet"
RECEIPTS = f"{STATE}/receipts"


def same_size(path: str, change: str) -> str:
    """Change a file's content and put its time back."""
    return f'f=$(readlink -f {path}); t=$(stat -c %y $f); {change}; touch -d "$t" $f; sync'


BYTE = "printf '\\267' | dd of=$f bs=1 seek=18 conv=notrunc 2>/dev/null"
# What Python would write for a source of this time and size, with other code.
COMPILED = f"""
import importlib._bootstrap_external as external, os
source = "{SITE}/tensorflow/__init__.py"
code = compile("raise ImportError('broken on purpose')", source, "exec")
state = os.stat(source)
os.makedirs(os.path.dirname(source) + "/__pycache__", exist_ok=True)
with open(os.path.dirname(source) + "/__pycache__/__init__.cpython-311.pyc", "wb") as stream:
    stream.write(external._code_to_timestamp_pyc(code, int(state.st_mtime), state.st_size))
"""
EMPTIED = f"""
import json
with open("{RECEIPTS}/cudnn-11.8-8.json") as stream:
    receipt = json.load(stream)
with open("{RECEIPTS}/cudnn-11.8-8.json", "w") as stream:
    json.dump(dict(receipt, manifest=[]), stream)
"""
STACK_CAUSE = r"tensorflow-2\.13\.1"

FAULTS = [
    Fault(
        "x30",
        "a CUDA library is of another architecture, its size and time are as before",
        "host",
        "stack.libraries",
        "libcufft",
        PROVISION,
        same_size(f"{LIB}/libcufft.so.10", BYTE),
        also=("install.contents",),
    ),
    Fault(
        "x31",
        "a cuDNN library has another content, its size and time are as before",
        "host",
        "cudnn.present",
        "libcudnn",
        PROVISION,
        same_size(f"{LIB}/libcudnn.so.8", BYTE),
        also=("stack.libraries", "cudnn.links", "linker.cache", "install.contents"),
    ),
    Fault(
        "x32",
        "`bin/python` of a stack was replaced by a script that fails",
        "host",
        "stack.python",
        STACK_CAUSE,
        PROVISION,
        f"rm {VENV}/bin/python; printf '#!/bin/sh\\nexit 1\\n' >{VENV}/bin/python;"
        f" chmod 755 {VENV}/bin/python",
        also=("stack.files",),
    ),
    Fault(
        "x32",
        "a stack was being repaired when its `bin/python` was replaced",
        "host",
        "install.complete",
        "installation of stack",
        PROVISION,
        f"rm {VENV}/bin/python; printf '#!/bin/sh\\nexit 1\\n' >{VENV}/bin/python;"
        f' chmod 755 {VENV}/bin/python; echo \'{{"schema": 1, "kind": "stack", "id":'
        ' "tensorflow-2.13.1", "state": "installing", "fresh": false, "started":'
        f' "2026-01-01T00:00:00Z", "path": "{VENV}", "version": "2.13.1"}}\''
        f" >{STATE}/journal/stack-tensorflow-2.13.1.json",
        also=("stack.python", "stack.files"),
    ),
    Fault(
        "x33",
        "compiled code of a package raises, its source is unchanged",
        "host",
        "stack.matmul",
        "broken on purpose",
        PROVISION,
        f"{VENV}/bin/python - <<'END'\n{COMPILED}END\n",
    ),
    Fault(
        "x34",
        "a broken plugin was added to TensorFlow",
        "host",
        "stack.matmul",
        "libbroken",
        PROVISION,
        f"mkdir -p {SITE}/tensorflow-plugins; echo text >{SITE}/tensorflow-plugins/libbroken.so",
    ),
    Fault(
        "x35",
        "the directory of receipts is lost",
        "host",
        "toolkit.files",
        "has no receipt",
        PROVISION,
        f"rm -rf {RECEIPTS}",
        also=("cudnn.files", "stack.files", "stack.release", "environment.files"),
    ),
    Fault(
        "x36",
        "a receipt is no JSON any more",
        "host",
        "install.complete",
        "cannot be read",
        PROVISION,
        f"echo '{{' >{RECEIPTS}/toolkit-11.8.json",
        also=("toolkit.files",),
    ),
    Fault(
        "x36",
        "the receipt of a stack is empty",
        "host",
        "install.complete",
        "cannot be read",
        PROVISION,
        f": >{RECEIPTS}/stack-tensorflow-2.13.1.json",
        also=("stack.files", "stack.release"),
    ),
    Fault(
        "x37",
        "a receipt lists no files",
        "host",
        "install.complete",
        "manifest is empty",
        PROVISION,
        f"{VENV}/bin/python - <<'END'\n{EMPTIED}END\n",
        also=("cudnn.files",),
    ),
]
