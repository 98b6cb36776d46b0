"""A commissioning repeats some stages and leaves others: persons' states, hosts away, kills."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.campaign.commission import runner
from gpufleet.campaign.commission.records import Store
from gpufleet.campaign.commission.stages import DEEP, Stage
from gpufleet.cli.main import main
from gpufleet.watch.history import History
from tests.support.commission_site import ALL, Site
from tests.support.healthy_host import data
from tests.support.recorded_hosts import BURN_IN, READ, slow_card

pytestmark = pytest.mark.costly

WHOLE = ["read", "full", "full", "deep", "burn-in", "full"]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, ["gpu01"])


def held(snapshot: Any) -> None:
    """Somebody computes on a GPU of this host."""
    data(snapshot, "driver")["holders"] = [
        {"pid": 4711, "user": "ann", "command": "python3", "nodes": ["/dev/nvidia0"]}
    ]


def full(snapshot: Any) -> None:
    """The disk of this host is full."""
    data(snapshot, "disks")["free_mib"]["/tmp"] = 3


def read_only(snapshot: Any) -> None:
    """The disk of this host may be broken."""
    data(snapshot, "disks")["readonly"] = ["/tmp"]


# -- states ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["quarantined", "new", "returned"])
def test_a_state_that_a_person_set_takes_all_stages_with_it(
    site: Site, capsys: pytest.CaptureFixture[str], state: str
) -> None:
    assert site.run() == 0
    site.set_state("gpu01", state, "falls off the bus")
    site.hosts.forget()
    site.hosts.change("gpu01", slow_card(0))
    capsys.readouterr()
    assert site.run() == 1
    assert "gpu01 resumes with provision: its state, set by a person, changed" in (
        capsys.readouterr().out
    )
    assert site.hosts.probes("gpu01") == WHOLE[:3]
    assert site.states(capsys)["gpu01"]["state"] == "quarantined"
    assert not (site.state / "certificates/gpu01.json").exists()
    # A state that `commission` sets by itself voids no stage.
    site.hosts.forget()
    assert site.run() == 1
    assert site.hosts.probes("gpu01") == ["read", "full"]


def test_the_states_before_are_shown(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.set_state("gpu01", "new", "it came")
    site.set_state("gpu01", "returned", "RMA-4711")
    assert "former" not in site.states(capsys)["gpu01"]
    words = ["fleet", "-i", str(site.hosts.inventory), "--database", str(site.database), "--past"]
    assert main([*words, "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["hosts"]
    assert [each["why"] for each in (*row["former"], row)] == ["it came", "RMA-4711"]
    assert main(words) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["host", "gpu01", "new"]


def test_a_certified_host_that_others_use_stays_as_it_is(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.run() == 0
    files = site.files()
    site.hosts.change("gpu01", held)
    assert site.run() == 3
    assert "others compute on its GPUs" in capsys.readouterr().out
    assert site.files() == files
    assert site.states(capsys)["gpu01"]["state"] == "production"


@pytest.mark.parametrize("used", [False, True], ids=["idle", "used"])
def test_a_certified_host_whose_disk_is_full_keeps_its_certificate(
    site: Site, capsys: pytest.CaptureFixture[str], used: bool
) -> None:
    """Its own jobs had filled the disk, and the host was quarantined."""
    assert site.run() == 0
    files = site.files()
    site.hosts.change("gpu01", full)
    if used:
        site.hosts.change("gpu01", held)
    capsys.readouterr()
    assert site.run() == 3
    why = "others compute on its GPUs" if used else "No space is left in /tmp"
    assert why in capsys.readouterr().out
    assert site.files() == files
    assert site.states(capsys)["gpu01"]["state"] == "production"


def test_nothing_is_decided_of_a_host_on_which_others_compute(site: Site) -> None:
    site.hosts.change("gpu01", held)
    site.hosts.change("gpu01", read_only)
    assert site.run() == 3
    [why] = site.record("gpu01")["stages"]["preflight"]["reasons"]
    assert "others compute on its GPUs" in why["cause"]
    assert not list(site.state.glob("refusals/*"))


def test_a_certified_host_that_fails_its_preflight_is_refused(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.run() == 0
    site.hosts.change("gpu01", read_only)
    site.hosts.forget()
    assert site.run() == 1
    assert site.hosts.probes("gpu01") == ["read"]
    assert site.states(capsys)["gpu01"]["state"] == "quarantined"
    assert not (site.state / "certificates/gpu01.json").exists()
    assert [each["check"] for each in site.issued("refusals", "gpu01")["reasons"]] == ["host.disk"]
    # What failed had passed all stages before: they prove nothing any more.
    site.hosts.forget()
    for kind in (READ, "full", "deep", BURN_IN):
        site.hosts.record("gpu01", kind, site.hosts.healthy("gpu01", 0))
    assert site.run() == 0
    assert site.hosts.probes("gpu01") == ["read", "full", "deep", "burn-in", "full"]
    assert site.outcomes("gpu01") == dict.fromkeys(ALL, "passed")


# -- what changes while stages run ------------------------------------------------------------------


def other_machine(snapshot: Any) -> None:
    """Another machine answers by the name of this host."""
    data(snapshot, "os")["hardware"]["serial"] = "A26129999999"


def test_no_certificate_joins_the_stages_of_two_machines(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.hosts.change_at("gpu01", len(WHOLE), "full", other_machine)
    assert site.run() == 3
    assert "the machine changed while it was commissioned" in capsys.readouterr().out
    assert not list(site.state.glob("certificates/*"))
    assert site.states(capsys)["gpu01"]["state"] == "commissioning"
    site.hosts.forget()
    (site.hosts.place / f"gpu01/at-{len(WHOLE)}.json").unlink()
    site.hosts.change("gpu01", other_machine)
    assert site.run() == 0
    assert site.hosts.probes("gpu01") == WHOLE
    assert site.issued("certificates", "gpu01")["parts"][0]["serial"] == "A26129999999"


def test_a_host_that_a_person_takes_out_while_it_is_commissioned_is_not_certified(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_stage = runner.run_stage

    def run_and_take_out(stage: Stage, *rest: Any) -> Any:
        if stage is DEEP:
            site.set_state("gpu01", "quarantined", "smells of smoke")
        return run_stage(stage, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(runner, "run_stage", run_and_take_out)
        assert site.run() == 3
    found = site.states(capsys)["gpu01"]
    assert (found["state"], found["why"]) == ("quarantined", "smells of smoke")
    assert not list(site.state.glob("certificates/*"))


def test_the_ports_of_a_fresh_host_may_show_once_it_is_provisioned(site: Site) -> None:
    assert data(site.hosts.recorded("gpu01", READ), "network")["devices"]

    def without_ports(snapshot: Any) -> None:
        data(snapshot, "network").update(devices=[], adapters=[])

    site.hosts.change_at("gpu01", 1, READ, without_ports)
    assert site.run() == 0


# -- records that are not what they were ---------------------------------------------------------------


def test_a_record_of_another_host_proves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(tmp_path, ["gpu01", "gpu02"])
    assert site.run("--limit", "gpu01") == 0
    (site.state / "gpu02.json").write_text((site.state / "gpu01.json").read_text())
    files = site.files()
    assert site.run("--limit", "gpu02") == 4
    error = capsys.readouterr().err
    assert "The record of gpu02 cannot be read (it is of 'gpu01')" in error
    assert {path: text for path, text in site.files().items() if path in files} == files


@pytest.mark.parametrize("seconds", ["abc", "nan", "inf", "-1", ""])
def test_a_burn_in_of_no_time_makes_its_record_unreadable(
    site: Site, capsys: pytest.CaptureFixture[str], seconds: str
) -> None:
    record = Store(site.state).read("gpu01")
    record["stages"]["burn-in"] = {
        **{"outcome": "passed", "inputs": {"burn-in": seconds}, "by": "ann"},
        **{"started": "2026-11-01T10:00:00Z", "finished": "2026-11-01T11:00:00Z"},
        **{"reasons": [], "notes": [], "figures": [], "evidence": []},
    }
    Store(site.state).write(record)
    assert site.run() == 4
    assert "The record of gpu01 cannot be read" in capsys.readouterr().err
    assert site.hosts.probes("gpu01") == []


# -- stages of another day ---------------------------------------------------------------------------


def dated(site: Site, days: int) -> None:
    """All stages of gpu01 ended so many days ago, and so was its certificate issued."""
    then = f"{datetime.now(UTC) - timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}"
    record = site.record("gpu01")
    for stage in record["stages"].values():
        stage.update(started=then, finished=then)
    if "certificate" in record:
        record["certificate"]["issued"] = then
    Store(site.state).write(record)


@pytest.mark.parametrize(
    ("days", "probes"),
    [
        (29, ["read", "burn-in", "full"]),
        # Provisioning computes nothing, and what is installed is read each time.
        (31, ["read", "full", "deep", "burn-in", "full"]),
        # The clock of the control machine was wrong.
        (-2, ["read", "full", "deep", "burn-in", "full"]),
    ],
)
def test_what_was_computed_long_ago_is_computed_again(
    resumed: Site, capsys: pytest.CaptureFixture[str], days: int, probes: list[str]
) -> None:
    """A certificate of today joined a burn-in of today and computations of years ago."""
    dated(resumed, days)
    capsys.readouterr()
    assert resumed.run() == 0
    assert resumed.hosts.probes("gpu01") == probes
    old = "resumes with verify: it ended at 20" in capsys.readouterr().out
    assert old == (len(probes) > 3)


def test_a_certificate_stays_valid_and_keeps_its_date_when_it_is_signed_again(site: Site) -> None:
    assert site.run() == 0
    dated(site, 400)
    issued = site.record("gpu01")["certificate"]["issued"]
    site.hosts.forget()
    (site.state / "certificates/gpu01.html.sig").unlink()
    assert site.run() == 0
    assert site.hosts.probes("gpu01") == ["read"]
    assert site.issued("certificates", "gpu01")["issued"] == issued


def test_a_longer_burn_in_repeats_what_has_aged_since_the_certificate(site: Site) -> None:
    assert site.run() == 0
    dated(site, 400)
    with History(site.database) as history:
        history.flag("gpu01", "state", None)
    site.hosts.forget()
    assert site.run("--burn-in", "61s") == 0
    assert site.hosts.probes("gpu01") == ["read", "full", "deep", "burn-in", "full"]


def test_a_certificate_names_the_release_that_judged_each_stage(site: Site) -> None:
    assert site.run() == 0
    found = site.issued("certificates", "gpu01")
    assert {stage["program"] for stage in found["stages"]} == {found["program"]}
    # A record of the release before has no such name.
    record = site.record("gpu01")
    for stage in record["stages"].values():
        del stage["program"]
    Store(site.state).write(record)
    (site.state / "certificates/gpu01.html").unlink()
    assert site.run() == 0
    assert "program" not in site.issued("certificates", "gpu01")["stages"][0]


# -- what stops a run before its first stage -------------------------------------------------------


@pytest.fixture
def resumed(site: Site) -> Site:
    """A host whose burn-in was not judged, and that is right now."""

    def unread(snapshot: Any) -> None:
        data(snapshot, "compute")["deep"] = False

    site.hosts.change("gpu01", unread, BURN_IN)
    assert site.run() == 3
    site.hosts.record("gpu01", BURN_IN, site.hosts.healthy("gpu01", 0))
    site.hosts.forget()
    return site


def test_a_host_that_is_not_reached_keeps_what_it_has_passed(
    resumed: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    files, stand_in = resumed.files(), resumed.hosts.python.read_text()
    resumed.hosts.python.write_text("#!/bin/sh\nexit 255\n")
    capsys.readouterr()
    assert resumed.run() == 3
    assert "changed" not in capsys.readouterr().out
    assert resumed.files() == files
    assert resumed.states(capsys)["gpu01"]["state"] == "commissioning"
    resumed.hosts.python.write_text(stand_in)
    assert resumed.run() == 0
    assert resumed.hosts.probes("gpu01") == ["read", "burn-in", "full"]


def test_a_host_that_others_use_keeps_what_it_has_passed(resumed: Site) -> None:
    resumed.hosts.change("gpu01", held, READ)
    assert resumed.run() == 3
    resumed.hosts.record("gpu01", READ, resumed.hosts.healthy("gpu01", 0))
    resumed.hosts.forget()
    assert resumed.run() == 0
    assert resumed.hosts.probes("gpu01") == ["read", "burn-in", "full"]


def test_a_run_that_is_killed_in_the_preflight_keeps_what_was_passed(
    resumed: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise SystemExit(137)

    with monkeypatch.context() as patched:
        patched.setattr(runner, "preflight", killed)
        assert resumed.run() == 137
    resumed.hosts.forget()
    assert resumed.run() == 0
    assert resumed.hosts.probes("gpu01") == ["read", "burn-in", "full"]
