"""Small-sample statistics, exact where that is possible.

No value is ever assumed: an empty sample or a NaN raises Missing instead of giving a number. Randomness
comes in as an argument, so a result can be repeated from its recorded seed.
"""

from __future__ import annotations

import itertools
import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from fractions import Fraction

from lab.model import Missing, UsageError

# Exact tests list every arrangement; beyond this many they are refused rather than approximated.
MAX_ARRANGEMENTS = 500_000


def median(values: Sequence[float]) -> float:
    """Median; Missing for an empty sample or one with NaN."""
    return float(statistics.median(_checked(values)))


def quantile_range(values: Sequence[float], low: float = 0.25, high: float = 0.75) -> tuple[float, float]:
    """Two quantiles (by default the quartiles), linear between the order statistics.

    Missing for an empty sample or one with NaN; UsageError unless 0 <= low <= high <= 1.
    """
    if not 0 <= low <= high <= 1:
        raise UsageError(f"quantiles {low} and {high} are not in order between 0 and 1")
    ordered = sorted(_checked(values))
    return _quantile(ordered, low), _quantile(ordered, high)


def ratio_of_medians(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """Median of the first sample over median of the second.

    Missing for an empty sample, one with NaN, or a denominator whose median is zero.
    """
    bottom = median(denominator)
    if bottom == 0:
        raise Missing("the ratio of medians is not defined: the median of the denominator is zero")
    return median(numerator) / bottom


def mann_whitney_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Exact two-sided p of the Mann-Whitney U test, ties by mid-ranks.

    The share of all ways to pick the first sample out of the pooled values whose rank sum lies at least as
    far from its mean as the observed one. Missing for an empty sample or NaN; UsageError when there are too
    many ways.
    """
    pooled = [*_checked(first), *_checked(second)]
    picked = len(first)
    ways = math.comb(len(pooled), picked)
    _refuse_beyond_limit(ways, f"samples of {len(first)} and {len(second)}")
    ordered = sorted(pooled)
    # Twice the mid-rank is a whole number, so sums compare exactly; the mean of the doubled sum is whole too.
    ranks = [bisect_left(ordered, value) + bisect_right(ordered, value) + 1 for value in pooled]
    centre = picked * (len(pooled) + 1)
    observed = abs(sum(ranks[:picked]) - centre)
    extreme = sum(abs(sum(pick) - centre) >= observed for pick in itertools.combinations(ranks, picked))
    return extreme / ways


def paired_sign_flip_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Exact two-sided p of the sign-flip test on paired differences.

    The share of all assignments of signs to the differences whose sum is at least as far from zero as the
    observed one. Differences are exact in the decimal digits of the values, so equal ones tie. Missing for
    empty samples or NaN; UsageError when the lengths differ or there are too many pairs.
    """
    if len(first) != len(second):
        raise UsageError(f"pairs need samples of one length, not {len(first)} and {len(second)}")
    pairs = zip(_checked(first), _checked(second), strict=True)
    differences = [_exact(left) - _exact(right) for left, right in pairs]
    ways = 1 << len(differences)
    _refuse_beyond_limit(ways, f"{len(differences)} pairs")
    observed = abs(sum(differences, Fraction(0)))
    extreme = 0
    for signs in itertools.product((1, -1), repeat=len(differences)):
        flipped = (sign * difference for sign, difference in zip(signs, differences, strict=True))
        extreme += abs(sum(flipped, Fraction(0))) >= observed
    return extreme / ways


def smallest_possible_p(first_size: int, second_size: int) -> float:
    """Least two-sided p that the Mann-Whitney test can give for these sample sizes, without ties.

    Missing when a size is below one: there is nothing to test.
    """
    if first_size < 1 or second_size < 1:
        raise Missing(f"no test is possible with samples of {first_size} and {second_size}")
    return min(1.0, 2 / math.comb(first_size + second_size, first_size))


def smallest_possible_paired_p(pairs: int) -> float:
    """Least two-sided p that the sign-flip test can give for this many pairs; Missing below one pair."""
    if pairs < 1:
        raise Missing("no test is possible without pairs")
    return 2.0 ** (1 - pairs)


def enough_for_test(first_size: int, second_size: int, alpha: float) -> bool:
    """Whether a Mann-Whitney test of these sizes can reach ``alpha`` at all; False for an empty sample.

    UsageError unless 0 < alpha < 1.
    """
    if not 0 < alpha < 1:
        raise UsageError(f"significance level {alpha} is not between 0 and 1")
    if first_size < 1 or second_size < 1:
        return False
    return smallest_possible_p(first_size, second_size) <= alpha


def resampled_medians(values: Sequence[float]) -> list[tuple[float, int]]:
    """Every median that a resample of all values (drawn with replacement) can have, ascending, with its count.

    The counts are of equally likely resamples and add up to ``n ** n``: the bootstrap distribution itself, not draws
    from it. Missing for an empty sample or NaN.
    """
    ordered = sorted(_checked(values))
    n = len(ordered)
    lower = (n + 1) // 2
    # at_most[i]: resamples whose lower middle value is among the first i values, that is, at least `lower` draws are.
    at_most = [
        sum(math.comb(n, k) * i**k * (n - i) ** (n - k) for k in range(lower, n + 1)) for i in range(n + 1)
    ]
    counts: dict[float, int] = {}
    for i in range(1, n + 1):
        rest = at_most[i] - at_most[i - 1]
        for j in range(i + 1, n + 1) if n % 2 == 0 else ():
            # Half of the draws at or below value i, the others at or above value j, both values drawn.
            half = n // 2
            both = math.comb(n, half) * (i**half - (i - 1) ** half) * ((n - j + 1) ** half - (n - j) ** half)
            middle = (ordered[i - 1] + ordered[j - 1]) / 2
            counts[middle] = counts.get(middle, 0) + both
            rest -= both
        counts[ordered[i - 1]] = counts.get(ordered[i - 1], 0) + rest
    return sorted((value, count) for value, count in counts.items() if count)


def ratio_interval(
    numerator: Sequence[float], denominator: Sequence[float], *, level: float = 0.95
) -> tuple[float, float]:
    """Percentile bootstrap interval of :func:`ratio_of_medians`, over all resamples of both samples: nothing is drawn.

    Missing for an empty sample, NaN, or a denominator of which some resample has the median zero; UsageError for
    ``level`` outside 0..1 or samples with too many pairs of medians.
    """
    if not 0 < level < 1:
        raise UsageError(f"an interval needs 0 < level < 1, not {level}")
    tops, bottoms = resampled_medians(numerator), resampled_medians(denominator)
    _refuse_beyond_limit(len(tops) * len(bottoms), f"samples of {len(numerator)} and {len(denominator)}")
    if any(bottom == 0 for bottom, _ in bottoms):
        raise Missing("the ratio of medians is not defined: the median of a resample of the denominator is zero")
    ratios = sorted((top / bottom, here * there) for top, here in tops for bottom, there in bottoms)
    total = sum(count for _, count in ratios)
    tail = (1 - _exact(level)) / 2
    sums = list(itertools.accumulate(count for _, count in ratios))
    return (
        ratios[bisect_left(sums, tail * total)][0],
        ratios[bisect_left(sums, (1 - tail) * total)][0],
    )


def chance_of_matches(matches: int, repetitions: int, items: int) -> Fraction:
    """Chance that at least ``matches`` of ``repetitions`` random orders of ``items`` things are one named beforehand.

    UsageError unless 0 <= matches <= repetitions, with one thing and one repetition at least.
    """
    if items < 1 or repetitions < 1 or not 0 <= matches <= repetitions:
        raise UsageError(f"{matches} of {repetitions} orders of {items} things is not a count of matches")
    one = Fraction(1, math.factorial(items))
    return sum(
        (math.comb(repetitions, k) * one**k * (1 - one) ** (repetitions - k) for k in range(matches, repetitions + 1)),
        Fraction(0),
    )


UNSTABLE_DEVIATION = 0.10
UNSTABLE_EXTREME = 0.50
"""From which part of the mean on pyperf calls a result unstable: its standard deviation, its minimum or maximum."""


def instabilities(values: Sequence[float]) -> list[str]:
    """Why a sample may be unstable, by pyperf's two rules (``format_checks`` in its ``_cli.py``); none for one value.

    Missing for an empty sample or NaN. A mean that is not above zero has no part to be compared with: no rule applies.
    """
    checked = _checked(values)
    mean = statistics.fmean(checked)
    if len(checked) < 2 or mean <= 0:
        return []
    found = []
    deviation = statistics.stdev(checked) / mean
    if deviation >= UNSTABLE_DEVIATION:
        found.append(f"the standard deviation is {deviation:.0%} of the mean")
    if (below := 1 - min(checked) / mean) >= UNSTABLE_EXTREME:
        found.append(f"the minimum is {below:.0%} below the mean")
    if (above := max(checked) / mean - 1) >= UNSTABLE_EXTREME:
        found.append(f"the maximum is {above:.0%} above the mean")
    return found


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    """Quantile of a sorted, non-empty sample."""
    position = fraction * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (position - below))


def _checked(values: Sequence[float]) -> Sequence[float]:
    """The values; Missing when there are none or one is not a number."""
    if not values:
        raise Missing("no value was measured")
    if any(value is None or math.isnan(value) for value in values):
        raise Missing(f"a value of {list(values)} was not measured")
    return values


def _exact(value: float) -> Fraction:
    """The number that the shortest decimal text of ``value`` stands for."""
    return Fraction(repr(float(value)))


def _refuse_beyond_limit(ways: int, what: str) -> None:
    if ways > MAX_ARRANGEMENTS:
        raise UsageError(f"{what} have {ways} arrangements, more than the {MAX_ARRANGEMENTS} that are listed exactly")
