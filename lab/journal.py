"""The journal of a run: what was done when, appended and durable, so that another process can go on after a crash.

``SHA256SUMS`` is written last, after run.json, and goes before the next event: where it is, the run has ended and it
holds for both files, whenever a process was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.atomic import fsync_folder, json_text, remove_temporary, storing, text_of, write_whole
from lab.checksums import SUMS, sums_text
from lab.model import JSON, UsageError
from lab.secrets import SECRETS

JOURNAL, RECORD = "journal.jsonl", "run.json"


class RunJournal:
    """``journal.jsonl`` (one JSON object a line, oldest first), ``run.json`` of one run, and the sums of both."""

    def __init__(self, folder: Path, clock: Callable[[], str]) -> None:
        self.folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._owned: int | None = None

    @property
    def run_id(self) -> str:
        """Name of the run."""
        return self.folder.name

    def own(self) -> None:
        """Be the one process that does this run, until :meth:`close` or its own end; UsageError when another is."""
        if self._owned is not None:
            return
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            pids = [event["owner"]["pid"] for event in read_events(self.folder) if "owner" in event]
            by = f"process {pids[-1]}" if pids else "another process"
            raise UsageError(f"run {self.run_id} is still being done by {by}; wait for its end, or end it") from error
        self._owned = descriptor

    def close(self) -> None:
        """Give the run up; harmless when it is not owned."""
        if self._owned is not None:
            os.close(self._owned)
            self._owned = None

    def event(self, kind: str, /, **facts: Any) -> None:
        """Appends ``{"time", "kind", **facts}`` and returns when the disk has it; threads may share a journal."""
        path = self.folder / JOURNAL
        line = SECRETS.mask(json_text(dict(**facts, time=self._clock(), kind=kind), indent=None))
        with self._lock, storing(path), path.open("a+b") as file:
            if (self.folder / SUMS).exists():
                (self.folder / SUMS).unlink()
                fsync_folder(self.folder)
            # A crash can leave a line without its end; the next one must not be glued to it.
            file.seek(max(file.tell() - 1, 0))
            glue = "" if file.read(1) in (b"", b"\n") else "\n"
            file.write((glue + line).encode("utf-8", errors="surrogateescape"))
            file.flush()
            os.fsync(file.fileno())

    def events(self) -> list[JSON]:
        """See :func:`read_events`."""
        return read_events(self.folder)

    def finish(self, record: JSON) -> None:
        """Writes run.json, whole, and seals the run with the sums of it and of the journal."""
        with storing(self.folder / RECORD):
            remove_temporary(self.folder)
        write_whole(self.folder / RECORD, SECRETS.mask(json_text(record)))
        with self._lock:
            write_whole(self.folder / SUMS, sums_text(self.folder))


def read_events(folder: Path) -> list[JSON]:
    """Events of a run's folder in order; [] when there is no journal. A line that a crash cut is passed over."""
    try:
        lines = text_of(folder / JOURNAL).split("\n")
    except OSError:
        return []
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "kind" in event:
            events.append(event)
    return events
