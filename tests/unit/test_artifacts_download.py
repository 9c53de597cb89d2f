"""Artifacts by download, from a release server on loopback that answers well or badly."""

from __future__ import annotations

import http.server
import io
import socket
import stat
import tarfile
import threading

import pytest

from lab.artifacts import KUBERNETES_COMPONENTS, Limits, WrongHash, add_pin, pins_for, resolve
from lab.artifacts.download import fetch_file, fetch_sha256
from lab.artifacts.files import Unavailable
from lab.model import NodeError
from tests.artifacts_bench import (
    BODY,
    ENOUGH,
    ETCD,
    KUBERNETES,
    SHORT,
    VERSION,
    built,
    left_in,
    must_not_build,
    quiet,
    sha,
    sources,
)


class Release(http.server.ThreadingHTTPServer):
    """A release server on loopback; ``paths`` maps a path to bytes or to a function that gets the handler."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.paths = {}
        self.asked = []
        self.stop = threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        answer = self.server.paths.get(self.path)
        if answer is None:
            self.send_error(404)
        elif callable(answer):
            answer(self)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    def log_message(self, format, *args):
        return


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    release = Release()
    thread = threading.Thread(target=release.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield release
    release.stop.set()
    release.shutdown()
    thread.join()
    release.server_close()


def publish(server):
    for name in KUBERNETES_COMPONENTS:
        path = f"/{VERSION}/bin/linux/amd64/{name}"
        server.paths[path] = name.encode() * 1000
        server.paths[f"{path}.sha256"] = (sha(name.encode() * 1000) + "\n").encode()


def online(tmp_path, server, *pins, **rest):
    options = {"download": True, "kubernetes_mirror": f"{server.url}/", "etcd_mirror": server.url} | rest
    return sources(tmp_path, *pins, **options)


KUBELET = f"/{VERSION}/bin/linux/amd64/kubelet"


def test_download_of_a_release(tmp_path, server):
    publish(server)
    found = resolve(KUBERNETES, online(tmp_path, server), quiet)
    assert (found.origin, set(found.components)) == ("download", set(KUBERNETES_COMPONENTS))
    assert found.detail == f"{server.url}/{VERSION}/bin/linux/amd64; not pinned"
    assert found.components["kubelet"].read_bytes() == b"kubelet" * 1000
    assert stat.S_IMODE(found.components["kubelet"].stat().st_mode) == 0o755
    asked = len(server.asked)
    assert resolve(KUBERNETES, online(tmp_path, server), quiet).first_origin == "download"
    assert len(server.asked) == asked


def test_pinned_download_and_pinning_a_download(tmp_path, server):
    publish(server)
    found = resolve(KUBERNETES, online(tmp_path, server), quiet)
    path = tmp_path / "releases.toml"
    assert [add_pin(path, item) for item in pins_for(KUBERNETES, found.sha256, "official")] == [True] * 5
    assert resolve(KUBERNETES, online(tmp_path, server), quiet).origin == "cache"
    (tmp_path / "cache").rename(tmp_path / "old")
    server.paths = {path: body for path, body in server.paths.items() if not path.endswith(".sha256")}
    assert resolve(KUBERNETES, online(tmp_path, server), quiet).detail.endswith("; pinned")
    (tmp_path / "cache").rename(tmp_path / "older")
    server.paths[KUBELET] = b"changed"
    server.paths[f"{KUBELET}.sha256"] = sha(b"changed").encode()
    with pytest.raises(WrongHash, match="official pin"):
        resolve(KUBERNETES, online(tmp_path, server, builder=must_not_build), quiet)


def test_downloaded_file_with_a_wrong_hash_stops(tmp_path, server):
    publish(server)
    server.paths[KUBELET] = b"evil"
    with pytest.raises(WrongHash) as caught:
        resolve(KUBERNETES, online(tmp_path, server, builder=must_not_build), quiet)
    text = str(caught.value)
    assert f"{server.url}{KUBELET}" in text
    assert sha(b"evil") in text
    assert sha(b"kubelet" * 1000) in text
    assert left_in(tmp_path) == []


def truncated(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "7000")
    handler.end_headers()
    handler.wfile.write(b"kubelet" * 10)


def hanging(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "7000")
    handler.end_headers()
    handler.wfile.write(b"kubelet")
    handler.wfile.flush()
    handler.server.stop.wait(60)


def silent(handler):
    handler.server.stop.wait(60)


def trickling_body(handler):
    handler.send_response(200)
    handler.end_headers()
    trickle(handler, b"k")


def trickling_head(handler):
    handler.wfile.write(b"HTTP/1.0 200 OK\r\nX-Long: ")
    trickle(handler, b"x")


def trickle(handler, byte):
    try:
        while not handler.server.stop.wait(0.05):
            handler.wfile.write(byte)
            handler.wfile.flush()
    except OSError:
        return


def redirect_to_self(handler):
    handler.send_response(302)
    handler.send_header("Location", handler.path)
    handler.end_headers()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "HTTP 404"),
        (lambda handler: handler.send_error(503, "busy"), "HTTP 503 busy"),
        (truncated, "ended after 70 of 7000 bytes"),
        (redirect_to_self, "HTTP 302"),
        (lambda handler: handler.wfile.write(b"no http\r\n\r\n"), "no http"),
        (lambda handler: handler.connection.shutdown(socket.SHUT_RDWR), "closed connection"),
    ],
)
def test_a_failed_transfer_is_remembered_and_the_next_source_tried(tmp_path, server, answer, reason):
    publish(server)
    server.paths[KUBELET] = answer
    with pytest.raises(NodeError, match=reason) as caught:
        resolve(KUBERNETES, online(tmp_path, server), quiet)
    assert f"download: {server.url}{KUBELET}: " in str(caught.value)
    assert left_in(tmp_path) == []
    assert resolve(KUBERNETES, online(tmp_path, server, builder=built()), quiet).origin == "build"


@pytest.mark.parametrize("answer", [hanging, silent])
def test_a_transfer_that_stands_still_is_given_up(tmp_path, server, answer):
    """The file that hangs is the first that is asked for, since it is pinned: no good one is held to the limit."""
    publish(server)
    server.paths[KUBELET] = answer
    pins = pins_for(KUBERNETES, dict.fromkeys(KUBERNETES_COMPONENTS, "0" * 64), "official")
    with pytest.raises(NodeError, match="timed out") as caught:
        resolve(KUBERNETES, online(tmp_path, server, *pins, limits=SHORT), quiet)
    assert f"download: {server.url}{KUBELET}: " in str(caught.value)
    assert left_in(tmp_path) == []
    assert resolve(KUBERNETES, online(tmp_path, server, limits=SHORT, builder=built()), quiet).origin == "build"


@pytest.mark.parametrize("answer", [trickling_body, trickling_head])
def test_the_whole_time_ends_a_transfer_that_trickles(tmp_path, server, answer):
    server.paths["/file"] = answer
    limits = Limits(connect_s=60.0, read_s=60.0, whole_s=0.5)
    with pytest.raises(Unavailable, match=r"not finished within 0\.5 s"):
        fetch_file(f"{server.url}/file", tmp_path / "file", "0" * 64, "test", limits, quiet)
    assert list(tmp_path.iterdir()) == []


def test_nobody_listens(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unavailable, match="refused"):
            fetch_sha256(f"{url}/x.sha256", ENOUGH)


@pytest.mark.parametrize("body", [b"", b"<html>login</html>", b"abc", ("0" * 63 + "\n").encode(), b"\xff\xfe" * 40])
def test_a_hash_file_that_holds_no_hash(tmp_path, server, body):
    publish(server)
    server.paths[f"{KUBELET}.sha256"] = body
    with pytest.raises(NodeError, match=r"kubelet\.sha256: (does not start with a sha256|not text)"):
        resolve(KUBERNETES, online(tmp_path, server), quiet)


@pytest.mark.parametrize("text", [f"{'AB' * 32}\n", f"{'ab' * 32}  kubelet\n", "ab" * 32])
def test_forms_of_a_hash_file(server, text):
    server.paths["/k.sha256"] = text.encode()
    assert fetch_sha256(f"{server.url}/k.sha256", ENOUGH) == "ab" * 32


def etcd_archive(content=BODY, member=f"etcd-{ETCD.version}-linux-amd64/etcd"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo(member)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def publish_etcd(server, archive):
    name = f"etcd-{ETCD.version}-linux-amd64.tar.gz"
    server.paths[f"/{ETCD.version}/{name}"] = archive
    server.paths[f"/{ETCD.version}/SHA256SUMS"] = f"{sha(b'x')}  other.zip\n{sha(archive)}  {name}\n".encode()
    return f"/{ETCD.version}/{name}"


def test_download_of_etcd(tmp_path, server):
    publish_etcd(server, etcd_archive())
    found = resolve(ETCD, online(tmp_path, server), quiet)
    assert found.components["etcd"].read_bytes() == BODY
    assert found.sha256 == {"etcd": sha(BODY)}
    files = tmp_path / "cache" / "artifacts" / ETCD.name / "files"
    assert [path.name for path in files.iterdir()] == ["etcd"]


def test_etcd_archive_with_a_wrong_hash_stops(tmp_path, server):
    path = publish_etcd(server, etcd_archive())
    server.paths[path] = etcd_archive(b"evil")
    with pytest.raises(WrongHash, match="SHA256SUMS"):
        resolve(ETCD, online(tmp_path, server, builder=must_not_build), quiet)


@pytest.mark.parametrize(
    "archive", [b"not a tar", etcd_archive(member="other/etcd"), etcd_archive()[:-60]], ids=["text", "name", "short"]
)
def test_etcd_archive_that_cannot_be_unpacked_stops(tmp_path, server, archive):
    publish_etcd(server, archive)
    with pytest.raises(NodeError, match="could be unpacked"):
        resolve(ETCD, online(tmp_path, server, builder=must_not_build), quiet)


@pytest.mark.parametrize("sums", [b"", b"0123  etcd\n", b"<html>"])
def test_etcd_sums_without_the_archive_are_a_missing_source(tmp_path, server, sums):
    publish_etcd(server, etcd_archive())
    server.paths[f"/{ETCD.version}/SHA256SUMS"] = sums
    assert resolve(ETCD, online(tmp_path, server, builder=built()), quiet).origin == "build"
