# Apache-2.0, see LICENSE
"""Resolve a host's plan from its variables and a probe: where Ansible calls ``gpufleet.resolver``.

Runs on the control machine. Changes nothing.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from ansible.errors import AnsibleError
from ansible.module_utils.basic import _PY_MIN
from ansible.plugins.action import ActionBase
from ansible_collections.gpufleet.gpu.plugins.plugin_utils.control import require_package

try:
    from gpufleet.diff import changes, steps_of
    from gpufleet.paths import host_file_name
    from gpufleet.resolver import resolve, with_locks
    from gpufleet.spec.probe_settings import probe_settings, visible_gpus
except ImportError as error:
    IMPORT_ERROR = error
else:
    IMPORT_ERROR = None


def problems_message(problems):
    """Return problems as text, one a line."""
    return "\n".join(
        "{where}: {message} Remedy: {remedy}".format(**problem) for problem in problems
    )


def lock_digests(folder):
    """Return {file name: sha256} of the locks in a directory; empty where it does not exist."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in Path(folder).expanduser().glob("*.lock")
    }


def too_old(task_vars):
    """Return what is wrong with a Python that Ansible's modules do not run under."""
    found = task_vars.get("ansible_facts", {}).get("discovered_interpreter_python", "its Python")
    return (
        "Nothing was changed on {}: Ansible's modules do not run under {}, which is older than "
        "Python {}. Remedy: install a newer one there (RHEL 8: dnf install python3.12) and name it "
        "in the inventory (ansible_python_interpreter: /usr/bin/python3.12).".format(
            task_vars["inventory_hostname"],
            task_vars.get("ansible_python_interpreter") or found,
            ".".join(map(str, _PY_MIN)),
        )
    )


class ActionModule(ActionBase):
    """Runs ``gpu_facts`` on the host and resolves its variables.

    Returns ``plan``, ``changes``, ``probe_options``, the options of a probe of this host, and
    ``file_name``, its name in file names.
    """

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset()

    def run(self, tmp=None, task_vars=None):
        require_package(IMPORT_ERROR)
        result = super().run(tmp, task_vars)
        variables = {
            name: self._templar.template(value)
            for name, value in task_vars.items()
            if name.startswith("gpu_") and name not in ("gpu_plan", "gpu_changes", "gpu_repair")
        }
        settings = probe_settings(variables)
        # The module runs no stack.
        of_runs = {"compiles", "frameworks"}
        args = {name: value for name, value in settings.items() if name not in of_runs}
        facts = self._execute_module(
            "gpufleet.gpu.gpu_facts", module_args=args, task_vars=task_vars
        )
        # As older interpreters answer to what Ansible sends them.
        if "SyntaxError" in facts.get("module_stderr", ""):
            raise AnsibleError(too_old(task_vars))
        if facts.get("failed") or "snapshot" not in facts:
            result.update(facts, failed=True)
            return result
        snapshot = facts["snapshot"]
        plan = resolve(variables, snapshot, task_vars["inventory_hostname"])
        plan = with_locks(plan, lock_digests(variables["gpu_locks_dir"]))
        if plan["problems"]:
            raise AnsibleError(
                "Nothing was changed on {}: its declaration cannot be fulfilled.\n{}".format(
                    task_vars["inventory_hostname"], problems_message(plan["problems"])
                )
            )
        name = task_vars["inventory_hostname"]
        repair = steps_of(self._templar.template(task_vars.get("gpu_repair")), name, plan)
        options = dict(settings, expect_gpus=visible_gpus(variables))
        result.update(
            changed=False,
            plan=plan,
            changes=changes(plan, snapshot, repair),
            probe_options=options,
            file_name=host_file_name(task_vars["inventory_hostname"]),
        )
        return result
