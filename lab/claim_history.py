"""CLAIM.md on disk and in git: since when each claim has stood there, and why an attempt may not count.

I/O: runs ``git`` in the folder of CLAIM.md. Only committed text can prove that a claim is older than a measurement,
and commit times are the committer's own; a signature over the history is another module's business.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from lab import claims
from lab.model import Cell, UsageError

GIT_TIMEOUT_S = 20.0

State = Literal["clean", "dirty", "untracked", "no-git"]

_STATE_REASONS: Mapping[State, str] = {
    "dirty": "CLAIM.md has changes that are not committed",
    "untracked": "CLAIM.md is not committed to git",
    "no-git": "CLAIM.md is not in a git work tree, so the age of its claims cannot be shown",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFile:
    """CLAIM.md as it lies on disk.

    ``state`` is about this one file; ``no-git`` also covers a git that is not installed or refuses the folder.
    ``first_seen`` maps the digests of the claims in HEAD to Unix commit times; with ``is_shallow`` the history was
    cut, so that they may be too late.
    """

    path: Path
    text: str
    claims: tuple[claims.Claim, ...]
    state: State
    first_seen: Mapping[str, int] = field(default_factory=dict)
    is_shallow: bool = False

    def since(self, digest: str) -> int | None:
        """Unix time of the commit since which a claim with this digest has stood in CLAIM.md without a break.

        None when HEAD does not hold it. A version in between that lacks it, or cannot be parsed, is a break.
        """
        return self.first_seen.get(digest)


def read(path: Path) -> ClaimFile:
    """CLAIM.md with its claims and its history; UsageError when it cannot be read, is faulty, or git hangs."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the claims in {path}: {error}; give the path of a CLAIM.md") from error
    parsed = claims.parse_claims(text)
    state = _state(path, text)
    first_seen = _first_seen(path) if state in ("clean", "dirty") else {}
    shallow = (_git(path.parent, "rev-parse", "--is-shallow-repository") or "").strip() == "true"
    return ClaimFile(
        path=path, text=text, claims=parsed, state=state, first_seen=first_seen, is_shallow=shallow
    )


def uncountable_reasons(
    claim_file: ClaimFile, stage: str, cell: Cell, started_unix: float
) -> tuple[str, ...]:
    """Why an attempt of this stage and cell, started at that Unix time, may not count; empty when it may."""
    if claim_file.state in ("untracked", "no-git"):
        return (_STATE_REASONS[claim_file.state],)
    reasons = [_STATE_REASONS[claim_file.state]] if claim_file.state == "dirty" else []
    for claim in claim_file.claims:
        if claim.stage != stage or not claims.applies(claim, cell):
            continue
        since = claim_file.since(claim.digest)
        if since is None:
            reasons.append(f"claim {claim.id} is not committed in this form")
        elif since > started_unix:
            reasons.append(f"claim {claim.id} was committed at {_iso(since)}, after the start at {_iso(started_unix)}")
    return tuple(reasons)


def _iso(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="seconds")


def _git(folder: Path, *arguments: str) -> str | None:
    """Standard output of git, None when it refuses."""
    argv = ["git", "--no-optional-locks", "--literal-pathspecs", *arguments]
    try:
        done = subprocess.run(
            argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired as error:
        shown = " ".join(argv)
        raise UsageError(f"{shown} gave no answer in {GIT_TIMEOUT_S:.0f} s; try it in {folder}") from error
    return done.stdout.decode("utf-8", errors="replace") if done.returncode == 0 else None


def _committed(path: Path, revision: str) -> str | None:
    """Text of the file in a revision, line ends as in text mode; None when the revision lacks it."""
    text = _git(path.parent, "show", "--no-textconv", f"{revision}:./{path.name}")
    return None if text is None else text.replace("\r\n", "\n")


def _state(path: Path, text: str) -> State:
    if (_git(path.parent, "rev-parse", "--is-inside-work-tree") or "").strip() != "true":
        return "no-git"
    status = _git(path.parent, "status", "--porcelain", "--ignored", "--untracked-files=all", "--", path.name)
    if status is None:
        return "no-git"
    if status and all(line.startswith(("??", "!!")) for line in status.splitlines()):
        return "untracked"
    # git status can be told to overlook edits (assume-unchanged); the text itself cannot.
    return "clean" if not status and _committed(path, "HEAD") == text else "dirty"


def _first_seen(path: Path) -> dict[str, int]:
    """Walks back from HEAD while any claim of HEAD still stands; rev-list is ``git log`` without its settings."""
    listing = _git(path.parent, "rev-list", "--timestamp", "HEAD", "--", path.name)
    first_seen: dict[str, int] = {}
    standing: set[str] | None = None
    for line in (listing or "").splitlines():
        unix, revision = line.split()
        digests = _digests(_committed(path, revision))
        standing = digests if standing is None else standing & digests
        if not standing:
            break
        first_seen.update(dict.fromkeys(standing, int(unix)))
    return first_seen


def _digests(text: str | None) -> set[str]:
    if text is None:
        return set()
    try:
        return {claim.digest for claim in claims.parse_claims(text)}
    except UsageError:
        # An unreadable version promised nothing that anybody could check.
        return set()
