"""The nightly for real: a control host (lab1) that verifies lab2, tells people, and is watched.

The timer fires, mail goes through Postfix with STARTTLS, a webhook through HTTP, metrics through
node_exporter to Prometheus, all of Debian's own packages on lab1.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email import message_from_string, policy
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab_fleet import ROOT, TOOLKIT, Done, Fleet

pytestmark = [pytest.mark.lab, pytest.mark.slow]

DECLARED = {
    "gpu_stacks": [],
    "gpu_toolkits": [{"cuda": "11.8", "cudnn": ["8.6"]}],
    "gpu_expect": {"count": 0},
    "gpu_accept_nvidia_eula": True,
}
HOME, ETC = "/var/lib/gpufleet-nightly", "/etc/gpufleet"
# As docs/how-to/nightly.md has it.
SUDOERS = 'gpufleet ALL=(root) NOPASSWD: /usr/bin/true "", /usr/bin/python3 -I -S -'
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
# A night is this long here.
NIGHT_S = 40
PROMETHEUS = {
    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
    "rule_files": ["/etc/prometheus/gpufleet.yml"],
    "scrape_configs": [{"job_name": "node", "static_configs": [{"targets": ["127.0.0.1:9100"]}]}],
}
SERVERS = """
set -e
export DEBIAN_FRONTEND=noninteractive
echo 'postfix postfix/main_mailer_type select Local only' | debconf-set-selections
apt-get update -qq
apt-get install -qq --no-install-recommends -o Dpkg::Options::=--force-confold \\
  postfix prometheus prometheus-node-exporter
useradd --create-home ops
cd /etc/postfix
openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=lab1 -addext subjectAltName=DNS:lab1 \\
  -keyout key.pem -out cert.pem 2>/dev/null
cp cert.pem /usr/local/share/ca-certificates/mail.crt
update-ca-certificates >/dev/null
postconf mydestination=lab1 myhostname=lab1 inet_interfaces=all smtpd_tls_security_level=encrypt \\
  smtpd_tls_cert_file=/etc/postfix/cert.pem smtpd_tls_key_file=/etc/postfix/key.pem \\
  smtpd_tls_received_header=yes
systemctl restart postfix
systemd-run --quiet --unit hook python3 /var/tmp/hook.py
systemctl restart prometheus prometheus-node-exporter
"""
ON_LAB2 = f"""
set -e
useradd --system --create-home --shell /bin/sh gpufleet
echo '{SUDOERS}' >/etc/sudoers.d/gpufleet
chmod 0440 /etc/sudoers.d/gpufleet
visudo --check --quiet
install -d -o gpufleet -m 0700 ~gpufleet/.ssh
echo 'restrict %s' >~gpufleet/.ssh/authorized_keys
"""
# As its unit calls it.
STATUS = f"runuser -u gpufleet -- env HOME={HOME} /opt/gpufleet-nightly/current/gpufleet nightly"


@dataclass
class Mail:
    """A mail as people read it, and how it came."""

    subject: str
    text: str
    received: str

    @classmethod
    def read(cls, written: str) -> Mail:
        """From a mailbox."""
        found = message_from_string(written, policy=policy.default)
        body = found.get_body(("plain",))
        assert body
        return cls(found["Subject"], body.get_content(), found["Received"])


@dataclass
class Nightly:
    """The control host, and how it is set up."""

    fleet: Fleet
    inventory: Path
    variables: Path

    def playbook(self, *words: str) -> Done:
        """The playbook."""
        return self.fleet.run(
            ROOT / ".venv/bin/ansible-playbook",
            "playbooks/nightly.yml",
            "-i",
            "inventory/lab",
            "-i",
            self.inventory,
            "-e",
            f"@{self.variables}",
            *words,
        )

    def run(self, status: int) -> None:
        """One night, by its unit."""
        self.fleet.on("lab1", "systemctl start gpufleet-nightly")
        assert self.unit("ExecMainStatus") == str(status), self.fleet.on(
            "lab1", "journalctl -u gpufleet-nightly -n 30"
        )

    def unit(self, name: str, unit: str = "gpufleet-nightly.service") -> str:
        """A property of a unit."""
        return self.fleet.on("lab1", f"systemctl show --value -p {name} {unit}").strip()

    def mails(self) -> list[Mail]:
        """The mails that have arrived, once the queue is empty."""
        until(lambda: "empty" in self.fleet.on("lab1", "mailq"))
        box = self.fleet.on("lab1", "cat /var/mail/ops 2>/dev/null || :")
        return [Mail.read(text) for text in re.split(r"(?m)^From gpufleet@.*\n", box)[1:]]

    def hooks(self) -> list[dict[str, Any]]:
        """The documents that the web server has received."""
        return [
            json.loads(line)
            for line in self.fleet.on("lab1", "cat /var/tmp/hooks 2>/dev/null || :").splitlines()
        ]

    def nights(self) -> int:
        """How many nights the history holds; it must be whole."""
        asked = (
            f"import sqlite3; base = sqlite3.connect('{HOME}/history.sqlite');"
            " assert base.execute('PRAGMA integrity_check').fetchall() == [('ok',)];"
            " print(base.execute('SELECT count(*) FROM nights').fetchone()[0])"
        )
        return int(self.fleet.on("lab1", f'runuser -u gpufleet -- python3 -c "{asked}"'))

    def ask(self, what: str) -> list[dict[str, Any]]:
        """A query to Prometheus."""
        output = self.fleet.on(
            "lab1",
            "python3 - <<'E'\nimport urllib.request, urllib.parse\n"
            "print(urllib.request.urlopen('http://127.0.0.1:9090/api/v1/query?' +"
            f" urllib.parse.urlencode({{'query': {what!r}}})).read().decode())\nE",
        )
        return list(json.loads(output)["data"]["result"])


def until(condition: Callable[[], bool], within_s: float = 120) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.3)


@pytest.fixture(scope="module")
def night(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nightly]:
    """lab2 as a right GPU host, lab1 with servers that people have, and the role's variables."""
    place = tmp_path_factory.mktemp("night")
    provision(fleet)
    rules = (ROOT / "contrib/prometheus/alerts.yml").read_text()
    assert "28 * 3600" in rules
    for path, text in (
        ("/var/tmp/hook.py", HOOK),
        ("/etc/prometheus/prometheus.yml", json.dumps(PROMETHEUS)),
        ("/etc/prometheus/gpufleet.yml", rules.replace("28 * 3600", str(NIGHT_S))),
    ):
        give(fleet, path, text)
    fleet.on("lab1", SERVERS)
    address = next(
        host["address"]
        for host in json.loads(
            fleet.run(ROOT / ".venv/bin/python", "-m", "lab", "list", "--json").stdout
        )
        if host["name"] == "lab2"
    )
    known = fleet.on("lab2", "cat /etc/ssh/ssh_host_ed25519_key.pub").split()
    (place / "fleet.yml").write_text(
        json.dumps(
            {
                "gpu_hosts": {
                    "hosts": {"lab2": {"ansible_host": address, "ansible_user": "gpufleet"}},
                    "vars": DECLARED,
                }
            }
        )
    )
    (place / "control.yml").write_text("gpu_control: {hosts: {lab1: }}")
    (place / "variables.yml").write_text(
        json.dumps(
            {
                "nightly_verify_inventory": str(place / "fleet.yml"),
                "nightly_verify_known_hosts": [f"{address} {known[0]} {known[1]}"],
                "nightly_verify_secrets": {"hook": "http://127.0.0.1:8080/s3cret"},
                "nightly_verify_textfile_dir": "/var/lib/prometheus/node-exporter",
                "nightly_verify_settings": {
                    "reports_url": "https://gpu.example.org/reports",
                    "mail": {
                        "host": "lab1",
                        "port": 25,
                        "from": "gpufleet@lab1",
                        "to": ["ops@lab1"],
                    },
                    "webhooks": [{"url_file": f"{ETC}/secrets/hook"}],
                },
            }
        )
    )
    made = Nightly(fleet, place / "control.yml", place / "variables.yml")
    yield made


def provision(fleet: Fleet) -> None:
    """Have lab2 as it is declared."""
    fleet.run(
        ROOT / ".venv/bin/ansible-playbook",
        "playbooks/site.yml",
        "--limit",
        "lab2",
        "-e",
        json.dumps(DECLARED),
    )


def give(fleet: Fleet, path: str, text: str) -> None:
    """Write a file on lab1, before the package that it belongs to is there."""
    fleet.on("lab1", f"mkdir -p {Path(path).parent}; cat >{path} <<'END'\n{text}\nEND")


def test_check_mode_changes_nothing_and_the_role_is_idempotent(night: Nightly) -> None:
    assert SUDOERS in (ROOT / "docs/how-to/nightly.md").read_text()
    before = night.fleet.state("lab1")
    assert "failed=0" in night.playbook("--check", "--diff").stdout
    assert night.fleet.state("lab1") == before
    first = night.playbook().stdout
    assert "s3cret" not in first
    again = night.playbook().stdout
    assert "changed=0 " in again
    assert "changed=0 " in night.playbook("--check", "--diff").stdout
    key = night.fleet.on("lab1", f"cat {HOME}/.ssh/id_ed25519.pub").strip()
    assert key.split()[1] in "".join(again.split())
    night.fleet.on("lab2", ON_LAB2 % key)
    assert night.fleet.on("lab1", f"stat -c '%U %a' {ETC}/secrets/hook").split() == ["root", "640"]


def test_the_timer_fires_and_everyone_hears_of_the_first_night(night: Nightly) -> None:
    give(
        night.fleet,
        "/etc/systemd/system/gpufleet-nightly.timer.d/soon.conf",
        "[Timer]\nOnCalendar=\nOnActiveSec=1s\nRandomizedDelaySec=0\nAccuracySec=100ms",
    )
    night.fleet.on("lab1", "systemctl daemon-reload; systemctl restart gpufleet-nightly.timer")
    until(lambda: night.unit("ExecMainExitTimestampMonotonic") not in {"", "0"})
    night.fleet.on(
        "lab1",
        "rm -r /etc/systemd/system/gpufleet-nightly.timer.d;"
        " systemctl daemon-reload; systemctl restart gpufleet-nightly.timer",
    )
    journal = night.fleet.on("lab1", "journalctl -u gpufleet-nightly")
    assert night.unit("Result") == "success", journal
    assert "1 host healthy: all declared checks pass." in journal
    assert "s3cret" not in journal
    assert night.nights() == 1
    night.fleet.on("lab1", f"test -s {HOME}/reports/latest/report.html")
    night.fleet.on("lab1", f"test -s {HOME}/reports/latest/junit.xml")
    [mail] = night.mails()
    assert mail.subject == "gpufleet: first night; 1 of 1 healthy"
    assert "Full report: https://gpu.example.org/reports/20" in mail.text
    assert "using TLS" in mail.received
    [hook] = night.hooks()
    assert (hook["event"], hook["hosts"]["PASS"]) == ("night", 1)
    until(lambda: bool(night.ask('gpufleet_host_healthy{host="lab2"} == 1')))
    assert "exit status 0" in night.fleet.on("lab1", f"{STATUS} --status")
    assert night.unit("NextElapseUSecRealtime", "gpufleet-nightly.timer")


def test_what_breaks_is_reported_once_with_cause_and_remedy(night: Nightly) -> None:
    night.fleet.on("lab2", f"rm {TOOLKIT}/lib64/libcudnn.so.8")
    night.run(1)
    mail = night.mails()[1]
    assert mail.subject == "gpufleet: lab2 fails cudnn.files; 0 of 1 healthy"
    assert "lab2: cudnn.files fails" in mail.text and "libcudnn.so.8 (missing)" in mail.text
    # As whoever ran the playbook calls it, with the inventories of that call.
    called = f"./gpufleet provision -i {ROOT}/inventory/lab -i {night.inventory} --limit lab2"
    assert called in mail.text
    assert "lab2: cudnn.files fails" in night.fleet.on("lab1", "journalctl -u gpufleet-nightly")
    assert {row["check"] for row in night.hooks()[1]["changes"]} >= {"cudnn.files"}
    until(lambda: bool(night.ask('gpufleet_check_failed{host="lab2",check="cudnn.files"} == 1')))
    until(lambda: bool(night.ask('ALERTS{alertname="GpufleetHostFailing",alertstate="firing"}')))
    night.run(1)
    assert (len(night.mails()), len(night.hooks())) == (2, 2)


def test_a_killed_run_leaves_history_whole_and_the_next_one_tells(night: Nightly) -> None:
    provision(night.fleet)
    before = night.nights()
    night.fleet.on(
        "lab1",
        "systemctl start --no-block gpufleet-nightly;"
        " until pgrep -u gpufleet ssh; do :; done;"
        " systemctl kill --signal KILL gpufleet-nightly",
    )
    until(lambda: night.unit("ActiveState") == "failed")
    assert night.nights() == before
    assert night.fleet.on("lab1", "pgrep -u gpufleet || :") == ""
    night.run(0)
    assert night.nights() == before + 1
    assert night.mails()[2].subject == "gpufleet: lab2 better; 1 of 1 healthy"


def test_a_nightly_that_does_not_run_is_noticed(night: Nightly) -> None:
    night.run(0)
    missed = 'ALERTS{alertname="GpufleetNightlyMissed",alertstate="firing"}'
    until(lambda: bool(night.ask(f"gpufleet_history_nights == {night.nights()}")))
    assert night.ask(missed) == []
    night.fleet.on("lab1", "systemctl stop gpufleet-nightly.timer")
    until(lambda: bool(night.ask(missed)))
    night.fleet.on("lab1", f"sed -i '$a expected_every_h: 0.001' {ETC}/nightly.yml")
    assert "one is expected every" in night.fleet.on("lab1", f"{STATUS} --status", status=1)


def test_the_unit_is_hardened(night: Nightly) -> None:
    rated = night.fleet.on("lab1", "systemd-analyze security --no-pager gpufleet-nightly.service")
    figure = float(rated.split("Overall exposure level")[1].split(":")[1].split()[0])
    assert figure < 2


def test_it_can_be_taken_away_and_the_history_stays_until_it_is_reported_to_go(
    night: Nightly,
) -> None:
    night.playbook("-e", "nightly_verify_state=absent")
    assert (
        night.fleet.on(
            "lab1",
            f"ls -d /opt/gpufleet-nightly {ETC}/* /etc/systemd/system/gpufleet-nightly.*"
            " /var/lib/prometheus/node-exporter/gpufleet.prom 2>/dev/null || :",
        )
        == ""
    )
    assert night.nights()
    forget = ("-e", "nightly_verify_state=absent", "-e", "nightly_verify_forget=true")
    night.playbook(*forget)
    night.fleet.on("lab1", f"test ! -e {HOME}")
    assert "changed=0 " in night.playbook(*forget).stdout
