#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Write or remove the marker of a pending restart."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_reboot_pending
short_description: Write the marker of a pending restart
description:
  - Writes C(reboot-pending.json) to the state directory. It tells the next run and the verification
    that the installed driver is not loaded yet, also where this run is killed.
options:
  state:
    description:
      - V(pending) records that the driver is about to change, and discards earlier attempts.
      - V(tried) records that the host is about to be rebooted.
      - V(absent) removes the marker.
    type: str
    choices: [pending, tried, absent]
    default: pending
  because:
    description: Why a restart is necessary.
    type: str
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.state_dir
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Mark a restart as pending before the driver changes
  gpufleet.gpu.gpu_reboot_pending:
    because: driver 550.163.01 is being installed over 535.261.03
"""

RETURN = r"""
marker:
  description: The marker after the run; null where none exists.
  type: dict
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils import pending
from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"choices": ["pending", "tried", "absent"], "default": "pending"},
            "because": {"type": "str"},
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
        },
        required_if=[("state", "pending", ["because"]), ("state", "tried", ["because"])],
        supports_check_mode=True,
    )
    state, because = module.params["state"], module.params["because"]
    folder = module.params["state_dir"]
    try:
        before = pending.read(folder)
        if state == "absent":
            after = None
        elif state == "tried":
            after = pending.tried(before, because)
        else:
            after = pending.required(because, before)
        changed = before != after
        if changed and not module.check_mode:
            pending.write(after, folder)
    except (StateError, OSError) as error:
        fail(module, error)
    path = pending.marker_path(folder)
    diff = {"before": pending.text(before), "after": pending.text(after)}
    diff.update(before_header=path, after_header=path)
    module.exit_json(changed=changed, marker=after, diff=diff)


if __name__ == "__main__":
    main()
