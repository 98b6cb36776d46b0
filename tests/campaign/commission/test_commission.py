"""Whole commissionings of hosts that answer with recorded snapshots: everything else is real."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from gpufleet.campaign.commission import conclusion, signing
from gpufleet.campaign.commission.records import Store
from gpufleet.cli.main import main
from gpufleet.errors import ConfigurationError
from gpufleet.watch.history import History
from tests.support.command_line import ROOT
from tests.support.commission_site import ALL, Site
from tests.support.healthy_host import data
from tests.support.moments import wait_until
from tests.support.nightly_sessions import host, session
from tests.support.recorded_hosts import (
    BURN_IN,
    READ,
    slow_card,
    wrong_sample,
)

# The probe that each stage begins with, by its number; the first one reads.
PROBES = ["read", "full", "full", "deep", "burn-in", "full"]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, ["gpu01"])


def test_one_is_certified_and_two_are_refused_with_the_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The slow card and the wrong sample stop their hosts at their stage, and the third goes on."""
    site = Site(tmp_path, ["gpu01", "gpu02", "gpu03"])
    site.hosts.change("gpu02", slow_card(0))
    site.hosts.change("gpu03", wrong_sample(0), BURN_IN)
    assert site.run() == 1
    assert site.outcomes("gpu01") == dict.fromkeys(ALL, "passed")
    assert site.stopped("gpu01") == {}
    assert site.stopped("gpu02") == {"verify": "failed"}
    assert site.stopped("gpu03") == {"burn-in": "failed"}

    certificate = site.issued("certificates", "gpu01")
    assert (certificate["outcome"], certificate["by"]) == ("certified", "ann")
    assert certificate["faulty"] == certificate["reasons"] == []
    assert [stage["name"] for stage in certificate["stages"]] == ALL
    bounded = [figure for figure in certificate["figures"] if figure["bound"] is not None]
    assert {figure["what"] for figure in bounded} >= {"float32 products", "copies of its memory"}
    assert certificate["parts"][1]["serial"] == "165002300000"
    for stage in certificate["stages"]:
        for file in stage["evidence"]:
            assert (site.state / file["file"]).is_file()

    slow, wrong = (site.issued("refusals", name) for name in ("gpu02", "gpu03"))
    [entry] = slow["faulty"]
    assert (entry["part"]["name"], entry["part"]["serial"]) == ("GPU 0", "165002300100")
    assert entry["part"]["slot"] == "0000:00:00.0, below 0000:80:01.0"
    assert "11.2 TFLOP/s" in entry["reasons"][0]["cause"]
    [entry] = wrong["faulty"]
    assert (entry["part"]["name"], entry["part"]["serial"]) == ("GPU 0", "165002300200")
    assert [each["check"] for each in entry["reasons"]] == ["gpu.sustained"]
    assert re.search(
        r"at 61 s: .* 65 degrees, 1700 MHz, 340 W, 1 wrong", entry["reasons"][0]["evidence"]
    )
    assert wrong["parts"][0]["serial"] == "A26123450002"
    [burned] = [stage for stage in wrong["stages"] if stage["name"] == "burn-in"]
    assert any("the first wrong product was computed between" in note for note in burned["notes"])

    assert site.verifies(site.state / "certificates/gpu01.json")
    assert site.verifies(site.state / "certificates/gpu01.html")
    for name in ("gpu02", "gpu03"):
        assert site.verifies(site.state / f"refusals/{name}.html", "gpufleet-refusal")
        # A refusal is never taken for a certificate.
        assert not site.verifies(site.state / f"refusals/{name}.json")
        assert not (site.state / f"certificates/{name}.json").exists()

    states = site.states(capsys)
    assert {name: row["state"] for name, row in states.items()} == {
        "gpu01": "production",
        "gpu02": "quarantined",
        "gpu03": "quarantined",
    }
    assert states["gpu02"]["by"] == "ann"
    assert states["gpu02"]["why"] == "verify failed: GPU 0, serial number 165002300100"


def test_a_certificate_with_one_changed_byte_is_not_verified(site: Site) -> None:
    assert site.run() == 0
    for ending in ("json", "html"):
        path = site.state / f"certificates/gpu01.{ending}"
        assert site.verifies(path)
        raw = bytearray(path.read_bytes())
        at = raw.index(b"165002300000")
        raw[at] ^= 1
        path.write_bytes(raw)
        assert not site.verifies(path)


@pytest.mark.costly
@pytest.mark.parametrize("lost", [False, True], ids=["changed", "lost"])
@pytest.mark.parametrize("name", ["gpu01.html", "gpu01.json.sig", "gpu01.html.sig"])
def test_a_certificate_of_which_something_was_changed_or_lost_is_issued_again(
    site: Site, name: str, lost: bool
) -> None:
    """A forged page went unnoticed, as did a signature that was changed or gone."""
    assert site.run() == 0
    path = site.state / "certificates" / name
    if lost:
        path.unlink()
    else:
        path.write_text("Certified")
    site.hosts.forget()
    assert site.run() == 0
    assert site.hosts.probes("gpu01") == ["read"]
    for ending in ("json", "html"):
        assert site.verifies(site.state / f"certificates/gpu01.{ending}")


@pytest.mark.parametrize("same_path", [True, False])
def test_another_key_signs_again_and_the_same_one_does_not(site: Site, same_path: bool) -> None:
    """A new key in the file of the old one went unnoticed."""
    assert site.run() == 0
    files = site.files()
    moved = site.key.rename(site.place / "moved") if not same_path else site.key
    assert site.run("--key", str(moved)) == 0
    assert site.files() == files
    moved.unlink()
    site.make_key(moved)
    site.hosts.forget()
    assert site.run("--key", str(moved)) == 0
    assert site.hosts.probes("gpu01") == ["read"]
    for ending in ("json", "html"):
        assert site.verifies(site.state / f"certificates/gpu01.{ending}")


def test_a_signature_names_the_key_that_made_it(site: Site, tmp_path: Path) -> None:
    listed = ["ssh-keygen", "-l", "-f", str(site.key)]
    shown = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    assert signing.check_key(site.key) == shown.split()[1]
    for text in ("", "no signature", "-----BEGIN SSH SIGNATURE-----\nAAAA\n", "U1NIU0lH"):
        (tmp_path / "x.sig").write_text(text)
        assert signing.signer(tmp_path / "x.sig") == ""
    assert signing.signer(tmp_path / "none") == ""


def test_the_evidence_of_a_refusal_stays(site: Site) -> None:
    """The next run overwrote what the refusal lists, and its checksums were those of nothing."""
    site.hosts.change("gpu01", wrong_sample(0), BURN_IN)
    assert site.run() == 1
    refused = site.issued("refusals", "gpu01")
    healthy = site.hosts.healthy("gpu01", 0)
    for kind in (READ, "full", "deep", BURN_IN):
        site.hosts.record("gpu01", kind, healthy)
    site.hosts.replace_card("gpu01", 0, "1660000000001")
    assert site.run() == 0
    listed = [each for stage in refused["stages"] for each in stage["evidence"]]
    assert listed and Store(site.state).intact(listed)


def test_a_repaired_host_repeats_what_the_part_changed_and_nothing_else(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.hosts.change("gpu01", wrong_sample(0), BURN_IN)
    assert site.run() == 1
    site.hosts.forget()
    # The GPU that failed had passed these stages: its fault comes and goes.
    assert site.run() == 1
    assert site.hosts.probes("gpu01") == ["read", "full", "deep", "burn-in"]
    site.hosts.forget()
    healthy = site.hosts.healthy("gpu01", 0)
    for kind in (READ, "full", "deep", BURN_IN):
        site.hosts.record("gpu01", kind, healthy)
    site.hosts.replace_card("gpu01", 0, "1660000000001")
    capsys.readouterr()
    assert site.run() == 0
    # The card is another one: what was computed on the old one proves nothing.
    assert site.hosts.probes("gpu01") == ["read", "full", "deep", "burn-in", "full"]
    assert "gpu01 resumes with verify, since it has failed in burn-in" in capsys.readouterr().out
    assert site.issued("certificates", "gpu01")["parts"][1]["serial"] == "1660000000001"
    assert not (site.state / "refusals/gpu01.json").exists()
    assert len(list((site.state / "refusals").glob("gpu01-*.json"))) == 2


def test_a_certified_host_is_left_alone(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.run() == 0
    files = {path: path.read_bytes() for path in site.state.rglob("*") if path.is_file()}
    site.hosts.forget()
    assert site.run() == 0
    assert site.hosts.probes("gpu01") == ["read"]
    assert files == {path: path.read_bytes() for path in site.state.rglob("*") if path.is_file()}
    assert "every stage is still valid" in capsys.readouterr().out


def test_a_host_in_production_is_not_loaded(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.run() == 0
    site.hosts.replace_card("gpu01", 0, "1660000000001")
    site.hosts.forget()
    assert (site.state / "certificates/gpu01.json").exists()
    assert site.run() == 3
    output = capsys.readouterr().out
    assert "by ann (it is certified), and commissioning loads all of its GPUs" in output
    assert site.hosts.probes("gpu01") == ["read"]
    # It spoke of a machine with other parts.
    assert not (site.state / "certificates/gpu01.json").exists()
    # The command of the message does what it says.
    words = shlex.split(output.partition("then: ./gpufleet ")[2])
    assert main(words[: words.index("TEXT") + 1]) == 0
    assert site.run() == 0
    assert len(list((site.state / "certificates").glob("gpu01-*.json"))) == 1


def test_a_host_of_the_nightly_run_is_in_production(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stopped the run of all other hosts, too."""
    site = Site(tmp_path, ["gpu01", "gpu02"])
    with History(site.database) as history:
        history.record(session(0, host("gpu01", gpu__count="PASS")), measure=lambda *_: {})
    assert site.run() == 3
    assert "2026-11-01T03:00:00Z, by nightly" in capsys.readouterr().out
    assert site.hosts.probes("gpu01") == ["read"]
    assert not (site.state / "gpu01.json").exists()
    assert (site.state / "certificates/gpu02.json").exists()


def test_the_baseline_is_in_the_history_and_no_nightly_run(site: Site) -> None:
    assert site.run() == 0
    with History(site.database) as history:
        [run] = history.nights(kind="commission")
        assert history.latest() is None
        numbers = history.numbers([run], "*.tflops")
    assert {value for line in numbers.values() for value in line} == {34.4}


def test_a_longer_burn_in_is_run_and_a_shorter_one_is_not(site: Site) -> None:
    assert site.run() == 0
    with History(site.database) as history:
        history.flag("gpu01", "state", None)
    site.hosts.forget()
    assert site.run("--burn-in", "30s") == 0
    assert site.hosts.probes("gpu01") == ["read"]
    with History(site.database) as history:
        history.flag("gpu01", "state", None)
    site.hosts.forget()
    assert site.run("--burn-in", "2m") == 0
    assert site.hosts.probes("gpu01") == ["read", "burn-in", "full"]


def test_evidence_that_was_changed_is_gathered_again(site: Site) -> None:
    site.hosts.change("gpu01", silent, BURN_IN)
    assert site.run() == 3
    next((site.state / "evidence/gpu01").glob("deep-*-snapshot.json")).write_text("{}")
    site.hosts.forget()
    assert site.run() == 3
    assert site.hosts.probes("gpu01") == ["read", "deep", "burn-in"]


def silent(snapshot: Any) -> None:
    """The burn-in was not run."""
    data(snapshot, "compute")["deep"] = False


def test_what_was_not_judged_neither_certifies_nor_quarantines(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.hosts.change("gpu01", silent, BURN_IN)
    assert site.run() == 3
    assert site.outcomes("gpu01")["burn-in"] == "not-judged"
    assert not list(site.state.glob("*/gpu01.json"))
    assert site.states(capsys)["gpu01"]["state"] == "commissioning"


def test_a_strange_answer_costs_its_own_host_alone(tmp_path: Path) -> None:
    site = Site(tmp_path, ["gpu01", "gpu02"])

    def strange(snapshot: Any) -> None:
        data(snapshot, "compute")["runs"][0]["disk"].update(write_mib_s=None)

    site.hosts.change("gpu01", strange, BURN_IN)
    site.hosts.write_inventory()
    assert site.run("--limit", "gpu01") == 3
    assert site.stopped("gpu01") == {"burn-in": "not-judged"}
    why = site.record("gpu01")["stages"]["burn-in"]["reasons"][0]
    assert "TypeError" in why["cause"]
    assert site.run("--limit", "gpu02") == 0


def test_a_host_that_others_use_is_not_judged(site: Site) -> None:
    def held(snapshot: Any) -> None:
        data(snapshot, "driver")["holders"] = [
            {"pid": 4711, "user": "ann", "command": "python3", "nodes": ["/dev/nvidia0"]}
        ]

    site.hosts.change("gpu01", held)
    assert site.run() == 3
    assert site.hosts.probes("gpu01") == ["read"]
    assert (
        "pid 4711 (ann, python3)"
        in site.record("gpu01")["stages"]["preflight"]["reasons"][0]["cause"]
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--burn-in", "soon"], "'soon' is no time for a burn-in"),
        (["--siblings", "gpu09"], "gpu09: no host of this inventory"),
        (["--key", "/nowhere"], "ssh-keygen does not sign with this key"),
        (["-e", '{"gpu_expect": {}}'], "no number of GPUs is declared"),
        (["-e", '{"gpu_expect": {"count": 0}}'], "gpu_expect declares no GPU (count: 0)"),
        (["-e", '{"gpu_mig": {"0": ["3g.40gb"]}}'], "gpu01: MIG splits the GPUs"),
        (["--limit", "gpu09"], "No host matches"),
    ],
)
def test_a_wrong_request_changes_nothing(
    site: Site, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert site.run(*words) == 4
    assert message in capsys.readouterr().err
    assert site.hosts.probes("gpu01") == []
    assert not site.state.exists()


def test_a_host_is_commissioned_by_one_run_at_a_time(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    for state, history in (
        (site.state, site.place / "other/history.sqlite"),
        # Another directory of records, and the same history.
        (site.place / "other", site.database),
    ):
        with Store(state).alone(["gpu01"], history):
            assert site.run() == 4
        assert "gpu01: This host is being commissioned." in capsys.readouterr().err
        assert site.hosts.probes("gpu01") == []


def test_a_damaged_record_is_named_before_anything_runs(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.state.mkdir()
    (site.state / "gpu01.json").write_text('{"schema": 1, "host": "gpu01", "stages": 7}')
    assert site.run() == 4
    assert "The record of gpu01 cannot be read" in capsys.readouterr().err
    assert site.hosts.probes("gpu01") == []


def test_json_is_one_document_and_nothing_else(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.hosts.change("gpu01", slow_card(0))
    assert site.run("--json") == 1
    found = json.loads(capsys.readouterr().out)["hosts"]["gpu01"]
    assert (found["outcome"], found["stage"]) == ("refused", "verify")
    assert found["faulty"][0]["part"]["name"] == "GPU 0"
    assert found["document"] == str(site.state / "refusals/gpu01.json")


def test_the_pages_escape_what_a_host_says(site: Site) -> None:
    def hostile(snapshot: Any) -> None:
        data(snapshot, "smi")["devices"][0]["elements"]["serial"] = "<script>alert(1)</script>"
        slow_card(0)(snapshot)

    site.hosts.change("gpu01", hostile)
    assert site.run() == 1
    page = (site.state / "refusals/gpu01.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_the_page_for_the_vendor_has_no_commands_and_files_of_the_operator(site: Site) -> None:
    site.hosts.change("gpu01", slow_card(0))
    assert site.run() == 1
    document = site.issued("refusals", "gpu01")
    page = unescape((site.state / "refusals/gpu01.html").read_text())
    [reason] = document["reasons"]
    assert reason["cause"] in page
    assert reason["remedy"] and reason["remedy"] not in page
    assert "evidence/gpu01" not in page and "./gpufleet" not in page
    # The operator has them in the document.
    assert any(stage["evidence"] for stage in document["stages"])


def test_the_evidence_is_checked_by_the_line_of_the_guide(site: Site) -> None:
    assert site.run() == 0
    guide = re.sub("(?m)^    ", "", (ROOT / "docs/how-to/commission.md").read_text())
    found = re.search(r"(?s)python3 -c '(import json.*?)' .*\| sha256sum -c", guide)
    assert found
    command = [sys.executable, "-c", found[1], "certificates/gpu01.json"]

    def checked() -> int:
        listed = subprocess.run(command, cwd=site.state, check=True, capture_output=True).stdout
        check = ["sha256sum", "-c", "--quiet"]
        return subprocess.run(check, cwd=site.state, input=listed, check=False).returncode

    assert checked() == 0
    next((site.state / "evidence/gpu01").glob("deep-*-snapshot.json")).write_text("{}")
    assert checked() == 1


# -- killed ----------------------------------------------------------------------------------------


@pytest.mark.costly
@pytest.mark.parametrize(
    ("probe", "stage", "again"),
    [
        pytest.param(1, "", PROBES, marks=pytest.mark.slow),
        pytest.param(2, "provision", PROBES, marks=pytest.mark.slow),
        pytest.param(3, "verify", ["read", *PROBES[2:]], marks=pytest.mark.slow),
        pytest.param(4, "deep", ["read", *PROBES[3:]], marks=pytest.mark.slow),
        (5, "burn-in", ["read", *PROBES[4:]]),
        pytest.param(6, "cool-down", ["read", *PROBES[5:]], marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_repeats_the_stage_and_nothing_before_it(
    site: Site, probe: int, stage: str, again: list[str]
) -> None:
    (site.hosts.place / f"gpu01/hang-{probe}").touch()
    with subprocess.Popen(
        [sys.executable, "-m", "gpufleet", *site.words()],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as running:
        wait_until(lambda: len(site.hosts.probes("gpu01")) == probe)
        running.send_signal(signal.SIGKILL)
    if stage:
        assert site.outcomes("gpu01")[stage] == "running"
    assert not list(site.state.glob("certificates/*"))
    (site.hosts.place / f"gpu01/hang-{probe}").unlink()
    site.hosts.forget()
    assert site.run() == 0
    assert site.hosts.probes("gpu01") == again
    assert site.verifies(site.state / "certificates/gpu01.json")


@pytest.mark.parametrize("step", ["issue", "return_to_service"])
def test_a_run_that_ends_before_its_conclusion_concludes_next_time(
    site: Site, step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(*_: object) -> None:
        raise SystemExit(137)

    with monkeypatch.context() as patched:
        patched.setattr(conclusion, step, killed)
        assert site.run() == 137
    site.hosts.forget()
    assert site.run() == 0
    assert site.hosts.probes("gpu01") == ["read"]
    # The certificate shows the checks that computed, not those of the first reading.
    checks = {check["check"] for check in site.issued("certificates", "gpu01")["checks"]}
    assert {"gpu.throughput", "gpu.formats"} <= checks
    assert site.verifies(site.state / "certificates/gpu01.json")
    assert site.states(capsys)["gpu01"]["state"] == "production"


@pytest.fixture
def mute(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The key signs when it is tried, and no page later."""

    def refuses(path: Path, *_: object) -> None:
        if path.suffix == ".json":
            raise ConfigurationError("The agent has no such key.")

    monkeypatch.setattr(conclusion.signing, "sign", refuses)
    monkeypatch.setattr("gpufleet.campaign.commission.signing.check_key", lambda key: None)
    return monkeypatch


def test_what_cannot_be_signed_is_not_certified(
    site: Site, mute: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files without a signature stayed, which said that the host is certified."""
    assert site.run("--json") == 3
    printed = capsys.readouterr()
    row = json.loads(printed.out)["hosts"]["gpu01"]
    assert (row["outcome"], row["document"]) == ("not-judged", None)
    assert "no such key" in row["reasons"][0]["cause"]
    assert re.search("nothing was issued: .*no such key", printed.err)
    assert not list(site.state.glob("certificates/*"))
    assert site.states(capsys)["gpu01"]["state"] == "commissioning"
    mute.undo()
    assert site.run() == 0
    assert site.verifies(site.state / "certificates/gpu01.json")


def test_a_host_is_refused_where_its_refusal_cannot_be_signed(
    site: Site, mute: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site.hosts.change("gpu01", slow_card(0))
    assert site.run() == 1
    assert re.search("nothing was issued: .*no such key", capsys.readouterr().out)
    assert not list(site.state.glob("refusals/*"))
    assert site.states(capsys)["gpu01"]["state"] == "quarantined"
    mute.undo()
    assert site.run() == 1
    assert site.verifies(site.state / "refusals/gpu01.json", "gpufleet-refusal")


def test_a_run_that_is_killed_while_it_issues_leaves_no_certificate_of_a_bad_host(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The document appears last; what came before it is set aside like a whole certificate."""
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if self.name == "gpu01.json" and self.parent.name.endswith(".new"):
            raise SystemExit(137)
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        assert site.run() == 137
    assert site.verifies(site.state / "certificates/gpu01.html")
    site.hosts.change("gpu01", slow_card(0))
    site.set_state("gpu01", "new", "begin from the beginning")
    assert site.run() == 1
    assert not (site.state / "certificates/gpu01.html").exists()
    assert (site.state / "certificates/gpu01-unfinished.html").exists()
