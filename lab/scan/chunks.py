"""A byte stream cut at document separators, in bounded memory.

A line that begins with ``---`` and then ends or goes on with a blank is a separator wherever it stands: YAML allows it
neither inside a block scalar nor inside a quoted one (rule c-forbidden of the specification), and JSON has no bare line
breaks inside texts. So one document that cannot be read costs only itself.
"""

from __future__ import annotations

import bisect
import codecs
import re
from collections.abc import Iterator
from typing import Protocol

from lab.scan.records import MAX_OBJECT_BYTES, ReadError

BLOCK = 1 << 20
_SEPARATOR = re.compile(rb"^---(?=[ \t\r\n])", re.MULTILINE)
_LAST_SEPARATOR = re.compile(rb"^---(?=[ \t\r\n]|\Z)", re.MULTILINE)
_NOTHING = re.compile(rb"---[ \t]*(?:#[^\n]*)?\s*")
_EMPTY_RUN = re.compile(rb"(?:---[ \t]*\r?\n)+(?=---[ \t\r\n])")
_MARGIN = 5
_ODD_BREAKS = ("\x85".encode(), "\u2028".encode(), "\u2029".encode())
_BREAK = re.compile(b"\r\n|\n|\r|" + b"|".join(_ODD_BREAKS))
# How a line break can begin that goes on in the next piece.
_CUT = (b"\r", b"\xc2", b"\xe2")
_CUT_TWO = b"\xe2\x80"
_BLANKS = rb"(?:[ \t]*(?:#[^\n]*)?\r?\n)*"
_ONLY_DIRECTIVE = re.compile(_BLANKS + rb"%YAML[ \t]+1\.[12][ \t]*(?:[ \t]#[^\n]*)?\r?\n" + _BLANKS)


class Lines:
    """Lines as editors and grep count them, by ``\\n``, from those of a YAML parser.

    YAML 1.1 has other line breaks too: a ``\\r`` alone, NEL, and the line and paragraph separators of Unicode. The
    lines that these begin are remembered while the parser reads its text, which :meth:`feed` is given.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._next = 0
        self._begun: list[int] = []
        self._forgotten = 0
        self._asked = 0
        self._tail = b""
        self._decoder: codecs.IncrementalDecoder | None = None
        self._fresh = True

    def feed(self, piece: bytes) -> None:
        """Take in the next bytes that the parser gets; what is cut inside a line break waits for the rest."""
        if self._fresh and piece:
            self._fresh = False
            if piece.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        if self._decoder is not None:
            piece = self._decoder.decode(piece).encode("utf-8", "replace")
        text = self._tail + piece
        cut = 1 if text[-1:] in _CUT else 2 if text[-2:] == _CUT_TWO else 0
        text, self._tail = text[: len(text) - cut], text[len(text) - cut :]
        if text.count(b"\r") == text.count(b"\r\n") and not any(each in text for each in _ODD_BREAKS):
            self._next += text.count(b"\n")
            return
        for match in _BREAK.finditer(text):
            self._next += 1
            if not match[0].endswith(b"\n"):
                self._begun.append(self._next)

    def line(self, parsed: int) -> int:
        """Line in the file of the parser's line ``parsed``, which counts from 0."""
        self._asked = parsed
        return self._first + parsed - self._forgotten - bisect.bisect(self._begun, parsed)

    def forget(self) -> None:
        """No line before the one that was asked for last is asked for any more."""
        number = bisect.bisect(self._begun, self._asked)
        self._forgotten += number
        del self._begun[:number]


class Readable(Protocol):
    """What bytes can be read from."""

    def read(self, size: int = -1, /) -> bytes | None:
        """Up to ``size`` bytes, empty at the end."""


class Chunk:
    """One document with its separator, from ``line`` on.

    ``text`` is all of it when ``whole``; else it is None and :meth:`read` gives it piece by piece.
    """

    def __init__(self, splitter: Splitter, line: int, text: bytes | None) -> None:
        self._splitter = splitter
        self._allowance: int | None = None
        self.line = line
        self.text = text
        self.line_now = line

    @property
    def whole(self) -> bool:
        """Whether the document is in memory."""
        return self.text is not None

    def head(self, length: int) -> bytes:
        """The first bytes, without reading them away."""
        return self.text[:length] if self.text is not None else self._splitter.ahead(length)

    def read(self, size: int = 1 << 16) -> bytes:
        """The next bytes of a chunk that is not whole, empty at its end; ReadError beyond the allowance."""
        piece = self._splitter.take(size)
        self.line_now += piece.count(b"\n")
        if self._allowance is not None:
            self._allowance -= len(piece)
            if self._allowance < 0:
                limit = MAX_OBJECT_BYTES >> 20
                raise ReadError(self.line_now, f"an object or comment of more than {limit} MiB")
        return piece

    def allow(self) -> None:
        """Let :meth:`read` give the bytes of one more object before it refuses."""
        self._allowance = MAX_OBJECT_BYTES

    def skip(self) -> None:
        """Read what is left away."""
        self._allowance = None
        while self.text is None and self.read():
            pass


class Splitter:
    """The chunks of a stream. A chunk must be done with before the next is asked for."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._buffer = b""
        self._start = 0
        self._end = False
        self._clear = 0

    def chunks(self) -> Iterator[Chunk]:
        """Every document that is not empty, in order. OSError when the stream cannot be read."""
        line, pending = 1, b""
        while self._start < len(self._buffer) or self._fill():
            if run := _EMPTY_RUN.match(self._buffer, self._start):
                line += self._buffer.count(b"\n", self._start, run.end())
                self._start = run.end()
            stop = self._find_stop()
            if stop is None:
                chunk = Chunk(self, line, None)
                # The separator that begins the chunk does not end it.
                self._clear = min(self._start + _MARGIN, len(self._buffer))
                yield chunk
                chunk.skip()
                line, pending = chunk.line_now, b""
                continue
            text = pending + self._buffer[self._start : stop]
            lines = self._buffer.count(b"\n", self._start, stop)
            self._start = stop
            # The directive stands before the separator of the document that it is for.
            if b"%YAML" in text and stop < len(self._buffer) and _ONLY_DIRECTIVE.fullmatch(text):
                pending = text
                line += lines
                continue
            first = line - pending.count(b"\n")
            line, pending = line + lines, b""
            if text and not text.isspace() and not _NOTHING.fullmatch(text):
                yield Chunk(self, first, text)

    def ahead(self, length: int) -> bytes:
        """Bytes that come next, not beyond the buffer."""
        return self._buffer[self._start : self._start + length]

    def take(self, size: int) -> bytes:
        """Up to ``size`` bytes of the open chunk, empty at its end."""
        if self._clear <= self._start and not self._look():
            return b""
        stop = min(self._start + size, self._clear)
        piece = self._buffer[self._start : stop]
        self._start = stop
        return piece

    def _look(self) -> bool:
        """Find out how far the open chunk goes in the buffer; False at its end."""
        while True:
            match = self._search(self._start)
            if match is not None:
                self._clear = match
                return match > self._start
            if self._end:
                self._clear = len(self._buffer)
                return self._clear > self._start
            safe = len(self._buffer) - _MARGIN
            if safe > self._start:
                self._clear = safe
                return True
            self._fill()

    def _search(self, start: int) -> int | None:
        pattern = _LAST_SEPARATOR if self._end else _SEPARATOR
        match = pattern.search(self._buffer, start)
        return match.start() if match else None

    def _find_stop(self) -> int | None:
        """Where the chunk at hand stops; None when it is too long to be held."""
        scanned = self._start + 1
        while (stop := self._search(scanned)) is None:
            if self._end:
                return len(self._buffer)
            held = len(self._buffer) - self._start
            if held > MAX_OBJECT_BYTES:
                return None
            self._fill()
            scanned = self._start + max(1, held - _MARGIN)
        return stop

    def _fill(self) -> bool:
        """One block more; False at the end of the stream."""
        block = self._stream.read(BLOCK) or b""
        self._end = self._end or not block
        # One byte before stays, so that a line is not taken to begin where the buffer does.
        dropped = max(0, self._start - 1)
        self._buffer = self._buffer[dropped:] + block
        self._start -= dropped
        self._clear = max(0, self._clear - dropped)
        return bool(block)
