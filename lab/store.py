"""The only writer below a results folder: whole or absent, never overwritten, always checkable.

::

    results/<cell>/<stage>/<NNNN>/   raw/*  observation.json  verdict.json  stamp.json  SHA256SUMS
    results/_smoke/<cell>/...        the same for quick runs
    results/_runs/<run>/             journal.jsonl  run.json  SHA256SUMS (these two as long as the run has ended)

A file appears by temporary file, fsync, rename, fsync of the folder; an attempt by the rename of ``.NNNN.partial``.
``SHA256SUMS`` serves ``sha256sum -c`` and covers every other file. Hidden beside an attempt: ``.NNNN.partial`` was not
sealed (its raw texts stay for a person to read, and for its run to go on with); ``.<run>.….new`` is one that was not
even begun, without meaning; ``.NNNN.judging`` is a re-judgement half written, without meaning; ``.NNNN.old`` is what a
re-judgement replaces, and *is* the attempt while ``NNNN`` itself is not there.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lab.atomic import (
    folders_in,
    fsync_folder,
    json_text,
    opened,
    remove_temporary,
    storing,
    text_of,
    write_bytes_whole,
    write_whole,
)
from lab.checksums import FORMAT, SUMS, check, sums_text
from lab.journal import RunJournal
from lab.model import JSON, Cell, Environment, ResultsError, Stamp, UsageError

__all__ = ["Attempt", "AttemptWriter", "RunJournal", "Store", "json_text", "write_bytes_whole", "write_whole"]

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
        with opened(self.path.parent, fcntl.LOCK_SH):
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
        _check_name("run", run_id)
        folder = self._base(smoke) / cell.name / stage
        reasons = [*uncountable, *environment.barred]
        record: JSON = {
            "format": FORMAT, "stage": stage, "attempt": None, "run": run_id, "cell": cell.as_json(),
            "inputs": dict(stamp.inputs), "stamp": stamp.digest, "environment": environment.as_json(),
            "started": started, "finished": None, "smoke": smoke, "extra": extra,
            "countable": not (smoke or reasons), "uncountable_reasons": reasons,
        }  # fmt: skip
        with storing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            partial = _claim_number(folder, record)
            for made in (folder, folder.parent, folder.parent.parent):
                fsync_folder(made)
        return AttemptWriter(partial, record)

    def unfinished(self, run_id: str, *, cell: Cell, stage: str, smoke: bool) -> AttemptWriter | None:
        """The attempt that a run began and did not seal, None when there is none.

        For the one process that now does this run: what its writes left when they were cut off is deleted.
        """
        folder = self._base(smoke) / cell.name / stage
        found = None
        with storing(folder):
            for leftover in folder.glob(f".{run_id}.*.new"):
                shutil.rmtree(leftover)
            for partial in sorted(folder.glob(".*.partial")):
                try:
                    record = json.loads(text_of(partial / "stamp.json"))
                    is_mine = record["run"] == run_id and record["format"] == FORMAT
                except (OSError, ValueError, KeyError, TypeError):
                    continue
                if is_mine:
                    for place in (partial, partial / "raw"):
                        remove_temporary(place)
                    found = AttemptWriter(partial, {**record, "finished": None})
        return found

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
        stages = [folder for smoke in (False, True) for folder in self._stages(smoke)]
        return sorted(path for folder in stages for path in folder.glob(".*.partial"))

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
        with storing(final), opened(final.parent, fcntl.LOCK_EX):
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
            fsync_folder(final.parent)
            shutil.rmtree(old)
        return _load(final, attempt.smoke)

    def new_run(self) -> RunJournal:
        """The journal of a run under a name of its own: of several that begin within a second two may draw the same."""
        runs = self.root / "_runs"
        while True:
            run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
            with storing(runs / run_id):
                runs.mkdir(parents=True, exist_ok=True)
                try:
                    (runs / run_id).mkdir()
                except FileExistsError:
                    continue
            return self.open_run(run_id)

    def open_run(self, run_id: str) -> RunJournal:
        """The journal of a run, new or continued."""
        _check_name("run", run_id)
        folder = self.root / "_runs" / run_id
        with storing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "journal.jsonl").touch()
            fsync_folder(folder)
            fsync_folder(folder.parent)
        return RunJournal(folder, self._clock)

    def _base(self, smoke: bool) -> Path:
        return self.root / "_smoke" if smoke else self.root

    def _stages(self, smoke: bool) -> list[Path]:
        return [stage for cell in folders_in(self._base(smoke)) for stage in folders_in(cell)]

    def _sealed(self, smoke: bool) -> Iterator[Path]:
        for folder in self._stages(smoke):
            try:
                with opened(folder, fcntl.LOCK_SH):
                    numbers = sorted(_numbers(folder, partials=False))
            except OSError as error:
                raise ResultsError(f"{folder} cannot be read: {error.strerror}; mend its permissions") from error
            yield from (folder / f"{number:04d}" for number in numbers)


class AttemptWriter:
    """One attempt in the making. ``path`` is its partial folder, ``number`` the number it will have."""

    def __init__(self, path: Path, record: JSON) -> None:
        self.path = path
        self.number: int = record["attempt"]
        self._record = record
        self._kept: frozenset[str] = frozenset()

    @property
    def place(self) -> str:
        """Where the sealed attempt will be below its results folder: cell, stage and number."""
        return f"{self.path.parent.parent.name}/{self.path.parent.name}/{self.number:04d}"

    @property
    def environment(self) -> Environment:
        """Where the attempt was begun."""
        return Environment.from_json(self._record["environment"])

    @property
    def extra(self) -> JSON:
        """What else is known of the attempt; change it with :meth:`amend`."""
        return dict(self._record["extra"])

    def amend(
        self, *, extra: JSON, environment: Environment | None = None, uncountable: tuple[str, ...] = ()
    ) -> None:
        """Stores other facts about the attempt; reasons not to count are added to those that it has."""
        barred = () if environment is None else environment.barred
        reasons = list(dict.fromkeys([*self._record["uncountable_reasons"], *uncountable, *barred]))
        self._record |= {
            "extra": extra, "uncountable_reasons": reasons, "countable": not self._record["smoke"] and not reasons
        }  # fmt: skip
        if environment is not None:
            self._record["environment"] = environment.as_json()
        write_whole(self.path / "stamp.json", json_text(self._record), kept=self.path)

    def cut_back(self, keep: frozenset[str]) -> None:
        """Deletes what was saved or half sealed before, but for the raw texts named in ``keep``.

        A text that is kept and comes again, from another node, is returned by :meth:`save` instead of stored.
        """
        with storing(self.path, kept=self.path):
            documents = {file for file in self.path.glob("[!.]*") if file.is_file() and file.name != "stamp.json"}
            for file in [*documents, *(file for file in self.path.glob("raw/[!.]*") if file.name not in keep)]:
                file.unlink()
        self._kept = keep

    def save(self, name: str, text: str) -> str | None:
        """Stores a text as ``raw/<name>`` before anything reads it; see :meth:`cut_back` for when it returns it.

        Bytes that were not UTF-8 may come as lone surrogates (``surrogateescape``) and are stored as those bytes.
        """
        _check_name("raw text", name)
        self._require_unsealed()
        target = self.path / "raw" / name
        if name in self._kept:
            return text
        if target.exists():
            raise ResultsError(f"{target} is stored already; what a node said is never overwritten")
        write_whole(target, text, kept=self.path)
        return None

    def raw(self) -> dict[str, str]:
        """The texts saved so far, name to text."""
        return _raw_texts(self.path / "raw")

    def digests(self) -> dict[str, str]:
        """Name to sha256 of the texts saved so far."""
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in self.path.glob("raw/[!.]*")}

    def seal(self, *, observation: JSON | None, verdict: JSON, finished: str) -> Attempt:
        """Completes the attempt and gives it its number; None as observation says that parsing failed."""
        self._require_unsealed()
        final = self.path.with_name(f"{self.number:04d}")
        stamp = {**self._record, "finished": finished}
        with storing(final, kept=self.path):
            _write_sealed(self.path, {"observation": observation, "verdict": verdict, "stamp": stamp})
            os.rename(self.path, final)
            fsync_folder(final.parent)
        return _load(final, self._record["smoke"])

    def _require_unsealed(self) -> None:
        if not self.path.exists():
            raise ResultsError(f"{self.path} is sealed or gone; begin a new attempt")


def _check_name(what: str, name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise UsageError(f"{what} {name!r} cannot be a name on disk; use letters, digits and . _ , = + @ -")


def _hidden(final: Path, kind: str) -> Path:
    return final.with_name(f".{final.name}.{kind}")


def _numbers(folder: Path, *, partials: bool) -> set[int]:
    matches = [_ATTEMPT_FOLDER.fullmatch(name) for name in os.listdir(folder)]
    return {int(match[1] or match[2]) for match in matches if match and (partials or match[3] != "partial")}


def _claim_number(folder: Path, record: JSON) -> Path:
    """A partial folder under the next free number; it appears with its stamp.json, so that it is never nobody's."""
    made = folder / f".{record['run']}.{secrets.token_hex(4)}.new"
    made.mkdir()
    try:
        while True:
            record["attempt"] = number = max(_numbers(folder, partials=True), default=0) + 1
            write_whole(made / "stamp.json", json_text(record))
            partial = _hidden(folder / f"{number:04d}", "partial")
            try:
                os.rename(made, partial)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                continue
            # Another process may have sealed this very number between our look and our rename.
            if number not in _numbers(folder, partials=False):
                return partial
            os.rename(partial, made)
    except (OSError, ResultsError):
        shutil.rmtree(made, ignore_errors=True)
        raise


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        write_whole(Path(target), text_of(Path(source)))


def _raw_texts(folder: Path) -> dict[str, str]:
    return {file.name: text_of(file) for file in sorted(folder.glob("[!.]*"))}


def _write_sealed(folder: Path, documents: Mapping[str, JSON | None]) -> None:
    for name, value in documents.items():
        write_whole(folder / f"{name}.json", json_text(value), kept=folder)
    write_whole(folder / SUMS, sums_text(folder), kept=folder)
    if (folder / "raw").exists():
        fsync_folder(folder / "raw")


def _load(final: Path, smoke: bool) -> Attempt:
    with opened(final.parent, fcntl.LOCK_SH):
        old = _hidden(final, "old")
        return _read(old if old.exists() and not final.exists() else final, smoke)


def _read(path: Path, smoke: bool) -> Attempt:
    try:
        check(path)
        documents = {name: json.loads(text_of(path / f"{name}.json")) for name in ("stamp", "observation", "verdict")}
        record = documents.pop("stamp")
        attempt = Attempt(
            path=path, cell=Cell.from_json(record["cell"]), number=record["attempt"], run_id=record["run"],
            stamp=Stamp(inputs=record["inputs"]), environment=Environment.from_json(record["environment"]),
            uncountable_reasons=tuple(record["uncountable_reasons"]), **documents,
            **{key: record[key] for key in ("stage", "started", "finished", "smoke", "countable", "extra")},
        )  # fmt: skip
        digests = (attempt.stamp.digest, record["stamp"])
    except (OSError, KeyError, TypeError, ValueError, UsageError) as error:
        raise ResultsError(
            f"{path} cannot be read: {type(error).__name__}: {error}; restore it from version control, or move what is "
            "no attempt elsewhere"
        ) from error
    if digests[0] != digests[1]:
        raise ResultsError(f"{path}/stamp.json: its inputs give the stamp {digests[0]}, it says {digests[1]}")
    place = (path.parent.parent.name, path.parent.name, path.name.split(".")[-2:][0], smoke)
    if place != (attempt.cell.name, attempt.stage, f"{attempt.number:04d}", attempt.smoke):
        raise ResultsError(f"{path} is attempt {attempt.number}, {attempt.stage}, of {attempt.cell.name}: it was moved")
    return attempt
