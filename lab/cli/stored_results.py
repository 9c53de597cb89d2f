"""The stored results that count, read once for everything that is made of them: summary, JUnit, job summary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab import claim_history, project
from lab.claim_history import ClaimFile
from lab.claims import Claim
from lab.cli import shared
from lab.model import UsageError, Verdict
from lab.report import comparability
from lab.stages import registry
from lab.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The stored results that count, and what they are read with."""

    selection: comparability.Selection
    claims: tuple[Claim, ...]
    project: Path

    @property
    def verdicts(self) -> list[Verdict]:
        """Every verdict of a counted attempt."""
        return [verdict for attempt in self.selection.attempts for verdict in comparability.verdicts_of(attempt)]


def read(results: Path, folder: Path | None) -> Stored:
    """What counts of the stored results; ResultsError when they do not belong together."""
    require_folder(results)
    found, claims = claims_of(folder)
    # Smoke and unfinished attempts are no results: a summary that named them would differ from checkout to checkout.
    selection = comparability.select(Store(results).attempts())
    shared.require_current(selection)
    return Stored(selection=selection, claims=tuple(claims.claims), project=found)


def claims_of(folder: Path | None) -> tuple[Path, ClaimFile]:
    """The project's folder and its CLAIM.md, each claim checked against the stages that there are."""
    found = project.find(Path.cwd(), folder)
    claims = claim_history.read(found / "CLAIM.md")
    registry.check_claims(claims.claims)
    return found, claims


def require_folder(results: Path) -> None:
    """UsageError when there is no such folder."""
    if results.exists() and not results.is_dir():
        raise UsageError(f"--results {results}: that is a file; name the folder that holds the stored results")
    if not results.is_dir():
        raise UsageError(f"--results {results}: no such folder; name the one that holds the stored results")
