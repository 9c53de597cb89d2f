"""What GitHub is told: Markdown that shows texts as they are, within what it takes, and annotations of one line."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from lab.model import Environment
from lab.report import job_summary
from lab.report.comparability import select
from tests.unit.test_report_junit import record

TITLES = {"a": "First claim", "b": "Second | claim"}


def test_tables_counts_and_what_did_not_hold():
    text = job_summary.render(select([record(a="HELD", b="MISSED"), record("v1.37.2", a="UNKNOWN")]), TITLES)

    assert text.startswith("## node lab\n\n1 HELD, 1 MISSED, 1 UNKNOWN\n")
    assert re.search(r"\| a +\| First claim +\| HELD +\| UNKNOWN +\|", text)
    assert "- v1.36.3: b MISSED: found it" in text
    assert "- v1.37.2: a UNKNOWN: found it" in text
    assert "a HELD" not in text


def test_every_environment_has_a_table_of_its_own():
    other = record("v1.37.2", a="HELD")
    other.environment = Environment(must_agree={"provider": "ssh"})

    assert job_summary.render(select([record(a="HELD"), other]), TITLES).count("Environment: provider") == 2


def test_nothing_judged():
    assert "No claim was judged." in job_summary.render(select([]), TITLES)


@given(st.text(st.characters(exclude_categories=("Cs", "Cc"))))
def test_a_reason_is_shown_as_it_is_written(reason):
    """Read by a Markdown parser as GitHub's: one list item, no element, no link; the text comes back."""
    words = " ".join(reason.split())
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(f"- x{job_summary.escape(reason)}x")
    [inline] = [token for token in tokens if token.type == "inline"]
    kinds = {child.type for child in inline.children or []}
    shown = "".join(child.content for child in inline.children or [])

    assert kinds <= {"text", "text_special"}
    assert html.unescape(shown) == f"x{words}x" or shown == f"x{words}x"


@pytest.mark.parametrize(
    "bad", ["<img src=x onerror=y>", "[a](javascript:x)", "a|b", "**b**", "`c`", "@octocat", "#note"]
)
def test_nothing_of_a_node_becomes_markup(bad):
    text = job_summary.render(select([record(reason=bad, a="FALSIFIED")]), TITLES)

    assert bad not in text


class TestRoom:
    SELECTION = select([record(a="FALSIFIED", b="UNKNOWN", reason="é" * 100), record("v1.37.2", a="UNKNOWN")])
    WHOLE = len(job_summary.render(SELECTION, TITLES).encode())

    @pytest.mark.parametrize("room", [-5, 0, 10, 200, 300, 500, WHOLE - 1, WHOLE, WHOLE + 1, 1 << 20])
    def test_no_more_than_there_is_room_for(self, room):
        text = job_summary.render(self.SELECTION, TITLES, room)

        assert len(text.encode()) <= max(room, 0)
        assert (job_summary.CUT in text) is (text != "" and room < self.WHOLE)

    def test_a_little_room_keeps_the_counts(self):
        assert "1 FALSIFIED, 2 UNKNOWN" in job_summary.render(self.SELECTION, TITLES, 250)

    def test_too_little_room_is_an_empty_text(self):
        assert job_summary.render(self.SELECTION, TITLES, 20) == ""


def test_annotations_of_what_fails_and_of_nothing_else():
    lines = job_summary.log_lines(select([record(a="HELD", b="MISSED"), record("v1.37.2", a="UNKNOWN", b="FALSIFIED")]))

    assert lines == ["::error title=b FALSIFIED::v1.37.2: found it", "::warning title=a UNKNOWN::v1.37.2: found it"]


def test_an_annotation_is_one_line_whatever_the_reason():
    [line] = job_summary.log_lines(select([record(reason="100%\r\n::error::forged", a="UNKNOWN")]))

    assert line == "::warning title=a UNKNOWN::v1.36.3: 100%25 ::error::forged"
    assert "\n" not in line


def test_no_more_annotations_than_are_shown():
    many = record(**{f"c{number}": "UNKNOWN" for number in range(25)})

    assert len(job_summary.log_lines(select([many]))) == 10
