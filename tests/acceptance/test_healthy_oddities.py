"""Healthy hosts that are unlike most: none is called broken, and each is provisioned in one run.

Three hosts with many oddities each. Every oddity is verified after the host is provisioned, so that
it was there all the time. Hosts that hang or lie are those of `test_odd_hosts.py`.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from lab import pythons
from lab.errors import LabError
from lab.settings import Lab
from tests.support.lab_fleet import ROOT, Fleet, end_of

pytestmark = [pytest.mark.lab, pytest.mark.slow]

ARTIFACTS = ("--cuda", "8.0", "--cuda", "11.8")
UP = ("--hosts", "lab1,lab2,lab3")
# An interpreter that is not the distribution's, from pyenv of this machine.
PYTHON = "3.12"
LONG = "h" * 63
# The network of the host that has IPv6 alone.
NETWORK = "fd47:6770:75"
IPV6 = f"{NETWORK}::13"
PORT = 2222


@dataclass(frozen=True)
class Oddity:
    """A script that root runs on the host, and a condition that shows that the host is so.

    `login`: the condition is asked in a login by ssh, otherwise by root.
    """

    make: str
    seen: str
    login: bool = False


def conf(line: str, name: str) -> str:
    """The script that adds a line to a directory of sshd's or sudo's settings."""
    return f"printf '%s\\n' {shlex.quote(line)} >{name}; chmod 0440 {name}"


# The login's umask as sites set it, everywhere.
UMASK = """
sed -i 's/^UMASK.*/UMASK {0}/' /etc/login.defs
echo 'session optional pam_umask.so umask={0}' >>/etc/pam.d/common-session
echo 'session optional pam_umask.so umask={0}' >>/etc/pam.d/common-session-noninteractive
for file in /etc/profile /root/.bashrc /home/deploy/.bashrc /home/deploy/.zshenv; do
  printf 'umask {0}\\n%s\\n' "$(cat $file 2>&-)" >$file.new; cat $file.new >$file; rm $file.new
done
chown deploy: /home/deploy/.zshenv
echo 'Defaults umask_override, umask=0{0}' >/etc/sudoers.d/umask; chmod 0440 /etc/sudoers.d/umask
"""
SSHD = "/etc/ssh/sshd_config.d"
PACKAGES = """
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq && apt-get install -qq --no-install-recommends {} >/var/log/house-apt.log 2>&1
"""

BASH = {
    "/usr/local is a file system": Oddity(
        "cp -a /usr/local /srv/usr-local; mount -t tmpfs -o size=4g,mode=755 house /usr/local;"
        " cp -a /srv/usr-local/. /usr/local/",
        "mountpoint -q /usr/local",
    ),
    "/tmp is noexec": Oddity(
        "mount -t tmpfs -o noexec,nosuid,nodev,mode=1777 house /tmp",
        "! cp /bin/true /tmp/house-true || ! /tmp/house-true",
    ),
    "/home is noexec": Oddity(
        "mount --bind /home /home; mount -o remount,bind,noexec,nosuid,nodev /home",
        "! cp /bin/true /home/house-true || ! /home/house-true",
    ),
    "umask 077": Oddity(UMASK.format("077"), 'test "$(umask)" = 0077', login=True),
    "the shell prints": Oddity(
        "printf '%s\\n' 'echo Welcome to this host; seq 30' 'cd /'"
        " 'alias ls=\"ls --color=always\"' 'set -o noclobber' 'export GREP_OPTIONS=-v CDPATH=/'"
        " 'readonly TMOUT=600' \"$(cat /home/deploy/.bashrc)\" >/home/deploy/.bashrc.new;"
        " cat /home/deploy/.bashrc.new >/home/deploy/.bashrc; rm /home/deploy/.bashrc.new",
        'test "$(pwd)" = / && test "$TMOUT" = 600',
        login=True,
    ),
    "secure_path": Oddity(
        conf('Defaults secure_path="/usr/sbin:/usr/bin:/sbin:/bin"', "/etc/sudoers.d/path"),
        "sudo -n printenv PATH | grep -x /usr/sbin:/usr/bin:/sbin:/bin",
        login=True,
    ),
    "sudo with a terminal of its own, a lecture and no time stamps": Oddity(
        conf("Defaults use_pty, lecture=always, timestamp_timeout=0", "/etc/sudoers.d/pty"),
        "sudo -l -U deploy | grep -q use_pty",
    ),
    "a host name of 63 letters": Oddity(
        f"hostname {LONG}; echo {LONG} >/etc/hostname; echo 127.0.1.1 {LONG} >>/etc/hosts",
        f"test $(hostname) = {LONG}",
    ),
    "MaxSessions 1": Oddity(
        conf("MaxSessions 1", f"{SSHD}/sessions.conf"), "sshd -T | grep -qx 'maxsessions 1'"
    ),
    "500 users": Oddity(
        "for i in $(seq 500); do"
        ' echo "user$i:x:$((20000 + i)):100:Jörg Müller $i,,,:/home/user$i:/bin/bash";'
        " done >>/etc/passwd",
        "test $(getent passwd | wc -l) -gt 500",
    ),
    "no time service that we know": Oddity(
        "systemctl mask --now systemd-timesyncd 2>&-;"
        " systemd-run --quiet --unit house-clock sleep infinity",
        "systemctl is-active -q house-clock && ! pgrep 'chronyd|ntpd|systemd-timesyn'",
    ),
    "another python3": Oddity(
        f"ln -s /opt/python/{PYTHON}/bin/python{PYTHON} /usr/local/bin/python{PYTHON};"
        f" ln -s python{PYTHON} /usr/local/bin/python3",
        f"python3 --version | grep -q 'Python {PYTHON}'",
        login=True,
    ),
    "a banner": Oddity(
        "seq -f 'Authorised use only, line %g' 40 | tee /etc/motd >/etc/house-banner; "
        + conf("Banner /etc/house-banner", f"{SSHD}/banner.conf"),
        "sshd -T | grep -qx 'banner /etc/house-banner'",
    ),
    "no sftp": Oddity(
        "sed -i '/^Subsystem/d' /etc/ssh/sshd_config", "! sshd -T | grep -q '^subsystem'"
    ),
    # Not PYTHONPATH: that is a fault, since its modules override those of every stack.
    "variables that change programs": Oddity(
        "printf '%s\\n' PYTHONOPTIMIZE=2 PYTHONIOENCODING=latin-1 LD_BIND_NOW=1 POSIXLY_CORRECT=1"
        " >>/etc/environment",
        'test "$PYTHONOPTIMIZE" = 2',
        login=True,
    ),
}
ZSH = {
    "/usr/local is a link": Oddity(
        "mv /usr/local /srv/local; ln -s /srv/local /usr/local", "test -L /usr/local"
    ),
    "/opt is a link": Oddity("mv /opt /srv/opt; ln -s /srv/opt /opt", "test -L /opt"),
    "umask 027": Oddity(UMASK.format("027"), 'test "$(umask)" = 027', login=True),
    "a German locale": Oddity(
        PACKAGES.format("locales")
        + "echo 'de_DE.UTF-8 UTF-8' >/etc/locale.gen; locale-gen >/dev/null;"
        " printf 'LANG=de_DE.UTF-8\\nLC_ALL=de_DE.UTF-8\\nLANGUAGE=de\\n' >/etc/default/locale;"
        " echo TZ=CET-1CEST >>/etc/environment",
        'test "$LC_ALL $(locale decimal_point)" = "de_DE.UTF-8 ,"',
        login=True,
    ),
    "zsh": Oddity(
        PACKAGES.format("zsh")
        + "usermod --shell /usr/bin/zsh deploy; chsh --shell /usr/bin/zsh root;"
        " printf '%s\\n' 'echo Willkommen' 'setopt noclobber nomatch' >>/home/deploy/.zshenv;"
        " chown deploy: /home/deploy/.zshenv",
        'test -n "$ZSH_VERSION"',
        login=True,
    ),
    "processes of others are hidden": Oddity(
        "mount -o remount,hidepid=2 /proc", "! ps -p 1 >/dev/null", login=True
    ),
    "root's home is elsewhere": Oddity(
        "install -d -m 700 /srv/root; sed -i 's,:/root:,:/srv/root:,' /etc/passwd",
        "test $(getent passwd root | cut -d: -f6) = /srv/root",
    ),
    "sshd on another port": Oddity(
        conf(f"Port {PORT}", f"{SSHD}/port.conf"), f"sshd -T | grep -qx 'port {PORT}'"
    ),
    "few files open, no core": Oddity(
        "printf '* hard nofile 512\\n* hard core 0\\n' >/etc/security/limits.d/house.conf",
        "test $(ulimit -Hn) = 512",
        login=True,
    ),
}
FISH = {
    "/opt is a file system": Oddity(
        "cp -a /opt /srv/opt; mount -t tmpfs -o mode=755 house /opt; cp -a /srv/opt/. /opt/",
        "mountpoint -q /opt",
    ),
    "fish": Oddity(
        PACKAGES.format("fish perl libxml2")
        + "usermod --shell /usr/bin/fish deploy; install -d -o deploy ~deploy/.config/fish;"
        " printf '%s\\n' 'echo Welcome to fish' 'set -x HOUSE fish' >~deploy/.config/fish/config.fish;"
        " chown -R deploy: ~deploy/.config",
        'test "$FISH_VERSION$HOUSE" != ""',
        login=True,
    ),
    "requiretty": Oddity(
        conf("Defaults requiretty", "/etc/sudoers.d/tty"), "! sudo -n true", login=True
    ),
    "a time zone of three quarters of an hour": Oddity(
        "echo 'TZ=<+0545>-5:45' >>/etc/environment", "test (date +%z) = +0545", login=True
    ),
    # The last one: afterwards no package can be had.
    "IPv6 alone": Oddity(
        f"ip -6 address add {IPV6}/64 dev eth0 nodad; ip -4 address flush dev eth0",
        "test -z (ip -4 -o address show dev eth0 | string collect)",
        login=True,
    ),
}
HOSTS = {"lab1": BASH, "lab2": ZSH, "lab3": FISH}
SMALL: dict[str, Any] = {
    "gpu_stacks": [],
    "gpu_toolkits": [{"cuda": "8.0", "cudnn": ["5.1"]}],
}
# What such a site declares; lab1 has the lab's stack.
VARIABLES: dict[str, dict[str, Any]] = {
    "lab2": {**SMALL, "ansible_port": PORT},
    # Ansible's own setting for `requiretty`.
    "lab3": {**SMALL, "ansible_host": IPV6, "ansible_pipelining": False},
}


@dataclass(frozen=True)
class Site:
    """The three hosts, provisioned; `checks` of each are those of a verification afterwards."""

    fleet: Fleet
    words: tuple[str, ...]
    known: dict[str, dict[str, Any]]
    provisioned: int
    output: str
    checks: dict[str, dict[str, dict[str, Any]]]

    def unhealthy(self, host: str) -> list[str]:
        return [
            f"{check['id']} {check['verdict']}: {check['cause']} -> {check['remedy']}"
            for check in self.checks[host].values()
            if check["verdict"] not in {"PASS", "NOT-DECLARED"}
        ]

    def is_seen(self, host: str, oddity: Oddity) -> bool:
        if not oddity.login:
            return self.fleet.on(host, f"({oddity.seen}) >&2 && echo yes || :") == "yes\n"
        known = self.known[host]
        command = [
            "ssh",
            *shlex.split(known["ansible_ssh_common_args"]),
            *("-o", "ControlMaster=no", "-o", "BatchMode=yes"),
            *("-i", known["ansible_ssh_private_key_file"], "-p", str(known.get("ansible_port", 22))),
            f"{known['ansible_user']}@{known['ansible_host']}",
            f"{oddity.seen}; and echo yes-it-is" if "fish" in oddity.make or host == "lab3"
            else f"{oddity.seen} && echo yes-it-is",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return "yes-it-is" in done.stdout.splitlines()


@pytest.fixture(scope="module")
def site(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    try:
        pythons.find(PYTHON, fleet.environment)
    except LabError as error:
        pytest.skip(error.message)
    fleet.run(ROOT / ".venv/bin/python", "-m", "lab", "up", "--hosts", "lab1", "--python", PYTHON)
    listed = json.loads(fleet.run(ROOT / "inventory/lab/hosts.py", "--list").stdout)
    known: dict[str, dict[str, Any]] = listed["_meta"]["hostvars"]
    for host, variables in VARIABLES.items():
        alias = f" -o HostKeyAlias={known[host]['ansible_host']}"
        known[host]["ansible_ssh_common_args"] += alias
        known[host] |= variables
    bridge = json.loads(
        fleet.run(
            "podman", "network", "inspect", Lab.from_environment(fleet.environment).network
        ).stdout
    )[0]["network_interface"]
    # Removed with the network.
    fleet.run("ip", "-6", "address", "add", f"{NETWORK}::1/64", "dev", bridge, "nodad")
    for host, oddities in HOSTS.items():
        for oddity in oddities.values():
            fleet.on(host, oddity.make)
        fleet.on(host, "visudo --check --quiet && sshd -t && systemctl restart ssh")
    path = tmp_path_factory.mktemp("oddities") / "odd.yml"
    path.write_text(json.dumps({"gpu_hosts": {"hosts": known}}))
    words = ("-i", str(ROOT / "inventory/lab"), "-i", str(path))
    done = fleet.gpufleet("provision", *words, status=None)
    yield Site(
        fleet,
        words,
        known,
        done.returncode,
        f"{end_of(done.stdout)}\n{end_of(done.stderr)}",
        fleet.verdicts(None, *words),
    )


def test_all_are_provisioned_in_one_run(site: Site) -> None:
    assert site.provisioned == 0, site.output
    assert {host: site.unhealthy(host) for host in HOSTS} == {host: [] for host in HOSTS}


@pytest.mark.parametrize(
    ("host", "name"), [(host, name) for host, oddities in HOSTS.items() for name in oddities]
)
def test_an_oddity_is_no_fault(site: Site, host: str, name: str) -> None:
    assert site.is_seen(host, HOSTS[host][name]), "the host is not as the test wants it"
    assert site.unhealthy(host) == []


def test_nothing_is_left_to_do(site: Site) -> None:
    program = ROOT / ".venv/bin/ansible-playbook"
    output = site.fleet.run(program, "playbooks/site.yml", *site.words).stdout
    assert output.count("changed=0 ") == len(HOSTS), output
