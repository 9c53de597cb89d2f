"""What stands left and right in a comparison, and which cells of the two belong together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lab.model import VERSION_PATTERN, Cell, Environment
from lab.report import measured
from lab.report.comparability import AttemptRecord, Selection, attempt_name, cell_order
from lab.report.measured import Datum
from lab.report.tables import problem_text

if TYPE_CHECKING:
    from lab.stages.contract import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """One stage of one cell. ``source`` names the attempt; ``where`` says where a published value stands."""

    values: Mapping[str, Datum]
    inputs: Mapping[str, Any]
    environment: Environment
    source: str
    where: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCell:
    """One cell of a side and its stages by name."""

    cell: Cell
    stages: Mapping[str, StageResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A value that a side gives for several cells (by name) together."""

    stage: str
    name: str
    cells: tuple[str, ...]
    datum: Datum
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What stands left or right. ``is_partial``: what it lacks was not stated, which is no difference."""

    name: str
    description: str
    cells: tuple[SideCell, ...]
    pools: tuple[Pool, ...] = ()
    is_partial: bool = False
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two cells that are compared; ``label`` is short and unique, ``note`` says in what they are not the same."""

    label: str
    a: SideCell
    b: SideCell
    note: str

    def stages(self) -> list[str]:
        """Names of the stages that both have."""
        return [name for name in self.a.stages if name in self.b.stages]


# --- sides from stored results ----------------------------------------------------------------------------------------


def side_of(name: str, selection: Selection, stages: Mapping[str, Stage]) -> Side:
    """The counted attempts of a selection as a side. Values of a stage that this lab does not know are not read."""
    cells: dict[str, tuple[Cell, dict[str, StageResult]]] = {}
    names = list(stages)
    for attempt in sorted(selection.attempts, key=lambda found: cell_order(found.cell)):
        cells.setdefault(attempt.cell.name, (attempt.cell, {}))[1][attempt.stage] = _result(attempt, stages)
    runs = sorted({attempt.run_id for attempt in selection.attempts})
    days = sorted({attempt.started[:10] for attempt in selection.attempts})
    period = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    plural = "" if len(runs) == 1 else "s"
    problems = [(attempt, problem_text(attempt, stages.get(attempt.stage))) for attempt in selection.attempts]
    return Side(
        name=name,
        description=f"{len(selection.attempts)} attempts, the newest that count, of {len(runs)} run{plural}, {period}",
        cells=tuple(
            SideCell(cell=cell, stages=dict(sorted(found.items(), key=lambda item: stage_order(item[0], names))))
            for cell, found in cells.values()
        ),
        remarks=tuple(f"{attempt_name(attempt)}: {problem}." for attempt, problem in problems if problem),
    )


def stage_order(stage: str, names: Sequence[str]) -> tuple[int, str]:
    """Sort key of a stage's name: those in ``names`` in that order, then others by name."""
    return (names.index(stage) if stage in names else len(names)), stage


def _result(attempt: AttemptRecord, stages: Mapping[str, Stage]) -> StageResult:
    stage = stages.get(attempt.stage)
    observation = attempt.observation
    return StageResult(
        values={} if stage is None or observation is None else measured.values(stage, observation),
        inputs=attempt.stamp.inputs,
        environment=attempt.environment,
        source=f"attempt {attempt.number}, run {attempt.run_id}, {attempt.started}",
    )


# --- matching ---------------------------------------------------------------------------------------------------------


def _patch(cell: Cell) -> int:
    match = VERSION_PATTERN.fullmatch(cell.version)
    return int(match[2]) if match is not None else 0


def _cost(a: Cell, b: Cell) -> tuple[Any, ...]:
    """How far two cells of one minor version are from each other: distribution, patch release, build."""
    return a.distro != b.distro, abs(_patch(a) - _patch(b)), a.version != b.version, cell_order(a), cell_order(b)


def match(a: Side, b: Side) -> list[tuple[SideCell, SideCell]]:
    """Pairs of cells of the same minor version and gates, nearest patch release first; each cell once.

    Two sides of one cell each are a pair whatever they are: somebody named them.
    """
    if len(a.cells) == 1 and len(b.cells) == 1:
        return [(a.cells[0], b.cells[0])]
    candidates = [
        (_cost(one.cell, other.cell), one, other)
        for one in a.cells
        for other in b.cells
        if one.cell.minor == other.cell.minor and _gates(one.cell) == _gates(other.cell)
    ]
    found: list[tuple[SideCell, SideCell]] = []
    for _, one, other in sorted(candidates, key=lambda item: item[0]):
        if all(one is not pair[0] and other is not pair[1] for pair in found):
            found.append((one, other))
    return sorted(found, key=lambda pair: cell_order(pair[0].cell))


def _gates(cell: Cell) -> tuple[str, ...]:
    return tuple(sorted(str(gate) for gate in cell.gates))


def pairs_of(found: Sequence[tuple[SideCell, SideCell]]) -> tuple[Pair, ...]:
    """Matched cells with labels (``1.36``, ``1.37 gates``; numbered where several are alike) and notes."""
    labels: list[str] = []
    for a, b in found:
        own = f"1.{a.cell.minor}" if a.cell.minor == b.cell.minor else f"1.{a.cell.minor}/1.{b.cell.minor}"
        label = own + (" gates" if a.cell.gates or b.cell.gates else "")
        taken = sum(earlier == label or earlier.startswith(f"{label} #") for earlier in labels)
        labels.append(label if not taken else f"{label} #{taken + 1}")
    return tuple(
        Pair(label=label, a=a, b=b, note=_note(a.cell, b.cell)) for label, (a, b) in zip(labels, found, strict=True)
    )


def _note(a: Cell, b: Cell) -> str:
    said = []
    if a.minor != b.minor:
        said.append("another minor version")
    elif _patch(a) != _patch(b):
        said.append("another patch release, matched by minor version")
    elif a.version != b.version:
        said.append("another build")
    if a.distro != b.distro:
        said.append("another distribution")
    if _gates(a) != _gates(b):
        said.append("other gates")
    return "; ".join(said) or "the same cell"
