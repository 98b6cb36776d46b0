#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Remove artifacts and caches from a host after an installation."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_artifact_cleanup
short_description: Remove artifacts and caches
description:
  - Removes from a directory the named files and what was unpacked there beforehand, and the
    directory where it is empty then. Other files stay. Changes nothing while another installation
    runs on the host.
  - Also removes what modules of this collection left below the temporary directory when they were
    killed, once it is a day old.
options:
  directory:
    description: The directory of the artifacts.
    type: path
    required: true
  files:
    description: Names of the artifacts.
    type: list
    elements: str
    required: true
  caches:
    description: Directories to remove with their contents.
    type: list
    elements: path
    default: []
attributes:
  check_mode: {support: full}
  diff_mode: {support: none}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.state_dir
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Remove the runfile
  gpufleet.gpu.gpu_artifact_cleanup:
    directory: /var/cache/gpufleet/artifacts
    files: [cuda_11.8.0_520.61.05_linux.run]
"""

RETURN = r"""
removed:
  description: The removed paths.
  type: list
  elements: str
  returned: always
"""

import glob
import os
import tempfile
import time
from contextlib import ExitStack, suppress

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    DOWNLOADS,
    UNPACKED,
    StateError,
    host_lock,
    remove_tree,
)

# As Ansible names the directory from which a module of this collection runs.
PAYLOADS = "ansible_gpufleet.gpu.*_payload_*"
# No module runs longer.
ABANDONED_S = 24 * 3600


def abandoned():
    """Return what killed modules have left: Ansible removes it where its module ends."""
    found = []
    for path in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), PAYLOADS)):
        with suppress(OSError):  # removed meanwhile
            known = os.lstat(path)
            if known.st_uid == os.geteuid() and known.st_mtime < time.time() - ABANDONED_S:
                found.append(path)
    return sorted(found)


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
    # Trees that were unpacked beforehand and not needed, also by a run that was killed.
    paths += sorted(glob.glob(os.path.join(glob.escape(directory), "*" + UNPACKED)))
    existing = [path for path in paths + params["caches"] if os.path.lexists(path)]
    existing += abandoned()
    if not existing or module.check_mode:
        module.exit_json(changed=bool(existing), removed=existing)
    with ExitStack() as locks:
        try:
            # A process that downloads may have been started by another run.
            for name in ("lock", DOWNLOADS):
                locks.enter_context(host_lock(params["state_dir"], 0, name))
        except StateError:
            # The running installation removes them at its end.
            module.exit_json(changed=False, removed=[])
        try:
            for path in existing:
                remove_tree(path)
            if os.path.isdir(directory) and not os.listdir(directory):
                os.rmdir(directory)
        except (StateError, OSError) as error:
            fail(module, error)
    module.exit_json(changed=True, removed=existing)


if __name__ == "__main__":
    main()
