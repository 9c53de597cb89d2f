"""One file over HTTP(S): bounded in time and size, checked, and in place only when it is whole."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.client
import os
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lab.artifacts.files import MAX_FILE_BYTES, Unavailable, WrongHash, parse_sums
from lab.model import NodeError, UsageError

PROGRESS_BYTES = 16 << 20
MAX_TEXT_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_FIRST_HASH = re.compile(r"^\s*([0-9a-fA-F]{64})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds allowed: to connect, for one read to bring a byte, and for one file as a whole."""

    connect_s: float = 10.0
    read_s: float = 60.0
    whole_s: float = 1200.0


class _Watch:
    """Ends every read of a transfer once its whole time is over, even when bytes still trickle in."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.expired = False
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._timer = threading.Timer(limits.whole_s, self._expire)
        self._timer.daemon = True

    def __enter__(self) -> _Watch:
        self._timer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()
        self._timer.join()

    def connected(self, connection: http.client.HTTPConnection) -> None:
        """From here on a read may take ``read_s``, and the timer may end it."""
        connection.sock.settimeout(self.limits.read_s)
        with self._lock:
            self._sockets.append(connection.sock)
            if self.expired:
                _shut(connection.sock)

    def _expire(self) -> None:
        with self._lock:
            self.expired = True
            for item in self._sockets:
                _shut(item)


def _shut(item: socket.socket) -> None:
    # The base class's method: the TLS class's own would drop its state under the thread that is reading.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(item, socket.SHUT_RDWR)


class _HttpConnection(http.client.HTTPConnection):
    def __init__(self, host: str, *, watch: _Watch, **rest: Any) -> None:
        super().__init__(host, **rest)
        self._watch = watch

    def connect(self) -> None:
        super().connect()
        self._watch.connected(self)


class _HttpsConnection(http.client.HTTPSConnection):
    def __init__(self, host: str, *, watch: _Watch, **rest: Any) -> None:
        super().__init__(host, **rest)
        self._watch = watch

    def connect(self) -> None:
        super().connect()
        self._watch.connected(self)


class _HttpHandler(urllib.request.HTTPHandler):
    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(_HttpConnection, watch=self._watch), req)


class _HttpsHandler(urllib.request.HTTPSHandler):
    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(_HttpsConnection, watch=self._watch), req)


class _NoDowngrade(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to http."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise urllib.error.URLError(f"redirected from https to {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def check_base_url(url: str) -> str:
    """A mirror's base URL without a slash at its end; UsageError when it is not http:// or https://."""
    if re.match(r"^https?://[^/\s]+", url) is None:
        raise UsageError(f"mirror {url!r} is not a URL that starts with https:// or http://")
    return url.rstrip("/")


@contextmanager
def _opened(url: str, limits: Limits) -> Iterator[http.client.HTTPResponse]:
    """The response to GET; every failure of the transfer inside the block becomes Unavailable."""
    with _Watch(limits) as watch:
        opener = urllib.request.build_opener(_HttpHandler(watch), _HttpsHandler(watch), _NoDowngrade())
        try:
            with opener.open(urllib.request.Request(url), timeout=limits.connect_s) as response:
                yield response
                if watch.expired:
                    raise TimeoutError
        except urllib.error.HTTPError as error:
            error.close()
            raise Unavailable(f"{url}: HTTP {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            if watch.expired:
                raise Unavailable(f"{url}: not finished within {limits.whole_s:g} s") from error
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise Unavailable(f"{url}: {reason or type(error).__name__}") from error


def _copy(response: http.client.HTTPResponse, url: str, limit: int, take: Callable[[bytes], object]) -> int:
    announced = response.headers.get("Content-Length")
    size = 0
    while chunk := response.read(_READ_BYTES):
        size += len(chunk)
        if size > limit:
            raise Unavailable(f"{url}: more than {limit} bytes")
        take(chunk)
    if announced is not None and str(size) != announced.strip():
        raise OSError(f"ended after {size} of {announced} bytes")
    return size


def fetch_text(url: str, limits: Limits) -> str:
    """A small text file. Unavailable says why it could not be had."""
    body = bytearray()
    with _opened(url, limits) as response:
        _copy(response, url, MAX_TEXT_BYTES, body.extend)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unavailable(f"{url}: not text: {bytes(body[:40])!r}") from error


def fetch_listed_sha256(url: str, name: str, limits: Limits) -> str:
    """The hash of file ``name`` in a release's list. Unavailable when the list cannot be had or read, or lacks it."""
    text = fetch_text(url, limits)
    try:
        expected = parse_sums(text, url).get(name)
    except NodeError as error:
        raise Unavailable(str(error)) from error
    if expected is None:
        raise Unavailable(f"{url}: has no line for {name}")
    return expected


def fetch_sha256(url: str, limits: Limits) -> str:
    """The hash at the start of a ``.sha256`` file."""
    text = fetch_text(url, limits)
    match = _FIRST_HASH.match(text)
    if match is None:
        raise Unavailable(f"{url}: does not start with a sha256: {text[:80]!r}")
    return match[1].lower()


def fetch_file(
    url: str, target: Path, expected: str, authority: str, limits: Limits, progress: Callable[[str], None]
) -> None:
    """Download ``url`` to ``target``, which appears only whole and with the sha256 ``expected``.

    Unavailable when the transfer fails or stops short; WrongHash when another file came.
    """
    partial = target.with_name(target.name + ".partial")
    digest = hashlib.sha256()
    size = shown = 0
    name = url.rsplit("/", 1)[-1]
    try:
        with partial.open("xb") as stream, _opened(url, limits) as response:
            total = response.headers.get("Content-Length")
            of_total = f" of {int(total) >> 20}" if total is not None and total.isdecimal() else ""

            def take(chunk: bytes) -> None:
                nonlocal size, shown
                stream.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                if size - shown >= PROGRESS_BYTES:
                    shown = size
                    progress(f"{name}: {size >> 20}{of_total} MiB")

            _copy(response, url, MAX_FILE_BYTES, take)
            stream.flush()
            os.fsync(stream.fileno())
        if digest.hexdigest() != expected:
            raise WrongHash(url, expected, digest.hexdigest(), authority)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
