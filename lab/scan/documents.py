"""Input to objects: files, directories and streams of YAML and JSON, in bounded time and memory.

A stream is cut into documents (:mod:`lab.scan.chunks`). A document whose first character is a brace or bracket is
read as JSON, and as YAML when it is no JSON, as kubectl does (``NewYAMLOrJSONDecoder``,
``k8s.io/apimachinery/pkg/util/yaml/decoder.go``). A document up to 4 MiB is held; a longer one must be a list, or
several JSON texts, and is read object by object. What cannot be read becomes a Problem, and reading goes on with the
next document.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
import yaml.parser
import yaml.reader
import yaml.scanner

from lab.scan.chunks import Chunk, Lines, Readable, Splitter
from lab.scan.compose import objects
from lab.scan.json_stream import JsonStream
from lab.scan.records import Item, Problem, ReadError

SUFFIXES = (".yaml", ".yml", ".json")
STDIN = "<stdin>"
_NOWHERE = "cannot be read: a link that leads nowhere"
_BEGINS_JSON = re.compile(rb"(?:\xef\xbb\xbf)?(?:---[ \t]*(?:#[^\n]*)?\r?\n)?[ \t\r\n]*[\[{]")
_ACTION = re.compile(rb"\{\{.*?\}\}", re.DOTALL)
_SOURCE = re.compile(rb"^# Source: ([^\r\n]+)", re.MULTILINE)
_HEAD = 2048
_BOM = b"\xef\xbb\xbf"


class _SlowParser(yaml.reader.Reader, yaml.scanner.Scanner, yaml.parser.Parser):
    """PyYAML's own parser, where PyYAML was built without libyaml: the same events, ten times slower."""

    def __init__(self, stream: Any) -> None:
        yaml.reader.Reader.__init__(self, stream)
        yaml.scanner.Scanner.__init__(self)
        yaml.parser.Parser.__init__(self)


try:
    from yaml._yaml import CParser

    _PARSER: Any = CParser
except ImportError:
    _PARSER = _SlowParser


def files_in(folder: Path, suffixes: tuple[str, ...] = SUFFIXES) -> Iterator[Path | Problem]:
    """Files of a directory and those below it, sorted; hidden directories and links to directories are passed.

    A directory that cannot be read is a problem, and so is an entry of such a name that is no file (a link that leads
    nowhere); the others are still given.
    """
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        try:
            entries = sorted(here.iterdir())
        except OSError as error:
            yield unreadable(here, error)
            continue
        below = []
        for path in entries:
            try:
                is_folder = stat.S_ISDIR(path.lstat().st_mode)
            except FileNotFoundError:
                continue
            except OSError as error:
                # Whatever it is, there may be something in it.
                yield unreadable(path, error)
                continue
            if not is_folder and path.name.endswith(suffixes):
                yield from _file(path)
            elif is_folder and not path.name.startswith("."):
                below.append(path)
        waiting += reversed(below)


def _file(path: Path) -> Iterator[Path | Problem]:
    """The path of a file; nothing for a link to a directory, a problem for anything else."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        nowhere = isinstance(error, FileNotFoundError) and path.is_symlink()
        yield Problem(file=str(path), line=0, text=_NOWHERE) if nowhere else unreadable(path, error)
        return
    if stat.S_ISREG(mode):
        yield path
    elif not stat.S_ISDIR(mode):
        yield Problem(file=str(path), line=0, text="cannot be read: neither a file nor a directory")


class Kept:
    """A stream of bytes that keeps the beginning of what is read of it, up to ``limit`` bytes, in ``text``."""

    def __init__(self, stream: Readable, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self.text = b""

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes, as of the stream itself."""
        block = self._stream.read(size) or b""
        if len(self.text) < self._limit:
            self.text += block[: self._limit - len(self.text)]
        return block


def read_stream(stream: Readable, name: str) -> Iterator[Item | Problem]:
    """Objects and problems of one stream, in order; that it cannot be read is one too.

    An object's place is good until the next is asked for.
    """
    try:
        for chunk in Splitter(stream).chunks():
            yield from _read_chunk(chunk, name)
    except OSError as error:
        yield unreadable(name, error)


def unreadable(name: Path | str, error: OSError) -> Problem:
    """The problem of a file or directory that cannot be read."""
    return Problem(file=str(name), line=0, text=f"cannot be read: {error.strerror or error}")


def _read_chunk(chunk: Chunk, name: str) -> Iterator[Item | Problem]:
    head = chunk.head(_HEAD)
    if _BEGINS_JSON.match(head):
        yield from _held_json(chunk, name) if chunk.text is not None else _long_json(chunk, name)
    else:
        match = _SOURCE.search(head)
        source = match[1].decode(errors="replace").strip() if match else None
        yield from _yaml(chunk, name, source)


class _Fed:
    """A long chunk whose lines are counted while a parser reads it."""

    def __init__(self, chunk: Chunk, lines: Lines) -> None:
        self._chunk = chunk
        self._lines = lines

    def read(self, size: int) -> bytes:
        """The next bytes."""
        piece = self._chunk.read(size)
        self._lines.feed(piece)
        return piece


def _yaml(chunk: Chunk, name: str, source: str | None) -> Iterator[Item | Problem]:
    """Objects of a YAML document, each with the problem that ends it, if there is one."""
    first, lines = chunk.line, Lines(chunk.line)
    try:
        chunk.allow()
        parser = _PARSER(_Fed(chunk, lines) if chunk.text is None else chunk.text)
        lines.feed(chunk.text or b"")
        for found in objects(parser.get_event, lines.line):
            first = found.place.stop
            lines.forget()
            if found.value is not None:
                yield Item(value=found.value, file=name, place=found.place, kind=found.kind, source=source)
            chunk.allow()
    except ReadError as error:
        yield _problem(chunk, name, first, error.line, error.text)
    except yaml.reader.ReaderError as error:
        yield _problem(chunk, name, first, _line_of_byte(chunk, error), f"not YAML: {error.reason}")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = lines.line(int(mark.line) if mark else 0)
        yield _problem(chunk, name, first, line, f"not YAML: {error.problem or error.context}")
    except (yaml.YAMLError, ValueError) as error:
        yield _problem(chunk, name, first, chunk.line, f"not YAML: {str(error)[:200]}")


def _problem(chunk: Chunk, name: str, first: int, line: int, text: str) -> Problem:
    """The problem of a document that is unread from the line ``first`` on."""
    unread = None
    if chunk.text is not None and _ACTION.search(chunk.text):
        text += " (an unrendered template? render it first, or give --templates or --helm)"
        unread = first, chunk.line + chunk.text.count(b"\n") + (not chunk.text.endswith(b"\n"))
    return Problem(file=name, line=line, text=text, unread=unread)


def _line_of_byte(chunk: Chunk, error: yaml.reader.ReaderError) -> int:
    """libyaml gives the offset of a byte that cannot be read, not its line."""
    position = error.position if isinstance(error.position, int) else 0
    return chunk.line + (chunk.text or b"").count(b"\n", 0, position) if chunk.text is not None else chunk.line_now


def _reader(text: bytes) -> Callable[[], bytes]:
    """A read function that gives ``text`` once."""
    pieces = [text]
    return lambda: pieces.pop() if pieces else b""


def _held_json(chunk: Chunk, name: str) -> Iterator[Item | Problem]:
    """JSON texts of a document that is held; what is no JSON is tried as YAML before it is a problem."""
    text = (chunk.text or b"").removeprefix(_BOM)
    stream = JsonStream(_reader(text), chunk.line)
    found: list[Item] = []
    done, first = 0, chunk.line
    while True:
        error: ReadError | None = None
        try:
            for each in stream.objects():
                if stream.done_texts > done:
                    yield from found
                    found, done = [], stream.done_texts
                found.append(Item(value=each.value, file=name, place=each.place, kind=each.kind))
        except ReadError as caught:
            error = caught
        if stream.done_texts > done or error is None:
            yield from found
            found, done = [], stream.done_texts
        if error is None:
            break
        if done == 0:
            as_yaml = list(_yaml(chunk, name, None))
            if not any(isinstance(each, Problem) for each in as_yaml):
                yield from as_yaml
                return
        yield from found
        found = []
        yield _problem(chunk, name, first, error.line, f"not JSON: {error.text}")
        if not stream.resume():
            break
        done = stream.done_texts = done + 1
    yield from _not_utf8(stream, name)


def _long_json(chunk: Chunk, name: str) -> Iterator[Item | Problem]:
    """JSON texts of a document of any length."""
    stream = JsonStream(chunk.read, chunk.line)
    while True:
        try:
            for each in stream.objects():
                yield Item(value=each.value, file=name, place=each.place, kind=each.kind)
        except ReadError as error:
            yield Problem(file=name, line=error.line, text=f"not JSON: {error.text}")
            if stream.resume():
                continue
        break
    yield from _not_utf8(stream, name)


def _not_utf8(stream: JsonStream, name: str) -> Iterator[Problem]:
    yield from (Problem(file=name, line=line, text="bytes that are not UTF-8") for line in stream.bad_lines)
