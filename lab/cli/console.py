"""What a person sees: data on standard output, progress and errors on standard error, secrets masked in both.

Light to import: verbs that need nothing else start at once.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

import typer
from rich.console import Console

from lab.cli.help_topics import topic
from lab.model import EXIT_OK, Interrupted, LabError, NodeError
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


class _Output:
    """Standard output whose reader may leave (``lab plan | head``): the rest goes nowhere, and nothing else changes.

    Without it the program would end at once with 1, the code of a falsified claim. NodeError for a full disk, at each
    write from the first that failed on: whoever probes a stream may swallow one.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._why = ""

    def write(self, text: str) -> int:
        self._do(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._do(self._stream.flush)

    def _do(self, act: Callable[[], object]) -> None:
        try:
            act()
        except BrokenPipeError:
            self._leave()
        except OSError as error:
            self._leave()
            self._why = error.strerror or str(error)
        if self._why:
            raise NodeError(f"standard output cannot be written: {self._why}; send it elsewhere")

    def _leave(self) -> None:
        """What is still in buffers must not fail again when the program ends."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def patient_output() -> Iterator[None]:
    """Inside, nobody has to read all of standard output; see :class:`_Output`."""
    before = sys.stdout
    if before is None:
        # It was closed by whoever started the program, who wants no data.
        yield
        return
    with contextlib.redirect_stdout(_Output(before)):
        yield


def encode_anything() -> None:
    """From now on a character that the encoding of a standard stream lacks is written out as ``\\u2014``, no failure.

    A handler that the person chose and that cannot fail stays.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def shown(show: Callable[[], None]) -> int:
    """Print data; the exit code when that does not work, for verbs that have more to do or to say than that."""
    try:
        show()
    except LabError as error:
        return fail(error)
    return EXIT_OK


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
    """Data as JSON on standard output, in ASCII where that has no encoding for all characters."""
    is_utf = str(getattr(sys.stdout, "encoding", "utf-8")).lower().startswith("utf")
    typer.echo(SECRETS.mask(json.dumps(value, indent=2, ensure_ascii=not is_utf)))


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


def terminal_columns() -> int | None:
    """Width of the terminal that standard output is; None when it is none."""
    return data_console.width if data_console.is_terminal else None


def fail(error: LabError | Interrupted) -> int:
    """Print an error on standard error, and where it is explained; its exit code."""
    _to_stderr(f"error: {error}", "red")
    _to_stderr(f"help: {topic(error)}")
    return error.exit_code
