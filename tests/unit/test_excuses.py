"""What the tests on real guests excuse: tried on stored attempts, unchanged and changed."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from lab.store import Store
from tests.excuses import LEFT, complaints, evictions, windows
from tests.guests import ROOT

ORDER = ["be", "ctl", "gua-ctl", "emp", "gua-emp"]


@pytest.fixture(scope="module")
def attempts():
    """Every stored attempt of v1.36.3, the one whose CPU windows were refused as well."""
    return [attempt for attempt in Store(ROOT / "results").attempts() if attempt.cell.version == "v1.36.3"]


@pytest.fixture
def refused(attempts):
    return next(attempt for attempt in attempts if (attempt.stage, attempt.number) == ("cpu", 1))


def late(attempt, seen):
    """The attempt as if the hog's time had been over after the pods in ``seen``."""
    observation = copy.deepcopy(attempt.observation)
    first = observation["repetitions"][0]
    first["order"] = None
    first["problems"] = [f"the log shows evictions of {seen or 'no pod'}, expected all of {sorted(ORDER)}", LEFT]
    return replace(attempt, observation=observation)


def test_all_that_held_and_a_share_that_was_missed(attempts):
    assert complaints({"class-empty-block": "HELD", "cpu-starved": "MISSED", "eviction-order": "HELD"}, attempts) == []


@pytest.mark.parametrize("claim", ["class-empty-block", "cpu-starved", "eviction-order", "priority-between"])
@pytest.mark.parametrize("outcome", ["FALSIFIED", "MISSED", "UNKNOWN", "-"])
def test_what_is_not_excused_is_named(claim, outcome, attempts):
    if (claim, outcome) == ("cpu-starved", "MISSED"):
        return
    last = [attempt for attempt in attempts if (attempt.stage, attempt.number) != ("cpu", 1)]
    [said] = complaints({claim: outcome}, last)
    assert said.startswith(f"{claim}: ")


def test_windows_refused_for_the_machines_sake_are_excused(refused):
    assert complaints({"cpu-starved": "UNKNOWN"}, [refused]) == []


@pytest.mark.parametrize(
    "reason",
    [
        "the neighbour was runnable in only 0% of the samples",
        "a cgroup weight changed in the window",
        "the window was not run",
    ],
)
def test_windows_refused_for_another_reason_are_not(refused, reason):
    observation = copy.deepcopy(refused.observation)
    observation["windows"][0]["why_not"].append(reason)
    assert windows(observation) == [f"pair 1 cpu-emp: {reason}"]


def test_a_stage_that_ended_early_is_not_excused(refused):
    ended = replace(refused, observation=None, verdict={**refused.verdict, "problem": "no pod was ready after 450 s"})
    [said] = complaints({"cpu-starved": "UNKNOWN"}, [ended])
    assert "no pod was ready after 450 s" in said
    assert complaints({"cpu-starved": "UNKNOWN"}, []) == ["cpu-starved: UNKNOWN, and there is no attempt"]


def test_evictions_that_took_too_long_are_excused(attempts):
    attempt = next(attempt for attempt in attempts if attempt.stage == "eviction")
    assert complaints({"eviction-order": "UNKNOWN"}, [late(attempt, ["be", "ctl"])]) == []


@pytest.mark.parametrize("seen", [[], ["ctl", "be"], ["emp"]])
def test_evictions_in_another_order_or_none_are_not(attempts, seen):
    attempt = next(attempt for attempt in attempts if attempt.stage == "eviction")
    assert len(evictions(late(attempt, seen).observation, ORDER)) == 2


def test_another_problem_of_a_repetition_is_not(attempts):
    attempt = late(next(attempt for attempt in attempts if attempt.stage == "eviction"), ["be"])
    attempt.observation["repetitions"][0]["problems"].append("the kernel log does not cover the whole window")
    assert evictions(attempt.observation, ORDER) == ["repetition 1: the kernel log does not cover the whole window"]
