"""A comparison as one HTML file that needs nothing else: no script, nothing is loaded. Pure but for its template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.report import measured
from lab.report.diff import Diff, ValueRow, counts, merged, spans, stated, unstated_text
from lab.report.html import templates

FOLDER = Path(__file__).resolve().parent
TEMPLATE = "diff.html.j2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One row of a stage's table; ``kind`` is the verdict (``same``, ``differs``, ``range``, ``-``)."""

    name: str
    cells: str
    a: str
    b: str
    against: str
    kind: str
    note: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One stage; ``left_out`` values are not shown, since one side does not give them."""

    stage: str
    counted: str
    lines: tuple[Line, ...]
    left_out: int


def sections(found: Diff, *, show_all: bool, changed: bool) -> list[Section]:
    """The stages of a comparison as the text form has them."""
    every = tuple(pair.label for pair in found.pairs)
    made = []
    for stage, rows in found.stages.items():
        shown = list(rows) if show_all else stated(rows, found.a, found.b)
        told = [row for row in shown if not (changed and row.against.verdict == "same")]
        made.append(
            Section(
                stage=stage,
                counted=counts(shown) or "no value that both sides give",
                lines=tuple(_line(name, labels, row, every) for name, labels, row in merged(told)),
                left_out=len(rows) - len(shown),
            )
        )
    return made


def _line(name: str, labels: Sequence[str], row: ValueRow, every: Sequence[str]) -> Line:
    return Line(
        name=name,
        cells=spans(labels, every) + (" together" if len(row.pairs) > 1 else ""),
        a=measured.text(row.a),
        b=measured.text(row.b),
        against=row.against.text,
        kind=row.against.verdict,
        note=row.note,
        where=row.where,
    )


def page_text(found: Diff, mask: Callable[[str], str], *, show_all: bool = False, changed: bool = False) -> str:
    """The page in UTF-8, ending with one newline. ``mask`` hides secrets in every text before it is escaped."""
    text = templates(FOLDER, mask).get_template(TEMPLATE).render(
        diff=found,
        sections=sections(found, show_all=show_all, changed=changed),
        several=len(found.pairs) > 1,
        remarks=list(dict.fromkeys((*found.a.remarks, *found.b.remarks))),
        unstated=unstated_text(found),
        disagreeing=list(dict.fromkeys(row.name for row in found.inputs if row.must_agree)),
    )
    return mask(text).rstrip("\n") + "\n"
