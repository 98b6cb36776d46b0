#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Fetch one artifact into the control machine's cache, once for the fleet, and check it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_artifact
short_description: Fetch an artifact into the cache
description:
  - Runs on the control machine, in Ansible's own process (the action plugin of this name). Uses the
    file in a directory, or downloads it into the cache under a partial name (continuing an
    interrupted download), checks it and renames it.
  - Any number of hosts may request the same file at once; it is downloaded once.
options:
  file:
    description: The artifact's file name.
    type: str
    required: true
  checksum:
    description: Its checksum as V(ALGORITHM:HEX).
    type: str
    required: true
  size:
    description:
      - Its size in bytes. A download stops one byte past it, or past 16 GiB where it is not set.
    type: int
  url:
    description: The address to download it from, where O(source) is not set.
    type: str
    default: ""
  source:
    description: A directory that contains it.
    type: str
    default: ""
  cache:
    description: The directory that downloads are kept in.
    type: path
    required: true
  login_required:
    description: Whether downloading from O(url) requires a login.
    type: bool
    default: false
attributes:
  check_mode: {support: full}
  diff_mode: {support: none}
  action:
    description: Runs on the control machine.
    support: full
extends_documentation_fragment:
  - gpufleet.gpu.attributes
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Fetch the runfile once
  gpufleet.gpu.gpu_artifact:
    file: cuda_11.8.0_520.61.05_linux.run
    checksum: sha256:9223c4af3aebe4a7bbed9abd9b163b03a1b34b855fbc2b4a0d1b706ac09a5a16
    url: https://developer.download.nvidia.com/compute/cuda/11.8.0/local_installers/cuda_11.8.0_520.61.05_linux.run
    cache: ~/.cache/gpufleet/artifacts
"""

RETURN = r"""
path:
  description: The checked file.
  type: str
  returned: always
"""

import os
import pathlib

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.download import (
    UnreachableError,
    download,
    held,
    public,
    verified,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError

ARGUMENTS = {
    "file": {"type": "str", "required": True},
    "checksum": {"type": "str", "required": True},
    "size": {"type": "int"},
    "url": {"type": "str", "default": ""},
    "source": {"type": "str", "default": ""},
    "cache": {"type": "path", "required": True},
    "login_required": {"type": "bool", "default": False},
}


def obtain(module):
    """Return the path of the checked file, and whether it was downloaded."""
    params = module.params
    shown = dict(params, url=public(params["url"], params["url"]))
    if params["source"]:
        # Not of type path: that would turn an empty source, which means none, into a directory.
        directory = pathlib.Path(params["source"]).expanduser()
        if not directory.is_absolute():
            raise StateError(
                "gpu_artifacts_source is {source}: set it to the directory's absolute path.".format(
                    **params
                )
            )
        path = str(directory / params["file"])
        if not os.path.isfile(path):
            raise StateError(
                "{file} is not in {source}, the directory of gpu_artifacts_source. Download it "
                "from {url} into that directory.".format(**shown)
            )
        verified(path, params["checksum"], params["cache"])
        return path, False
    path = os.path.join(params["cache"], params["file"])
    if os.path.isfile(path):
        verified(path, params["checksum"], params["cache"])
        return path, False
    if params["login_required"]:
        raise StateError(
            "{file} requires a login with NVIDIA. Download it from {url} into a directory, and set "
            "gpu_artifacts_source to that directory.".format(**shown)
        )
    if not module.check_mode:
        try:
            download(params["url"], path, params["checksum"], params["cache"], params["size"])
        except UnreachableError as error:
            raise StateError(
                "{file} is not in the cache and {error}. Restore the connection, or put the file "
                "into a directory and set gpu_artifacts_source to that directory.".format(
                    error=error, **params
                )
            ) from error
    return path, True


def answer(module):
    """The result; ``module`` has ``params`` and ``check_mode``. Raises StateError and OSError."""
    with held(os.path.join(module.params["cache"], "locks", module.params["file"])):
        path, changed = obtain(module)
    return {"path": path, "changed": changed}


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        module.exit_json(**answer(module))
    except (StateError, OSError) as error:
        fail(module, error)


if __name__ == "__main__":
    main()
