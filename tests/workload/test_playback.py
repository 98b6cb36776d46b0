"""The lab's stand-in GPUs compute: the real workload, with stages that play a record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpufleet.on_host import payload
from gpufleet.on_host.constants import COMPUTE_MARK
from lab.gpus.planting import HERE, MODEL, PLACE, Cards, record
from lab.gpus.tree import TEXTS
from tests.support.machine import deadline
from tests.support.stand_in_gpus import extracted

PYTHON = HERE / "host/python"
PLAYBACK = HERE / "host/playback.py"


def played(place: Path, toolkit: Path, *words: str, fault: str | None = None) -> dict[str, Any]:
    """The document of the real workload with the played stages, on a host with two cards."""
    root = extracted(place / "host", Cards(2, fault))
    real = payload.workload().rpartition("\nmain(")[0]
    script = place / "workload.py"
    script.write_text(f"{real}\n{PLAYBACK.read_text()}".replace(PLACE, str(root / TEXTS)))
    done = subprocess.run(
        [sys.executable, "-I", "-S", script, "--toolkit", toolkit, "--expect-gpus", "2", *words],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=deadline(120),
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1].removeprefix(COMPUTE_MARK))
    return found


def test_a_load_lasts_as_long_as_it_says(tmp_path: Path, libraries: tuple[Path, Path]) -> None:
    words = ("--once", "--deep", "--sustained", "3", "--settle", "1", "--fabric")
    found = played(tmp_path, libraries[0], *words)
    assert (found["state"], found["error"]) == ("ok", None)
    assert [card["name"] for card in found["devices"]] == [MODEL, MODEL]
    for entry in found["sustained"]:
        assert 3 <= entry["seconds"] <= found["seconds"]
        assert (entry["wrong"], entry["error"]) == (0, None)
        assert entry["checked"] > 0
    loaded = [link for link in found["fabric"] if link["access"] is None]
    assert len(loaded) == 4
    assert all(link["gib"] > 0 and link["checked"] for link in loaded)


def test_a_slow_card_is_slow(tmp_path: Path, libraries: tuple[Path, Path]) -> None:
    speed = record()["compute"]["cublas"][0]["tflops"]
    found = played(tmp_path, libraries[0], "--once", fault="slow")
    rates = [entry["tflops"] for entry in found["cublas"]]
    assert rates == pytest.approx([speed, speed / 5])


def test_only_the_workload_of_a_probe_is_another_one(tmp_path: Path) -> None:
    """Other programs, such as Ansible's modules, run as they are."""
    (tmp_path / "playback.py").write_text("played()\n")
    stand_in = tmp_path / "python"
    stand_in.write_text(
        PYTHON.read_text()
        .replace('"/usr/bin/python3"', repr(sys.executable))
        .replace(PLACE, str(tmp_path))
    )
    config = {"mode": "full", "matmul": "import it\n\nmain(globals())\n"}
    probe = f"CONFIG = {json.dumps(config)!r}\nprint(CONFIG)\n"
    for program, printed in (
        (probe, {"mode": "full", "matmul": "import it\n\nplayed()\n"}),
        (probe.replace('"matmul"', '"other"'), {"mode": "full", "other": config["matmul"]}),
        ("print('{}')\n", {}),
    ):
        done = subprocess.run(
            [sys.executable, stand_in, "-I", "-S", "-"],
            input=program,
            capture_output=True,
            text=True,
            timeout=deadline(30),
            check=True,
        )
        assert json.loads(done.stdout) == printed
