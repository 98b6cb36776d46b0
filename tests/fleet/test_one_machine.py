"""Hosts that report the boot and the GPUs of others, as `verify` judges them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpufleet.fleet import probing
from gpufleet.paths import ROOT
from tests.support.healthy_host import Document
from tests.support.recorded_hosts import RecordedHosts

HOSTS = ["gpu01", "gpu02", "liar"]


def verified(hosts: RecordedHosts, place: Path) -> dict[str, Any]:
    run = subprocess.run(
        [
            ROOT / ".venv/bin/gpufleet",
            *("verify", "-i", hosts.inventory, "--json", "--report", place / "report"),
            *("--save", place / "saved"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode in {0, 3}, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)["hosts"]
    return found


def plan_check(result: Document) -> tuple[str, str]:
    row = next(row for row in result["checks"] if row["id"] == "host.plan")
    return row["verdict"], row["cause"] or row["evidence"]


@pytest.mark.parametrize("twin", [False, True])
def test_a_host_that_repeats_another_one_is_a_note_and_one_machine_is_inconclusive(
    tmp_path: Path, twin: bool
) -> None:
    hosts = RecordedHosts(tmp_path / "hosts", HOSTS)
    copied = hosts.recorded("gpu01", "full")

    def repeats(snapshot: Document) -> None:
        for name in ("smi", "smi_after", "kernel", "compute"):
            snapshot["sections"][name] = copied["sections"][name]

    hosts.change("liar", repeats)
    for number, name in enumerate(HOSTS):
        # A machine under two names gives one answer; a liar cannot know another one's.
        secret = 0 if name == "liar" and twin else number
        hosts.change(name, lambda snapshot, secret=secret: snapshot.update(answer=f"{secret}" * 64))
    found = verified(hosts, tmp_path)
    verdict, text = plan_check(found["gpu01"])
    if twin:
        assert verdict == "INCONCLUSIVE"
        assert text.startswith("liar of the inventory is this very machine")
    else:
        assert {result["verdict"] for result in found.values()} == {"PASS"}
        assert text.startswith("liar of the inventory reports the boot and the GPUs of this host")
    assert plan_check(found["gpu02"])[0] == "PASS"
    # No document tells one host the answer of another one.
    for path in [*tmp_path.glob("saved/*"), *tmp_path.glob("report/**/*")]:
        if path.is_file():
            assert b"0" * 64 not in path.read_bytes()


def test_probes_of_a_run_get_one_challenge_and_of_another_run_another_one() -> None:
    first = probing.challenge()
    assert first == probing.challenge()
    probing.challenge.cache_clear()
    assert first != probing.challenge()
