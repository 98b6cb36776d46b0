#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Start to download the packages of stacks, beside whatever else is installed meanwhile."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_stack_download
short_description: Start to download the packages of stacks
description:
  - Starts a process that fills uv's cache with what the locks list, and returns at once. What is
    installed meanwhile does not wait for the network. M(gpufleet.gpu.gpu_stack) waits for the end
    of that process, installs from the cache, and says why where a download failed.
  - Does nothing for a stack whose environment is on another file system than the cache, since both
    would need the space.
options:
  stacks:
    description:
      - The stacks, as a plan has them. Left out are those that pip installs, or whose interpreter
        uv brings.
    type: list
    elements: dict
    required: true
  locks:
    description: The directory of the locks on the host.
    type: path
    required: true
  uv:
    description: The uv program on the host.
    type: path
    required: true
  index_url:
    description: The Python package index; the host's own setting where this is empty.
    type: str
    default: ""
  wheelhouse:
    description: A directory of wheels on the host, or the address of a page that lists them.
    type: str
    default: ""
  cache:
    description: Where downloads are kept during the installation.
    type: path
    default: /var/cache/gpufleet/python
attributes:
  check_mode: {support: full}
  diff_mode: {support: none}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Start to download TensorFlow 2.13.1
  gpufleet.gpu.gpu_stack_download:
    uv: /opt/gpufleet/bin/uv
    locks: /opt/gpufleet/locks
    stacks: "{{ gpu_plan.stacks }}"
"""

RETURN = r"""
started:
  description: The names of the stacks whose packages are being downloaded.
  type: list
  elements: str
  returned: always
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.python_environment import (
    check_wheelhouse,
    install_packages,
    same_filesystem,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    host_lock,
    remove_tree,
)


def detach():
    """Become a process of its own; returns whether this is that process."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    return True


def download(module, stacks, lock):
    """Install each lock into an environment that is thrown away: uv's cache is what stays."""
    for stack in stacks:
        ahead = os.path.join(module.params["cache"], "ahead")
        module.params.update(
            venv=ahead,
            python=stack["python"],
            interpreter=stack.get("interpreter"),
            lock=os.path.join(module.params["locks"], stack["lock"]),
            index=stack.get("index"),
            installer="uv",
            python_dir=None,
            repair=None,
        )
        try:
            install_packages(module, lock, False)
        except StateError:
            # Where it fails again, the installation says so.
            return
        finally:
            remove_tree(ahead)


def main():
    module = AnsibleModule(
        argument_spec={
            "stacks": {"type": "list", "elements": "dict", "required": True},
            "locks": {"type": "path", "required": True},
            "uv": {"type": "path", "required": True},
            "index_url": {"type": "str", "default": "", "no_log": True},
            "wheelhouse": {"type": "str", "default": ""},
            "cache": {"type": "path", "default": "/var/cache/gpufleet/python"},
        },
        supports_check_mode=True,
    )
    params = module.params
    stacks = [
        each
        for each in params["stacks"]
        if each["installer"] == "uv"
        and each["python_source"] != "uv"
        and same_filesystem(each["venv"], params["cache"])
    ]
    answer = {"changed": False, "started": [each["name"] for each in stacks]}
    if module.check_mode or not stacks:
        module.exit_json(**answer)
    try:
        check_wheelhouse(params["wheelhouse"])
        # A process that an earlier run started may still be at work: it is left to it.
        with host_lock(params["cache"], patience_s=0) as lock:
            if detach():
                try:
                    download(module, stacks, lock)
                finally:
                    # Not as a module ends, which would answer a second time.
                    os._exit(0)
    except (StateError, OSError) as error:
        answer.update(msg=str(error), started=[])
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
