"""Repetitions of a stage: which are still to be done, what belongs to each, and the stages that have them."""

from __future__ import annotations

import json

import pytest

from lab.model import NodeError
from lab.stages import eviction
from tests.captures_helper import Bench, load
from tests.fakes import Reply

QUICK = {"quick": True, "reps": 3, "order": "random"}


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path, {})
    made.told = []
    made.context.begun = lambda number, count: made.told.append(("begun", number, count))
    made.context.finished = lambda number, names: made.told.append(("finished", number, tuple(names)))
    return made


def test_each_is_told_with_its_own_texts(bench):
    context = bench.context
    context.save("plan.json", "{}")
    for number in context.repetitions(2):
        context.save(f"{number}-a.txt", "a")
        context.save(f"{number}-b.txt", "b")
    context.save("after.txt", "x")
    assert bench.told == [
        ("begun", 1, 2), ("finished", 1, ("1-a.txt", "1-b.txt")),
        ("begun", 2, 2), ("finished", 2, ("2-a.txt", "2-b.txt")),
    ]  # fmt: skip
    assert list(bench.saved) == ["plan.json", "1-a.txt", "1-b.txt", "2-a.txt", "2-b.txt", "after.txt"]


@pytest.mark.parametrize(
    ("done", "left"), [((), [1, 2, 3]), ((1,), [2, 3]), ((2,), [1, 3]), ((1, 2, 3), []), ((7,), [1, 2, 3])]
)
def test_those_that_are_done_are_left_out(bench, done, left):
    bench.context.done = frozenset(done)
    assert list(bench.context.repetitions(3)) == left
    assert [number for kind, number, _ in bench.told if kind == "finished"] == left


def test_one_that_fails_is_not_done_and_nothing_is_told_of_it_later(bench):
    def work():
        for number in bench.context.repetitions(3):
            bench.context.save(f"{number}-a.txt", "a")
            if number == 2:
                raise NodeError("pods do not hold their memory")

    with pytest.raises(NodeError):
        work()
    bench.context.save("problem.txt", "x")
    assert [entry for entry in bench.told if entry[0] == "finished"] == [("finished", 1, ("1-a.txt",))]


def test_evictions_go_on_with_the_one_that_is_missing(tmp_path, monkeypatch):
    raw = load("v1.34.4", "eviction")
    made = Bench(tmp_path, {**eviction.params(QUICK), "repetitions": 2})
    made.programs["working_set.py"] = [Reply(stdout=raw["1-working-sets.jsonl"])]
    made.programs["hog.py"] = [Reply(stdout=raw["1-hog.jsonl"])]
    made.journals = {"lab-kubelet": raw["1-kubelet.log"], "kernel": raw["1-kernel.log"]}
    made.context.done = frozenset({1})
    monkeypatch.setattr(eviction.ranking, "check_sizes", lambda pods, tolerance: None)
    eviction.STAGE.collect(made.context)
    assert json.loads(made.saved["plan.json"])["repetitions"] == 2
    assert {name[:2] for name in made.saved} == {"pl", "2-"}
