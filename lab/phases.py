"""Where the time of a run goes: exclusive seconds by phase, in order of first use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Phases:
    """Seconds by phase name. Phases may nest: the inner one's time is not counted in the outer one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._stack: list[str] = []
        self._since = 0.0

    @contextmanager
    def track(self, name: str) -> Iterator[None]:
        """Count the time of the block under ``name``."""
        self._charge()
        self._stack.append(name)
        self._seconds.setdefault(name, 0.0)
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()

    def _charge(self) -> None:
        now = self._clock()
        if self._stack:
            self._seconds[self._stack[-1]] += now - self._since
        self._since = now

    def seconds(self) -> dict[str, float]:
        """Phase to seconds, rounded to a tenth."""
        return {name: round(value, 1) for name, value in self._seconds.items()}
