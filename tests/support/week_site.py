"""A site for a week of nights: forty planted hosts, two real ones, a control host, mail and chat.

The planted hosts are addresses of lab4, each a login and a probe of its own, whose Python prints
what was recorded for that host. lab4 is Slurm's head, too, lab1 the control host; lab2 and lab3 are
real.
The clock of a night is ahead for the account of the nightly alone, by a preloaded library: what the
operator runs from the checkout has the machine's own time. (libfaketime's makes Python's `sleep`
fail.)
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email import message_from_string, policy
from pathlib import Path
from typing import Any

from tests.support import slurm_hosts
from tests.support.fault_proof import copy_to_host
from tests.support.lab_fleet import ROOT, Fleet, lab
from tests.support.recorded_hosts import RecordedHosts

CONTROL, REAL, RACKS = "lab1", ("lab2", "lab3"), "lab4"
LAB = (CONTROL, *REAL, RACKS)
PLANTED = [f"gpu{number:02}" for number in range(1, 41)]
HISTORY = "/srv/history"
DECLARED = {
    "gpu_stacks": [],
    "gpu_toolkits": [{"cuda": "11.8", "cudnn": ["8.6"]}],
    "gpu_expect": {"count": 0},
    "gpu_accept_nvidia_eula": True,
}
CLOCK = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long ahead(void) { const char *text = getenv("CLOCK_AHEAD_S"); return text ? atol(text) : 0; }
int clock_gettime(clockid_t clock, struct timespec *found) {
  int status = syscall(SYS_clock_gettime, clock, found);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) found->tv_sec += ahead();
  return status;
}
int gettimeofday(struct timeval *found, void *zone) {
  int status = syscall(SYS_gettimeofday, found, zone);
  found->tv_sec += ahead();
  return status;
}
time_t time(time_t *found) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (found) *found = now.tv_sec;
  return now.tv_sec;
}
"""
LIBRARY, ENVIRONMENT, DAY_S = "/usr/local/lib/clock.so", "/etc/night", 86400
# The line of docs/how-to/nightly.md, and that of docs/how-to/slurm.md on the head.
SUDOERS = f"""Defaults:gpufleet env_file={ENVIRONMENT}
Defaults>gpufleet env_file={ENVIRONMENT}
gpufleet ALL=(root) NOPASSWD: /usr/bin/true "", /usr/bin/python3 -I -S -, /usr/bin/squeue, \\
    /usr/bin/scontrol show node --oneliner, /usr/bin/scontrol update NodeName\\=*
"""
ACCOUNT = f"""set -e
install -m 440 /dev/stdin /etc/sudoers.d/gpufleet <<'END'
{SUDOERS}END
visudo --check --quiet
id -u gpufleet >/dev/null 2>&1 || useradd --system --create-home --shell /bin/sh gpufleet
cc -shared -fPIC -x c -o {LIBRARY} - <<'END'
{CLOCK}END
"""
# What a site's own installation of a host knows: the account of the nightly, and its key.
KEY = """install -d -o gpufleet -m 0700 ~gpufleet/.ssh
echo '{key}' >~gpufleet/.ssh/authorized_keys
"""
PYTHON = """install -m 755 /dev/stdin /usr/local/bin/planted <<'END'
#!/bin/sh
set -a
. /etc/night
exec {place}/python "$@"
END
for address in {addresses}; do ip address replace $address/24 dev eth0; done
echo 'MaxStartups 1000' >/etc/ssh/sshd_config.d/many.conf
systemctl reload ssh
"""
HOOK = """
import http.server
class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open("/var/tmp/hooks", "ab") as file:
            file.write(body + b"\\n")
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 8080), Hook).serve_forever()
"""
SERVERS = """set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends python3-aiosmtpd >/dev/null
cat >/var/tmp/hook.py <<'END'
{hook}END
systemd-run --quiet --unit hook python3 /var/tmp/hook.py
mkdir -p /var/mail
systemd-run --quiet --unit smtp python3 -m aiosmtpd -n -l 127.0.0.1:8025 \\
  -c aiosmtpd.handlers.Mailbox /var/mail/week
mkdir -p {history} /etc/systemd/system/gpufleet-nightly.service.d
mount -t tmpfs -o size=8m tmpfs {history}
printf '[Service]\\nEnvironmentFile=/etc/night\\n' \\
  >/etc/systemd/system/gpufleet-nightly.service.d/clock.conf
systemctl daemon-reload
systemctl disable --quiet --now gpufleet-nightly.timer
"""
MAILS = """import json, pathlib
found = sorted(pathlib.Path("/var/mail/week/new").glob("*"), key=lambda it: it.stat().st_mtime_ns)
print(json.dumps([path.read_text() for path in found]))
"""


@dataclass(frozen=True)
class Mail:
    """A mail as people read it."""

    subject: str
    text: str

    @classmethod
    def read(cls, written: str) -> Mail:
        """The mail of a mailbox's file."""
        found = message_from_string(written, policy=policy.default)
        body = found.get_body(("plain",))
        assert body
        return cls(found["Subject"], body.get_content())


@dataclass
class Site:
    """The hosts, the nightly on the control host, and what it has sent."""

    fleet: Fleet
    place: Path
    planted: RecordedHosts = field(init=False)

    def __post_init__(self) -> None:
        self.planted = RecordedHosts(
            self.place / "planted", PLANTED, interpreter="/usr/bin/python3"
        )

    # -- the site --------------------------------------------------------------------------------

    def set_up(self) -> None:
        """Have all hosts healthy, and the nightly installed."""
        self.set_clock(0)
        self.write_inventories()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: self.fleet.on(host, ACCOUNT), LAB))
        self.racks()
        # The other real host is reinstalled in this week, and no node.
        slurm_hosts.install(self.fleet, (RACKS, REAL[0]))
        self.gpufleet("provision", "--limit", ",".join(REAL))
        self.install_nightly()
        self.fleet.on(CONTROL, SERVERS.format(hook=HOOK, history=HISTORY))
        self.fleet.on(CONTROL, f"chown gpufleet: {HISTORY}")

    def racks(self) -> None:
        """Have lab4 answer as the planted hosts."""
        copy_to_host(self.fleet, self.planted.place, str(self.planted.place), RACKS)
        addresses = " ".join(map(self.address, PLANTED))
        self.fleet.on(RACKS, PYTHON.format(place=self.planted.place, addresses=addresses))
        self.fleet.on(RACKS, f"chmod -R a+rwX {self.planted.place}")
        self.fleet.on(RACKS, f"chmod a+x {' '.join(map(str, self.planted.place.parents))}")

    @property
    def lab(self) -> dict[str, Any]:
        """The lab's own inventory."""
        found: dict[str, Any] = json.loads(
            self.fleet.run(ROOT / "inventory/lab/hosts.py", "--list").stdout
        )
        return found

    def address(self, host: str) -> str:
        """A host's address; the planted ones have those from 101 on in the lab's network."""
        known = self.lab["_meta"]["hostvars"]
        if host in known:
            return str(known[host]["ansible_host"])
        network = known[RACKS]["ansible_host"].rpartition(".")[0]
        return f"{network}.{100 + int(host.removeprefix('gpu'))}"

    @property
    def inventory(self) -> Path:
        """The operator's inventory, in the checkout's machine."""
        return self.place / "fleet" / "hosts.yml"

    def write_inventories(self) -> None:
        """The operator's inventory, and that of the nightly with its own account."""
        lab = self.lab
        login = lab["_meta"]["hostvars"][CONTROL]
        own = {
            key: login[key]
            for key in (
                "ansible_user",
                "ansible_ssh_private_key_file",
                "ansible_ssh_common_args",
            )
        }
        # The lab has the keys of its own hosts alone.
        known = f"-o UserKnownHostsFile={self.place}/known_hosts"
        (self.place / "known_hosts").write_text("".join(f"{it}\n" for it in self.known_hosts()))
        for path, variables, answer in (
            (self.inventory, own, {"ansible_ssh_common_args": known}),
            (self.place / "night" / "hosts.yml", {"ansible_user": "gpufleet"}, {}),
        ):
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(self.hosts(variables, answer, lab["all"]["vars"])))

    def hosts(
        self, login: dict[str, Any], planted: dict[str, Any], artifacts: dict[str, Any]
    ) -> dict[str, Any]:
        """The document of an inventory; `planted` are further variables of the planted hosts."""

        def at(hosts: Any, **more: Any) -> dict[str, Any]:
            return {host: {"ansible_host": self.address(host), **more} for host in hosts}

        answer = {
            "ansible_python_interpreter": "/usr/local/bin/planted",
            "ansible_become": False,
            **planted,
        }
        return {
            "all": {
                "vars": login,
                "children": {
                    "gpu_control": {"hosts": at([CONTROL])},
                    "slurm": {"hosts": at([RACKS])},
                    "gpu_hosts": {
                        "vars": {"gpu_scheduler_host": RACKS},
                        "children": {
                            "real": {"hosts": at(REAL), "vars": {**DECLARED, **artifacts}},
                            "racks": {
                                "hosts": at(PLANTED),
                                "vars": {**self.planted.variables, **answer},
                            },
                        },
                    },
                },
            }
        }

    def gpufleet(self, verb: str, *words: str | Path, status: int | None = 0) -> str:
        """The launcher of the checkout, with the operator's inventory."""
        return self.fleet.gpufleet(
            *verb.split(), "-i", str(self.inventory), *map(str, words), status=status
        ).stdout

    def known_hosts(self) -> list[str]:
        """The keys of all hosts, as lines of a known_hosts file."""
        keys = {
            host: self.fleet.on(host, "cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub").strip()
            for host in LAB
        }
        return [f"{self.address(host)} {keys.get(host, keys[RACKS])}" for host in (*LAB, *PLANTED)]

    def install_nightly(self) -> None:
        """Run the nightly's playbook as its guide has it, and let its key in."""
        variables = self.place / "control.yml"
        variables.write_text(
            json.dumps(
                {
                    "nightly_verify_inventory": str(self.place / "night" / "hosts.yml"),
                    "nightly_verify_known_hosts": self.known_hosts(),
                    "nightly_verify_secrets": {"chat": "http://127.0.0.1:8080/s3cret"},
                    "nightly_verify_settings": {
                        "state_dir": HISTORY,
                        # So many logins at a time share the processors of this machine.
                        "fanout": 8,
                        "mail": {
                            "host": "127.0.0.1",
                            "port": 8025,
                            "tls": "none",
                            "from": "gpufleet@lab1",
                            "to": ["ops@lab1"],
                        },
                        "webhooks": [{"url_file": "/etc/gpufleet/secrets/chat", "form": "slack"}],
                        "drain": {"hook": "slurm", "after_strikes": 2, "most_percent": 50},
                    },
                }
            )
        )
        self.gpufleet("playbook nightly", "-e", f"@{variables}")
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.let_in, LAB))

    def let_in(self, host: str) -> None:
        """Let the nightly's key in on a host."""
        key = self.fleet.on(CONTROL, "cat ~gpufleet/.ssh/id_ed25519.pub").strip()
        self.fleet.on(host, KEY.format(key=f"restrict {key}"))

    # -- nights ----------------------------------------------------------------------------------

    def set_clock(self, days: int) -> None:
        """Set the clock of the nightly's account on each host."""
        words = f"LD_PRELOAD={LIBRARY}\nCLOCK_AHEAD_S={days * DAY_S}"
        for host in LAB:
            self.fleet.on(host, f"echo '{words}' >{ENVIRONMENT}")

    def night(self) -> str:
        """One night by the timer's command; its journal."""
        since = self.fleet.on(CONTROL, "date +%s").strip()
        self.fleet.on(CONTROL, "systemctl start gpufleet-nightly", status=None)
        return self.fleet.on(CONTROL, f"journalctl -o cat -u gpufleet-nightly --since @{since}")

    def mails(self) -> list[Mail]:
        """All mails that were sent."""
        written = json.loads(self.fleet.on(CONTROL, f"python3 -c '{MAILS}'"))
        return [Mail.read(each) for each in written]

    def chats(self) -> list[str]:
        """The texts of all messages that the hook was sent."""
        lines = self.fleet.on(CONTROL, "cat /var/tmp/hooks 2>/dev/null || :").splitlines()
        return [json.loads(line)["text"] for line in lines]

    def record(self, host: str, change: Any) -> None:
        """Change what a planted host answers from now on."""
        self.planted.change(host, change)
        place = self.planted.place / host
        copy_to_host(self.fleet, place, str(place), RACKS)

    def plug(self, hosts: list[str], *, in_place: bool) -> None:
        """Have planted hosts in the network, or take them off it as a dead switch does."""
        verb = "replace" if in_place else "delete"
        commands = [f"ip address {verb} {self.address(host)}/24 dev eth0" for host in hosts]
        self.fleet.on(RACKS, " && ".join(commands))

    def reinstall(self, host: str) -> None:
        """Replace a real host by a fresh one, with the accounts of the site's installation."""
        clock = self.fleet.on(host, f"cat {ENVIRONMENT}")
        self.fleet.run("podman", "rm", "--force", f"gpufleet-{self.fleet.instance}-{host}")
        lab(self.fleet, "up", "--hosts", host)
        self.fleet.on(host, f"{ACCOUNT}\ncat >{ENVIRONMENT} <<'END'\n{clock}END")
        self.let_in(host)
        # The control host knows the former machine's hardware address for a while.
        answers = f"until bash -c '</dev/tcp/{self.address(host)}/22' 2>&1; do sleep 0.2; done"
        self.fleet.on(CONTROL, f"timeout 60 sh -c {shlex.quote(answers)}")


# -- the operator ----------------------------------------------------------------------------------

# A command in a remedy begins after a colon, or is all of it; it ends where the sentence goes on.
_COMMAND = re.compile(r"(?:^|(?<=: )|(?<=; ))(?:\./gpufleet|sudo|df) [^;,(]*[^;,(\s]")


def commands(mail: Mail) -> list[str]:
    """The commands of a mail's remedies, each once."""
    remedies = [line for line in mail.text.splitlines() if "remedy: " in line]
    found = [each for line in remedies for each in _COMMAND.findall(line.partition("remedy: ")[2])]
    return list(dict.fromkeys(found))


def carry_out(site: Site, command: str) -> int:
    """Run a command as it is printed, where the mail says; its exit status.

    Commands of the checkout run there, all others on the control host, at a terminal where the
    operator answers each question with yes.
    """
    if command.startswith("./gpufleet "):
        words = ["bash", "-c", command]
    else:
        # ssh drops what was typed before it asks: the answer is repeated until it ends.
        terminal = f"script --quiet --return --command {shlex.quote(command)} /dev/null"
        typed = f"while echo yes; do sleep 1; done 2>/dev/null | {terminal}"
        words = [str(ROOT / ".venv/bin/python"), "-m", "lab", "exec", CONTROL, "--", "sh", "-c"]
        words.append(typed)
    done = subprocess.run(
        words, cwd=ROOT, env=site.fleet.environment, capture_output=True, text=True, check=False
    )
    print(command, done.returncode, done.stdout[-2000:], done.stderr[-2000:], sep="\n")
    return done.returncode
