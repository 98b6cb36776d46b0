#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Tell systemd of the GPUs that running containers have, so that its reloads leave them be."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_container_devices
short_description: Let running containers keep their GPUs when systemd reloads
description:
  - A container that got GPUs by C(--gpus) alone has them behind systemd's back, and loses them at
    the next C(systemctl daemon-reload), which packages run when they are installed. Adds the
    device nodes that such a container has to the device rules that systemd has for it, until the
    container ends. Allows nothing that the container does not have already; restarts nothing.
attributes:
  check_mode: {support: full}
  diff_mode: {support: none}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Let running containers keep their GPUs when systemd reloads
  gpufleet.gpu.gpu_container_devices:
"""

RETURN = r"""
containers:
  description: The units of the running containers that would have lost GPUs, with these nodes.
  type: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.probe.container_units import (
    containers_with_gpus,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.probe.host import Host


def unknown_nodes(unit):
    """Those of a container's nodes that systemd's rules for it do not name; all are, without any.
    """
    if unit["policy"] == "auto" and not unit["allow"]:
        return []
    known = {entry.split()[0] for entry in unit["allow"] if set("rw") <= set(entry.split()[-1])}
    paths = ["/dev/char/" + node["numbers"] for node in unit["nodes"]]
    return [path for path in paths if path not in known]


def main():
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    found = {}
    for unit in containers_with_gpus(Host({})) or []:
        nodes = unknown_nodes(unit)
        if not nodes:
            continue
        found[unit["unit"]] = nodes
        if module.check_mode:
            continue
        status, out, err = module.run_command(
            ["systemctl", "set-property", "--runtime", unit["unit"]]
            + ["DeviceAllow={} rw".format(node) for node in nodes])
        if status:
            module.fail_json(
                msg="Nothing was changed yet: {} would lose {} when systemd reloads its units, and"
                " systemctl set-property failed: {} Stop this container, and run again.".format(
                    unit["unit"], ", ".join(nodes), (err or out).strip()))
    module.exit_json(changed=bool(found), containers=found)


if __name__ == "__main__":
    main()
