"""The one lifecycle: node, distribution, stages, logs, removal, record.

Raw texts are stored before they are parsed. A stage that fails is an attempt with an UNKNOWN verdict, not the end of
the run; a lost node ends its cell; results that cannot be stored, and a node that cannot be removed, end the run.
Whatever happens, the node is removed or kept as asked. What is missing then, :func:`run` does when it is given the past
of that run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial

from lab import __version__, attempts, claims, clock, failure, interrupts, plan, resume
from lab.attempts import Work
from lab.claim_history import ClaimFile
from lab.config import RunConfig
from lab.distros.contract import Cluster
from lab.distros.reuse import SharedNode, give_back
from lab.host import Deadline
from lab.journal import RunJournal
from lab.model import JSON, Interrupted, LabError, LeftBehind, Missing, NodeError, NoSuchNode, ResultsError, UsageError
from lab.phases import Phases
from lab.providers.contract import Node, NodeSpec
from lab.resume import Past
from lab.run_state import CellResult, Failure, Tools, Watched, iso, note
from lab.stages import registry
from lab.stages.contract import Stage

__all__ = ["CellResult", "Tools", "check_claims", "run"]

BOOT_S = 400.0
INSTALL_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What all cells of a run share. ``past`` is None unless the run goes on, ``given`` unless a node was named."""

    config: RunConfig
    tools: Tools
    stages: tuple[Stage, ...]
    journal: RunJournal
    past: Past | None
    started: float
    given: tuple[Node, Cluster] | None

    @property
    def events(self) -> Sequence[JSON]:
        """What earlier processes journaled."""
        return () if self.past is None else self.past.events

    @property
    def session(self) -> int:
        """Number of this process among those that have worked on the run, from 1."""
        return 1 if self.past is None else self.past.sessions + 1


def check_claims(claims: ClaimFile, *, quick: bool) -> None:
    """UsageError when results could not count because CLAIM.md is not committed as it stands."""
    if claims.state in ("dirty", "untracked") and not quick:
        raise UsageError(
            f"{claims.path} has uncommitted changes, so results would be judged by claims that nobody can date; "
            "commit it first, or run with --quick (its results are never counted)"
        )


def run(config: RunConfig, tools: Tools, past: Past | None = None) -> list[CellResult]:
    """All cells, one after the other, of a new run or of one that goes on.

    What is found before the first of them is raised, and nothing of the run is stored then. Later on Interrupted passes
    through, after clean-up; everything else is in the results.
    """
    if past is not None:
        resume.check_inputs(past, config, tools)
    check_claims(tools.claims, quick=config.quick)
    registry.check_claims(tools.claims.claims)
    if past is not None:
        resume.remove_left_nodes(past, tools.provider, tools, cache=config.cache, is_shared=config.reuse_node)
    stages = registry.select(config.stages)
    shared = None
    if config.reuse_node:
        shared = SharedNode(tools.provider, tools.distro, tools.scripts, tools.progress, cells=len(config.cells))
        tools = replace(tools, provider=shared)
    todo = config if past is None else replace(config, cells=resume.cells_to_do(past, config, tools.store))
    _check(todo, tools)
    given = _given(todo, tools)
    journal = tools.store.new_run() if past is None else past.journal
    begun = tools.clock()
    state = Run(config=config, tools=tools, stages=stages, journal=journal, past=past, started=begun, given=given)
    try:
        journal.own()
        if past is None:
            journal.event("run", lab=__version__, **resume.first_event(config, tools))
        else:
            journal.event("resume", lab=__version__, owner=resume.owner())
        return _cells(state, shared)
    finally:
        journal.close()


def _check(config: RunConfig, tools: Tools) -> None:
    """Everything that would fail later or cost money for nothing."""
    tools.provider.check(plan.node_count(config))
    plan.check_cost(config, tools.provider.hourly_price())
    if config.node is not None and config.cells:
        _check_node(config.node, tools)
    for cell in config.cells:
        tools.distro.check(cell)
        for claim in tools.claims.claims:
            if claim.stage in config.stages:
                # A claim that has no answer for a cell is found now, not when its node has been made.
                claims.applies(claim, cell)
    # Only when nothing is wrong with any cell: from here on things are downloaded and built.
    for cell in config.cells:
        tools.distro.files(cell, tools.provider.site)


def _given(config: RunConfig, tools: Tools) -> tuple[Node, Cluster] | None:
    """The kept node that was named, and what runs on it; None when none was, or no cell needs it.

    UsageError when there is no such node, another run uses it or something else runs on it. It stays as it is then.
    """
    if config.node is None or not config.cells:
        return None
    node = tools.provider.attach(config.node)
    try:
        return node, tools.distro.attach(node, config.cells[0])
    except BaseException:
        node.host.close()
        raise


def _check_node(node: str, tools: Tools) -> None:
    there = [record.id for record in tools.provider.records()]
    if node not in there:
        raise NoSuchNode(f"no node {node!r}; there are: {', '.join(there) or 'none'} (see `lab nodes`)")


def _cells(state: Run, shared: SharedNode | None) -> list[CellResult]:
    config, tools, journal = state.config, state.tools, state.journal
    results: list[CellResult] = []
    try:
        for cell in config.cells:
            reason = _reason_to_stop(state, results)
            result = CellResult(
                cell=cell, run_id=journal.run_id, missing=config.stages, sessions=_sessions(state, cell.name)
            )
            results.append(result)
            if reason:
                result.problem = Missing(f"{cell.name} was not started: {reason}")
                continue
            watched = Watched(cell=cell, phases=Phases(), price=tools.provider.hourly_price())
            work = Work(config=config, tools=tools, journal=journal, cell=cell, result=result, watched=watched)
            tools.watch(watched)
            try:
                _run_cell(state, work)
            except LabError:
                raise
            except Exception as error:
                _note_unforeseen(work, error)
                raise
            finally:
                watched.is_over = True
    except Interrupted as error:
        tools.progress(f"to go on with it: lab run --resume {journal.run_id}")
        for result in results[-1:]:
            result.problem = result.problem or error
            if isinstance(result.problem, LeftBehind):
                # What costs money outweighs that somebody wanted to stop.
                raise result.problem from error
        raise
    finally:
        interrupts.leaving = shared is not None
        try:
            if shared is not None:
                _close(shared, tools, journal, results)
        finally:
            _finish(journal, _record(state, results), tools, results)
    return results


def _close(shared: SharedNode, tools: Tools, journal: RunJournal, results: Sequence[CellResult]) -> None:
    """Remove the one node of the run; when that does not work, the last cell's problem is LeftBehind."""
    try:
        interrupts.surely("removing the node of all versions", shared.close)
    except (LabError, OSError) as error:
        tools.progress(f"left behind: {error}")
        last = results[-1]
        before = f"\nbefore that: {last.problem}" if last.problem is not None else ""
        last.problem = LeftBehind(f"{error}{before}")
        note(journal, last, "left-behind", text=str(error))


def _reason_to_stop(state: Run, results: Sequence[CellResult]) -> str:
    """Why no further cell may start; empty when it may."""
    config, tools = state.config, state.tools
    for result in results:
        if isinstance(result.problem, ResultsError):
            return f"results of {result.cell.name} could not be stored, or do not belong together"
        if isinstance(result.problem, LeftBehind):
            return f"what {result.cell.name} left behind may still run beside it"
    if config.max_minutes is not None and tools.clock() - state.started > config.max_minutes * 60:
        return f"--max-minutes {config.max_minutes:g} is over"
    lives = resume.spent_s(state.past, state.started)
    lives += [sum(result.phases.values()) for result in results if not result.is_restored]
    if config.max_cost is not None and lives:
        price = tools.provider.hourly_price()
        wanted = sum((plan.dollars(life, price) for life in [*lives, plan.cell_seconds(config)]), Decimal(0))
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


def _run_cell(state: Run, work: Work) -> None:
    """One cell on one node. An expected error ends up in ``result.problem``; Interrupted also passes through."""
    result, phases = work.result, work.watched.phases
    node: Node | None = None
    cluster: Cluster | None = None
    try:
        try:
            missing = [stage for stage in state.stages if state.past is None or not _is_settled(state, work, stage)]
            if not missing and state.past is not None:
                result.is_restored, result.sessions = True, max(1, result.sessions - 1)
                result.phases = _phases_before(state, work.cell.name)
                return
            with phases.track("boot"):
                node = _node(state, work)
                clock.check(node.host)
            with phases.track("install"):
                if state.given is not None:
                    cluster = state.given[1]
                else:
                    waiting = partial(phases.track, "ready")
                    cluster = state.tools.distro.install(node, work.cell, Deadline.after(INSTALL_S), waiting)
            state.tools.progress(f"{work.cell.name}: ready on {node.id}")
            for stage in missing:
                attempts.run_stage(work, cluster, stage, state.events)
                _has(result, stage)
        except (LabError, OSError, Interrupted) as error:
            result.problem = _problem(work, error)
            stage_name, phase = work.watched.stage, phases.where(error)
            result.failures.append(Failure(text=str(result.problem), stage=stage_name, phase=phase))
            note(work.journal, result, "problem", cell=work.cell.name, text=str(error))
            if isinstance(error, Interrupted):
                raise
        if node is not None and result.failures:
            failure.save(work, cluster, node, state.stages, state.session)
    finally:
        # Nothing may stand between here and the removal that could raise.
        interrupts.leaving = True
        try:
            if node is not None:
                with phases.track("removal"):
                    interrupts.surely(f"removing node {node.id}", partial(_release, work, node))
        finally:
            interrupts.leaving = False
            if not result.is_restored:
                result.phases = phases.seconds()
                facts = {"phases_s": result.phases, "missing": list(result.missing)}
                note(work.journal, result, "cell", cell=work.cell.name, **facts)


def _note_unforeseen(work: Work, error: Exception) -> None:
    """Let the record of a cell that a fault of the lab ended not look as if all was well."""
    result, watched = work.result, work.watched
    text = f"{work.cell.name}: unforeseen {type(error).__name__}: {error}"
    before = f"\nbefore that: {result.problem}" if result.problem is not None else ""
    kind = LeftBehind if isinstance(result.problem, LeftBehind) else NodeError
    result.problem = kind(f"{text}{before}")
    result.failures.append(Failure(text=text, stage=watched.stage, phase=watched.phases.where(error)))
    note(work.journal, result, "problem", cell=work.cell.name, text=text)


def _has(result: CellResult, stage: Stage) -> None:
    result.missing = tuple(name for name in result.missing if name != stage.name)


def _is_settled(state: Run, work: Work, stage: Stage) -> bool:
    if not attempts.settle(work, stage, state.events):
        return False
    _has(work.result, stage)
    return True


def _problem(work: Work, error: LabError | OSError | Interrupted) -> LabError | Interrupted:
    """What ended a cell. Not a UsageError: that would say that nothing was started, and a run is under way."""
    if isinstance(error, (LabError, Interrupted)) and not isinstance(error, UsageError):
        return error
    return NodeError(f"{work.cell.name}: {error}")


def _phases_before(state: Run, cell: str) -> dict[str, float]:
    """Seconds by phase of a cell that an earlier process did; of the last one that told."""
    told = [event["phases_s"] for event in state.events if event["kind"] == "cell" and event["cell"] == cell]
    return dict(told[-1]) if told else {}


def _sessions(state: Run, cell: str) -> int:
    """How many processes have made a node for a cell, this one included."""
    made = [event for event in state.events if event["kind"] in ("create", "attach") and event["cell"] == cell]
    return len(made) + 1


def _node(state: Run, work: Work) -> Node:
    config, tools, journal, cell = state.config, state.tools, work.journal, work.cell
    if state.given is not None:
        node = state.given[0]
        journal.event("attach", node=node.id, cell=cell.name)
    else:
        # A node that lingers in a provider's list must not pass for the one that is made now.
        again = "" if state.session == 1 else f"r{state.session}"
        spec = NodeSpec(
            name=cell.name.split("+")[0].replace("_", "-"),
            run_id=f"{journal.run_id.lower()}-{config.cells.index(cell) + 1}{again}",
            vcpus=config.nodes.vcpus,
            memory_mib=config.nodes.memory_mib,
            files=tools.distro.files(cell, tools.provider.site),
            expires_s=plan.expiry_s(config, tools.clock()),
        )
        work.watched.node = spec.id
        journal.event("create", node=spec.id, cell=cell.name)
        node = tools.provider.create(spec, Deadline.after(BOOT_S))
    work.watched.node = work.result.node = node.id
    return node


def _release(work: Work, node: Node) -> None:
    """Keep or destroy the node. When neither works, ``result.problem`` is LeftBehind with the node's id."""
    config, tools, journal, result = work.config, work.tools, work.journal, work.result
    interrupted = isinstance(result.problem, Interrupted)
    keep = config.keep == "always" or (config.keep == "failed" and bool(result.failures) and not interrupted)
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
        note(journal, result, "left-behind", node=node.id, text=text)
        return
    note(journal, result, "kept" if result.kept else "destroyed", node=node.id)


def _record(state: Run, results: Sequence[CellResult]) -> JSON:
    """run.json: what was asked for and how it went. ``sessions`` is there when more than one process was needed."""

    def cell(result: CellResult) -> JSON:
        several = {} if result.sessions == 1 else {"sessions": result.sessions}
        return {
            **several,
            "cell": result.cell.as_json(),
            "phases_s": result.phases,
            "outcomes": {verdict.claim: verdict.outcome.value for verdict in result.verdicts},
            "problem": None if result.problem is None else str(result.problem),
            "kept": result.kept,
        }

    config = state.config
    return {
        "format": 1,
        "run": state.journal.run_id,
        "lab": __version__,
        "started": iso(state.started) if state.past is None else state.past.started,
        "finished": iso(state.tools.clock()),
        "seed": config.seed,
        "options": dict(config.options),
        "provider": config.provider,
        "distro": config.distro,
        "stages": list(config.stages),
        "cells": [cell(result) for result in results],
    }
