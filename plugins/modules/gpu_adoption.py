#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Adopt a CUDA toolkit, and cuDNN in it, that was installed by hand: check it, write a receipt."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_adoption
short_description: Adopt a toolkit that was installed by hand
description:
  - Checks every file of a CUDA toolkit without a receipt, and of the cuDNN that was copied into it.
    Where each library is valid, each link resolves, and every required SONAME exists, writes a
    receipt for each, as if gpufleet had installed it.
  - Changes nothing in the tree, and nothing at all where a check fails.
  - The versions are checked before, by the plan, from the host's snapshot.
options:
  version:
    description: The planned full version of the toolkit, such as V(11.8.0).
    type: str
    required: true
  short:
    description: The toolkit's short version, such as V(11.8); the receipt's id.
    type: str
    required: true
  path:
    description: The path of the toolkit.
    type: path
    required: true
  sonames:
    description: SONAMEs that must exist.
    type: list
    elements: str
    default: []
  cudnn:
    description:
      - cuDNN to adopt in that tree, each as C({id, version, major, soname, default}); C(default)
        says whether headers and unversioned links belong to it.
    type: list
    elements: dict
    default: []
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.state_dir
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Adopt CUDA 11.8
  gpufleet.gpu.gpu_adoption:
    version: 11.8.0
    short: "11.8"
    path: /usr/local/cuda-11.8
    sonames: [libcudart.so.11.0, libcublas.so.11]
"""

RETURN = r"""
adopted:
  description: What was adopted, such as C(toolkit 11.8).
  type: list
  elements: str
  returned: success
"""

import os
import re
import stat
import struct

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.binding import libraries_in_order
from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.module import of_cudnn
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.elf import elf_dynamic
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.manifest import manifest_of
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    Installation,
    StateError,
    host_lock,
    walk,
)

LIBRARY = re.compile(r"\.so(\.\d+)*$")


def file_error(path):
    """Return what is wrong with a file or link, or None."""
    if os.path.islink(path):
        if os.path.exists(path):
            return None
        return "{} points to {}, which does not exist".format(path, os.readlink(path))
    if not stat.S_ISREG(os.lstat(path).st_mode):
        return "{} is not a regular file".format(path)
    with open(path, "rb") as stream:
        elf = stream.read(4) == b"\x7fELF"
    library = LIBRARY.search(path)
    if not (elf or library):
        return None
    try:
        elf_dynamic(path)
    except (ValueError, struct.error) as error:
        # A program may be linked statically, but it must be complete.
        if library or str(error).startswith("truncated"):
            return "{}: {}".format(path, error)
    return None


def adoptable(params):
    """Return what to adopt: [(installation, its files, further fields of its receipt)].

    Raises ``StateError`` with all errors.
    """
    root, state_dir = params["path"], params["state_dir"]
    toolkit = Installation("toolkit", params["short"], root, params["version"], state_dir)
    names = walk(root)
    found = [(toolkit, [name for name in names if not of_cudnn(name)], {})]
    for row in params["cudnn"]:
        cudnn = Installation("cudnn", row["id"], root, row["version"], state_dir)
        files = [name for name in names if of_cudnn(name, int(row["major"]), row["default"])]
        found.append((cudnn, files, {"default": row["default"]}))
    found = [row for row in found if not (row[0].receipt or row[0].journal)]
    errors = [file_error(os.path.join(root, name)) for _, files, _ in found for name in files]
    wrong = [error for error in errors if error]
    sonames = [*params["sonames"], *(row["soname"] for row in params["cudnn"])]
    if found and not wrong:
        try:
            libraries_in_order([os.path.join(root, "lib64")], sonames)
        except StateError as error:
            wrong.append(str(error))
    if wrong:
        more = " and {} more".format(len(wrong) - 5) if len(wrong) > 5 else ""
        raise StateError(
            "{0} cannot be adopted and was not changed: {1}{2}. Repair it, or move the tree "
            "away (mv {0} {0}.old): the next run then installs the toolkit.".format(
                root, "; ".join(wrong[:5]), more
            )
        )
    return found


def main():
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str", "required": True},
            "short": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "sonames": {"type": "list", "elements": "str", "default": []},
            "cudnn": {"type": "list", "elements": "dict", "default": []},
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        found = adoptable(params)
        names = ["{0.kind} {0.ident}".format(row[0]) for row in found]
        answer = {"changed": bool(found), "adopted": names}
        answer["diff"] = {
            "before": "".join(name + ": without a receipt\n" for name in names),
            "after": "".join(name + ": adopted\n" for name in names),
        }
        if found and not module.check_mode:
            with host_lock(params["state_dir"]):
                # Again: another run may have adopted it while this one waited for the lock.
                for installation, files, more in adoptable(params):
                    manifest = manifest_of(params["path"], files)
                    installation.finish({"adopted": True}, manifest, **more)
        module.exit_json(**answer)
    except (StateError, OSError) as error:
        fail(module, error)


if __name__ == "__main__":
    main()
