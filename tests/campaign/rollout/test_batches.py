"""Which hosts go together."""

from __future__ import annotations

import pytest

from gpufleet.campaign.rollout.batches import Batch, batches, canaries, size_of
from gpufleet.errors import ConfigurationError

HOSTS = [f"gpu{number:02}" for number in range(1, 11)]
RACKS = dict(zip(HOSTS, "aaaabbbbcc", strict=True))


@pytest.mark.parametrize(
    ("reported", "size"), [("3", 3), ("10%", 1), ("25%", 2), ("100%", 10), ("1%", 1), ("50", 50)]
)
def test_a_batch_is_a_number_or_a_share_and_never_nobody(reported: str, size: int) -> None:
    assert size_of(reported, 10) == size


@pytest.mark.parametrize("reported", ["0", "0%", "101%", "-1", "x", "1.5", "", "%"])
def test_other_sizes_are_refused(reported: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--batch.*such as 5 or 10%"):
        size_of(reported, 10)


def test_the_canary_goes_first_and_every_host_goes_once() -> None:
    found = batches(HOSTS, ["gpu07"], 4)
    assert found[0] == Batch("canary", ("gpu07",))
    assert [len(batch.hosts) for batch in found] == [1, 4, 4, 1]
    assert sorted(name for batch in found for name in batch.hosts) == HOSTS


def test_no_batch_has_hosts_of_two_domains() -> None:
    found = batches(HOSTS, ["gpu01"], 3, RACKS)
    assert [batch.hosts for batch in found] == [
        ("gpu01",),
        ("gpu02", "gpu03", "gpu04"),
        ("gpu05", "gpu06", "gpu07"),
        ("gpu08",),
        ("gpu09", "gpu10"),
    ]
    assert [batch.name for batch in found] == ["canary", "a", "b", "b", "c"]


def test_a_host_without_a_domain_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="gpu03"):
        batches(HOSTS, [], 3, {**RACKS, "gpu03": None})


def test_canaries_are_named_or_counted() -> None:
    assert canaries("2", HOSTS) == ["gpu01", "gpu02"]
    assert canaries("0", HOSTS) == []
    assert canaries("gpu09, gpu02,gpu09", HOSTS) == ["gpu09", "gpu02"]
    assert canaries("7", ["7", "8"]) == ["7"]


@pytest.mark.parametrize("reported", ["gpu99", "gpu01,gpu99", "11", ",", ""])
def test_a_canary_that_is_not_there_is_refused(reported: str) -> None:
    with pytest.raises(ConfigurationError, match="--canary"):
        canaries(reported, HOSTS)
