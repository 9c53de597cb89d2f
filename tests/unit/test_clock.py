"""Clocks of node and controller, compared over one round trip."""

from __future__ import annotations

import pytest

from lab import clock
from lab.model import NodeError, ParseError
from tests.fakes import FakeHost, Reply


def node(text):
    host = FakeHost("node")
    host.answer(("date", "+%s.%N"), Reply(stdout=text))
    return host


@pytest.mark.parametrize(
    ("text", "skew"),
    [
        ("1000.500000000\n", 0.0),
        ("1000.0", 0.0),
        ("1001.0", 0.0),
        ("1001.5", 0.5),
        ("999.25", -0.75),
        ("0", -1000.0),
    ],
)
def test_only_what_the_round_trip_does_not_explain_counts(text, skew):
    moments = iter([1000.0, 1001.0])
    assert clock.skew_s(node(text), lambda: next(moments)) == skew


def test_what_is_no_time():
    with pytest.raises(ParseError, match="date"):
        clock.skew_s(node("date: invalid\n"))


@pytest.mark.parametrize(("text", "word"), [("1", "behind"), ("99999999999", "ahead of")])
def test_a_clock_that_is_wrong_is_one_clear_error(text, word):
    with pytest.raises(NodeError, match=f"node: its clock is [0-9]+ s {word} this machine's; set both"):
        clock.check(node(text))
