"""`gpufleet init`: an inventory that plans as it is, in a directory that was empty."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpufleet.cli.main import main


def test_the_inventory_can_be_planned_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "new" / "fleet"
    assert main(["init", str(directory)]) == 0
    assert f"gpufleet plan -i {directory} --offline" in capsys.readouterr().out
    for name in ("hosts.yml", "README.md", ".gitignore", "group_vars/gpu_hosts/main.yml"):
        assert (directory / name).read_text()
    assert main(["plan", "--offline", "--json", "-i", str(directory)]) == 0
    plans = json.loads(capsys.readouterr().out)["hosts"]
    assert list(plans) == ["gpu01.example.org", "gpu02.example.org"]
    assert all(plan["stacks"] and not plan["problems"] for plan in plans.values())


def test_a_directory_that_is_not_empty_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts.yml").write_text("mine")
    assert main(["init", str(tmp_path)]) == 4
    assert "The directory is not empty." in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["hosts.yml"]
    assert main(["init", str(tmp_path / "hosts.yml")]) == 4
    assert (tmp_path / "hosts.yml").read_text() == "mine"
