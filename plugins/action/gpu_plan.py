# Apache-2.0, see LICENSE
"""Turn a host's wishes into its plan: the one place where Ansible meets ``gpufleet.resolver``."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from gpufleet.diff import changes
from gpufleet.resolver import resolve, with_locks
from gpufleet.spec.probe_settings import probe_settings, visible_gpus


def told(problems):
    """Problems as a person reads them."""
    return "\n".join(
        "{where}: {message} Remedy: {remedy}".format(**problem) for problem in problems
    )


def digests(folder):
    """{file name: sha256} of the locks in a directory; nothing where there is no directory."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in Path(folder).expanduser().glob("*.lock")
    }


class ActionModule(ActionBase):
    """Runs ``gpu_facts`` on the host and resolves the wishes; returns ``plan`` and ``changes``.

    And what a probe of this host is to be told, as ``look``.
    """

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset()

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        wishes = {
            name: self._templar.template(value)
            for name, value in task_vars.items()
            if name.startswith("gpu_") and name not in ("gpu_plan", "gpu_changes")
        }
        where = probe_settings(wishes)
        looked = self._execute_module(
            "gpufleet.gpu.gpu_facts", module_args=where, task_vars=task_vars
        )
        if looked.get("failed") or "snapshot" not in looked:
            result.update(looked, failed=True)
            return result
        snapshot = looked["snapshot"]
        plan = resolve(wishes, snapshot, task_vars["inventory_hostname"])
        plan = with_locks(plan, digests(wishes["gpu_locks_dir"]))
        if plan["problems"]:
            raise AnsibleError(
                "Nothing was changed on {}: its declaration cannot be carried out.\n{}".format(
                    task_vars["inventory_hostname"], told(plan["problems"])
                )
            )
        look = dict(where, expect_gpus=visible_gpus(wishes))
        result.update(changed=False, plan=plan, changes=changes(plan, snapshot), look=look)
        return result
