"""The bundle for a report of a fault: no secret leaves, and the verdicts are the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import pytest

from gpufleet.components.stacks import environment_plan as environment
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.saved import judge_saved
from gpufleet.fleet.session import HostRun
from gpufleet.judge import judge
from gpufleet.report.bundle import bundles
from tests.support.healthy_host import Document, data, document
from tests.support.host_parts import with_gpus

# Each of them stands in one text; what follows it must not be in what comes out.
SECRETS = {
    "ssh: connect to host 10.20.30.40 port 22": ["10.20.30.40"],
    "at fe80::1234:56ff:fe78:9abc, ether 52:54:00:ab:cd:ef": ["fe80::1234", "52:54:00:ab:cd:ef"],
    "PASSWORD=hunter2 and HF_TOKEN: 'tr0ub4dor and more'": ["hunter2", "tr0ub4dor", "and more"],
    '{"aws_secret_access_key": "wJalrXUtnFEMI"}': ["wJalrXUtnFEMI"],
    "https://alice:s3cr3t@mirror.corp.example/cuda/?X-Amz-Signature=abcdef12": [
        "alice",
        "s3cr3t",
        "corp.example",
        "abcdef12",
    ],
    "written by alice.smith@corp.example": ["alice", "corp.example"],
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJr1 alice@laptop": ["AAAAC3Nza", "alice", "laptop"],
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1r\n-----END OPENSSH PRIVATE KEY-----": [
        "b3BlbnNzaC1r"
    ],
    "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU is unknown": ["47DEQpj8"],
    "Authorization: Bearer ya29.a0AfH6SMBx": ["ya29.a0AfH6SMBx"],
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJ": [
        "ghp_16C7",
        "eyJhbG",
        "SflKxwRJ",
    ],
    "GPU-5a1b2c3d-1111-2222-3333-444455556666 fell off": ["5a1b2c3d"],
    "Serial Number : 1320020000123": ["1320020000123"],
    "/home/alice/.bash_profile: line 3: oops": ["alice"],
    "origin repo.corp.example, registry.corp.example:5000/team/tf, nas.lan:/export/home": [
        "repo.corp",
        "registry",
        "nas.lan",
    ],
    "nfs: server filer7 not responding, still trying": ["filer7"],
    "ssh -l deploybot -i /srv/alice-key/id_rsa -o X=y carol@node9": [
        "deploybot",
        "alice-key",
        "carol",
        "node9",
    ],
    "gpu01.corp.example: the disk of gpu01 is full": ["gpu01", "corp.example"],
}
ALICE = {"pid": 1, "user": "alice", "command": "python3", "nodes": ["/dev/nvidia0"]}


@pytest.fixture
def pair(plan: Document, snapshot: Document) -> tuple[Document, Document]:
    """A host with GPUs, and users and names of a real site."""
    with_gpus(plan, snapshot)
    data(snapshot, "driver")["holders"] = [deepcopy(ALICE)]
    data(snapshot, "os")["hostname"] = "gpu01.corp.example"
    return plan, snapshot


def run(plan: Document, snapshot: Document) -> HostRun:
    return HostRun(plan["host"], snapshot, plan, judge.judge(plan, snapshot))


def texts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Container and key of every text."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        if isinstance(inner, str):
            yield value, key
        elif isinstance(inner, dict | list):
            yield from texts(inner)


def test_a_healthy_host_stays_healthy_under_another_name(pair: tuple[Document, Document]) -> None:
    (bundle,) = bundles([run(*pair)])
    assert (bundle["host"], bundle["snapshot"]["host"]) == ("host1", "host1")
    assert bundle["same_verdicts"]
    assert bundle["result"]["verdict"] == "PASS"
    assert bundle["snapshot"]["sections"]["driver"]["data"]["holders"][0]["user"] == "user1"
    text = json.dumps(bundle)
    assert "gpu01" not in text and "alice" not in text and "corp.example" not in text
    # What makes a fault plain is still there.
    for word in (
        "8.6.0.163",
        "libcufft.so.10.9.0.58",
        "0000:01:00.0",
        "/usr/local/cuda-11.8",
        "developer.download.nvidia.com",
        "2026-11-20T12:00:00Z",
        "535.261.03",
    ):
        assert word in text


@pytest.mark.parametrize("secret", SECRETS)
def test_no_secret_comes_out_of_any_text(pair: tuple[Document, Document], secret: str) -> None:
    plan, snapshot = pair
    for each in (plan, snapshot["sections"]):
        for container, key in texts(each):
            if container[key] not in {"ok", "gpu01"}:
                container[key] = f"{container[key]} {secret}"
    text = json.dumps(bundles([run(plan, snapshot)]))
    for word in SECRETS[secret]:
        assert word not in text


@pytest.mark.exhaustive
def test_in_every_field_by_itself_the_verdicts_stay(pair: tuple[Document, Document]) -> None:
    plan, snapshot = pair
    count = sum(1 for _ in texts(snapshot["sections"]))
    everything = " ".join(SECRETS)
    for number in range(0, count, 13):
        there = deepcopy(snapshot)
        container, key = list(texts(there["sections"]))[number]
        # A version is compared number by number, a GPU known by the words of its name: with an
        # address in it each is another, and `same_verdicts` says so.
        if not container[key][:1].isdigit() and not (key == "name" and "uuid" in container):
            container[key] = f"{container[key]} {everything}"
        (bundle,) = bundles([run(plan, there)])
        assert bundle["same_verdicts"], (key, container)


def test_a_text_that_is_compared_by_its_digest_is_compared_still(
    pair: tuple[Document, Document],
) -> None:
    plan, snapshot = pair
    row = plan["environment"][1]
    row["text"] += "setenv HF_TOKEN hf_abcdefghijklmnop\n# of alice\n"
    digest = environment.digests([row])[row["path"]]
    receipts = data(snapshot, "receipts")
    receipts["texts"][row["path"]] = digest
    next(r for r in receipts["receipts"] if r["kind"] == "environment")["texts"][row["path"]][
        "sha256"
    ] = digest
    (bundle,) = bundles([run(plan, snapshot)])
    assert bundle["result"]["verdict"] == "PASS"
    assert "hf_abc" not in json.dumps(bundle)
    assert digest not in json.dumps(bundle)


def test_what_stands_under_the_name_of_a_secret_is_removed(pair: tuple[Document, Document]) -> None:
    plan, snapshot = pair
    plan["stacks"][0]["environment"] = {"WANDB_API_KEY": "0123456789abcdef", "TF_LEVEL": "1"}
    (bundle,) = bundles([run(plan, snapshot)])
    assert bundle["plan"]["stacks"][0]["environment"] == {
        "WANDB_API_KEY": "removed",
        "TF_LEVEL": "1",
    }


def test_a_number_that_only_one_card_has_is_removed(pair: tuple[Document, Document]) -> None:
    plan, snapshot = pair
    elements = data(snapshot, "smi")["devices"][0]["elements"]
    elements |= {
        "pdi": "0x0123456789abcdef",
        "platformInfo/chassis_serial_number": "1821019231234",
        "platformInfo/gpu_fabric_guid": "0x0123456789abcdee",
        "board_id": "0x6",
    }
    (bundle,) = bundles([run(plan, snapshot)])
    assert bundle["snapshot"] is not None
    cleaned = data(cast(Document, bundle["snapshot"]), "smi")["devices"][0]["elements"]
    assert cleaned["board_id"] == "0x6"
    assert {
        cleaned[name]
        for name in ("pdi", "platformInfo/chassis_serial_number", "platformInfo/gpu_fabric_guid")
    } == {"removed"}


def test_a_host_that_was_not_reached_and_hosts_among_each_other(
    pair: tuple[Document, Document],
) -> None:
    plan, _ = pair
    gone = HostRun(
        "gpu02",
        None,
        {**plan, "host": "gpu02"},
        judge.unreachable("ssh: connect to host gpu02 (10.1.2.3)", "ask alice, or see gpu01"),
    )
    _first, second = bundles([run(*pair), gone])
    # The GIDs of the first host's two ports are addresses as well.
    assert second["result"]["checks"][0]["cause"] == "ssh: connect to host host2 (address3)"
    assert second["result"]["checks"][0]["remedy"] == "ask user1, or see host1"
    assert second["same_verdicts"] and second["snapshot"] is None


def test_hosts_that_are_named_by_their_address_and_meet(pair: tuple[Document, Document]) -> None:
    plan, snapshot = pair
    plan.update(
        service_user="jenkins",
        notes=["CUDA 10.1 needs nothing of jenkins"],
        pairs=[
            {
                "with": "gpu02",
                "gpus": 0,
                "stacks": [
                    {"name": f"tensorflow-{release}", "release": release}
                    for release in ("1.4.0", "2.13.1")
                ],
            }
        ],
    )
    snapshot["pairs"] = document("pairs.json")
    swaps = {"gpu01": "10.20.30.40", "gpu02": "node7.corp.example"}
    for each in (plan, snapshot):
        for container, key in texts(each):
            container[key] = swaps.get(container[key], container[key])
    (bundle,) = bundles([run(plan, snapshot)])
    assert bundle["host"] == bundle["snapshot"]["host"] == "address1"
    assert bundle["same_verdicts"]
    assert bundle["plan"]["notes"] == ["CUDA 10.1 needs nothing of user1"]
    peer = bundle["plan"]["pairs"][0]["with"]
    assert bundle["snapshot"]["pairs"][0]["hosts"] == ["address1", peer]
    text = json.dumps(bundle)
    for word in ("jenkins", "node7", "corp.example", "10.20.30.40"):
        assert word not in text
    for record in snapshot["pairs"]:
        for side in record["sides"]:
            for way in side["reach"]:
                assert way["address"].startswith("127.") or way["address"] not in text


def test_of_a_host_that_was_not_reached_no_login_comes_out(plan: Document) -> None:
    gone = HostRun(
        "gpu02",
        None,
        {**plan, "host": "gpu02"},
        judge.unreachable(
            "ssh failed",
            "try ssh -l deploybot -i /home/alice/.ssh/id node7.corp.example",
            "deploybot of node7.corp.example: see /srv/deploybot",
        ),
    )
    (bundle,) = bundles([gone])
    check = bundle["result"]["checks"][0]
    assert check["remedy"] == "try ssh -l user1 -i removed server1.invalid"
    assert check["evidence"] == "user1 of server1.invalid: see /srv/user1"


@pytest.mark.parametrize(
    "text",
    [
        '{"host": "gpu01", "schema": 1, "result": {}}',
        '{"host": "gpu01", "schema": 1, "result": null, "plan": {}}',
        "[" * 200_000,
    ],
)
def test_what_is_no_bundle_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "gpu01.json").write_text(text)
    with pytest.raises(ConfigurationError):
        judge_saved([str(tmp_path / "gpu01.json")])


def test_a_name_that_is_a_word_of_the_documents_is_reported(
    plan: Document, snapshot: Document
) -> None:
    plan["host"] = snapshot["host"] = "toolkit"
    (bundle,) = bundles([run(plan, snapshot)])
    assert not bundle["same_verdicts"]
