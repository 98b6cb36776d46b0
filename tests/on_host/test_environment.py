"""Section `environment`: logins, services, cron."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.on_host import login
from gpufleet.on_host import text as probe_text
from gpufleet.on_host.constants import MOST_VALUE
from gpufleet.on_host.host import Host
from gpufleet.on_host.runner import probe
from tests.support.elf_file import shared_library
from tests.support.machine import deadline
from tests.support.planted_host import probe_tree, put


def test_a_login_that_ends_early_is_not_an_empty_one(root: Path) -> None:
    put(root, "etc/profile.d/zz.sh", "exit 0\n")
    section = probe({"root": str(root), "deadline_s": deadline(10)})["sections"]["environment"]
    assert section["state"] == "error"
    assert "exited (status 0) before" in section["error"]


def test_a_login_that_hangs_is_hung(root: Path) -> None:
    put(root, "etc/profile.d/zz.sh", "sleep 99\n")
    section = probe({"root": str(root), "deadline_s": deadline(2)})["sections"]["environment"]
    assert section["state"] == "hung"


def test_a_login_that_may_not_start_is_not_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an account may not use /dev/null or bash, the finding was that nothing answered."""
    monkeypatch.setattr(
        login, "run_command", lambda *_, **__: (None, "", "/bin/bash: Permission denied")
    )
    with pytest.raises(RuntimeError, match="cannot be started by its account: /bin/bash"):
        login.login_variables(Host({}), {}, {})


def test_what_variables_lead_to_is_probed(root: Path) -> None:
    shared_library(root / "opt/bbb/libcudnn.so.8", "libcudnn.so.8")
    shared_library(root / "opt/x.so", "libcudart.so.11.0")
    put(root, "etc/environment", "LD_LIBRARY_PATH=/opt/bbb\n")
    put(root, "etc/ld.so.preload", "/opt/x.so\n")
    assert probe_tree(root)["environment"]["offers"] == {
        "/opt/bbb": ["libcudnn.so.8"],
        "/opt/x.so": ["libcudart.so.11.0"],
    }


def test_a_login_is_a_real_shell_that_may_be_noisy(root: Path) -> None:
    put(root, "etc/environment", 'CUDA_HOME="/opt/cuda"\n')
    put(
        root,
        "etc/profile.d/cuda.sh",
        "echo Welcome; export LD_LIBRARY_PATH=$CUDA_HOME/lib64:$LD_LIBRARY_PATH\n",
    )
    seen = probe_tree(root)["environment"]["login"]
    assert seen["CUDA_HOME"] == "/opt/cuda"
    assert seen["LD_LIBRARY_PATH"] == "/opt/cuda/lib64:"
    assert seen["PYTHONPATH"] is None


def test_what_services_and_cron_are_given_is_read_from_their_files(root: Path) -> None:
    given = {
        ("etc/security/pam_env.conf", "# A DEFAULT=1\nCUDA_HOME DEFAULT=/opt/cuda\n", False),
        ("etc/environment.d/site.conf", "PYTHONPATH=/opt/site\n", False),
        (
            "etc/systemd/system.conf.d/site.conf",
            '[Manager]\nDefaultEnvironment=A=1 \\\n "PYTHONHOME=/opt/a b"\n',
            False,
        ),
        (
            "etc/systemd/system/service.d/all.conf",
            "[Service]\nEnvironment=LD_PRELOAD=/opt/x.so\n",
            False,
        ),
        (
            "etc/systemd/system/train.service",
            "[Service]\nEnvironmentFile=-/etc/default/train\nEnvironmentFile=-/none\n",
            True,
        ),
        ("etc/crontab", "CUDA_VISIBLE_DEVICES=\n0 3 * * * root A=1 true\n", False),
        ("etc/cron.d/train", "CUDA_VISIBLE_DEVICES = '0'\n", True),
    }
    for name, text, _ in given:
        put(root, name, text)
    put(root, "etc/default/train", "CUDA_VISIBLE_DEVICES=1\n")
    put(root, "etc/systemd/system/plain.service", "[Service]\nEnvironment=LANG=C\n")
    found = probe_tree(root)["environment"]
    seen = {row["where"]: row for row in found["others"] if row["where"].startswith("/etc")}
    del seen["/etc/ld.so.preload"]
    assert {name: row["job"] for name, row in seen.items()} == {
        f"/{name}": job for name, _, job in given
    }
    assert {name: row["variables"] for name, row in seen.items()} == {
        "/etc/security/pam_env.conf": {"CUDA_HOME": "/opt/cuda"},
        "/etc/environment.d/site.conf": {"PYTHONPATH": "/opt/site"},
        "/etc/systemd/system.conf.d/site.conf": {"PYTHONHOME": "/opt/a b"},
        "/etc/systemd/system/service.d/all.conf": {"LD_PRELOAD": "/opt/x.so"},
        "/etc/systemd/system/train.service": {"CUDA_VISIBLE_DEVICES": "1"},
        "/etc/crontab": {"CUDA_VISIBLE_DEVICES": ""},
        "/etc/cron.d/train": {"CUDA_VISIBLE_DEVICES": "0"},
    }
    assert found["unread"] == []


@pytest.mark.parametrize(
    ("name", "text", "variables"),
    [
        (
            "etc/zsh/zshenv",
            "export LD_LIBRARY_PATH=/opt/a # theirs\n",
            {"LD_LIBRARY_PATH": "/opt/a"},
        ),
        (
            "etc/csh.cshrc",
            "setenv CUDA_VISIBLE_DEVICES 0;\n#setenv PYTHONHOME /x\n",
            {"CUDA_VISIBLE_DEVICES": "0"},
        ),
        ("etc/profile.d/site.csh", "  setenv PYTHONPATH '/opt/a b'\n", {"PYTHONPATH": "/opt/a b"}),
        (
            "etc/fish/conf.d/site.fish",
            "set -gx CUDA_VISIBLE_DEVICES\nset -gx LD_PRELOAD /opt/x.so\n",
            {"LD_PRELOAD": "/opt/x.so"},
        ),
        (
            "etc/ssh/sshd_config.d/site.conf",
            'SetEnv A=1 "LD_LIBRARY_PATH=/opt/a"\nMatch User x\n  SetEnv PYTHONPATH=/opt/x\n',
            {"LD_LIBRARY_PATH": "/opt/a"},
        ),
        ("etc/default/site", "CUDA_VISIBLE_DEVICES=1\n", {"CUDA_VISIBLE_DEVICES": "1"}),
    ],
)
def test_what_other_shells_sshd_and_pam_give_is_read_from_their_files(
    root: Path, name: str, text: str, variables: dict[str, str]
) -> None:
    """Only what bash sets was judged: people with zsh, and `SetEnv` of sshd, went unnoticed."""
    put(
        root,
        "etc/pam.d/sshd",
        "session required pam_env.so # x\n"
        "session required pam_env.so user_readenv=0 envfile=/etc/default/site\n",
    )
    put(root, name, text)
    others = probe_tree(root)["environment"]["others"]
    assert [row for row in others if row["where"] == f"/{name}"] == [
        {"where": f"/{name}", "variables": variables, "job": False}
    ]


def test_a_users_crontab_of_any_content_leaves_what_others_set(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that the controller refuses cost the whole section, and so did a file too large."""
    put(root, "etc/environment.d/site.conf", "PYTHONPATH=/opt/site\n")
    jobs = "var/spool/cron/crontabs/"
    put(root, jobs + "alice", "LD_LIBRARY_PATH=/opt/" + "a" * 17000 + "\nLD_PRELOAD=/a\0b\n")
    put(root, jobs + "bob", "A=" + "b" * 70000 + "\n")
    monkeypatch.setattr(probe_text, "MOST_BYTES", 1 << 16)
    found = probe_tree(root)["environment"]
    seen = {row["where"]: row["variables"] for row in found["others"]}
    assert seen["/etc/environment.d/site.conf"] == {"PYTHONPATH": "/opt/site"}
    assert seen[f"/{jobs}alice"] == {
        "LD_LIBRARY_PATH": "/opt/" + "a" * (MOST_VALUE - 5),
        "LD_PRELOAD": "/a",
    }
    assert found["unread"] == [f"/{jobs}bob"]


def test_the_files_that_name_a_variable_are_reported(root: Path) -> None:
    put(root, "etc/environment", "CUDA_HOME=/opt/cuda\n")
    put(root, "etc/profile.d/site.sh", "# PYTHONPATH=/no\nexport CUDA_HOME LD_PRELOAD=\n")
    assert probe_tree(root)["environment"]["mentions"] == {
        "CUDA_HOME": ["/etc/environment", "/etc/profile.d/site.sh"],
        "LD_PRELOAD": ["/etc/profile.d/site.sh"],
    }
