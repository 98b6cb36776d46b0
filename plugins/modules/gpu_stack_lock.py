#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Resolve a stack's requirements once, with hashes, for the whole fleet."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_stack_lock
short_description: Resolve a stack's requirements into a lock
description:
  - Runs on the control machine. Writes a requirements file with the exact version and hashes of
    every package of a stack beside the inventory, unless the file exists, so that every host gets
    the same packages. Keep it under version control; remove it to resolve again.
options:
  path:
    description: The lock.
    type: path
    required: true
  requirements:
    description: The requirements to resolve.
    type: list
    elements: str
    required: true
  python:
    description: The Python version to resolve for, such as V(3.11).
    type: str
    required: true
  arch:
    description: The machine architecture of the hosts, as C(uname -m) prints it.
    type: str
    default: x86_64
  uv:
    description: The uv program.
    type: path
    required: true
  index_url:
    description: The Python package index; uv's own setting where this is empty.
    type: str
    default: ""
  index:
    description: An extra package index of this stack. A package is taken from it if it is there.
    type: str
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Resolve TensorFlow 2.13.1
  gpufleet.gpu.gpu_stack_lock:
    path: "{{ inventory_dir }}/stacks/tensorflow-2.13.1-py3.11.lock"
    requirements: [tensorflow==2.13.1]
    python: "3.11"
    uv: "{{ ansible_playbook_python | dirname }}/uv"
  delegate_to: localhost
"""

RETURN = r"""
sha256:
  description: The lock's checksum; empty where check mode did not write the lock.
  type: str
  returned: always
"""

import fcntl
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.addresses import public_addresses
from ansible_collections.gpufleet.gpu.plugins.module_utils.python_environment import (
    index_variables,
    platform_of,
    resolved_for,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.python_packages import (
    expected_bounds,
    undeclared_bounds,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    digest_of,
    write_atomically,
)


def resolve(module):
    """The lock's text."""
    params = module.params
    command = [params["uv"], "pip", "compile", "--generate-hashes", "--no-header"]
    command += ["--no-emit-index-url", "--no-annotate"]
    command += ["--python-platform", platform_of(params["arch"])]
    command += ["--python-version", resolved_for(params["python"])]
    index = index_variables(params["index_url"], params["index"])
    bounds = expected_bounds(params["requirements"])
    while True:
        text = "\n".join(params["requirements"] + bounds) + "\n"
        status, out, err = module.run_command(
            [*command, "-"], data=text, binary_data=True, environ_update=index
        )
        if status:
            module.fail_json(
                msg="The requirements {} cannot be resolved for Python {}: {}".format(
                    ", ".join(params["requirements"]),
                    params["python"],
                    public_addresses(err.strip()),
                )
            )
        # Such a bound belongs to a package that no requirement names.
        missing = [bound for bound in undeclared_bounds(out) if bound not in bounds]
        if not missing:
            return heading(params) + out
        bounds += missing


X86_64 = "x86_64"
MARK = "Made once by gpufleet; remove to resolve again."


def heading(params):
    """The first line of a lock: what it was resolved for."""
    asked = ", ".join(params["requirements"])
    on = " on " + params["arch"] if params["arch"] != X86_64 else ""
    return "# {} for Python {}{}. {}\n".format(asked, params["python"], on, MARK)


def check_purpose(module, path):
    """Refuse a lock of ours that was resolved for something else than is asked now."""
    with open(path) as stream:
        first = stream.readline()
    if MARK in first and first != heading(module.params):
        module.fail_json(
            msg="{} was resolved for '{}', but '{}' is declared. Remove it to resolve it again, "
            "or give the stack another name.".format(
                path, first.strip("# \n"), heading(module.params).strip("# \n")
            )
        )


def warn_of_bounds(module, path):
    """Warn of a lock, whoever made it, with packages that do not start beside each other."""
    with open(path) as stream:
        bounds = undeclared_bounds(stream.read())
    if bounds:
        module.warn(
            "{} has packages of which one does not start beside the other: it needs {}. Remove the "
            "lock to resolve it again, or pin that in your own.".format(path, ", ".join(bounds))
        )


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "requirements": {"type": "list", "elements": "str", "required": True},
            "python": {"type": "str", "required": True},
            "arch": {"type": "str", "default": X86_64},
            "uv": {"type": "path", "required": True},
            "index_url": {"type": "str", "default": "", "no_log": True},
            "index": {"type": "str", "no_log": True},
        },
        supports_check_mode=True,
    )
    path = module.params["path"]
    if not os.path.exists(path) and module.check_mode:
        module.exit_json(changed=True, sha256="")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # Hosts ask at the same time: the first resolves, the others wait. The directory itself is
    # locked, so that no lock file is left beside the inventory.
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    changed = not os.path.exists(path)
    if changed:
        write_atomically(path, resolve(module))
    os.close(folder)
    check_purpose(module, path)
    warn_of_bounds(module, path)
    module.exit_json(changed=changed, sha256=digest_of(path))


if __name__ == "__main__":
    main()
