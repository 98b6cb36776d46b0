"""Hosts: disks, noexec, foreign trees, and what could not be probed."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.components.resolver import resolve
from tests.support.host_documents import (
    ROOMY,
    codes,
    converged,
    declaration,
    default_link,
    refusal,
    section,
    snapshot,
    toolkit_tree,
)


def with_disks(**parts: Any) -> dict[str, Any]:
    return snapshot(disks={**ROOMY, **parts})


def test_less_disk_than_needed() -> None:
    free = {**ROOMY["free_mib"], "/usr/local": 3000}
    systems = {**ROOMY["filesystem"], "/usr/local": "2"}
    problem = refusal(declaration("2.13.1"), with_disks(free_mib=free, filesystem=systems))
    assert problem["code"] == "disk-full"
    assert problem["message"].startswith("/usr/local: 9300 MiB needed, 3000 MiB free")
    assert "gpu_prefix" in problem["remedy"]


def test_needs_on_one_file_system_are_added_up() -> None:
    # Toolkit, cuDNN and stack, and the largest installer's temporary files: none alone is 20 GiB.
    plan = resolve(declaration("2.13.1"))
    parts = [plan[key][0]["installed_mib"] for key in ("toolkits", "cudnn", "stacks")]
    assert max(parts) < 10_000
    together = dict.fromkeys(ROOMY["free_mib"], 20_000)
    assert refusal(declaration("2.13.1"), with_disks(free_mib=together))["code"] == "disk-full"
    apart = {place: str(at) for at, place in enumerate(ROOMY["free_mib"])}
    host = with_disks(free_mib=together, filesystem=apart)
    assert resolve(declaration("2.13.1"), host)["problems"] == []


def test_a_slim_artifact_needs_less() -> None:
    own = {"sha256": "0" * 64, "size_bytes": 10 * 2**20}
    files = [
        row["artifact"]["file"]
        for key in ("toolkits", "cudnn")
        for row in resolve(declaration("2.13.1"))[key]
    ]
    host = with_disks(free_mib=dict.fromkeys(ROOMY["free_mib"], 3000))
    assert refusal(declaration("2.13.1"), host)["code"] == "disk-full"
    slim = declaration("2.13.1", gpu_artifacts=dict.fromkeys(files, own))
    assert resolve(slim, host)["problems"] == []


def test_what_is_installed_already_needs_no_room() -> None:
    host = converged(resolve(declaration("2.13.1"), snapshot()))
    section(host, "disks")["free_mib"] = dict.fromkeys(ROOMY["free_mib"], 10)
    section(host, "disks")["noexec"] = ["/tmp"]
    assert resolve(declaration("2.13.1"), host)["problems"] == []
    more = resolve(declaration("2.13.1", gpu_toolkits=["12.4.1"]), host)
    assert codes(more) == ["disk-full", "noexec-tmp"]


def test_where_tmp_is_noexec_installers_run_from_var_tmp_and_the_plan_says_so() -> None:
    rooms = {**ROOMY["free_mib"], "/var/tmp": 90_000}
    plan = resolve(declaration("2.13.1"), with_disks(noexec=["/tmp"], free_mib=rooms))
    assert (plan["problems"], plan["tmpdir"]) == ([], "/var/tmp")
    assert "/tmp is mounted noexec: NVIDIA's installer runs from /var/tmp" in plan["notes"]
    # What a person chose stays, and so does what nothing else can replace.
    for declared, disks in (
        ({"gpu_tmpdir": "/tmp/deep"}, {"noexec": ["/tmp"], "free_mib": rooms}),
        ({}, {"noexec": ["/tmp", "/var/tmp"], "free_mib": rooms}),
        ({}, {"noexec": ["/tmp"]}),
    ):
        problem = refusal(declaration("2.13.1", **declared), with_disks(**disks))
        assert problem["code"] == "noexec-tmp"
    plan = resolve(declaration("2.13.1"), with_disks(free_mib=rooms))
    assert plan["tmpdir"] == "/tmp"


def test_a_tree_that_is_gone_needs_its_room_again_whatever_its_receipt_says() -> None:
    host = converged(resolve(declaration("2.13.1"), snapshot()))
    section(host, "disks")["free_mib"] = dict.fromkeys(ROOMY["free_mib"], 100)
    assert resolve(declaration("2.13.1"), host)["problems"] == []
    trees = section(host, "toolkits")["trees"]
    section(host, "toolkits")["trees"] = []
    assert codes(resolve(declaration("2.13.1"), host)) == ["disk-full"]
    section(host, "toolkits").update(trees=trees)
    section(host, "stacks")["stacks"] = []
    assert codes(resolve(declaration("2.13.1"), host)) == ["disk-full"]


def test_noexec_tmp_only_matters_to_an_installer() -> None:
    host = with_disks(noexec=["/tmp"])
    problem = refusal(declaration("2.13.1"), host)
    assert (problem["code"], problem["where"]) == ("noexec-tmp", "gpu_tmpdir")
    assert resolve(declaration("2.13.1", gpu_tmpdir="/var/tmp"), host)["problems"] == []
    below = refusal(declaration("2.13.1", gpu_tmpdir="/tmp/deep/er"), host)
    assert below["code"] == "noexec-tmp"
    assert resolve(declaration({"tensorflow": "2.21.0", "cuda": "pip"}), host)["problems"] == []


def test_a_tree_that_we_did_not_install() -> None:
    tree = toolkit_tree("/usr/local/cuda-11.8", short="11.8")
    problem = refusal(declaration("2.13.1"), snapshot(toolkits={"trees": [tree]}))
    assert (problem["code"], problem["where"]) == ("foreign-tree", "gpu_stacks[0]")
    assert "mv /usr/local/cuda-11.8" in problem["remedy"]


def test_a_tree_in_the_journal_is_ours() -> None:
    tree = toolkit_tree("/usr/local/cuda-11.8", short="11.8")
    entry = {"kind": "toolkit", "id": "11.8", "state": "installing", "started": "yesterday"}
    host = snapshot(toolkits={"trees": [tree]}, receipts={"journal": [entry]})
    assert resolve(declaration("2.13.1"), host)["problems"] == []


def test_an_environment_or_a_directory_in_the_way() -> None:
    venv = {"name": "tensorflow-2.13.1", "venv": "/opt/gpufleet/stacks/tensorflow-2.13.1"}
    problem = refusal(declaration("2.13.1"), snapshot(stacks={"stacks": [venv]}))
    assert (problem["code"], problem["where"]) == ("foreign-tree", "gpu_stacks[0]")
    host = snapshot(toolkits={"default": default_link("directory")})
    problem = refusal(declaration("2.13.1"), host)
    assert (problem["code"], problem["where"]) == ("foreign-tree", "gpu_cuda_default")


def test_cudnn_copied_by_hand_into_a_toolkit_of_ours() -> None:
    host = converged(resolve(declaration("2.13.1"), snapshot()))
    receipts = section(host, "receipts")
    receipts["receipts"] = [row for row in receipts["receipts"] if row["kind"] != "cudnn"]
    problem = refusal(declaration("2.13.1"), host)
    assert problem["code"] == "foreign-tree"
    assert "/usr/local/cuda-11.8/lib64/libcudnn.so.8" in problem["message"]


def test_a_host_that_was_not_reached_is_not_judged() -> None:
    plan = resolve(declaration("2.13.1"), None, "gpu07")
    assert plan["host"] == "gpu07"
    assert plan["problems"] == []
    assert any("was not probed" in note for note in plan["notes"])
    assert any("newest with a wheel" in note for note in plan["notes"])


@pytest.mark.parametrize("name", ["os", "disks", "driver", "receipts", "toolkits", "stacks"])
def test_a_section_that_hung_is_printed_and_not_judged(name: str) -> None:
    plan = resolve(declaration("2.13.1"), snapshot(**{name: "hung"}))
    assert plan["problems"] == []
    assert any(f"The host's {name} could not be probed" in note for note in plan["notes"])
    whole = resolve(declaration("2.13.1"), snapshot())
    assert not any("could not be probed" in note for note in whole["notes"])


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"sections": None},
        {"sections": {"os": 3}},
        {"sections": {"os": {"state": "ok", "data": []}}},
    ],
)
def test_a_broken_snapshot_is_one_that_says_nothing(document: dict[str, Any]) -> None:
    plan = resolve(declaration("2.13.1"), document)
    assert plan["problems"] == []
    assert plan["stacks"][0]["python"] == "3.11"


def test_records_that_a_mount_covers() -> None:
    """Without them each tree would be foreign, or be installed once more."""
    host = converged(resolve(declaration("2.13.1"), snapshot()))
    section(host, "receipts").update(
        receipts=[],
        obstacles=[{"path": "/var/lib/gpufleet", "what": "mounted", "source": "tmpfs"}],
    )
    found = {row["code"]: row for row in resolve(declaration("2.13.1"), host)["problems"]}
    problem = found["records-hidden"]
    assert problem["message"].startswith("tmpfs is mounted at /var/lib/gpufleet")
    assert problem["remedy"] == "unmount it on the host: umount /var/lib/gpufleet"
