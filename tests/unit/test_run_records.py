"""Which earlier run's times are shown beside the new ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab.model import Cell, Gate
from lab.run_records import earlier_phases

CELL = Cell(distro="upstream", version="v1.36.3")
OPTIONS = {"quick": False, "reps": 3, "order": "random"}


def _store(results: Path, run: str, cell: Cell = CELL, **changes: Any) -> None:
    entry = {"cell": cell.as_json(), "phases_s": {"boot": float(run[-1])}, "problem": changes.pop("problem", None)}
    record = {"stages": ["class"], "options": OPTIONS, "cells": [entry], **changes}
    folder = results / "_runs" / run
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(record))


def test_newest_run_of_the_same_kind_counts(tmp_path: Path) -> None:
    assert earlier_phases(tmp_path, CELL, ("class",), OPTIONS) is None
    _store(tmp_path, "20260101T000000Z-1")
    _store(tmp_path, "20260102T000000Z-2")
    assert earlier_phases(tmp_path, CELL, ("class",), OPTIONS) == {"boot": 2.0}


def test_other_kinds_are_passed_over(tmp_path: Path) -> None:
    _store(tmp_path, "20260101T000000Z-1")
    _store(tmp_path, "20260102T000000Z-2", stages=["class", "cpu"])
    _store(tmp_path, "20260103T000000Z-3", options={**OPTIONS, "quick": True})
    gated = Cell(distro="upstream", version="v1.36.3", gates=(Gate(name="PodLevelResources", enabled=False),))
    _store(tmp_path, "20260104T000000Z-4", gated)
    _store(tmp_path, "20260105T000000Z-5", problem="the guest ended by itself")
    several = {"cell": CELL.as_json(), "phases_s": {"boot": 7.0}, "problem": None}
    _store(tmp_path, "20260107T000000Z-7", cells=[{**several, "sessions": 2}])
    _store(tmp_path, "20260108T000000Z-8", cells=[{**several, "phases_s": {}}])
    damaged = tmp_path / "_runs" / "20260106T000000Z-6"
    damaged.mkdir()
    (damaged / "run.json").write_text("{")
    assert earlier_phases(tmp_path, CELL, ("class",), OPTIONS) == {"boot": 1.0}
    assert earlier_phases(tmp_path, gated, ("class",), OPTIONS) == {"boot": 4.0}
