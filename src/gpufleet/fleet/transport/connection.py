"""From a `Connection` to the local command that runs the probe, and its standard input.

Starts no process. A password goes to standard input only, never into an argument, which every user
of both machines can read.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpufleet.fleet.inventory import Connection
from gpufleet.on_host import payload
from gpufleet.on_host.sections.kernel import FIRST_PROCESSES

# The line after which standard input is the probe. What comes before it is for sudo.
BEGIN = "#gpufleet-probe"
# The host prints this line when it is ready to read the probe; output before it is the login's.
READY = "gpufleet-ready"
# Variables that steer which libraries and GPUs a program has. Those of the session that starts the
# probe are unset: they say nothing of other programs.
STEERING = ("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "CUDA_VISIBLE_DEVICES")
# On this machine LD_LIBRARY_PATH stays where Python does not start without it, and in a container
# whose driver nothing else finds: there it is the image's, and every program has it.
KEPT = (
    """[ -z "$paths" ] || {{ unused=$({python} -I -S -c "" 2>&1)"""
    f""" && {{{{ [ "$(readlink /proc/self/ns/pid)" = "{FIRST_PROCESSES}" ]"""
    """ || PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>&1 | grep -q libcuda.so.1; }}; }}"""
    """ || export LD_LIBRARY_PATH="$paths"; """
)
# Run a command in a session with a terminal of its own, its standard files as they are: sudo with
# `requiretty` asks for no more, and bytes that pass through a terminal would not arrive as sent.
WITH_TERMINAL = (
    "import fcntl, os, sys, termios; ours, theirs = os.openpty(); child = os.fork(); "
    "child and (os.close(theirs), os._exit((lambda status: status >> 8 or status and 128 + status)"
    "(os.waitpid(child, 0)[1]))); os.setsid(); fcntl.ioctl(theirs, termios.TIOCSCTTY, 0); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
SUDO_REFUSED = 77
NO_PYTHON = 78


def command(connection: Connection, run: str | None = None) -> list[str]:
    """The local command that runs `run` (default: the probe from standard input) on the host."""
    remote = remote_script(connection, run)
    if connection.kind == "local":
        return [*connection.launcher, "/bin/sh", "-c", remote]
    # ssh uses the first value of an option: mandatory ones come first, then the inventory's.
    # A new master connection would keep our pipes open; an existing one is used.
    args = [
        connection.ssh_executable,
        "-T",
        *("-o", "BatchMode=yes"),
        *("-o", "ControlMaster=no"),
        *connection.ssh_arguments,
        *("-o", f"ConnectTimeout={connection.connect_timeout_s}"),
        *("-o", "ServerAliveInterval=15"),
    ]
    if connection.port:
        args += ["-p", str(connection.port)]
    if connection.user:
        args += ["-l", connection.user]
    if connection.key:
        args += ["-i", str(Path(connection.key).expanduser())]
    return [
        *args,
        "--",
        connection.address or connection.name,
        f"exec {shlex.join([*connection.launcher, '/bin/sh', '-c', remote])}",
    ]


def remote_script(connection: Connection, run: str | None = None) -> str:
    """The script for the host's /bin/sh: find Python, use sudo, print `READY`, run the command."""
    become = connection.become
    python = shlex.quote(connection.python)
    sudo = f"sudo -u {shlex.quote(become.user)}"
    # Without /dev/null: where an account may not write to it, the host is probed all the same.
    find_python = f"unset {' '.join(STEERING)}; unused=$(command -v {python}) || exit {NO_PYTHON}; "
    if connection.kind == "local":
        find_python = f"paths=$LD_LIBRARY_PATH; {find_python}{KEPT.format(python=python)}"
    # On its own line, whatever a shell profile has printed before.
    ready = f'printf "\\n%s\\n" {READY}; '
    run = run or f"{python} -I -S -"
    if become.enabled is False:
        return f"{find_python}{ready}exec {run}"
    # sudo's messages are in the language of the login. To become root is to leave this shell.
    terminal = f"{python} -I -S -c {shlex.quote(WITH_TERMINAL)}"
    find_python += (
        f'become() {{ [ -z "$tty" ] || exec {terminal} {sudo} "$@"; exec {sudo} "$@"; }}; tty=; '
        'needs_tty() { case "$refused" in *" tty "*) tty=1;; *) false;; esac; }; '
    )
    if become.password is not None:
        # The first sudo validates the password. The second may ask again (no timestamps, another
        # terminal), so it gets the password again; if it does not read it, the loop skips it.
        inner = shlex.quote(
            f'{ready}while IFS= read -r line; do [ "$line" = "{BEGIN}" ] && break; done; exec {run}'
        )
        validate = 'printf "%s\\n" "$word" | (become -S -p "" -v)'
        first = validate.replace("become", f"LC_ALL=C {sudo}")
        return (
            f"{find_python}IFS= read -r word; refused=$({first} 2>&1) ||"
            f" {{ needs_tty && {validate}; }} || exit {SUDO_REFUSED}; "
            f'{{ printf "%s\\n" "$word"; cat; }} | (become -S -p "" /bin/sh -c {inner})'
        )
    may = (
        f"{{ refused=$(LC_ALL=C {sudo} -n true 2>&1)"
        " || { needs_tty && refused=$(LC_ALL=C; export LC_ALL; become -n true 2>&1); }; }"
    )
    if become.enabled:
        refuse = f'{{ printf "%s\\n" "$refused" >&2; exit {SUDO_REFUSED}; }}'
        return f"{find_python}{may} || {refuse}; {ready}become -n {run}"
    return (
        f'{find_python}if [ "$(id -u)" != 0 ] && {may}; '
        f"then {ready}become -n {run}; else {ready}exec {run}; fi"
    )


def password(connection: Connection) -> bytes:
    """The first part of standard input: the sudo password, if there is one."""
    become = connection.become
    if become.enabled is False or become.password is None:
        return b""
    return f"{become.password}\n".encode()


def standard_input(connection: Connection, config: Mapping[str, Any]) -> bytes:
    """The second part of standard input, sent after `READY`: the probe."""
    # As an ASCII literal that both Python 3.6 and the probe's JSON reader understand.
    head = f"CONFIG = {json.dumps(config)!r}\n"
    mark = f"{BEGIN}\n" if password(connection) else ""
    return f"{mark}{head}".encode() + _probe()


@functools.cache
def _probe() -> bytes:
    text: str = payload.probe()
    return text.encode()


def with_password(connection: Connection, program: bytes) -> bytes:
    """Password and program as one standard input."""
    if not password(connection):
        return program
    return password(connection) + f"{BEGIN}\n".encode() + program


# Options that Ansible and the probe add to ssh, and that a person does not need.
_OURS = (
    "BatchMode",
    "ConnectTimeout",
    "ControlMaster",
    "ControlPath",
    "ControlPersist",
    "ServerAliveCountMax",
    "ServerAliveInterval",
)


def by_hand_of(connection: Connection) -> str:
    """The shortest command with which a person reaches the host in the same way."""
    words: list[str] = []
    if connection.kind == "ssh":
        given = iter(connection.ssh_arguments)
        words = [connection.ssh_executable]
        for word in given:
            value = next(given, "") if word == "-o" else ""
            if word in {"-C", "-T"} or value.startswith(_OURS):
                continue
            words += [word, value] if word == "-o" else [word]
        for option, setting in (
            ("-p", connection.port),
            ("-l", connection.user),
            ("-i", connection.key),
        ):
            words += [option, str(setting)] if setting else []
        words.append(connection.address or connection.name)
    return shlex.join([*words, *connection.launcher, "true"])


def failure_reason(
    connection: Connection, status: int | None, stderr: str, ready: bool = False
) -> tuple[str, str]:
    """Cause and remedy of a command without a snapshot; `ready`: it had printed `READY`."""
    name, by_hand = connection.name, f"try by hand: {by_hand_of(connection)}"
    last = _last_lines(stderr)
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in stderr:
        return (
            f"The ssh host key of {name} does not match the known key",
            f"if the host was reinstalled: {_forget_key(connection, stderr)}; then compare the"
            f" fingerprint of its new key and accept it: {by_hand_of(connection)}; otherwise find"
            " out which machine answers",
        )
    if status == 255 and "Host key verification failed" in stderr:
        return (
            f"The ssh host key of {name} is not known to this account",
            f"compare its fingerprint and accept it: {by_hand_of(connection)}; or add it to"
            " known_hosts for all (/etc/ssh/ssh_known_hosts)",
        )
    missing = re.search(r"Identity file (\S+) not accessible", stderr)
    if status == 255 and missing and "Permission denied" in stderr:
        return (
            f"The key file {missing[1]}, which the inventory names for {name}, cannot be read",
            "correct ansible_ssh_private_key_file, or put the key there, readable by this account",
        )
    if status == SUDO_REFUSED and connection.become.password is not None:
        return (
            f"sudo on {name} rejects the password",
            "correct ansible_become_password (or its vault entry) for this host",
        )
    if status == SUDO_REFUSED:
        return (
            f"sudo on {name} requires a password, and none is set: {last}",
            "set ansible_become_password, or allow the user sudo without a password",
        )
    if status == NO_PYTHON:
        return (
            f"{connection.python} was not found on {name}",
            "install Python 3.6 or newer on the host, or set ansible_python_interpreter; if it"
            " is there, its link is dangling, or the login's account may not execute it: see"
            " namei -l /usr/bin/python3, and chmod a+rx what is closed",
        )
    if status == 255 and connection.kind == "ssh" and ready:
        return (
            f"The connection to {name} broke during the probe: {last or 'no reason given'}",
            f"check whether {name} or its ssh service was restarted (last -x, journalctl -u"
            " ssh) or its network failed; then ./gpufleet verify",
        )
    if status == 255 and connection.kind == "ssh":
        return f"ssh failed: {last or 'no reason given'}", by_hand
    return (f"The probe ended without a snapshot (status {status}): {last or 'no output'}", by_hand)


def _forget_key(connection: Connection, stderr: str) -> str:
    """The command that removes a host's key from the file in which ssh found it."""
    found = re.search(r"Offending \S+ key in (.+):\d+", stderr)
    name = connection.address or connection.name
    if connection.port not in {None, 22}:
        name = f"[{name}]:{connection.port}"
    return shlex.join(["ssh-keygen", *(["-f", found[1].strip()] if found else []), "-R", name])


def timeout_reason(connection: Connection, deadline_s: float, ready: bool) -> tuple[str, str]:
    """Cause and remedy of a host past its deadline; `ready`: it had printed `READY`."""
    name = connection.name
    if ready:
        return (
            f"The login to {name} works, but the probe gave no answer within {deadline_s:g} s",
            "check the host's console, load and network mounts; a busy or slow host needs a"
            " longer --deadline",
        )
    return (
        f"No answer within {deadline_s:g} s: the login to {name} did not complete",
        "check the host's console and load, its ssh service, and the profile files of the"
        " login user's shell",
    )


def _last_lines(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    # A banner or a warning is not the reason.
    reasons = [line for line in lines if not re.match(r"(Warning: Permanently|\*\*|@)", line)]
    return " ".join(reasons[-2:])[-400:]
