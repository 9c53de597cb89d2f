"""Finding lines again: the place of a value in a JSON text, and evidence that cannot be wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.report.page.raw import Evidence, Excerpt, RawFile, Ref, json_span, pair_text
from lab.report.page.render import AROUND, LONGEST, marked
from lab.report.page.svg import ticks

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
TEXT = '{\n  "a": [1, {"b": "x]}"}],\n  "a}": {\n    "b": {}\n  },\n  "c": null\n}\n'


def paths(value, path=()):
    """Every path in a value with what stands there."""
    found = [(path, value)]
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return found + [one for key, child in children for one in paths(child, (*path, key))]


@given(VALUES, st.sampled_from([None, 2]), st.booleans())
def test_every_part_of_a_json_text_is_found_where_it_stands(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    for path, there in paths(value):
        start, end = json_span(text, path)
        piece = text[start:end]
        if path and isinstance(path[-1], str):
            assert json.loads("{" + piece + "}") == {path[-1]: there}
        else:
            assert json.loads(piece) == there


@pytest.mark.parametrize("path", [("z",), ("a", 2), ("a", "b"), ("c", "b"), ("a", 0, 0), ("a}", "b", "c"), (0,)])
def test_what_is_not_there_is_not_found(path):
    assert json_span(TEXT, path) is None


@pytest.mark.parametrize("text", ["", " ", "{", '{"a": 1', '{"a"}', "[1,", "no json", '{"a": [1, 2}'])
def test_text_that_is_no_json_holds_nothing(text):
    assert json_span(text, ("a", 1)) is None


def test_a_key_that_comes_twice_is_the_one_that_json_takes():
    start, end = json_span('{"a": 1, "a": 2}', ("a",))
    assert '{"a": 1, "a": 2}'[start:end] == '"a": 2'


def test_evidence_holds_the_lines_and_their_number():
    evidence = Evidence()
    file = RawFile("cell/class/0001/raw/pods.json", TEXT)
    ref = evidence.cite_json(file, ("a}",))
    assert ref == Ref(place="cell/class/0001/raw/pods.json", first=3, last=5)
    assert ref.label == "cell/class/0001/raw/pods.json:3-5"
    assert evidence.cite_json(file, ("c",)).label == "cell/class/0001/raw/pods.json:6"
    assert evidence.cite(file, '"c"', 6) == evidence.cite(file, "null", 6)
    first, second = evidence.excerpts()
    assert first.text == '  "a}": {\n    "b": {}\n  },'
    assert (second.ref.label, second.text) == ("cell/class/0001/raw/pods.json:6", '  "c": null')
    assert second.fragments == ('"c"', '"c": null', "null")


@pytest.mark.parametrize(
    ("fragment", "first", "last"),
    [("b", 2, 1), ("x", 6, None), ("", 2, None), ("a", 0, None), ("a", -1, None), ("{", 99, None)],
)
def test_lines_that_do_not_hold_the_fragment_are_no_evidence(fragment, first, last):
    evidence = Evidence()
    assert evidence.cite(RawFile("p", TEXT), fragment, first, last) is None
    assert evidence.excerpts() == []


def test_ids_differ_with_place_and_line():
    spans = ((1, 1), (1, 2), (2, 2))
    refs = [Ref(place=place, first=first, last=last) for place in ("a", "b") for first, last in spans]
    assert len({ref.anchor for ref in refs}) == len(refs)
    assert refs[0].anchor == Ref(place="a", first=1, last=1).anchor


def test_a_pair_is_as_the_node_programs_write_it():
    assert pair_text("cpu.weight", "4") == '"cpu.weight": "4"'
    assert pair_text("a", {"b": [1, None]}) == json.dumps({"a": {"b": [1, None]}})[1:-1]


# --- how an excerpt is shown ------------------------------------------------------------------------------------------


def shown(text, *fragments, mask=lambda each: each):
    return str(marked(Excerpt(ref=Ref(place="p", first=1, last=1), text=text, fragments=fragments), mask))


def test_what_was_cited_is_marked_and_the_rest_is_escaped():
    assert shown("<a> & \"b\" <c>", "b", "<c>") == '&lt;a&gt; &amp; "<mark>b</mark>" <mark>&lt;c&gt;</mark>'
    assert shown("abcabc", "b") == "a<mark>b</mark>ca<mark>b</mark>c"
    assert shown("abcd", "abc", "bcd") == "abcd", "a mark over all of it says nothing"


def test_of_a_very_long_line_the_neighbourhood_is_shown_and_the_rest_counted():
    text = "x" * LONGEST + "needle" + "y" * LONGEST
    cut = shown(text, "needle")
    assert cut.count("x") == cut.count("y") == AROUND
    assert "<mark>needle</mark>" in cut
    assert cut.count(f"… {LONGEST - AROUND:,} ") == 2
    assert shown("x" * LONGEST, "needle") == "x" * LONGEST


def test_a_secret_in_a_line_is_masked_even_where_a_mark_would_cut_it():
    assert shown("key=secret1 x", "ret1", mask=lambda text: text.replace("secret1", "***")) == "key=*** x"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 3000, [0, 500, 1000, 1500, 2000, 2500, 3000]),
        (-290, 90, [-200, -100, 0]),
        (0, 1.5, [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5]),
        (0, 0, [0]),
    ],
)
def test_ticks_are_round(low, high, expected):
    assert ticks(low, high) == expected
