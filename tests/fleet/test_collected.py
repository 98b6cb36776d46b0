"""A collected result counts only if it is complete, recent and of the right host."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from gpufleet.documents import clock
from gpufleet.errors import ConfigurationError
from gpufleet.fleet import collected, pull
from gpufleet.fleet.inventory import Connection, InventoryHost
from gpufleet.judge import judge
from gpufleet.paths import host_file_name
from tests.support.healthy_host import Document, data
from tests.support.machine import deadline

DECLARED = {"gpu_stacks": [{"tensorflow": "2.13.1"}], "gpu_expect": {"count": 0}}
HOST = InventoryHost("gpu01", DECLARED, Connection("gpu01"))
DAY = timedelta(hours=26)
ROLE = Path(__file__).resolve().parents[2] / "roles/pull_verify"


def host_result(
    plan: Document, snapshot: Document | None, age: timedelta = timedelta(0)
) -> Document:
    """The result of a host."""
    result = judge.judge(plan, snapshot) if snapshot else judge.unreachable("hung", "look", "")
    probed = f"{datetime.now(UTC) - age:{clock.FORM}}"
    snapshot = snapshot and {**snapshot, "started": probed, "finished": probed}
    return {
        "schema": 1,
        "host": "gpu01",
        "looked": probed,
        "plan": plan,
        "snapshot": snapshot,
        "result": result,
    }


def judged(directory: Path, document: Document | str | None) -> Document:
    """The central verdicts of one host's file."""
    if document is not None:
        (directory / "gpu01.json").write_text(
            document if isinstance(document, str) else json.dumps(document)
        )
    result: Document = collected.judge_results(directory, [HOST], DAY).hosts[0].result
    return result


def test_a_result_is_judged_by_the_current_declaration(
    tmp_path: Path, plan: Document, snapshot: Document
) -> None:
    data(snapshot, "cudnn")["trees"][0]["headers"][0]["version"] = "8.9.7"
    document = host_result(plan, snapshot)
    # Neither the host's plan nor its verdict is used.
    document["plan"], document["result"] = {}, {"verdict": "PASS", "checks": []}
    result = judged(tmp_path, document)
    assert "cudnn.present" in {
        check["id"] for check in result["checks"] if check["verdict"] == "FAIL"
    }


@pytest.mark.parametrize("name", ["fd00::1", "a/b"])
def test_the_file_of_a_host_with_an_odd_name_is_found(
    tmp_path: Path, plan: Document, snapshot: Document, name: str
) -> None:
    tasks = DataLoader().load_from_file(str(ROLE / "tasks/program.yml"), trusted_as_template=True)
    written = next(
        task["vars"]["__pull_verify_content"]["result"]
        for task in tasks
        if "__pull_verify_content" in task.get("vars", {})
    )
    path = Path(
        Templar(
            DataLoader(),
            {
                "__pull_verify_home": str(tmp_path),
                "inventory_hostname": name,
                "__gpu_plan_result": {"file_name": host_file_name(name)},
            },
        ).template(written)
    )
    assert path.parent == tmp_path
    path.write_text(json.dumps({**host_result(plan, {**snapshot, "host": name}), "host": name}))
    host = InventoryHost(name, DECLARED, Connection(name))
    # The other name that was once written the same way has no result.
    other = InventoryHost("a_b", DECLARED, Connection("a_b"))
    session = collected.judge_results(tmp_path, [host, other], DAY)
    assert session.hosts[0].snapshot is not None
    assert "delivered no result" in session.hosts[1].result["checks"][0]["cause"]


def of_another_host(document: Document) -> None:
    document["host"] = "gpu02"


def without_checks(document: Document) -> None:
    document.update(snapshot=None, result={"verdict": "PASS", "checks": []})


def with_a_healthy_verdict(document: Document) -> None:
    document.update(
        snapshot=None,
        result={
            "verdict": "PASS",
            "checks": [
                {
                    "id": "host.reachable",
                    "verdict": "PASS",
                    "cause": "all is well",
                    "remedy": "none",
                    "evidence": "",
                }
            ],
        },
    )


def empty_snapshot(document: Document) -> None:
    document["snapshot"] = {}


def text_for_a_snapshot(document: Document) -> None:
    document["snapshot"] = "x"


def undated(document: Document) -> None:
    document["looked"] = "yesterday"


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (of_another_host, "is the result of gpu02, not of gpu01"),
        (without_checks, "cannot be read"),
        (with_a_healthy_verdict, "all is well"),
        (empty_snapshot, "cannot be read"),
        (text_for_a_snapshot, "cannot be read"),
        (undated, "cannot be read"),
    ],
)
def test_an_implausible_result_is_rejected(
    tmp_path: Path,
    plan: Document,
    snapshot: Document,
    spoil: Callable[[Document], None],
    cause: str,
) -> None:
    document = host_result(plan, snapshot)
    spoil(document)
    result = judged(tmp_path, document)
    assert result["verdict"] == "UNREACHABLE"
    assert cause in result["checks"][0]["cause"]
    assert result["checks"][0]["remedy"]


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"host": "gpu02"}, "its snapshot is of 'gpu02'"),
        ({"host": None}, "its snapshot is of "),
        ({"schema": 99}, "its snapshot has schema 99, this release reads 1"),
        ({"finished": "2024-01-01T00:00:00Z"}, "its snapshot was taken 2024-01-01T00:00:00Z, the"),
        ({"finished": "2999-01-01T00:00:00Z"}, "its snapshot was taken 2999-01-01T00:00:00Z, the"),
        ({"finished": "yesterday"}, "its snapshot has no time ('yesterday')"),
        ({"finished": None}, "its snapshot has no time"),
    ],
)
def test_a_snapshot_of_another_probe_in_a_right_result_is_not_judged(
    tmp_path: Path, plan: Document, snapshot: Document, change: Document, cause: str
) -> None:
    document = host_result(plan, snapshot)
    sent = {**document["snapshot"], **change}
    document["snapshot"] = {key: value for key, value in sent.items() if value is not None}
    result = judged(tmp_path, document)
    assert result["verdict"] == "INCONCLUSIVE"
    assert cause in result["checks"][0]["cause"]
    assert result["checks"][0]["remedy"] == collected.MIXED


def test_the_remedy_of_a_result_without_a_snapshot_is_no_text_of_the_host(
    tmp_path: Path, plan: Document, snapshot: Document
) -> None:
    document = host_result(plan, snapshot)
    document.update(
        snapshot=None,
        result={
            "verdict": "UNREACHABLE",
            "checks": [
                {
                    "id": "host.reachable",
                    "verdict": "UNREACHABLE",
                    "cause": "sudo needs a password",
                    "remedy": "./gpufleet remove --stack $(touch /PWNED)",
                    "evidence": "",
                }
            ],
        },
    )
    check = judged(tmp_path, document)["checks"][0]
    assert check["cause"] == "sudo needs a password"
    assert check["remedy"] == collected.REFUSED


@pytest.mark.parametrize(
    ("document", "cause"),
    [
        (None, "gpu01 has delivered no result"),
        ("{", "cannot be read"),
        ("[1]", "cannot be read"),
    ],
)
def test_a_missing_or_damaged_file_is_not_healthy(
    tmp_path: Path, document: str | None, cause: str
) -> None:
    result = judged(tmp_path, document)
    assert (result["verdict"], cause in result["checks"][0]["cause"]) == ("UNREACHABLE", True)


def test_an_old_result_is_reported_with_its_age(
    tmp_path: Path, plan: Document, snapshot: Document
) -> None:
    document = host_result(plan, snapshot, timedelta(hours=31))
    cause = judged(tmp_path, document)["checks"][0]["cause"]
    assert cause == (
        f"gpu01 was last probed {document['looked']}, 31 h ago; the maximum age is 26 h"
    )


def test_a_probe_that_hung_on_the_host_is_reported(tmp_path: Path, plan: Document) -> None:
    assert judged(tmp_path, host_result(plan, None))["checks"][0]["cause"] == "hung"


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="directory does not exist"):
        collected.judge_results(tmp_path / "nowhere", [HOST], DAY)


def test_the_archive_is_reproducible_and_judges(tmp_path: Path, plan: Document) -> None:
    archives = [tmp_path / "a.pyz", tmp_path / "b.pyz"]
    for path in archives:
        pull.pack(path)
    assert archives[0].read_bytes() == archives[1].read_bytes()
    root = tmp_path / "root"
    (root / "tmp").mkdir(parents=True)
    settings = tmp_path / "settings.json"
    settings.write_text(
        json.dumps(
            {
                "plan": plan,
                "config": {
                    "host": "gpu01",
                    "mode": "facts",
                    "root": str(root),
                    "deadline_s": deadline(60),
                },
                "result": str(tmp_path / "gpu01.json"),
                "metrics": str(tmp_path / "gpufleet.prom"),
            }
        )
    )
    # In an empty directory, by no package of this environment.
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(archives[0]), str(settings)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "toolkit.present" in done.stdout
    metrics = (tmp_path / "gpufleet.prom").read_text()
    assert 'gpufleet_host_healthy{host="gpu01"} 0' in metrics
    assert 'gpufleet_check_failed{host="gpu01",check="toolkit.present"} 1' in metrics
    assert "\ngpufleet_pull_last_run_timestamp_seconds 1" in metrics
    # A host must not silence the alert for a nightly that does not run.
    assert "gpufleet_last_run" not in metrics
    assert json.loads((tmp_path / "gpu01.json").read_text())["snapshot"]["host"] == "gpu01"


def test_a_hanging_probe_is_abandoned(plan: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "GRACE_S", -60)
    document, _ = pull.probe_and_judge(plan, {"deadline_s": 60})
    assert document["snapshot"] is None
    assert document["result"]["verdict"] == "UNREACHABLE"
    assert "gave no answer within 0 s" in document["result"]["checks"][0]["cause"]


def test_a_host_that_verifies_itself_goes_on_reading_where_it_stopped(
    tmp_path: Path, plan: Document, snapshot: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {
        "component": "toolkit-11.8",
        "installed": "then",
        "files": 1,
        "bytes": 2,
        "first": 3,
        "begun": 4,
        "read": 5,
        "cursor": "a",
        "complete": True,
        "slow": [],
        "bad": [],
    }
    given: list[object] = []
    answer: Document | None = snapshot
    data(snapshot, "receipts")["scrub"] = {
        "days": 14,
        "seconds": 60,
        "at": 9,
        "error": None,
        "components": [state],
    }

    def run(plan: Document, config: Document) -> tuple[Document, float]:
        given.append(config["scrub"]["components"])
        return host_result(plan, answer), 1.0

    monkeypatch.setattr(pull, "probe_and_judge", run)
    settings, result = tmp_path / "pull.json", tmp_path / "gpu01.json"
    settings.write_text(
        json.dumps(
            {
                "plan": plan,
                "result": str(result),
                "metrics": str(tmp_path / "prom"),
                "config": {"scrub": {"days": 14, "seconds": 60}},
            }
        )
    )
    assert pull.main([str(settings)]) == 0
    assert (
        'gpufleet_contents_read_timestamp_seconds{host="gpu01"} 5'
        in (tmp_path / "prom").read_text()
    )
    # A run without an answer loses nothing, a damaged file what it held.
    answer = None
    assert pull.main([str(settings)]) == pull.main([str(settings)]) == 0
    result.write_text("[{")
    assert pull.main([str(settings)]) == 0
    assert given == [[], [state], [state], []]
