"""What a set of verdicts comes to: the word for one table cell and the exit code of a command."""

from __future__ import annotations

from collections.abc import Iterable

from lab.model import EXIT_FALSIFIED, EXIT_OK, EXIT_UNKNOWN, Outcome, Verdict

# From the one that weighs most: one bad verdict is never hidden by a good one.
SEVERITY = (Outcome.FALSIFIED, Outcome.UNKNOWN, Outcome.MISSED, Outcome.HELD)


def weightiest(outcomes: Iterable[Outcome]) -> Outcome | None:
    """The outcome that stands for several verdicts on one claim; None when there is none."""
    return min(outcomes, key=SEVERITY.index, default=None)


def outcome_exit_code(verdicts: Iterable[Verdict]) -> int:
    """Exit code: 1 if any claim is falsified, else 3 if any is unknown or none was judged, else 0."""
    worst = weightiest(verdict.outcome for verdict in verdicts)
    if worst is Outcome.FALSIFIED:
        return EXIT_FALSIFIED
    if worst is None or worst is Outcome.UNKNOWN:
        return EXIT_UNKNOWN
    return EXIT_OK
