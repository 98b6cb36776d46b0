#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Look at a GPU host, as the verification does."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_facts
short_description: Look at a GPU host
description:
  - Runs the verification's own probe without the framework runs, and returns its snapshot, whose
    fields are described in C(docs/reference/documents.md). Changes nothing.
options:
  prefix:
    description: Where toolkits stand.
    type: path
    default: /usr/local
  stack_root:
    description: Where stacks stand.
    type: path
    default: /opt/gpufleet/stacks
  tmpdir:
    description: The directory that runfiles are to be unpacked in.
    type: path
    default: /tmp
  pythons:
    description: Interpreters to look at, besides those in the usual places.
    type: list
    elements: path
    default: []
  mig:
    description: Whether to ask the driver how GPUs are split into MIG instances.
    type: bool
    default: false
  containers:
    description: The container engine to ask, as C({engine, image}); none where it is not given.
    type: dict
  service_user:
    description: The account that must be able to open the GPUs; else an ordinary one.
    type: str
attributes:
  check_mode: {support: full}
  diff_mode: {support: none}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.state_dir
author: [The gpufleet developers]
"""

EXAMPLES = r"""
- name: Look at the host
  gpufleet.gpu.gpu_facts:
  register: looked
"""

RETURN = r"""
snapshot:
  description: What was seen.
  type: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.probe.runner import probe


def main():
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "default": "/usr/local"},
            "stack_root": {"type": "path", "default": "/opt/gpufleet/stacks"},
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
            "tmpdir": {"type": "path", "default": "/tmp"},
            "pythons": {"type": "list", "elements": "path", "default": []},
            "mig": {"type": "bool", "default": False},
            "containers": {"type": "dict"},
            "service_user": {"type": "str"},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, snapshot=probe(dict(module.params, mode="facts")))


if __name__ == "__main__":
    main()
