"""What a run works with, and what is known of each cell while it runs and afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from lab.claim_history import ClaimFile
from lab.distros.contract import Distro
from lab.journal import RunJournal
from lab.manifests import Manifests
from lab.model import Cell, Interrupted, LabError, ResultsError, Verdict
from lab.phases import Phases
from lab.providers.contract import Provider
from lab.store import Store


@dataclass(slots=True, kw_only=True)
class Watched:
    """One cell while it is at work, for whoever looks on: the run writes, another thread may read.

    ``price`` is in US dollars an hour, ``repetition`` a text (``2/3``).
    """

    cell: Cell
    phases: Phases
    price: Decimal = Decimal(0)
    node: str = ""
    stage: str = ""
    repetition: str = ""
    is_over: bool = False


def _nobody(watched: Watched) -> None:
    del watched


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a run works with. ``watch`` is told of each cell when it begins."""

    provider: Provider
    distro: Distro
    store: Store
    manifests: Manifests
    scripts: Mapping[str, str]
    claims: ClaimFile
    progress: Callable[[str], None]
    clock: Callable[[], float] = time.time
    watch: Callable[[Watched], None] = _nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What went wrong, in which stage ("" outside of all) and in which phase."""

    text: str
    stage: str
    phase: str


@dataclass(slots=True, kw_only=True)
class CellResult:
    """How one cell went. ``problem`` is the error that ended it early, if one did.

    ``missing`` are the stages without a sealed attempt, ``logs`` the folder of what was fetched after a failure,
    ``sessions`` how many processes have worked on it so far; with ``is_restored`` this one had nothing to do.
    """

    cell: Cell
    run_id: str = ""
    phases: dict[str, float] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    attempts: list[Path] = field(default_factory=list)
    problem: LabError | Interrupted | None = None
    failed_stages: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    kept: str | None = None
    node: str | None = None
    logs: Path | None = None
    missing: tuple[str, ...] = ()
    sessions: int = 1
    is_restored: bool = False


def note(journal: RunJournal, result: CellResult, kind: str, **facts: Any) -> None:
    """Journal an event on the way out: a disk that is full must not stop the clean-up or hide what went wrong."""
    try:
        journal.event(kind, **facts)
    except ResultsError as error:
        result.problem = result.problem or error


def iso(unix: float) -> str:
    """Unix seconds as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="milliseconds")
