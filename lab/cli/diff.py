"""`lab diff A B`: two results folders, runs, cells or versions, or one of them against the article."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from lab import article
from lab.cli import console, shared
from lab.model import Cell, UsageError
from lab.report import comparability, diff_page, measured
from lab.report.diff import Diff, ValueRow, compare, counts, merged, partial_names, spans, stated, unstated_text
from lab.report.sides import Side, side_of
from lab.secrets import SECRETS
from lab.stages import registry
from lab.store import Attempt, Store, write_whole

ARTICLE = "article"
WIDTH = 100
ACCEPTED = (
    "a results folder, a cell's folder (results/upstream-v1.36.3), FOLDER:VERSION, the name of a run, a cell or a "
    "version below --results, or the word article"
)
_CELL = re.compile(r"[a-z0-9]+-v1\.\d+\.\d+(\+.*)?")


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="Results folder, run, cell, version, or article.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The same; numbers are B against A.")],
    results: shared.ResultsOption = shared.RESULTS,
    show_all: Annotated[bool, typer.Option("--all", help="Also values that one side has nowhere.")] = False,
    changed: Annotated[bool, typer.Option("--changed", help="Leave out what is the same on both sides.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Also write one page for a browser, this file.")] = None,
    as_json: shared.JsonOption = False,
) -> None:
    """Compare two runs, cells or versions, or one against the article: inputs first, then results.

    A and B are each a results folder, a cell's folder, FOLDER:VERSION, a run, cell or version below --results, or the
    word `article`. Only the newest attempts that count are used. Exit codes: 0 both could be read, whatever differs,
    2 bad input, 4 stored results are damaged or mixed.
    """
    if show_all and changed:
        raise UsageError("--all and --changed ask for opposites: give one of them")
    shared.require_file_name("--html", html, "diff.html")
    found = compare(side(first, results), side(second, results), tuple(registry.BY_NAME))
    if html is not None:
        write_whole(html, diff_page.page_text(found, SECRETS.mask, show_all=show_all, changed=changed))
        console.progress(f"wrote {html}")
    if as_json:
        console.print_json(found.as_json())
    else:
        show(found, show_all=show_all, changed=changed)


# --- which side -------------------------------------------------------------------------------------------------------


def side(text: str, results: Path) -> Side:
    """The side that an argument names; UsageError says what there is to name."""
    if not text:
        raise UsageError(f"a side without a name; name {ACCEPTED}")
    if text == ARTICLE:
        return article.load()
    place, colon, name = text.rpartition(":")
    if colon and place and "/" not in name:
        if place == ARTICLE:
            return _of_article(name)
        return _stored(text, _folder(Path(place), text), name)
    path = Path(text)
    if path.is_dir():
        if _CELL.fullmatch(path.resolve().name):
            return _stored(text, path.resolve().parent, path.resolve().name)
        if path.resolve().parent.name == "_runs":
            return _stored(text, path.resolve().parent.parent, path.resolve().name)
        return _stored(text, path, None)
    if "/" in text:
        raise UsageError(f"{text}: no such folder; name {ACCEPTED}")
    return _stored(text, _folder(results, f"--results {results}"), text)


def _folder(path: Path, named: str) -> Path:
    if not path.is_dir():
        raise UsageError(f"{named}: no such folder; name {ACCEPTED}")
    return path


def _of_article(name: str) -> Side:
    whole = article.load()
    cells = tuple(cell for cell in whole.cells if _means(name, cell.cell))
    if not cells:
        there = ", ".join(cell.cell.name for cell in whole.cells)
        raise UsageError(f"{ARTICLE}:{name}: the article has no such cell; it has {there}")
    return Side(
        name=f"{ARTICLE}:{name}",
        description=whole.description,
        cells=cells,
        pools=whole.pools,
        is_partial=whole.is_partial,
        remarks=whole.remarks,
    )


def _stored(text: str, root: Path, name: str | None) -> Side:
    """The newest counted attempts of a folder, or of the run, cell or version ``name`` in it."""
    store = Store(root)
    everything = store.attempts()
    chosen = everything if name is None else _named(name, everything)
    if not chosen:
        raise UsageError(_nothing(text, root, name, everything, store))
    selection = comparability.select(chosen)
    if not selection.attempts:
        reasons = "; ".join(sorted({entry.reason for entry in selection.left_out}))
        raise UsageError(f"{text}: no attempt counts ({reasons})")
    shared.require_current(selection)
    return side_of(text, selection, registry.BY_NAME)


def _named(name: str, attempts: list[Attempt]) -> list[Attempt]:
    return [attempt for attempt in attempts if attempt.run_id == name or _means(name, attempt.cell)]


def _means(name: str, cell: Cell) -> bool:
    """Whether a text names a cell: whole, without the distribution, or (no gates) by its version, with or without v."""
    plain = name if not name[:1].isdigit() else f"v{name}"
    return plain in (cell.name, cell.name.removeprefix(f"{cell.distro}-"))


def _nothing(text: str, root: Path, name: str | None, attempts: list[Attempt], store: Store) -> str:
    if name is not None and any(attempt.run_id == name for attempt in store.attempts(smoke=True)):
        return f"{text}: a smoke run (--quick), which is never counted and so never compared"
    if name is not None and (root / "_runs" / name).is_dir():
        return f"{text}: this run left no attempt in {root}"
    if not attempts:
        return f"{text}: no attempt is stored below {root}; name {ACCEPTED}"
    cells = ", ".join(sorted({attempt.cell.name for attempt in attempts}))
    runs = ", ".join(sorted({attempt.run_id for attempt in attempts}))
    return f"{text}: not found. {root} has the cells {cells} and the runs {runs}; name {ACCEPTED}"


# --- text -------------------------------------------------------------------------------------------------------------


def show(found: Diff, *, show_all: bool, changed: bool = False) -> None:
    """Print a comparison: sides, cells, inputs that differ, then one table a stage."""
    for letter, one in (("A", found.a), ("B", found.b)):
        _say(f"{letter}: {one.name}: {one.description}")
    _show_cells(found)
    _show_inputs(found)
    for stage, rows in found.stages.items():
        have = [any(getattr(row, side) is not None for row in rows) for side in ("a", "b")]
        if not all(have) and not show_all:
            owner = found.a.name if have[0] else found.b.name
            _say(f"Stage {stage}: only {owner} has values of it." if any(have) else f"Stage {stage}: no values.")
            continue
        shown = list(rows) if show_all else stated(rows, found.a, found.b)
        told = [row for row in shown if not (changed and row.against.verdict == "same")]
        if told:
            _show_stage(stage, told, found, counts(shown))
        elif shown:
            _say(f"Stage {stage}: {counts(shown)}.")
        if len(shown) < len(rows):
            _say(f"{len(rows) - len(shown)} values of {stage} that {partial_names(found)} does not give: see --all.")


def _show_cells(found: Diff) -> None:
    table = []
    for pair in found.pairs:
        one, other = pair.a.cell, pair.b.cell
        if set(one.gates) == set(other.gates):
            shared_gates = ", ".join(str(gate) for gate in one.gates)
            table.append([pair.label, f"{one.distro}-{one.version}", f"{other.distro}-{other.version}", shared_gates])
        else:
            table.append([pair.label, one.name, other.name, ""])
    columns = ["cell", "A", "B", "gates"]
    if not any(line[3] for line in table):
        columns, table = columns[:3], [line[:3] for line in table]
    console.print_table("Cells", columns, table)
    for note in dict.fromkeys(pair.note for pair in found.pairs):
        labels = tuple(pair.label for pair in found.pairs if pair.note == note)
        _say(f"{spans(labels, _labels(found))}: {note}.")
    for one_side, alone in ((found.a, found.only_a), (found.b, found.only_b)):
        if alone:
            _say(f"Without a partner, only in {one_side.name}: {', '.join(alone)}.")


def _labels(found: Diff) -> tuple[str, ...]:
    return tuple(pair.label for pair in found.pairs)


def _show_inputs(found: Diff) -> None:
    rows = [
        [row.name, row.where, "-" if row.a is None else row.a, "-" if row.b is None else row.b] for row in found.inputs
    ]
    if rows:
        console.print_table("Inputs that differ", ["input or fact", "where", "A", "B"], rows)
    else:
        _say("No input and no fact of the environment that both sides state differs.")
    disagreeing = [row.name for row in found.inputs if row.must_agree]
    if disagreeing:
        _say(
            f"Cells of one comparison would have to agree on {', '.join(dict.fromkeys(disagreeing))}. These do not, so "
            "a difference below may come from there and not from Kubernetes."
        )
    if told := unstated_text(found):
        _say(told)
    for remark in dict.fromkeys((*found.a.remarks, *found.b.remarks)):
        _say(remark)
    _say("Samples: median and points; differences and ratios are B against A, of medians. No test is made of them.")


def _show_stage(stage: str, rows: list[ValueRow], found: Diff, counted: str) -> None:
    every = _labels(found)
    table, notes = [], []
    for name, labels, row in merged(rows):
        cells = spans(labels, every) + (" together" if len(row.pairs) > 1 else "")
        table.append([name, cells, measured.text(row.a), measured.text(row.b), row.against.text])
        if row.note:
            notes.append(f"{name}: {row.note}.")
    columns = ["value", "cells", "A", "B", "B against A"]
    if len(every) == 1:
        columns, table = [columns[0], *columns[2:]], [[line[0], *line[2:]] for line in table]
    console.data_console.print()
    console.print_table(f"Stage {stage}: {counted}", columns, table)
    for note in dict.fromkeys(notes):
        _say(note)


def _say(text: str) -> None:
    """A sentence on standard output, in lines that fit a terminal."""
    out = console.data_console
    width = min(out.width, WIDTH) if out.is_terminal else WIDTH
    out.print("\n".join(textwrap.wrap(SECRETS.mask(text), width)), markup=False)
