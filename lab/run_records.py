"""Reading run.json of earlier runs; the writing is the store's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.model import Cell


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
