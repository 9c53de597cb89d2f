"""The request limits: by hour and by minute for each token, and the special one for listing SSH keys."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import dataclass

from .wire import ApiError

HOUR_S = 3600.0
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """Requests that a token may send; None switches a limit off (the header then still says 5000)."""

    per_hour: int | None = 5000
    per_minute: int | None = 250
    key_listings_per_minute: int | None = 10


class _Window:
    """Moments of the requests of the last ``width_s`` seconds."""

    def __init__(self, width_s: float) -> None:
        self.width_s = width_s
        self.times: deque[float] = deque()

    def trim(self, now: float) -> None:
        while self.times and self.times[0] <= now - self.width_s:
            self.times.popleft()

    def is_full(self, most: int | None) -> bool:
        return most is not None and len(self.times) >= most

    def frees_in(self, now: float) -> int:
        return max(1, math.ceil(self.times[0] + self.width_s - now))


class RateLimiter:
    """Counts by token. A request that is refused is not counted."""

    def __init__(self, limits: RateLimits) -> None:
        self.limits = limits
        self._hours: dict[str, _Window] = defaultdict(lambda: _Window(HOUR_S))
        self._minutes: dict[str, _Window] = defaultdict(lambda: _Window(MINUTE_S))
        self._key_listings: dict[str, _Window] = defaultdict(lambda: _Window(MINUTE_S))

    def admit(self, token: str, now: float, *, lists_keys: bool, key_limit_tells_retry_after: bool) -> None:
        """Count a request; 429 when a limit is reached. Only the limit by the minute tells when to come back."""
        hour, minute, keys = self._hours[token], self._minutes[token], self._key_listings[token]
        for window in (hour, minute, keys):
            window.trim(now)
        if minute.is_full(self.limits.per_minute):
            raise self.refusal(minute.frees_in(now))
        if hour.is_full(self.limits.per_hour):
            raise self.refusal(None)
        if lists_keys:
            if keys.is_full(self.limits.key_listings_per_minute):
                raise self.refusal(keys.frees_in(now) if key_limit_tells_retry_after else None, remaining_zero=False)
            keys.times.append(now)
        hour.times.append(now)
        minute.times.append(now)

    @staticmethod
    def refusal(retry_after_s: int | None, *, remaining_zero: bool = True) -> ApiError:
        """429; without ``retry-after`` when None."""
        headers = {"ratelimit-remaining": "0"} if remaining_zero else {}
        if retry_after_s is not None:
            headers["retry-after"] = str(retry_after_s)
        return ApiError(429, "API Rate limit exceeded.", headers)

    def headers(self, token: str, now: float) -> dict[str, str]:
        """The three headers. ``reset`` is the moment at which the *oldest* counted request no longer counts."""
        hour = self._hours[token]
        hour.trim(now)
        limit = self.limits.per_hour if self.limits.per_hour is not None else 5000
        oldest = hour.times[0] if hour.times else now
        return {
            "ratelimit-limit": str(limit),
            "ratelimit-remaining": str(max(0, limit - len(hour.times))),
            "ratelimit-reset": str(math.ceil(oldest + HOUR_S)),
        }
