"""Nights of the lab: each is a day after the last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpufleet.watch import config
from gpufleet.watch.history import History
from lab import nights
from lab.gpus import cards
from lab.gpus.planting import Cards
from lab.settings import Lab
from tests.support.nightly_sessions import at, host, session


@pytest.mark.parametrize(("given", "hook"), [({}, "none"), ({"lab1": Cards(1)}, "slurm")])
def test_the_settings_are_those_of_a_nightly_run(
    lab: Lab, given: dict[str, Cards], hook: str
) -> None:
    cards.save(lab, given)
    path = lab.cache / "nightly.yml"
    path.write_text(json.dumps(nights.settings(lab)))
    found = config.read(path)
    assert found.state_dir == nights.directory(lab)
    assert found.drain == {"hook": hook, "after_strikes": 2, "most_percent": 100}


def test_what_is_recorded_is_a_day_older_before_each_night(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.directory(lab).mkdir(parents=True)
    with History(nights.history(lab)) as history:
        history.record(session(2, host("lab1", cudnn__files="PASS")), kind="nightly")
    launcher = lab.cache / "gpufleet"
    launcher.write_text('#!/bin/sh\necho "$*" >$0.words; exit 1\n')
    launcher.chmod(0o755)
    monkeypatch.setattr(nights, "ROOT", lab.cache)
    assert nights.run(lab) == 1
    settings = nights.directory(lab) / "nightly.yml"
    assert Path(f"{launcher}.words").read_text() == f"nightly --config {settings}\n"
    with History(nights.history(lab)) as history:
        assert [night.started for night in history.nights()] == [at(1)]
