"""Reading the records of runs: what earlier ones took, and whether they are as they were written."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.atomic import folders_in, text_of
from lab.checksums import SUMS, check
from lab.journal import JOURNAL, RECORD, read_events
from lab.model import Cell, ResultsError


class Seal(enum.StrEnum):
    """What is known of a run's files. UNSEALED: of a lab that wrote no sums for runs, so nobody can tell."""

    SEALED = "whole and unchanged"
    UNSEALED = "not sealed"
    UNFINISHED = "unfinished"


def run_folders(results: Path) -> list[Path]:
    """Folders of runs, oldest first; what else lies there is passed over. ResultsError when they cannot be listed."""
    files = (JOURNAL, RECORD, SUMS)
    return [
        folder for folder in folders_in(results / "_runs", but=".") if any((folder / name).exists() for name in files)
    ]


def seal_of(folder: Path) -> Seal:
    """Whether a run's files are as they were when it ended; ResultsError naming each that is not.

    A run that another process goes on with meanwhile is UNFINISHED, not damaged.
    """
    try:
        sums = text_of(folder / SUMS)
        check(folder)
    except ResultsError:
        if _sums_are_still(sums, folder):
            raise
        return Seal.UNFINISHED
    except FileNotFoundError:
        return _without_sums(folder)
    except OSError as error:
        raise ResultsError(f"{folder} cannot be read: {error}") from error
    return Seal.SEALED


def _sums_are_still(sums: str, folder: Path) -> bool:
    """Whether the sums are what they were: they go before anything that they are about is changed."""
    try:
        return text_of(folder / SUMS) == sums
    except OSError:
        return False


def _without_sums(folder: Path) -> Seal:
    """A run's record comes before its sums, and runs that get sums say so in their first event."""
    events = read_events(folder)
    if not (folder / RECORD).exists() or (events and events[0].get("sums")):
        return Seal.UNFINISHED
    try:
        json.loads(text_of(folder / RECORD))
    except (OSError, ValueError) as error:
        raise ResultsError(f"{folder / RECORD} cannot be read: {error}") from error
    return Seal.UNSEALED


def earlier_phases(
    results: Path, cell: Cell, stages: Sequence[str], options: Mapping[str, Any]
) -> dict[str, float] | None:
    """Phases (seconds) of the newest stored run with the same cell, stages and options; None when there is none.

    A run.json that cannot be read is passed over: this is a comparison for the eye, no result rests on it.
    """
    for path in sorted(results.glob("_runs/*/run.json"), reverse=True):
        try:
            record = json.loads(path.read_text())
            same = record["stages"] == list(stages) and record["options"] == dict(options)
            for entry in record["cells"]:
                # The times of a cell that several processes have worked on are those of the last one.
                whole = entry["problem"] is None and entry.get("sessions", 1) == 1 and entry["phases_s"]
                if same and entry["cell"] == cell.as_json() and whole:
                    return dict(entry["phases_s"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None
