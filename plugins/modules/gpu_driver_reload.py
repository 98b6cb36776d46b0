#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Reload the NVIDIA kernel modules from disk while the host runs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_driver_reload
short_description: Reload the NVIDIA kernel modules
description:
  - Unloads the NVIDIA kernel modules in the order of their dependencies, loads those on disk, and
    checks their version. Does nothing where that version is loaded, but finishes a reload that was
    killed. Fails before the first module
    is unloaded where one is in use, by a display for example.
  - Stops the driver's own daemons (O(services)) and starts them again. Where another process holds
    a GPU, waits up to 20 seconds for its end, then fails before any change and reports its name,
    pid and user.
  - Where reloading fails, records the error in the marker of a pending restart.
options:
  version:
    description: The version of the modules on disk.
    type: str
    required: true
  services:
    description: The driver's units that may be stopped, in the order of their start.
    type: list
    elements: str
    default: [nvidia-fabricmanager, nvidia-persistenced, nvidia-dcgm, dcgm]
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.state_dir
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Load the installed modules
  gpufleet.gpu.gpu_driver_reload:
    version: 550.163.01
"""

RETURN = r"""
loaded:
  description: The version that was loaded before; null where none was loaded.
  type: str
  returned: always
held:
  description: Processes that hold a GPU, for which the reload was refused; else empty.
  type: list
  elements: str
  returned: failure
"""

import time
from collections import namedtuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils import pending
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.holders import holders_of
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.host import Host
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.text import first_match
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError, host_lock

HOST = Host({})
# How long udev may take for the events of the modules.
SETTLE_S = 30
# How long a program that uses a GPU may take to end: nvidia-smi of a monitor, or nvidia-ctk.
PATIENCE_S = 20
PAUSE_S = 0.5
VERSION = r"Kernel Module[^\n]*?\s(\d+\.\d+(?:\.\d+)?)\s"
# A loaded module, how often it is used, and the modules that use it.
Loaded = namedtuple("Loaded", "name count users")


class HeldError(StateError):
    """Somebody holds a GPU: no fault of the modules, and over when it ends."""

    def __init__(self, holders):
        super().__init__("the GPU is held by {}".format(", ".join(holders)))
        self.holders = holders


def loaded():
    """The version of the loaded module; None where none is."""
    return first_match(VERSION, HOST.text_or_none("/proc/driver/nvidia/version"))


def listed():
    """The loaded NVIDIA modules, as the kernel lists them."""
    found = []
    for line in (HOST.text_or_none("/proc/modules") or "").splitlines():
        name, _, count, used_by = line.split()[:4]
        if name == "nvidia" or name.startswith("nvidia_"):
            users = {each for each in used_by.split(",") if each not in ("", "-")}
            found.append(Loaded(name, count, users))
    return found


def modules():
    """The loaded NVIDIA modules in the order in which they can go, those that use others first.

    Raises ``StateError`` for a module of somebody else's that uses them.
    """
    users = {row.name: row.users for row in listed()}
    ours = set(users)
    foreign = sorted({user for name in ours for user in users[name]} - ours)
    if foreign:
        raise StateError("other kernel modules use them: {}".format(", ".join(foreign)))
    order = []
    while len(order) < len(ours):
        order += [name for name in sorted(ours - set(order)) if users[name] <= set(order)]
    return order


def refuse_holders(services, stopped=False):
    """Raise ``HeldError`` that names who holds a GPU, the units that may be stopped left out.

    Raises ``StateError`` for processes of these units where they are stopped: a job is over some
    day, but these stay until the host is rebooted.
    """
    units = ["{}.service".format(name) for name in services]
    own, others = [], []
    for row in holders_of(HOST):
        found = own if row["unit"] in units else others
        found.append("{command} (pid {pid} of {user})".format(**row))
    if others:
        raise HeldError(others)
    if own and stopped:
        raise StateError("their units are stopped, and they run on: {}".format(", ".join(own)))


def refuse_use(services):
    """Raise ``StateError`` where the modules cannot be unloaded: all of them stay then.

    The count of a module that others use is no evidence: they are unloaded before it.
    """
    refuse_holders(services, stopped=True)
    used = sorted(row.name for row in listed() if not row.users and row.count not in ("0", "-"))
    if used:
        raise StateError(
            "in use is {}, by a display or the console for example: no process has /dev/nvidia* "
            "open".format(", ".join(used))
        )


def patiently(attempt, *arguments, **options):
    """Repeat until it raises no ``StateError``; raises the last one when the time is over."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return attempt(*arguments, **options)
        except StateError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(PAUSE_S)


class Reload:
    """One exchange of the modules."""

    def __init__(self, module):
        self.module, self.version = module, module.params["version"]
        self.udevadm = module.get_bin_path("udevadm")
        self.removed = []

    def run(self, *words):
        """Run a command; raises ``StateError`` with what it said."""
        status, out, err = self.module.run_command(list(words))
        if status:
            raise StateError("{}: {}".format(" ".join(words), (err or out).strip() or status))

    def are(self, state):
        """Return the units that are in a state, as systemd reports it."""
        return [
            unit
            for unit in self.module.params["services"]
            if not self.module.run_command(["systemctl", "--quiet", state, unit])[0]
        ]

    def settle(self):
        """Wait until udev has handled its events; a limit that passes is a warning."""
        if not self.udevadm:
            return
        try:
            self.run(self.udevadm, "settle", "--timeout={}".format(SETTLE_S))
        except StateError as error:
            self.module.warn("udev still handles events of the kernel modules: {}".format(error))

    def unload(self, name):
        """Unload a module; a program that ends shortly may still use it."""
        try:
            patiently(self.run, "rmmod", name)
        except StateError:
            refuse_holders(self.module.params["services"])
            raise

    def unloaded(self):
        """Say which modules are unloaded while nvidia of the former version stays."""
        if not self.removed or "nvidia" in self.removed:
            return ""
        return (
            "; unloaded now: {}. Those on disk do not fit the loaded nvidia: the next reload or "
            "boot loads all of them".format(", ".join(self.removed))
        )

    def carry_out(self):
        """Exchange the modules, or finish what a killed run left unfinished.

        Whatever comes of it, the daemons are started afterwards. The marker records what has to
        run and to be loaded in the end, since a killed run leaves no other trace of it.
        """
        folder = self.module.params["state_dir"]
        former = pending.read(folder)
        unfinished = pending.interrupted(former)
        if loaded() == self.version and not unfinished:
            return
        unfinished, before = unfinished or {"modules": [], "services": []}, modules()
        # Those that are enabled and do not run wait for the driver that is loaded now.
        active, enabled = self.are("is-active"), self.are("is-enabled")
        names = [name for name in unfinished["modules"] if name not in before] + before
        ran = [
            unit
            for unit in self.module.params["services"]
            if unit in active + unfinished["services"]
        ]
        because = "driver {} is installed".format(self.version)
        pending.write(pending.reloading(former, because, names, ran), folder)
        try:
            if loaded() != self.version:
                self.remove(before, active)
            self.load(names)
        finally:
            dead = [
                unit
                for unit in self.module.params["services"]
                if unit in ran + enabled
                and self.module.run_command(["systemctl", "start", unit])[0]
            ]
            # Where modules are unloaded, the next run needs their names.
            if {row.name for row in listed()} >= set(names):
                pending.write(pending.reloaded(former), folder)
        lost = sorted(set(dead) & set(ran))
        if lost:
            raise StateError(
                "{} ran before and cannot be started now: see systemctl status".format(
                    ", ".join(lost)
                )
            )

    def remove(self, names, active):
        """Stop the daemons, and unload the modules."""
        for unit in reversed(active):
            self.run("systemctl", "stop", unit)
        # Somebody may have come meanwhile.
        patiently(refuse_use, self.module.params["services"])
        for name in names:
            self.unload(name)
            self.removed.append(name)
        # Rules for removed devices may unload nvidia-uvm, also after it was loaded again.
        self.settle()

    def load(self, names):
        """Load the modules on disk, and check their version."""
        for name in ["nvidia", "nvidia_uvm", *reversed(names)]:
            self.run("modprobe", name)
        # The daemons need the device files that rules create.
        self.settle()
        if loaded() != self.version:
            raise StateError(
                "modprobe loaded {}, wanted is {}: another module of that name comes first in "
                "/lib/modules".format(loaded() or "nothing", self.version)
            )


def main():
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str", "required": True},
            "services": {
                "type": "list",
                "elements": "str",
                "default": ["nvidia-fabricmanager", "nvidia-persistenced", "nvidia-dcgm", "dcgm"],
            },
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
        },
        supports_check_mode=True,
    )
    version, before = module.params["version"], loaded()
    state = "kernel module nvidia {}\n"
    answer = {
        "loaded": before,
        "changed": before != version,
        "diff": {"before": state.format(before or "not loaded"), "after": state.format(version)},
    }
    folder, reload = module.params["state_dir"], Reload(module)
    try:
        unfinished = pending.interrupted(pending.read(folder))
    except StateError as error:
        module.fail_json(msg=str(error), loaded=before, held=[])
    if unfinished:
        answer["changed"] = True
        answer["diff"]["before"] += "a reload that was killed is not finished\n"
    if not answer["changed"]:
        module.exit_json(**answer)
    try:
        if before != version:
            patiently(refuse_holders, module.params["services"])
            modules()
        if not module.check_mode:
            with host_lock(folder):
                reload.carry_out()
    except StateError as error:
        said = "{}{}".format(error, reload.unloaded())
        if not module.check_mode and not isinstance(error, HeldError):
            because = "driver {} is installed".format(version)
            pending.write(pending.failed(pending.read(folder), because, said), folder)
        module.fail_json(
            msg="The kernel modules were not reloaded: {}".format(said),
            loaded=before,
            held=getattr(error, "holders", []),
        )
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
