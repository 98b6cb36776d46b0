# Apache-2.0, see LICENSE
"""Bring an installed driver to run as far as that goes without a reboot, and say what remains."""

from __future__ import annotations

from pathlib import Path

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from gpufleet.diff import restart
from gpufleet.host_state.host import Host

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ActionModule(ActionBase):
    """Probes the host and decides (``gpufleet.diff.restart``); reloads the modules if possible.

    Takes the plan; returns what then still is to be done as ``action``, ``because``, ``remedy``.
    The marker of a pending restart is noted before a reboot, and goes when nothing is pending.
    """

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(["plan"])

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        self.task_vars, plan = task_vars, self._task.args["plan"]
        decision, on_disk = self.look(plan)
        reloaded, marked = None, {}
        if decision["action"] == "reload":
            reloaded = self.module("gpu_driver_reload", version=on_disk)
            if not self._task.check_mode:
                decision, on_disk = self.look(plan)
                if reloaded.get("failed") and decision["action"] == "none":
                    return dict(result, **reloaded)
        if decision["action"] in ("none", "reboot"):
            state = "tried" if decision["action"] == "reboot" else "absent"
            marked = self.module("gpu_reboot_pending", state=state, because=decision["because"])
            if marked.get("failed"):
                return dict(result, **marked)
        changed = [each.get("changed") for each in (reloaded or {}, marked)]
        result.update(decision, changed=any(changed))
        if reloaded:
            result.update({key: reloaded[key] for key in ("diff", "msg") if key in reloaded})
        return result

    def look(self, plan):
        """The decision, and the version of the modules on the host's disk."""
        looked = self.module("gpu_facts")
        if looked.get("failed") or "snapshot" not in looked:
            raise AnsibleError("The host could not be looked at: {}".format(looked.get("msg")))
        host = Host(looked["snapshot"])
        here = self._connection.transport == "local" or (
            (host.section("kernel") or {}).get("boot_id") == BOOT_ID.read_text().strip()
        )
        decision = restart.decide(plan, host, control_node=here)
        return decision, (host.section("driver") or {}).get("on_disk")

    def module(self, name, **arguments):
        """A module's answer."""
        return self._execute_module(
            f"gpufleet.gpu.{name}", module_args=arguments, task_vars=self.task_vars
        )
