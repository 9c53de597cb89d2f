"""SIGINT, SIGTERM and SIGHUP as an exception in the main thread, and a part in which they wait: clean-up."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lab.model import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def raising() -> Iterator[None]:
    """Turn a signal inside the block into Interrupted."""

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        raise Interrupted(f"stopped by {signal.Signals(number).name}")

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Let signals wait until the block has ended; say what is being done and with which id. Then raise Interrupted."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        seen.append(number)
        print(f"still {what}; this takes a few seconds and is not interrupted", file=sys.stderr)

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if seen:
        raise Interrupted(f"stopped by {signal.Signals(seen[0]).name}")
