"""SIGINT, SIGTERM and SIGHUP as an exception in the main thread, and a part in which they wait: clean-up."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from lab.model import Interrupted, LeftBehind

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STDERR = 2
SAME_WISH_S = 1.0
AGAIN_S = 0.01

leaving = False
"""Set to True by the first statement of whatever cleans up with :func:`surely`: signals wait from that very moment.

A plain assignment, since Python looks for signals at every call, also at the one that would make them wait.
"""


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Give the block's signals to ``handler``; one that is ignored (nohup, a job in the background) stays ignored."""
    found = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: old for number, old in found.items() if old not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def raising() -> Iterator[None]:
    """Turn a signal inside the block into Interrupted.

    Another one within the next moment is the same wish (a terminal tells all processes of a job, and make or a shell
    may pass it on): raised again, it would cut off what has just begun to clean up. One that comes while a thread is
    or a process is being started, or when a clean-up is about to begin, is raised a moment later.
    """
    global leaving
    leaving = False
    last_s = -math.inf
    late: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal last_s
        if leaving or _starts_something(frame):
            if not late:
                late.append(number)
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
            return
        before_s, last_s = last_s, time.monotonic()
        if last_s - before_s < SAME_WISH_S:
            return
        raise Interrupted(f"stopped by {signal.Signals(number).name}")

    def again(number: int, frame: FrameType | None) -> None:
        # To whoever handles the signal by now: a clean-up may have begun, which is not to be cut off.
        del number, frame
        signal.raise_signal(late.pop())

    before = signal.signal(signal.SIGALRM, again)
    try:
        with _handled_by(stop):
            try:
                yield
            finally:
                # While the signals are still ours: passed on any later, one would reach whoever had them before.
                signal.setitimer(signal.ITIMER_REAL, 0)
            if late:
                raise Interrupted(f"stopped by {signal.Signals(late.pop()).name}")
    finally:
        # Once more: a signal may have cut the first one off, and the alarm's own action would end the program.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _starts_something(frame: FrameType | None) -> bool:
    """Whether the code that was interrupted is starting a thread or a process.

    An exception in ``Thread.start`` makes threading forget a thread that runs already, whose own traceback is then
    shown; one in ``Popen()`` leaves a process whose number nobody has.
    """
    starting = {threading.Thread.start.__code__}
    if (subprocess := sys.modules.get("subprocess")) is not None:
        starting.add(subprocess.Popen.__init__.__code__)
    while frame is not None:
        if frame.f_code in starting:
            return True
        frame = frame.f_back
    return False


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Let signals wait until the block has ended; say what is being done and with which id. Then raise Interrupted.

    Also when the block has failed, and with what it said: an error after a signal must not let the run go on. Only
    LeftBehind outweighs the wish to stop, since it names what still costs something.
    """
    global leaving
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        seen.append(number)
        # Not print: the signal may have come while the same stream was being written to, and after SIGHUP the terminal
        # is gone; neither may end the block.
        with suppress(OSError):
            os.write(STDERR, f"still {what}; this takes a few seconds and is not interrupted\n".encode())

    try:
        with _handled_by(note):
            leaving = False
            yield
    except LeftBehind:
        raise
    except Exception as error:
        if not seen:
            raise
        raise Interrupted(f"stopped by {signal.Signals(seen[0]).name}; {what} did not end well: {error}") from error
    if seen:
        raise Interrupted(f"stopped by {signal.Signals(seen[0]).name}")


def surely(what: str, action: Callable[[], None]) -> None:
    """Run ``action`` to its end while signals wait, also when one comes in the moment before they do.

    Interrupted afterwards when there was one, as :func:`waiting` has it; what ``action`` raises passes through without.
    """
    begun, stopped = False, None
    while not begun:
        try:
            with waiting(what):
                begun = True
                action()
        except Interrupted as error:
            stopped = error
        except LeftBehind:
            raise
        except Exception as error:
            if stopped is None:
                raise
            raise Interrupted(f"{stopped}; {what} did not end well: {error}") from error
    if stopped is not None:
        raise stopped
