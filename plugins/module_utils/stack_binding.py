# Apache-2.0, see LICENSE
"""Bind a virtual environment to the libraries of its toolkit, and its activation to its variables.

Writes the binding's three files into the environment's packages and extends bin/activate.
"""

from __future__ import annotations

import glob
import json
import os

from ansible_collections.gpufleet.gpu.plugins.module_utils.binding import libraries_in_order
from ansible_collections.gpufleet.gpu.plugins.module_utils.python_environment import run
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    remove_tree,
    write_atomically,
)

BINDING = "_gpufleet_binding"

# What venv's and uv's bin/activate both begin their function with.
DEACTIVATE = "\ndeactivate () {\n"
HOOK = "    if command -v _gpufleet_leave >/dev/null 2>&1; then _gpufleet_leave; fi\n"
MARK = "\n# gpufleet: this stack's own variables\n"
READ = "if [ -r {0} ]; then . {0}; fi\n"


def bind(module, lock, site):
    """Write the binding and try it; returns (its files, the libraries in the order of loading)."""
    params = module.params
    files = [os.path.join(site, BINDING + ending) for ending in (".py", ".json", ".pth")]
    if not params["libraries"]:
        for path in files:
            remove_tree(path)
        return [], []
    wheels = sorted(glob.glob(os.path.join(glob.escape(site), "nvidia", "*", "lib")))
    folders = [params["library_dir"]] if params["library_dir"] else wheels
    libraries = libraries_in_order(folders, params["libraries"])
    document = json.dumps({"libraries": libraries}, indent=1)
    write_atomically(files[0], params["binding"])
    write_atomically(files[1], document + "\n")
    # Last: an environment without this line is simply not bound yet.
    write_atomically(files[2], "import {}\n".format(BINDING))
    run(module, lock, [os.path.join(params["venv"], "bin", "python"), "-m", BINDING])
    return files, libraries


def hook_activation(venv, path):
    """Have ``bin/activate`` read a file of variables, and ``deactivate`` put the old ones back."""
    script = os.path.join(venv, "bin", "activate")
    with open(script) as stream:
        before = stream.read()
    made = before.partition(MARK)[0].replace(HOOK, "")
    if made.count(DEACTIVATE) != 1:
        raise StateError("{} has no function deactivate to extend".format(script))
    text = made.replace(DEACTIVATE, DEACTIVATE + HOOK) + MARK + READ.format(path)
    if text != before:
        write_atomically(script, text, os.stat(script).st_mode & 0o7777)
