# Apache-2.0, see LICENSE
"""Load an installed driver as far as possible without a reboot, and return what remains.

Runs on the control machine. Through modules it reloads the host's kernel modules and writes its
marker of a pending restart.
"""

from __future__ import annotations

from pathlib import Path

from ansible.errors import AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.gpufleet.gpu.plugins.plugin_utils.control import require_package

try:
    from gpufleet.components.base.host import Host
    from gpufleet.components.driver import restart_change as restart
except ImportError as error:
    IMPORT_ERROR = error
else:
    IMPORT_ERROR = None

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ActionModule(ActionBase):
    """Probes the host, reloads the modules if possible; ``driver.restart_change`` decides.

    Takes the plan; returns what remains to be done as ``action``, ``because``, ``remedy``, and
    whether the installed driver runs as ``runs``.
    Sets the marker of a pending restart before a reboot; removes it when nothing is pending, unless
    ``keep_marker`` leaves that to a later task.
    """

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(["plan", "keep_marker"])

    def run(self, tmp=None, task_vars=None):
        require_package(IMPORT_ERROR)
        result = super().run(tmp, task_vars)
        self.task_vars, plan = task_vars, self._task.args["plan"]
        host = self.probe(plan)
        decision = self.decide(plan, host)
        reloaded, marked = None, {}
        # A program that held the GPU at the probe may end within a second: the module waits.
        without = self.decide(plan, host, ())
        if without["action"] == "reload":
            on_disk = (host.section("driver") or {}).get("on_disk")
            reloaded = self.module(
                "gpu_driver_reload", version=on_disk, services=list(restart.SERVICES)
            )
            held = reloaded.get("held")
            if held or self._task.check_mode:
                decision = self.decide(plan, host, held) if held else without
            else:
                host = self.probe(plan)
                decision = self.decide(plan, host)
                if reloaded.get("failed") and decision["action"] == "none":
                    return dict(result, **reloaded)
        settled = decision["action"] == "none" and not self.keeps_marker()
        if settled or decision["action"] == "reboot":
            state = "tried" if decision["action"] == "reboot" else "absent"
            marked = self.module("gpu_reboot_pending", state=state, because=decision["because"])
            if marked.get("failed"):
                return dict(result, **marked)
        changed = [answer.get("changed") for answer in (reloaded or {}, marked)]
        result.update(decision, runs=restart.runs_as_installed(plan, host), changed=any(changed))
        if reloaded:
            result.update({key: reloaded[key] for key in ("diff", "msg") if key in reloaded})
        return result

    def probe(self, plan):
        """Return the host as it is now."""
        # A MIG mode that waits for a reset is a reason to reboot.
        declared = (plan["driver"] or {}).get("mig") is not None
        facts = self.module("gpu_facts", mig=declared)
        if facts.get("failed") or "snapshot" not in facts:
            raise AnsibleError("The host could not be probed: {}".format(facts.get("msg")))
        return Host(facts["snapshot"])

    def decide(self, plan, host, held=None):
        """Return the decision. ``held``: the processes for which a reload was refused."""
        local = self._connection.transport == "local" or (
            (host.section("kernel") or {}).get("boot_id") == BOOT_ID.read_text().strip()
        )
        return restart.decide(plan, host, control_node=local, held=held)

    def keeps_marker(self):
        """Return whether a later task removes the marker."""
        return boolean(self._task.args.get("keep_marker", False))

    def module(self, name, **arguments):
        """Run a module of the collection; returns its result."""
        return self._execute_module(
            f"gpufleet.gpu.{name}", module_args=arguments, task_vars=self.task_vars
        )
