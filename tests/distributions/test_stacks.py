"""Toolkit, cuDNN, a TensorFlow stack and the nightly, on stand-ins of other distributions.

What is a stand-in there is in tests/evidence/distributions.md. Ansible's modules, the probe and
the stack run with the Python of the version that the distribution has; on Ubuntu, pull mode and the
nightly run with Debian's. The tests of a distribution are one story on the same host, and run in
their order.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab import pythons
from lab.errors import LabError
from tests.support.lab_fleet import ROOT, Fleet, fresh, lab


@dataclass(frozen=True)
class Release:
    """A release of TensorFlow, and what its stack is bound to."""

    tensorflow: str
    cuda: str
    toolkit: str
    cudnn: str

    @property
    def stack(self) -> str:
        return f"/opt/gpufleet/stacks/tensorflow-{self.tensorflow}"

    @property
    def tree(self) -> str:
        return f"/usr/local/cuda-{self.cuda}"

    @property
    def soname(self) -> str:
        return f"libcudnn.so.{self.cudnn.partition('.')[0]}"


OLDER = Release("2.13.1", "11.8", "11.8.0", "8.6.0.163")
# The first with wheels for Python 3.12 that the lab has a toolkit for.
NEWER = Release("2.18.1", "12.5", "12.5.1", "9.3.0.75")
# The distribution's own Python, and what is installed with it. Ubuntu 20.04 has 3.8 and stands on a
# Debian that no copied interpreter runs on; Rocky Linux 8 has 3.6, for which there is no Ansible
# module any more, and 3.9 beside it.
SUITES = {
    "ubuntu-20.04": ("", OLDER),
    "ubuntu-22.04": ("3.10", OLDER),
    "ubuntu-24.04": ("3.12", NEWER),
    "rocky-8": ("3.9", OLDER),
    "rocky-9": ("3.9", OLDER),
    "rocky-10": ("3.12", NEWER),
}
pytestmark = [
    pytest.mark.lab,
    pytest.mark.slow,
    pytest.mark.parametrize("host", SUITES, indirect=True),
]
HOME = "/var/lib/gpufleet-nightly"
# Where a distribution's own is, and compiled: from another place, Python finds its library by links
# only up to 3.10.
INSTALL = """
cp -a /opt/python/{0}/lib/python{0} /usr/lib/ && cp -a /opt/python/{0}/bin/python{0} /usr/bin/
/usr/bin/python{0} -m compileall -q /usr/lib/python{0}
"""
# As docs/how-to/nightly.md has it, for another account than the nightly's own on this host.
SUDOERS = 'verify ALL=(root) NOPASSWD: /usr/bin/true "", {} -I -S -'


@dataclass
class Host(Fleet):
    """lab1 of a lab of its own, its Python, and what is declared for it."""

    python: str
    release: Release
    folder: Path

    @property
    def interpreter(self) -> str:
        """The interpreter that runs Ansible's modules and the probe."""
        return f"/usr/bin/python{self.python or 3}"

    @property
    def declared(self) -> dict[str, Any]:
        """The inventory's variables."""
        stack = {"tensorflow": self.release.tensorflow}
        own = {
            "gpu_stacks": [{**stack, "python": self.python}],
            "gpu_locks_dir": str(self.folder),
            "ansible_python_interpreter": self.interpreter,
        }
        return own if self.python else {"gpu_stacks": [stack]}

    @property
    def inventory(self) -> tuple[str, ...]:
        """The inventory, as each command takes it. As variables of the host: with -e, localhost
        would have its Python."""
        own = self.folder / "own.yml"
        own.write_text(json.dumps({"all": {"hosts": {"lab1": self.declared}}}))
        return ("-i", "inventory/lab", "-i", str(own))


@pytest.fixture(scope="module")
def host(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    """A fresh server of a distribution, with its Python."""
    suite: str = request.param
    python, release = SUITES[suite]
    try:
        if python:
            pythons.find(python, os.environ)
    except LabError as error:
        pytest.skip(str(error))
    with fresh("st" + hashlib.sha256(suite.encode()).hexdigest()[:6]) as fleet:
        lab(fleet, "artifacts", "--cuda", release.cuda)
        copied = ("--python", python) if python else ()
        lab(fleet, "up", "--hosts", "lab1", "--suite", suite, *copied)
        host = Host(fleet.instance, python, release, tmp_path_factory.mktemp("own"))
        if python:
            host.on("lab1", INSTALL.format(python))
        if python and suite.startswith("rocky"):
            # dnf has an interpreter of its own. apt has not, and Debian's stays.
            host.on("lab1", f"ln -sf python{python} /usr/bin/python3")
        yield host


def test_check_mode_lists_what_it_would_do_and_changes_nothing(host: Host) -> None:
    before = host.state("lab1")
    output = host.gpufleet("provision", *host.inventory, "--check", "--diff").stdout
    it = host.release
    for promise in (
        f"toolkit {it.cuda}: {it.toolkit} in {it.tree}",
        f"cudnn {it.cuda}-{it.cudnn.partition('.')[0]}: {it.cudnn} in {it.tree}",
        f"stack tensorflow-{it.tensorflow}: {it.tensorflow} in {it.stack}",
    ):
        assert promise in output
    assert host.state("lab1") == before


def test_a_killed_provision_is_finished_by_the_next(host: Host) -> None:
    playbook = ROOT / ".venv" / "bin" / "ansible-playbook"
    host.killed(
        f"test -e {host.release.stack}/bin/python",
        playbook,
        "playbooks/site.yml",
        *host.inventory,
    )
    output = host.gpufleet("provision", *host.inventory).stdout
    assert re.search(r"^lab1 .* changed=[1-9]", output, re.MULTILINE), output
    assert "all declared checks pass" in " ".join(output.split())


def test_a_second_provision_changes_nothing(host: Host) -> None:
    before = host.state("lab1")
    output = host.gpufleet("provision", *host.inventory, "--force").stdout
    assert re.search(r"^lab1 .* changed=0 ", output, re.MULTILINE), output
    assert host.state("lab1") == before


def test_an_empty_environment_maps_the_stack_s_own_toolkit_only(host: Host) -> None:
    it = host.release
    program = (
        "import sys, tensorflow as tf; print(tf.__version__, *sys.version_info[:2], sep='.');"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if '/libcu' in line})"
    )
    output = host.on("lab1", f'env -i {it.stack}/bin/python -c "{program}" 2>/dev/null')
    version, mapped = output.splitlines()
    assert version.startswith(f"{it.tensorflow}.{host.python}")
    cudnn = it.cudnn.rpartition(".")[0]
    assert any(f"libcudnn.so.{cudnn}" in path for path in mapped.split())
    assert all(path.startswith(f"{it.tree}/") for path in mapped.split())


def test_a_removed_library_fails_its_checks_and_is_repaired(host: Host) -> None:
    host.on("lab1", f"rm {host.release.tree}/lib64/{host.release.soname}")
    rows = host.verdicts(1, *host.inventory)["lab1"]
    failed = {name for name, row in rows.items() if row["verdict"] == "FAIL"}
    assert failed == {"cudnn.files", "cudnn.links", "linker.cache", "stack.libraries"}
    host.gpufleet("provision", *host.inventory)
    host.verdicts(0, *host.inventory)


def refused_for_its_python(host: Host, play: Sequence[str | Path]) -> bool:
    """Return whether the host's Python is too old for checks, as the playbook then says."""
    program = "import sys; print(*sys.version_info[:2], sep='.')"
    version = host.on("lab1", f'/usr/bin/python3 -c "{program}"').strip()
    if tuple(map(int, version.split("."))) >= (3, 11):
        return False
    output = " ".join(host.run(*play, status=2).stdout.split())
    assert f"/usr/bin/python3 is {version}" in output
    assert "3.11 or newer" in output
    return True


def test_the_host_verifies_itself(host: Host) -> None:
    playbook = ROOT / ".venv" / "bin" / "ansible-playbook"
    play: list[str | Path] = [playbook, "playbooks/pull.yml", *host.inventory]
    if refused_for_its_python(host, play):
        return
    host.run(*play)
    assert "changed=0" in host.run(*play).stdout
    host.on("lab1", "systemctl start gpufleet-pull.service")
    result = json.loads(host.on("lab1", "cat /var/lib/gpufleet-pull/lab1.json"))
    assert result["snapshot"]["host"] == "lab1"
    host.run(*play, "-e", "pull_verify_state=absent")
    assert host.on("lab1", "ls -d /var/lib/gpufleet-pull 2>/dev/null || :") == ""


def test_the_nightly_verifies_the_host(host: Host, tmp_path: Path) -> None:
    """Its control host is the host itself, which it reaches by ssh."""
    known = host.on("lab1", "cat /etc/ssh/ssh_host_ed25519_key.pub").split()[:2]
    declared = yaml.safe_load((ROOT / "inventory/lab/group_vars/all.yml").read_text("utf-8"))
    declared.update(host.declared)
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
    words = ("-i", control, "-e", json.dumps(variables))
    play: list[str | Path] = [playbook, "playbooks/nightly.yml", *host.inventory, *words]
    if refused_for_its_python(host, play):
        return
    host.run(*play)
    assert "changed=0 " in host.run(*play).stdout
    allowed = SUDOERS.format(host.interpreter)
    host.on(
        "lab1",
        f"useradd --create-home verify; echo '{allowed}' >/etc/sudoers.d/verify;"
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


def test_everything_is_removed_by_its_receipts(host: Host) -> None:
    it = host.release
    for words in (("--stack", f"tensorflow-{it.tensorflow}"), ("--toolkit", it.cuda)):
        host.gpufleet("remove", *host.inventory, *words)
    assert host.on("lab1", f"find {it.stack} {it.tree} 2>/dev/null || :") == ""
