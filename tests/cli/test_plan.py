"""The output of `plan`: alike hosts once, and each by itself where that is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpufleet.cli.main import main
from gpufleet.cli.plan import grouped

NAMES = [f"gpu{number:02}" for number in range(1, 41)]
DECLARED = """
  vars:
    gpu_stacks: [{tensorflow: "2.13.1"}]
    gpu_gpus: ["NVIDIA H100"]
    gpu_expect: {count: 8}
    gpu_accept_nvidia_eula: true
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "hosts.yml"
    hosts = "".join(f"    {name}:\n" for name in NAMES)
    path.write_text(f"gpu_hosts:\n  hosts:\n{hosts}{DECLARED}")
    return path


def shown(capsys: pytest.CaptureFixture[str], path: Path, *words: str, status: int = 0) -> str:
    assert main(["plan", "-i", str(path), "--offline", *words]) == status
    return capsys.readouterr().out


def test_forty_alike_hosts_fit_a_screen(
    inventory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, inventory)
    assert "40 hosts (gpu[01-40])" in text
    assert len(text.splitlines()) < 24
    assert text.count("tensorflow-2.13.1: Python") == 1
    every = shown(capsys, inventory, "--by-host")
    assert every.count("tensorflow-2.13.1: Python") == 40


def test_a_host_that_differs_stands_by_itself(
    inventory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = inventory.read_text().replace("    gpu07:\n", "    gpu07: {gpu_toolkits: ['12.4']}\n")
    inventory.write_text(text)
    found = shown(capsys, inventory)
    assert "39 hosts (gpu[01-06,08-40])" in found and "\ngpu07\n" in found
    assert found.count("in /usr/local/cuda-12.4") == 1


def test_a_mistake_in_a_group_is_said_once(
    inventory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inventory.write_text(inventory.read_text().replace("gpu_stacks:", "gpu_stack:"))
    text = shown(capsys, inventory, status=4)
    assert text.count("did you mean gpu_stacks?") == 1
    assert main(["provision", "-i", str(inventory)]) == 4
    refused = capsys.readouterr().err
    assert refused.count("did you mean gpu_stacks?") == 1
    assert "40 hosts (gpu[01-40]): gpu_stack: " in refused and "remove it. It is" in refused


def plan(name: str, **more: object) -> dict[str, object]:
    parts = ("stacks", "toolkits", "cudnn", "linker", "driver", "notes", "problems", "changes")
    return {**dict.fromkeys(parts), "host": name, **more}


def test_what_differs_only_in_the_host_s_name_is_alike() -> None:
    plans = {name: plan(name, notes=[f"gpufleet provision --limit {name}"]) for name in NAMES[:3]}
    [(names, every)] = grouped(plans)
    assert names == NAMES[:3]
    assert every["notes"] == ["gpufleet provision --limit gpu01,gpu02,gpu03"]
    assert len(grouped(plans, by_host=True)) == 3


def test_why_a_driver_is_needed_is_a_whole_sentence(
    inventory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(shown(capsys, inventory).split())
    assert ",)" not in text
    assert "or newer, for NVIDIA H100 (compute capability 9.0) from CUDA 11.8 on;" in text


def test_what_another_declaration_would_change_is_shown_without_a_host(
    inventory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = inventory.with_name("new.yml")
    text = inventory.read_text().replace('"2.13.1"}]', '"2.13.1"}, {tensorflow: "2.18.1"}]')
    new.write_text(text.replace("count: 8", "count: 4").replace("    gpu40:\n", ""))
    assert main(["plan", "-i", str(new), "--against", str(inventory)]) == 0
    shown = capsys.readouterr().out
    both, gone = shown.split("\ngpu40\n")
    assert both.startswith("39 hosts (gpu[01-39])\n")
    assert "add stack tensorflow-2.18.1: Python 3.12, CUDA 12.5 from toolkit" in both
    assert "change expect count: 8 becomes 4" in both
    assert "2.13.1" not in both
    assert "no longer declare stack tensorflow-2.13.1" in gone
    assert main(["plan", "-i", str(inventory), "--against", str(inventory)]) == 0
    assert capsys.readouterr().out == "40 hosts (gpu[01-40])\n  no difference\n"


def test_a_declaration_that_is_refused_is_refused_against_another_one_too(
    inventory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = inventory.with_name("new.yml")
    new.write_text(inventory.read_text().replace("2.13.1", "9.9"))
    assert main(["plan", "-i", str(new), "--against", str(inventory), "--json"]) == 4
    found = json.loads(capsys.readouterr().out)["differences"]["gpu01"]
    assert any(row.startswith("add refused gpu_stacks[0].tensorflow: ") for row in found)
