"""The meaning of the files of ports."""

from __future__ import annotations

import pytest

from gpufleet.catalog import facts, network


@pytest.mark.parametrize(
    ("text", "gb_s", "lanes", "speed"),
    [
        ("400 Gb/sec (4X NDR)", 400, 4, "NDR"),
        ("2.5 Gb/sec (1X SDR)", 2.5, 1, "SDR"),
        ("10 Gb/sec (4X)", 10, 4, ""),
        ("56 Gb/sec (4X FDR10)", 56, 4, "FDR10"),
    ],
)
def test_a_rate_is_read_as_the_kernel_prints_it(
    text: str, gb_s: float, lanes: int, speed: str
) -> None:
    assert network.rate(text) == network.Rate(gb_s, lanes, speed)


@pytest.mark.parametrize("text", [None, "", "400", "Unknown", "9999999 Gb/sec (4X NDR)"])
def test_another_text_is_no_rate(text: str | None) -> None:
    assert network.rate(text) is None


def test_a_speed_that_the_kernel_does_not_know_is_told_from_one_that_it_knows() -> None:
    for text, unknown in (
        ("10 Gb/sec (4X SDR)", True),
        ("10 Gb/sec (4X)", True),
        ("10 Gb/sec (1X QDR)", False),
        ("400 Gb/sec (4X NDR)", False),
    ):
        found = network.rate(text)
        assert found is not None
        assert found.unknown is unknown


@pytest.mark.parametrize(
    ("counter", "limit"),
    [
        ("link_downed", 255),
        ("symbol_error", 65535),
        ("excessive_buffer_overrun_errors", 15),
        ("port_xmit_wait", 4294967295),
        ("port_xmit_data", None),
    ],
)
def test_a_classic_counter_stays_at_its_maximum(counter: str, limit: int | None) -> None:
    assert network.counter_limit(counter) == limit


def test_each_row_names_its_source() -> None:
    table = facts.document("network.yml")
    used = {row["source"] for row in table["rates"]} | set(table["counters_source"])
    used |= {row["source"] for row in table["vendors"].values()}
    assert used <= set(table["sources"])
