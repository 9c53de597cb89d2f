"""Whole runs that are killed at any moment, the writes of their journal included; and mutants that must be noticed."""

from __future__ import annotations

import random

import pytest
from hypothesis import Phase

from lab import experiment, resume
from lab.journal import RunJournal, read_events
from lab.providers.digitalocean import inventory
from tests.cloud_crashes import IS_CAMPAIGN, Broken
from tests.cloud_runs import EXAMPLES, MOST_POINTS, Laboratory, run_killed_runs
from tests.projects import make_bench

STRIDE = 1 if IS_CAMPAIGN else 37


@pytest.fixture
def laboratory(tmp_path, monkeypatch, capfd):
    return Laboratory.make(make_bench(tmp_path, monkeypatch, capfd), monkeypatch)


def undisturbed(laboratory):
    """A run that nothing happens to, and its process."""
    runs = laboratory.new_account(1)
    process = runs.new_process(random.Random(1), None)
    runs.run(process, lambda *_: None, "never")
    assert laboratory.counts == {"run done": 1}
    return runs, process


def test_killed_runs_leave_nothing_once_their_time_is_over(laboratory):
    told = run_killed_runs(laboratory, EXAMPLES)
    print(told)
    assert {"run done", "run killed", "gc"} <= set(laboratory.counts)


def test_a_run_can_be_killed_before_and_after_each_request_and_each_write(laboratory):
    runs, process = undisturbed(laboratory)
    (folder,) = (runs.folder / "results" / "_runs").glob("*")
    events = read_events(folder)

    assert process.seen["before event"] == process.seen["after event"] == len(events) >= 9
    assert process.seen["before finish"] == process.seen["after finish"] == 1
    assert process.seen["request"] == process.seen["answer"] == len(runs.schedule.cloud.wire.calls)
    # The provider's own: key and what was made (four times); owner, how the node is reached, and the stored results.
    assert process.seen["before write_text"] == process.seen["after write_text"] >= 5
    assert process.seen["before os.replace"] == process.seen["after os.replace"] >= 12
    assert process.points <= MOST_POINTS


def test_a_run_that_is_killed_at_a_point_can_be_resumed_and_leaves_nothing(laboratory):
    _, whole = undisturbed(laboratory)
    for point in range(1, whole.points + 1, STRIDE):
        runs = laboratory.new_account(1)
        runs.run(runs.new_process(random.Random(point), point), lambda *_: None, "never")
        for run_id in runs.unfinished():
            runs.go_on(runs.new_process(random.Random(0), None), lambda *_: None, run_id)
            assert runs.mine() == set(), f"killed at point {point}"
            assert runs.unfinished() == []
        runs.schedule.cloud.clock.advance(48 * 3600)
        runs.schedule.finish()
    assert laboratory.counts["run killed"] == len(range(1, whole.points + 1, STRIDE))


# --- mutants ----------------------------------------------------------------------------------------------------------


def the_making_of_a_node_is_not_journaled_before(monkeypatch):
    event = RunJournal.event

    def later(self, kind, /, **facts):
        if kind != "create":
            event(self, kind, **facts)

    monkeypatch.setattr(RunJournal, "event", later)


def nodes_of_a_killed_process_stay_when_its_run_goes_on(monkeypatch):
    monkeypatch.setattr(resume, "remove_left_nodes", lambda past, provider, tools, *, cache, is_shared: None)


def a_node_is_not_removed_at_the_end_of_its_run(monkeypatch):
    monkeypatch.setattr(experiment, "give_back", lambda provider, distro, node, progress: node.host.close())


def gc_ignores_lone_tags(monkeypatch):
    monkeypatch.setattr(inventory, "lone_tags", lambda api, found: [])


@pytest.mark.parametrize(
    "mutant",
    [
        the_making_of_a_node_is_not_journaled_before, nodes_of_a_killed_process_stay_when_its_run_goes_on,
        a_node_is_not_removed_at_the_end_of_its_run, gc_ignores_lone_tags,
    ],
    ids=lambda mutant: mutant.__name__,
)  # fmt: skip
def test_the_state_machine_notices(tmp_path, monkeypatch, capfd, mutant):
    mutant(monkeypatch)
    laboratory = Laboratory.make(make_bench(tmp_path, monkeypatch, capfd), monkeypatch)
    with pytest.raises(Broken):
        run_killed_runs(laboratory, 60, phases=(Phase.generate,))
