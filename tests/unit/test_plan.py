"""The plan of a run: attempts in order, folders, and totals that add up."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from lab import plan
from lab.config import RunConfig, make_cells
from lab.model import Stamp, UsageError
from lab.stages import registry

STAMPS = {stage.name: Stamp(inputs={"stage": stage.name}) for stage in registry.STAGES}
CONFIG = RunConfig(
    cells=make_cells("upstream", "v1.36.3,v1.37.2", (), ("v1.37.2:A=false",)),
    stages=("class", "quota"), provider="qemu", distro="upstream", results=Path("results"), project=Path("."),
    cache=Path("/c"), keep="never", seed=1, quick=False, reps=3, order="random",
)  # fmt: skip


def seconds(config, *names):
    return sum(registry.BY_NAME[name].budget_s(config.options) for name in names)


def test_every_attempt_in_running_order():
    planned = plan.make(CONFIG, STAMPS)
    assert [(entry.cell, entry.stage) for entry in planned] == [
        (cell, stage)
        for cell in ("upstream-v1.36.3", "upstream-v1.37.2", "upstream-v1.37.2+A=false")
        for stage in ("class", "quota")
    ]


def test_the_order_of_stages_is_the_labs_and_not_the_flags():
    config = replace(CONFIG, stages=("quota", "class"), cells=CONFIG.cells[:1])
    assert [entry.stage for entry in plan.make(config, STAMPS)] == ["class", "quota"]


def test_folder_and_stamp():
    first = plan.make(CONFIG, STAMPS)[0]
    assert first.folder == "results/upstream-v1.36.3/class/"
    assert first.stamp == STAMPS["class"].digest[:12]


def test_a_quick_run_goes_beside_the_results():
    folders = [entry.folder for entry in plan.make(replace(CONFIG, quick=True), STAMPS)]
    assert all(folder.startswith("results/_smoke/upstream-") for folder in folders)


def test_the_total_is_stages_and_one_node_a_cell():
    planned = plan.make(CONFIG, STAMPS)
    nodes = 3 * (plan.BOOT_BUDGET_S + plan.INSTALL_BUDGET_S)
    assert plan.total_seconds(CONFIG, planned) == 3 * seconds(CONFIG, "class", "quota") + nodes


def test_a_kept_node_costs_no_boot():
    config = replace(CONFIG, node="n-1", cells=CONFIG.cells[:1])
    planned = plan.make(config, STAMPS)
    assert plan.total_seconds(config, planned) == seconds(config, "class", "quota")
    assert plan.as_json(config, planned, Decimal(0), {})["nodes"] == 0


@pytest.mark.parametrize("stage", [stage.name for stage in registry.STAGES])
def test_more_repetitions_never_take_less_time_and_quick_never_more(stage):
    few, many, quick = (
        seconds(config, stage) for config in (CONFIG, replace(CONFIG, reps=10), replace(CONFIG, quick=True, reps=1))
    )
    assert 0 < quick <= few <= many


def test_all_of_it_as_json():
    planned = plan.make(CONFIG, STAMPS)
    data = json.loads(json.dumps(plan.as_json(CONFIG, planned, Decimal("0.03571"), {})))
    assert (data["provider"], data["distro"], data["nodes"]) == ("qemu", "upstream", 3)
    assert data["minutes"] == round(plan.total_seconds(CONFIG, planned) / 60, 1)
    assert data["dollars"] == "0.03", "three nodes of a cent each, the least that is billed"
    assert len(data["attempts"]) == 6
    assert data["attempts"][0] == {
        "cell": "upstream-v1.36.3", "stage": "class", "seconds": seconds(CONFIG, "class"),
        "folder": "results/upstream-v1.36.3/class/", "stamp": STAMPS["class"].digest[:12],
    }  # fmt: skip


def test_the_lower_bound_is_what_is_waited_on_purpose():
    config = replace(CONFIG, stages=("class", "cpu", "eviction", "eviction-priority"), cells=CONFIG.cells[:1])
    planned = plan.make(config, STAMPS)
    # Six CPU windows of 20 s after 5 s; three times 12 s of pressure with 30 s in between; once 12 s.
    assert [entry.windows_s for entry in planned] == [0, 150, 96, 12]
    data = plan.as_json(config, planned, Decimal(0), {})
    assert data["minutes_windows"] == round(258 / 60, 1)
    assert all(entry.windows_s <= entry.seconds for entry in planned)
    quick = plan.make(replace(config, quick=True), STAMPS)
    assert [entry.windows_s for entry in quick] == [0, 14, 12, 12]


def test_expected_minutes_are_those_of_an_earlier_run_where_there_is_one():
    planned = plan.make(CONFIG, STAMPS)
    first, second, third = CONFIG.cells
    a_cell = plan.BOOT_BUDGET_S + plan.INSTALL_BUDGET_S + seconds(CONFIG, "class", "quota")
    assert plan.expected_seconds(CONFIG, planned, {}) == (3 * a_cell, 0)
    before = {first: {"boot": 40.0, "other": 20.0}, second: None}
    assert plan.expected_seconds(CONFIG, planned, before) == (2 * a_cell + 60.0, 1)
    every = {cell: {"boot": 1.0} for cell in (first, second, third)}
    assert plan.expected_seconds(CONFIG, planned, every) == (3.0, 3)


def test_expected_minutes_of_one_node_for_all_and_of_a_kept_node():
    shared = replace(CONFIG, reuse_node=True)
    planned = plan.make(shared, STAMPS)
    stages = seconds(CONFIG, "class", "quota")
    assert plan.expected_seconds(shared, planned, {}) == (
        3 * (stages + plan.INSTALL_BUDGET_S) + plan.BOOT_BUDGET_S, 0,
    )  # fmt: skip
    kept = replace(CONFIG, node="n-1", cells=CONFIG.cells[:1])
    assert plan.expected_seconds(kept, plan.make(kept, STAMPS), {}) == (stages, 0)
    phases = {"boot": 40.0, "install": 30.0, "ready": 9.0, "pods": 5.0, "removal": 1.0}
    before = dict.fromkeys(CONFIG.cells, phases)
    assert plan.expected_seconds(kept, plan.make(kept, STAMPS), before) == (5.0, 1)
    assert plan.expected_seconds(shared, planned, before) == (3 * 45.0 + 40.0, 3)


def test_api_calls_are_none_but_in_the_cloud_and_none_on_a_kept_node():
    assert plan.api_calls(CONFIG) == 0
    assert plan.api_calls(replace(CONFIG, provider="ssh")) == 0
    run, node = plan.API_CALLS["digitalocean"]
    assert plan.api_calls(replace(CONFIG, provider="digitalocean")) == run + 3 * node
    kept = replace(CONFIG, provider="digitalocean", node="n-1", cells=CONFIG.cells[:1])
    assert plan.api_calls(kept) == 0


def test_files_that_would_be_written():
    found = plan.files(CONFIG, plan.make(CONFIG, STAMPS))
    assert found[0] == (
        "results/upstream-v1.36.3/class/<attempt>/{raw/*,observation.json,verdict.json,stamp.json,SHA256SUMS}"
    )
    assert len(found) == 6 + 6
    assert "results/_runs/<run>/journal.jsonl" in found
    assert "results/summary.md" in found
    quick = replace(CONFIG, quick=True)
    assert "results/summary.md" not in plan.files(quick, plan.make(quick, STAMPS))


def test_an_unknown_stage_names_those_that_exist():
    with pytest.raises(UsageError, match=r"unknown stage klass; there are: class, "):
        plan.make(replace(CONFIG, stages=("klass",)), STAMPS)


@pytest.mark.parametrize(
    ("seconds_of_life", "hourly", "bill"),
    [
        (0, "0", "0"),
        (3600, "0", "0"),
        (0, "0.03571", "0.01"),
        (59, "0.6", "0.01"),
        (61, "0.6", "0.02"),
        (3600, "0.03571", "0.04"),
        (7200, "0.5", "1.00"),
    ],
)
def test_a_node_is_billed_by_the_second_at_least_a_cent_and_rounded_up(seconds_of_life, hourly, bill):
    assert plan.dollars(seconds_of_life, Decimal(hourly)) == Decimal(bill)


def test_a_node_outlives_all_that_is_planned_with_it_and_a_kept_one_the_time_it_is_kept():
    never = plan.expiry_s(CONFIG, 1000.0)
    assert never >= 1000.0 + plan.LIFE_MARGIN_S + 3 * seconds(CONFIG, "class", "quota")
    for keep in ("failed", "always"):
        assert plan.expiry_s(replace(CONFIG, keep=keep), 1000.0) == never + plan.KEEP_S
