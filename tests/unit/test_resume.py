"""A run that was killed, or lost its node, goes on: nothing twice, the same files, nothing left behind."""

from __future__ import annotations

import json
import os
import random
from dataclasses import fields, replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab import experiment, resume
from lab.config import NodeOptions, RunConfig, make_cells
from lab.model import NodeError, ResultsError, TransportError, UsageError
from lab.run_records import earlier_phases
from tests.fakes import MUST_AGREE, said_by
from tests.killed_runs import Killing, looped
from tests.projects import commit_claims, fake_stage

pytestmark = pytest.mark.usefixtures("signals")

SEED = 20261130


@pytest.fixture
def killing(bench, monkeypatch):
    # A killed process loses nothing that it has given to the kernel, and a disk is slow to say that it has it.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return Killing.make(bench, "v1.36.3", "v1.37.2")


def check_whole(killing, undisturbed, done_before):
    """After the last process of a run: everything is there, once, and nothing else."""
    assert killing.names() == undisturbed
    assert killing.left() == []
    assert killing.bench.store.verify() == []
    assert killing.bench.store.partials() == []
    counts = killing.counts()
    assert {name: counts[name] for name in done_before} == done_before, "what was done is not done again"
    assert all(counts[f"{cell.version}/{number}"] for cell in killing.config.cells for number in (1, 2, 3))
    for attempt in killing.bench.store.attempts(stage="fake"):
        assert json.loads(attempt.raw()["plan.json"]) == [2, 0, 1], "the order is that of the seed"
    record = killing.bench.record()
    assert [cell["problem"] for cell in record["cells"]] == [None, None]
    assert [cell["outcomes"] for cell in record["cells"]] == [{"number-one": "HELD"}] * 2


@pytest.fixture
def undisturbed(killing):
    killing.fresh()
    results = killing.go()
    assert [result.problem for result in results] == [None, None]
    found = killing.names()
    killing.fresh()
    return found


def kill_and_resume(killing, undisturbed, at, *, after, again=None):
    """Kill a run at a point, and its resumption ``again``; then let it end. Whether the first process was killed."""
    killing.fresh()
    killed = killing.in_a_process(at, after=after)
    run_id = killing.run_id()
    if run_id is None:
        assert killed
        assert killing.left() == [], "nothing is made before the run can be found again"
        return True
    done = dict.fromkeys(killing.done(), 1)
    if again is not None:
        killing.in_a_process(again, run_id=run_id)
        assert {name: killing.counts()[name] for name in done} == done
        done = {name: killing.counts()[name] for name in killing.done()}
    results = killing.go(run_id)
    assert [result.problem for result in results] == [None, None]
    check_whole(killing, undisturbed, done)
    return killed


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.e2e)])
def test_a_run_killed_at_any_change_of_the_disk_is_resumed(killing, undisturbed, stride):
    seen = 0
    for at in range(1, 2000, stride):
        if not kill_and_resume(killing, undisturbed, at, after=bool(at // stride % 2)):
            break
        seen = at
    assert 100 < seen < 1000


@pytest.mark.parametrize("times", [5, pytest.param(25, marks=pytest.mark.e2e)])
def test_a_run_killed_twice_is_resumed(killing, undisturbed, times):
    chance = random.Random(SEED)
    for _ in range(times):
        kill_and_resume(killing, undisturbed, chance.randrange(10, 150), after=True, again=chance.randrange(1, 80))


# --- without a kill: the node is lost


def lose(context, number):
    if number == 2:
        raise TransportError("node-1: no connection that lasts")


def lost_run(killing, **provider_changes):
    """A run whose node of the first version is lost in its second repetition; the run's name."""
    del provider_changes
    killing.bench.use_stages(looped(killing.log, during=lose), fake_stage("other"))
    killing.config = replace(killing.config, cells=killing.config.cells[:1])
    (result,) = killing.go()
    assert isinstance(result.problem, TransportError)
    assert result.missing == ("fake", "other")
    killing.bench.use_stages(looped(killing.log), fake_stage("other"))
    run_id = killing.run_id()
    assert run_id is not None
    return run_id


def test_a_lost_node_costs_the_repetition_that_ran(killing):
    run_id = lost_run(killing)
    (result,) = killing.go(run_id)
    assert (result.problem, result.missing, result.sessions) == (None, (), 2)
    assert killing.log.read_text().split() == [f"v1.36.3/{number}" for number in (1, 2, 2, 3)]
    (attempt,) = killing.bench.store.attempts(stage="fake")
    first, second = (event["node"] for event in killing.events() if event["kind"] == "create")
    assert attempt.extra["repetitions"] == {"1": first, "2": second, "3": second}
    assert attempt.extra["node"] == first
    assert set(attempt.extra["nodes"]) == {first, second}
    assert second.endswith("-1r2")
    (other,) = killing.bench.store.attempts(stage="other")
    assert other.extra == {"seed": 7, "node": second}


def test_what_another_node_says_of_itself_is_kept_beside_what_the_first_said(killing, monkeypatch):
    run_id = lost_run(killing)
    made = killing.new_tools()
    made.distro.facts_texts = {"node-facts.txt": "another node\n"}
    made.distro.shown = {"kernel": "7.3"}
    experiment.run(killing.config, made, resume.open_run(killing.bench.store, run_id))
    (attempt,) = killing.bench.store.attempts(stage="fake")
    second = attempt.extra["repetitions"]["3"]
    assert attempt.raw()["node-facts.txt"] == said_by(attempt.cell)["node-facts.txt"]
    assert attempt.extra["nodes"][second] == {"shown": {"kernel": "7.3"}, "texts": {"node-facts.txt": "another node\n"}}
    assert attempt.environment.shown["kernel"] == "7.2.12"


def test_another_environment_is_refused_and_named(killing):
    run_id = lost_run(killing)
    made = killing.new_tools()
    made.distro.must_agree = {**MUST_AGREE, "emulation": "kvm", "vcpus": "4"}
    (result,) = experiment.run(killing.config, made, resume.open_run(killing.bench.store, run_id))
    assert isinstance(result.problem, ResultsError)
    assert result.problem.exit_code == 4
    assert "emulation was none and is kvm; vcpus was 2 and is 4" in str(result.problem)
    assert "upstream-v1.36.3/fake/0001 cannot go on here" in str(result.problem)
    assert killing.left() == []
    (result,) = killing.go(run_id)
    assert result.problem is None, "where it was begun it still goes on"


@pytest.mark.parametrize("harm", ["changed", "deleted", "common"])
def test_a_repetition_whose_texts_are_not_as_they_were_is_done_again(killing, harm):
    run_id = lost_run(killing)
    (partial,) = killing.bench.store.partials()
    text = partial / "raw" / ("plan.json" if harm == "common" else "1-first.txt")
    if harm == "deleted":
        text.unlink()
    else:
        text.write_text("something else")
    killing.go(run_id)
    assert killing.counts()["v1.36.3/1"] == 2
    (attempt,) = killing.bench.store.attempts(stage="fake")
    assert attempt.raw()["1-first.txt"] == "first of 1"
    assert json.loads(attempt.raw()["plan.json"]) == [2, 0, 1]


def test_a_failed_stage_stays_failed_and_is_not_run_again(killing):
    def fail(context, number):
        raise NodeError("pods do not hold their memory")

    def lost(context):
        raise TransportError("gone")

    killing.config = replace(killing.config, cells=killing.config.cells[:1])
    killing.bench.use_stages(looped(killing.log, during=fail), fake_stage("other", collect=lost))
    killing.go()
    killing.bench.use_stages(looped(killing.log, during=fail), fake_stage("other"))
    (result,) = killing.go(killing.run_id())
    assert (result.problem, result.failed_stages, result.missing) == (None, ["fake"], ())
    assert killing.counts() == {"v1.36.3/1": 1}


def test_times_of_a_resumed_cell_are_no_measure_for_the_next_run(killing):
    run_id = lost_run(killing)
    killing.go(run_id)
    config = killing.config
    assert killing.bench.record()["cells"][0]["sessions"] == 2
    assert earlier_phases(config.results, config.cells[0], config.stages, config.options) is None


def test_times_of_a_cell_that_one_process_did_are_kept(killing):
    def lost(context):
        raise TransportError("gone")

    later = [looped(killing.log), fake_stage("other")]
    lost_stage = fake_stage("other", collect=lambda c: lost(c) if c.cluster.cell.version == "v1.37.2" else None)
    killing.bench.use_stages(looped(killing.log), lost_stage)
    killing.go()
    before = killing.bench.record()["cells"][0]
    killing.bench.use_stages(*later)
    killing.go(killing.run_id())
    first, second = killing.bench.record()["cells"]
    assert first == before
    assert "sessions" not in first
    assert (second["sessions"], second["problem"]) == (2, None)


def test_a_kept_node_of_the_dead_run_stays(killing):
    killing.config = replace(killing.config, keep="failed")
    run_id = lost_run(killing)
    (kept,) = killing.left()
    (result,) = killing.go(run_id)
    assert result.problem is None
    assert killing.left() == [kept]


# --- the command line


@pytest.fixture
def lost(bench):
    """A run of the program that lost its node, and the stages mended."""
    killing = Killing.make(bench, "v1.36.3")
    bench.use_stages(looped(killing.log, during=lose), fake_stage("other"))
    ended = bench.run()
    assert ended.code == 5
    bench.use_stages(looped(killing.log), fake_stage("other"))
    return killing


def resumed(killing, *words, run_id=None):
    results = str(killing.bench.results)
    return killing.bench.lab("run", "--resume", run_id or killing.run_id(), "--results", results, *words)


def test_resume_by_name(lost):
    ended = resumed(lost)
    assert ended.code == 0, ended.err
    assert "repetition 1 is there" in ended.err
    assert ended.out.count("HELD") == 1
    assert lost.counts() == {"v1.36.3/1": 1, "v1.36.3/2": 2, "v1.36.3/3": 1}
    again = resumed(lost)
    assert (again.code, again.out) == (0, "")
    assert f"run {lost.run_id()} is complete: nothing to do" in again.err
    assert lost.bench.steps.names().count("provider.create") == 2


def test_json_and_quiet(lost):
    ended = resumed(lost, "--json", "--quiet")
    assert ended.code == 0
    assert ended.json()[0]["run"] == lost.run_id()
    assert ended.err == ""


def test_an_unknown_run_names_those_that_can_be_resumed(lost):
    for name in ("20200101T000000Z-0000", "../x", ".", ""):
        ended = resumed(lost, run_id=name or "''")
        assert ended.code == 2
        assert f"those that can be resumed: {lost.run_id()}" in ended.error
    resumed(lost)
    assert "can be resumed: none" in resumed(lost, run_id="nothing").error


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--reps", "5"], "--reps"),
        (["--versions", "v1.36.3", "--quick"], "--versions, --quick"),
        (["--no-build", "--no-download"], "--no-download, --no-build"),
        (["--max-cost", "1"], "--max-cost"),
    ],
)
def test_a_flag_that_would_change_the_run_is_refused(lost, words, named):
    ended = resumed(lost, *words)
    assert ended.code == 2
    assert f"leave out {named}" in ended.error


def test_a_plan_of_the_rest_is_refused(lost):
    assert lost.bench.lab("plan", "--resume", lost.run_id()).code == 2
    assert resumed(lost, "--dry-run").code == 2


def test_changed_inputs_are_named(lost):
    project = lost.bench.project
    with (project / "node-scripts/node_facts.sh").open("a") as file:
        file.write("# one more line\n")
    ended = resumed(lost)
    assert ended.code == 4
    assert "fake: script/node_facts.sh; other: script/node_facts.sh; put them back" in ended.error
    assert lost.bench.steps.names().count("provider.create") == 1


def test_changed_claims_are_named(lost):
    text = (lost.bench.project / "CLAIM.md").read_text()
    with (lost.bench.project / "CLAIM.md").open("a") as file:
        file.write("one more word\n")
    assert "since it began: CLAIM.md; put them back" in resumed(lost).error
    commit_claims(lost.bench.project, text.replace("The number is one", "It is one"))
    assert resumed(lost).code == 4
    commit_claims(lost.bench.project, text)
    assert resumed(lost).code == 0


def test_another_cache_is_refused(lost, monkeypatch):
    monkeypatch.setenv("LAB_CACHE", str(lost.bench.root / "elsewhere"))
    ended = resumed(lost)
    assert ended.code == 2
    assert "set LAB_CACHE as it was then" in ended.error


def test_a_run_that_goes_on_is_left_alone(lost):
    journal = lost.bench.store.open_run(lost.run_id())
    journal.own()
    ended = resumed(lost)
    journal.close()
    assert ended.code == 2
    assert f"is still being done by process {os.getpid()}" in ended.error
    assert resumed(lost).code == 0


@pytest.mark.parametrize(
    ("journal", "why"),
    [("", "had not begun when it ended"), ('{"kind": "run", "cells": []}\n', "did not note its settings")],
)
def test_a_journal_that_does_not_tell_is_refused(lost, journal, why):
    path = lost.bench.results / "_runs" / lost.run_id() / "journal.jsonl"
    path.write_text(journal)
    ended = resumed(lost, run_id=path.parent.name)
    assert ended.code == 2
    assert why in ended.error


def test_settings_of_another_version_are_refused(lost):
    path = lost.bench.results / "_runs" / lost.run_id() / "journal.jsonl"
    path.write_text(path.read_text().replace('"own_images": false', '"own_pictures": false'))
    ended = resumed(lost)
    assert ended.code == 2
    assert "another version of the lab" in ended.error


def test_an_interrupted_run_says_how_to_go_on(bench):
    def stop(context):
        raise KeyboardInterrupt

    bench.use_stages(fake_stage(collect=stop))
    assert bench.run().code == 130
    (run_id,) = [path.name for path in bench.results.glob("_runs/*")]
    bench.use_stages(fake_stage())
    ended = bench.lab("run", "--resume", run_id, "--results", str(bench.results))
    assert ended.code == 0
    assert [attempt.number for attempt in bench.store.attempts()] == [1]


# --- settings in the journal


@given(
    versions=st.lists(st.sampled_from(["v1.34.4", "v1.36.3", "v1.37.2"]), min_size=1, max_size=3, unique=True),
    cost=st.none() | st.decimals(min_value="0.01", max_value=100, places=2),
    paths=st.lists(st.none() | st.sampled_from(["a", "/b/c", "~/d"]).map(Path), min_size=3, max_size=3),
    numbers=st.tuples(st.integers(1, 50), st.integers(0, 2**31), st.none() | st.floats(0.5, 500)),
    flags=st.lists(st.booleans(), min_size=5, max_size=5),
    host=st.none() | st.just("me@203.0.113.7:2222"),
)
def test_every_setting_survives_the_journal(versions, cost, paths, numbers, flags, host):
    config = RunConfig(
        cells=make_cells("upstream", ",".join(versions), ("A=false@kubelet",), ()), stages=("class", "cpu"),
        provider="qemu", distro="upstream", results=Path("r"), project=Path("p"), cache=Path("c"), keep="failed",
        reps=numbers[0], seed=numbers[1], max_minutes=numbers[2], order="random", quick=flags[0],
        reuse_node=flags[1], own_images=flags[2], download=flags[3], build=flags[4], artifacts=paths[0],
        max_cost=None if cost is None else Decimal(cost), node=None,
        nodes=NodeOptions(host=host, identity=paths[1], known_hosts=paths[2], ssh_port=22),
    )  # fmt: skip
    stored = json.loads(json.dumps(resume.config_as_json(config)))
    assert resume.config_from_json(stored, results=Path("r"), project=Path("p"), cache=Path("c")) == config
    assert set(stored) == {entry.name for entry in fields(config)} - {"results", "project", "cache"}


def test_unknown_settings_are_an_error():
    with pytest.raises((TypeError, KeyError)):
        resume.config_from_json({"nodes": {}, "cells": []}, results=Path("r"), project=Path("p"), cache=Path("c"))


def test_the_resumed_run_needs_this_machines_claims_to_be_committed(lost):
    with pytest.raises(UsageError, match="no run"):
        resume.open_run(lost.bench.store, "x")
