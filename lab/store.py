"""The only writer below a results folder: whole or absent, never overwritten, always checkable.

::

    results/<cell>/<stage>/<NNNN>/   raw/*  observation.json  verdict.json  stamp.json  SHA256SUMS
    results/_smoke/<cell>/...        the same for quick runs
    results/_runs/<run>/             run.json  journal.jsonl

A file appears by temporary file, fsync, rename, fsync of the folder; an attempt by the rename of ``.NNNN.partial``.
``SHA256SUMS`` serves ``sha256sum -c`` and covers every other file. Hidden beside an attempt: ``.NNNN.partial`` was not
sealed (its raw texts stay for a person to read); ``.NNNN.judging`` is a re-judgement half written, without meaning;
``.NNNN.old`` is what a re-judgement replaces, and *is* the attempt while ``NNNN`` itself is not there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab.model import JSON, Cell, Environment, ResultsError, Stamp, UsageError
from lab.secrets import SECRETS

# History of the format: 1, the first.
FORMAT = 1

_SUMS = "SHA256SUMS"
_SUMS_LINE = re.compile(r"([0-9a-f]{64})  (\S+)\n")
_ATTEMPT_FOLDER = re.compile(r"(\d{4,})|\.(\d{4,})\.(partial|old)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,=+@-]{0,199}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One sealed attempt, as read and verified. Times are ISO 8601, UTC."""

    path: Path
    cell: Cell
    stage: str
    number: int
    stamp: Stamp
    environment: Environment
    run_id: str
    started: str
    finished: str
    smoke: bool
    countable: bool
    uncountable_reasons: tuple[str, ...]
    observation: JSON | None
    verdict: JSON
    extra: JSON

    def raw(self) -> dict[str, str]:
        """What the node said, name to text, read now."""
        with _opened(self.path.parent, fcntl.LOCK_SH):
            if not self.path.exists():
                raise ResultsError(f"{self.path} is gone; read the results again")
            return _raw_texts(self.path / "raw")


class Store:
    """A results folder."""

    def __init__(
        self, root: Path, *, clock: Callable[[], str] = lambda: datetime.now(UTC).isoformat(timespec="milliseconds")
    ) -> None:
        self.root, self._clock = root, clock

    def begin(
        self, *, cell: Cell, stage: str, stamp: Stamp, environment: Environment, run_id: str, started: str, smoke: bool,
        uncountable: tuple[str, ...], extra: JSON,
    ) -> AttemptWriter:  # fmt: skip
        """A new attempt under the next free number; other processes may begin one at the same moment."""
        _check_name("cell", cell.name)
        _check_name("stage", stage)
        folder = self._base(smoke) / cell.name / stage
        with _storing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            number, partial = _claim_number(folder)
            for made in (folder, folder.parent, folder.parent.parent):
                _fsync_folder(made)
        record: JSON = {
            "format": FORMAT, "stage": stage, "attempt": number, "run": run_id, "cell": cell.as_json(),
            "inputs": dict(stamp.inputs), "stamp": stamp.digest, "environment": environment.as_json(),
            "started": started, "finished": None, "smoke": smoke, "extra": extra,
            "countable": not smoke and not uncountable, "uncountable_reasons": list(uncountable),
        }  # fmt: skip
        return AttemptWriter(partial, number, record)

    def attempts(self, *, smoke: bool = False, cell: Cell | None = None, stage: str | None = None) -> list[Attempt]:
        """Sealed attempts by cell name, stage and number; ResultsError when one is damaged."""
        return [
            _load(final, smoke)
            for final in self._sealed(smoke)
            if stage in (None, final.parent.name) and (cell is None or cell.name == final.parent.parent.name)
        ]

    def verify(self) -> list[str]:
        """Every problem of every sealed attempt, smoke included; empty when all is well."""
        problems = []
        for smoke in (False, True):
            for final in self._sealed(smoke):
                try:
                    _load(final, smoke)
                except ResultsError as error:
                    problems.extend(str(error).split("\n"))
        return problems

    def partials(self) -> list[Path]:
        """Folders of attempts that were never sealed: running ones, and what killed runs left."""
        return sorted(path for depth in ("*/*", "_smoke/*/*") for path in self.root.glob(f"{depth}/.*.partial"))

    def rejudge(self, attempt: Attempt, observation: JSON | None, verdict: JSON) -> Attempt:
        """Replaces observation, verdict and sums of a sealed attempt, and nothing else.

        The attempt is verified first, so damage is never summed anew. A complete sibling, ``.NNNN.judging``, is made
        durable (what the node said comes in as hard links), then two renames swap it in: ``NNNN`` to ``.NNNN.old``,
        the sibling to ``NNNN``. Each folder is whole at every moment, and between the renames readers take
        ``.NNNN.old`` for the attempt: a crash anywhere leaves the old or the new one, never a mixture. A live reader
        waits, by a lock on the stage's folder that ends with its process, as does a second re-judgement.
        """
        final = attempt.path.with_name(f"{attempt.number:04d}")
        old, judging = _hidden(final, "old"), _hidden(final, "judging")
        with _storing(final), _opened(final.parent, fcntl.LOCK_EX):
            if not final.exists():
                os.rename(old, final)
            _read(final, attempt.smoke)
            for leftover in (judging, old):
                if leftover.exists():
                    shutil.rmtree(leftover)
            shutil.copytree(final, judging, copy_function=_link_or_copy)
            _write_sealed(judging, {"observation": observation, "verdict": verdict})
            os.rename(final, old)
            os.rename(judging, final)
            _fsync_folder(final.parent)
            shutil.rmtree(old)
        return _load(final, attempt.smoke)

    def open_run(self, run_id: str) -> RunJournal:
        """The journal of a run, new or continued."""
        _check_name("run", run_id)
        folder = self.root / "_runs" / run_id
        with _storing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "journal.jsonl").touch()
            _fsync_folder(folder)
            _fsync_folder(folder.parent)
        return RunJournal(folder, self._clock)

    def _base(self, smoke: bool) -> Path:
        return self.root / "_smoke" if smoke else self.root

    def _sealed(self, smoke: bool) -> Iterator[Path]:
        for folder in sorted(self._base(smoke).glob("[!_.]*/[!_.]*/")):
            with _opened(folder, fcntl.LOCK_SH):
                numbers = sorted(_numbers(folder, partials=False))
            yield from (folder / f"{number:04d}" for number in numbers)


class AttemptWriter:
    """One attempt in the making. ``path`` is its partial folder, ``number`` the number it will have."""

    def __init__(self, path: Path, number: int, record: JSON) -> None:
        self.path = path
        self.number = number
        self._record = record
        # Written at once, so that a killed run also leaves what its raw texts are about.
        write_whole(path / "stamp.json", json_text(record), kept=path)

    def save(self, name: str, text: str) -> None:
        """Stores a text as ``raw/<name>`` before anything reads it.

        Bytes that were not UTF-8 may come as lone surrogates (``surrogateescape``) and are stored as those bytes.
        """
        _check_name("raw text", name)
        self._require_unsealed()
        target = self.path / "raw" / name
        if target.exists():
            raise ResultsError(f"{target} is stored already; what a node said is never overwritten")
        write_whole(target, text, kept=self.path)

    def raw(self) -> dict[str, str]:
        """The texts saved so far, name to text."""
        return _raw_texts(self.path / "raw")

    def seal(self, *, observation: JSON | None, verdict: JSON, finished: str) -> Attempt:
        """Completes the attempt and gives it its number; None as observation says that parsing failed."""
        self._require_unsealed()
        final = self.path.with_name(f"{self.number:04d}")
        stamp = {**self._record, "finished": finished}
        with _storing(final, kept=self.path):
            _write_sealed(self.path, {"observation": observation, "verdict": verdict, "stamp": stamp})
            os.rename(self.path, final)
            _fsync_folder(final.parent)
        return _load(final, self._record["smoke"])

    def _require_unsealed(self) -> None:
        if not self.path.exists():
            raise ResultsError(f"{self.path} is sealed or gone; begin a new attempt")


class RunJournal:
    """``journal.jsonl`` (one JSON object a line, oldest first) and ``run.json`` of one run."""

    def __init__(self, folder: Path, clock: Callable[[], str]) -> None:
        self.folder = folder
        self._clock = clock
        self._lock = threading.Lock()

    def event(self, kind: str, /, **facts: Any) -> None:
        """Appends ``{"time", "kind", **facts}`` and returns when the disk has it; threads may share a journal."""
        path = self.folder / "journal.jsonl"
        line = SECRETS.mask(json_text(dict(**facts, time=self._clock(), kind=kind), indent=None))
        with self._lock, _storing(path), path.open("a+b") as file:
            # A crash can leave a line without its end; the next one must not be glued to it.
            file.seek(max(file.tell() - 1, 0))
            glue = "" if file.read(1) in (b"", b"\n") else "\n"
            file.write((glue + line).encode("utf-8", errors="surrogateescape"))
            file.flush()
            os.fsync(file.fileno())

    def finish(self, record: JSON) -> None:
        """Writes run.json, whole."""
        write_whole(self.folder / "run.json", SECRETS.mask(json_text(record)))


def write_whole(path: Path, text: str, *, kept: Path | None = None) -> None:
    """Creates or replaces a file, whole or not at all; a ResultsError also tells what is safe in ``kept``."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    with _storing(path, kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(text.encode("utf-8", errors="surrogateescape"))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _fsync_folder(path.parent)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """The form of all JSON here: sorted keys, UTF-8, no NaN, one newline at the end; indent None for journal lines."""
    try:
        return json.dumps(value, indent=indent, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ResultsError(f"a value cannot be stored as JSON: {error}; mend the code that made it") from error


def _text(file: Path) -> str:
    return file.read_bytes().decode("utf-8", errors="surrogateescape")


def _check_name(what: str, name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise UsageError(f"{what} {name!r} cannot be a name on disk; use letters, digits and . _ , = + @ -")


def _hidden(final: Path, kind: str) -> Path:
    return final.with_name(f".{final.name}.{kind}")


def _numbers(folder: Path, *, partials: bool) -> set[int]:
    matches = [_ATTEMPT_FOLDER.fullmatch(name) for name in os.listdir(folder)]
    return {int(match[1] or match[2]) for match in matches if match and (partials or match[3] != "partial")}


def _claim_number(folder: Path) -> tuple[int, Path]:
    while True:
        number = max(_numbers(folder, partials=True), default=0) + 1
        partial = _hidden(folder / f"{number:04d}", "partial")
        try:
            partial.mkdir()
        except FileExistsError:
            continue
        # Another process may have sealed this very number between our look and our mkdir.
        if number not in _numbers(folder, partials=False):
            return number, partial
        partial.rmdir()


@contextlib.contextmanager
def _storing(target: Path, kept: Path | None = None) -> Iterator[None]:
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
def _opened(folder: Path, lock: int = fcntl.LOCK_UN) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, lock)
        yield descriptor
    finally:
        os.close(descriptor)


def _fsync_folder(folder: Path) -> None:
    with _opened(folder) as descriptor:
        os.fsync(descriptor)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        write_whole(Path(target), _text(Path(source)))


def _raw_texts(folder: Path) -> dict[str, str]:
    return {file.name: _text(file) for file in sorted(folder.glob("[!.]*"))}


def _digests(folder: Path) -> dict[str, str]:
    """Relative name to sha256 of everything in an attempt but its sums; what is no plain file says so instead."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        name, is_plain = path.relative_to(folder).as_posix(), path.is_file() and not path.is_symlink()
        if name != _SUMS and (name != "raw" or path.is_symlink() or not path.is_dir()):
            digests[name] = hashlib.sha256(path.read_bytes()).hexdigest() if is_plain else "not that of a plain file"
    return digests


def _write_sealed(folder: Path, documents: Mapping[str, JSON | None]) -> None:
    for name, value in documents.items():
        write_whole(folder / f"{name}.json", json_text(value), kept=folder)
    sums = "".join(f"{digest}  {name}\n" for name, digest in _digests(folder).items())
    write_whole(folder / _SUMS, sums, kept=folder)
    if (folder / "raw").exists():
        _fsync_folder(folder / "raw")


def _load(final: Path, smoke: bool) -> Attempt:
    with _opened(final.parent, fcntl.LOCK_SH):
        return _read(final if final.exists() else _hidden(final, "old"), smoke)


def _read(path: Path, smoke: bool) -> Attempt:
    try:
        _check(path)
        documents = {name: json.loads(_text(path / f"{name}.json")) for name in ("stamp", "observation", "verdict")}
        record = documents.pop("stamp")
        attempt = Attempt(
            path=path, cell=Cell.from_json(record["cell"]), number=record["attempt"], run_id=record["run"],
            stamp=Stamp(inputs=record["inputs"]), environment=Environment.from_json(record["environment"]),
            uncountable_reasons=tuple(record["uncountable_reasons"]), **documents,
            **{key: record[key] for key in ("stage", "started", "finished", "smoke", "countable", "extra")},
        )  # fmt: skip
        digests = (attempt.stamp.digest, record["stamp"])
    except (OSError, KeyError, TypeError, ValueError, UsageError) as error:
        raise ResultsError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    if digests[0] != digests[1]:
        raise ResultsError(f"{path}/stamp.json: its inputs give the stamp {digests[0]}, it says {digests[1]}")
    place = (path.parent.parent.name, path.parent.name, path.name.split(".")[-2:][0], smoke)
    if place != (attempt.cell.name, attempt.stage, f"{attempt.number:04d}", attempt.smoke):
        raise ResultsError(f"{path} is attempt {attempt.number}, {attempt.stage}, of {attempt.cell.name}: it was moved")
    return attempt


def _check(path: Path) -> None:
    # Format before sums: a later format may sum differently, and "damaged" would be the wrong word for it.
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        found = json.loads(_text(path / "stamp.json"))["format"]
        if found != FORMAT:
            raise ResultsError(f"{path} has the format {found}, this lab reads {FORMAT}: use the lab that wrote it")
    text = _text(path / _SUMS)
    expected = {name: digest for digest, name in _SUMS_LINE.findall(text)}
    if "".join(f"{digest}  {name}\n" for name, digest in expected.items()) != text:
        raise ResultsError(f"{path / _SUMS} is not in the form of sha256sum; restore it from version control")
    actual = _digests(path)
    problems = [
        f"{path / name}: sha256 is {actual.get(name, 'unknown, the file is missing')}, "
        f"{_SUMS} says {expected.get(name, 'nothing of this file')}"
        for name in sorted({*expected, *actual})
        if actual.get(name) != expected.get(name)
    ]
    if problems:
        raise ResultsError("\n".join(problems))
