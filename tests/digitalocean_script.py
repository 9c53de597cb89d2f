"""A server on loopback that plays the part of the DigitalOcean API by a script, and a clock that only sleeps move."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

TOKEN = "dop_v1_7f3a9c51e0b24d68"
PRIVATE_LINE = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ"
USER_DATA = f"#cloud-config\nssh_keys:\n  ed25519_private: |\n    {PRIVATE_LINE}\n"

DROPLET = {
    "id": 31, "name": "lab-a", "status": "active", "memory": 4096, "vcpus": 2, "disk": 80, "locked": False,
    "created_at": "2026-11-30T10:00:00Z", "size_slug": "s-2vcpu-4gb", "tags": ["lab", "lab:run"],
    "region": {"slug": "fra1", "name": "Frankfurt 1"}, "image": {"id": 7, "slug": "ubuntu-24-04-x64"},
    "networks": {
        "v4": [
            {"ip_address": "10.1.0.2", "type": "private", "gateway": "nil"},
            {"ip_address": "203.0.113.9", "type": "public", "gateway": "203.0.113.1"},
        ],
        "v6": [],
    },
}  # fmt: skip
FIREWALL = {
    "id": "bb4b2611-3d72", "name": "lab-a", "status": "waiting", "tags": ["lab:run"], "droplet_ids": [],
    "pending_changes": [{"droplet_id": 31, "removing": False, "status": "waiting"}],
    "inbound_rules": [{"protocol": "tcp", "ports": "22", "sources": {"addresses": ["198.51.100.7/32"]}}],
    "outbound_rules": [{"protocol": "icmp", "ports": "0", "destinations": {"addresses": ["0.0.0.0/0"]}}],
}  # fmt: skip
SIZE = {
    "slug": "s-2vcpu-4gb", "memory": 4096, "vcpus": 2, "price_hourly": 0.03571, "regions": ["fra1"], "available": True,
}  # fmt: skip
KEY = {"id": 5, "name": "lab-a", "public_key": "ssh-ed25519 AAAA lab", "fingerprint": "3b:16"}
ORDER = {
    "name": "lab-a", "region": "fra1", "size": "s-2vcpu-4gb", "image": "ubuntu-24-04-x64", "key_ids": [5],
    "tags": ["lab", "lab:run"], "user_data": USER_DATA,
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer. ``fault``: ``drop`` cuts the connection, ``cut`` does so inside the body, ``hang`` never answers."""

    status: int = 200
    body: object = None
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    fault: str = ""

    def content(self) -> bytes:
        return self.body.encode() if isinstance(self.body, str) else json.dumps(self.body).encode()


DROP, HANG = Reply(fault="drop"), Reply(fault="hang")
BUSY = Reply(status=429, body={"id": "too_many_requests", "message": "API rate limit exceeded."})
BROKEN = Reply(status=500, body={"id": "server_error", "message": "Unexpected server-side error", "request_id": "r-1"})
HTML = Reply(status=502, body="<html><h1>502 Bad Gateway</h1></html>", headers={"content-type": "text/html"})
GONE = Reply(status=404, body={"id": "not_found", "message": "The resource you were accessing could not be found."})


def error(status: int, id: str, message: str) -> Reply:
    return Reply(status=status, body={"id": id, "message": message, "request_id": "r-9"})


@dataclasses.dataclass(kw_only=True)
class Request:
    """What the server was asked."""

    method: str
    path: str
    query: dict[str, list[str]]
    body: object
    headers: dict[str, str]
    port: int


class Server:
    """A server on loopback that plays its script: per method and path, one reply for each request, in order."""

    def __init__(self, *, listening: bool = True) -> None:
        self.script: dict[tuple[str, str], list[Reply]] = {}
        self.seen: list[Request] = []
        self.strangers: list[str] = []
        self.released = threading.Event()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(), bind_and_activate=False)
        self.http.daemon_threads = True
        self.http.server_bind()
        self.origin = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        if listening:
            self.listen()

    def listen(self) -> None:
        self.http.server_activate()
        self.thread.start()

    def close(self) -> None:
        self.released.set()
        if self.thread.is_alive():
            self.http.shutdown()
            self.thread.join()
        self.http.server_close()

    def expect(self, method: str, path: str, *replies: Reply) -> None:
        self.script.setdefault((method, f"/v2/{path}"), []).extend(replies)

    def pages(self, path: str, key: str, *pages: list[object]) -> list[Reply]:
        """Replies of one list in pages, with links as the API writes them."""
        replies = []
        for number, items in enumerate(pages, start=1):
            following = {"next": f"{self.origin}/v2/{path}?page={number + 1}&per_page=200"}
            links = {"pages": following} if number < len(pages) else {}
            replies.append(Reply(body={key: items, "links": links, "meta": {"total": 9}}))
        return replies

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                parts = urlsplit(self.path)
                raw = self.rfile.read(int(self.headers.get("content-length", 0)))
                body = json.loads(raw) if raw else None
                headers = {name.lower(): value for name, value in self.headers.items()}
                server.seen.append(
                    Request(
                        method=self.command,
                        path=parts.path,
                        query=parse_qs(parts.query),
                        body=body,
                        headers=headers,
                        port=self.client_address[1],
                    )
                )
                replies = server.script.get((self.command, parts.path))
                if not replies:
                    server.strangers.append(f"{self.command} {self.path}")
                self.send(replies.pop(0) if replies else Reply(status=418, body={}))

            do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = answer

            def send(self, reply: Reply) -> None:
                if reply.fault == "hang":
                    server.released.wait()
                if reply.fault in ("hang", "drop"):
                    self.close_connection = True
                    return
                content = b"" if reply.status == 204 else reply.content()
                self.send_response(reply.status)
                for name, value in {"content-type": "application/json", **reply.headers}.items():
                    self.send_header(name, value)
                if reply.status != 204:
                    self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if reply.fault == "cut" else content)
                self.close_connection = self.close_connection or reply.fault == "cut"

            def log_message(self, format: str, *args: object) -> None:
                """Keep the report of the tests short."""

        return Handler


class Clock:
    """Time that passes only in sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.sleeps.append(seconds)
        self.now += seconds


def one_page(key: str, *items: object) -> Reply:
    return Reply(body={key: list(items), "links": {}, "meta": {"total": len(items)}})


@contextlib.contextmanager
def playing() -> Iterator[Server]:
    """A server; at the end a request that its script does not know, or a reply that nobody asked for, is an error."""
    server = Server()
    try:
        yield server
    finally:
        server.close()
    assert server.strangers == []
    assert {request: replies for request, replies in server.script.items() if replies} == {}
