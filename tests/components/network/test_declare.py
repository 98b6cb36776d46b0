"""`gpu_network` as it is read: what is declared, and what is refused with its place and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.components.declare import declaration_of
from gpufleet.documents.spec import NetworkSpec, RepositorySpec, Spec
from tests.support.rdma_host import REPOSITORY


def read(value: Any) -> tuple[Spec, list[tuple[str, str]]]:
    """The spec, and the place and message of each problem."""
    declared = declaration_of({"gpu_network": value})
    return declared.spec, [(each.where, each.message) for each in declared.problems]


def test_nothing_is_declared_where_it_is_not_set() -> None:
    assert read(None) == (Spec(), [])


def test_everything_is_read() -> None:
    spec, problems = read(
        {
            "driver": "doca",
            "repository": {**REPOSITORY, "fingerprints": [" ".join(["abAB"] * 10)]},
            "peermem": "yes",
            "max_read_request_bytes": 4096,
            "acs": False,
        }
    )
    assert problems == []
    repository = RepositorySpec(REPOSITORY["uri"], REPOSITORY["key"], ("AB" * 20,))
    assert spec.network == NetworkSpec("doca", repository, True, 4096, True)


def test_peermem_and_settings_are_off_by_default() -> None:
    spec, problems = read({"driver": "inbox"})
    assert (spec.network, problems) == (NetworkSpec("inbox"), [])


@pytest.mark.parametrize("word", ["off", False])
def test_acs_off_is_accepted_with_and_without_quotes(word: Any) -> None:
    spec, problems = read({"acs": word})
    assert (spec.network, problems) == (NetworkSpec(acs_off=True), [])


@pytest.mark.parametrize(
    ("value", "where", "message"),
    [
        ("doca", "gpu_network", "not a mapping with driver, repository"),
        ({"driver": "ofed"}, "gpu_network.driver", "not one of inbox, doca"),
        ({"drivr": "inbox"}, "gpu_network.drivr", "did you mean driver"),
        ({"acs": True}, "gpu_network.acs", "nothing switches it on"),
        ({"acs": "on"}, "gpu_network.acs", "nothing switches it on"),
        ({"peermem": "maybe"}, "gpu_network.peermem", "not true or false"),
        ({"max_read_request_bytes": 1000}, "gpu_network.max_read_request_bytes", "one of 128, 256"),
        ({"max_read_request_bytes": "4096"}, "gpu_network.max_read_request_bytes", "one of 128"),
        ({"driver": "inbox", "repository": REPOSITORY}, "gpu_network.repository", "only driver"),
        ({"repository": REPOSITORY}, "gpu_network.repository", "only driver: doca"),
    ],
)
def test_a_wrong_value_is_refused(value: Any, where: str, message: str) -> None:
    _, problems = read(value)
    assert [place for place, _ in problems] == [where]
    assert message in problems[0][1]


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"uri": "https://me:secret@mirror.example/doca/"}, "uri"),
        ({"uri": "ftp://mirror.example/doca/"}, "uri"),
        ({"uri": "https://mirror.example/doca/\nTrusted: yes"}, "uri"),
        ({"key": "key.asc"}, "key"),
        ({"suite": "./ main\nTrusted: yes"}, "suite"),
        ({"components": "main\nTrusted: yes"}, "components"),
        ({"fingerprints": ["AB"]}, "fingerprints[0]"),
        ({"fingerprints": [12]}, "fingerprints[0]"),
        ({"fingerprints": []}, "fingerprints"),
        ({"fingerprints": None}, "fingerprints"),
        ({"uri": None}, "uri"),
        ({"key": None}, "key"),
    ],
)
def test_a_wrong_repository_is_refused_and_left_out(changes: dict[str, Any], where: str) -> None:
    spec, problems = read({"driver": "doca", "repository": {**REPOSITORY, **changes}})
    assert [place for place, _ in problems] == [f"gpu_network.repository.{where}"]
    assert spec.network is not None
    # The components are optional, but not these.
    assert spec.network.repository is None or where == "components"
    assert "secret" not in problems[0][1]
