#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Documentation of the action plugin gpu_restart, which runs on the control machine."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_restart
short_description: Load the installed driver, and decide on a reboot
description:
  - Probes the host and decides what the installed driver needs to run. Reloads the kernel modules
    where that is enough (M(gpufleet.gpu.gpu_driver_reload)). Returns what remains to be done.
  - Sets the marker of a pending restart before a reboot, and removes it when nothing is pending.
requirements:
  - the Python package gpufleet on the control machine, in the environment that runs Ansible
options:
  plan:
    description: The host's plan, as M(gpufleet.gpu.gpu_plan) returns it.
    type: dict
    required: true
  keep_marker:
    description: Whether to leave the marker of a pending restart where nothing is pending. A later
      task finds out whether the reboot has helped, and removes the marker then.
    type: bool
    default: false
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
  action:
    description: Runs on the control machine.
    support: full
extends_documentation_fragment:
  - gpufleet.gpu.attributes
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Reload the kernel modules if possible
  gpufleet.gpu.gpu_restart:
    plan: "{{ gpu_plan }}"
  register: restart
"""

RETURN = r"""
action:
  description: What remains to be done, V(none), V(wait), V(reload), V(reboot) or V(stuck).
  type: str
  returned: success
because:
  description: Why it has to be done.
  type: str
  returned: success
remedy:
  description: What a person can do.
  type: str
  returned: success
runs:
  description: Whether the installed driver is the loaded one; its daemons fail beside another.
  type: bool
  returned: success
"""
