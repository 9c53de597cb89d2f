"""The one lifecycle: node, distribution, stages, logs, removal, record.

Raw texts are stored before they are parsed. A stage that fails is an attempt with an UNKNOWN verdict, not the end of
the run; a lost node ends its cell. Whatever happens, the node is removed or kept as asked.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab import __version__, claim_history, interrupts, judging
from lab.claim_history import ClaimFile
from lab.config import RunConfig
from lab.distros.contract import Cluster, Distro
from lab.host import Deadline
from lab.manifests import Manifests
from lab.model import (
    JSON,
    Cell,
    Environment,
    Interrupted,
    LabError,
    LeftBehind,
    Missing,
    TransportError,
    UsageError,
    Verdict,
)
from lab.phases import Phases
from lab.providers.contract import Node, NodeSpec, Provider
from lab.stages import registry
from lab.stages.context import StageContext
from lab.stages.contract import Stage
from lab.store import RunJournal, Store

log = logging.getLogger(__name__)

BOOT_S = 240.0
INSTALL_S = 480.0
KEEP_S = 8 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a run works with."""

    provider: Provider
    distro: Distro
    store: Store
    manifests: Manifests
    scripts: Mapping[str, str]
    claims: ClaimFile
    progress: Callable[[str], None]
    clock: Callable[[], float] = time.time


@dataclass(slots=True, kw_only=True)
class CellResult:
    """How one cell went. ``problem`` is the error that ended it early, if one did."""

    cell: Cell
    phases: dict[str, float] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    attempts: list[Path] = field(default_factory=list)
    problem: LabError | None = None
    failed_stages: list[str] = field(default_factory=list)
    kept: str | None = None


def check_claims(claims: ClaimFile, *, quick: bool) -> None:
    """UsageError when results could not count because CLAIM.md is not committed as it stands."""
    if claims.state in ("dirty", "untracked") and not quick:
        raise UsageError(
            f"{claims.path} has uncommitted changes, so results would be judged by claims that nobody can date; "
            "commit it first, or run with --quick (its results are never counted)"
        )


def run(config: RunConfig, tools: Tools) -> list[CellResult]:
    """All cells, one after the other. Interrupted passes through, after clean-up; everything else is in the results."""
    check_claims(tools.claims, quick=config.quick)
    stages = registry.select(config.stages)
    for cell in config.cells:
        tools.distro.files(cell)
    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    journal = tools.store.open_run(run_id)
    journal.event("run", cells=[cell.name for cell in config.cells], stages=[stage.name for stage in stages])
    started = tools.clock()
    results: list[CellResult] = []
    try:
        for cell in config.cells:
            if config.max_minutes is not None and tools.clock() - started > config.max_minutes * 60:
                late = Missing(f"--max-minutes {config.max_minutes:g} is over; {cell.name} was not started")
                results.append(CellResult(cell=cell, problem=late))
                continue
            result = CellResult(cell=cell)
            results.append(result)
            _run_cell(config, tools, cell, stages, run_id, journal, result)
    finally:
        journal.finish(_record(config, run_id, started, tools.clock(), results))
    return results


def _run_cell(
    config: RunConfig,
    tools: Tools,
    cell: Cell,
    stages: Sequence[Stage],
    run_id: str,
    journal: RunJournal,
    result: CellResult,
) -> None:
    """One cell on one node. A LabError ends up in ``result.problem``; Interrupted and LeftBehind also pass through."""
    phases = Phases()
    node: Node | None = None
    cluster: Cluster | None = None
    try:
        try:
            with phases.track("boot"):
                node = _node(config, tools, cell, run_id, journal)
            with phases.track("install"):
                if config.node is not None:
                    cluster = tools.distro.attach(node, cell)
                else:
                    cluster = tools.distro.install(node, cell, Deadline.after(INSTALL_S))
            tools.progress(f"{cell.name}: ready on {node.id}")
            for stage in stages:
                _attempt(config, tools, cluster, stage, run_id, phases, journal, result)
        except LabError as error:
            result.problem = error
            journal.event("problem", cell=cell.name, text=str(error))
            if isinstance(error, Interrupted):
                raise
    finally:
        interrupted = isinstance(result.problem, Interrupted)
        if node is not None and (result.failed_stages or result.problem) and not interrupted:
            place = config.cache / "logs" / run_id / cell.name
            tools.distro.save_logs(cluster, node, place)
            tools.progress(f"{cell.name}: logs are in {place}")
        if node is not None:
            with phases.track("removal"), interrupts.waiting(f"removing node {node.id}"):
                _release(config, tools, node, journal, result)
        result.phases = phases.seconds()


def _node(config: RunConfig, tools: Tools, cell: Cell, run_id: str, journal: RunJournal) -> Node:
    if config.node is not None:
        return tools.provider.attach(config.node)
    name = cell.name.split("+")[0].replace("_", "-")
    spec = NodeSpec(
        name=name,
        run_id=f"{run_id.lower()}-{config.cells.index(cell) + 1}",
        vcpus=config.vcpus,
        memory_mib=config.memory_mib,
        files=tools.distro.files(cell),
    )
    journal.event("create", node=f"{spec.name}-{spec.run_id}")
    return tools.provider.create(spec, Deadline.after(BOOT_S))


def _release(config: RunConfig, tools: Tools, node: Node, journal: RunJournal, result: CellResult) -> None:
    failed = result.problem is not None or bool(result.failed_stages)
    interrupted = isinstance(result.problem, Interrupted)
    keep = config.node is not None or config.keep == "always" or (config.keep == "failed" and failed)
    if keep and not (interrupted and config.keep != "always"):
        tools.provider.keep(node, time.time() + KEEP_S)
        result.kept = node.id
        journal.event("kept", node=node.id)
        return
    try:
        tools.provider.destroy(node)
        journal.event("destroyed", node=node.id)
    except LeftBehind as error:
        journal.event("left-behind", node=node.id, text=str(error))
        result.problem = error


def _attempt(
    config: RunConfig,
    tools: Tools,
    cluster: Cluster,
    stage: Stage,
    run_id: str,
    phases: Phases,
    journal: RunJournal,
    result: CellResult,
) -> None:
    """Collect, store raw, parse, judge, seal."""
    cell = cluster.cell
    started = tools.clock()
    writer = tools.store.begin(
        cell=cell,
        stage=stage.name,
        stamp=judging.stamp(stage, tools.manifests, tools.scripts, config.options),
        environment=Environment(must_agree=cluster.must_agree, shown=cluster.shown),
        run_id=run_id,
        started=_iso(started),
        smoke=config.quick,
        uncountable=claim_history.uncountable_reasons(tools.claims, stage.name, cell, started),
        extra={"seed": config.seed, "node": cluster.node.id},
    )
    context = StageContext(
        cluster=cluster,
        manifests=tools.manifests,
        save=writer.save,
        params=stage.params(config.options),
        seed=config.seed,
        phases=phases,
        progress=lambda text: tools.progress(f"{cell.name}: {text}"),
    )
    tools.progress(f"{cell.name}: stage {stage.name}")
    problem: LabError | None = None
    for name, text in cluster.facts_texts.items():
        writer.save(name, text)
    try:
        with phases.track("other"):
            stage.collect(context)
    except Interrupted:
        # Nobody measured to the end: what was said so far stays in the unfinished folder and counts for nothing.
        journal.event("unfinished", attempt=str(writer.path.relative_to(tools.store.root)))
        raise
    except LabError as error:
        problem = error
        tools.progress(f"{cell.name}: stage {stage.name} failed: {error}")
        result.failed_stages.append(stage.name)
        writer.save(judging.PROBLEM, f"{error}\n")
    observation, record = judging.judge(stage, cell, writer.raw(), tools.claims.claims)
    attempt = writer.seal(observation=observation, verdict=record, finished=_iso(tools.clock()))
    result.attempts.append(attempt.path)
    result.verdicts += [Verdict.from_json(entry) for entry in record["verdicts"]]
    journal.event("sealed", attempt=str(attempt.path.relative_to(tools.store.root)), problem=record["problem"])
    if isinstance(problem, TransportError):
        raise problem


def _iso(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="milliseconds")


def _record(config: RunConfig, run_id: str, started: float, finished: float, results: Sequence[CellResult]) -> JSON:
    """run.json: what was asked for and how it went."""

    def cell(result: CellResult) -> dict[str, Any]:
        return {
            "cell": result.cell.as_json(),
            "phases_s": result.phases,
            "outcomes": {verdict.claim: verdict.outcome.value for verdict in result.verdicts},
            "problem": None if result.problem is None else str(result.problem),
            "kept": result.kept,
        }

    return {
        "format": 1,
        "run": run_id,
        "lab": __version__,
        "started": _iso(started),
        "finished": _iso(finished),
        "seed": config.seed,
        "options": dict(config.options),
        "provider": config.provider,
        "distro": config.distro,
        "stages": list(config.stages),
        "cells": [cell(result) for result in results],
    }
