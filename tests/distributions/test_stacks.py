"""Toolkit, cuDNN, a TensorFlow stack and the nightly, on stand-ins of other distributions.

What is a stand-in there is in docs/reference/distributions.md; packages of Python and the
interpreter are Debian's. The tests of a distribution are one story on the same host, and run in
their order.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from tests.support.lab_fleet import ROOT, STACK, TOOLKIT, Fleet, fresh, lab

SUITES = ("ubuntu-20.04", "ubuntu-22.04", "ubuntu-24.04", "rocky-8", "rocky-9", "rocky-10")
pytestmark = [
    pytest.mark.lab,
    pytest.mark.slow,
    pytest.mark.parametrize("host", SUITES, indirect=True),
]
LAB = ("-i", "inventory/lab")
HOME = "/var/lib/gpufleet-nightly"
# As docs/how-to/nightly.md has it, for another account than the nightly's own on this host.
SUDOERS = 'verify ALL=(root) NOPASSWD: /usr/bin/true "", /usr/bin/python3 -I -S -'


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """A fresh server of a distribution."""
    suite: str = request.param
    with fresh("st" + hashlib.sha256(suite.encode()).hexdigest()[:6]) as fleet:
        lab(fleet, "artifacts")
        lab(fleet, "up", "--hosts", "lab1", "--suite", suite)
        yield fleet


def test_check_mode_lists_what_it_would_do_and_changes_nothing(host: Fleet) -> None:
    before = host.state("lab1")
    said = host.gpufleet("provision", *LAB, "--check", "--diff").stdout
    for promise in (
        "toolkit 11.8: 11.8.0 in /usr/local/cuda-11.8",
        "cudnn 11.8-8: 8.6.0.163 in /usr/local/cuda-11.8",
        "stack tensorflow-2.13.1: 2.13.1 in /opt/gpufleet/stacks/tensorflow-2.13.1",
    ):
        assert promise in said
    assert host.state("lab1") == before


def test_a_killed_provision_is_finished_by_the_next(host: Fleet) -> None:
    playbook = ROOT / ".venv" / "bin" / "ansible-playbook"
    host.killed(
        f"test -e {STACK}/bin/python",
        *(playbook, "playbooks/site.yml", *LAB),
    )
    said = host.gpufleet("provision", *LAB).stdout
    assert re.search(r"^lab1 .* changed=[1-9]", said, re.MULTILINE), said
    assert "all declared checks pass" in " ".join(said.split())


def test_a_second_provision_changes_nothing(host: Fleet) -> None:
    before = host.state("lab1")
    said = host.gpufleet("provision", *LAB, "--force").stdout
    assert re.search(r"^lab1 .* changed=0 ", said, re.MULTILINE), said
    assert host.state("lab1") == before


def test_an_empty_environment_maps_the_stack_s_own_toolkit_only(host: Fleet) -> None:
    program = (
        "import tensorflow as tf; print(tf.__version__);"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if '/libcu' in line})"
    )
    said = host.on("lab1", f'env -i {STACK}/bin/python -c "{program}" 2>/dev/null')
    version, mapped = said.splitlines()
    assert version == "2.13.1"
    assert any("libcudnn.so.8.6.0" in path for path in mapped.split())
    assert all(path.startswith(f"{TOOLKIT}/") for path in mapped.split())


def test_a_removed_library_fails_its_checks_and_is_repaired(host: Fleet) -> None:
    host.on("lab1", f"rm {TOOLKIT}/lib64/libcudnn.so.8")
    rows = host.verdicts(1, *LAB)["lab1"]
    failed = {name for name, row in rows.items() if row["verdict"] == "FAIL"}
    assert failed == {"cudnn.files", "cudnn.links", "linker.cache", "stack.libraries"}
    host.gpufleet("provision", *LAB)
    host.verdicts(0, *LAB)


def refused_for_its_python(host: Fleet, play: Sequence[str | Path]) -> bool:
    """Whether the host's own Python is too old for the checks, which the playbook then says."""
    program = "import sys; print(*sys.version_info[:2], sep='.')"
    version = host.on("lab1", f'/usr/bin/python3 -c "{program}"').strip()
    if tuple(map(int, version.split("."))) >= (3, 11):
        return False
    said = " ".join(host.run(*play, status=2).stdout.split())
    assert f"/usr/bin/python3 is {version}" in said
    assert "3.11 or newer" in said
    return True


def test_the_host_verifies_itself(host: Fleet) -> None:
    playbook = ROOT / ".venv" / "bin" / "ansible-playbook"
    play = (playbook, "playbooks/pull.yml", *LAB)
    if refused_for_its_python(host, play):
        return
    host.run(*play)
    assert "changed=0" in host.run(*play).stdout
    host.on("lab1", "systemctl start gpufleet-pull.service")
    result = json.loads(host.on("lab1", "cat /var/lib/gpufleet-pull/lab1.json"))
    assert result["snapshot"]["host"] == "lab1"
    host.run(*play, "-e", "pull_verify_state=absent")
    assert host.on("lab1", "ls -d /var/lib/gpufleet-pull 2>/dev/null || :") == ""


def test_the_nightly_verifies_the_host(host: Fleet, tmp_path: Path) -> None:
    """Its control host is the host itself, which it reaches by ssh."""
    known = host.on("lab1", "cat /etc/ssh/ssh_host_ed25519_key.pub").split()[:2]
    declared = yaml.safe_load((ROOT / "inventory/lab/group_vars/all.yml").read_text("utf-8"))
    reached = {"ansible_host": "127.0.0.1", "ansible_user": "verify"}
    fleet = tmp_path / "fleet.yml"
    fleet.write_text(json.dumps({"gpu_hosts": {"hosts": {"lab1": reached}, "vars": declared}}))
    control = tmp_path / "control.yml"
    control.write_text("gpu_control: {hosts: {lab1: }}")
    variables = {
        "nightly_verify_inventory": str(fleet),
        "nightly_verify_known_hosts": [f"127.0.0.1 {' '.join(known)}"],
    }
    playbook = ROOT / ".venv" / "bin" / "ansible-playbook"
    play = (playbook, "playbooks/nightly.yml", *LAB, "-i", control, "-e", json.dumps(variables))
    if refused_for_its_python(host, play):
        return
    host.run(*play)
    assert "changed=0 " in host.run(*play).stdout
    host.on(
        "lab1",
        f"useradd --create-home verify; echo '{SUDOERS}' >/etc/sudoers.d/verify;"
        " install -d -o verify -m 0700 /home/verify/.ssh;"
        f" cp {HOME}/.ssh/id_ed25519.pub /home/verify/.ssh/authorized_keys",
    )
    host.on("lab1", "systemctl start gpufleet-nightly || journalctl -u gpufleet-nightly >&2")
    journal = host.on("lab1", "journalctl -u gpufleet-nightly")
    assert "1 host healthy: all declared checks pass." in journal, host.on(
        "lab1", f"grep -rhA3 '<failure' {HOME}/reports || :"
    )
    host.run(*play, "-e", "nightly_verify_state=absent", "-e", "nightly_verify_forget=true")
    assert host.on("lab1", f"ls -d {HOME} /opt/gpufleet-nightly 2>/dev/null || :") == ""


def test_everything_is_removed_by_its_receipts(host: Fleet) -> None:
    for words in (("--stack", "tensorflow-2.13.1"), ("--toolkit", "11.8")):
        host.gpufleet("remove", *LAB, *words)
    assert host.on("lab1", f"find {STACK} {TOOLKIT} 2>/dev/null || :") == ""
