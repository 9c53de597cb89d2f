"""Raw texts with line numbers, and the evidence of a page: which line of which file a shown value comes from.

Parsers keep no line numbers, so a line is looked up again here. A :class:`Ref` is only made by
:meth:`Evidence.cite`, which refuses a line that does not hold the fragment: no value can link to a wrong line.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.model import sha256_text
from lab.report.comparability import AttemptRecord

RawSource = Callable[[AttemptRecord], Mapping[str, str]]
"""Raw texts of an attempt, name to text."""

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Ref:
    """Lines ``first`` to ``last`` (counted from 1) of a raw file; ``place`` is its path below the results folder."""

    place: str
    first: int
    last: int

    @property
    def label(self) -> str:
        """``upstream-v1.36.3/kernel/0001/raw/cgroups.jsonl:17``, with ``17-19`` for several lines."""
        return f"{self.place}:{self.first}" + (f"-{self.last}" if self.last != self.first else "")

    @property
    def anchor(self) -> str:
        """Id on the page: the same for the same lines, whatever else the page shows."""
        return f"r{sha256_text(self.label)[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """Lines of a raw file as they stand there, and the fragments for which they were cited."""

    ref: Ref
    text: str
    fragments: tuple[str, ...]


@dataclass(frozen=True)
class RawFile:
    """One raw text. ``place`` as in :class:`Ref`."""

    place: str
    text: str

    @functools.cached_property
    def lines(self) -> tuple[str, ...]:
        """Its lines, split at newlines alone, as an editor numbers them."""
        return tuple(self.text.split("\n"))

    @functools.cached_property
    def records(self) -> tuple[tuple[int, dict[str, Any]], ...]:
        """Line number and object of each line that is a JSON object; others are passed over."""
        return tuple(_objects(self.lines))

    @functools.cached_property
    def document(self) -> Any:
        """The whole text as JSON; None when it is not."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None

    def number_at(self, offset: int) -> int:
        """Number of the line in which a character stands."""
        return self.text.count("\n", 0, offset) + 1


def _objects(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield number, value


class RawFiles:
    """The raw texts of one attempt by name; a text that is not there is an empty one, in which nothing is found."""

    def __init__(self, attempt: AttemptRecord, texts: Mapping[str, str]) -> None:
        self.folder = f"{attempt.cell.name}/{attempt.stage}/{attempt.number:04d}/raw"
        self._files = {name: RawFile(f"{self.folder}/{name}", text) for name, text in texts.items()}

    def __getitem__(self, name: str) -> RawFile:
        return self._files.get(name) or RawFile(f"{self.folder}/{name}", "")


class Evidence:
    """All lines that a page cites, each once."""

    def __init__(self) -> None:
        self._found: dict[Ref, tuple[str, dict[str, None]]] = {}

    def cite(self, file: RawFile, fragment: str, first: int, last: int | None = None) -> Ref | None:
        """These lines as evidence for a fragment of theirs; None when they do not hold it."""
        end = last or first
        if not fragment or not 1 <= first <= end <= len(file.lines):
            return None
        text = "\n".join(file.lines[first - 1 : end])
        if fragment not in text:
            return None
        ref = Ref(place=file.place, first=first, last=end)
        self._found.setdefault(ref, (text, {}))[1][fragment] = None
        return ref

    def cite_json(self, file: RawFile, path: Sequence[str | int]) -> Ref | None:
        """The lines of one key and its value in a JSON text; None when the path is not there."""
        span = json_span(file.text, path)
        if span is None:
            return None
        fragment = file.text[span[0] : span[1]]
        return self.cite(file, fragment, file.number_at(span[0]), file.number_at(span[1] - 1))

    def excerpts(self) -> list[Excerpt]:
        """What was cited, by place and line."""
        return [
            Excerpt(ref=ref, text=self._found[ref][0], fragments=tuple(sorted(self._found[ref][1])))
            for ref in sorted(self._found)
        ]


def pair_text(key: str, value: Any) -> str:
    """A key and its value as the node programs write them: ``"cpu.weight": "4"``."""
    return f"{json.dumps(key)}: {json.dumps(value)}"


def json_span(text: str, path: Sequence[str | int]) -> tuple[int, int] | None:
    """Where the last part of a path stands in a JSON text: from its key (or value, in a list) to its value's end.

    None when the text is no JSON or has no such path. Of a key that comes twice the last one counts, as in
    ``json.loads``.
    """
    try:
        start = value = _after_space(text, 0)
        for step in path:
            places = dict(_children(text, value))
            start, value = places[step]
        return start, _DECODER.raw_decode(text, value)[1]
    except (ValueError, KeyError, IndexError):
        return None


def _children(text: str, position: int) -> Iterator[tuple[str | int, tuple[int, int]]]:
    """Each key or index of the object or list at a position, with where it and its value begin."""
    opening = text[position]
    if opening not in "{[":
        return
    position = _after_space(text, position + 1)
    index = 0
    while text[position] not in "}]":
        step: str | int = index
        start = position
        if opening == "{":
            step, position = _DECODER.raw_decode(text, position)
            position = _after_space(text, _after_space(text, position) + 1)
        yield step, (start, position)
        position = _after_space(text, _DECODER.raw_decode(text, position)[1])
        if text[position] == ",":
            position = _after_space(text, position + 1)
        index += 1


def _after_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return position if match is None else match.end()
