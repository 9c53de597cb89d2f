"""The account behind HTTP on loopback."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from .account import Account, Result
from .faults import CloseAfter, CloseBefore, Effect, Error, Faults, Hang, Reply, Slow, TooMany

TOKEN = "dop_v1_local"  # of the account that a server makes when it is given none
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
MOST_BODY_BYTES = 4 << 20


@dataclass(slots=True, kw_only=True)
class Call:
    """One request that arrived. The token is not kept.

    ``status`` is what the client was sent, None when it was sent nothing (yet); ``account_status`` is what the account
    answered, None when it never saw the request. Both are set before the first byte of the answer leaves.
    """

    method: str
    path: str
    query: dict[str, str]
    body: Any
    time: float
    status: int | None = None
    account_status: int | None = None


class _Malformed(Exception):
    """A request that is not even HTTP with JSON as the API takes it."""


class _Closing(Exception):
    """The connection ends here without an answer."""


class LocalDigitalOcean:
    """The API at ``url`` (it ends in /v2/) between ``with`` and its end; machines that still run are stopped then.

    Without an account it makes one on the system clock, with the one token :data:`TOKEN` that has every scope.
    """

    def __init__(self, account: Account | None = None) -> None:
        self.account = account or Account(clock=time.time, tokens={TOKEN: None})
        self.requests: list[Call] = []
        self.faults = Faults()
        self.closing = threading.Event()
        self._http: _Http | None = None
        self._thread: threading.Thread | None = None

    @property
    def unexpected(self) -> list[str]:
        """Requests that the model does not know, one line each. A test's fixture asserts that there are none."""
        return self.account.unexpected

    @property
    def url(self) -> str:
        """Base address, ending in /v2/."""
        if self._http is None:
            raise RuntimeError("the server has no address outside its with block")
        return f"http://127.0.0.1:{self._http.server_address[1]}/v2/"

    def __enter__(self) -> LocalDigitalOcean:
        self._http = _Http(self)
        self.account.base_url = self.url
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), name="digitalocean-api")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._http is not None
        assert self._thread is not None
        self.closing.set()
        for hang in self.faults.hangs():
            hang.release()
        self._http.shutdown()
        self._thread.join()
        self._http.close_connections()
        self._http.server_close()
        self.account.close()


class _Http(ThreadingHTTPServer):
    daemon_threads = False  # closing waits for every handler: no thread outlives a test
    request_queue_size = 64

    def __init__(self, owner: LocalDigitalOcean) -> None:
        self.owner = owner
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def close_connections(self) -> None:
        """End the idle ones, whose handlers wait for a next request."""
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A fault of the model itself fails the test."""
        self.owner.unexpected.append(f"the local API failed while it served {client_address}")
        super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)
        if self.server.owner.closing.is_set():  # the server may have ended the known ones just before
            self.connection.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        with contextlib.suppress(ConnectionError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        """``requests`` is the log; nothing goes to stderr."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What is no HTTP of a known method never reaches an endpoint; it fails the test all the same."""
        self.server.owner.unexpected.append(f"no request of a known method: {code} {message}")
        super().send_error(code, message, explain)

    def handle_one_request(self) -> None:
        """A client that gave up in the middle is no fault of the model."""
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def _serve(self) -> None:
        owner = self.server.owner
        if owner.closing.is_set():
            self.close_connection = True
            return
        target = urlsplit(self.path)
        token = self._token()
        call = Call(method=self.command, path=target.path, query={}, body=None, time=owner.account.clock())
        owner.requests.append(call)
        try:
            call.body = self._read_body()
            call.query = _read_query(target.query)
        except _Malformed as error:
            self._send(call, owner.account.refuse(call.method, call.path, str(error), token))
            return
        try:
            result = self._result(call, token, owner.faults.take(call.method, self.path))
        except _Closing:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._send(call, result)

    def _result(self, call: Call, token: str | None, effect: Effect | None) -> tuple[int, dict[str, str], Any]:
        """What the client is to be sent; _Closing when it is sent nothing."""
        account, owner = self.server.owner.account, self.server.owner
        match effect:
            case None:
                return self._handled(call, token)
            case CloseBefore():
                raise _Closing
            case CloseAfter():
                self._handled(call, token)
                raise _Closing
            case TooMany(retry_after_s=seconds):
                return account.too_many(token, seconds)
            case Error(status=status, message=message):
                return account.failure(status, message, token)
            case Reply(status=status, body=body, headers=headers, handled=handled):
                if handled:
                    self._handled(call, token)
                return status, dict(headers), body
            case Slow(seconds=seconds):
                result = self._handled(call, token)
                owner.closing.wait(seconds)
                return result
            case Hang() as hang:
                early = self._handled(call, token) if hang.handled else None
                hang.arrived.set()
                hang.released.wait()
                if owner.closing.is_set():
                    raise _Closing
                return early or self._handled(call, token)
        raise AssertionError(f"no such effect: {effect}")

    def _handled(self, call: Call, token: str | None) -> Result:
        """The account's own answer."""
        account = self.server.owner.account
        try:
            result = account.handle(call.method, call.path, call.query, call.body, token)
        except Exception as error:
            reason = f"the local API failed: {type(error).__name__}: {error}"
            result = account.refuse(call.method, call.path, reason, token, 500)
        call.account_status = result[0]
        return result

    def _token(self) -> str | None:
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        return token if kind == "Bearer" and token else None

    def _read_body(self) -> Any:
        """Parsed JSON, None when there is no body. _Malformed for anything else."""
        if "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise _Malformed("a chunked body is not modelled")
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > MOST_BODY_BYTES:
            self.close_connection = True
            raise _Malformed("Content-Length is no sensible number")
        raw = self.rfile.read(int(length))
        if not raw:
            return None
        if not self.headers.get("Content-Type", "").lower().startswith("application/json"):
            raise _Malformed("a body whose content type is not application/json")
        try:
            return json.loads(raw)
        except ValueError as error:
            raise _Malformed("the body is not JSON") from error

    def _send(self, call: Call, result: tuple[int, dict[str, str], Any]) -> None:
        status, headers, body = result
        call.status = status
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("content-length", str(len(raw)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)


def _read_query(text: str) -> dict[str, str]:
    """Decoded parameters; _Malformed when one comes twice."""
    pairs = parse_qsl(text, keep_blank_values=True)
    query = dict(pairs)
    if len(query) != len(pairs):
        raise _Malformed("a query parameter is repeated")
    return query


for _method in METHODS:
    setattr(_Handler, f"do_{_method}", _Handler._serve)
