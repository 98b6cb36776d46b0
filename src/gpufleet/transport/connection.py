"""How a host is reached: from Ansible's settings to one local command and what it is fed.

Nothing is started here. A password goes to standard input alone: never into an argument, where
every user of either machine could read it.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpufleet.inventory import Connection
from gpufleet.paths import PACKAGE

# The line after which standard input is the probe. What stands before it is for sudo.
BEGIN = "#gpufleet-probe"
# The line by which the host says that it takes the probe now: what came before was the way there.
READY = "gpufleet-ready"
SUDO_REFUSED = 77
NO_PYTHON = 78


def command(connection: Connection, run: str | None = None) -> list[str]:
    """The local command that runs the probe (or `run`) there and reads it from standard input."""
    remote = remote_script(connection, run)
    if connection.kind == "local":
        return [*connection.launcher, "/bin/sh", "-c", remote]
    # ssh keeps the first value of an option: what must hold comes first, then the inventory's.
    # A connection kept open in the background would hold our pipes; one that is open is used.
    words = [
        connection.ssh_executable,
        "-T",
        *("-o", "BatchMode=yes"),
        *("-o", "ControlMaster=no"),
        *connection.ssh_arguments,
        *("-o", f"ConnectTimeout={connection.connect_timeout_s}"),
        *("-o", "ServerAliveInterval=15"),
    ]
    if connection.port:
        words += ["-p", str(connection.port)]
    if connection.user:
        words += ["-l", connection.user]
    if connection.key:
        words += ["-i", str(Path(connection.key).expanduser())]
    return [*words, "--", connection.address or connection.name,
            f"exec {shlex.join([*connection.launcher, '/bin/sh', '-c', remote])}"]


def remote_script(connection: Connection, run: str | None = None) -> str:
    """What /bin/sh does there: find Python, become root as told, ask for input, hand it over."""
    become = connection.become
    python = shlex.quote(connection.python)
    sudo = f"sudo -u {shlex.quote(become.user)}"
    found = f"command -v {python} >/dev/null || exit {NO_PYTHON}; "
    # On a line of its own, whatever a profile has written before.
    ready = f'printf "\\n%s\\n" {READY}; '
    run = run or f"{python} -I -S -"
    if become.wanted is False:
        return f"{found}{ready}exec {run}"
    if become.password is not None:
        # The password is tried once by itself. sudo may still ask again (no timestamps, another
        # terminal), so it is given again, and whatever of it was not read is skipped.
        inner = shlex.quote(
            f'{ready}while IFS= read -r line; do [ "$line" = "{BEGIN}" ] && break; done; exec {run}'
        )
        return (
            f"{found}IFS= read -r word; "
            f'printf "%s\\n" "$word" | {sudo} -S -p "" -v || exit {SUDO_REFUSED}; '
            f'{{ printf "%s\\n" "$word"; cat; }} | {sudo} -S -p "" /bin/sh -c {inner}'
        )
    if become.wanted:
        return f"{found}{sudo} -n true || exit {SUDO_REFUSED}; {ready}exec {sudo} -n {run}"
    return (
        f'{found}if [ "$(id -u)" != 0 ] && {sudo} -n true 2>/dev/null; '
        f"then {ready}exec {sudo} -n {run}; else {ready}exec {run}; fi"
    )


def password(connection: Connection) -> bytes:
    """What the command is fed at once: the password, if there is one."""
    become = connection.become
    if become.wanted is False or become.password is None:
        return b""
    return f"{become.password}\n".encode()


def standard_input(connection: Connection, config: Mapping[str, Any]) -> bytes:
    """What the command is fed once it is ready: the probe."""
    # As an ASCII literal that both Python 3.6 and the probe's JSON reader understand.
    head = f"CONFIG = {json.dumps(config)!r}\n"
    mark = f"{BEGIN}\n" if password(connection) else ""
    return (mark + head + program("probe/probe.py")).encode()


@functools.cache
def program(name: str) -> str:
    """The text of a file that runs on hosts: read once, whatever the number of hosts."""
    return (PACKAGE / name).read_text(encoding="utf-8")


def with_password(connection: Connection, program: bytes) -> bytes:
    """What is fed to a command all at once."""
    if not password(connection):
        return program
    return password(connection) + f"{BEGIN}\n".encode() + program


def failure_reason(
    connection: Connection, status: int | None, stderr: str, ready: bool = False
) -> tuple[str, str]:
    """(cause, remedy) of a command that brought no snapshot; `ready`: it came as far as that."""
    name = connection.name
    ssh = [word for word in command(connection)[:-1] if word != "--"]
    way = ssh if connection.kind == "ssh" else []
    by_hand = f"try by hand: {shlex.join([*way, *connection.launcher, 'true'])}"
    last = _last_words(stderr)
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in stderr:
        return (f"The ssh host key of {name} is not the one that is known",
                "if the host was installed anew: ssh-keygen -R "
                f"{connection.address or name}, and accept the new key; else find out who answers")
    if status == SUDO_REFUSED and connection.become.password is not None:
        return (f"sudo on {name} does not accept the password",
                "correct ansible_become_password (its vault entry) for this host")
    if status == SUDO_REFUSED:
        return (f"sudo on {name} wants a password and none is given: {last}",
                "set ansible_become_password, or allow the user sudo without one")
    if status == NO_PYTHON:
        return (f"There is no {connection.python} on {name}",
                "install Python 3.6 or newer there, or set ansible_python_interpreter")
    if status == 255 and connection.kind == "ssh" and ready:
        return (f"The connection to {name} broke off during the look: {last or 'no reason given'}",
                f"look whether {name} or its ssh service was restarted (last -x, journalctl -u ssh)"
                " or its network failed; then ./gpufleet verify")
    if status == 255 and connection.kind == "ssh":
        return f"ssh does not get in: {last or 'it gave no reason'}", by_hand
    return (f"The probe ended without a snapshot (status {status}): {last or 'it said nothing'}",
            by_hand)


def timeout_reason(connection: Connection, deadline_s: float, ready: bool) -> tuple[str, str]:
    """(cause, remedy) of a host that used up its time."""
    name = connection.name
    if ready:
        return (f"{name} lets us in, but the probe gave no answer within {deadline_s:g} s",
                "look at the host's console, its load and its network mounts; a busy or slow host"
                " needs a longer --deadline")
    return (f"No answer within {deadline_s:g} s: {name} did not let us come to a command",
            "look at the host's console and load, its ssh service, and the profile files of the"
            " login there")


def _last_words(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    # A banner or a warning is not the reason.
    telling = [line for line in lines if not re.match(r"(Warning: Permanently|\*\*|@)", line)]
    return " ".join(telling[-2:])[-400:]
