"""Stored attempts to the model of the page. Pure: raw texts come through a function that is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from lab.claims import Claim
from lab.model import Outcome
from lab.report import comparability, statistics, summary, tables
from lab.report.comparability import Selection, Today
from lab.report.page.classes import class_parts, quota_parts
from lab.report.page.cpu import cpu_parts
from lab.report.page.eviction import eviction_parts
from lab.report.page.kernel import kernel_parts
from lab.report.page.model import Comparison, Grid, GridCell, Page, Part, Section, Value
from lab.report.page.raw import Evidence, RawFiles, RawSource
from lab.report.page.rows import Row, slug

if TYPE_CHECKING:
    import pandas as pd

    from lab.stages.contract import Stage

OUTCOMES = frozenset(outcome.value for outcome in Outcome)
READERS: dict[str, Callable[[Sequence[Row], str], list[Part]]] = {
    "class": class_parts,
    "kernel": kernel_parts,
    "quota": quota_parts,
    "cpu": cpu_parts,
    "eviction": eviction_parts,
    "eviction-priority": eviction_parts,
}


def build(
    selection: Selection,
    stages: Mapping[str, Stage],
    claims: Sequence[Claim],
    today: Today | None,
    raw_of: RawSource,
    notes: str = "",
) -> Page:
    """The page of these results; arguments as for the summary. ResultsError when a stored verdict is damaged."""
    evidence = Evidence()
    stored = selection.stages()
    known = [name for name in stages if name in stored]
    foreign = [name for name in stored if name not in stages]
    orders = statistics.predicted_orders(claims)
    sections = [
        _section(selection, name, stages.get(name), today, orders.get(name), raw_of, evidence)
        for name in [*known, *foreign, *(name for name in stages if name not in stored)]
    ]
    return Page(
        verdicts=tuple(_verdicts(selection, claims)),
        sections=tuple(sections),
        notes=notes.strip(),
        left_out=_left_out(selection),
        excerpts=tuple(evidence.excerpts()),
    )


def _section(
    selection: Selection,
    name: str,
    stage: Stage | None,
    today: Today | None,
    predicted: Sequence[str] | None,
    raw_of: RawSource,
    evidence: Evidence,
) -> Section:
    found = selection.comparisons(name)
    label = tables.labels(selection)
    comparisons = []
    for number, comparison in enumerate(found, start=1):
        rows = _rows(comparison, stage, label, raw_of, evidence)
        key = f"{slug(name)}-{number}"
        here = [attempt.cell.name for attempt in comparison.attempts]
        others = tables.in_environment(selection, comparison.environment)
        absent = [f"{label[cell]}: not run" for cell in dict.fromkeys(a.cell.name for a in others) if cell not in here]
        # The CPU stage shows the same in a table.
        lines = summary.statistics_lines(comparison, stage, label, predicted)
        blank = [
            f"{label[attempt.cell.name]}: {tables.problem_text(attempt, stage) or 'nothing was measured'}"
            for attempt in comparison.attempts
            if attempt.observation is None or stage is None
        ]
        comparisons.append(
            Comparison(
                environment=summary.environment_text(comparison.environment),
                parts=tuple(READERS.get(name, _plain_parts)(rows, key)) if rows else (),
                absent=(*blank, *absent),
                statistics=() if name == "cpu" else tuple(lines),
                remarks=tuple(summary.remark_lines(comparison, stage, label)),
                notes=tuple(summary.note_lines(comparison, stage, label)),
                origin=tuple(line.replace("`", "") for line in _origin(selection, comparison, today, label)),
                verdicts=_reasons(comparison, label, f"{key}-reasons"),
            )
        )
    lead = summary.several_environments(found) if len(found) > 1 else ""
    title = name if stage is None else stage.title
    return Section(id=f"stage-{slug(name)}", title=f"{title} ({name})", comparisons=tuple(comparisons), lead=lead)


def _origin(
    selection: Selection, comparison: comparability.Comparison, today: Today | None, label: Mapping[str, str]
) -> list[str]:
    """Where the numbers come from, and the facts that vary between the rows."""
    lines = summary.origin_lines(selection, comparison, today, label)
    _, varying = tables.shown_facts(comparison)
    for attempt in comparison.attempts:
        shown = attempt.environment.shown
        facts = [f"{name} {tables.short(shown[name]) if name in shown else 'not read'}" for name in varying]
        if facts:
            lines.append(f"{label[attempt.cell.name]}: {', '.join(facts)}")
    return lines


def _rows(
    comparison: comparability.Comparison,
    stage: Stage | None,
    label: Mapping[str, str],
    raw_of: RawSource,
    evidence: Evidence,
) -> list[Row]:
    return [
        Row(
            attempt=attempt,
            label=label[attempt.cell.name],
            key=slug(attempt.cell.name),
            observation=attempt.observation,
            view=stage.view(attempt.observation),
            texts=stage.row(attempt.observation),
            raw=RawFiles(attempt, raw_of(attempt)),
            evidence=evidence,
        )
        for attempt in comparison.attempts
        if stage is not None and attempt.observation is not None
    ]


def _plain_parts(rows: Sequence[Row], key: str) -> list[Part]:
    """A stage without a picture of its own: the summary's table."""
    columns = tuple(dict.fromkeys(name for row in rows for name in row.columns))
    grid = Grid(
        id=f"{key}-table",
        caption="What the stage shows of each version",
        columns=("version", *columns),
        rows=tuple((Value(text=row.label), tuple(_plain_cell(row, name) for name in columns)) for row in rows),
    )
    return [Part(tables=(grid,))]


def _plain_cell(row: Row, name: str) -> GridCell:
    shown = row.texts.get(name, tables.NOTHING)
    return GridCell(values=(Value(text=shown, is_missing=shown.strip() in ("", tables.NOTHING)),))


def _verdicts(selection: Selection, claims: Sequence[Claim]) -> list[tuple[str, Grid]]:
    titles = {claim.id: claim.title for claim in claims}
    places = {claim.id: f"stage-{slug(claim.stage)}" for claim in claims}
    found = []
    for number, key in enumerate(selection.environments(), start=1):
        frame = tables.verdict_frame(selection, key, titles)
        environment = summary.environment_text(key)
        grid = _frame_grid(frame, f"verdicts-{number}", f"Verdicts: {environment}", places)
        found.append((environment, grid))
    return found


def _frame_grid(frame: pd.DataFrame, key: str, caption: str, places: Mapping[str, str]) -> Grid:
    """A table of texts; the heading of a row links to the place on the page that belongs to it."""
    rows = []
    for first, *rest in frame.to_numpy().tolist():
        cells = tuple(GridCell(values=(Value(text=str(text)),), tone=text if text in OUTCOMES else "") for text in rest)
        rows.append((Value(text=str(first), table=places.get(first, "")), cells))
    return Grid(
        id=key, caption=caption, columns=tuple(str(title) for title in frame.columns), rows=tuple(rows)
    )


def _reasons(comparison: comparability.Comparison, label: Mapping[str, str], key: str) -> Grid | None:
    """Every verdict with its reason."""
    rows = [
        (
            Value(text=verdict.claim),
            (
                GridCell(values=(Value(text=label[attempt.cell.name]),)),
                GridCell(values=(Value(text=verdict.outcome.value),), tone=verdict.outcome.value),
                GridCell(values=(Value(text=verdict.reason),)),
            ),
        )
        for attempt in comparison.attempts
        for verdict in comparability.verdicts_of(attempt)
    ]
    columns = ("claim", "version", "verdict", "reason")
    return Grid(id=key, caption="Every verdict with its reason", columns=columns, rows=tuple(rows)) if rows else None


def _left_out(selection: Selection) -> Grid | None:
    if not selection.left_out:
        return None
    return _frame_grid(tables.left_out_frame(selection.left_out), "left-out", "Attempts that no table shows", {})
