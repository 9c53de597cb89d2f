"""The one lifecycle: node, distribution, stages, logs, removal, record.

Raw texts are stored before they are parsed. A stage that fails is an attempt with an UNKNOWN verdict, not the end of
the run; a lost node ends its cell; results that cannot be stored, and a node that cannot be removed, end the run.
Whatever happens, the node is removed or kept as asked.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from lab import __version__, claim_history, claims, clock, interrupts, judging, plan
from lab.claim_history import ClaimFile
from lab.config import RunConfig
from lab.distros.contract import Cluster, Distro
from lab.distros.reuse import SharedNode, give_back
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
    NodeError,
    ResultsError,
    TransportError,
    UsageError,
    Verdict,
)
from lab.phases import Phases
from lab.providers.contract import Node, NodeSpec, Provider
from lab.secrets import SECRETS
from lab.stages import registry
from lab.stages.context import StageContext
from lab.stages.contract import Stage
from lab.store import AttemptWriter, RunJournal, Store

log = logging.getLogger(__name__)

BOOT_S = 400.0
INSTALL_S = 900.0


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
    registry.check_claims(tools.claims.claims)
    shared = None
    if config.reuse_node:
        shared = SharedNode(tools.provider, tools.distro, tools.scripts, tools.progress, cells=len(config.cells))
        tools = replace(tools, provider=shared)
    tools.provider.check(plan.node_count(config))
    plan.check_cost(config, tools.provider.hourly_price())
    stages = registry.select(config.stages)
    for cell in config.cells:
        for claim in tools.claims.claims:
            if claim.stage in config.stages:
                # A claim that has no answer for a cell is found now, not when its node has been made.
                claims.applies(claim, cell)
        tools.distro.files(cell, tools.provider.site)
    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    journal = tools.store.open_run(run_id)
    journal.event("run", cells=[cell.name for cell in config.cells], stages=[stage.name for stage in stages])
    started = tools.clock()
    results: list[CellResult] = []
    try:
        for cell in config.cells:
            reason = _reason_to_stop(config, tools, tools.clock() - started, results)
            result = CellResult(cell=cell)
            results.append(result)
            if reason:
                result.problem = Missing(f"{cell.name} was not started: {reason}")
                continue
            _run_cell(config, tools, cell, stages, run_id, journal, result)
    except Interrupted as error:
        for result in results[-1:]:
            result.problem = result.problem or error
            if isinstance(result.problem, LeftBehind):
                # What costs money outweighs that somebody wanted to stop.
                raise result.problem from error
        raise
    finally:
        try:
            if shared is not None:
                _close(shared, tools, journal, results)
        finally:
            _finish(journal, _record(config, run_id, started, tools.clock(), results), tools, results)
    return results


def _close(shared: SharedNode, tools: Tools, journal: RunJournal, results: Sequence[CellResult]) -> None:
    """Remove the one node of the run; when that does not work, the last cell's problem is LeftBehind."""
    try:
        interrupts.surely("removing the node of all versions", shared.close)
    except Interrupted:
        raise
    except (LabError, OSError) as error:
        tools.progress(f"left behind: {error}")
        last = results[-1]
        before = f"\nbefore that: {last.problem}" if last.problem is not None else ""
        last.problem = LeftBehind(f"{error}{before}")
        _note(journal, last, "left-behind", text=str(error))


def _reason_to_stop(config: RunConfig, tools: Tools, spent_s: float, results: Sequence[CellResult]) -> str:
    """Why no further cell may start; empty when it may."""
    for result in results:
        if isinstance(result.problem, ResultsError):
            return f"results of {result.cell.name} could not be stored"
        if isinstance(result.problem, LeftBehind):
            return f"what {result.cell.name} left behind may still run beside it"
    if config.max_minutes is not None and spent_s > config.max_minutes * 60:
        return f"--max-minutes {config.max_minutes:g} is over"
    if config.max_cost is not None and results:
        price = tools.provider.hourly_price()
        spent = sum((plan.dollars(sum(result.phases.values()), price) for result in results), Decimal(0))
        wanted = spent + plan.dollars(plan.cell_seconds(config), price)
        if wanted > config.max_cost:
            return f"with it the bill would come to ${wanted}, above --max-cost {config.max_cost}"
    return ""


def _finish(journal: RunJournal, record: JSON, tools: Tools, results: Sequence[CellResult]) -> None:
    """Write run.json; a disk that is full must not hide how the cells went."""
    try:
        journal.finish(record)
    except ResultsError as error:
        tools.progress(str(error))
        for result in results[-1:]:
            result.problem = result.problem or error


def _run_cell(
    config: RunConfig,
    tools: Tools,
    cell: Cell,
    stages: Sequence[Stage],
    run_id: str,
    journal: RunJournal,
    result: CellResult,
) -> None:
    """One cell on one node. An expected error ends up in ``result.problem``; Interrupted also passes through."""
    phases = Phases()
    node: Node | None = None
    cluster: Cluster | None = None
    try:
        try:
            with phases.track("boot"):
                node = _node(config, tools, cell, run_id, journal)
                clock.check(node.host)
            with phases.track("install"):
                if config.node is not None:
                    cluster = tools.distro.attach(node, cell)
                else:
                    cluster = tools.distro.install(node, cell, Deadline.after(INSTALL_S))
            tools.progress(f"{cell.name}: ready on {node.id}")
            for stage in stages:
                _attempt(config, tools, cluster, stage, run_id, phases, journal, result)
        except (LabError, OSError) as error:
            result.problem = error if isinstance(error, LabError) else NodeError(f"{cell.name}: {error}")
            _note(journal, result, "problem", cell=cell.name, text=str(error))
            if isinstance(error, Interrupted):
                raise
        if node is not None and (result.failed_stages or result.problem):
            _save_logs(config.cache / "logs" / run_id / cell.name, tools, cluster, node, result)
    finally:
        # Nothing may stand between here and the removal that could raise.
        try:
            if node is not None:
                with phases.track("removal"):
                    release = partial(_release, config, tools, node, journal, result)
                    interrupts.surely(f"removing node {node.id}", release)
        finally:
            result.phases = phases.seconds()


def _save_logs(folder: Path, tools: Tools, cluster: Cluster | None, node: Node, result: CellResult) -> None:
    """What helps to explain a failure, as far as it can be had; only a signal passes through."""
    try:
        tools.distro.save_logs(cluster, node, folder)
        tools.progress(f"{result.cell.name}: logs are in {folder}")
    except Interrupted as error:
        result.problem = error
        raise
    except (LabError, OSError) as error:
        tools.progress(f"{result.cell.name}: the logs could not be saved: {error}")


def _note(journal: RunJournal, result: CellResult, kind: str, **facts: Any) -> None:
    """Journal an event on the way out: a disk that is full must not stop the clean-up or hide what went wrong."""
    try:
        journal.event(kind, **facts)
    except ResultsError as error:
        result.problem = result.problem or error


def _node(config: RunConfig, tools: Tools, cell: Cell, run_id: str, journal: RunJournal) -> Node:
    if config.node is not None:
        return tools.provider.attach(config.node)
    name = cell.name.split("+")[0].replace("_", "-")
    spec = NodeSpec(
        name=name,
        run_id=f"{run_id.lower()}-{config.cells.index(cell) + 1}",
        vcpus=config.nodes.vcpus,
        memory_mib=config.nodes.memory_mib,
        files=tools.distro.files(cell, tools.provider.site),
        expires_s=plan.expiry_s(config, tools.clock()),
    )
    journal.event("create", node=spec.id)
    return tools.provider.create(spec, Deadline.after(BOOT_S))


def _release(config: RunConfig, tools: Tools, node: Node, journal: RunJournal, result: CellResult) -> None:
    """Keep or destroy the node. When neither works, ``result.problem`` is LeftBehind with the node's id."""
    failed = result.problem is not None or bool(result.failed_stages)
    interrupted = isinstance(result.problem, Interrupted)
    keep = config.keep == "always" or (config.keep == "failed" and failed and not interrupted)
    try:
        # A node that was given is the user's: it stays, also when this run is interrupted.
        if keep or config.node is not None:
            tools.provider.keep(node, tools.clock() + plan.KEEP_S)
            result.kept = node.id
        else:
            give_back(tools.provider, tools.distro, node, tools.progress)
    except (LabError, OSError) as error:
        text = str(error) if node.id in str(error) else f"node {node.id}: {error}"
        if "`lab " not in text:
            text += f"; `lab down {node.id}` or a later `lab gc` removes it"
        tools.progress(f"left behind: {text}")
        before = f"\nbefore that: {result.problem}" if result.problem is not None else ""
        result.problem = LeftBehind(f"{text}{before}")
        _note(journal, result, "left-behind", node=node.id, text=text)
        return
    _note(journal, result, "kept" if result.kept else "destroyed", node=node.id)


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
    uncountable = claim_history.uncountable_reasons(tools.claims, stage.name, cell, started)
    if uncountable and not config.quick:
        tools.progress(f"{cell.name}: stage {stage.name} will not count: {'; '.join(uncountable)}")
    writer = tools.store.begin(
        cell=cell,
        stage=stage.name,
        stamp=judging.stamp(stage, tools.manifests, tools.scripts, config.options),
        environment=Environment(must_agree=cluster.must_agree, shown=cluster.shown),
        run_id=run_id,
        started=_iso(started),
        smoke=config.quick,
        uncountable=uncountable,
        extra={"seed": config.seed, "node": cluster.node.id},
    )
    try:
        problem = _collect(config, tools, cluster, stage, writer, phases, result)
        observation, record = judging.judge(stage, cell, writer.raw(), tools.claims.claims)
        attempt = writer.seal(observation=observation, verdict=record, finished=_iso(tools.clock()))
    except (Interrupted, ResultsError):
        # Nobody measured to the end: what was said so far stays in the unfinished folder and counts for nothing.
        if writer.path.exists():
            _note(journal, result, "unfinished", attempt=str(writer.path.relative_to(tools.store.root)))
        raise
    result.attempts.append(attempt.path)
    result.verdicts += [Verdict.from_json(entry) for entry in record["verdicts"]]
    journal.event("sealed", attempt=str(attempt.path.relative_to(tools.store.root)), problem=record["problem"])
    if isinstance(problem, TransportError):
        raise problem


def _collect(
    config: RunConfig,
    tools: Tools,
    cluster: Cluster,
    stage: Stage,
    writer: AttemptWriter,
    phases: Phases,
    result: CellResult,
) -> LabError | None:
    """Save what the node says; returns what ended that early. Interrupted and ResultsError pass through."""
    name = cluster.cell.name
    context = StageContext(
        cluster=cluster,
        manifests=tools.manifests,
        save=writer.save,
        params=stage.params(config.options),
        seed=config.seed,
        phases=phases,
        progress=lambda text: tools.progress(f"{name}: {text}"),
    )
    tools.progress(f"{name}: stage {stage.name}")
    for file, text in cluster.facts_texts.items():
        writer.save(file, text)
    try:
        with phases.track("other"):
            stage.collect(context)
    except (Interrupted, ResultsError):
        raise
    except (LabError, OSError, *judging.MALFORMED) as error:
        problem = error if isinstance(error, LabError) else NodeError(f"{type(error).__name__}: {error}")
        tools.progress(f"{name}: stage {stage.name} failed: {problem}")
        result.failed_stages.append(stage.name)
        writer.save(judging.PROBLEM, SECRETS.mask(f"{problem}\n"))
        return problem
    return None


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
