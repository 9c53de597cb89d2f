"""Lines that a scan names are those of editors and grep, whatever else a YAML parser takes for the end of a line."""

from __future__ import annotations

import io

import pytest

from lab.scan import documents
from lab.scan.chunks import Lines
from lab.scan.records import MAX_OBJECT_BYTES, Item, Problem


def read(data: bytes):
    return list(documents.read_stream(io.BytesIO(data), "f"))


ODD = "# a\r# b\x85# c\u2028# d\u2029# e\r\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("parser", [documents._PARSER, documents._SlowParser], ids=["fast", "slow"])
def test_lines_are_those_of_editors(encoding, parser, monkeypatch):
    monkeypatch.setattr(documents, "_PARSER", parser)
    found = read(f"{ODD}{ODD}kind: Pod\nspec:\n  x: '\x85\u2028\u85c2'\n  resources: {{}}\n".encode(encoding))

    [item] = found
    assert (item.place.line(), item.place.line_of(("spec", "resources"))) == (3, 6)


def test_lines_of_problems_are_those_of_editors():
    data = f"{ODD}a: 1\n---\n{ODD}a: 1\nb: [\n---\n{ODD}? {{a: 1}}\n"

    assert [each.line for each in read(data.encode()) if isinstance(each, Problem)] == [7, 9]


def test_lines_of_a_long_stream_are_those_of_editors_wherever_it_is_cut():
    items = "- kind: A\n  a: 'x\u2028y\x85z\r\n\n    u\u2029'\n" * 300
    raw = f"kind: List\nitems:\n{items}{'#' * (MAX_OBJECT_BYTES - 99)}".encode()
    assert len(raw) > MAX_OBJECT_BYTES
    lines = [each.place.line() for each in read(raw) if isinstance(each, Item)]
    assert lines == [3 + 4 * number for number in range(300)]


@pytest.mark.parametrize("size", range(1, 8))
def test_line_breaks_are_counted_however_their_bytes_come(size):
    raw = (ODD * 3).encode()
    counted = Lines(1)
    for start in range(0, len(raw), size):
        counted.feed(raw[start : start + size])

    assert [counted.line(number) for number in range(16)] == [1] * 5 + [2] * 5 + [3] * 5 + [4]
    counted.line(11)
    counted.forget()
    assert [counted.line(number) for number in range(11, 16)] == [3] * 4 + [4]
