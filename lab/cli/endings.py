"""How a program ends: every expected error and every signal becomes one message and its exit code."""

from __future__ import annotations

from collections.abc import Callable

from lab import interrupts
from lab.cli import console
from lab.model import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, Interrupted, LabError, NodeError


def exit_code(program: Callable[[], object]) -> int:
    """Run a program of typer's; its exit code. A signal is an error inside, so that what was begun is cleaned up."""
    try:
        with interrupts.raising():
            program()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_USAGE
    except KeyboardInterrupt:
        console.progress("interrupted")
        return EXIT_INTERRUPTED
    except (LabError, Interrupted) as error:
        return console.fail(error)
    except OSError as error:
        # A file or folder of this machine; the text of an OSError names it.
        return console.fail(NodeError(f"this machine refused: {error}; mend that and run again"))
    return EXIT_OK
