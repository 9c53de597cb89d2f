"""`lab plan` and `lab run --dry-run`: one output, nothing touched."""

from __future__ import annotations

from decimal import Decimal

import pytest

from lab import experiment
from lab.model import UsageError
from lab.phases import Phases
from tests.fakes import FakeDistro
from tests.projects import tree

pytestmark = pytest.mark.usefixtures("signals")

VERSIONS = ("--versions", "v1.36.3,v1.37.2")


@pytest.mark.parametrize("more", [(), ("--json",), ("--quick",)])
def test_a_dry_run_says_what_the_plan_says_and_touches_nothing(bench, more):
    words = (*VERSIONS, "--results", str(bench.results), *more)
    before = tree(bench.root)
    planned, dry = bench.lab("plan", *words), bench.lab("run", "--dry-run", *words)
    assert (planned.code, dry.code) == (0, 0)
    assert planned.out == dry.out != ""
    assert tree(bench.root) == before
    assert bench.steps.calls == []


def test_minutes_by_budget_and_then_from_an_earlier_run(bench, monkeypatch):
    monkeypatch.setattr(experiment, "Phases", lambda: Phases(bench.clock))
    bench.steps.during("provider.create", lambda: bench.clock.advance(90))
    words = ("plan", *VERSIONS, "--results", str(bench.results))
    assert "expected 4.7 minutes (by budget); never less than 0.0" in bench.lab(*words).out
    assert bench.run().code == 0
    text = bench.lab(*words).out
    assert "expected 3.8 minutes (1 of 2 cells as in an earlier run, the rest by budget)" in text
    assert bench.run(versions="v1.37.2").code == 0
    assert "expected 3.0 minutes (as in earlier runs)" in bench.lab(*words).out


def test_cost_calls_and_files(bench):
    words = ("plan", *VERSIONS, "--results", str(bench.results))
    free = bench.lab(*words)
    assert "2 node(s) from qemu" in free.out
    assert "no cost" in free.out
    assert "no API calls" in free.out
    assert f"writes {bench.results}/_runs/<run>/journal.jsonl" in free.out
    assert f"writes {bench.results}/upstream-v1.37.2/fake/<attempt>/{{raw/*," in free.out
    bench.provider.price = Decimal("0.03571")
    assert "about $0.02" in bench.lab(*words).out
    data = bench.lab(*words, "--json").json()
    assert (data["cents"], data["dollars"], data["api_calls"], data["nodes"]) == (2, "0.02", 0, 2)
    assert data["cells"] == ["upstream-v1.36.3", "upstream-v1.37.2"]


@pytest.mark.parametrize("words", [("plan",), ("run", "--dry-run")])
def test_what_a_run_would_refuse_at_once_is_refused(bench, words, monkeypatch):
    def check(distro, cell):
        raise UsageError(f"gate X: k3s {cell.version} does not know it")

    monkeypatch.setattr(FakeDistro, "check", check)
    ended = bench.lab(*words, *VERSIONS, "--results", str(bench.results))
    assert (ended.code, ended.out) == (2, "")
    assert ended.error.startswith("gate X: k3s v1.36.3 does not know it")
