"""A small real project in a folder of its own, and the program run on it in this process with fakes for its machines.

The project is a git repository with a committed CLAIM.md and copies of manifests/ and node-scripts/. Its own claims are
about the stage of :func:`fake_stage`, whose one raw text holds one number: 1 holds, 2 falsifies, any other misses.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lab import claim_history
from lab.cli import main
from lab.config import RunConfig
from lab.distros.registry import DISTROS
from lab.experiment import Tools
from lab.manifests import Manifests
from lab.model import Cell
from lab.project import node_scripts
from lab.providers.qemu.provider import QemuProvider
from lab.providers.registry import PROVIDERS, SITES
from lab.stages import registry
from lab.stages.context import StageContext
from lab.stages.contract import Observation, Raw, Stage
from lab.store import Store
from tests.fakes import FAKE_SITE, FakeClock, FakeDistro, FakeProvider, Steps

ROOT = Path(__file__).resolve().parent.parent
COMMITTED_UNIX = 1_700_000_000
"""When the claims of a project are committed unless a test says otherwise: long before any attempt."""

FOR_FAKE_STAGE = """\
# What is claimed

```yaml
id: number-one
stage: fake
title: The number is one
when: minor >= 34
predict: number == 1
falsify: number == 2
```
"""
COLOUR = "\x1b"


# --- the project ------------------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str, unix: int = COMMITTED_UNIX) -> str:
    """Run git as somebody whose clock shows ``unix``; its output."""
    identity = {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "T"), ("EMAIL", "t@example.org"), ("DATE", f"@{unix} +0000"))
    }
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env={**os.environ, **identity}, check=True, capture_output=True, timeout=60
    )
    return done.stdout.decode()


def commit_claims(folder: Path, text: str, unix: int = COMMITTED_UNIX) -> None:
    """Write CLAIM.md and commit it at that time."""
    (folder / "CLAIM.md").write_text(text)
    git(folder, "add", "--force", "CLAIM.md")
    git(folder, "commit", "-q", "-m", "claims", unix=unix)


def make_project(folder: Path, *, claims: str = FOR_FAKE_STAGE, in_git: bool = True) -> Path:
    """A project below ``folder``."""
    made = folder / "project"
    made.mkdir()
    for name in ("manifests", "node-scripts"):
        shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
    (made / "CLAIM.md").write_text(claims)
    if in_git:
        git(made, "init", "-q", "-b", "main")
        commit_claims(made, claims)
    return made


def shield(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let nothing of the caller's git, cache, artifacts or taste in colours reach the program."""
    for name in [name for name in os.environ if name.startswith(("GIT_", "LAB_"))]:
        monkeypatch.delenv(name)
    for name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setenv("LAB_CACHE", str(tmp_path / "cache"))


# --- the stage --------------------------------------------------------------------------------------------------------


def say(text: str, name: str = "number.txt") -> Callable[[StageContext], None]:
    """A collect that saves one text and ends."""
    return lambda context: context.save(name, text)


SAYS_ONE = say("1")


def _parse(raw: Raw) -> Observation:
    return {"number": int(raw["number.txt"])}


def fake_stage(
    name: str = "fake",
    *,
    collect: Callable[[StageContext], None] = SAYS_ONE,
    parse: Callable[[Raw], Observation] = _parse,
    view: Callable[[Observation], dict[str, Any]] = dict,
    version: int = 1,
    judge_version: int = 1,
    params: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda options: {"reps": options["reps"]},
) -> Stage:
    """A stage that needs no node. Its stamp holds a manifest, a node program and a sampling parameter."""
    return Stage(
        name=name,
        title=f"Stage {name}",
        version=version,
        judge_version=judge_version,
        cases=("be",),
        scripts=("node_facts.sh",),
        params=params,
        budget_s=lambda options: 60.0,
        collect=collect,
        parse=parse,
        view=view,
        row=lambda observation: {"number": str(observation["number"])},
        notes=lambda observation: [],
    )


# --- the program ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What one call of the program came to."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one error message; the test fails when there is none, or several."""
        told = re.sub(r"^help: docs/.*\n", "", self.err, flags=re.MULTILINE)
        found = re.split(r"^error: ", told, flags=re.MULTILINE)[1:]
        assert len(found) == 1, f"{len(found)} errors in:\n{self.err}"
        return found[0].strip()

    def json(self) -> Any:
        """Standard output, which must be one JSON document and nothing else."""
        return json.loads(self.out)


@dataclass(kw_only=True)
class Bench:
    """The program on a project, with fakes in place of provider and distribution."""

    root: Path
    project: Path
    monkeypatch: pytest.MonkeyPatch
    capfd: pytest.CaptureFixture[str]
    steps: Steps
    provider: FakeProvider
    distro: FakeDistro
    said: list[str] = field(default_factory=list)
    clock: FakeClock = field(default_factory=lambda: FakeClock(1_800_000_000.0))

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def store(self) -> Store:
        return Store(self.results)

    def use_stages(self, *stages: Stage) -> None:
        """Let these be all stages that there are."""
        self.monkeypatch.setattr(registry, "STAGES", stages)
        self.monkeypatch.setattr(registry, "BY_NAME", {stage.name: stage for stage in stages})

    def use_local_provider(self) -> None:
        """Let ``qemu`` be the real one, on this bench's cache."""
        self.monkeypatch.setitem(PROVIDERS, "qemu", lambda setup: QemuProvider(setup.cache, setup.progress))

    def lab(self, *words: str, leaves: int = 0) -> Ended:
        """Run the program; whatever happens it prints no traceback and no colour.

        ``leaves`` is how many nodes it leaves running beside those that it was asked to keep.
        """
        self.capfd.readouterr()
        code = main.main(list(words))
        out, err = self.capfd.readouterr()
        for text in (out, err):
            assert "Traceback" not in text
            assert COLOUR not in text
        left = set(self.provider.alive) - set(self.provider.kept)
        assert len(left) == leaves, f"left running: {left}"
        return Ended(code=code, out=out, err=err)

    def run(self, *words: str, versions: str = "v1.36.3", leaves: int = 0) -> Ended:
        """``lab run`` into this bench's results folder."""
        argv = ("run", "--versions", versions, "--results", str(self.results), "--seed", "1", *words)
        return self.lab(*argv, leaves=leaves)

    def config(self, *versions: str, **changes: Any) -> RunConfig:
        """A run of all stages that there are, without the command line."""
        values: dict[str, Any] = {
            "cells": tuple(Cell(distro="upstream", version=version) for version in versions or ("v1.36.3",)),
            "stages": tuple(registry.BY_NAME),
            "provider": "fake",
            "distro": "upstream",
            "results": self.results,
            "project": self.project,
            "cache": self.root / "cache",
            "keep": "never",
            "seed": 7,
            "quick": False,
            "reps": 3,
            "order": "random",
        }
        return RunConfig(**(values | changes))

    def tools(self) -> Tools:
        """What :func:`lab.experiment.run` works with; progress goes to ``said``."""
        return Tools(
            provider=self.provider,
            distro=self.distro,
            store=self.store,
            manifests=Manifests.load(self.project / "manifests"),
            scripts=node_scripts(self.project),
            claims=claim_history.read(self.project / "CLAIM.md"),
            progress=self.said.append,
            clock=self.clock,
        )

    def journal(self) -> list[dict[str, Any]]:
        """Events of the only run, without their times."""
        (path,) = self.results.glob("_runs/*/journal.jsonl")
        events = [json.loads(line) for line in path.read_text().splitlines()]
        return [{key: value for key, value in event.items() if key != "time"} for event in events]

    def record(self) -> dict[str, Any]:
        """run.json of the only run."""
        (path,) = self.results.glob("_runs/*/run.json")
        record: dict[str, Any] = json.loads(path.read_text())
        return record

    def partials(self) -> list[Mapping[str, str]]:
        """Raw texts of every attempt that was not sealed."""
        return [
            {path.name: path.read_text() for path in sorted(folder.glob("raw/*"))} for folder in self.store.partials()
        ]


def make_bench(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    *,
    stages: Sequence[Stage] | None = None,
    **project: Any,
) -> Bench:
    """A bench in its own folder; the working directory is its project, and ``qemu`` and ``upstream`` are fakes."""
    shield(monkeypatch, tmp_path)
    steps = Steps()
    bench = Bench(
        root=tmp_path,
        project=make_project(tmp_path, **project),
        monkeypatch=monkeypatch,
        capfd=capfd,
        steps=steps,
        provider=FakeProvider(root=tmp_path / "nodes", steps=steps),
        distro=FakeDistro(steps=steps),
    )
    bench.use_stages(*([fake_stage()] if stages is None else stages))
    monkeypatch.chdir(bench.project)
    monkeypatch.setitem(SITES, "fake", FAKE_SITE)
    monkeypatch.setitem(PROVIDERS, "qemu", lambda setup: bench.provider)
    monkeypatch.setitem(DISTROS, "upstream", lambda setup: bench.distro)
    return bench


@contextmanager
def listening() -> Iterator[None]:
    """Signals are not ignored inside, as they are under nohup, and none of them can end the tests."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def unexpected(number: int, frame: object) -> None:
        raise AssertionError(f"signal {number} reached the tests")

    before = {number: signal.signal(number, unexpected) for number in numbers}
    try:
        yield
        assert {number: signal.getsignal(number) for number in numbers} == dict.fromkeys(numbers, unexpected)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tree(*folders: Path) -> dict[str, bytes]:
    """Every file below the folders with its content, and every folder; git's own are left out."""
    return {
        str(path): path.read_bytes() if path.is_file() else b""
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if ".git" not in path.parts
    }
