"""The live view of a run on a terminal: one row per node, redrawn in place, with the lines of progress above it.

Nothing of it is shown where it could not be redrawn, or is not wanted: no terminal, NO_COLOR, CI, -v, --quiet.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from rich.console import Group
from rich.live import Live
from rich.text import Text

from lab import plan
from lab.cli import console
from lab.model import Cell
from lab.report.phases import is_window
from lab.run_state import Watched

DRAW_S = 1.0
REST_S = 10.0
"""While something is measured: the drawing takes from the cores that may be those of a local guest."""

Expected = Callable[[Cell], Mapping[str, float]]


def is_wanted() -> bool:
    """Whether standard error is a terminal on which rows can be redrawn, and nothing speaks against it."""
    screen = console.progress_console
    if not screen.is_terminal or screen.is_dumb_terminal or console.is_quiet():
        return False
    if os.environ.get("NO_COLOR") or os.environ.get("CI"):
        return False
    return not logging.getLogger().isEnabledFor(logging.DEBUG)


def row(watched: Watched, expected: Mapping[str, float], width: int) -> str:
    """One node in ``width`` columns: version, stage and repetition, phase, time of all expected time, cost so far.

    ``expected`` maps phases to seconds; the phase "" stands for all that is not told apart. What does not fit is cut
    from the version's label, which comes first.
    """
    phase, phase_s = watched.phases.current()
    elapsed_s = watched.phases.elapsed_s()
    total_s = sum(expected.values())
    stage = " ".join(text for text in (watched.stage, watched.repetition) if text)
    doing = f"{phase or 'between phases'} {clock(phase_s)}"
    if phase and expected.get(phase):
        doing += f"/{clock(expected[phase])}"
    cost = plan.dollars(elapsed_s, watched.price)
    parts = [f"{stage:<14}", f"{doing:<20}", f"{clock(elapsed_s)} of {clock(total_s)}", f"${cost}"]
    tail = "  ".join(parts)
    if len(tail) > width - 12:
        tail = "  ".join(part.strip() for part in parts)
    room = max(4, width - len(tail) - 3)
    label = watched.cell.label
    label = label if len(label) <= room else f"{label[: room - 1]}…"
    return f"{label:<{min(room, 32)}}  {tail}"[:width]


def clock(seconds: float) -> str:
    """``1:05`` or ``1:02:05``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Rows:
    """What is drawn: a row for each node that is at work."""

    def __init__(self, expected: Expected) -> None:
        self._expected = expected
        self._rows: list[Watched] = []

    def watch(self, watched: Watched) -> None:
        """Show one more node until it is over."""
        self._rows.append(watched)

    def alive(self) -> list[Watched]:
        """Nodes at work."""
        return [watched for watched in list(self._rows) if not watched.is_over]

    def is_measuring(self) -> bool:
        """Whether a measured window is open on any node."""
        return any(is_window(watched.phases.current()[0]) for watched in self.alive())

    def draw(self) -> Group:
        """All rows, each within the terminal's width."""
        width = console.progress_console.width - 1
        return Group(*(
            Text(row(watched, self._expected(watched.cell), width), no_wrap=True, overflow="crop")
            for watched in self.alive()
        ))


@contextmanager
def watching(expected: Expected) -> Iterator[Callable[[Watched], None]]:
    """Show the rows of all nodes that the given function is told of while the block runs; nothing stays of them."""
    rows = Rows(expected)
    if not is_wanted():
        yield rows.watch
        return
    ended = threading.Event()
    screen = Live(
        console=console.progress_console, get_renderable=rows.draw, auto_refresh=False, transient=True,
        redirect_stdout=False,
    )  # fmt: skip

    def refresh() -> None:
        # The terminal may be gone: that ends no measurement, and must not hide how it ended.
        with suppress(OSError):
            screen.refresh()

    def watch(watched: Watched) -> None:
        rows.watch(watched)
        refresh()

    def redraw() -> None:
        while not ended.wait(REST_S if rows.is_measuring() else DRAW_S):
            refresh()

    drawing = threading.Thread(target=redraw, name="live view", daemon=True)
    try:
        screen.start()
        with _logging_above():
            drawing.start()
            yield watch
    finally:
        ended.set()
        if drawing.ident is not None:
            # Otherwise a signal came before it was started.
            drawing.join()
        with suppress(OSError):
            screen.stop()


@contextmanager
def _logging_above() -> Iterator[None]:
    """Let warnings of the log go through the live view, which would be torn by them otherwise."""
    handlers = [each for each in logging.getLogger().handlers if isinstance(each, logging.StreamHandler)]
    before = [each.setStream(sys.stderr) for each in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, before, strict=True):
            if stream is not None:
                handler.setStream(stream)
