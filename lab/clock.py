"""Whether a node's clock and this machine's agree: their records are laid side by side, and certificates have dates."""

from __future__ import annotations

import time
from collections.abc import Callable

from lab.host import Command, Host
from lab.model import NodeError, ParseError

MAX_SKEW_S = 5.0


def skew_s(host: Host, now: Callable[[], float] = time.time) -> float:
    """Seconds by which the node's clock is ahead of this machine's, at least; 0 when the round trip explains it."""
    before = now()
    text = host.run(Command(argv=("date", "+%s.%N"), repeatable=True)).stdout.strip()
    after = now()
    try:
        there = float(text)
    except ValueError as error:
        raise ParseError("not a time of date(1)", text) from error
    if there < before:
        return there - before
    return max(0.0, there - after)


def check(host: Host) -> None:
    """NodeError when the clocks are further apart than :data:`MAX_SKEW_S`."""
    found = skew_s(host)
    if abs(found) > MAX_SKEW_S:
        direction = "ahead of" if found > 0 else "behind"
        raise NodeError(
            f"{host.name}: its clock is {abs(found):.0f} s {direction} this machine's; set both (NTP) and run again"
        )
