"""Stored verdicts for others to read: a JUnit file, and what GitHub shows of a job."""

from __future__ import annotations

import os
from pathlib import Path

from lab.cli import console
from lab.cli.stored_results import Stored
from lab.report import job_summary, junit
from lab.secrets import SECRETS
from lab.store import write_whole


def write_junit(stored: Stored, target: Path) -> None:
    """Write the claims as tests to ``target``, whole."""
    write_whole(target, SECRETS.mask(junit.render(stored.selection, stored.claims)))
    console.progress(f"wrote {target}")


def publish_job(stored: Stored) -> None:
    """Append the verdicts to GitHub's summary of the job, and annotate its log; nothing outside GitHub Actions.

    What cannot be written there is said and ends nothing: the results are stored already.
    """
    place = os.environ.get("GITHUB_STEP_SUMMARY")
    if os.environ.get("GITHUB_ACTIONS") != "true" or not place:
        return
    for line in job_summary.log_lines(stored.selection):
        console.progress(line)
    path = Path(place)
    try:
        room = job_summary.LIMIT_BYTES - (path.stat().st_size if path.exists() else 0)
        text = job_summary.render(stored.selection, {claim.id: claim.title for claim in stored.claims}, room)
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(SECRETS.mask(text))
    except OSError as error:
        console.progress(f"the job's summary was not written: {error}")
        return
    console.progress("the job's summary has the verdicts" if text else "the job's summary has no room for the verdicts")
