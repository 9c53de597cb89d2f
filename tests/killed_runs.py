"""Runs that are really killed (SIGKILL to a process of their own) at a chosen change of the disk, and resumed here.

The stage has repetitions and writes down, outside of the results, each one that it begins to measure.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab import experiment, resume
from lab.config import RunConfig
from lab.experiment import CellResult, Tools
from lab.journal import read_events
from lab.model import NoSuchNode
from lab.providers.contract import Node
from lab.stages.context import StageContext
from lab.stages.contract import Stage
from tests.fakes import FakeDistro, FakeProvider, Steps
from tests.projects import Bench, fake_stage

CHANGES = ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir")
REPETITIONS = 3


class FolderProvider(FakeProvider):
    """Its nodes are folders, so that another process sees what a killed one left."""

    def destroy(self, node: Node) -> None:
        super().destroy(node)
        shutil.rmtree(node.folder)

    def down(self, node_id: str) -> None:
        if not (self.root / node_id).is_dir():
            raise NoSuchNode(f"no node {node_id!r}")
        shutil.rmtree(self.root / node_id)


def looped(log: Path, *, during: Callable[[StageContext, int], None] = lambda context, number: None) -> Stage:
    """Stage ``fake`` with three repetitions of two texts each, and a random order in its plan."""

    def collect(context: StageContext) -> None:
        order = list(range(REPETITIONS))
        random.Random(context.seed).shuffle(order)
        context.save("plan.json", json.dumps(order))
        context.save("number.txt", "1")
        for number in context.repetitions(REPETITIONS):
            with log.open("a") as file:
                file.write(f"{context.cluster.cell.version}/{number}\n")
            context.save(f"{number}-first.txt", f"first of {number}")
            during(context, number)
            context.save(f"{number}-second.txt", f"second of {number}")

    return fake_stage("fake", collect=collect)


@dataclass(kw_only=True)
class Killing:
    """A run on a bench that can be killed and resumed again and again."""

    bench: Bench
    config: RunConfig
    tools: Tools
    log: Path

    @classmethod
    def make(cls, bench: Bench, *versions: str, **changes: Any) -> Killing:
        """Stages ``fake`` (repetitions) and ``other`` (none)."""
        log = bench.root / "repetitions.log"
        bench.use_stages(looped(log), fake_stage("other"))
        return cls(bench=bench, config=bench.config(*versions, **changes), tools=bench.tools(), log=log)

    def fresh(self) -> None:
        """Forget everything of the last run."""
        for place in (self.bench.results, self.nodes):
            shutil.rmtree(place, ignore_errors=True)
        self.log.write_text("")

    @property
    def nodes(self) -> Path:
        return self.bench.root / "nodes"

    def new_tools(self) -> Tools:
        """As another process has them: without memory of what was made."""
        steps = Steps()
        provider = FolderProvider(root=self.nodes, steps=steps)
        return replace(self.tools, provider=provider, distro=FakeDistro(steps=steps))

    def in_a_process(self, at: int, *, after: bool = False, run_id: str | None = None) -> bool:
        """Run, or resume, in a process that kills itself at its ``at``-th change of the disk; whether it was killed.

        ``after``: when the change is done, not before. The process tells nobody anything.
        """
        child = os.fork()
        if child == 0:
            try:
                count = [0]
                for name in CHANGES:
                    setattr(os, name, _deadly(getattr(os, name), count, at, after=after))
                self.go(run_id)
                os._exit(0)
            except BaseException:
                os._exit(99)
        _, status = os.waitpid(child, 0)
        assert status in (0, signal.SIGKILL), f"the process ended with {status}"
        return status == signal.SIGKILL

    def go(self, run_id: str | None = None) -> list[CellResult]:
        """Run in this process, or resume."""
        tools = self.new_tools()
        past = None if run_id is None else resume.open_run(self.bench.store, run_id)
        return experiment.run(self.config, tools, past)

    def run_id(self) -> str | None:
        """The only run; None when none has begun."""
        found = [path.name for path in self.bench.results.glob("_runs/*")]
        assert len(found) <= 1
        return found[0] if found and self.events() else None

    def events(self) -> list[dict[str, Any]]:
        (folder,) = self.bench.results.glob("_runs/*")
        return read_events(folder)

    def done(self) -> set[str]:
        """Repetitions that are journaled as done, as the log has them."""
        found = set()
        for event in self.events():
            if event["kind"] == "repetition":
                version = event["attempt"].split("/")[0].removeprefix("upstream-")
                found.add(f"{version}/{event['number']}")
        return found

    def counts(self) -> Counter[str]:
        """How often each repetition was begun."""
        return Counter(self.log.read_text().split())

    def names(self) -> set[str]:
        """Every file and folder of the results, whatever the run's name."""
        run_id = next((path.name for path in self.bench.results.glob("_runs/*")), "-")
        return {
            str(path.relative_to(self.bench.results)).replace(run_id, "RUN")
            for path in self.bench.results.rglob("*")
        }

    def left(self) -> list[str]:
        """Nodes that are there."""
        return sorted(path.name for path in self.nodes.glob("*")) if self.nodes.exists() else []


def _deadly(real: Callable[..., Any], count: list[int], at: int, *, after: bool) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        count[0] += 1
        is_last = count[0] == at
        if is_last and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return real(*arguments, **options)
        finally:
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)

    return call
