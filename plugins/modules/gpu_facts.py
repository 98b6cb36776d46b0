#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Probe a GPU host, as the verification does. Changes nothing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_facts
short_description: Probe a GPU host
description:
  - Runs the verification's probe without framework runs, and returns its snapshot, whose fields are
    described in C(docs/reference/schemas). Changes nothing.
options:
  prefix:
    description: Where toolkits are installed.
    type: path
    default: /usr/local
  stack_root:
    description: Where stacks are installed.
    type: path
    default: /opt/gpufleet/stacks
  tmpdir:
    description: Where runfiles are unpacked.
    type: path
    default: /tmp
  pythons:
    description: Interpreters to probe besides those in the usual directories.
    type: list
    elements: path
    default: []
  mig:
    description: Whether to query the GPUs' MIG instances.
    type: bool
    default: false
  containers:
    description: The container engine to probe, as C({engine, image}); none by default.
    type: dict
  service_user:
    description: The account that must be able to open the GPUs; an ordinary one by default.
    type: str
attributes:
  check_mode: {support: full}
  diff_mode: {support: none}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.state_dir
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Probe the host
  gpufleet.gpu.gpu_facts:
  register: facts
"""

RETURN = r"""
snapshot:
  description: The snapshot, a versioned document.
  type: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.runner import probe

DEADLINE_S = 600


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
    # A slow host has more time for each section than in a nightly verification.
    settings = dict(module.params, mode="facts", deadline_s=DEADLINE_S)
    module.exit_json(changed=False, snapshot=probe(settings))


if __name__ == "__main__":
    main()
