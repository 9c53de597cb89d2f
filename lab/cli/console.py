"""What a person sees: data on standard output, progress and errors on standard error, secrets masked in both.

Light to import: verbs that need nothing else start at once.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import typer
from rich.console import Console

from lab.cli.help_topics import topic
from lab.model import Interrupted, LabError
from lab.secrets import SECRETS

UNBOUNDED_COLUMNS = 1 << 16


class _Progress(Console):
    """Standard error. A reader that has gone away (``2>&1 | head``, a closed terminal) must not end a measurement."""

    def on_broken_pipe(self) -> None:
        """Go on without a reader; the base class would end the program with the code of a falsified claim."""
        self.quiet = True

    def show_cursor(self, show: bool = True) -> bool:
        """Leave the cursor alone: whoever kills a run must not be left without one."""
        del show
        return False


progress_console = _Progress(stderr=True, highlight=False, soft_wrap=True)
data_console = Console(highlight=False, soft_wrap=True)


_is_quiet = False


def be_quiet(wanted: bool) -> None:
    """Leave out all progress from now on, or show it again."""
    global _is_quiet
    _is_quiet = wanted


def is_quiet() -> bool:
    """Whether progress is left out."""
    return _is_quiet


def progress(text: str) -> None:
    """One line of progress on standard error; lost when that cannot be written (a full disk, no terminal)."""
    if not _is_quiet:
        _to_stderr(text)


def explain(text: str) -> None:
    """What belongs to an error, on standard error; also when progress is left out."""
    _to_stderr(text)


def _to_stderr(text: str, style: str | None = None) -> None:
    with contextlib.suppress(OSError):
        progress_console.print(SECRETS.mask(text), markup=False, style=style)


def timed_progress() -> Callable[[str], None]:
    """Progress lines that begin with the time since now, for verbs that take minutes."""
    start = time.monotonic()

    def say(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - start), 60)
        progress(f"[{minutes:3d}:{seconds:02d}] {text}")

    return say


def print_json(value: Any) -> None:
    """Data as JSON on standard output."""
    typer.echo(SECRETS.mask(json.dumps(value, indent=2, ensure_ascii=False)))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Data as a table on standard output: as wide as it must be, or folded to the width of a terminal; never cut."""
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # A text from a node may hold what looks like rich's markup.
        table.add_row(*(Text(SECRETS.mask(text)) for text in row))
    console = data_console if data_console.is_terminal else Console(highlight=False, width=UNBOUNDED_COLUMNS)
    # Apart from the table, which would fill the line up with spaces.
    console.print(Text(title, style="italic"), soft_wrap=True)
    console.print(table, soft_wrap=False)


def fail(error: LabError | Interrupted) -> int:
    """Print an error on standard error, and where it is explained; its exit code."""
    _to_stderr(f"error: {error}", "red")
    _to_stderr(f"help: {topic(error)}")
    return error.exit_code
