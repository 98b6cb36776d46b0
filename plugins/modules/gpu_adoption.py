#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Adopt a CUDA toolkit, and cuDNN in it, that somebody installed by hand: look, then a receipt."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_adoption
short_description: Give a receipt to a toolkit that somebody installed by hand
description:
  - Looks at every file of a CUDA toolkit that stands in its place without a receipt, and of the
    cuDNN that was copied into it. Where each library is whole, each link leads somewhere, and every
    wanted SONAME is there, writes a receipt for each, as if gpufleet had installed it.
  - Changes nothing in the tree, and nothing at all where something is wrong.
  - Whether the versions are the planned ones is judged before, from the host's snapshot.
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
    description: Where the toolkit stands.
    type: path
    required: true
  sonames:
    description: Libraries that must be there.
    type: list
    elements: str
    default: []
  cudnn:
    description:
      - cuDNN to adopt in that tree, each as C({id, version, major, soname, default}); C(default)
        tells whether header and unversioned link are its own.
    type: list
    elements: dict
    default: []
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.state_dir
author: [The gpufleet developers]
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
  description: What got a receipt, such as C(toolkit 11.8).
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
from ansible_collections.gpufleet.gpu.plugins.module_utils.module import of_cudnn
from ansible_collections.gpufleet.gpu.plugins.module_utils.probe.elf import elf_dynamic
from ansible_collections.gpufleet.gpu.plugins.module_utils.probe.manifest import manifest_of
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    Installation,
    StateError,
    host_lock,
    walk,
)

LIBRARY = re.compile(r"\.so(\.\d+)*$")


def wrong_with(path):
    """What is wrong with one file or link, in words; None where nothing is."""
    if os.path.islink(path):
        if os.path.exists(path):
            return None
        return "{} leads to {}, which is not there".format(path, os.readlink(path))
    if not stat.S_ISREG(os.lstat(path).st_mode):
        return "{} is no plain file".format(path)
    with open(path, "rb") as stream:
        elf = stream.read(4) == b"\x7fELF"
    library = LIBRARY.search(path)
    if not (elf or library):
        return None
    try:
        elf_dynamic(path)
    except (ValueError, struct.error) as error:
        # A program need not be linked dynamically, but it must be whole.
        if library or str(error).startswith("truncated"):
            return "{}: {}".format(path, error)
    return None


def look(params):
    """What is to be adopted: [(installation, its files, what else its receipt says)].

    Raises ``StateError`` with everything that is wrong.
    """
    root, state_dir = params["path"], params["state_dir"]
    toolkit = Installation("toolkit", params["short"], root, params["version"], state_dir)
    names = walk(root)
    found = [(toolkit, [name for name in names if not of_cudnn(name)], {})]
    for row in params["cudnn"]:
        cudnn = Installation("cudnn", row["id"], root, row["version"], state_dir)
        files = [name for name in names if of_cudnn(name, int(row["major"]), row["default"])]
        found.append((cudnn, files, {"default": row["default"]}))
    found = [each for each in found if not (each[0].receipt or each[0].journal)]
    wrong = [wrong_with(os.path.join(root, name)) for _, files, _ in found for name in files]
    wrong = [words for words in wrong if words]
    sonames = [*params["sonames"], *(row["soname"] for row in params["cudnn"])]
    if found and not wrong:
        try:
            libraries_in_order([os.path.join(root, "lib64")], sonames)
        except StateError as error:
            wrong.append(str(error))
    if wrong:
        more = " and {} more".format(len(wrong) - 5) if len(wrong) > 5 else ""
        raise StateError(
            "{0} cannot be adopted, and was left as it is: {1}{2}. Mend that, or move the tree "
            "away (mv {0} {0}.old): the next run then installs its own.".format(
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
        found = look(params)
        names = ["{0.kind} {0.ident}".format(each[0]) for each in found]
        answer = {"changed": bool(found), "adopted": names}
        answer["diff"] = {
            "before": "".join(name + ": without a receipt\n" for name in names),
            "after": "".join(name + ": adopted\n" for name in names),
        }
        if found and not module.check_mode:
            with host_lock(params["state_dir"]):
                # Once more: another run may have been here while this one waited for the lock.
                for installation, files, more in look(params):
                    manifest = manifest_of(params["path"], files)
                    installation.finish({"adopted": True}, manifest, **more)
        module.exit_json(**answer)
    except (StateError, OSError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
