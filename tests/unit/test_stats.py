from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.model import Missing, UsageError
from lab.stats import (
    enough_for_test,
    mann_whitney_p,
    median,
    paired_sign_flip_p,
    quantile_range,
    ratio_of_medians,
    smallest_possible_p,
    smallest_possible_paired_p,
)

VALUES = st.lists(st.integers(-50, 50).map(lambda n: n / 10), min_size=1, max_size=5)
CTL = [0.579, 0.581, 0.577]
EMP = [0.083, 0.081, 0.090]


def test_median_and_ratio():
    assert median([3]) == 3.0
    assert median([1, 2, 3, 10]) == 2.5
    assert ratio_of_medians(EMP, CTL) == pytest.approx(0.083 / 0.579)


def test_quantile_range():
    assert quantile_range([4, 1, 3, 2, 5]) == (2.0, 4.0)
    assert quantile_range([1, 2], 0, 1) == (1.0, 2.0)
    assert quantile_range([1, 2, 3, 4]) == (1.75, 3.25)
    assert quantile_range([7]) == (7.0, 7.0)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=20))
def test_quartiles_agree_with_the_inclusive_method(values):
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    assert quantile_range(values) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize("bounds", [(-0.1, 0.5), (0.5, 1.1), (0.8, 0.2), (math.nan, 0.5)])
def test_quantiles_out_of_range(bounds):
    with pytest.raises(UsageError):
        quantile_range([1, 2], *bounds)


@pytest.mark.parametrize("bad", [[], [math.nan], [1.0, math.nan], [None, 1.0]])
def test_missing_is_never_a_number(bad):
    for call in (
        lambda: median(bad),
        lambda: quantile_range(bad),
        lambda: ratio_of_medians(bad, [1.0]),
        lambda: ratio_of_medians([1.0], bad),
        lambda: mann_whitney_p(bad, [1.0]),
        lambda: mann_whitney_p([1.0], bad),
        lambda: paired_sign_flip_p(bad, bad),
    ):
        with pytest.raises(Missing):
            call()


def test_ratio_over_zero_is_missing_and_zero_over_something_is_zero():
    with pytest.raises(Missing, match="zero"):
        ratio_of_medians([1.0], [0.0])
    assert ratio_of_medians([0.0], [2.0]) == 0.0


def test_mann_whitney_of_separated_samples_is_the_smallest_possible():
    assert mann_whitney_p(EMP, CTL) == pytest.approx(0.1)
    assert mann_whitney_p(CTL, EMP) == pytest.approx(0.1)
    assert mann_whitney_p([1, 2, 3, 4], [5, 6, 7, 8]) == pytest.approx(2 / 70)


@pytest.mark.parametrize(
    ("first", "second", "p"),
    [
        ([1, 3, 5], [2, 4, 6], 0.7),
        ([1], [2], 1.0),
        ([1, 2], [3, 4, 5], 0.2),
        ([5, 5, 5], [5, 5, 5], 1.0),
        ([1, 1, 2], [2, 3, 3], 0.2),
    ],
)
def test_mann_whitney_known_values(first, second, p):
    assert mann_whitney_p(first, second) == pytest.approx(p)


def pairwise_p(first, second):
    """The same test from the count of won comparisons instead of ranks."""
    pooled = [*first, *second]

    def distance(index_set):
        chosen = [pooled[i] for i in index_set]
        rest = [pooled[i] for i in range(len(pooled)) if i not in index_set]
        wins = sum(2 * (a > b) + (a == b) for a in chosen for b in rest)
        return abs(wins - len(chosen) * len(rest))

    observed = distance(range(len(first)))
    subsets = list(itertools.combinations(range(len(pooled)), len(first)))
    return sum(distance(subset) >= observed for subset in subsets) / len(subsets)


@given(VALUES, VALUES)
def test_mann_whitney_agrees_with_counting_comparisons(first, second):
    p = mann_whitney_p(first, second)
    assert p == pytest.approx(pairwise_p(first, second))
    assert p == pytest.approx(mann_whitney_p(second, first))
    assert 0 < p <= 1
    if len({*first, *second}) == len(first) + len(second):
        assert p >= smallest_possible_p(len(first), len(second)) - 1e-12


def test_sign_flip_known_values():
    assert paired_sign_flip_p(CTL, EMP) == pytest.approx(0.25)
    assert paired_sign_flip_p([1, 2, 3, 4, 5], [0, 0, 0, 0, 0]) == pytest.approx(2 / 32)
    assert paired_sign_flip_p([1, 1], [1, 1]) == 1.0
    assert paired_sign_flip_p([1, -1], [0, 0]) == 1.0


def test_sign_flip_ties_are_exact_in_decimal():
    # 0.3 - 0.2 and 0.2 - 0.1 differ in binary; as decimals they are equal and cancel.
    assert paired_sign_flip_p([0.3, 0.1], [0.2, 0.2]) == 1.0
    assert paired_sign_flip_p([0.3, 0.2, 0.4], [0.2, 0.1, 0.3]) == pytest.approx(0.25)


@given(st.lists(st.tuples(st.integers(-30, 30), st.integers(-30, 30)), min_size=1, max_size=7))
def test_sign_flip_is_symmetric_and_bounded(pairs):
    first, second = [a / 10 for a, _ in pairs], [b / 10 for _, b in pairs]
    p = paired_sign_flip_p(first, second)
    assert p == paired_sign_flip_p(second, first)
    assert min(1.0, smallest_possible_paired_p(len(pairs))) <= p <= 1
    sums = [
        abs(sum(sign * (a - b) for sign, (a, b) in zip(signs, pairs, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(pairs))
    ]
    assert p == sum(value >= sums[0] for value in sums) / len(sums)


def test_refusals_say_why():
    with pytest.raises(UsageError, match="one length"):
        paired_sign_flip_p([1], [1, 2])
    with pytest.raises(UsageError, match="arrangements"):
        paired_sign_flip_p([1.0] * 25, [0.0] * 25)
    with pytest.raises(UsageError, match="arrangements"):
        mann_whitney_p(list(range(15)), list(range(15)))


def test_smallest_possible_p():
    assert smallest_possible_p(3, 3) == pytest.approx(0.1)
    assert smallest_possible_p(4, 4) == pytest.approx(2 / 70)
    assert smallest_possible_p(1, 1) == 1.0
    assert smallest_possible_paired_p(1) == 1.0
    assert smallest_possible_paired_p(6) == pytest.approx(2 / 64)
    for call in (lambda: smallest_possible_p(0, 3), lambda: smallest_possible_paired_p(0)):
        with pytest.raises(Missing):
            call()


def test_enough_for_test():
    assert not enough_for_test(3, 3, 0.05)
    assert enough_for_test(3, 3, 0.1)
    assert enough_for_test(4, 4, 0.05)
    assert not enough_for_test(0, 100, 0.05)
    with pytest.raises(UsageError):
        enough_for_test(3, 3, 0)
    with pytest.raises(UsageError):
        enough_for_test(3, 3, 1.0)
