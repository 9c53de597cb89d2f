"""One attempt of one stage: collect, store raw, parse, judge, seal; begun anew, or continued where a process ended.

Every repetition whose raw texts are all stored is journaled with their sha256. A later process of the same run keeps
these texts and does the other repetitions; what else an unfinished attempt holds is collected again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab import claim_history, judging
from lab.config import RunConfig
from lab.distros.contract import Cluster
from lab.distros.registry import INSTEAD
from lab.journal import RunJournal
from lab.model import (
    JSON,
    Cell,
    Environment,
    Interrupted,
    LabError,
    NodeError,
    ResultsError,
    Stamp,
    TransportError,
    Verdict,
)
from lab.run_state import CellResult, Failure, Tools, Watched, iso, note
from lab.secrets import SECRETS
from lab.stages.context import StageContext
from lab.stages.contract import Stage
from lab.store import Attempt, AttemptWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the attempts of one cell have in common."""

    config: RunConfig
    tools: Tools
    journal: RunJournal
    cell: Cell
    result: CellResult
    watched: Watched

    @property
    def run_id(self) -> str:
        """The run that they belong to."""
        return self.journal.run_id

    def sealed(self, stage: Stage) -> Attempt | None:
        """The attempt that this run has sealed, None when there is none. ResultsError when it is damaged."""
        found = self.tools.store.attempts(smoke=self.config.quick, cell=self.cell, stage=stage.name)
        return next((attempt for attempt in found if attempt.run_id == self.run_id), None)

    def unfinished(self, stage: Stage) -> AttemptWriter | None:
        """The attempt that this run has begun and not sealed."""
        return self.tools.store.unfinished(self.run_id, cell=self.cell, stage=stage.name, smoke=self.config.quick)


def settle(work: Work, stage: Stage, events: Sequence[JSON]) -> bool:
    """Whether nothing is to be collected any more: sealed before, or collected to the end and sealed now."""
    attempt = work.sealed(stage)
    if attempt is None:
        writer = work.unfinished(stage)
        ended = [event["attempt"] for event in events if event["kind"] == "collected"]
        if writer is None or writer.place not in ended:
            return False
        writer.cut_back(frozenset(writer.raw()))
        attempt = _seal(work, stage, writer)
    else:
        _count(work.result, attempt)
    if judging.PROBLEM in attempt.raw():
        work.result.failed_stages.append(stage.name)
    return True


def _count(result: CellResult, attempt: Attempt) -> None:
    result.attempts.append(attempt.path)
    result.verdicts += [Verdict.from_json(entry) for entry in attempt.verdict["verdicts"]]


def stamp(stage: Stage, config: RunConfig, tools: Tools) -> Stamp:
    """What a stage collects in such a run, as it is recorded with each attempt."""
    instead = INSTEAD[config.distro](tools.provider.site)
    return judging.stamp(stage, tools.manifests, tools.scripts, config.options, instead)


def run_stage(work: Work, cluster: Cluster, stage: Stage, events: Sequence[JSON]) -> None:
    """Collect what is missing, judge and seal.

    A TransportError (the node is gone) passes through and leaves the attempt unfinished, as Interrupted and
    ResultsError do; any other error is sealed as an attempt whose verdict is UNKNOWN.
    """
    tools, journal, result = work.tools, work.journal, work.result
    writer, done = _begin(work, cluster, stage, events)
    try:
        _collect(work, cluster, stage, _Notes(work, cluster, writer, done))
        _seal(work, stage, writer)
    except (Interrupted, ResultsError, TransportError):
        # Nobody measured to the end: what was said so far stays in the unfinished folder and counts for nothing.
        if writer.path.exists():
            note(journal, result, "unfinished", attempt=str(writer.path.relative_to(tools.store.root)))
        raise


def _begin(
    work: Work, cluster: Cluster, stage: Stage, events: Sequence[JSON]
) -> tuple[AttemptWriter, dict[int, JSON]]:
    """A new attempt, or this run's own unfinished one and the events of the repetitions that are done."""
    tools, config = work.tools, work.config
    started = tools.clock()
    uncountable = claim_history.uncountable_reasons(tools.claims, stage.name, work.cell, started)
    if uncountable and not config.quick:
        tools.progress(f"{work.cell.name}: stage {stage.name} will not count: {'; '.join(uncountable)}")
    environment = Environment(must_agree=cluster.must_agree, shown=cluster.shown)
    extra = {"seed": config.seed, "node": cluster.node.id}
    writer = work.unfinished(stage)
    if writer is None:
        writer = tools.store.begin(
            cell=work.cell,
            stage=stage.name,
            stamp=stamp(stage, config, tools),
            environment=environment,
            run_id=work.run_id,
            started=iso(started),
            smoke=config.quick,
            uncountable=uncountable,
            extra=extra,
        )
        return writer, {}
    done = repetitions_done(writer, events)
    if not done:
        writer.cut_back(frozenset())
        writer.amend(extra=extra, environment=environment, uncountable=uncountable)
        return writer, {}
    check_environment(writer, environment)
    writer.cut_back(frozenset(name for event in done.values() for name in {**event["files"], **event["common"]}))
    by = {str(number): str(event["node"]) for number, event in done.items()}
    writer.amend(extra=_on_one_more_node(writer, by, cluster), uncountable=uncountable)
    numbers = ", ".join(by)
    tools.progress(f"{work.cell.name}: stage {stage.name} goes on in {writer.place}; repetition {numbers} is there")
    return writer, done


def repetitions_done(writer: AttemptWriter, events: Sequence[JSON]) -> dict[int, JSON]:
    """Number to event of every repetition whose texts, and those beside all repetitions, are as they were journaled."""
    there = writer.digests()
    return {
        event["number"]: event
        for event in events
        if event["kind"] == "repetition"
        and event["attempt"] == writer.place
        and {**event["files"], **event["common"]}.items() <= there.items()
    }


def check_environment(writer: AttemptWriter, found: Environment) -> None:
    """ResultsError with each fact in which this node differs from the one that the attempt was begun on."""
    before = writer.environment.must_agree
    names = sorted({*before, *found.must_agree})
    differ = [
        f"{name} was {before.get(name, 'not known')} and is {found.must_agree.get(name, 'not known')}"
        for name in names
        if before.get(name) != found.must_agree.get(name)
    ]
    if differ:
        raise ResultsError(
            f"{writer.place} cannot go on here, since its repetitions would not belong together: {'; '.join(differ)}; "
            "resume it where it was begun, or start a new run"
        )


def _on_one_more_node(writer: AttemptWriter, by: Mapping[str, str], cluster: Cluster) -> JSON:
    """The attempt's facts when ``by`` (repetition to node) was done before, and the rest is done on this node."""
    extra = writer.extra
    nodes = extra.get("nodes", {extra["node"]: {"shown": dict(writer.environment.shown)}})
    nodes = {name: facts for name, facts in nodes.items() if name in (*by.values(), extra["node"])}
    nodes.setdefault(cluster.node.id, {"shown": dict(cluster.shown), "texts": {}})
    return {**extra, "nodes": nodes, "repetitions": dict(by)}


class _Notes:
    """Stores what is said, and journals each repetition once all of its texts are stored."""

    def __init__(self, work: Work, cluster: Cluster, writer: AttemptWriter, done: Mapping[int, JSON]) -> None:
        self.writer = writer
        self.done = frozenset(done)
        self._work = work
        self._node = cluster.node.id
        self._stored = writer.raw()
        self._in_repetitions = {name for event in done.values() for name in event["files"]}

    def save(self, name: str, text: str) -> None:
        """Store a text; one that an earlier node has said is kept beside the attempt's facts where it differs."""
        if self.writer.save(name, text) is not None and text != self._stored[name]:
            extra = self.writer.extra
            extra["nodes"][self._node].setdefault("texts", {})[name] = text
            self.writer.amend(extra=extra)

    def begun(self, number: int, count: int) -> None:
        """Say which repetition runs."""
        self._work.watched.repetition = f"{number}/{count}"

    def finished(self, number: int, names: Sequence[str]) -> None:
        """From now on this repetition is never run again."""
        digests = self.writer.digests()
        self._in_repetitions.update(names)
        extra = self.writer.extra
        if "repetitions" in extra:
            extra["repetitions"][str(number)] = self._node
            self.writer.amend(extra=extra)
        self._work.journal.event(
            "repetition",
            attempt=self.writer.place,
            number=number,
            node=self._node,
            files={name: digests[name] for name in names},
            common={name: digest for name, digest in digests.items() if name not in self._in_repetitions},
        )


def _collect(work: Work, cluster: Cluster, stage: Stage, notes: _Notes) -> None:
    """Save what the node says, and what ended that early; errors that :func:`run_stage` names pass through."""
    tools, result, watched = work.tools, work.result, work.watched
    name, writer = work.cell.name, notes.writer
    context = StageContext(
        cluster=cluster,
        manifests=tools.manifests,
        save=notes.save,
        params=stage.params(work.config.options),
        seed=work.config.seed,
        phases=watched.phases,
        progress=lambda text: tools.progress(f"{name}: {text}"),
        done=notes.done,
        begun=notes.begun,
        finished=notes.finished,
    )
    watched.stage, watched.repetition = stage.name, ""
    tools.progress(f"{name}: stage {stage.name}")
    for file, text in cluster.facts_texts.items():
        notes.save(file, text)
    problem = ""
    try:
        with watched.phases.track("other"):
            stage.collect(context)
    except (ResultsError, TransportError):
        raise
    except (LabError, OSError, *judging.MALFORMED) as error:
        said = error if isinstance(error, LabError) else NodeError(f"{type(error).__name__}: {error}")
        problem = SECRETS.mask(str(said))
        tools.progress(f"{name}: stage {stage.name} failed: {problem}")
        result.failed_stages.append(stage.name)
        result.failures.append(Failure(text=problem, stage=stage.name, phase=watched.phases.where(error)))
        writer.save(judging.PROBLEM, f"{problem}\n")
    work.journal.event("collected", attempt=writer.place, problem=problem)


def _seal(work: Work, stage: Stage, writer: AttemptWriter) -> Attempt:
    """Parse, judge and seal what was collected."""
    observation, record = judging.judge(stage, work.cell, writer.raw(), work.tools.claims.claims)
    attempt = writer.seal(observation=observation, verdict=record, finished=iso(work.tools.clock()))
    _count(work.result, attempt)
    place = str(attempt.path.relative_to(work.tools.store.root))
    work.journal.event("sealed", attempt=place, problem=record["problem"])
    return attempt
