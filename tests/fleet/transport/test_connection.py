"""The command that probes a host; a password is on standard input and nowhere else."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from gpufleet.fleet.inventory import Become, Connection
from gpufleet.fleet.transport.connection import (
    BEGIN,
    NO_PYTHON,
    READY,
    SUDO_REFUSED,
    by_hand_of,
    command,
    failure_reason,
    password,
    remote_script,
    standard_input,
    with_password,
)
from tests.support.machine import deadline

SECRET = "correct horse; $(battery) 'staple'"


def test_ssh_gets_the_inventorys_settings_and_never_prompts() -> None:
    args = command(
        Connection(
            "gpu01",
            address="10.0.0.1",
            user="deploy",
            port=2222,
            key="/keys/id",
            ssh_arguments=("-o", "ProxyJump=bastion"),
            connect_timeout_s=7,
        )
    )
    assert args[0] == "ssh"
    assert args[-3:-1] == ["--", "10.0.0.1"]
    pairs = list(pairwise(args))
    for pair in [
        ("-o", "BatchMode=yes"),
        ("-o", "ConnectTimeout=7"),
        ("-o", "ProxyJump=bastion"),
        ("-p", "2222"),
        ("-l", "deploy"),
        ("-i", "/keys/id"),
    ]:
        assert pair in pairs
    assert "python3 -I -S -" in args[-1]


def kept(programs: Path, **environment: str) -> dict[str, str]:
    """The variables of the session that the probe has, of the local host."""
    environment = {"LANG": "C", "PATH": f"{programs}:/usr/bin:/bin", **environment}
    ended = subprocess.run(
        command(Connection("localhost", "local", become=Become(False)), "env"),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found = dict(line.partition("=")[::2] for line in ended.stdout.splitlines() if "=" in line)
    return {key: value for key, value in found.items() if key in environment}


def program(programs: Path, name: str, text: str) -> None:
    """A stand-in for a program."""
    (programs / name).write_text(f"#!/bin/sh\n{text}\n")
    (programs / name).chmod(0o755)


SESSION = {"LD_LIBRARY_PATH": "/home/ann/lib", "CUDA_VISIBLE_DEVICES": "0"}


def test_the_sessions_own_libraries_and_gpus_are_not_those_of_the_probe(tmp_path: Path) -> None:
    """A session may have a libcuda that no other program has."""
    assert kept(tmp_path, **SESSION).keys() == {"PATH", "LANG"}


def test_a_python_that_needs_the_sessions_libraries_has_them(tmp_path: Path) -> None:
    """The Python of an environment module finds its libpython by LD_LIBRARY_PATH alone."""
    program(tmp_path, "python3", '[ -n "$LD_LIBRARY_PATH" ]')
    assert kept(tmp_path, **SESSION).keys() == {"PATH", "LANG", "LD_LIBRARY_PATH"}


@pytest.mark.parametrize(
    ("space", "cached", "stays"),
    [
        ("pid:[4026532000]", "", True),
        ("pid:[4026532000]", "libcuda.so.1 (libc6,x86-64) => /usr/lib64/libcuda.so.1", False),
        ("pid:[4026531836]", "", False),
    ],
)
def test_a_container_keeps_the_only_way_to_its_driver(
    tmp_path: Path, space: str, cached: str, stays: bool
) -> None:
    program(tmp_path, "readlink", f'echo "{space}"')
    program(tmp_path, "ldconfig", f'echo "{cached}"')
    assert ("LD_LIBRARY_PATH" in kept(tmp_path, **SESSION)) == stays


def test_a_password_is_in_no_argument_and_no_repr() -> None:
    connection = Connection("gpu01", become=Become(True, "root", SECRET))
    assert password(connection) == f"{SECRET}\n".encode()
    assert standard_input(connection, {"mode": "facts"}).decode().splitlines()[0] == BEGIN
    assert not [arg for arg in command(connection) if SECRET in arg or "battery" in arg]
    assert "battery" not in repr(connection)
    assert "battery" not in "".join(failure_reason(connection, SUDO_REFUSED, "Sorry, try again."))


def test_without_a_password_standard_input_is_the_probe_only() -> None:
    text = standard_input(Connection("gpu01", become=Become(True)), {"mode": "facts"}).decode()
    assert password(Connection("gpu01", become=Become(True))) == b""
    assert text.startswith('CONFIG = \'{"mode": "facts"}\'\n')
    compile(text, "probe", "exec")


def test_become_no_never_uses_sudo() -> None:
    connection = Connection("gpu01", become=Become(False, "root", SECRET))
    assert "sudo" not in remote_script(connection)
    assert password(connection) == b""


@pytest.fixture
def sudo(tmp_path: Path) -> Path:
    """A stand-in sudo that asks for a password each time, as with `timestamp_timeout=0`."""
    stand_in = tmp_path / "sudo"
    stand_in.write_text(f"""#!/bin/sh
ask=
while :; do case $1 in
  -u|-p) shift 2;; -S) ask=stdin; shift;; -n) ask=never; shift;; -v) shift; set -- true;; *) break;;
esac; done
[ "$ask" = never ] && {{ echo 'sudo: a password is required' >&2; exit 1; }}
IFS= read -r word
echo "asked" >> {tmp_path}/asked
[ "$word" = "$(cat {tmp_path}/secret)" ] || {{ echo 'Sorry, try again.' >&2; exit 1; }}
exec "$@"
""")
    stand_in.chmod(0o755)
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "python3").symlink_to(shutil.which("cat") or "/bin/cat")
    return tmp_path


def run(connection: Connection, path: Path, fed: bytes) -> subprocess.CompletedProcess[bytes]:
    """The remote script with a stand-in `sudo`, and `cat` in Python's place."""
    script = remote_script(connection).replace("-I -S -", "-")
    return subprocess.run(
        ["/bin/sh", "-c", script],
        input=fed,
        capture_output=True,
        timeout=deadline(20),
        check=False,
        env={"PATH": f"{path}:/usr/bin:/bin"},
        # As on a host: a session without a terminal.
        start_new_session=True,
    )


def test_sudo_without_timestamps_gets_the_password_twice_and_python_only_the_probe(
    sudo: Path,
) -> None:
    connection = Connection("gpu01", become=Become(True, "root", SECRET))
    ended = run(connection, sudo, f"{SECRET}\n{BEGIN}\nprint(1)\n".encode())
    assert ended.stdout == f"\n{READY}\nprint(1)\n".encode()
    assert (sudo / "asked").read_text().split() == ["asked", "asked"]


def test_sudo_that_does_not_ask_passes_no_password_to_python(sudo: Path) -> None:
    (sudo / "sudo").write_text(
        "#!/bin/sh\nwhile :; do case $1 in -u|-p) shift 2;; -v) exit 0;;"
        ' -*) shift;; *) break;; esac; done\nexec "$@"\n'
    )
    connection = Connection("gpu01", become=Become(True, "root", SECRET))
    ended = run(connection, sudo, f"{SECRET}\n{BEGIN}\nprint(1)\n".encode())
    assert ended.stdout == f"\n{READY}\nprint(1)\n".encode()


def test_a_wrong_password_is_tried_once(sudo: Path) -> None:
    connection = Connection("gpu01", become=Become(True, "root", "wrong"))
    ended = run(connection, sudo, f"wrong\n{BEGIN}\nprint(1)\n".encode())
    assert ended.returncode == SUDO_REFUSED
    assert (sudo / "asked").read_text().split() == ["asked"]
    cause, remedy = failure_reason(connection, ended.returncode, ended.stderr.decode())
    assert cause == "sudo on gpu01 rejects the password"
    assert "ansible_become_password" in remedy


def test_sudo_that_requires_a_password_where_none_is_set(sudo: Path) -> None:
    connection = Connection("gpu01", become=Become(True))
    ended = run(connection, sudo, b"print(1)\n")
    assert ended.returncode == SUDO_REFUSED
    assert "a password is required" in failure_reason(connection, 77, ended.stderr.decode())[0]


@pytest.mark.parametrize(
    "become", [Become(None), Become(True), Become(True, "root", SECRET)], ids=repr
)
def test_sudo_that_requires_a_terminal_gets_one_and_python_every_byte(
    sudo: Path, become: Become
) -> None:
    """With `Defaults requiretty` of sudoers."""
    real = sudo / "real"
    (sudo / "sudo").rename(real)
    if become.password is None:
        real.write_text(
            "#!/bin/sh\nwhile :; do case $1 in -u) shift 2;; -*) shift;; *) break;; esac; done\n"
            'exec "$@"\n'
        )
    refusal = "sudo: sorry, you must have a tty to run sudo"
    (sudo / "sudo").write_text(
        f'#!/bin/sh\n(: </dev/tty) 2>&- || {{ echo "{refusal}" >&2; exit 1; }}\nexec {real} "$@"\n'
    )
    (sudo / "sudo").chmod(0o755)
    (sudo / "id").write_text("#!/bin/sh\necho 1000\n")
    (sudo / "id").chmod(0o755)
    # This Python is the one that opens the terminal.
    connection = Connection("gpu01", python=sys.executable, become=become)
    program = b"import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())\n"
    script = f"{sys.executable} -c {shlex.quote(program.decode())}"
    document = bytes(range(256)) * 1000
    ended = subprocess.run(
        ["/bin/sh", "-c", remote_script(connection, script)],
        input=with_password(connection, document),
        capture_output=True,
        timeout=deadline(20),
        check=False,
        env={"PATH": f"{sudo}:/usr/bin:/bin"},
        start_new_session=True,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout == f"\n{READY}\n".encode() + document


@pytest.mark.parametrize("enabled", [None, True, False])
def test_a_host_is_probed_though_nobody_may_write_to_dev_null(enabled: bool | None) -> None:
    """With mode 0600 of /dev/null a host was reported to have no Python."""
    assert "/dev/null" not in remote_script(Connection("gpu01", become=Become(enabled)))


def test_a_host_without_python_is_reported(tmp_path: Path) -> None:
    connection = Connection("gpu01", python="python3.99")
    ended = run(connection, tmp_path, b"")
    assert ended.returncode == NO_PYTHON
    assert failure_reason(connection, NO_PYTHON, "")[0] == "python3.99 was not found on gpu01"


@pytest.mark.parametrize(
    ("status", "stderr", "cause"),
    [
        (
            255,
            "Warning: Permanently added 'x'\nssh: connect to host x port 22: No route to host",
            "ssh failed: ssh: connect to host x port 22: No route to host",
        ),
        (
            255,
            "@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n@@@",
            "The ssh host key of gpu01 does not match the known key",
        ),
        (
            1,
            "SyntaxError: invalid syntax",
            "The probe ended without a snapshot (status 1): SyntaxError: invalid syntax",
        ),
        (0, "", "The probe ended without a snapshot (status 0): no output"),
    ],
)
def test_failure_reasons(status: int, stderr: str, cause: str) -> None:
    found, remedy = failure_reason(Connection("gpu01"), status, stderr)
    assert found == cause
    assert remedy


@pytest.mark.parametrize(
    ("connection", "words"),
    [
        (Connection("gpu01"), "ssh gpu01 true"),
        (
            Connection("gpu01", address="10.0.0.1", user="admin", port=2222, key="~/.ssh/fleet"),
            "ssh -p 2222 -l admin -i '~/.ssh/fleet' 10.0.0.1 true",
        ),
        # As Ansible's settings and ours add them, twice and contradicting each other.
        (
            Connection(
                "gpu01",
                ssh_arguments=(
                    *("-C", "-o", "ControlMaster=auto", "-o", "ControlPersist=60s"),
                    *("-o", "ServerAliveInterval=20", "-o", "ProxyJump=gate", "-F", "site.conf"),
                ),
            ),
            "ssh -o ProxyJump=gate -F site.conf gpu01 true",
        ),
        (Connection("here", kind="local"), "true"),
    ],
)
def test_a_person_is_given_the_shortest_command(connection: Connection, words: str) -> None:
    remedy = failure_reason(connection, 255 if connection.kind == "ssh" else 1, "No route")[1]
    assert remedy == f"try by hand: {words}"


def test_an_unknown_host_key_is_to_be_compared_and_accepted() -> None:
    said = "No ED25519 host key is known for 10.0.0.1\nHost key verification failed."
    cause, remedy = failure_reason(Connection("gpu01", address="10.0.0.1"), 255, said)
    assert cause == "The ssh host key of gpu01 is not known to this account"
    assert remedy.startswith("compare its fingerprint and accept it: ssh 10.0.0.1 true")


def test_a_key_file_that_is_missing_is_the_cause() -> None:
    said = (
        "Warning: Identity file /k/fleet not accessible: No such file or directory.\n"
        "admin@10.0.0.1: Permission denied (publickey)."
    )
    cause, remedy = failure_reason(Connection("gpu01", key="/k/fleet"), 255, said)
    assert cause.startswith("The key file /k/fleet") and "ansible_ssh_private_key_file" in remedy


@pytest.mark.parametrize(
    ("connection", "stderr", "command"),
    [
        (Connection("gpu01"), "", "ssh-keygen -R gpu01"),
        (Connection("gpu01", address="10.0.0.1"), "", "ssh-keygen -R 10.0.0.1"),
        (Connection("gpu01", port=22), "", "ssh-keygen -R gpu01"),
        (
            Connection("gpu01", address="10.0.0.1", port=2222),
            "Offending ED25519 key in /home/a b/.ssh/known_hosts:3",
            "ssh-keygen -f '/home/a b/.ssh/known_hosts' -R '[10.0.0.1]:2222'",
        ),
    ],
)
def test_a_changed_host_key_is_removed_where_ssh_found_it(
    connection: Connection, stderr: str, command: str
) -> None:
    said = f"@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n{stderr}\nHost key verification failed."
    _, remedy = failure_reason(connection, 255, said)
    assert remedy.startswith(f"if the host was reinstalled: {command}; then compare")
    assert f"accept it: {by_hand_of(connection)};" in remedy
