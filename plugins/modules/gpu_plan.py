#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Documentation of the action plugin gpu_plan, which runs on the control machine."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_plan
short_description: Resolve a host's plan
description:
  - Probes the host (M(gpufleet.gpu.gpu_facts)) and resolves its C(gpu_*) variables into a plan and
    its pending changes. Fails where the declaration cannot be fulfilled on this host. Changes
    nothing.
  - The role P(gpufleet.gpu.gpu_plan#role) runs it and documents the variables.
requirements:
  - the Python package gpufleet on the control machine, in the environment that runs Ansible
options:
  requires:
    description:
      - Variables of which at least one must be declared; the module fails without them, unless the
        play has run it before without this option.
      - With it, the result of the same play and the same declaration is returned again.
    type: list
    elements: str
    default: []
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
- name: Probe the host and resolve its plan
  gpufleet.gpu.gpu_plan:
  register: resolved

- name: Show pending changes
  ansible.builtin.debug:
    var: resolved.changes
"""

RETURN = r"""
plan:
  description: The host's plan, a versioned document.
  type: dict
  returned: success
changes:
  description: The pending changes, each with C(what), C(id), C(action) and C(because).
  type: list
  elements: dict
  returned: success
reused:
  description: Whether the result is that of an earlier task of the same play.
  type: bool
  returned: success
image:
  description: Whether the host is an image that is being built, in which no kernel runs.
  type: bool
  returned: success
probe_options:
  description: The options of a probe of this host.
  type: dict
  returned: success
file_name:
  description: The host's name in names of files, without an ending.
  type: str
  returned: success
"""
