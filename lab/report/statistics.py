"""What the repetitions of a stage allow to say: spread, ratio with its interval, test, stability, chance. Pure.

Sentences, so that the summary and the page say the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from lab import stats
from lab.claims import Claim
from lab.model import Missing, UsageError

ALPHA = 0.05
CPU_PODS = {"cpu-ctl": "control_all", "cpu-emp": "empty_all"}
"""Pods of the CPU stage and the names of their samples in its view."""


def lines(observation: Mapping[str, Any], view: Mapping[str, Any], predicted: Sequence[str] | None) -> list[str]:
    """What can be said of one attempt by its view; nothing for a stage without repetitions.

    ``predicted`` is the order that a claim names beforehand, for stages that measure one.
    """
    if view.keys() >= set(CPU_PODS.values()):
        return cpu_lines(view)
    if "orders" in view:
        return order_lines(view["orders"], len(observation["repetitions"]), predicted)
    return []


def cpu_lines(view: Mapping[str, Any]) -> list[str]:
    """Spread of both pods, the ratio with its interval, and warnings; one sentence when a slot has no window."""
    samples = {pod: view[name] for pod, name in CPU_PODS.items()}
    if None in samples.values():
        return ["no ratio: not every slot has a window that counts"]
    said = [f"{pod}: {spread(points)}" for pod, points in samples.items()]
    said.append(ratio_line(samples["cpu-emp"], samples["cpu-ctl"]))
    for pod, points in samples.items():
        said += [f"{pod} may be unstable: {reason}" for reason in stats.instabilities(points)]
    return said


def spread(points: Sequence[float]) -> str:
    """Median, range and size of a sample of cores."""
    return f"median {stats.median(points):.3f}, range {min(points):.3f} to {max(points):.3f} cores, n = {len(points)}"


def ratio_line(empty: Sequence[float], control: Sequence[float]) -> str:
    """The ratio of the medians with its bootstrap interval, or why there is none."""
    try:
        ratio = f"cpu-emp / cpu-ctl {stats.ratio_of_medians(empty, control):.1%} (ratio of the medians)"
        low, high = stats.ratio_interval(empty, control)
    except (Missing, UsageError) as error:
        return f"no ratio with an interval: {error}"
    return f"{ratio}, 95 % bootstrap interval {low:.1%} to {high:.1%}, over all resamples of these points"


def exact_test_line(empty: Sequence[float], control: Sequence[float]) -> str:
    """The exact p when samples of these sizes can reach 5 %, else that they cannot and how far they could go."""
    sizes = f"{len(empty)} v {len(control)}"
    least = stats.smallest_possible_p(len(empty), len(control))
    if least > ALPHA:
        return f"n too small for a test ({sizes} cannot go below p = {least:.2f})"
    try:
        p = stats.mann_whitney_p(empty, control)
    except UsageError as error:
        return f"no exact test: {error}"
    return f"exact Mann-Whitney test, two-sided, {sizes}: p = {p:.3g}"


def order_lines(
    orders: Sequence[Sequence[str]] | None, repetitions: int, predicted: Sequence[str] | None
) -> list[str]:
    """How many repetitions had exactly the order that a claim names, and the chance of as many by chance alone."""
    if predicted is None:
        return []
    named = " > ".join(predicted)
    if orders is None:
        return [f"no count of orders: not every one of {repetitions} repetitions gave a whole order"]
    matches = sum(list(order) == list(predicted) for order in orders)
    text = f"the order that the claim names, {named}, came in {matches} of {len(orders)} repetitions exactly"
    if matches == 0:
        return [text]
    once = stats.chance_of_matches(1, 1, len(predicted))
    said = f"{text}; by chance alone it comes once in {one_in(once)} repetitions"
    if len(orders) > 1:
        chance = stats.chance_of_matches(matches, len(orders), len(predicted))
        said += f", and so often in {len(orders)} repetitions once in {one_in(chance)}"
    return [said]


def one_in(chance: Fraction) -> str:
    """A chance as the number of tries that it takes, thousands apart (``1,728,000``); rounded, it is ``about 3``."""
    tries = 1 / chance
    return f"{'' if tries.denominator == 1 else 'about '}{round(tries):,}"


def predicted_orders(claims: Iterable[Claim]) -> dict[str, tuple[str, ...]]:
    """By stage the one order that its claims predict (``order == ['be', 'ctl', …]``); a stage with several has none."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for claim in claims:
        for node in ast.walk(ast.parse(claim.predict, mode="eval")):
            match node:
                case ast.Compare(left=ast.Name(id="order"), ops=[ast.Eq()], comparators=[ast.List(elts=names)]):
                    order = tuple(name.value for name in names if isinstance(name, ast.Constant))
                    found.setdefault(claim.stage, set()).add(tuple(str(name) for name in order))
    return {stage: next(iter(orders)) for stage, orders in found.items() if len(orders) == 1}
