"""What repetitions allow to say: the exact bootstrap, stability, chance of orders, and the sentences of the summary."""

from __future__ import annotations

import itertools
import math
import random
import statistics as library
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab import stats
from lab.claims import Claim
from lab.model import Missing, UsageError
from lab.report import statistics

CTL = [0.564, 0.587, 0.561]
EMP = [0.052, 0.044, 0.049]
SMALL = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@given(SMALL)
def test_medians_of_resamples_are_those_of_all_resamples_written_out(values):
    written_out = Counter(library.median(drawn) for drawn in itertools.product(values, repeat=len(values)))
    assert dict(stats.resampled_medians(values)) == dict(written_out)


@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=15))
def test_the_counts_add_up(values):
    found = stats.resampled_medians(values)
    assert sum(count for _, count in found) == len(values) ** len(values)
    assert all(count > 0 for _, count in found)
    assert [value for value, _ in found] == sorted({value for value, _ in found})


@given(SMALL, SMALL)
def test_the_interval_is_the_percentile_interval_of_all_resamples(top, bottom):
    def medians(values):
        return [library.median(drawn) for drawn in itertools.product(values, repeat=len(values))]

    ratios = sorted(one / other for one in medians(top) for other in medians(bottom))
    low, high = stats.ratio_interval(top, bottom)
    assert low == pytest.approx(ratios[math.ceil(Fraction(25, 1000) * len(ratios)) - 1])
    assert high == pytest.approx(ratios[math.ceil(Fraction(975, 1000) * len(ratios)) - 1])


def test_drawing_resamples_comes_to_the_same():
    source = random.Random(7)
    drawn = sorted(
        library.median(source.choices(EMP, k=len(EMP))) / library.median(source.choices(CTL, k=len(CTL)))
        for _ in range(4000)
    )
    assert stats.ratio_interval(EMP, CTL) == pytest.approx((drawn[100], drawn[3899]))


def test_a_lower_level_gives_a_shorter_interval_and_one_point_none_at_all():
    wide, narrow = stats.ratio_interval(EMP, CTL), stats.ratio_interval(EMP, CTL, level=0.5)
    assert wide[0] < narrow[0] <= narrow[1] < wide[1]
    assert stats.ratio_interval([1], [2]) == (0.5, 0.5)


def test_an_interval_needs_what_it_is_made_of():
    for bad in ([], [math.nan]):
        with pytest.raises(Missing):
            stats.ratio_interval(bad, CTL)
        with pytest.raises(Missing):
            stats.ratio_interval(EMP, bad)
    with pytest.raises(Missing, match="denominator is zero"):
        stats.ratio_interval(EMP, [0, 1, 1])
    for level in (0, 1, -0.5):
        with pytest.raises(UsageError):
            stats.ratio_interval(EMP, CTL, level=level)
    with pytest.raises(UsageError, match="more than"):
        stats.ratio_interval(*([1 + number**1.7 for number in range(60)] for _ in range(2)))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([1.0], []),
        ([1.0, 1.1, 0.95], []),
        ([0.8, 1.0, 1.2], ["the standard deviation is 20% of the mean"]),
        ([*[1] * 9, 0.4], ["the standard deviation is 20% of the mean", "the minimum is 57% below the mean"]),
        ([*[1] * 9, 2], ["the standard deviation is 29% of the mean", "the maximum is 82% above the mean"]),
        ([-1.0, 1.0], []),
    ],
)  # fmt: skip
def test_pyperfs_rules(values, found):
    assert stats.instabilities(values) == found


@pytest.mark.parametrize("values", [[0.9, 1.0, 1.1], [9, 10, 11]])
def test_a_deviation_of_a_tenth_is_unstable(values):
    assert stats.instabilities(values) == ["the standard deviation is 10% of the mean"]


def test_stability_needs_values():
    with pytest.raises(Missing):
        stats.instabilities([])


@pytest.mark.parametrize(
    ("matches", "of", "items", "chance"),
    [
        (1, 1, 5, Fraction(1, 120)),
        (3, 3, 5, Fraction(1, 1728000)),
        (0, 3, 5, Fraction(1)),
        (1, 2, 2, Fraction(3, 4)),
        (1, 1, 1, Fraction(1)),
    ],
)
def test_chance_of_an_order(matches, of, items, chance):
    assert stats.chance_of_matches(matches, of, items) == chance


@pytest.mark.parametrize(("matches", "of", "items"), [(-1, 1, 2), (2, 1, 2), (0, 0, 2), (0, 1, 0)])
def test_no_chance_of_what_cannot_be(matches, of, items):
    with pytest.raises(UsageError):
        stats.chance_of_matches(matches, of, items)


# --- sentences --------------------------------------------------------------------------------------------------------


def cpu(control, empty):
    return {"control_all": control, "empty_all": empty}


def test_cpu_windows_give_spread_ratio_and_interval():
    assert statistics.lines({}, cpu(CTL, EMP), None) == [
        "cpu-ctl: median 0.564, range 0.561 to 0.587 cores, n = 3",
        "cpu-emp: median 0.049, range 0.044 to 0.052 cores, n = 3",
        "cpu-emp / cpu-ctl 8.7% (ratio of the medians), 95 % bootstrap interval 7.5% to 9.3%, "
        "over all resamples of these points",
    ]


def test_an_unstable_sample_is_named():
    assert statistics.lines({}, cpu(CTL, [0.05, 0.05, 0.08]), None)[-1] == (
        "cpu-emp may be unstable: the standard deviation is 29% of the mean"
    )


@pytest.mark.parametrize("view", [cpu(None, EMP), cpu(CTL, None), cpu(None, None)])
def test_without_every_window_there_is_no_ratio(view):
    assert statistics.lines({}, view, None) == ["no ratio: not every slot has a window that counts"]


def test_a_ratio_to_nothing_is_refused_in_words():
    assert statistics.ratio_line(EMP, [0.0, 0.0]).startswith("no ratio with an interval: ")


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ([1, 2, 3], [4, 5, 6], "n too small for a test (3 v 3 cannot go below p = 0.10)"),
        ([1, 2, 3, 4], [5, 6, 7, 8], "exact Mann-Whitney test, two-sided, 4 v 4: p = 0.0286"),
        ([1, 3, 5, 7, 9], [2, 4, 6, 8, 10], "exact Mann-Whitney test, two-sided, 5 v 5: p = 0.69"),
    ],
)
def test_a_test_is_made_only_where_it_can_say_something(first, second, said):
    assert statistics.exact_test_line(first, second) == said


ORDER = ["be", "ctl", "gua"]


@pytest.mark.parametrize(
    ("orders", "predicted", "said"),
    [
        ([ORDER, ORDER], ORDER, "came in 2 of 2 repetitions exactly; by chance alone it comes once in 6 repetitions, "
                                "and so often in 2 repetitions once in 36"),
        ([ORDER, ORDER[::-1]], ORDER, "came in 1 of 2 repetitions exactly; by chance alone it comes once in 6 "
                                      "repetitions, and so often in 2 repetitions once in about 3"),
        ([ORDER], ORDER, "came in 1 of 1 repetitions exactly; by chance alone it comes once in 6 repetitions"),
        ([ORDER[::-1]], ORDER, "came in 0 of 1 repetitions exactly"),
    ],
)  # fmt: skip
def test_orders_are_counted_exactly_with_their_chance(orders, predicted, said):
    lines = statistics.lines({"repetitions": orders}, {"orders": orders}, predicted)
    assert lines == [f"the order that the claim names, be > ctl > gua, {said}"]


def test_orders_that_are_not_whole_are_not_counted():
    assert statistics.lines({"repetitions": [1, 2]}, {"orders": None}, ORDER) == [
        "no count of orders: not every one of 2 repetitions gave a whole order"
    ]
    assert statistics.lines({"repetitions": [1]}, {"orders": [ORDER]}, None) == []
    assert statistics.lines({}, {"pods": {}}, ORDER) == []


def claim(stage, predict):
    return Claim(id="c", stage=stage, title="t", when="True", predict=predict, falsify="False", line=1)


def test_the_predicted_order_is_the_one_that_a_claim_names():
    named = "all([order == ['be', 'ctl'] for order in orders])"
    assert statistics.predicted_orders(
        [
            claim("eviction", named), claim("eviction", "oom_kills == 0"),
            claim("two", named), claim("two", "all([order == ['ctl', 'be'] for order in orders])"),
            claim("other", "answer == ['be']"), claim("other", "order != ['be']"),
        ]
    ) == {"eviction": ("be", "ctl")}  # fmt: skip
