# Apache-2.0, see LICENSE
"""Bind a virtual environment to its CUDA libraries, and its activation to its variables.

Writes the binding's three files into the environment's packages and extends bin/activate.
"""

from __future__ import annotations

import glob
import json
import os

from ansible_collections.gpufleet.gpu.plugins.module_utils.binding import libraries_in_order
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.frameworks import each_of
from ansible_collections.gpufleet.gpu.plugins.module_utils.python_environment import run
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    remove_tree,
    write_atomically,
)

BINDING = "_gpufleet_binding"

# The first line of the function in venv's and uv's bin/activate.
DEACTIVATE = "\ndeactivate () {\n"
HOOK = "    if command -v _gpufleet_leave >/dev/null 2>&1; then _gpufleet_leave; fi\n"
MARK = "\n# gpufleet: this stack's own variables\n"
READ = "if [ -r {0} ]; then . {0}; fi\n"


# By framework: the modules of which the first to be imported binds the environment.
MODULES = {"tensorflow": ("tensorflow",), "pytorch": ("torch",), "jax": ("jax", "jaxlib")}


# Directories of libraries in an environment's packages: NVIDIA's wheels, the first ones of
# cuSPARSELt, and what frameworks contain themselves.
INSIDE = ("nvidia/*/lib", "cusparselt/lib", *each_of("libraries"))
# Directories of libraries that JAX uses and no toolkit has.
BESIDE_TOOLKIT = ("nvidia/nccl/lib", "nvidia/nvshmem/lib")


def library_folders(site, library_dir):
    """Return the directories of the libraries to bind: a toolkit's, or those of the packages."""
    patterns = BESIDE_TOOLKIT if library_dir else INSIDE
    found = [
        folder
        for pattern in patterns
        for folder in sorted(glob.glob(os.path.join(glob.escape(site), pattern)))
    ]
    if library_dir:
        cupti = os.path.join(os.path.dirname(library_dir), "extras", "CUPTI", "lib64")
        found = [library_dir, *filter(os.path.isdir, [cupti]), *found]
    return found


def variables(framework, site, library_dir):
    """Return the variables by which a framework finds ptxas and libdevice: JAX's CUDA_ROOT."""
    if framework != "jax":
        return {}
    wheels = [os.path.join(site, "nvidia", name) for name in ("cuda_nvcc", "cu13")]
    roots = [os.path.dirname(library_dir)] if library_dir else wheels
    found = [root for root in roots if os.path.exists(os.path.join(root, "bin", "ptxas"))]
    return {"CUDA_ROOT": found[0]} if found else {}


def start_line(site, framework):
    """Return the line that each start of the interpreter runs.

    Another environment on PYTHONPATH may have a binding too, and would be searched before this one.
    """
    names = ", ".join(map(repr, MODULES[framework]))
    parts = ["import sys", "sys.path.insert(0, {!r})".format(site), "import " + BINDING]
    parts += ["del sys.path[0]", "{}.watch({})".format(BINDING, names)]
    return "; ".join(parts) + "\n"


def bind(module, lock, site):
    """Write the binding and try it; returns (its files, the libraries in the order of loading)."""
    params = module.params
    files = [os.path.join(site, BINDING + ending) for ending in (".py", ".json", ".pth")]
    folders = library_folders(site, params["library_dir"])
    libraries = libraries_in_order(folders, params["libraries"], params["libraries_optional"])
    if not libraries:
        for path in files:
            remove_tree(path)
        return [], []
    document = {"libraries": libraries}
    found = variables(params["framework"], site, params["library_dir"])
    if found:
        document["variables"] = found
    write_atomically(files[0], params["binding"])
    write_atomically(files[1], json.dumps(document, indent=1) + "\n")
    # Last: an environment without this line is simply not bound yet.
    write_atomically(files[2], start_line(site, params["framework"]))
    run(module, lock, [os.path.join(params["venv"], "bin", "python"), "-m", BINDING])
    return files, document["libraries"]


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
