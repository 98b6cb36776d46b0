#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Note on the host that its driver needs a restart, or that it no longer does."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_reboot_pending
short_description: Keep the marker of a pending restart
description:
  - Keeps C(reboot-pending.json) in the state directory, by which the next run and the verification
    know that the installed driver does not run yet, also if this run is killed.
options:
  state:
    description:
      - V(pending) notes that the driver is about to be changed, and forgets what was tried before.
      - V(tried) notes that the host is about to be rebooted for it.
      - V(absent) takes the marker away.
    type: str
    choices: [pending, tried, absent]
    default: pending
  because:
    description: What makes a restart necessary.
    type: str
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.state_dir
author: [The gpufleet developers]
"""

EXAMPLES = r"""
- name: Note that the driver needs a restart, before it is changed
  gpufleet.gpu.gpu_reboot_pending:
    because: driver 550.163.01 is being installed over 535.261.03
"""

RETURN = r"""
marker:
  description: The marker as it stands afterwards; null where none does.
  type: dict
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils import pending
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
            after = pending.required(because)
        changed = before != after
        if changed and not module.check_mode:
            pending.write(after, folder)
    except (StateError, OSError) as error:
        module.fail_json(msg=str(error))
    place = pending.place(folder)
    diff = {"before": pending.text(before), "after": pending.text(after)}
    diff.update(before_header=place, after_header=place)
    module.exit_json(changed=changed, marker=after, diff=diff)


if __name__ == "__main__":
    main()
