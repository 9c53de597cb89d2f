"""How a program ends: every expected error and every signal becomes one message and its exit code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import typer

from lab import interrupts
from lab.cli import console
from lab.model import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, Interrupted, LabError, NodeError, UsageError

WRONG_WORDS = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""What typer raises for words that it cannot use. It has a public name for this one kind alone."""


def exit_code(program: Callable[[], object]) -> int:
    """Run a program of typer's, not in its standalone mode; its exit code.

    A signal is an error inside, so that what was begun is cleaned up.
    """
    console.encode_anything()
    try:
        with interrupts.raising():
            code = program()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_USAGE
    except WRONG_WORDS as error:
        return _fail_usage(error)
    except (KeyboardInterrupt, typer.Abort):
        console.progress("interrupted")
        return EXIT_INTERRUPTED
    except (LabError, Interrupted) as error:
        return console.fail(error)
    except OSError as error:
        # A file or folder of this machine; the text of an OSError names it.
        return console.fail(NodeError(f"this machine refused: {error}; mend that and run again"))
    return code if isinstance(code, int) else EXIT_OK


def _fail_usage(error: Any) -> int:
    """Print an error of typer's as one of the lab's. It is empty when there were no words at all: help was shown."""
    text = error.format_message()
    if not text:
        return EXIT_USAGE
    if error.ctx is None:
        return console.fail(UsageError(text))
    console.explain(error.ctx.get_usage())
    return console.fail(UsageError(f"{text.rstrip('.')}; see `{error.ctx.command_path} --help`"))
