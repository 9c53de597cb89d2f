"""Output of node programs: whole, of the right program and version, or refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.model import ParseError
from lab.parse.lines import of_kind, records

GOOD = '{"kind": "start", "program": "hog", "version": 1}\n{"kind": "tick", "t": 1.5}\n{"kind": "end"}\n'


def test_all_records_in_order():
    assert records(GOOD, "hog") == [
        {"kind": "start", "program": "hog", "version": 1},
        {"kind": "tick", "t": 1.5},
        {"kind": "end"},
    ]


def test_records_of_one_kind():
    found = records(GOOD, "hog")
    assert of_kind(found, "tick") == [{"kind": "tick", "t": 1.5}]
    assert of_kind(found, "none") == []


def test_every_cut_is_noticed():
    for length in range(len(GOOD) - 1):
        with pytest.raises(ParseError):
            records(GOOD[:length], "hog")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not the output of hog"),
        ("\n", "a line is not JSON"),
        (GOOD.replace("hog", "pig"), "not the output of hog"),
        (GOOD.replace('"start"', '"begin"'), "not the output of hog"),
        (GOOD.replace('"version": 1', '"version": 2'), "format version 2, this lab reads 1"),
        (GOOD.replace(', "version": 1', ""), "format version None"),
        (GOOD.replace('{"kind": "end"}\n', ""), "cut, its end is missing"),
        (GOOD + '{"kind": "tick"}\n', "cut, its end is missing"),
        (GOOD.replace('{"kind": "tick", "t": 1.5}', "Traceback (most recent call last):"), "a line is not JSON"),
        (GOOD.replace('{"kind": "tick", "t": 1.5}', "[1]"), "a line is not a record"),
        (GOOD.replace('{"kind": "tick", "t": 1.5}', '{"t": 1}'), "a line is not a record"),
        (GOOD.replace('{"kind": "tick", "t": 1.5}', ""), "a line is not JSON"),
        ("warning: x\n" + GOOD, "a line is not JSON"),
    ],
)
def test_refused_with_the_reason(text, said):
    with pytest.raises(ParseError, match=said):
        records(text, "hog")


def test_another_version_may_be_asked_for():
    assert records(GOOD.replace('"version": 1', '"version": 3'), "hog", version=3)[0]["version"] == 3


@given(st.lists(st.dictionaries(st.text(max_size=5), st.one_of(st.text(), st.integers(), st.none()), max_size=4)))
def test_what_a_program_writes_is_what_is_read(bodies):
    middle = [{**body, "kind": "x"} for body in bodies]
    lines = [{"kind": "start", "program": "p", "version": 1}, *middle, {"kind": "end"}]
    assert records("".join(json.dumps(line) + "\n" for line in lines), "p") == lines


@given(st.text())
def test_any_other_text_is_refused(text):
    with pytest.raises(ParseError):
        records(text, "hog")
