"""The program `lab`: verbs, and errors to exit codes."""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from typing import Annotated

import typer

from lab import __version__
from lab.cli import endings
from lab.cli.verbs import Verbs
from lab.config import token_of
from lab.secrets import SECRETS

app = typer.Typer(
    cls=Verbs,
    name="lab",
    help="Measures what a real kubelet does to real pods.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"node lab {__version__}")
        raise typer.Exit


@app.callback()
def options(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every command, paste-ready.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Measures what a real kubelet does to real pods."""
    del version
    level = logging.DEBUG if verbose else logging.WARNING
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    SECRETS.install(logging.getLogger().handlers)


def run(argv: list[str] | None = None) -> None:
    """Entry point: every expected error becomes one message and its exit code; never a traceback."""
    sys.exit(main(argv))


def main(argv: list[str] | None = None) -> int:
    """Run the program on ``argv`` (default: the process's); returns the exit code."""
    SECRETS.add(token_of(os.environ))
    return endings.exit_code(partial(app, args=argv, standalone_mode=False))
