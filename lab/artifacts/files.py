"""Files and their hashes: SHA256SUMS, hashing, copying, unpacking .xz; the errors that stop or go on."""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import struct
from pathlib import Path
from typing import Protocol

from lab.model import NodeError

CHUNK_BYTES = 1 << 20
MAX_FILE_BYTES = 1 << 30
"""Larger than any component by a factor of six; a stream that goes on beyond it is not one."""

_SUM_LINE = re.compile(r"^([0-9a-fA-F]{64}) [ *](\S.*)$")


_ET_EXEC, _ET_DYN, _EM_X86_64, _PT_LOAD, _PT_INTERP = 2, 3, 62, 1, 3


class Readable(Protocol):
    """Anything that gives bytes."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end."""
        ...


class Unavailable(NodeError):
    """A source cannot give the artifact; another one may be tried. Where all were: none of them can."""


class WrongHash(NodeError):
    """A file is not the one it should be. Never a reason to try another source."""

    def __init__(self, path: Path | str, expected: str, actual: str, authority: str) -> None:
        super().__init__(
            f"{path}: sha256 is {actual}, but {authority} says {expected}. "
            "The file was altered, damaged or is another build: remove or replace it"
        )
        self.expected = expected
        self.actual = actual


def sha256_file(path: Path) -> str:
    """sha256 (hex) of a file's bytes; NodeError names a file that cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise NodeError(f"{path}: cannot be read: {error.strerror or error}") from error


def parse_sums(text: str, source: str) -> dict[str, str]:
    """``sha256sum`` output as file name to hash; a line of another form is a NodeError that quotes it."""
    sums: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        match = _SUM_LINE.match(line)
        if match is None:
            raise NodeError(f"{source}: not a line of sha256sum output: {line[:120]!r}")
        name, value = match[2].removeprefix("./"), match[1].lower()
        if sums.setdefault(name, value) != value:
            raise NodeError(f"{source}: two different hashes for {name}: {sums[name]} and {value}")
    return sums


def read_sums(folder: Path) -> dict[str, str] | None:
    """SHA256SUMS of a folder, or None when it has none."""
    path = folder / "SHA256SUMS"
    try:
        return parse_sums(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise NodeError(f"{path}: cannot be read: {error}") from error


def check_sum(path: Path | str, name: str, actual: str, sums: dict[str, str] | None, authority: str) -> None:
    """Compare ``actual`` with the entry ``name``; without SHA256SUMS there is nothing to compare.

    A missing entry is a NodeError: a folder that lists its files must list this one.
    """
    if sums is None:
        return
    if name not in sums:
        raise NodeError(f"{path}: {authority} has no line for {name}; add it, or remove SHA256SUMS")
    if sums[name] != actual:
        raise WrongHash(path, sums[name], actual, authority)


def copy_stream(source: Readable, target: Path) -> str:
    """Write a stream to a new executable file, flushed to disk; its sha256 (hex)."""
    digest = hashlib.sha256()
    size = 0
    with target.open("xb") as stream:
        while chunk := source.read(CHUNK_BYTES):
            size += len(chunk)
            if size > MAX_FILE_BYTES:
                raise NodeError(f"{target.name}: more than {MAX_FILE_BYTES} bytes; this is no component")
            digest.update(chunk)
            stream.write(chunk)
        stream.flush()
        os.fsync(stream.fileno())
    target.chmod(0o755)
    return digest.hexdigest()


def unpack_xz(source: Path, target: Path) -> str:
    """Unpack a .xz file into a new executable file; its sha256. NodeError when the stream is damaged."""
    try:
        with lzma.open(source, "rb") as stream:
            return copy_stream(stream, target)
    except (lzma.LZMAError, EOFError) as error:
        raise NodeError(f"{source}: not a whole .xz file: {error}") from error


def copy_file(source: Path, target: Path) -> str:
    """Copy a file into a new executable file; its sha256 (hex)."""
    with source.open("rb") as stream:
        return copy_stream(stream, target)


def static_elf_problem(path: Path) -> str:
    """Why a file is no static executable for linux-amd64; empty when it is one.

    A program header of type PT_INTERP (elf(5)) names the loader of libraries: a static executable has none.
    """
    head = struct.Struct("<16sHHIQQQIHHHHHH")
    with path.open("rb") as stream:
        start = stream.read(head.size)
        if len(start) < head.size or start[:6] != b"\x7fELF\x02\x01":
            return "no 64-bit little-endian ELF file"
        _, kind, machine, _, _, table, _, _, _, entry, count, _, _, _ = head.unpack(start)
        if kind not in (_ET_EXEC, _ET_DYN) or machine != _EM_X86_64:
            return "no executable for x86-64"
        stream.seek(table)
        entries = stream.read(entry * count)
    if entry < 4 or len(entries) < entry * count:
        return "cut within its program headers"
    types = [struct.unpack_from("<I", entries, entry * number)[0] for number in range(count)]
    if _PT_LOAD not in types:
        return "nothing in it to be loaded"
    return "it needs shared libraries" if _PT_INTERP in types else ""


def fsync_folder(path: Path) -> None:
    """Make renames and links inside a folder durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
