"""The live view: what a row says, when it is shown, and what is left of it."""

from __future__ import annotations

import io
import logging
import sys
from contextlib import contextmanager
from decimal import Decimal

import pytest
from rich.console import Console

from lab.cli import console, progress
from lab.model import Cell, Interrupted
from lab.phases import Phases
from lab.run_state import Watched
from tests.fakes import FakeClock

CELL = Cell(distro="upstream", version="v1.36.3")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def watched(clock):
    return Watched(cell=CELL, phases=Phases(clock), price=Decimal("0.03571"), stage="cpu", repetition="2/3")


@pytest.fixture
def terminal(monkeypatch):
    for name in ("NO_COLOR", "CI", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    file = Terminal()
    monkeypatch.setattr(console, "progress_console", Console(file=file, force_terminal=True, width=100))
    before = logging.getLogger().level
    logging.getLogger().setLevel(logging.WARNING)
    yield file
    logging.getLogger().setLevel(before)


def test_a_row_says_stage_repetition_phase_time_and_cost(watched, clock):
    with watched.phases.track("boot"):
        clock.advance(40)
    with watched.phases.track("windows"):
        clock.advance(65)
        text = progress.row(watched, {"boot": 35.5, "windows": 402.2}, 100)
    assert text.split() == ["v1.36.3", "cpu", "2/3", "windows", "1:05/6:42", "1:45", "of", "7:17", "$0.01"]


def test_a_row_before_anything_and_without_a_price(clock):
    text = progress.row(Watched(cell=CELL, phases=Phases(clock)), {"": 600.0}, 80)
    assert text.split() == ["v1.36.3", "between", "phases", "0:00", "0:00", "of", "10:00", "$0"]


@pytest.mark.parametrize("width", [20, 40, 79, 80, 159])
def test_a_row_is_never_wider_than_the_terminal(watched, clock, width):
    long = "v1.37.2 PodLevelResourcesFixKubeletQOSClass=false"
    gate = Cell.from_json({
        "distro": "upstream", "version": "v1.37.2", "gates": ["PodLevelResourcesFixKubeletQOSClass=false"]
    })  # fmt: skip
    watched.cell = gate
    with watched.phases.track("windows"):
        clock.advance(4000)
        text = progress.row(watched, {"windows": 4000.0}, width)
    assert len(text) <= width
    if width >= 79:
        assert text.endswith("1:06:40 of 1:06:40  $0.04")
        assert text.startswith(long[:9])
    if width == 159:
        assert text.startswith(long[:31])


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (60, "1:00"), (3599, "59:59"), (3600, "1:00:00")]
)
def test_clock(seconds, text):
    assert progress.clock(seconds) == text


def test_rows_are_those_at_work(terminal, watched):
    rows = progress.Rows(lambda cell: {})
    other = Watched(cell=CELL, phases=watched.phases)
    rows.watch(watched)
    rows.watch(other)
    assert rows.alive() == [watched, other]
    watched.is_over = True
    assert rows.alive() == [other]
    assert not rows.is_measuring()
    with watched.phases.track("windows"):
        assert rows.is_measuring()


def test_shown_on_a_terminal_and_gone_afterwards(terminal, watched):
    with progress.watching(lambda cell: {"": 60.0}) as watch:
        watch(watched)
        console.progress("a line of progress")
        assert "of 1:00" in terminal.getvalue()
    drawn, _, rest = terminal.getvalue().partition("a line of progress")
    assert "of 1:00" in drawn + rest
    assert terminal.getvalue().endswith("\x1b[1A\x1b[2K"), "nothing is left of the rows"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("CI", "true"), ("TERM", "dumb")])
def test_plain_lines_where_the_environment_says_so(terminal, watched, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with progress.watching(lambda cell: {"": 60.0}) as watch:
        watch(watched)
        console.progress("a line of progress")
    assert terminal.getvalue() == "a line of progress\n"


def test_plain_lines_without_a_terminal_with_quiet_and_with_v(terminal, monkeypatch):
    assert progress.is_wanted()
    logging.getLogger().setLevel(logging.DEBUG)
    assert not progress.is_wanted()
    logging.getLogger().setLevel(logging.WARNING)
    console.be_quiet(True)
    assert not progress.is_wanted()
    console.be_quiet(False)
    monkeypatch.setattr(console, "progress_console", Console(file=io.StringIO()))
    assert not progress.is_wanted()


def test_an_error_inside_ends_the_view_and_leaves_the_log_where_it_was(terminal, watched):
    handler = logging.StreamHandler(sys.stderr)
    before = handler.stream
    logging.getLogger().addHandler(handler)

    def fail():
        with progress.watching(lambda cell: {}) as watch:
            watch(watched)
            assert handler.stream is not before
            raise RuntimeError

    try:
        with pytest.raises(RuntimeError):
            fail()
    finally:
        logging.getLogger().removeHandler(handler)
    assert handler.stream is before


def test_a_terminal_that_goes_away_ends_nothing(terminal, watched, monkeypatch):
    with progress.watching(lambda cell: {}) as watch:
        watch(watched)

        def gone(text):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(terminal, "write", gone)
        watch(watched)
        console.progress("a line that nobody sees")


def test_the_cursor_is_never_hidden():
    file = Terminal()
    screen = console._Progress(file=file, force_terminal=True)
    screen.show_cursor(False)
    assert file.getvalue() == ""


def test_a_signal_before_the_view_is_drawn_comes_through(terminal, monkeypatch):
    @contextmanager
    def interrupted():
        raise Interrupted("stopped by SIGINT")
        yield

    monkeypatch.setattr(progress, "_logging_above", interrupted)
    with pytest.raises(Interrupted, match="SIGINT"), progress.watching(lambda cell: {}):
        pass
