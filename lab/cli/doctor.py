"""`lab doctor`: is this machine ready."""

from __future__ import annotations

from typing import Annotated

import typer

from lab.cli import console, readiness, shared
from lab.cli.cloud_readiness import cloud_jobs
from lab.model import EXIT_NODE, UsageError
from lab.providers.registry import PROVIDERS


def doctor(
    as_json: shared.JsonOption = False,
    provider: Annotated[
        str | None, typer.Option("--provider", help="What runs there need (default: as lab run would choose).")
    ] = None,
) -> None:
    """Check what a run needs here and in the cloud; each line with its fix. Exit 5 when something is missing.

    A line with `note` is worth knowing; a run goes on without it. Nothing is made or changed.
    """
    chosen = shared.usual_provider() if provider is None else provider
    if chosen not in PROVIDERS:
        raise UsageError(f"--provider {chosen or repr(chosen)}: there is only {', '.join(PROVIDERS)}")
    found = readiness.all_of([*readiness.local_jobs(chosen), *cloud_jobs(chosen)])
    if as_json:
        console.print_json([{"name": c.name, "state": c.state, "fix": c.fix, "needed": c.needed} for c in found])
    else:
        rows = [[check.word, check.name, check.state, check.fix] for check in found]
        console.print_table("Doctor", ["", "what", "state", "fix"], rows)
    if any(check.fix and check.needed for check in found):
        raise typer.Exit(EXIT_NODE)
