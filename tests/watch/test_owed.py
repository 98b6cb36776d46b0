"""The work after a run is in its notification, however late that is delivered."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.watch import channels, message_forms, notifications, state
from gpufleet.watch.history import History
from gpufleet.watch.run import NightlyRun
from tests.support.nightly_sessions import host, measured, session

DRAINED = "gpu01 is drained: gpu.count failed, 2 nights in a row."


class Site:
    """A state directory and two channels, either of which may be down."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings: Any = SimpleNamespace(
            state_dir=folder, reports_dir=folder, reports_url="http://x", tell_within_s=0.1
        )
        self.down: set[str] = set()
        self.heard: dict[str, list[str]] = {"mail": [], "webhook": []}
        found = [channels.Channel(name, name, self.sender(name)) for name in self.heard]
        monkeypatch.setattr(channels, "configured_channels", lambda settings: found)

    def sender(self, name: str) -> Any:
        def send(message: notifications.Message) -> None:
            if name in self.down:
                raise ConnectionRefusedError("it is down")
            self.heard[name].append(message_forms.as_text(message))

        return send

    def night(self, number: int, *done: str, killed: bool = False) -> None:
        """A run whose drain step did this; it may be killed before it notifies anybody."""
        with History(self.settings.state_dir / state.HISTORY) as history:
            run = session(number, host("gpu01", gpu__count="FAIL: broken"))
            recorded = history.record(run, measure=measured(x=1.0))
            changes = history.changes(recorded)
        made = NightlyRun(self.settings)
        made.night = recorded
        for sentence in done:
            made._act(sentence)
        if not killed:
            with made._step("tell"):
                made._notify(recorded, changes)

    def of_drain(self) -> dict[str, int]:
        return {name: sum(DRAINED in text for text in heard) for name, heard in self.heard.items()}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path, monkeypatch)
    made.night(0)
    return made


def kept(site: Site) -> Any:
    return json.loads((site.settings.state_dir / state.DELIVERED).read_text()).get(state.DONE)


def test_what_was_done_in_a_night_without_a_mail_server_is_sent_once_later(site: Site) -> None:
    site.down = {"mail"}
    site.night(1, DRAINED)
    site.night(2)
    assert site.of_drain() == {"mail": 0, "webhook": 1}
    site.down.clear()
    site.night(3)
    site.night(4)
    assert site.of_drain() == {"mail": 1, "webhook": 1}
    assert kept(site) is None


def test_what_a_killed_run_did_is_sent_by_the_next_one(site: Site) -> None:
    site.night(1, DRAINED, killed=True)
    assert kept(site) == {"2": [DRAINED]}
    site.night(2)
    assert site.of_drain() == {"mail": 1, "webhook": 1}


def test_a_file_of_an_earlier_release_is_read(site: Site) -> None:
    path = site.settings.state_dir / state.DELIVERED
    before = {"mail": 1, "webhook": 1, state.OWED: {"mail": []}}
    path.write_text(json.dumps(before))
    assert state.read(path) == (before, "")
    site.night(1, DRAINED)
    assert site.of_drain() == {"mail": 1, "webhook": 1}


def test_what_a_channel_was_not_sent_goes_to_its_new_address(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.down = {"mail"}
    site.night(1, DRAINED)
    site.down.clear()
    moved = [
        channels.Channel("mail", "mail of others", site.sender("mail")),
        channels.Channel("webhook", "webhook", site.sender("webhook")),
    ]
    monkeypatch.setattr(channels, "configured_channels", lambda settings: moved)
    site.night(2)
    site.night(3)
    assert site.of_drain() == {"mail": 1, "webhook": 1}
    assert kept(site) is None
    delivered = json.loads((site.settings.state_dir / state.DELIVERED).read_text())
    assert "mail" not in {*delivered, *delivered[state.OWED]}


def test_a_channel_that_is_configured_no_more_keeps_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.down = {"mail"}
    site.night(1, DRAINED)
    left = [channels.Channel("webhook", "webhook", site.sender("webhook"))]
    monkeypatch.setattr(channels, "configured_channels", lambda settings: left)
    site.night(2)
    assert site.of_drain() == {"mail": 0, "webhook": 1}
    assert kept(site) is None
