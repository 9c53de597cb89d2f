"""What `lab fetch --pin` writes, from releases of containerd and runc on loopback."""

from __future__ import annotations

import shutil

import pytest

from lab import artifacts
from lab.cli import fetch, shared
from lab.providers.qemu import image
from tests.artifacts_bench import sha
from tests.projects import make_bench
from tests.unit.test_artifacts_download import server  # noqa: F401 - a fixture
from tests.unit.test_artifacts_runtime import PROGRAMS, STATIC, archive

ETCD = "v3.6.16"


@pytest.fixture
def bench(tmp_path, monkeypatch, capfd):
    return make_bench(tmp_path, monkeypatch, capfd)


@pytest.fixture
def binaries(bench):
    """A folder with stand-ins for what is not pinned here."""
    folder = bench.root / "binaries"
    folder.mkdir()
    for name in ("hyperkube-v1.36.3", f"etcd-{ETCD}"):
        (folder / f"{name}-linux-amd64").write_bytes(name.encode())
    (folder / "busybox-linux-amd64").write_bytes(STATIC)
    return folder


@pytest.fixture
def releases(bench, server, monkeypatch):  # noqa: F811
    path = bench.root / "releases.toml"
    runtime = '[runtime]\ncontainerd = "v2.1.99"\nrunc = "v1.3.99"\n'
    path.write_text(f'[upstream]\nknown = ["v1.36.3"]\netcd = "{ETCD}"\n{runtime}')
    monkeypatch.setattr(image, "ensure", lambda cache, progress: None)
    monkeypatch.setattr(fetch, "DEFAULT_PATH", path)
    for module in (shared, fetch):
        monkeypatch.setattr(module, "load_releases", lambda: artifacts.load_releases(path))
    for kind in ("CONTAINERD", "RUNC"):
        monkeypatch.setenv(f"LAB_{kind}_MIRROR", server.url)
    return path


def publish(server, runc):  # noqa: F811
    packed, name = archive(PROGRAMS), "containerd-2.1.99-linux-amd64.tar.gz"
    server.paths |= {
        f"/v2.1.99/{name}": packed,
        f"/v2.1.99/{name}.sha256sum": f"{sha(packed)}  {name}\n".encode(),
        "/v1.3.99/runc.amd64": runc,
        "/v1.3.99/runc.sha256sum": f"{sha(runc)}  runc.amd64\n".encode(),
    }


def fetched(bench, binaries, *words):
    return bench.lab("fetch", "v1.36.3", "--artifacts", str(binaries), "--no-build", *words)


def test_containerd_and_runc_are_pinned_with_the_rest(bench, binaries, releases, server):  # noqa: F811
    publish(server, b"runc")
    ended = fetched(bench, binaries, "--pin")
    assert ended.code == 0, ended.err
    pins = {pin.component: (pin.sha256, pin.origin) for pin in artifacts.load_releases(releases).pins}
    assert pins == {name: (sha(content), "official") for name, content in {**PROGRAMS, "runc": b"runc"}.items()}
    again = fetched(bench, binaries, "--pin")
    assert again.err.count("pinned already") == 4


def test_a_release_that_changed_is_an_error_that_shows_both_hashes(bench, binaries, releases, server):  # noqa: F811
    publish(server, b"runc")
    assert fetched(bench, binaries, "--pin").code == 0
    before = releases.read_text()
    shutil.rmtree(bench.root / "cache")
    publish(server, b"another")
    for words in (["--pin"], ["--runtime"]):
        ended = fetched(bench, binaries, *words)
        assert ended.code == 5
        assert sha(b"runc") in ended.error
        assert sha(b"another") in ended.error
        assert ended.err.endswith("help: docs/errors.md#wrong-sha256\n")
    assert releases.read_text() == before
