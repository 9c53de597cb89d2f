"""Artifacts from every source, and what happens to a file that is not the right one."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import lzma
import multiprocessing
import os
import socket
import stat
import tarfile
import threading
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.artifacts import (
    KUBERNETES_COMPONENTS,
    Limits,
    Pin,
    Request,
    Sources,
    WrongHash,
    add_pin,
    describe_origin,
    load_releases,
    pins_for,
    resolve,
    resolve_upstream,
)
from lab.artifacts.download import fetch_file, fetch_sha256
from lab.artifacts.files import Unavailable, parse_sums
from lab.model import EXIT_NODE, EXIT_USAGE, NodeError, UsageError

VERSION = "v1.36.9"
KUBERNETES = Request(kind="kubernetes", version=VERSION)
ETCD = Request(kind="etcd", version="v3.6.99")
NAME = f"hyperkube-{VERSION}-linux-amd64"
BODY = b"#!/bin/sh\necho Kubernetes\n" * 50
SHORT = Limits(connect_s=5.0, read_s=0.3, whole_s=30.0)


def sha(content):
    return hashlib.sha256(content).hexdigest()


def pin(component="hyperkube", content=BODY, origin="module-build", kind="kubernetes", version=VERSION):
    return Pin(kind=kind, version=version, component=component, arch="linux-amd64", sha256=sha(content), origin=origin)


def releases(tmp_path, *pins):
    path = tmp_path / "releases.toml"
    if not path.exists():
        path.write_text(f'[upstream]\nknown = ["{VERSION}"]\netcd = "{ETCD.version}"\n')
    for item in pins:
        add_pin(path, item)
    return load_releases(path)


def sources(tmp_path, *pins, **rest):
    options = {"download": False, "limits": SHORT, "lock_timeout_s": 60.0} | rest
    return Sources(cache=tmp_path / "cache", releases=releases(tmp_path, *pins), **options)


def quiet(_):
    return None


@pytest.fixture
def folder(tmp_path):
    result = tmp_path / "given"
    result.mkdir()
    return result


def give(folder, *, packed=True, sums=True, content=BODY, name=NAME):
    """One executable in an artifacts folder, with its lines in SHA256SUMS."""
    files = {f"{name}.xz": lzma.compress(content)} if packed else {name: content}
    for file_name, data in files.items():
        (folder / file_name).write_bytes(data)
    if sums:
        lines = files | {name: content}
        with (folder / "SHA256SUMS").open("a") as stream:
            stream.writelines(f"{sha(data)}  {file_name}\n" for file_name, data in lines.items())


def left_in(tmp_path):
    return sorted(p.name for p in (tmp_path / "cache" / "artifacts").iterdir() if not p.name.endswith(".lock"))


# ----- artifacts folder and cache -----


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("sums", [True, False])
def test_multi_call_binary_from_a_folder_then_from_the_cache(tmp_path, folder, packed, sums):
    give(folder, packed=packed, sums=sums)
    options = sources(tmp_path, pin(), folder=folder)
    first = resolve(KUBERNETES, options, quiet)
    assert (first.origin, first.first_origin) == ("artifacts", "artifacts")
    assert first.detail.endswith("; pinned")
    assert set(first.components) == set(KUBERNETES_COMPONENTS)
    for name, path in first.components.items():
        assert path.name == name
        assert path.is_absolute()
        assert path.is_symlink()
        assert path.read_bytes() == BODY
        assert os.access(path, os.X_OK)
        assert first.sha256[name] == sha(BODY)
    assert left_in(tmp_path) == [KUBERNETES.name]
    lines = []
    again = resolve(KUBERNETES, options, lines.append)
    assert (again.origin, again.first_origin) == ("cache", "artifacts")
    assert (again.components, again.sha256, again.detail) == (first.components, first.sha256, first.detail)
    assert any("was not consulted" in line for line in lines)
    for entry in folder.iterdir():
        entry.unlink()
    assert resolve(KUBERNETES, sources(tmp_path), quiet).origin == "cache"


def test_record_of_a_cache_entry(tmp_path, folder):
    give(folder)
    resolve(KUBERNETES, sources(tmp_path, folder=folder), quiet)
    record = json.loads((tmp_path / "cache" / "artifacts" / KUBERNETES.name / "record.json").read_text())
    assert record["sha256"] == {"hyperkube": sha(BODY)}
    assert record["components"] == dict.fromkeys(KUBERNETES_COMPONENTS, "hyperkube")
    assert (record["first_origin"], record["pin_origin"]) == ("artifacts", "module-build")
    assert record["detail"].endswith("not pinned")


def test_separate_official_binaries_in_a_version_folder(tmp_path, folder):
    (folder / VERSION).mkdir()
    contents = {name: name.encode() for name in KUBERNETES_COMPONENTS}
    for name, content in contents.items():
        (folder / VERSION / name).write_bytes(content)
    found = resolve(KUBERNETES, sources(tmp_path, folder=folder), quiet)
    assert found.sha256 == {name: sha(content) for name, content in contents.items()}
    assert not any(path.is_symlink() for path in found.components.values())
    (folder / VERSION / "kubectl").unlink()
    (tmp_path / "cache").rename(tmp_path / "old")
    with pytest.raises(NodeError, match=f"{VERSION}/kubectl"):
        resolve(KUBERNETES, sources(tmp_path, folder=folder), quiet)


def test_a_sums_file_must_list_separate_binaries_too(tmp_path, folder):
    (folder / VERSION).mkdir()
    for name in KUBERNETES_COMPONENTS:
        (folder / VERSION / name).write_bytes(name.encode())
    lines = [f"{sha(name.encode())}  {VERSION}/{name}\n" for name in KUBERNETES_COMPONENTS]
    (folder / "SHA256SUMS").write_text("".join(lines[:-1]))
    with pytest.raises(NodeError, match=r"has no line for v1\.36\.9/kubectl"):
        resolve(KUBERNETES, sources(tmp_path, folder=folder), quiet)
    (folder / "SHA256SUMS").write_text("".join(lines))
    assert resolve(KUBERNETES, sources(tmp_path, folder=folder), quiet).origin == "artifacts"


def built(content=BODY):
    def builder(request, output, progress):
        output.write_bytes(content)
        return "built here"

    return builder


def must_not_build(request, output, progress):
    pytest.fail("a wrong hash must not lead to another source")


@pytest.mark.parametrize("suffix", [".xz", ""])
def test_missing_sums_entry_stops(tmp_path, folder, suffix):
    give(folder)
    path = folder / "SHA256SUMS"
    path.write_text("".join(x for x in path.read_text().splitlines(True) if not x.endswith(f"{NAME}{suffix}\n")))
    with pytest.raises(NodeError, match=f"has no line for {NAME}{suffix};") as caught:
        resolve(KUBERNETES, sources(tmp_path, folder=folder, builder=must_not_build), quiet)
    assert not isinstance(caught.value, Unavailable)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(("suffix", "content"), [(".xz", lzma.compress(BODY)), ("", BODY)])
def test_wrong_sums_entry_stops_and_shows_both_hashes(tmp_path, folder, suffix, content):
    give(folder)
    path = folder / "SHA256SUMS"
    wrong = "0" * 64
    path.write_text(path.read_text().replace(f"{sha(content)}  {NAME}{suffix}\n", f"{wrong}  {NAME}{suffix}\n"))
    with pytest.raises(WrongHash) as caught:
        resolve(KUBERNETES, sources(tmp_path, folder=folder, builder=must_not_build), quiet)
    text = str(caught.value)
    assert (wrong in text, sha(content) in text, f"{folder / NAME}.xz" in text) == (True, True, True)
    assert caught.value.exit_code == EXIT_NODE
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("sums", [True, False])
def test_altered_xz_stops(tmp_path, folder, sums):
    give(folder, sums=sums)
    path = folder / f"{NAME}.xz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(NodeError, match="sha256 is" if sums else "not a whole .xz file"):
        resolve(KUBERNETES, sources(tmp_path, folder=folder, builder=must_not_build), quiet)
    assert left_in(tmp_path) == []


def test_truncated_xz_stops(tmp_path, folder):
    give(folder, sums=False)
    path = folder / f"{NAME}.xz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(NodeError, match=r"not a whole \.xz file"):
        resolve(KUBERNETES, sources(tmp_path, folder=folder, builder=must_not_build), quiet)


def test_folder_file_against_its_pin(tmp_path, folder):
    give(folder)
    with pytest.raises(WrongHash, match=r"module-build pin for kubernetes v1\.36\.9") as caught:
        resolve(KUBERNETES, sources(tmp_path, pin(content=b"else"), folder=folder, builder=must_not_build), quiet)
    assert (caught.value.expected, caught.value.actual) == (sha(b"else"), sha(BODY))


def entry(tmp_path):
    return tmp_path / "cache" / "artifacts" / KUBERNETES.name


def test_altered_cache_entry_stops(tmp_path, folder):
    give(folder)
    resolve(KUBERNETES, sources(tmp_path, folder=folder), quiet)
    path = entry(tmp_path) / "files" / "hyperkube"
    path.write_bytes(BODY + b"x")
    with pytest.raises(WrongHash) as caught:
        resolve(KUBERNETES, sources(tmp_path, folder=folder, builder=must_not_build), quiet)
    assert str(path) in str(caught.value)
    assert f"remove {entry(tmp_path)}" in str(caught.value)
    assert (caught.value.expected, caught.value.actual) == (sha(BODY), sha(BODY + b"x"))


def test_cached_folder_file_is_held_to_a_later_pin_but_an_own_build_is_not(tmp_path, folder):
    give(folder)
    resolve(KUBERNETES, sources(tmp_path, folder=folder), quiet)
    with pytest.raises(WrongHash, match="module-build pin"):
        resolve(KUBERNETES, sources(tmp_path, pin(content=b"else")), quiet)
    (tmp_path / "cache").rename(tmp_path / "old")
    options = sources(tmp_path, builder=built())
    assert resolve(KUBERNETES, options, quiet).origin == "build"
    again = resolve(KUBERNETES, options, quiet)
    assert (again.origin, again.first_origin, again.detail) == ("cache", "build", "built here")


def swap_link(root):
    (root / "files" / "kubelet").unlink()
    (root / "files" / "kubelet").symlink_to("/bin/true")


def fake_record(**changes):
    def change(root):
        path = root / "record.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


@pytest.mark.parametrize(
    "damage",
    [
        swap_link,
        lambda root: (root / "files" / "kubelet").unlink(),
        lambda root: (root / "files" / "hyperkube").unlink(),
        lambda root: (root / "files" / "hyperkube").chmod(0o644),
        lambda root: (root / "record.json").unlink(),
        lambda root: (root / "record.json").write_text("{"),
        lambda root: (root / "record.json").write_text("[]"),
        fake_record(version="v1.36.8"),
        fake_record(sha256={}),
        fake_record(sha256={"../../x": "0" * 64}, components=dict.fromkeys(KUBERNETES_COMPONENTS, "../../x")),
        fake_record(components={"kubelet": "hyperkube"}),
        fake_record(detail=None),
        fake_record(pin_origin=3),
    ],
)
def test_damaged_cache_entry_is_an_error_never_another_source(tmp_path, folder, damage):
    give(folder)
    resolve(KUBERNETES, sources(tmp_path, folder=folder), quiet)
    damage(entry(tmp_path))
    with pytest.raises(NodeError, match=r"cache|remove|cannot be read"):
        resolve(KUBERNETES, sources(tmp_path, folder=folder, builder=must_not_build), quiet)


def test_left_over_staging_of_a_killed_run_goes(tmp_path, folder):
    give(folder)
    dead = tmp_path / "cache" / "artifacts" / f".{KUBERNETES.name}-dead"
    (dead / "files").mkdir(parents=True)
    resolve(KUBERNETES, sources(tmp_path, folder=folder), quiet)
    assert left_in(tmp_path) == [KUBERNETES.name]


def test_nothing_works_lists_every_source_and_what_to_do(tmp_path, folder):
    def broken(request, output, progress):
        raise NodeError("no Go 1.26")

    with pytest.raises(NodeError) as caught:
        resolve(KUBERNETES, sources(tmp_path, folder=folder, builder=broken), quiet)
    text = str(caught.value)
    for part in ("cache: ", f"artifacts folder: {folder}", "download: downloads are switched off", "build: no Go 1.26"):
        assert part in text
    assert "--artifacts" in text.splitlines()[-1]
    assert left_in(tmp_path) == []


def test_a_builder_that_writes_nothing_is_an_error(tmp_path):
    with pytest.raises(NodeError, match="without writing hyperkube"):
        resolve(KUBERNETES, sources(tmp_path, builder=lambda request, output, progress: "done"), quiet)


def test_an_interrupted_build_leaves_no_entry(tmp_path):
    def interrupted(request, output, progress):
        output.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve(KUBERNETES, sources(tmp_path, builder=interrupted), quiet)
    assert left_in(tmp_path) == []
    assert resolve(KUBERNETES, sources(tmp_path, builder=built()), quiet).origin == "build"


# ----- download -----


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
        (hanging, "timed out"),
        (silent, "timed out"),
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


@pytest.mark.parametrize("answer", [trickling_body, trickling_head])
def test_the_whole_time_ends_a_transfer_that_trickles(tmp_path, server, answer):
    server.paths["/file"] = answer
    limits = Limits(connect_s=5.0, read_s=5.0, whole_s=0.5)
    with pytest.raises(Unavailable, match=r"not finished within 0\.5 s"):
        fetch_file(f"{server.url}/file", tmp_path / "file", "0" * 64, "test", limits, quiet)
    assert list(tmp_path.iterdir()) == []


def test_nobody_listens(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unavailable, match="refused"):
            fetch_sha256(f"{url}/x.sha256", SHORT)


@pytest.mark.parametrize("body", [b"", b"<html>login</html>", b"abc", ("0" * 63 + "\n").encode(), b"\xff\xfe" * 40])
def test_a_hash_file_that_holds_no_hash(tmp_path, server, body):
    publish(server)
    server.paths[f"{KUBELET}.sha256"] = body
    with pytest.raises(NodeError, match=r"kubelet\.sha256: (does not start with a sha256|not text)"):
        resolve(KUBERNETES, online(tmp_path, server), quiet)


@pytest.mark.parametrize("text", [f"{'AB' * 32}\n", f"{'ab' * 32}  kubelet\n", "ab" * 32])
def test_forms_of_a_hash_file(server, text):
    server.paths["/k.sha256"] = text.encode()
    assert fetch_sha256(f"{server.url}/k.sha256", SHORT) == "ab" * 32


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


def test_upstream_joins_both(tmp_path, folder):
    give(folder)
    options = sources(tmp_path, folder=folder, builder=built(b"etcd"))
    found = resolve_upstream(VERSION, options, quiet)
    assert set(found.components) == {*KUBERNETES_COMPONENTS, "etcd"}
    assert found.sha256["etcd"] == sha(b"etcd")
    assert found.origin == "kubernetes artifacts, etcd build"
    again = resolve_upstream(VERSION, options, quiet)
    assert (again.origin, again.first_origin) == ("cache", found.origin)
    assert describe_origin(again).startswith("cache (first: kubernetes artifacts, etcd build): kubernetes v1.36.9: ")


# ----- two runs at once -----


def _one_run(root, number, results):
    def builder(request, output, progress):
        with (root / "builds").open("a") as stream:
            stream.write("one\n")
        output.write_bytes(BODY)
        return f"by {number}"

    found = resolve(KUBERNETES, sources(root, builder=builder), quiet)
    results.put((found.origin, found.detail, found.sha256["kubelet"]))


def test_two_processes_build_once(tmp_path):
    releases(tmp_path)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    runs = [context.Process(target=_one_run, args=(tmp_path, number, results)) for number in range(2)]
    for process in runs:
        process.start()
    answers = sorted(results.get(timeout=60) for _ in runs)
    for process in runs:
        process.join(60)
        assert process.exitcode == 0
    assert (tmp_path / "builds").read_text() == "one\n"
    assert [origin for origin, _, _ in answers] == ["build", "cache"]
    assert len({(detail, digest) for _, detail, digest in answers}) == 1


def test_a_lock_that_never_comes_free_is_an_error(tmp_path):
    inside = []

    def builder(request, output, progress):
        with pytest.raises(NodeError, match=r"held by another run for over 0\.1 s"):
            resolve(KUBERNETES, sources(tmp_path, builder=must_not_build, lock_timeout_s=0.1), inside.append)
        output.write_bytes(BODY)
        return "built"

    assert resolve(KUBERNETES, sources(tmp_path, builder=builder), quiet).origin == "build"
    assert inside == ["kubernetes v1.36.9: another run is preparing it; waiting"]


# ----- requests, sources, pins -----


@pytest.mark.parametrize(
    ("kind", "version", "message"),
    [
        ("kubernetes", "v1.33.99", "the oldest is v1.34.0"),
        ("kubernetes", "1.36.3", "not of the form"),
        ("kubernetes", "v1.36", "not of the form"),
        ("kubernetes", "v1.36.3+k3s1", "belongs to k3s"),
        ("kubernetes", "v1.36.3/../..", "not of the form"),
        ("etcd", "v1.36.3", "not of the form"),
        ("etcd", "3.6.16", "not of the form"),
        ("etcd", "v3.6.16\n", "not of the form"),
        ("k3s", "v1.36.3", "unknown"),
    ],
)
def test_bad_requests(kind, version, message):
    with pytest.raises(UsageError, match=message) as caught:
        Request(kind=kind, version=version)
    assert caught.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("version", ["v1.34.0", "v1.99.0"])
def test_versions_from_1_34_on_are_taken(version):
    assert Request(kind="kubernetes", version=version).name == f"kubernetes-{version}-linux-amd64"


def test_sources_from_the_environment(tmp_path, folder):
    known = releases(tmp_path)
    environ = {"LAB_ARTIFACTS": str(folder), "LAB_KUBERNETES_MIRROR": "http://mirror.example/k"}
    found = Sources.from_environment(environ, cache=tmp_path, releases=known)
    assert (found.folder, found.kubernetes_mirror) == (folder, "http://mirror.example/k")
    assert found.etcd_mirror.startswith("https://")
    given = Sources.from_environment(environ, cache=tmp_path, releases=known, folder=tmp_path)
    assert given.folder == tmp_path
    assert Sources.from_environment({"LAB_ARTIFACTS": ""}, cache=tmp_path, releases=known).folder is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"LAB_ARTIFACTS": "/nowhere/at/all"}, "no such folder"),
        ({"LAB_KUBERNETES_MIRROR": "ftp://mirror.example"}, "not a URL"),
        ({"LAB_ETCD_MIRROR": "mirror.example"}, "not a URL"),
    ],
)
def test_bad_sources(tmp_path, environ, message):
    with pytest.raises(UsageError, match=message):
        Sources.from_environment(environ, cache=tmp_path, releases=releases(tmp_path))


def test_packaged_releases():
    known = load_releases()
    assert known.known == ("v1.34.4", "v1.35.4", "v1.36.3", "v1.37.2")
    for version in known.known:
        assert known.find(Request(kind="kubernetes", version=version), "hyperkube", "module-build") is not None
    etcd = known.find(Request(kind="etcd", version=known.etcd), "etcd", "module-build")
    assert etcd is not None
    assert etcd.sha256 == "09a599aa450e0164efc706e7bd5802c4d276a6c8a6798fdf3a858a52058b6eef"
    assert known.find(Request(kind="etcd", version=known.etcd), "etcd", "official") is None


def test_adding_pins(tmp_path):
    first, other = pin(), pin(origin="official")
    assert releases(tmp_path, first).pins == (first,)
    path = tmp_path / "releases.toml"
    path.chmod(0o640)
    text = path.read_text()
    assert add_pin(path, first) is False
    assert path.read_text() == text
    assert add_pin(path, other) is True
    assert path.read_text().startswith(text)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert load_releases(path).pins == (first, other)
    with pytest.raises(UsageError) as caught:
        add_pin(path, pin(content=b"changed"))
    assert sha(BODY) in str(caught.value)
    assert sha(b"changed") in str(caught.value)
    assert load_releases(path).pins == (first, other)
    assert [item.name for item in tmp_path.iterdir()] == ["releases.toml"]


def test_adding_a_pin_to_a_file_without_a_last_line_end(tmp_path):
    path = tmp_path / "releases.toml"
    path.write_text('[upstream]\nknown = []\netcd = "v3.6.99"')
    add_pin(path, pin())
    assert load_releases(path).pins == (pin(),)


@given(
    st.builds(
        Pin,
        kind=st.sampled_from(["kubernetes", "etcd"]),
        version=st.from_regex(r"v[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}", fullmatch=True),
        component=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,20}", fullmatch=True),
        arch=st.just("linux-amd64"),
        sha256=st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
        origin=st.sampled_from(["module-build", "official"]),
    )
)
def test_pin_written_is_pin_read(value):
    assert Pin(**tomllib.loads(value.as_toml())["pin"][0]) == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sha256", "0" * 63),
        ("sha256", "A" * 64),
        ("sha256", 3),
        ("sha256", "0" * 64 + "\n"),
        ("origin", "cache"),
        ("component", "a/b"),
        ("component", 'a"b'),
        ("component", "a\n"),
        ("version", ""),
        ("kind", None),
    ],
)
def test_malformed_pins(field, value):
    good = {
        "kind": "kubernetes",
        "version": VERSION,
        "component": "kubelet",
        "arch": "linux-amd64",
        "sha256": "0" * 64,
        "origin": "official",
    }
    with pytest.raises(UsageError, match=field):
        Pin(**(good | {field: value}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = ", "cannot be read"),
        ("", r"\[upstream\]"),
        ('[upstream]\nknown = "v1.36.3"\netcd = "v3.6.16"\n', "known"),
        ('[upstream]\nknown = ["v1.2.3"]\netcd = "v3.6.16"\n', "too old"),
        ("[upstream]\nknown = []\n", "None"),
        ('pin = [3]\n[upstream]\nknown = []\netcd = "v3.6.16"\n', "needs exactly"),
        ('[upstream]\nknown = []\netcd = "v3.6.16"\n[[pin]]\nkind = "etcd"\n', "needs exactly"),
        ('[upstream]\nknown = []\netcd = "v3.6.16"\n' + pin().as_toml() * 2, "two pins"),
    ],
)
def test_malformed_releases(tmp_path, text, message):
    path = tmp_path / "releases.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        load_releases(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abc  file\n", "abc  file"),
        (f"{'0' * 64}  f\n{'1' * 64}  f\n", "two different hashes"),
        ("0" * 64, "not a line"),
    ],
)
def test_malformed_sums(text, message):
    with pytest.raises(NodeError, match=message):
        parse_sums(text, "SHA256SUMS")


def test_forms_of_sums():
    text = f"{'AB' * 32}  ./a\n\n{'01' * 32} *b c\n{'01' * 32}  b c\n"
    assert parse_sums(text, "x") == {"a": "ab" * 32, "b c": "01" * 32}
