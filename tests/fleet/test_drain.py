"""Who is drained after a night, and who is given back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.drain import after_night, strikes
from fleet.hooks import PROMISE, SLURM, Hook
from tests.fleet.stand_ins import Slurm
from verify.wishes import Question

HOSTS = [f"gpu{number:02}" for number in range(1, 21)]


class History:
    """The letters of the last nights; healthy ever since, where nothing is said."""

    def __init__(self, **letters: str) -> None:
        self.letters = letters

    def past(self, last: int = 30) -> dict[str, Any]:
        return {"hosts": {name: {"verdicts": self.letters.get(name, "PPP")} for name in HOSTS}}


def changes(*failed: str) -> dict[str, Any]:
    """Everybody's gpu.smi stands since an earlier night, as does what was not reached."""
    return {"changes": [], "standing": [
        {"host": host, "check": check, "verdict": verdict, "strikes": 2}
        for host in failed
        for check, verdict in (("gpu.smi", "FAIL"), ("driver.loaded", "INCONCLUSIVE"))]}


@pytest.fixture
def slurm() -> Slurm:
    return Slurm({name: ["", ""] for name in HOSTS})


def night(slurm: Slurm, history: History, folder: Path, *failed: str, **settings: Any) -> list[str]:
    inventory = folder / "hosts.yml"
    inventory.write_text("gpu_hosts:\n  hosts:\n" + "".join(f"    {name}:\n" for name in HOSTS))
    return after_night(
        changes(*failed), history,
        {"hook": "slurm", "after_strikes": 2, "question": Question([str(inventory)]), **settings},
        Hook(SLURM, {name: name for name in HOSTS}, runner=slurm))


@pytest.mark.parametrize(("letters", "count"), [
    ("P", 0), ("F", 1), ("PFF", 2), ("FHF", 3), ("FPF", 1), ("FUF", 2), ("F?-.F", 2), ("FFU", 0),
    ("FF?", 0), ("FFP", 0), ("", 0), ("U", 0)])
def test_only_judged_nights_count_and_the_last_must_be_bad(letters: str, count: int) -> None:
    assert strikes(letters) == count


def test_two_bad_nights_drain_and_a_good_one_gives_back(slurm: Slurm, tmp_path: Path) -> None:
    assert night(slurm, History(gpu01="PF"), tmp_path, "gpu01") == []
    said = night(slurm, History(gpu01="PFF"), tmp_path, "gpu01")
    reason = "gpufleet nightly: gpu.smi failed, 2 nights in a row"
    assert slurm.nodes["gpu01"] == ["DRAIN", reason + PROMISE]
    assert said == [
        "gpu01 is drained: gpu.smi failed, 2 nights in a row. Once repaired, a healthy night gives"
        " it back; by hand: scontrol update NodeName=gpu01 State=RESUME"]
    assert night(slurm, History(gpu01="FFF"), tmp_path, "gpu01") == []
    assert night(slurm, History(gpu01="FFU"), tmp_path) == []
    said = night(slurm, History(gpu01="FFP"), tmp_path)
    assert said == ["gpu01 is healthy again and takes jobs: gpufleet had drained it."]
    assert slurm.nodes["gpu01"] == ["", ""]


@pytest.mark.parametrize("reason", [
    "broken fan", f"gpufleet rollout: under way{PROMISE}", "Not responding",
    f"gpufleet nightly: gpu.smi failed{PROMISE} - bob: do NOT resume"])
def test_what_others_drained_stays_drained(slurm: Slurm, tmp_path: Path, reason: str) -> None:
    slurm.nodes["gpu01"] = ["DRAIN", reason]
    assert night(slurm, History(gpu01="PP"), tmp_path) == []
    assert night(slurm, History(gpu01="FF"), tmp_path, "gpu01") == []
    assert slurm.nodes["gpu01"] == ["DRAIN", reason]


def test_never_more_than_a_share_is_out_of_service_whoever_took_it(
    slurm: Slurm, tmp_path: Path
) -> None:
    slurm.nodes["gpu20"] = ["DRAIN", "broken fan"]
    bad = dict.fromkeys(HOSTS[:5], "FF") | {"gpu03": "FFF"}
    said = night(slurm, History(**bad), tmp_path, *bad)
    # 10% of 20 is two, and one is out already: the one that is bad for longest goes.
    assert [name for name in HOSTS if slurm.nodes[name][0]] == ["gpu03", "gpu20"]
    assert len(said) == 5
    assert "gpu01 is not drained" in said[1]
    assert "2 of 20 hosts are out of service already" in said[1]
    assert "gpu01 is drained" in night(slurm, History(**bad), tmp_path, most_percent=50)[0]


def test_what_slurm_does_not_hear_is_out_of_service_too(slurm: Slurm, tmp_path: Path) -> None:
    slurm.silent = {"gpu19": ("IDLE*", 9), "gpu20": ("IDLE+INVALID_REG", 9)}
    bad = dict.fromkeys(HOSTS[:2], "FF")
    said = night(slurm, History(**bad), tmp_path, *bad)
    assert [name for name in HOSTS if slurm.nodes[name][0]] == []
    assert "2 of 20 hosts are out of service already" in said[0]


def test_a_scheduler_that_does_not_answer_is_told_and_ends_no_night(tmp_path: Path) -> None:
    said = night(Slurm({}), History(gpu01="FF"), tmp_path)
    assert len(said) == 1
    assert said[0].startswith("Nothing was drained")


def test_what_failed_last_night_first_is_named_first(slurm: Slurm, tmp_path: Path) -> None:
    document = changes("gpu01")
    document["changes"] = [{"kind": "other-cause", "host": "gpu01", "check": "gpu.count",
                            "weight": "bad", "strikes": 1}]
    (tmp_path / "hosts.yml").write_text("gpu_hosts: {hosts: {gpu01: }}")
    settings = {"hook": "slurm", "question": Question([str(tmp_path / "hosts.yml")])}
    after_night(document, History(gpu01="FF"), settings, Hook(SLURM, {"gpu01": "gpu01"},
                                                              runner=slurm))
    assert slurm.nodes["gpu01"][1] == (
        "gpufleet nightly: gpu.count, gpu.smi failed, 2 nights in a row" + PROMISE)


def test_without_a_hook_nothing_is_asked() -> None:
    assert after_night(changes("gpu01"), History(gpu01="FF"), {"hook": "none"}) == []
