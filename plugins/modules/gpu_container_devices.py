#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Add to systemd's rules the devices that running containers with GPUs have: reloads keep them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_container_devices
short_description: Let running containers keep their devices when systemd reloads
description:
  - A container that got GPUs by C(--gpus) alone has them behind systemd's back, and loses them at
    the next C(systemctl daemon-reload), which packages run when they are installed. Adds the
    device nodes that such a container has in its C(/dev) to the device rules that systemd has for
    it, until the container ends. systemd then writes all of these rules again, so that every
    character device is added, not only NVIDIA's. Devices of the majors 1, 5 and 136 (memory,
    terminals) are left out, since every engine allows them itself.
  - Allows nothing that the container does not have already. A short process in the container's
    control group asks the kernel which of the nodes it may read and write, without opening them. A
    node that the container only created itself, or mounted, is not added. Restarts nothing.
attributes:
  check_mode: {support: full}
  diff_mode: {support: none}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Let running containers keep their devices when systemd reloads
  gpufleet.gpu.gpu_container_devices:
"""

RETURN = r"""
containers:
  description: The units of the running containers that would have lost devices, with these nodes.
  type: dict
  returned: always
"""

import os
import sys

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.container_units import (
    UNREAD,
    units_with_gpus,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.host import Host

# Prints the numbers of the nodes on its input that a control group allows, with the kind of access.
# The kernel applies a group's device rules to access(), which opens nothing. The inode is held, so
# that a container cannot exchange it between the question and the answer.
ASK = r"""
import os, stat, sys
with open(sys.argv[1], "w") as group:
    group.write("0")
for path in filter(None, sys.stdin.buffer.read().split(b"\0")):
    try:
        node = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    except OSError:
        continue
    state = os.fstat(node)
    access = "".join(letter for letter, mode in (("r", os.R_OK), ("w", os.W_OK))
                     if os.access("/proc/self/fd/%d" % node, mode))
    if access and stat.S_ISCHR(state.st_mode):
        print("%d:%d %s" % (os.major(state.st_rdev), os.minor(state.st_rdev), access))
    os.close(node)
"""
SECONDS = "20"


def device_group(pid, top="/sys/fs/cgroup"):
    """The file by which a process joins the control group that has a container's device rules.

    A kernel lists the group of the first version even where only the second one is mounted.
    """
    with open("/proc/{}/cgroup".format(pid)) as stream:
        groups = {
            kinds: path for _, kinds, path in (line.rstrip("\n").split(":", 2) for line in stream)
        }
    for kinds, path in groups.items():
        if "devices" in kinds.split(",") and os.path.isdir(top + "/devices"):
            return top + "/devices" + path + "/cgroup.procs"
    return top + groups.get("", "") + "/cgroup.procs"


def allowed_nodes(module, unit):
    """The access to nodes that a container can open now, by numbers; none where it has ended."""
    if UNREAD in unit["nodes"]:
        raise ValueError("its /dev has too many entries to be read")
    top = "/proc/{}/root".format(unit["pid"])
    try:
        group = device_group(unit["pid"])
    except OSError:
        return {}
    status, out, err = module.run_command(
        ["timeout", "--signal=KILL", SECONDS, sys.executable, "-I", "-S", "-c", ASK, group],
        data=b"\0".join(os.fsencode(top + node["node"]) for node in unit["nodes"]),
        binary_data=True,
    )
    if status and os.path.exists(top):
        raise ValueError(
            "its control group could not be asked within {} s which devices it has"
            " (a paused container does not answer): {}".format(SECONDS, err.strip())
        )
    return dict(line.split() for line in out.splitlines())


def unknown_rules(unit, allowed):
    """The rules for what a container can open that are not among those of systemd."""
    known = {
        (name, letter)
        for name, _, access in (entry.partition(" ") for entry in unit["allow"])
        for letter in access
    }
    return [
        "/dev/char/{} {}".format(numbers, access)
        for numbers, access in allowed.items()
        if not any(
            {(name, letter) for letter in access} <= known
            for name in ("/dev/char/" + numbers, "char-*")
        )
    ]


def main():
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    found = {}
    for unit in units_with_gpus(Host({})) or []:
        # Without rules of its own a unit restricts nothing.
        if unit["policy"] == "auto" and not unit["allow"]:
            continue
        try:
            rules = unknown_rules(unit, allowed_nodes(module, unit))
            if not rules:
                continue
            if not module.check_mode:
                status, out, err = module.run_command(
                    ["systemctl", "set-property", "--runtime", unit["unit"]]
                    + ["DeviceAllow=" + rule for rule in rules]
                )
                if status:
                    raise ValueError("systemctl set-property failed: " + (err or out).strip())
            found[unit["unit"]] = [rule.split()[0] for rule in rules]
        except ValueError as error:
            module.fail_json(
                msg="The container {} could lose devices when systemd reloads its units, and {} "
                "Stop this container, and run again.".format(
                    unit["unit"], str(error).rstrip(".") + "."
                ),
                containers=found,
            )
    module.exit_json(changed=bool(found), containers=found)


if __name__ == "__main__":
    main()
