"""`gpufleet manifest propose`: what most of the recorded hosts have."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.cli.main import main
from gpufleet.components.declare import declaration_of
from gpufleet.components.resolver import resolve
from tests.support.healthy_host import Document, data, verdicts

HOSTS = ("gpu01", "gpu02", "gpu03", "gpu04")


@pytest.fixture
def fleet(snapshot: Document) -> dict[str, Document]:
    """Four hosts that are alike."""
    return {name: {**deepcopy(snapshot), "host": name} for name in HOSTS}


def propose(
    fleet: dict[str, Document], directory: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a proposal for recorded hosts."""
    folder = directory / "snapshots"
    folder.mkdir()
    for name, document in fleet.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    status = main(["manifest", "propose", "--snapshot", str(directory), *more])
    output = capsys.readouterr()
    return status, output.out, output.err


def machine(document: Document) -> Any:
    return data(document, "machine")


def test_hosts_that_are_alike_have_a_line_for_each_name(
    fleet: dict[str, Document], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = propose(fleet, tmp_path, capsys)
    assert status == 0
    found = yaml.safe_load(out)["gpu_manifest"]
    assert found["bios"] == "Example BIOS 2.4 (03/05/2025)"
    assert found["mount /scratch"] == "nfs4 hard,relatime,rw,vers=4.2"
    assert found["clock.synchronised"] == "yes"
    assert "gpu.models" not in found
    declared = declaration_of({"gpu_manifest": found})
    assert declared.problems == ()
    assert declared.spec.manifest == {name: [value] for name, value in found.items()}


def test_a_host_that_differs_is_a_comment(
    fleet: dict[str, Document], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(fleet["gpu03"])["firmware"]["bios_version"] = "2.1"
    machine(fleet["gpu04"])["memory"] = None
    machine(fleet["gpu04"])["unread"]["memory"] = "this account cannot read it"
    machine(fleet["gpu02"])["mounts"].append({"path": "/usb", "type": "vfat", "options": ["rw"]})
    _, out, _ = propose(fleet, tmp_path, capsys)
    assert yaml.safe_load(out)["gpu_manifest"]["bios"] == "Example BIOS 2.4 (03/05/2025)"
    assert '  #   "Example BIOS 2.1 (03/05/2025)": gpu03\n' in out
    assert "  #   not read (this account cannot read it): gpu04\n" in out
    assert '  # "mount /usb": most hosts (3) have none\n  #   "vfat rw": gpu02\n' in out


def test_an_accepted_proposal_finds_the_host_that_differs(
    fleet: dict[str, Document], tmp_path: Path, capsys: pytest.CaptureFixture[str], plan: Document
) -> None:
    machine(fleet["gpu03"])["memory"].pop(0)
    machine(fleet["gpu03"])["cpus"]["microcode"] = {"0xa101144": 384}
    machine(fleet["gpu02"])["drives"].reverse()
    _, out, _ = propose(fleet, tmp_path, capsys)
    plan["manifest"] = resolve(yaml.safe_load(out), None, "gpu01")["manifest"]
    found = {
        name: verdicts({**plan, "host": name}, document)["host.manifest"]
        for name, document in fleet.items()
    }
    assert found == {**dict.fromkeys(HOSTS, "PASS"), "gpu03": "FAIL"}


def test_without_a_clear_majority_nothing_is_proposed(
    fleet: dict[str, Document], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("gpu03", "gpu04"):
        machine(fleet[name])["firmware"]["bios_version"] = "2.1"
    for name in HOSTS[:2]:
        machine(fleet[name])["command_line"] = None
    _, out, _ = propose(fleet, tmp_path, capsys)
    found = yaml.safe_load(out)["gpu_manifest"]
    assert "bios" not in found
    assert "kernel.command_line" not in found
    assert "  # bios: no value has a clear majority\n" in out
    assert '  #   "Example BIOS 2.1 (03/05/2025)": gpu03, gpu04\n' in out


def test_a_majority_of_clocks_that_nothing_sets_is_not_proposed(
    fleet: dict[str, Document], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in HOSTS[:3]:
        machine(fleet[name])["clock"].update(unsynchronised=True, max_error_us=16_000_000)
    _, out, _ = propose(fleet, tmp_path, capsys)
    assert "clock.synchronised" not in yaml.safe_load(out)["gpu_manifest"]
    assert '  # clock.synchronised: most hosts (3) have "no": not proposed\n' in out


def test_text_that_ansible_would_evaluate_is_not_proposed(
    fleet: dict[str, Document], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for document in fleet.values():
        machine(document)["command_line"] = "ro {{ lookup('pipe', 'id') }}"
        machine(document)["mounts"].append(
            {"path": "/{% x %}\n gpu_prune: true", "type": "xfs", "options": ["rw"]}
        )
    _, out, _ = propose(fleet, tmp_path, capsys)
    found = yaml.safe_load(out)
    assert list(found) == ["gpu_manifest"]
    assert not [text for pair in found["gpu_manifest"].items() for text in pair if "{" in text]
    assert "Ansible would evaluate it" in out


def test_a_proposal_is_written_into_a_new_file_only(
    fleet: dict[str, Document], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "group.yml"
    status, out, _ = propose(fleet, tmp_path, capsys, "--output", str(target))
    assert (status, out) == (0, "")
    before = target.read_text()
    assert yaml.safe_load(before)["gpu_manifest"]
    again = ["manifest", "propose", "--snapshot", str(tmp_path), "--output", str(target)]
    assert main(again) == 4
    assert "a proposal replaces nothing" in capsys.readouterr().err
    assert target.read_text() == before


def test_fewer_than_three_hosts_have_no_majority(
    fleet: dict[str, Document], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del fleet["gpu01"]
    del fleet["gpu02"]["sections"]["machine"]
    status, out, err = propose(fleet, tmp_path, capsys)
    assert (status, out) == (4, "")
    assert "A majority needs 3 hosts, and 2 were read." in err
    assert "not read: gpu02" in err


def test_a_host_that_was_not_read_ends_with_1(
    fleet: dict[str, Document], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet["gpu02"]["sections"]["machine"]["state"] = "hung"
    fleet["gpu02"]["sections"]["machine"]["data"] = None
    status, out, err = propose(fleet, tmp_path, capsys)
    assert status == 1
    assert "What most of 3 hosts had" in out
    assert "not read: gpu02" in err


def test_a_selected_host_without_a_snapshot_was_not_read(
    fleet: dict[str, Document], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report has no snapshot of a host that was not reached."""
    fleet["gpu01"]["finished"] = "2026-11-01T00:00:00Z"
    status, out, err = propose(fleet, tmp_path, capsys, "-i", ",".join([*HOSTS, "gpu09"]))
    assert status == 1
    assert "not read: gpu09" in err
    assert f"had at 2026-11-01T00:00:00Z to {fleet['gpu02']['finished']}." in out


def test_what_a_host_sends_as_its_time_is_no_line_of_the_proposal(
    fleet: dict[str, Document], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for document in fleet.values():
        document["finished"] = "2026\ngpu_prune: true\n#"
    _, out, _ = propose(fleet, tmp_path, capsys)
    assert "What most of 4 hosts had at an unknown time." in out
    assert "gpu_prune" not in out


def test_only_selected_hosts_are_read_of_a_report(
    fleet: dict[str, Document], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(fleet["gpu04"])["firmware"]["bios_version"] = "9"
    status, out, _ = propose(fleet, tmp_path, capsys, "-i", "gpu01,gpu02,gpu03,")
    assert status == 0
    assert "gpu04" not in out


def test_a_directory_without_snapshots_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["manifest", "propose", "--snapshot", str(tmp_path)]) == 4
    assert "has no snapshot" in capsys.readouterr().err
