"""Frames behind the summary, and their Markdown. Every cell is text; ``-`` stands for nothing to show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from lab.model import Verdict
from lab.report.comparability import (
    SHORT_DIGEST,
    AttemptRecord,
    Comparison,
    EnvironmentKey,
    LeftOut,
    Selection,
    attempt_order,
    cell_order,
    environment_key,
    verdicts_of,
)
from lab.report.outcomes import weightiest

if TYPE_CHECKING:
    import pandas as pd

    from lab.stages.contract import Stage

NOTHING = "-"
NO_TITLE = "(not in CLAIM.md)"


def one_line(text: str) -> str:
    """Text on one line with single spaces: a reason may quote what a node printed."""
    return " ".join(text.split())


def short(text: str) -> str:
    """A sha256 by its first digits, any other text whole."""
    is_digest = len(text) == 64 and set(text) <= set("0123456789abcdef")
    return text[:SHORT_DIGEST] if is_digest else one_line(text)


def markdown(frame: pd.DataFrame) -> str:
    """A frame as a Markdown table: pipes escaped, numbers left as they were written."""
    # pandas is loaded where a table is made: help and completion of the verbs that write one should not wait for it.
    import pandas as pd

    escaped = pd.DataFrame(
        [[_cell(value) for value in row] for row in frame.to_numpy().tolist()],
        columns=[_cell(title) for title in frame.columns],
        dtype=object,
    )
    return str(escaped.to_markdown(index=False, tablefmt="pipe", disable_numparse=True))


def _cell(value: object) -> str:
    return one_line(str(value)).replace("|", "\\|") or NOTHING


def _frame(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([list(row) for row in rows], columns=list(columns), dtype=object)


def labels(selection: Selection) -> dict[str, str]:
    """Row label per cell name: version and gates, after the distribution when the summary holds several."""
    cells = {attempt.cell.name: attempt.cell for attempt in selection.attempts}
    several = len({cell.distro for cell in cells.values()}) > 1
    return {name: f"{cell.distro} {cell.label}" if several else cell.label for name, cell in cells.items()}


def in_environment(selection: Selection, environment: EnvironmentKey) -> list[AttemptRecord]:
    """The counted attempts of one environment, by version and gates, then stage."""
    found = [attempt for attempt in selection.attempts if environment_key(attempt) == environment]
    return sorted(found, key=attempt_order)


def verdicts_by_claim(attempts: Iterable[AttemptRecord]) -> dict[str, dict[str, list[Verdict]]]:
    """Verdicts by claim id, then by cell name."""
    found: dict[str, dict[str, list[Verdict]]] = {}
    for attempt in attempts:
        for verdict in verdicts_of(attempt):
            found.setdefault(verdict.claim, {}).setdefault(attempt.cell.name, []).append(verdict)
    return found


def verdict_frame(
    selection: Selection, environment: EnvironmentKey, claims: Mapping[str, str]
) -> pd.DataFrame:
    """Claims as rows (id, title), the environment's cells as columns, outcome words inside.

    Rows follow ``claims``; a judged claim that is no longer there comes last. Several verdicts on one claim
    and cell show as the one that weighs most.
    """
    attempts = in_environment(selection, environment)
    cells = sorted({attempt.cell.name: attempt.cell for attempt in attempts}.values(), key=cell_order)
    label = labels(selection)
    found = verdicts_by_claim(attempts)
    rows = []
    for claim in [*claims, *sorted(set(found) - set(claims))]:
        row = [claim, claims.get(claim, NO_TITLE)]
        for cell in cells:
            outcome = weightiest(verdict.outcome for verdict in found.get(claim, {}).get(cell.name, []))
            row.append(outcome.value if outcome is not None else NOTHING)
        rows.append(row)
    return _frame(["claim", "title", *(label[cell.name] for cell in cells)], rows)


def stage_row(attempt: AttemptRecord, stage: Stage | None) -> dict[str, str]:
    """The stage's columns for one attempt; empty when there is no observation or the stage is not known."""
    if stage is None or attempt.observation is None:
        return {}
    return stage.row(attempt.observation)


def is_blank(row: Mapping[str, str]) -> bool:
    """True when no column of a row shows anything."""
    return all(text.strip() in ("", NOTHING) for text in row.values())


def problem_text(attempt: AttemptRecord, stage: Stage | None) -> str:
    """What kept the observation from being whole; empty when nothing did."""
    if stage is None:
        return f"this lab has no stage {attempt.stage}"
    stored = one_line(str(attempt.verdict.get("problem") or ""))
    return stored or ("there is no observation" if attempt.observation is None else "")


def stage_frame(comparison: Comparison, stage: Stage | None, label: Mapping[str, str]) -> pd.DataFrame:
    """Versions as rows, the stage's columns in the order in which its rows first name them.

    A last column ``problem`` is there when a row shows nothing else, and says why.
    """
    rows = [stage_row(attempt, stage) for attempt in comparison.attempts]
    columns = list(dict.fromkeys(title for row in rows for title in row))
    any_blank = any(is_blank(row) for row in rows)
    table = []
    for attempt, row in zip(comparison.attempts, rows, strict=True):
        cells = [label[attempt.cell.name], *(row.get(title, NOTHING) for title in columns)]
        if any_blank:
            problem = problem_text(attempt, stage) or "nothing was measured"
            cells.append(problem if is_blank(row) else NOTHING)
        table.append(cells)
    return _frame(["version", *columns, *(["problem"] if any_blank else [])], table)


def shown_facts(comparison: Comparison) -> tuple[dict[str, str], list[str]]:
    """The shown facts of a table: those that every row shares (name to value), and the others' names."""
    every = [attempt.environment.shown for attempt in comparison.attempts]
    names = sorted({name for shown in every for name in shown})
    # A fact that one row lacks varies: it is not known to be equal there.
    equal = {name: every[0][name] for name in names if len({shown.get(name) for shown in every}) == 1}
    return equal, [name for name in names if name not in equal]


def varying_frame(comparison: Comparison, names: Sequence[str], label: Mapping[str, str]) -> pd.DataFrame:
    """Versions as rows, the shown facts ``names`` as columns; ``not read`` where a node did not tell."""
    rows = []
    for attempt in comparison.attempts:
        shown = attempt.environment.shown
        facts = [short(shown[name]) if name in shown else "not read" for name in names]
        rows.append([label[attempt.cell.name], *facts])
    return _frame(["version", *names], rows)


def left_out_frame(left_out: Iterable[LeftOut]) -> pd.DataFrame:
    """Reason, number of attempts, and which; each attempt is counted once."""
    by_reason: dict[str, list[str]] = {}
    for entry in left_out:
        by_reason.setdefault(one_line(entry.reason), []).append(entry.name)
    ordered = [(reason, sorted(by_reason[reason])) for reason in sorted(by_reason)]
    rows = [[reason, str(len(names)), ", ".join(names)] for reason, names in ordered]
    return _frame(["reason", "attempts", "which"], rows)
