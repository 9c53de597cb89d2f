"""What `lab run --distro k3s` says when a release cannot be had: one clear error, before any machine is touched."""

from __future__ import annotations

import socket

import pytest

from lab.model import EXIT_NODE
from lab.ssh_keys import make_key_pair
from tests.cloud_processes import closed_port
from tests.k3s_standin import builder
from tests.k3s_standin.bench import Bench
from tests.k3s_standin.mirror import Fault, Mirror

TAG = "v1.36.3+k3s1"
PROGRAM, SUMS = f"{TAG}/k3s", f"{TAG}/{builder.SUMS}"


@pytest.fixture
def mirror(tmp_path):
    builder.publish(tmp_path / "mirror", TAG, builder.program(TAG, {}))
    with Mirror(tmp_path / "mirror") as server:
        yield server


@pytest.fixture
def bench(tmp_path, mirror):
    """A host whose key is known, and which nobody may ask for anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        known_hosts = tmp_path / "known_hosts"
        known_hosts.write_text(f"[127.0.0.1]:{port} {make_key_pair('host')[1]}")
        identity = tmp_path / "identity"
        identity.touch(mode=0o600)
        identity.write_text(make_key_pair("user")[0])
        host = f"root@127.0.0.1:{port}"
        words = ("--host", host, "--identity", str(identity), "--known-hosts", str(known_hosts))
        yield Bench(tmp_path, mirror, words)
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize(
    ("fault", "place", "said", "asked"),
    [
        (Fault.ALTERED, PROGRAM, "/k3s: sha256 is ", [SUMS, PROGRAM]),
        (Fault.TRUNCATED, PROGRAM, "ended after ", [SUMS, PROGRAM]),
        (Fault.GONE, PROGRAM, "HTTP 404", [SUMS, PROGRAM]),
        (Fault.GONE, SUMS, "HTTP 404", [SUMS]),
        (Fault.UNLISTED, SUMS, "has no line for k3s", [SUMS]),
    ],
)
def test_a_faulty_release_is_one_error_before_any_machine_is_touched(bench, mirror, fault, place, said, asked):
    mirror.faults = {place: fault}
    ended = bench.run("v1.36.3", "--stages", "class", timeout_s=120)
    assert ended.code == EXIT_NODE
    assert said in ended.error
    assert TAG in ended.error
    assert ended.out == ""
    assert mirror.asked == [f"/{path}" for path in asked]
    # Neither a result nor a half file that a later run would take for a whole one.
    assert not bench.results.exists()
    assert [path for path in (bench.folder / "cache").rglob("k3s*") if path.is_file() and path.suffix != ".lock"] == []


def test_a_mirror_that_is_not_there_is_one_error(bench, monkeypatch):
    with closed_port() as port:
        monkeypatch.setattr(Mirror, "url", f"http://127.0.0.1:{port}")
        ended = bench.run("v1.36.3", "--stages", "class", timeout_s=120)
    assert ended.code == EXIT_NODE
    assert "Connection refused" in ended.error
    assert "LAB_K3S_MIRROR" in ended.error


def test_a_gate_that_the_release_does_not_know_is_refused_before_anything_is_fetched(bench, mirror):
    ended = bench.run("v1.36.3", "--stages", "class", "--gate", "NoSuchGate=false", timeout_s=120)
    assert ended.code == 2
    assert "k3s v1.36.3 does not know it" in ended.error
    assert mirror.asked == []


def test_nor_is_another_release_of_the_same_run(bench, mirror):
    words = ("--stages", "class", "--gate-leg", "v1.37.2:NoSuchGate=false")
    ended = bench.run("v1.36.3", *words, timeout_s=120)
    assert ended.code == 2
    assert "k3s v1.37.2 does not know it" in ended.error
    assert mirror.asked == []
