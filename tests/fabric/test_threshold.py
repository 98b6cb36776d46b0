"""Which bandwidth is slow: declared figures, the siblings' median, and neither."""

from __future__ import annotations

import math

import pytest

from gpufleet.fabric.rounds import GroupTest, Outcome, Result
from gpufleet.fabric.threshold import Judge, Threshold

RAILS = (0, 1)


def pair(number: int, *rails: int) -> GroupTest:
    return GroupTest((f"a{number}", f"b{number}"), rails or RAILS)


def calibrated(*rates: float | None) -> Judge:
    """A judge without a declared figure, after one round of pairs."""
    judge = Judge(Threshold(0.1, "test"))
    judge.calibrate(
        [pair(number) for number in range(len(rates))],
        [Result(Outcome.HUNG) if rate is None else Result(Outcome.PASSED, rate) for rate in rates],
        [RAILS],
    )
    return judge


@pytest.mark.parametrize("tolerance", [0, 1, -0.1, 10])
def test_a_tolerance_that_is_no_share_is_refused(tolerance: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        Threshold(tolerance, "test")


@pytest.mark.parametrize(
    ("rate", "outcome"),
    [
        (100.0, Outcome.PASSED),
        (90.0, Outcome.PASSED),
        (89.9, Outcome.SLOW),
        (0.0, Outcome.SLOW),
        (math.nan, Outcome.SLOW),
    ],
)
def test_a_rate_is_compared_with_the_declared_figure(rate: float, outcome: Outcome) -> None:
    judge = Judge(Threshold(0.1, "test", {2: 100.0}))
    assert judge.outcome(pair(0), Result(Outcome.PASSED, rate)) is outcome


@pytest.mark.parametrize(
    "outcome", [Outcome.SLOW, Outcome.WRONG, Outcome.HUNG, Outcome.NOT_RUN], ids=str
)
def test_a_fast_test_that_did_not_pass_does_not_pass(outcome: Outcome) -> None:
    judge = Judge(Threshold(0.1, "test", {2: 100.0}))
    assert judge.outcome(pair(0), Result(outcome, 200.0)) is outcome


def test_a_rate_without_a_figure_is_not_judged() -> None:
    judge = Judge(Threshold(0.1, "test", {8: 100.0}))
    assert judge.outcome(pair(0), Result(Outcome.PASSED, 100.0)) is Outcome.NOT_JUDGED


def test_a_runner_may_judge_without_a_rate() -> None:
    assert Judge(Threshold(0.1, "test")).outcome(pair(0), Result(Outcome.PASSED)) is Outcome.PASSED


@pytest.mark.parametrize(
    "rates", [(50, 100, 50, 100), (100, 100, 100, 50), (100, None, 100, 100, 50)]
)
def test_the_median_is_fast_while_half_of_the_siblings_are_slow(rates: tuple[float, ...]) -> None:
    assert calibrated(*rates).least_gb_s(pair(9)) == pytest.approx(90)


@pytest.mark.parametrize("rates", [(100, 100, 100), (100, 100, None, None, None), ()])
def test_too_few_siblings_give_no_figure(rates: tuple[float, ...]) -> None:
    assert calibrated(*rates).least_gb_s(pair(9)) is None


def test_later_siblings_do_not_change_the_figure() -> None:
    judge = calibrated(100, 100, 100, 100)
    tests = [pair(number) for number in range(4)]
    judge.calibrate(tests, [Result(Outcome.SLOW, 10.0)] * 4, [RAILS])
    assert judge.least_gb_s(pair(9)) == pytest.approx(90)


def test_each_rail_is_measured_before_single_rails_have_a_figure() -> None:
    judge = Judge(Threshold(0.1, "test"))
    slow, fast = Result(Outcome.PASSED, 20.0), Result(Outcome.PASSED, 50.0)
    judge.calibrate([pair(number, 0) for number in range(4)], [slow] * 4, [(0,), (1,)])
    assert not judge.has_figure(1)
    judge.calibrate([pair(number, 1) for number in range(4)], [fast] * 4, [(0,), (1,)])
    assert judge.outcome(pair(0, 0), slow) is Outcome.SLOW
    assert judge.outcome(pair(0, 1), fast) is Outcome.PASSED


def test_a_rail_that_hangs_does_not_keep_the_others_from_a_figure() -> None:
    judge = Judge(Threshold(0.1, "test"))
    tests = [pair(number, number % 2) for number in range(8)]
    results = [Result(Outcome.PASSED, 50.0), Result(Outcome.HUNG)] * 4
    judge.calibrate(tests, results, [(0,), (1,)])
    assert judge.least_gb_s(pair(0, 1)) == pytest.approx(45)
