#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Take away from a host what was only needed while something was being installed."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_artifact_cleanup
short_description: Remove artifacts and caches that are needed no more
description:
  - Removes the named files from a directory, and the directory when it is empty then. Whatever else
    lies in it stays. Leaves everything alone while another installation is at work on the host.
options:
  directory:
    description: Where the artifacts were brought.
    type: path
    required: true
  files:
    description: Their names.
    type: list
    elements: str
    required: true
  caches:
    description: Directories that are wholly ours.
    type: list
    elements: path
    default: []
attributes:
  check_mode: {support: full}
  diff_mode: {support: none}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.state_dir
author: [The gpufleet developers]
"""

EXAMPLES = r"""
- name: Remove the runfile
  gpufleet.gpu.gpu_artifact_cleanup:
    directory: /var/cache/gpufleet/artifacts
    files: [cuda_11.8.0_520.61.05_linux.run]
"""

RETURN = r"""
removed:
  description: What was there and is not any more.
  type: list
  elements: str
  returned: always
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    host_lock,
    remove_tree,
)


def main():
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "path", "required": True},
            "files": {"type": "list", "elements": "str", "required": True},
            "caches": {"type": "list", "elements": "path", "default": []},
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
        },
        supports_check_mode=True,
    )
    params = module.params
    directory = params["directory"]
    paths = [os.path.join(directory, os.path.basename(name)) for name in params["files"]]
    there = [path for path in paths + params["caches"] if os.path.lexists(path)]
    if not there or module.check_mode:
        module.exit_json(changed=bool(there), removed=there)
    try:
        with host_lock(params["state_dir"], patience_s=0):
            for path in there:
                remove_tree(path)
            if os.path.isdir(directory) and not os.listdir(directory):
                os.rmdir(directory)
    except StateError:
        # Whoever is installing now clears up at the end.
        module.exit_json(changed=False, removed=[])
    except OSError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=True, removed=there)


if __name__ == "__main__":
    main()
