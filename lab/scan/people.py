"""Findings for people: a table where it fits and a list where it does not, and what is said below it. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lab.qos import Behaviour
from lab.scan.findings import Finding
from lab.scan.output import count, printable

OBJECT, WHERE, OLD, NEW, TODAY, STORED, MADE_BY = range(7)
COLUMNS = ("object", "where", "on 1.34-1.36", "on 1.37+", "today", "stored", "made by")
MAX_TEXTS = 100
"""Different texts under one heading; more are not held, since other people's files decide how many there are."""

_NAMED = 3
_INDENT = "    "


def row(finding: Finding) -> list[str]:
    """The cells of a finding below COLUMNS; empty where there is nothing to say."""
    makers = [*finding.owners, *([str(finding.producer)] if finding.producer else [])]
    return [
        printable(finding.title),
        printable(finding.where),
        finding.classes.get(Behaviour.EMPTY_BLOCK_SHADOWS.label, "possibly BestEffort"),
        finding.classes.get(Behaviour.FIXED.label, "by its containers"),
        finding.today or "",
        printable(finding.stored or "") + (" (wrong)" if finding.stored_wrong else ""),
        printable(" < ".join(makers)),
    ]


def table(rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells without the columns in which no row has anything."""
    kept = [number for number in range(len(COLUMNS)) if any(cells[number] for cells in rows)]
    return [COLUMNS[number] for number in kept], [[cells[number] or "-" for number in kept] for cells in rows]


def table_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Columns of a terminal that the table takes when nothing in it is folded."""
    from rich.cells import cell_len

    return sum(max(map(cell_len, cells)) + 3 for cells in zip(columns, *rows, strict=True)) + 1


def entries(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """The same as lines for a terminal of ``width`` columns, which are never folded inside a word.

    File and line that are longer than a line stand on one of their own, whole.
    """
    for cells in rows:
        where = f"{cells[WHERE]}:"
        if cells[OBJECT] == cells[WHERE]:
            yield cells[WHERE]
        elif len(where) + 1 + len(cells[OBJECT]) <= width:
            yield f"{where} {cells[OBJECT]}"
        else:
            yield where
            yield from folded(cells[OBJECT], width, "  ")
        parts = [f"{cells[OLD]} on 1.34-1.36, {cells[NEW]} on 1.37+"]
        parts += [f"{COLUMNS[number]}: {cells[number]}" for number in (TODAY, STORED, MADE_BY) if cells[number]]
        yield from folded("; ".join(parts), width, _INDENT)


def folded(text: str, width: int, indent: str = "") -> list[str]:
    """A text as lines of ``width`` columns, folded between words only; those after the first are indented."""
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False
    )


@dataclass(slots=True)
class _Said:
    """A text: how often it is said, and the first objects it is said of."""

    times: int = 0
    names: list[str] = field(default_factory=list)


class Explanation:
    """What is lost, what mends it and what does not: each text said once with its objects, in bounded memory."""

    def __init__(self) -> None:
        self._findings = 0
        self._wrong = 0
        self._left_out: dict[str, int] = {}
        self._texts: dict[str, dict[str, _Said]] = {
            "What the wrong class makes otherwise": {},
            "What mends it (one is enough)": {},
            "What does not help": {},
            "Notes": {},
        }

    def add(self, finding: Finding) -> None:
        """Take in the texts of a finding that is told."""
        self._findings += 1
        self._wrong += finding.stored_wrong is True
        notes = (finding.note,) if finding.note else ()
        for heading, texts in zip(self._texts, (finding.loses, finding.fixes, finding.no_help, notes), strict=True):
            for text in texts:
                self._say(heading, text, finding)

    def _say(self, heading: str, text: str, finding: Finding) -> None:
        known = self._texts[heading]
        said = known.get(text)
        if said is None:
            if len(known) >= MAX_TEXTS:
                self._left_out[heading] = self._left_out.get(heading, 0) + 1
                return
            said = known[text] = _Said()
        said.times += 1
        if len(said.names) < _NAMED:
            said.names.append(finding.title)

    def lines(self) -> list[str]:
        """Lines below the table; none when no finding was told."""
        lines: list[str] = []
        for heading, texts in self._texts.items():
            if texts:
                lines += ["", f"{heading}:"]
                lines += [f"  - {printable(self._with_names(text, said))}" for text, said in texts.items()]
            if heading in self._left_out:
                lines.append(f"  - and other texts, {self._left_out[heading]} in all, which --json shows")
        if self._wrong:
            pods = f"{count(self._wrong, 'live pod')} {'has' if self._wrong == 1 else 'have'}"
            stays = "it stays, through an upgrade too, until the pod is recreated"
            lines += ["", f"{pods} the wrong class stored; {stays}."]
        return lines

    def _with_names(self, text: str, said: _Said) -> str:
        if said.times == self._findings:
            return text
        more = said.times - len(said.names)
        return f"{text} [{', '.join(said.names)}{f' and {more} more' if more > 0 else ''}]"
