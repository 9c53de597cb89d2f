"""Faults on demand: which request goes wrong, and how.

::

    api.faults.add("POST", r"^/v2/droplets/?$", CloseAfter())            # accepted, but the answer is lost
    api.faults.add("GET", r"[?&]page=2(&|$)", TooMany(retry_after_s=None))
    api.faults.add("GET", r"^/v2/droplets/", bad_gateway(), nth=3, times=2)
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Effect:
    """What goes wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(Effect):
    """This answer in place of the account's: ``body`` as JSON, or bytes as they stand.

    ``handled`` True lets the account handle the request first: a create that took place but reads as a failure.
    """

    status: int
    body: dict[str, Any] | bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    handled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Error(Effect):
    """An error with the documented body and headers, in place of the account's answer."""

    status: int
    message: str = "Server was unable to give you a response."


@dataclass(frozen=True, slots=True, kw_only=True)
class TooMany(Effect):
    """429 before the account sees the request; None leaves ``retry-after`` out."""

    retry_after_s: int | None = None


class CloseBefore(Effect):
    """The connection is closed; the account never sees the request."""


class CloseAfter(Effect):
    """The account handles the request, then the connection is closed: the answer is lost."""


class Hang(Effect):
    """The answer is withheld until :meth:`release`, or until the server closes; then the connection just ends.

    ``handled`` True: the account handles the request on arrival; False: only when released. ``arrived`` is set once the
    request waits (and, with ``handled``, has been handled).
    """

    def __init__(self, *, handled: bool) -> None:
        self.handled = handled
        self.arrived = threading.Event()
        self.released = threading.Event()

    def release(self) -> None:
        """Let the answer go."""
        self.released.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow(Effect):
    """The account's own answer, this much later."""

    seconds: float


def bad_gateway(*, handled: bool = False) -> Reply:
    """502 with a page of HTML, as a proxy in front of the API sends it: no JSON, no request limit headers."""
    page = b"<html>\n<head><title>502 Bad Gateway</title></head>\n<body><h1>502 Bad Gateway</h1></body>\n</html>\n"
    return Reply(status=502, body=page, headers={"content-type": "text/html"}, handled=handled)


@dataclass(slots=True, kw_only=True)
class _Planned:
    method: str
    pattern: re.Pattern[str]
    effect: Effect
    nth: int
    times: int
    matched: int = 0
    fired: int = 0


class Faults:
    """The script of one server. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planned: list[_Planned] = []

    def add(self, method: str, pattern: str, effect: Effect, *, nth: int = 1, times: int = 1) -> None:
        """Let the ``nth`` matching request from now on (and the ``times - 1`` after it) go wrong.

        ``pattern`` is searched in the path with its query as sent (``/v2/droplets/?tag_name=a&per_page=200``).
        """
        if nth < 1 or times < 1:
            raise ValueError(f"nth={nth} and times={times} count from 1")
        planned = _Planned(method=method, pattern=re.compile(pattern), effect=effect, nth=nth, times=times)
        with self._lock:
            self._planned.append(planned)

    def take(self, method: str, target: str) -> Effect | None:
        """Count a request; the effect that it meets, the earliest planned one if there are several."""
        with self._lock:
            met: _Planned | None = None
            for planned in self._planned:
                if planned.method != method or planned.pattern.search(target) is None:
                    continue
                planned.matched += 1
                if met is None and planned.nth <= planned.matched < planned.nth + planned.times:
                    met = planned
            if met is None:
                return None
            met.fired += 1
            return met.effect

    def unused(self) -> list[str]:
        """Faults that have not fired as often as planned: a test whose fault never happened has shown nothing."""
        with self._lock:
            return [
                f"{planned.method} {planned.pattern.pattern}: {type(planned.effect).__name__} fired {planned.fired} of "
                f"{planned.times} times"
                for planned in self._planned
                if planned.fired < planned.times
            ]

    def hangs(self) -> list[Hang]:
        """Every planned hang, for the server to end when it closes."""
        with self._lock:
            return [planned.effect for planned in self._planned if isinstance(planned.effect, Hang)]
