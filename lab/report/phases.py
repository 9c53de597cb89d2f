"""The table of where a run's time went: seconds per phase, the total, and the share that was measuring."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from lab.model import ResultsError


def is_window(phase: str) -> bool:
    """True for a measured window: a phase whose last word is ``window`` or ``windows`` (``cpu window``)."""
    words = re.findall(r"[a-z0-9]+", phase.lower())
    return bool(words) and words[-1] in ("window", "windows")


def phase_table(phases: Mapping[str, float]) -> list[tuple[str, str]]:
    """Rows (phase, text) in the given order, then the total in seconds and the windows' share in percent.

    ``phases`` maps a phase to its duration in seconds. No rows when nothing was timed. ResultsError for
    a duration that is negative or not a finite number.
    """
    for name, seconds in phases.items():
        if not math.isfinite(seconds) or seconds < 0:
            raise ResultsError(f"phase {name!r} lasted {seconds} s: the recorded times are damaged")
    if not phases:
        return []
    total = math.fsum(phases.values())
    windows = math.fsum(seconds for name, seconds in phases.items() if is_window(name))
    share = f"{100 * windows / total:.0f} %" if total > 0 else "-"
    rows = [(name, f"{seconds:.1f} s") for name, seconds in phases.items()]
    return [*rows, ("total", f"{total:.1f} s"), ("share in windows", share)]


def render_phases(phases: Mapping[str, float], before: Mapping[str, float] | None = None) -> str:
    """The phase table as plain text, one line per row, times aligned to the right; ends with one newline.

    ``before``: the phases of an earlier run of the same cell and stages, shown beside each row. A lab before this one
    did not tell ``ready`` from ``install``.
    """
    rows = phase_table(phases)
    if not rows:
        return "no phase was timed\n"
    earlier = dict(phase_table(before)) if before else {}
    if "ready" in phases and "ready" not in earlier and "install" in earlier:
        earlier["install"] += " with ready"
    left = max(len(name) for name, _ in rows)
    right = max(len(text) for _, text in rows)
    lines = []
    for name, text in rows:
        was = f"  (before: {earlier[name]})" if name in earlier else ""
        lines.append(f"{name:<{left}}  {text:>{right}}{was}\n")
    return "".join(lines)
