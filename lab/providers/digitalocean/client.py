"""The HTTP client of the DigitalOcean API: python-digitalocean 1.17.0 with its HTTP path replaced.

The library keeps the token, the end point and ``get_data``. Its ``BaseAPI.__perform_request`` (in
``digitalocean/baseapi.py``) is overridden, because it sets no timeout, follows redirects, lets ``~/.netrc`` replace
the token and prints ``user_data`` to the log, and because ``get_data`` loses the status and the ids of an error.

Reads and deletes are repeated while the API is busy or away. A create is repeated only when it cannot have been done:
the API has no idempotency key, so a second POST may make a second droplet.
"""

from __future__ import annotations

import ipaddress
import json
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import requests
from digitalocean import Manager
from digitalocean.baseapi import DELETE, GET, POST
from requests.auth import AuthBase
from urllib3.exceptions import NewConnectionError

from lab import __version__
from lab.host import told_when_long
from lab.model import JSON, UsageError
from lab.providers.digitalocean.errors import ApiAmbiguous, ApiUnavailable, Problem, asked, failure, refusal, shown

Hook = Callable[[str, str, str], None]
"""Called with ``before`` or ``after``, the method and the path (no query), around each HTTP request."""

END_POINT = "https://api.digitalocean.com/v2/"
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
# Shorter texts (``runcmd:``) are no secrets, and to mask them would blot out words of an error.
_SHORTEST_SECRET = 8
_SECONDS = re.compile(r"[0-9]{1,6}")
_LOOK_FIRST = "The change may have been made all the same: look for it by name or tag before asking for it again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A sound answer, with what the library's ``get_data`` reads of a response; ``data`` is empty for a DELETE."""

    status_code: int
    data: JSON
    headers: Mapping[str, str]
    ok: bool = True

    def json(self) -> JSON:
        """The body; ``data["links"]["pages"]`` is always there."""
        return self.data


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    """One request that brought nothing usable, for a reason that may pass unless ``final``.

    ``unknown``: it may have taken effect all the same.
    """

    problem: Problem
    unknown: bool
    status: int | None = None
    final: bool = False
    retry_after_s: float | None = None


class _Bearer(AuthBase):
    """Sets the token last, so that neither a header of the session nor ``~/.netrc`` takes its place."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class Client(Manager):  # type: ignore[misc]
    """The library's client with timeouts, repeats, checked answers and nothing in the log."""

    def __init__(
        self,
        token: str,
        end_point: str,
        *,
        request_timeout_s: float,
        retry_s: float,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
        hook: Hook | None,
        progress: Callable[[str], None] | None,
    ) -> None:
        super().__init__(token=_checked_token(token), end_point=_checked_end_point(end_point))
        if not request_timeout_s > 0:
            raise UsageError(f"a request timeout of {request_timeout_s} s is not above 0")
        self.calls = 0
        self._request_timeout_s = request_timeout_s
        self._retry_s = retry_s
        self._sleep = sleep
        self._clock = clock
        self._hook = hook
        self._progress = progress
        self._session = self._new_session()

    def _new_session(self) -> requests.Session:
        session = requests.Session()
        session.headers["User-Agent"] = f"node-lab/{__version__}"
        # A proxy of the environment is for the internet: over plain http it would be handed the token.
        session.trust_env = not _is_loopback(urlsplit(self.end_point).hostname or "")
        return session

    def _BaseAPI__perform_request(self, url: str, type: str = GET, params: JSON | None = None) -> Answer:
        """The library's private method, overridden by its mangled name: ``get_data`` calls it for every request."""
        return self.exchange(type, url, params or {})

    def exchange(self, method: str, url: str, params: JSON) -> Answer:
        """Ask until there is a sound answer, an error that no repeat would change, or the time is up.

        ``retry_s`` is for this one request (one page of a list), the waits included. ``progress`` is told why it is
        repeated, and within seconds that an answer is waited for.
        """
        secrets = _secrets(self.token, params)
        start = self._clock()
        pause, tries, unknown = _FIRST_PAUSE_S, 0, False
        while True:
            with self._patience(method, url, tries):
                outcome = self._once(method, url, params, secrets)
            if isinstance(outcome, Answer):
                return outcome
            tries += 1
            unknown = unknown or outcome.unknown
            left = start + self._retry_s - self._clock()
            wait = min(pause, left) if outcome.retry_after_s is None else max(outcome.retry_after_s, _FIRST_PAUSE_S)
            hopeless = outcome.final or (method == POST and unknown)
            if hopeless or left <= 0 or wait > left:
                advice = f"Asked {tries} times in {self._clock() - start:.0f} s. " if tries > 1 else ""
                advice += f"The API asks to wait {wait:.0f} s. " if wait > left >= 0 else ""
                advice += _LOOK_FIRST if unknown else "Nothing was changed: try again later."
                kind = ApiAmbiguous if unknown else ApiUnavailable
                raise failure(kind, method, self._path(url), outcome.status, outcome.problem, advice)
            if tries == 1 and self._progress is not None:
                what = asked(method, self._path(url), outcome.status, outcome.problem)
                self._progress(f"{what}; asking again for up to {left:.0f} s")
            self._sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _patience(self, method: str, url: str, tries: int) -> AbstractContextManager[None]:
        """Inside, a person learns what is waited for when the first answer takes longer than a moment."""
        if self._progress is None or tries:
            return nullcontext()
        host = urlsplit(self._url(url)).netloc
        text = f"waiting for {host} to answer {method} {self._path(url)} (up to {self._request_timeout_s:g} s)"
        return told_when_long(text, self._progress)

    def _url(self, url: str) -> str:
        return urljoin(str(self.end_point), url)

    def _path(self, url: str) -> str:
        return urlsplit(self._url(url)).path

    def _tell(self, moment: str, method: str, path: str) -> None:
        if self._hook is not None:
            self._hook(moment, method, path)

    def _once(self, method: str, url: str, params: JSON, secrets: Sequence[str]) -> Answer | _Fault:
        """One HTTP request. Raises ApiNotFound, ApiRefused or ApiBusy for a refusal."""
        path = self._path(url)
        self._tell("before", method, path)
        self.calls += 1
        outcome: requests.Response | _Fault
        try:
            outcome = self._send(method, url, params)
        except OSError as error:
            # Kept as plain text, and the lab's own error is raised outside: an exception of requests holds the whole
            # request, token and body included. All of them are OSErrors; so is a missing CA bundle.
            outcome = _lost(method, error, self._request_timeout_s, secrets)
        self._tell("after", method, path)
        return outcome if isinstance(outcome, _Fault) else _judged(method, path, outcome, secrets)

    def _send(self, method: str, url: str, params: JSON) -> requests.Response:
        # A create gets a connection of its own: on one that the server has just closed its effect would be unknown.
        session = self._new_session() if method == POST else self._session
        try:
            return session.request(
                method,
                self._url(url),
                params=params if method == GET else None,
                data=json.dumps(params) if method == POST else None,
                headers={"Content-Type": "application/json"},
                auth=_Bearer(self.token),
                timeout=self._request_timeout_s,
                allow_redirects=False,
            )
        finally:
            if session is not self._session:
                session.close()

    def close(self) -> None:
        """End the idle connections."""
        self._session.close()


def _checked_token(token: str) -> str:
    """A token that fits in a header; the error does not show it, as that of requests would."""
    if re.fullmatch(r"[\x21-\x7e]+", token) is None:
        raise UsageError("the DigitalOcean token is empty, or holds a space, a line end or a special character")
    return token


def _checked_end_point(end_point: str) -> str:
    """An absolute URL below which paths can be joined, and to which the token may be sent."""
    wanted = f"give one like {END_POINT}"
    try:
        parts = urlsplit(end_point)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise UsageError(f"the DigitalOcean end point is not a URL ({error}): {wanted}") from None
    if not host or "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(f"the DigitalOcean end point has no host, or a user, query or fragment: {wanted}")
    if not parts.path.endswith("/v2/"):
        raise UsageError(f"the DigitalOcean end point {end_point!r} does not end in /v2/: {wanted}")
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(host)):
        raise UsageError(f"the DigitalOcean end point {end_point!r} would get the token without https: {wanted}")
    return end_point


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _secrets(token: str, params: JSON) -> list[str]:
    """Texts that no error may repeat, should an answer quote the request."""
    texts = [token, *str(params.get("user_data", "")).splitlines()]
    return [text.strip() for text in texts if len(text.strip()) >= _SHORTEST_SECRET]


def _causes(error: BaseException) -> list[BaseException]:
    """The error and what it wraps in its arguments; not ``__context__``, where earlier, unrelated errors stand."""
    found: list[BaseException] = [error]
    for item in found:
        inner = (*item.args, getattr(item, "reason", None))
        found += [other for other in inner if isinstance(other, BaseException) and other not in found]
    return found


def _lost(method: str, error: OSError, timeout_s: float, secrets: Sequence[str]) -> _Fault:
    """A request without a whole answer."""
    causes = _causes(error)
    bad_certificate = any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes)
    # A refused connection and a name that does not resolve are both a NewConnectionError, behind a proxy too.
    unsent = any(isinstance(cause, requests.ConnectTimeout | NewConnectionError) for cause in causes)
    if isinstance(error, requests.ConnectTimeout):
        text = f"no connection within {timeout_s:g} s"
    elif isinstance(error, requests.Timeout):
        text = f"no answer within {timeout_s:g} s"
    else:
        text = f"{type(causes[-1]).__name__}: {causes[-1]}"
    return _Fault(
        problem=Problem(message=shown(text, secrets)),
        unknown=method != GET and not (unsent or bad_certificate),
        final=bad_certificate or not isinstance(error, requests.RequestException),
    )


def _judged(method: str, path: str, response: requests.Response, secrets: Sequence[str]) -> Answer | _Fault:
    """What an HTTP answer comes to; raises ApiNotFound or ApiRefused for a refusal."""
    status, unknown = response.status_code, method != GET
    if 200 <= status < 300:
        data = {} if method == DELETE else _json_object(response.content)
        if data is not None:
            return Answer(status_code=status, data=data, headers=response.headers)
        garbled = Problem.not_the_api(response.content, response.headers, secrets)
        return _Fault(problem=garbled, unknown=unknown, status=status)
    problem = Problem.read(response.content, response.headers, secrets)
    if status == 429 or status == 408 or status >= 500:
        seconds = response.headers.get("retry-after", "")
        return _Fault(
            problem=problem,
            unknown=unknown and status != 429,
            status=status,
            retry_after_s=float(seconds) if _SECONDS.fullmatch(seconds) else None,
        )
    if status < 400:
        return _Fault(problem=problem, unknown=unknown, status=status, final=True)
    raise refusal(method, path, status, problem)


def _json_object(body: bytes) -> JSON | None:
    """The body as an object whose ``links.pages`` is an object too, as ``get_data`` expects; None when it is not."""
    try:
        data = json.loads(body)
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    links = data.get("links") or {}
    pages = links.get("pages") or {} if isinstance(links, dict) else None
    if not isinstance(pages, dict):
        return None
    return {**data, "links": {"pages": pages}}
