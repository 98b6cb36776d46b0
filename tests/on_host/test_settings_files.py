"""The grammars of files that set variables, where it can be compared with those who read them."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from gpufleet.on_host.host import Host
from gpufleet.on_host.settings_files import (
    environment_file,
    pam_assignments,
    pam_settings,
    settings_of_files,
)
from tests.support.planted_host import put

STUBS = "LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs"
GENERATOR = Path("/usr/lib/systemd/user-environment-generators/30-systemd-environment-d-generator")


def given_by_pam(directory: Path, kind: str, text: str) -> dict[str, str]:
    """The variables that a session gets from the pam_env of this machine."""
    try:
        library = ctypes.CDLL("libpam.so.0")
        start = library.pam_start_confdir
    except (OSError, AttributeError):
        pytest.skip("no PAM here that reads its configuration from a directory")
    for name in ("envfile", "conffile"):
        put(directory, name, text if name == kind else "")
    given = f"envfile={directory}/envfile conffile={directory}/conffile"
    put(directory, "test", f"session required pam_env.so user_readenv=0 {given}\n")
    handle, conversation = ctypes.c_void_p(), (ctypes.c_void_p * 2)()
    library.pam_getenvlist.restype = ctypes.POINTER(ctypes.c_char_p)
    assert start(b"test", b"root", conversation, str(directory).encode(), ctypes.byref(handle)) == 0
    library.pam_open_session(handle, 0)
    listed, found = library.pam_getenvlist(handle), {}
    for entry in iter(lambda: listed[len(found)], None):
        key, _, value = entry.decode().partition("=")
        found[key] = value.strip()
    library.pam_end(handle, 0)
    return found


@pytest.mark.parametrize(
    "text",
    [
        "A=0,1 # both\n#B=1\n  C=2\n",
        'A="0,1"\nexport B=\'1\'\nC="a"b"\nD="a b\nE=\n',
        "A=1\\\n2\nB=3\n",
        "A=1\\\n# c\n\n2\nB=3\n",
        "A=1 \\ # x\nB=2\n",
        "A = 1\nexport  B=1\nC-D=1\nE=a#b\n",
        "A=1\nA\nB=1",
        "A=1\\",
    ],
)
def test_environment_files_are_read_as_pam_reads_them(tmp_path: Path, text: str) -> None:
    """The comment of `CUDA_VISIBLE_DEVICES=0,1 # both` was taken for a GPU that is not there."""
    ours = {key: value for key, value in dict(pam_assignments(text)).items() if value is not None}
    assert ours == given_by_pam(tmp_path, "envfile", text)


@pytest.mark.parametrize(
    "text",
    [
        "A DEFAULT=1\nB\tDEFAULT=1 OVERRIDE=2\nC OVERRIDE=2 DEFAULT=1\n",
        'A \\\n DEFAULT=0\nB DEFAULT="0 1"\n#C DEFAULT=1\n',
        'A DEFAULT=\nB DEFAULT=""\nC OVERRIDE=""\nD\nE DEFAULT=1\nE\n',
        "A DEFAULT=1 OVERRIDE=${X}\nB DEFAULT=1\\\n2\nC DEFAULT='1'\n",
    ],
)
def test_the_settings_of_pam_env_are_read_as_pam_reads_them(tmp_path: Path, text: str) -> None:
    ours = {key: value for key, value in dict(pam_settings(text)).items() if value is not None}
    assert ours == given_by_pam(tmp_path, "conffile", text)


@pytest.mark.skipif(not GENERATOR.exists(), reason="no generator of systemd here to compare with")
@pytest.mark.parametrize(
    "text",
    [
        "A=1\n# B=2\n; C=3\n  D = 4 # x\n",
        'A="/a:\\\n/b"\nB=\'a\nb\'\nC="a"\'b\' c\nD=a"b"\n',
        'A=a\\\nb\nB="\\"\\x"\nC=a\\ b\\\nD=1\n',
        "export A=1\nB=1  \nC",
        '\n\nA="a\nB=1\n"\nC=2',
    ],
)
def test_environment_files_are_read_as_systemd_reads_them(tmp_path: Path, text: str) -> None:
    put(tmp_path, "environment.d/a.conf", text)
    printed = subprocess.run(
        [GENERATOR],
        capture_output=True,
        text=True,
        check=True,
        env={"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)},
    ).stdout
    ours, theirs = dict(environment_file(text)), dict(environment_file(printed))
    assert {key: value for key, value in ours.items() if len(key) == 1} == {
        key: value.replace("\\n", "\n") for key, value in theirs.items() if len(key) == 1
    }


@pytest.mark.parametrize(
    ("files", "where"),
    [
        ({"etc/systemd/system/a.service": f"[Service]\nEnvironment={STUBS}\n"}, True),
        ({"usr/lib/systemd/system/a.service.d/x.conf": f"[Service]\nEnvironment={STUBS}\n"}, True),
        (
            {
                "usr/lib/systemd/system/a.service": f"[Service]\nEnvironment={STUBS}\n",
                "etc/systemd/system/a.service.d/x.conf": "[Service]\nEnvironment=\n",
            },
            False,
        ),
        (
            {
                "usr/lib/systemd/system/a.service": "[Service]\nEnvironment=\n",
                "etc/systemd/system/a.service.d/x.conf": f"[Service]\nEnvironment={STUBS}\n",
            },
            True,
        ),
        (
            {
                "etc/systemd/system/a.service": f"[Service]\nEnvironment={STUBS}\n",
                "etc/systemd/system/a.service.d/x.conf": "Environment=LD_LIBRARY_PATH=\n",
            },
            False,
        ),
        (
            {
                "etc/systemd/system/a.service": f"[Service]\nEnvironment={STUBS}\n",
                "etc/systemd/system/a.service.d/x.conf": "UnsetEnvironment=LD_LIBRARY_PATH\n",
            },
            False,
        ),
        (
            {
                "usr/lib/systemd/system/a.service": f"[Service]\nEnvironment={STUBS}\n",
                "etc/systemd/system/a.service": "[Service]\nExecStart=/x\n",
            },
            False,
        ),
        (
            {
                "usr/lib/systemd/system/a.service.d/x.conf": f"Environment={STUBS}\n",
                "etc/systemd/system/a.service.d/x.conf": "",
            },
            False,
        ),
        (
            {"etc/systemd/system/a.service": f"Environment=A=1 \\\n# c\n  {STUBS}\n"},
            True,
        ),
        ({"etc/systemd/system/a.service": f"# c \\\nEnvironment={STUBS}\n"}, True),
        (
            {
                "etc/systemd/system/a.service": "EnvironmentFile=-/etc/default/*.env\n",
                "etc/default/x.env": '# c\nLD_LIBRARY_PATH="/a:\\\n/usr/local/cuda/lib64/stubs"\n',
            },
            True,
        ),
        (
            {
                "etc/systemd/system/a.service": "EnvironmentFile=/etc/default/x\n",
                "etc/systemd/system/a.service.d/x.conf": "EnvironmentFile=\n",
                "etc/default/x": f"{STUBS}\n",
            },
            False,
        ),
        ({"etc/environment.d/a.conf": f"{STUBS}\n"}, True),
        ({"etc/environment.d/a.conf": "LD_LIBRARY_PATH=${A:-/x/stubs}\n"}, True),
        (
            {
                "usr/lib/environment.d/a.conf": f"{STUBS}\n",
                "etc/environment.d/a.conf": "",
            },
            False,
        ),
        (
            {
                "etc/environment.d/a.conf": f"{STUBS}\n",
                "usr/lib/environment.d/b.conf": "LD_LIBRARY_PATH=\n",
            },
            False,
        ),
        (
            {
                "etc/systemd/system.conf": f"DefaultEnvironment={STUBS}\n",
                "etc/systemd/system.conf.d/x.conf": "DefaultEnvironment=\n",
            },
            False,
        ),
        ({"etc/cron.d/job": f"{STUBS}\n", "etc/debian_version": "12"}, True),
        ({"etc/cron.d/job.dpkg-old": f"{STUBS}\n", "etc/debian_version": "12"}, False),
        ({"etc/cron.d/job.rpmsave": f"{STUBS}\n"}, False),
        ({"etc/cron.d/job~": f"{STUBS}\n"}, False),
        ({"etc/cron.d/job.txt": f"{STUBS}\n"}, True),
        ({"var/spool/cron/bob": '"LD_LIBRARY_PATH" = "/usr/local/cuda/lib64/stubs"\n'}, True),
        ({"var/spool/cron/bob": f"export {STUBS}\n# {STUBS}\n0 5 * * * {STUBS} x\n"}, False),
        ({"etc/csh.cshrc": "setenv LD_LIBRARY_PATH /stubs\nunsetenv LD_LIBRARY_PATH\n"}, False),
        (
            {
                "etc/csh.cshrc": "setenv LD_LIBRARY_PATH /stubs\nif ($?A) then\n"
                "  unsetenv LD_LIBRARY_PATH\nendif\n"
            },
            True,
        ),
        ({"etc/zsh/zshenv": f"export {STUBS}\nunset A LD_LIBRARY_PATH # x\n"}, False),
        ({"etc/security/pam_env.conf": "LD_LIBRARY_PATH \\\n DEFAULT=/stubs\n"}, True),
    ],
)
def test_what_stands_in_a_file_counts_as_its_reader_takes_it(
    tmp_path: Path, files: dict[str, str], where: bool
) -> None:
    for name, text in files.items():
        put(tmp_path, name, text)
    found = settings_of_files(Host({"root": str(tmp_path)}), [])
    given = [row["variables"].get("LD_LIBRARY_PATH", "") for row in found]
    assert [value.endswith("/stubs") for value in given if value] == [True] * where


def test_a_masked_unit_sets_nothing_and_an_alias_is_no_second_one(tmp_path: Path) -> None:
    for name in ("masked", "real"):
        put(tmp_path, f"usr/lib/systemd/system/{name}.service", f"Environment={STUBS}\n")
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    (units / "masked.service").symlink_to("/dev/null")
    (units / "alias.service").symlink_to("../../../usr/lib/systemd/system/real.service")
    found = settings_of_files(Host({"root": str(tmp_path)}), [])
    assert [row["where"] for row in found] == ["/etc/systemd/system/alias.service"]
    put(tmp_path, "etc/systemd/system/real.service.d/x.conf", "Environment=\n")
    assert settings_of_files(Host({"root": str(tmp_path)}), []) == []
