"""Files that are written whole or not at all, locks on folders, and the one form of all JSON that is stored."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.model import ResultsError


def write_whole(path: Path, text: str, *, kept: Path | None = None) -> None:
    """Creates or replaces a file, whole or not at all; a ResultsError also tells what is safe in ``kept``."""
    with storing(path, kept):
        data = text.encode("utf-8", errors="surrogateescape")
    write_bytes_whole(path, data, kept=kept)


def write_bytes_whole(path: Path, data: bytes, *, kept: Path | None = None) -> None:
    """:func:`write_whole` for what is no text."""
    with storing(path, kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(path, data)


def replace_whole(path: Path, data: bytes) -> None:
    """Creates or replaces a file, whole or not at all, also for somebody who looks after a power cut; OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        fsync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def remove_temporary(folder: Path) -> None:
    """Deletes what :func:`write_whole` leaves in a folder when its process is killed; nobody may be writing there."""
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink()


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """The form of all JSON here: sorted keys, UTF-8, no NaN, one newline at the end; indent None for journal lines."""
    try:
        return json.dumps(value, indent=indent, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ResultsError(f"a value cannot be stored as JSON: {error}; mend the code that made it") from error


def text_of(file: Path) -> str:
    """Text of a stored file; bytes that are no UTF-8 come as lone surrogates."""
    return file.read_bytes().decode("utf-8", errors="surrogateescape")


def folders_in(folder: Path, *, but: str = "_.") -> list[Path]:
    """Folders in a folder by name, without those whose names begin with a character of ``but``; [] where none is.

    ResultsError when it cannot be read: what cannot be seen must not pass for what is not there.
    """
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name[0] not in but and entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ResultsError(f"{folder} cannot be read: {error.strerror}; mend its permissions") from error
    return [folder / name for name in sorted(names)]


@contextlib.contextmanager
def storing(target: Path, kept: Path | None = None) -> Iterator[None]:
    """Turns a failed write into a ResultsError: which file, what is safe, what to do."""
    try:
        yield
    except (OSError, UnicodeEncodeError) as error:
        safe = "what was stored before is unchanged"
        if kept is not None:
            sizes = [file.stat().st_size for file in kept.glob("raw/[!.]*")]
            safe = f"{len(sizes)} raw texts ({sum(sizes)} bytes) are kept in {kept}"
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "free space on that disk" if is_full else "mend the cause"
        raise ResultsError(f"cannot write {target}: {error}; {safe}; {advice} and run this again") from error


@contextlib.contextmanager
def opened(folder: Path, lock: int = fcntl.LOCK_UN) -> Iterator[int]:
    """A folder's descriptor, locked as ``fcntl.flock`` says; the lock ends with the block, or with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, lock)
        yield descriptor
    finally:
        os.close(descriptor)


def fsync_folder(folder: Path) -> None:
    """Makes names that were made or changed in a folder durable."""
    with opened(folder) as descriptor:
        os.fsync(descriptor)
