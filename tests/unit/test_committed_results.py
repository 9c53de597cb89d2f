"""The results in this repository: whole, judged by today's code and claims, and shown by today's summary."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import claim_history, judging
from lab.cli import shared
from lab.cli.main import main
from lab.model import GATED, Cell, Gate
from lab.providers.registry import SITES
from lab.report import comparability
from lab.stages import registry
from lab.store import Store

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "results"


def test_results_are_there_and_whole() -> None:
    store = Store(RESULTS)
    assert store.verify() == []
    cells = {attempt.cell.name for attempt in store.attempts()}
    assert {"upstream-v1.34.4", "upstream-v1.35.4", "upstream-v1.36.3", "upstream-v1.37.2"} <= cells
    assert "upstream-v1.37.2+PodLevelResourcesFixKubeletQOSClass=false" in cells


def test_summary_is_what_they_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "--check", "--results", str(RESULTS), "--project", str(ROOT)]) == 0, capsys.readouterr().err


def test_verdicts_are_those_of_todays_code_and_claims() -> None:
    claims = claim_history.read(ROOT / "CLAIM.md").claims
    for attempt in comparability.select(Store(RESULTS).attempts()).attempts:
        stage = registry.BY_NAME[attempt.stage]
        observation, record = judging.judge(stage, attempt.cell, attempt.raw(), claims)
        assert observation == attempt.observation, attempt.path
        assert record == attempt.verdict, attempt.path


@pytest.mark.parametrize("component", GATED)
@pytest.mark.parametrize("stage", ["class", "kernel", "quota"])
def test_a_leg_without_what_a_component_said_of_its_gates_is_unknown(stage: str, component: str) -> None:
    """What is emptied here stood in no default: the gate of this leg is off."""
    claims = claim_history.read(ROOT / "CLAIM.md").claims
    cell = Cell(distro="upstream", version="v1.37.2", gates=(Gate.parse("PodLevelResourcesFixKubeletQOSClass=false"),))
    (attempt,) = Store(RESULTS).attempts(cell=cell, stage=stage)
    raw = attempt.raw()
    for changed in ({**raw, f"gates-{component}.txt": ""}, {**raw, f"gates-{component}.txt": raw["node-facts.txt"]}):
        _, record = judging.judge(registry.BY_NAME[stage], cell, changed, claims)
        assert {entry["outcome"] for entry in record["verdicts"]} == {"UNKNOWN"}
        assert f"what was read of the {component}'s metrics does not say whether PodLevelResources" in record["problem"]


def test_stamps_are_those_of_todays_inputs_or_the_summary_says_that_they_are_stale() -> None:
    selection = comparability.select(Store(RESULTS).attempts())
    today = shared.today_stamps(ROOT, shared.DEFAULT_OPTIONS, "upstream", SITES["qemu"])
    text = (RESULTS / "summary.md").read_text()
    for attempt in selection.attempts:
        fixed = {name for name in attempt.stamp.inputs if not name.startswith("param/")}
        now = today[attempt.stage].inputs
        if any(now.get(name) != attempt.stamp.inputs[name] for name in fixed):
            section = text.split(f"({attempt.stage})", 1)[1].split("\n## ", 1)[0]
            assert "stale" in section, attempt.path


def test_no_path_of_the_measuring_machine_is_stored() -> None:
    for path in RESULTS.rglob("stamp.json"):
        assert "/home/" not in path.read_text()
        assert "/root/" not in path.read_text()
