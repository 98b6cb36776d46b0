"""Which bandwidth is slow: declared figures, the siblings' median, and neither."""

from __future__ import annotations

import math

import pytest

from gpufleet.fabric.rounds import GroupTest, Outcome, Result
from gpufleet.fabric.threshold import Floor, Judge, Past, Threshold

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


# -- what is usual, and the floor ------------------------------------------------------------------


def judge_of(
    past: list[float], floor: float | None = None, declared: float | None = None, **more: bool
) -> Judge:
    """A judge with these earlier bandwidths of each pair, and this floor."""
    return Judge(
        Threshold(
            0.1,
            "the siblings",
            {} if declared is None else {2: declared},
            Past(lambda test: past, 5, 0.85),
            lambda test: None if floor is None else Floor(floor, "the catalog"),
        ),
        **more,
    )


def outcome(judge: Judge, rate: float) -> Outcome:
    return judge.outcome(pair(0), Result(Outcome.PASSED, rate))


def siblings(judge: Judge, rate: float) -> Judge:
    judge.calibrate([pair(at) for at in range(4)], [Result(Outcome.PASSED, rate)] * 4, [RAILS])
    return judge


def test_the_median_of_five_earlier_tests_is_usual_and_four_are_not_enough() -> None:
    # One bad night changes nothing.
    judge = judge_of([400, 401, 10, 402, 399])
    assert [outcome(judge, rate) for rate in (341, 339)] == [Outcome.PASSED, Outcome.SLOW]
    assert judge.source == "more than 15% below the median of the same hosts' own past"
    assert outcome(judge_of([400] * 4), 10) is Outcome.NOT_JUDGED


def test_a_test_is_slow_below_its_siblings_or_below_its_own_past() -> None:
    judge = siblings(judge_of([400] * 5), 300)
    # All siblings are alike, and slower than they were.
    assert outcome(judge, 300) is Outcome.SLOW
    judge = siblings(judge_of([100] * 5), 300)
    assert [outcome(judge, rate) for rate in (271, 269)] == [Outcome.PASSED, Outcome.SLOW]
    assert judge.source == (
        "the siblings; or more than 15% below the median of the same hosts' own past"
    )
    assert judge.least_gb_s(pair(0)) == 270


def test_a_declared_figure_decides_alone() -> None:
    judge = siblings(judge_of([400] * 5, floor=500, declared=200), 400)
    assert [outcome(judge, rate) for rate in (181, 179)] == [Outcome.PASSED, Outcome.SLOW]
    assert judge.source == "the siblings"


def test_the_floor_decides_where_nothing_says_what_is_usual() -> None:
    judge = judge_of([400] * 4, floor=300)
    assert [outcome(judge, rate) for rate in (300, 299)] == [Outcome.PASSED, Outcome.SLOW]
    assert (judge.source, judge.least_gb_s(pair(0))) == ("the catalog", 300)
    assert outcome(siblings(judge_of([], floor=300), 200), 199) is Outcome.PASSED


def test_a_group_above_its_floor_is_not_judged_while_its_siblings_can_be_measured() -> None:
    judge = judge_of([], floor=300, awaits_siblings=True)
    assert [outcome(judge, rate) for rate in (301, 299)] == [Outcome.NOT_JUDGED, Outcome.SLOW]
