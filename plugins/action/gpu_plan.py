# Apache-2.0, see LICENSE
"""Resolve a host's plan from its variables and a probe, by ``gpufleet.components.resolver``.

Runs on the control machine. Changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ansible.errors import AnsibleError
from ansible.module_utils.basic import _PY_MIN
from ansible.plugins.action import ActionBase
from ansible_collections.gpufleet.gpu.plugins.plugin_utils.control import require_package

try:
    from gpufleet.components.base.host import Host
    from gpufleet.components.changes import changes
    from gpufleet.components.declare import declaration_of
    from gpufleet.components.probe_settings import probe_settings, visible_gpus
    from gpufleet.components.repairs import steps_of
    from gpufleet.components.resolver import resolve_declaration, with_locks
    from gpufleet.documents.spec import KEYS, declares
    from gpufleet.paths import host_file_name
except ImportError as error:
    IMPORT_ERROR = error
else:
    IMPORT_ERROR = None


# The declarations that roles need when they are called alone, as a person writes them.
DECLARATIONS = {
    "gpu_containers": "{engine: docker}",
    "gpu_driver": '{branch: "535"}',
    "gpu_expect": "{count: 8}",
    "gpu_network": "{driver: inbox}",
    "gpu_stacks": '[{tensorflow: "2.13.1"}]',
    "gpu_toolkits": '["12.4.1"]',
    "tensorflow_gpu_version": '"2.13.1"',
}


def undeclared_message(names, host):
    """The message that says how to declare work for a role that has none on a host."""
    examples = " or ".join(
        f"{name}: {DECLARATIONS[name]}" for name in names if name in DECLARATIONS
    )
    return (
        f"Nothing was changed on {host}: nothing is declared for this role. Remedy: declare "
        f"{examples}, in the inventory or in vars of the play."
    )


def problems_message(problems):
    """Return problems as text, one a line."""
    return "\n".join(
        "{where}: {message} Remedy: {remedy}".format(**problem) for problem in problems
    )


def unread_message(snapshot, host):
    """The message for a host whose system was not read: its plan could be for another system."""
    why = snapshot["sections"].get("os", {}).get("error") or "no answer"
    return (
        f"Nothing was changed on {host}: its operating system and architecture could not be read "
        f"({why}). Remedy: run the same command again; if it stays so, see what keeps the host "
        "busy (uptime, ps -eo stat,wchan:32,cmd)."
    )


def part_unread_message(why, host):
    """Return what to do where a part of a host was not read: nobody knows what it lacks."""
    return (
        f"Nothing was changed on {host}: {why}. Remedy: run the same command again when the host "
        "is less busy; if it stays so, see what keeps it busy (uptime, ps -eo stat,wchan:32,cmd)."
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

    Returns ``plan``, ``changes``, ``image``, whether the host is an image that is being built,
    ``probe_options``, the options of a probe of this host, and ``file_name``, its name in file
    names. Within a play the same declaration is resolved once:
    then ``reused`` is true, and the result is that of the first time.
    """

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(["requires"])

    def run(self, tmp=None, task_vars=None):
        require_package(IMPORT_ERROR)
        result = super().run(tmp, task_vars)
        variables = {
            name: self._templar.template(value)
            for name, value in task_vars.items()
            if declares(name) and name != "gpu_repair"
        }
        name, requires = task_vars["inventory_hostname"], self._task.args.get("requires") or []
        known = task_vars.get("__gpu_plan_result") or {}
        identity = self.identity(variables)
        # A playbook that makes the plan of all roles may call roles that a host does not need.
        whole = known.get("whole", False) if identity["play"] == known.get("play") else not requires
        if not whole and requires and not set(requires) & set(variables):
            raise AnsibleError(undeclared_message(requires, name))
        if requires and identity.items() <= known.items():
            return dict(known, reused=True, changed=False)
        declaration = declaration_of(variables)
        settings = probe_settings(declaration.spec)
        # The module runs no stack.
        of_runs = {"compiles", "frameworks", "toolkits"}
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
        if Host(snapshot).arch is None:
            raise AnsibleError(unread_message(snapshot, name))
        digests = lock_digests(variables["gpu_locks_dir"])
        plan = with_locks(resolve_declaration(declaration, snapshot, name, digests), digests)
        if plan["problems"]:
            raise AnsibleError(
                "Nothing was changed on {}: its declaration cannot be fulfilled.\n{}".format(
                    name, problems_message(plan["problems"])
                )
            )
        repair = steps_of(self._templar.template(task_vars.get("gpu_repair")), name, plan)
        pending = changes(plan, snapshot, repair)
        if unread := [row["because"] for row in pending if row["action"] == "unread"]:
            raise AnsibleError(part_unread_message(unread[0], name))
        result.update(
            identity,
            changed=False,
            reused=False,
            whole=whole,
            image=Host(snapshot).is_image,
            plan=plan,
            changes=pending,
            probe_options=dict(settings, expect_gpus=visible_gpus(declaration.spec)),
            file_name=host_file_name(name),
        )
        return result

    def identity(self, variables):
        """The play, and a digest of what is declared in it."""
        declared = {
            name: value
            for name, value in variables.items()
            # Empty texts are defaults of roles, which are known to some roles only.
            if name in KEYS and value != ""
        }
        text = json.dumps(declared, sort_keys=True, default=str)
        play = self._task.get_play()
        return {"play": str(play._uuid), "declaration": hashlib.sha256(text.encode()).hexdigest()}
