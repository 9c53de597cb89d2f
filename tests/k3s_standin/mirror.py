"""A server on loopback with the layout of k3s's releases, and faults that a test switches on for one file."""

from __future__ import annotations

import contextlib
import enum
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.k3s_standin.builder import PROGRAM_NAME, SUMS


class Fault(enum.Enum):
    """What is wrong with a file."""

    ALTERED = "one byte is another one"
    TRUNCATED = "it ends in the middle"
    GONE = "404"
    UNLISTED = "the list has lines for another architecture only"
    HANGS = "no answer comes"


class Mirror:
    """``LAB_K3S_MIRROR`` is :attr:`url`. ``asked``: paths in their order. A path of no release fails the test.

    ``faults`` maps ``TAG/FILE`` to what is wrong with it; a file that is GONE need never have been there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: dict[str, Fault] = {}
        self.asked: list[str] = []
        self.unexpected: list[str] = []
        self.ends = threading.Event()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Base of all paths."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Mirror:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.ends.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=20)
        assert not self.unexpected, f"the mirror was asked for what no release has: {self.unexpected}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        mirror = self.server.mirror
        mirror.asked.append(self.path)
        place = self.path.removeprefix("/")
        fault = mirror.faults.get(place)
        known = {f"{path.parent.name}/{path.name}": path for path in mirror.folder.glob("*/*") if _is_served(path)}
        if fault is Fault.HANGS:
            mirror.ends.wait()
        elif fault is Fault.GONE or place not in known:
            if fault is None:
                mirror.unexpected.append(self.path)
            self.send_error(404)
        else:
            self._send(known[place].read_bytes(), fault)

    def _send(self, body: bytes, fault: Fault | None) -> None:
        if fault is Fault.ALTERED:
            body = body[:-1] + bytes([body[-1] ^ 1])
        elif fault is Fault.UNLISTED:
            body = body.replace(b"  k3s", b"  k3s-arm64")
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        # Whoever has seen enough hangs up.
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body[: len(body) // 2] if fault is Fault.TRUNCATED else body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _is_served(path: Path) -> bool:
    return path.name in (PROGRAM_NAME, SUMS)
