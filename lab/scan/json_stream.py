"""JSON of any length to objects, in bounded memory. Pure.

A window of text slides over the input. Python's own C decoder reads each object, so that what is JSON is decided in one
place; this module only steps into the outermost object to take the elements of ``items`` one by one.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from lab.scan.records import (
    MAX_COLLECTIONS,
    MAX_DEPTH,
    MAX_OBJECT_BYTES,
    FixedPlace,
    Path,
    Place,
    ReadError,
    implied_kind,
    is_list,
)

_BLANK = re.compile(r"[ \t\n\r]*")
_SEPARATOR = re.compile(r"---[ \t]*(?:#[^\n]*)?\r?\n")
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_NEXT_OBJECT = re.compile(r"\n(?=[{\[])")
MAX_HELD_CHARACTERS = 16 << 20
"""Items whose list has not named its kind yet are held up to this length."""

_LOW = 1 << 16
_MORE = 1 << 20


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_SCAN = json.JSONDecoder(parse_constant=_no_constant).raw_decode


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonPlace:
    """Place of a value that begins at ``start`` of a window's text; lines inside it are counted when asked for."""

    text: str
    start: int
    first: int

    def line(self) -> int:
        """Line on which the value begins."""
        return self.first

    def line_of(self, path: Path) -> int:
        """Line of the last key or element of ``path``, as far as it can be followed."""
        at = self.start
        for step in path:
            found = _member(self.text, at, step)
            if found is None:
                break
            key_at, at = found
        else:
            at = key_at if path else at
        return self.first + self.text.count("\n", self.start, at)

    def line_of_text(self, path: Path) -> int | None:
        """None: a text of JSON stands on one line."""
        del path
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonObject:
    """One object: its value, its place, and the kind that its list implies."""

    value: Any
    place: Place
    kind: str | None


class JsonStream:
    """The objects of concatenated JSON texts.

    ``read`` gives the next bytes, empty at the end; ``line`` is the line of the first. Bytes that are not UTF-8 become
    U+FFFD, as in Go, and the lines of the first in each block are kept in ``bad_lines``.
    """

    def __init__(self, read: Callable[[], bytes], line: int) -> None:
        self._read = read
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._text = ""
        self._at = 0
        self._base = 0
        self._hold: int | None = None
        # A place of the window whose line is known: lines are counted from the last one that was asked for.
        self._mark = 0
        self._mark_line = line
        self._end = False
        self.bad_lines: list[int] = []
        self.done_texts = 0

    @property
    def at_line(self) -> int:
        """Line of the next character."""
        return self._line_at(self._at)

    def _line_at(self, at: int) -> int:
        if at >= self._mark:
            self._mark_line += self._text.count("\n", self._mark, at)
        else:
            self._mark_line -= self._text.count("\n", at, self._mark)
        self._mark = at
        return self._mark_line

    def objects(self) -> Iterator[JsonObject]:
        """Objects in order, elements of a list one by one; ReadError where the text stops being JSON.

        ``done_texts`` counts the outermost values that are complete.
        """
        while first := self._peek():
            if first == "{":
                yield from self._envelope()
            elif first == "[":
                yield from self._elements(None, None)
            elif not self._separator():
                self._value()
            self.done_texts += 1

    def resume(self) -> bool:
        """After an error: go to the next line that begins with a brace or bracket; False when there is none."""
        self._hold = None
        while True:
            match = _NEXT_OBJECT.search(self._text, self._at)
            if match:
                self._at = match.end()
                return True
            self._at = max(self._at, len(self._text) - 1)
            if self._end:
                return False
            self._more()

    def _separator(self) -> bool:
        """Pass a ``---`` line."""
        if self._text[self._at] != "-":
            return False
        match = _SEPARATOR.match(self._text, self._at)
        if match is None:
            return False
        self._at = match.end()
        return True

    def _envelope(self) -> Iterator[JsonObject]:
        """The object at hand: the elements of its ``items``, then itself unless it is a list."""
        first_line, start = self.at_line, self._base + self._at
        self._hold = start
        own: dict[str, Any] = {}
        kept: list[JsonObject] = []
        for key in self._members():
            if key == "items":
                kept = []
            if key == "items" and self._peek() == "[":
                self._hold = None
                yield from self._elements(own.get("kind"), kept)
                own[key] = [each.value for each in kept]
            else:
                own[key] = self._value()
        self._hold = None
        if not is_list(own.get("kind")):
            place = self._place(start) if start >= self._base else FixedPlace(first=first_line)
            yield JsonObject(value=own, place=place, kind=None)
        elif not isinstance(own.get("items"), list | None):
            self._fail("the items of a list are no array")
        # That it is a list was known only now: in sorted keys the kind comes after the items.
        else:
            yield from (replace(each, kind=implied_kind(own["kind"])) for each in kept)

    def _members(self) -> Iterator[str]:
        """Keys of the object at hand; after each the caller must take its value."""
        self._at += 1
        if self._peek() == "}":
            self._at += 1
            return
        while True:
            if self._peek() != '"':
                self._fail("a key in double quotes is missing")
            key = self._value()
            if self._peek() != ":":
                self._fail("a colon is missing after a key")
            self._at += 1
            yield key
            if self._closes("}"):
                return

    def _elements(self, list_kind: Any, kept: list[JsonObject] | None) -> Iterator[JsonObject]:
        """Elements of the array at hand that are objects of their own; the others go into ``kept``."""
        self._at += 1
        if self._peek() == "]":
            self._at += 1
            return
        kind, held = implied_kind(list_kind), 0
        while True:
            self._peek()
            start = self._base + self._at
            value = self._value()
            found = JsonObject(value=value, place=self._place(start), kind=kind)
            if isinstance(value, dict) and (kept is None or "kind" in value or is_list(list_kind)):
                yield found
            elif kept is not None:
                kept.append(found)
                held += self._base + self._at - start
                if len(kept) > MAX_COLLECTIONS or held > MAX_HELD_CHARACTERS:
                    self._fail("more items without a kind than can be held (a list must name its kind before them)")
            if self._closes("]"):
                return

    def _place(self, start: int) -> JsonPlace:
        at = start - self._base
        return JsonPlace(text=self._text, start=at, first=self._line_at(at))

    def _closes(self, bracket: str) -> bool:
        """Pass a comma (False) or the closing bracket (True)."""
        found = self._peek()
        if found not in (",", bracket):
            self._fail(f"',' or '{bracket}' is missing")
        self._at += 1
        return found == bracket

    def _value(self) -> Any:
        """The value at hand, read by the C decoder."""
        self._peek()
        while True:
            problem, problem_at = "", self._at
            try:
                value, end = _SCAN(self._text, self._at)
            except RecursionError:
                self._fail("nested too deeply")
            except json.JSONDecodeError as error:
                problem, problem_at = error.msg, error.pos
            except ValueError as error:
                problem = str(error).split(";")[0]
            # A value that ends with the window may be the beginning of a longer one (12 of 123).
            if not problem and (end < len(self._text) or self._end):
                # Few brackets cannot nest deep, and counting them is quick.
                brackets = self._text.count("{", self._at, end) + self._text.count("[", self._at, end)
                if brackets > MAX_DEPTH and _is_deep(value):
                    self._fail("nested too deeply")
                self._at = end
                return value
            if self._end:
                self._at = min(problem_at, len(self._text))
                self._fail(problem)
            if len(self._text) - self._at > MAX_OBJECT_BYTES:
                self._fail(f"no JSON, or an object of more than {MAX_OBJECT_BYTES >> 20} MiB ({problem})")
            self._more()

    def _peek(self) -> str:
        """The next character that is not blank, empty at the end of the input."""
        if len(self._text) - self._at < _LOW and not self._end:
            self._more()
        while True:
            self._at = _BLANK.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if self._end:
                return ""
            self._more()

    def _more(self) -> None:
        """Slide the window: drop what is done with, add about as much as is left, one block at least."""
        keep = self._at if self._hold is None else min(self._at, self._hold - self._base)
        if self._hold is not None and self._at - keep > MAX_OBJECT_BYTES:
            self._hold, keep = None, self._at
        pieces = [self._text[keep:]]
        line = self._line_at(keep)
        wanted = max(_MORE, len(pieces[0]))
        while wanted > 0:
            block = self._read()
            text = self._decoder.decode(block, final=not block)
            if not text.isascii() and _NOT_UTF8.search(text):
                before = sum(piece.count("\n") for piece in pieces)
                at = _NOT_UTF8.search(text)
                self.bad_lines.append(line + before + text.count("\n", 0, at.start() if at else 0))
                text = _NOT_UTF8.sub("\N{REPLACEMENT CHARACTER}", text)
            pieces.append(text)
            wanted -= len(text)
            if not block:
                self._end = True
                break
        self._text = "".join(pieces)
        self._base += keep
        self._at -= keep
        self._mark = 0

    def _fail(self, text: str) -> NoReturn:
        raise ReadError(self.at_line, text)


def _is_deep(value: Any) -> bool:
    """Whether a value nests deeper than MAX_DEPTH."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        children = (each.values() if isinstance(each, dict) else each for each in level)
        level = [child for inner in children for child in inner if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def _member(text: str, at: int, step: str | int) -> tuple[int, int] | None:
    """Where the key (or element) and the value of a step stand; of a key that stands twice, the last."""
    at = _blank(text, at)
    opened = text[at : at + 1]
    if opened != ("{" if isinstance(step, str) else "["):
        return None
    found, position = None, 0
    at = _blank(text, at + 1)
    try:
        while text[at] not in "}]":
            key_at, key = at, position
            if opened == "{":
                key, at = _SCAN(text, at)
                at = _blank(text, _blank(text, at) + 1)
            if key == step:
                found = (key_at, at)
            position += 1
            _, at = _SCAN(text, at)
            at = _blank(text, at)
            if text[at] == ",":
                at = _blank(text, at + 1)
    except (ValueError, IndexError, RecursionError):
        return None
    return found


def _blank(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at
