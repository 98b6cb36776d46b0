"""Ansible as far as a play can find it loaded: plugins with their options, and modules in forks.

A module still arrives as Ansible packs it for a host, with its arguments, check mode and
environment. It runs in a fork of the process that packed it, instead of in a new interpreter.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

from ansible.executor.process import worker
from ansible.modules import command, copy, file, stat
from ansible.plugins import loader

Executed = tuple[int, bytes, bytes]
# What nearly every play uses; their options are read from the documentation in their sources.
PLUGINS = (
    (loader.become_loader, "sudo"),
    (loader.callback_loader, "ansible.builtin.default"),
    (loader.connection_loader, "ansible.builtin.local"),
    (loader.shell_loader, "sh"),
    (loader.strategy_loader, "linear"),
)
MODULES = command, copy, file, stat, worker


def prepare() -> None:
    """Load what plays have in common."""
    loader.init_plugin_loader()
    # A play configures the finder of collections once more.
    warnings.filterwarnings("ignore", message="AnsibleCollectionFinder has already been configured")
    for plugins, name in PLUGINS:
        plugins.get(name, class_only=True)
    for plugins in (loader.callback_loader, loader.inventory_loader):
        list(plugins.all(class_only=True))
    local = loader.connection_loader.get("ansible.builtin.local", class_only=True)
    local.exec_command = _forked(local.exec_command)


def _forked(usual: Callable[..., Executed]) -> Callable[..., Executed]:
    """The local connection's way to execute a command, but for packed modules."""

    def execute(
        connection: Any, cmd: str, in_data: bytes | None = None, sudoable: bool = True
    ) -> Executed:
        words = shlex.split(shlex.split(cmd)[-1])
        variables = [word for word in words if "=" in word]
        if not in_data or words != [*variables, sys.executable, "&&", "sleep", "0"]:
            return usual(connection, cmd, in_data, sudoable)
        environment = dict(word.split("=", 1) for word in variables)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = os.fork()
            if not process:
                _module(in_data, environment, out.fileno(), err.fileno())
            _, status = os.waitpid(process, 0)
            out.seek(0)
            err.seek(0)
            return os.waitstatus_to_exitcode(status), out.read(), err.read()

    return execute


def _module(packed: bytes, environment: dict[str, str], out: int, err: int) -> None:
    """Become the module's process."""
    status = 1
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.environ.update(environment)
        sys.argv = ["-"]
        exec(compile(packed, "<stdin>", "exec"), {"__name__": "__main__"})
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
