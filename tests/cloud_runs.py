"""Whole runs on the account in memory, killed before or after any request and any write, and resumed, as a hypothesis
state machine: what it finds, it shrinks to the shortest schedule and the earliest kill.

A run is the real lifecycle with its journal and its stored results; distribution and stages are fakes.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import hypothesis
import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from lab import clock, experiment, resume, store
from lab.config import RunConfig
from lab.experiment import CellResult, Tools
from lab.journal import read_events
from lab.model import Cell, LeftBehind
from lab.providers.contract import Site
from lab.providers.digitalocean import names
from lab.store import Store
from tests.cloud_bench import HOUR_S
from tests.cloud_crashes import IS_CAMPAIGN, Machine, Process, Schedule, random_faults, require, snapshot
from tests.digitalocean_api import Effect
from tests.fakes import Deadlines, FakeDistro
from tests.killed_runs import looped
from tests.projects import Bench

EXAMPLES = 1000 if IS_CAMPAIGN else 15
STEPS = 6
MOST_POINTS = 420
"""Somewhat more than an undisturbed run has."""


class NothingToInstall(FakeDistro):
    """A distribution that brings no files, whatever the site."""

    def files(self, cell: Cell, site: Site) -> Mapping[str, Path]:
        assert not site.reaches_controller
        return {}


@dataclass(kw_only=True)
class Laboratory:
    """What all examples share: one project, one machine, and what happened so far."""

    bench: Bench
    machine: Machine
    tools: Tools
    examples: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    @classmethod
    def make(cls, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Laboratory:
        bench.use_stages(looped(bench.root / "repetitions.log"))
        monkeypatch.setattr(clock, "check", lambda host: None)
        return cls(bench=bench, machine=Machine(monkeypatch), tools=replace(bench.tools(), distro=NothingToInstall()))

    def new_account(self, seed: int) -> Runs:
        """Another account, cache and results; the example before is forgotten."""
        shutil.rmtree(self.bench.root / f"{self.examples}", ignore_errors=True)
        self.examples += 1
        folder = self.bench.root / f"{self.examples}"
        schedule = Schedule(folder, self.machine, seed)
        schedule.counts = self.counts
        self.bench.monkeypatch.setattr(experiment, "Deadline", Deadlines(schedule.cloud.clock))
        numbers = iter(range(10_000))
        self.bench.monkeypatch.setattr(store.secrets, "token_hex", lambda size: f"{next(numbers):04x}")
        tools = replace(self.tools, store=Store(folder / "results"), clock=schedule.cloud.clock)
        return Runs(bench=self.bench, folder=folder, schedule=schedule, tools=tools)


@dataclass(kw_only=True)
class Runs:
    """Runs of one example, one after the other. ``tools`` lack the provider: each process makes its own."""

    bench: Bench
    folder: Path
    schedule: Schedule
    tools: Tools

    def new_process(self, rng: random.Random, kill: int | str | None) -> Process:
        """One that dies at a point (a number), soon after the first create of a kind (a word), or never."""
        self.schedule.processes += 1
        at, after = (kill, None) if not isinstance(kill, str) else (None, kill)
        return Process(self.schedule.processes, rng, at, after)

    def config(self, keep: str) -> RunConfig:
        return self.bench.config(keep=keep, provider="digitalocean", results=self.folder / "results", cache=self.folder)

    def unfinished(self) -> list[str]:
        """Runs that a process began and that can go on."""
        return resume.resumable(self.tools.store)

    def run(self, process: Process, faults: Callable[..., Effect | None], keep: str) -> None:
        self._go(process, faults, lambda tools: experiment.run(self.config(keep), tools))

    def go_on(self, process: Process, faults: Callable[..., Effect | None], run_id: str) -> None:
        """Resume, as `lab run --resume` does."""

        def again(tools: Tools) -> list[CellResult]:
            past = resume.open_run(tools.store, run_id)
            try:
                config = past.config(results=self.folder / "results", project=self.bench.project, cache=self.folder)
                return experiment.run(config, tools, past)
            finally:
                past.journal.close()

        self._go(process, faults, again)

    def _go(
        self, process: Process, faults: Callable[..., Effect | None], action: Callable[[Tools], list[CellResult]]
    ) -> None:
        results: list[CellResult] = []

        def life() -> None:
            results.extend(action(replace(self.tools, provider=self.schedule.cloud.provider())))

        ended = self.schedule.do(life, process, faults)
        if any(isinstance(result.problem, LeftBehind) for result in results):
            ended = "left behind"
        self.schedule.counts[f"run {ended}"] += 1
        self.check_journaled()
        if ended == "done":
            self._check_done(results)

    def _check_done(self, results: list[CellResult]) -> None:
        """A run that came to its end has what it was asked to keep in the account, and nothing else."""
        for result in results:
            kept = {result.kept} - {None}
            there = {name.node_id for name in self.mine() if result.run_id.lower() in name.node_id}
            require(there <= kept, f"run {result.run_id} is over and left {there}, kept are {kept}")
            if result.problem is None and not result.is_restored:
                require(result.missing == (), f"run {result.run_id} has no {result.missing} and no problem")

    def mine(self) -> set[names.CloudName]:
        """Names of ours that are in the account, but for the lab of somebody else."""
        seen = snapshot(self.schedule.cloud)
        held = [name for name, _ in [*seen.droplets.values(), *seen.firewalls.values()]] + list(seen.keys.values())
        others = self.schedule.others
        known = {name for name, _ in others.droplets.values()} | set(others.keys.values())
        return {name for text in held if text not in known and (name := names.parse(text)) is not None}

    def check_journaled(self) -> None:
        """Every node in the account was journaled before anything of it was made."""
        told = {
            event["node"]
            for folder in (self.folder / "results" / "_runs").glob("*")
            for event in read_events(folder)
            if event["kind"] == "create"
        }
        unknown = {name.node_id for name in self.mine()} - told
        require(not unknown, f"no journal tells of {unknown}")


KILLS = st.none() | st.integers(1, MOST_POINTS) | st.sampled_from(["tags", "firewalls", "keys", "droplets"])
SEEDS = st.integers(0, 2**16)


def machine_of(laboratory: Laboratory) -> type[RuleBasedStateMachine]:
    """The state machine on a laboratory."""

    class KilledRuns(RuleBasedStateMachine):
        runs: Runs

        @initialize(seed=SEEDS)
        def account(self, seed: int) -> None:
            self.runs = laboratory.new_account(seed)

        @rule(kill=KILLS, seed=SEEDS, keep=st.sampled_from(["never", "never", "always"]))
        def run(self, kill: int | str | None, seed: int, keep: str) -> None:
            rng = random.Random(seed)
            self.runs.run(self.runs.new_process(rng, kill), random_faults(rng), keep)

        @precondition(lambda self: self.runs.unfinished())
        @rule(kill=KILLS, seed=SEEDS)
        def go_on(self, kill: int | str | None, seed: int) -> None:
            rng = random.Random(seed)
            self.runs.go_on(self.runs.new_process(rng, kill), random_faults(rng), self.runs.unfinished()[-1])

        @rule(kill=KILLS, seed=SEEDS)
        def collect(self, kill: int | str | None, seed: int) -> None:
            rng, now = random.Random(seed), self.runs.schedule.cloud.clock()
            before = {name for name in self.runs.mine() if name.expires_s > now + HOUR_S}
            provider = self.runs.schedule.cloud.provider()
            process = self.runs.new_process(rng, kill)
            self.runs.schedule.do(lambda: provider.collect_garbage(dry_run=False), process, random_faults(rng))
            laboratory.counts["gc"] += 1
            require(before <= self.runs.mine(), "gc removed something before its time")

        @rule(hours=st.sampled_from([0.1, 2.0, 20.0]))
        def wait(self, hours: float) -> None:
            self.runs.schedule.cloud.clock.advance(hours * HOUR_S)

        def teardown(self) -> None:
            if hasattr(self, "runs"):
                self.runs.schedule.cloud.clock.advance(48 * HOUR_S)
                self.runs.schedule.finish()

    return KilledRuns


def run_killed_runs(laboratory: Laboratory, examples: int, phases: Collection[Phase] = tuple(Phase)) -> str:
    """A sentence with the counts; Broken, with the shortest schedule, when a promise did not hold."""
    settings = hypothesis.settings(max_examples=examples, stateful_step_count=STEPS, phases=phases)
    run_state_machine_as_test(machine_of(laboratory), settings=settings)
    told = ", ".join(f"{number} {what}" for what, number in sorted(laboratory.counts.items()))
    return f"{laboratory.examples} accounts: 0 resources left, 0 duplicates, 0 of others touched ({told})"
