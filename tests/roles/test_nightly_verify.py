"""The nightly's role: its unit for settings of one's own, and what it does with an inventory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.vault import VaultLib, VaultSecret
from ansible.template import Templar, trust_as_template

from tests.support.warm_start import run_playbook

ROLE = Path(__file__).resolve().parents[2] / "roles/nightly_verify"


def unit(settings: dict[str, Any]) -> str:
    """The service, as the role writes it."""
    loader = DataLoader()
    variables = {
        **loader.load_from_file(str(ROLE / "defaults/main.yml"), trusted_as_template=True),
        **loader.load_from_file(str(ROLE / "vars/main.yml"), trusted_as_template=True),
        "role_path": str(ROLE),
        "nightly_verify_settings": settings,
    }
    template = (ROLE / "templates/gpufleet-nightly.service.j2").read_text()
    return str(Templar(loader, variables).template(trust_as_template(template)))


@pytest.mark.parametrize(
    ("settings", "places"),
    [
        (
            {},
            "/var/lib/gpufleet-nightly /var/lib/gpufleet-nightly/reports"
            " /var/lib/gpufleet-nightly/published /var/lib/gpufleet-nightly/metrics",
        ),
        (
            {"state_dir": "/srv/state", "reports_dir": "/srv/reports"},
            "/var/lib/gpufleet-nightly /srv/state /srv/reports /var/lib/gpufleet-nightly/published"
            " /var/lib/gpufleet-nightly/metrics",
        ),
    ],
)
def test_the_home_is_writable_wherever_the_state_is(settings: dict[str, Any], places: str) -> None:
    lines = [" ".join(line.split()) for line in unit(settings).splitlines()]
    assert f"ReadWritePaths={places}" in lines
    # A host that is not healthy makes no failed unit; the nightly's own troubles do.
    assert "SuccessExitStatus=1 3" in lines


PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  vars: {ansible_python_interpreter: "%(python)s", role_path: "%(role)s",
         nightly_verify_settings: {vault_password_file: "%(etc)s/secrets/by-hand"},
         nightly_verify_secrets: {smtp: s3cret}, __nightly_verify_user_result: {}}
  vars_files: [%(role)s/vars/main.yml, %(vars)s]
  tasks:
    - ansible.builtin.include_tasks: "%(place)s/preflight.yml"
    - ansible.builtin.include_tasks: "%(place)s/settings.yml"
"""
# What needs the control host itself.
LEFT_OUT = {"Write the settings", "Write the secrets", "Validate the settings as the service user"}


class Play:
    """The role's own tasks about the inventory, on this machine."""

    def __init__(self, place: Path) -> None:
        self.place, self.etc = place, place / "etc"
        self.etc.mkdir()
        loader = DataLoader()
        settings = loader.load_from_file(str(ROLE / "tasks/settings.yml"))
        preflight = loader.load_from_file(str(ROLE / "tasks/preflight.yml"))
        (place / "settings.yml").write_text(
            json.dumps(
                [task for task in settings if task["name"] not in LEFT_OUT]
                + [
                    {
                        "name": "Say",
                        "ansible.builtin.copy": {
                            "dest": f"{place}/said",
                            "content": "{{ __nightly_verify_default_settings.inventory[0] }}",
                        },
                    }
                ]
            )
        )
        (place / "preflight.yml").write_text(
            json.dumps([task for task in preflight if "inventory" in task["name"]])
        )

    def run(self, inventory: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """One run of them."""
        (self.place / "vars.json").write_text(
            json.dumps(
                {
                    "__nightly_verify_etc": str(self.etc),
                    "nightly_verify_inventory": str(inventory),
                    "__nightly_verify_user": "root",
                }
            )
        )
        (self.place / "play.yml").write_text(
            PLAY
            % {
                "role": ROLE,
                "python": sys.executable,
                "place": self.place,
                "etc": self.etc,
                "vars": self.place / "vars.json",
            }
        )
        return run_playbook(self.place / "play.yml", *words)

    def output(self) -> Path:
        """The path that the settings name."""
        return Path((self.place / "said").read_text())


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """The tasks, and an inventory beside them."""
    (tmp_path / "hosts/host_vars").mkdir(parents=True)
    (tmp_path / "hosts/hosts.yml").write_text("gpu_hosts: {hosts: {gpu01: , gpu02: }}")
    (tmp_path / "hosts/host_vars/gpu01.yml").write_text("gpu_stacks: []")
    (tmp_path / "password").write_text("open")
    vault = VaultLib([(None, VaultSecret(b"open"))])
    (tmp_path / "hosts/secret.yml").write_bytes(vault.encrypt("sesame: hunter2"))
    return Play(tmp_path)


def test_what_left_the_inventory_leaves_the_control_host(play: Play, tmp_path: Path) -> None:
    done = play.run(tmp_path / "hosts")
    assert done.returncode == 0, done.stdout
    first = play.output()
    assert (first / "host_vars/gpu01.yml").exists()
    assert "changed=0 " in play.run(tmp_path / "hosts").stdout
    (tmp_path / "hosts/host_vars/gpu01.yml").unlink()
    done = play.run(tmp_path / "hosts")
    assert done.returncode == 0, done.stdout
    assert [path.name for path in (play.etc / "inventory").iterdir()] == [play.output().name]
    assert play.output() != first and not (play.output() / "host_vars/gpu01.yml").exists()


def test_a_secret_that_left_the_inventory_leaves_the_control_host(
    play: Play, tmp_path: Path
) -> None:
    secrets = play.etc / "secrets"
    secrets.mkdir()
    for name in ("smtp", "former", ".former", "by-hand"):
        (secrets / name).write_text("s3cret")
    assert play.run(tmp_path / "hosts").returncode == 0
    # What a person put there, and the settings name, stays.
    assert sorted(path.name for path in secrets.iterdir()) == ["by-hand", "smtp"]


def tasks(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DataLoader().load_from_file(
        str(ROLE / f"tasks/{name}.yml"), trusted_as_template=True
    )
    return found


def test_the_group_of_the_web_server_reads_the_published_pages_alone() -> None:
    templar = Templar(
        DataLoader(),
        DataLoader().load_from_file(str(ROLE / "vars/main.yml"), trusted_as_template=True),
    )
    rows = templar.template(
        next(task for task in tasks("account") if task["name"] == "Create the directories")["loop"]
    )
    readable = {row["path"]: row["mode"] for row in rows if row.get("group")}
    assert readable == {"/var/lib/gpufleet-nightly/published": "2750"}
    assert next(row["mode"] for row in rows if row["path"].endswith("/reports")) == "0700"
    # Nothing else of the role is in that group.
    assert (ROLE / "tasks/settings.yml").read_text().count("__nightly_verify_readers") == 0


@pytest.mark.parametrize("name", [".ssh", "metrics", "reports", "published"])
def test_a_link_in_the_accounts_home_is_refused_before_root_follows_it(
    tmp_path: Path, name: str
) -> None:
    names = ("Check what stands in the user's home", "Refuse links in the user's home")
    account = tasks("account")
    assert [task["name"] for task in account].index(names[1]) < min(
        at for at, task in enumerate(account) if "ansible.builtin.user" in task
    )
    book = [
        {
            "hosts": "localhost",
            "connection": "local",
            "gather_facts": False,
            "vars": {
                "__nightly_verify_home": str(tmp_path / "home"),
                "__nightly_verify_user": "gpufleet",
                "ansible_python_interpreter": sys.executable,
            },
            "tasks": [task for task in account if task["name"] in names],
        }
    ]
    (tmp_path / "book.yml").write_text(json.dumps(book))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / name).mkdir()
    assert run_playbook(tmp_path / "book.yml").returncode == 0
    (tmp_path / "home" / name).rmdir()
    (tmp_path / "home" / name).symlink_to("/etc")
    done = run_playbook(tmp_path / "book.yml")
    assert done.returncode == 2
    assert f"rm {tmp_path}/home/{name})" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("entry", "moved"),
    [
        (None, []),
        (["x", "990", ""], []),
        (["x", "990", "gpufleet"], []),
        (["x", "990", "www-data,gpufleet,alice"], ["www-data", "alice"]),
    ],
)
def test_accounts_that_were_ordered_to_join_the_group_of_secrets_leave_it(
    entry: list[str] | None, moved: list[str]
) -> None:
    loop = next(task for task in tasks("account") if "readers.yml" in str(task))["loop"]
    variables = {
        "__nightly_verify_user": "gpufleet",
        "ansible_facts": {"getent_group": {"gpufleet": entry}},
    }
    assert Templar(DataLoader(), variables).template(loop) == moved
    left = next(task for task in tasks("readers") if "gpasswd" in str(task))
    assert "--delete" in left["ansible.builtin.command"]["argv"]


def test_what_a_vault_closes_stays_closed(play: Play, tmp_path: Path) -> None:
    done = play.run(tmp_path / "hosts", "--diff", "--vault-password-file", f"{tmp_path}/password")
    assert done.returncode == 0, done.stdout
    assert (play.output() / "secret.yml").read_text().startswith("$ANSIBLE_VAULT")
    assert "hunter2" not in done.stdout


def test_a_file_is_copied_alone_and_refused_where_its_declarations_would_stay_behind(
    play: Play, tmp_path: Path
) -> None:
    refused = play.run(tmp_path / "hosts/hosts.yml")
    assert refused.returncode and "Set it to the directory" in " ".join(refused.stdout.split())
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone/hosts.yml").write_text("gpu_hosts: {hosts: {gpu01: }}")
    assert play.run(tmp_path / "alone/hosts.yml").returncode == 0
    assert play.output().read_text() == "gpu_hosts: {hosts: {gpu01: }}"
