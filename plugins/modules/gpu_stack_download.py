#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Start to download the packages of stacks, beside whatever else is installed meanwhile."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_stack_download
short_description: Start to download the packages of new stacks
description:
  - Starts a process that creates the environments of new stacks and puts into them what their locks
    list, and returns at once. What is installed meanwhile does not wait for the network. Each
    environment is in the journal first; M(gpufleet.gpu.gpu_stack) waits for the end of that
    process, binds what it has filled, and creates again what it has not, which says why where a
    download failed.
  - Does nothing for a stack of which the host has anything, nor for one whose environment is on
    another file system than the cache, since both would need the space.
options:
  stacks:
    description:
      - The stacks, as a plan has them. Left out are those that pip installs, or whose interpreter
        uv installs.
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
    default: /var/cache/gpufleet/gpufleet-python
attributes:
  check_mode: {support: full}
  diff_mode: {support: none}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.state_dir
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
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.session import (
    Session,
    end_with_session,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.python_environment import (
    check_wheelhouse,
    install_packages,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    DOWNLOADS,
    Installation,
    StateError,
    digest_of,
    host_lock,
    same_filesystem,
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


def stand_back():
    """Leave processors and network to what is waited for: the distribution's packages, toolkits."""
    os.nice(10)
    os.environ.setdefault("UV_CONCURRENT_DOWNLOADS", "8")


def download(module, stacks, lock):
    """Create each stack's environment with its packages, and enter in the journal that it has."""
    for stack in stacks:
        lock_file = os.path.join(module.params["locks"], stack["lock"])
        module.params.update(
            venv=stack["venv"],
            python=stack["python"],
            interpreter=stack.get("interpreter"),
            lock=lock_file,
            index=stack.get("index"),
            installer="uv",
            python_dir=None,
            repair=None,
        )
        if not is_new(stack, module.params["state_dir"]):
            # Somebody has put something there meanwhile.
            continue
        installation = installation_of(stack, module.params["state_dir"])
        installation.begin(fresh=True)
        started, digest = installation.journal["started"], digest_of(lock_file)
        try:
            install_packages(module, lock, False)
        except StateError:
            # Where it fails again, the installation says so.
            continue
        # Another run may have copied another lock.
        if digest_of(lock_file) == digest:
            installation.fill(digest, started)


def installation_of(stack, state_dir):
    """The installation of a stack by the journal and the receipts."""
    return Installation("stack", stack["name"], stack["venv"], stack["version"], state_dir)


def is_new(stack, state_dir):
    """Return whether the host has nothing of a stack: no environment, no record."""
    installation = installation_of(stack, state_dir)
    files = (stack["venv"], installation.receipt_file, installation.journal_file)
    return not any(map(os.path.lexists, files))


def main():
    module = AnsibleModule(
        argument_spec={
            "stacks": {"type": "list", "elements": "dict", "required": True},
            "locks": {"type": "path", "required": True},
            "uv": {"type": "path", "required": True},
            "index_url": {"type": "str", "default": "", "no_log": True},
            "wheelhouse": {"type": "str", "default": ""},
            "cache": {"type": "path", "default": "/var/cache/gpufleet/gpufleet-python"},
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
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
        and is_new(each, params["state_dir"])
    ]
    answer = {"changed": False, "started": [each["name"] for each in stacks]}
    if module.check_mode or not stacks:
        module.exit_json(**answer)
    session = Session()
    try:
        check_wheelhouse(params["wheelhouse"])
        # A process that an earlier run started may still be at work: it is left to it.
        with host_lock(params["state_dir"], patience_s=0, name=DOWNLOADS) as lock:
            if detach():
                try:
                    # The connection stays open until the playbook ends; the module ends now.
                    end_with_session(session)
                    stand_back()
                    download(module, stacks, lock)
                finally:
                    # Not as a module ends, which would answer a second time.
                    os._exit(0)
    except (StateError, OSError) as error:
        answer.update(msg=str(error), started=[])
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
