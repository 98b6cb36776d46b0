"""`./gpufleet history --fabric`: ports, NVLinks and fabric tests, as text and as a document."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpufleet.cli.main import main
from gpufleet.watch.fabric_history import record_fabric_test
from gpufleet.watch.history import History
from tests.support.nightly_sessions import at, fabric_test, files, group_test, host, session

GUIDS = [f"a088c20300ab000{number}" for number in range(4)]


def ports(*states: str) -> str:
    """The measure of ports with these states and rates."""
    return "; ".join(
        f"{GUIDS[number]} mlx5_{number} {'unused' if number == 3 else 'compute'} InfiniBand {state}"
        for number, state in enumerate(states)
    )


def measures(night: int, name: str) -> dict[str, float | str]:
    """Four nights of a broken host and of a healthy one."""
    broken = name == "gpu02"
    second = ("up 400", "down 10", "up 200", "up 400")[night] if broken else "up 400"
    found: dict[str, float | str] = {
        "ports": ports("up 400", second, "up 400", "down 10"),
        "nvlinks": f"0000:01:00.0 {12 if broken and night > 1 else 18}; 0000:02:00.0 18",
    }
    found["nvlink.GPU-1.load.reading"] = 1
    found["nvlink.GPU-1.replay.reading"] = 3 * night if broken else 0
    for guid in GUIDS[:3]:
        found[f"port.{guid}.load.reading"] = 1
        found[f"port.{guid}.link_downed.reading"] = 0
        grown = 100 + 4000 * night if broken and guid == GUIDS[2] else 7
        found[f"port.{guid}.symbol_error.reading"] = grown
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "history.sqlite"
    with History(found) as history:
        for night in range(4):
            history.record(
                session(night, host("gpu01", a="PASS"), host("gpu02", a="PASS")),
                values={name: measures(night, name) for name in ("gpu01", "gpu02")},
            )
        record_fabric_test(
            history,
            fabric_test(
                1,
                "pairs",
                group_test(1, "passed", 392.5, "gpu01", "gpu02"),
                group_test(2, "slow", 216.0, "gpu02", "gpu03"),
                group_test(3, "hung", None, "gpu01", "gpu03"),
                verdict="FAIL",
                culprits=[
                    {"kind": "pair", "hosts": [], "rails": [0], "statement": "gpu02 is slow"}
                ],
            ),
        )
        record_fabric_test(history, fabric_test(2, "hosts", group_test(1, "passed", 480.0, "x")))
    return found


def run(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> str:
    assert main(["history", "--fabric", "--database", str(path), *words]) == 0
    return capsys.readouterr().out


def rows(text: str) -> list[str]:
    return [re.sub(r"\s+", " ", row).strip() for row in text.splitlines()]


def test_only_what_changed_has_a_row(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    before = files(path.parent)
    found = rows(run(capsys, path))
    assert found[0] == f"4 nights, {at(0)} to {at(3)}"
    assert "gpu02 mlx5_1 compute udsu up, 400 Gb/s" in found
    assert "gpu02 mlx5_2 compute ueee errors, 400 Gb/s symbol_error +12000 in 3 nights" in found
    assert "✓ 4 ports up in every night" in found and "– 2 ports up in no night" in found
    assert "gpu02 0000:01:00.0 uudd 12 of 18" in found
    assert "gpu02 GPU-1 replay +9 in 3 nights" in found
    assert "✓ 3 GPUs with the same active NVLinks in every night" in found
    assert f"{at(1)} pairs ✗ FAIL all_reduce 536870912 216 to 392.5 gpu02 gpu03" in found
    assert "gpu02 is slow" in found
    assert f"{at(2)} hosts ✓ PASS all_reduce 536870912 480" in found
    assert not any("gpu01 mlx5" in row for row in found)
    assert files(path.parent) == before


def test_one_host_has_its_own_ports_and_tests(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    found = json.loads(run(capsys, path, "--json", "--host", "gpu01", "--last", "2"))
    assert found["nights"] == [at(2), at(3)] and set(found["hosts"]) == {"gpu01"}
    gpu01 = found["hosts"]["gpu01"]
    assert gpu01["nvlinks"] == {"0000:01:00.0": [18, 18], "0000:02:00.0": [18, 18]}
    assert {port["name"]: port["nights"] for port in gpu01["ports"].values()} == {
        "mlx5_0": "uu",
        "mlx5_1": "uu",
        "mlx5_2": "uu",
        "mlx5_3": "dd",
    }
    [test] = found["fabric_tests"]
    assert (test["started"], test["verdict"], test["algorithm"]) == (at(1), "FAIL", "Ring")
    assert test["bandwidths"] == [
        {
            "collective": "all_reduce",
            "bytes": 512 << 20,
            "groups": 2,
            "unknown": 1,
            "least_gb_per_s": 392.5,
            "slowest": ["gpu01", "gpu02"],
            "most_gb_per_s": 392.5,
        }
    ]


def test_the_document_has_rates_and_growths_by_night(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    found: Any = json.loads(run(capsys, path, "--json"))["hosts"]["gpu02"]["ports"]
    assert found[GUIDS[1]]["gb_s"] == [400, None, 200, 400]
    assert found[GUIDS[2]]["errors"] == {"symbol_error": [None, 4000, 4000, 4000]}
    assert found[GUIDS[0]]["errors"] == {} and "GPU-1" not in found
    assert (found[GUIDS[3]]["role"], found[GUIDS[3]]["layer"]) == ("unused", "InfiniBand")


def test_a_history_without_a_fabric_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    empty = tmp_path / "history.sqlite"
    with History(empty) as history:
        history.record(session(0, host("gpu01", a="PASS")))
    assert "No port, NVLink or fabric test was recorded yet" in run(capsys, empty)


def test_other_selections_are_refused_beside_it(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    words = ["history", "--fabric", "--check", "a", "--database", str(path)]
    assert main(words) == 4
    assert "--fabric shows no checks" in capsys.readouterr().err
