"""The output of apt and dpkg is read as it is meant."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.gpufleet.gpu.plugins.module_utils import apt  # isort: skip
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError  # isort: skip

SIMULATED = """\
NOTE: This is only a simulation!
Reading package lists...
Remv nvidia-tesla-470-smi [470.256.02-1~deb12u1]
Purg libold1 [1.0] [theirs:amd64 ]
Inst dkms (3.0.10-8+deb12u1 Debian:12.11/oldstable [all])
Inst libcuda1 [470.256.02-2] (535.261.03-1 Debian:12.11/oldstable, Debian-Security:12 [amd64]) []
Inst nvidia-smi (535.261.03-1 local-deb [amd64])
Conf libcuda1 (535.261.03-1 Debian:12.11/oldstable [amd64])
"""


def test_a_simulation_is_read() -> None:
    installs, removes = apt.parse_simulation(SIMULATED)
    assert removes == ["nvidia-tesla-470-smi", "libold1"]
    assert list(installs) == ["dkms", "libcuda1", "nvidia-smi"]
    assert installs["dkms"] == {
        "old": None,
        "version": "3.0.10-8+deb12u1",
        "origin": "Debian:12.11/oldstable",
    }
    assert installs["libcuda1"]["old"] == "470.256.02-2"
    assert installs["nvidia-smi"]["origin"] == "local-deb"


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("535.261.03-1", "535.261.03"),
        ("1:580.65.06-0ubuntu0.22.04.1", "580.65.06"),
        ("20220217+3~deb12u1", "20220217"),
        (None, "0"),
    ],
)
def test_nvidias_version_is_taken_from_a_packages(version: str | None, upstream: str) -> None:
    assert apt.upstream(version) == upstream


def test_only_errors_are_complaints() -> None:
    output = "Reading package lists...\nE: Unable to locate package x\nW: old\nE: broken\n"
    assert apt.complaints(output) == "Unable to locate package x; broken"


@pytest.mark.parametrize(
    "line",
    [
        "W: GPG error: https://x InRelease: signatures couldn't be verified: NO_PUBKEY A4B4",
        "E: The repository 'https://x InRelease' is not signed.",
        "W: https://x: EXPKEYSIG 1234",
    ],
)
def test_a_signature_that_does_not_hold_is_seen(line: str) -> None:
    assert apt.unsigned(f"Hit:1 https://y InRelease\n{line}\n") == [line]


def test_our_holds_are_not_seen_by_a_simulation_but_others_are() -> None:
    ours = "Package: libcuda1\nStatus: hold ok installed\nVersion: 1"
    assert "Status: install ok installed" in apt.unheld(ours)
    theirs = "Package: dkms\nStatus: hold ok installed\nVersion: 1"
    assert apt.unheld(theirs) == theirs


def test_who_holds_a_lock_is_named(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    code = (
        f"import fcntl; f = open({str(lock)!r}, 'w'); fcntl.lockf(f, fcntl.LOCK_EX);"
        " print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StateError, match=rf"held for more than 0 s by \S+ \(pid {holder.pid}"):
            apt.wait_for_locks(0, [str(lock)])
        holder.communicate(b"\n")
    apt.wait_for_locks(0, [str(lock)])
    with lock.open("w") as stream:
        fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
