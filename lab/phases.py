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
        self._began: float | None = None
        self._broken: tuple[BaseException, str] | None = None

    @contextmanager
    def track(self, name: str) -> Iterator[None]:
        """Count the time of the block under ``name``."""
        self._charge()
        if self._began is None:
            self._began = self._since
        self._stack.append(name)
        self._seconds.setdefault(name, 0.0)
        try:
            yield
        except BaseException as error:
            self._broken = (error, self.where(error) or name)
            raise
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

    def where(self, error: BaseException) -> str:
        """The innermost phase that an error came out of, or the one that it was raised from; "" when none."""
        seen: BaseException | None = error
        while seen is not None and self._broken is not None:
            if seen is self._broken[0]:
                return self._broken[1]
            seen = seen.__cause__ or seen.__context__
        return ""

    def current(self) -> tuple[str, float]:
        """The phase that runs now and its seconds so far, from any thread; ("", 0.0) between phases."""
        stack = tuple(self._stack)
        if not stack:
            return "", 0.0
        return stack[-1], self._seconds.get(stack[-1], 0.0) + self._clock() - self._since

    def elapsed_s(self) -> float:
        """Seconds since the first phase began, from any thread; 0 before."""
        return 0.0 if self._began is None else self._clock() - self._began
