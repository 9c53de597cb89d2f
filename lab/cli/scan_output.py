"""Where the findings of a scan go: each is printed when it comes, so that any number of them fits in the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import typer

from lab.cli import console
from lab.model import JSON
from lab.scan import output, people
from lab.scan.findings import Finding
from lab.secrets import SECRETS

MAX_ROWS = 1000
"""Rows of one table; those after them stand in the next."""

_BLOCK = 1 << 16


class Output(Protocol):
    """A form of output."""

    def finding(self, finding: Finding) -> None:
        """Print a finding, or make ready to."""

    def end(self, report: output.Report) -> None:
        """Print what is left, and what the scan came to."""


class DocumentOutput:
    """A JSON document on standard output. ``element`` gives what stands in it for a finding, ``rest`` what is left."""

    def __init__(
        self,
        document: output.LongDocument,
        element: Callable[[Finding], JSON | None],
        rest: Callable[[output.Report], JSON],
    ) -> None:
        self._document = document
        self._element = element
        self._rest = rest
        self._pieces: list[str] = []
        self._length = 0

    def finding(self, finding: Finding) -> None:
        """Add an element."""
        value = self._element(finding)
        if value is not None:
            self._write(self._document.element(value))

    def end(self, report: output.Report) -> None:
        """End the document."""
        self._write(self._document.end(self._rest(report)))
        self._flush()

    def _write(self, text: str) -> None:
        self._pieces.append(text)
        self._length += len(text)
        if self._length >= _BLOCK:
            self._flush()

    def _flush(self) -> None:
        typer.echo("".join(self._pieces), nl=False)
        self._pieces, self._length = [], 0


class PeopleOutput:
    """Tables (lists where a terminal is too narrow for them) and explanations; problems on standard error."""

    def __init__(self) -> None:
        self._rows: list[list[str]] = []
        self._explanation = people.Explanation()
        self._title = "Affected pod specs"

    def finding(self, finding: Finding) -> None:
        """Keep a row of what is told; print the rows that fill a table."""
        if finding.affected is False:
            return
        self._rows.append([SECRETS.mask(cell) for cell in people.row(finding)])
        self._explanation.add(finding)
        if len(self._rows) >= MAX_ROWS:
            self._print_rows()

    def end(self, report: output.Report) -> None:
        """Print the last rows, the explanations and the summary."""
        for problem in report.problems:
            typer.echo(f"error: {output.printable(str(problem))}", err=True)
        self._print_rows()
        lines, width = self._explanation.lines(), console.terminal_columns()
        if width is not None:
            lines = [part for line in lines for part in people.folded(line, width) or [""]]
        if lines:
            typer.echo("\n".join([*lines, ""]))
        typer.echo(output.summary(report))

    def _print_rows(self) -> None:
        if not self._rows:
            return
        columns, rows = people.table(self._rows)
        width = console.terminal_columns()
        if width is None or people.table_width(columns, rows) <= width:
            console.print_table(self._title, columns, rows)
        else:
            typer.echo("\n".join([self._title, "", *people.entries(self._rows, width)]))
        self._rows, self._title = [], "More affected pod specs"
