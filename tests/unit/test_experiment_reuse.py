"""One node for all cells of a run."""

from __future__ import annotations

import json

import pytest

from lab import experiment
from lab.distros import reuse
from lab.model import LeftBehind, NodeError
from tests.fakes import FakeHost, Reply
from tests.projects import make_bench

pytestmark = pytest.mark.usefixtures("signals")

PROBE = ("python3", "-I", "-B", "-")


def text_of(*entries):
    rows = [{"kind": "start", "program": "fingerprint", "version": 1}]
    rows += [{"kind": kind, "name": name, "value": value} for kind, name, value in entries]
    return "".join(json.dumps(row) + "\n" for row in [*rows, {"kind": "end"}])


HOSTS = ("file", "/etc/hosts", "x")
OTHER = ("file", "/etc/other", "x")


@pytest.fixture
def bench(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(reuse, "SETTLE_S", 0.0)
    return make_bench(tmp_path, monkeypatch, capfd)


def looks(bench, *texts):
    def host(name):
        made = FakeHost(name)
        made.answer(PROBE, *(Reply(stdout=text) for text in texts))
        return made

    bench.provider.make_host = host


def test_one_node_for_all(bench, monkeypatch):
    looks(bench, *[text_of(HOSTS)] * 3)
    results = experiment.run(bench.config("v1.34.4", "v1.36.3", "v1.37.2", stages=(), reuse_node=True), bench.tools())
    assert [result.problem for result in results] == [None] * 3
    names = bench.steps.names() if hasattr(bench, "steps") else bench.provider.steps.names()
    assert [n for n in names if n in ("provider.create", "provider.destroy", "distro.uninstall", "distro.install")] == [
        "provider.create", "distro.install", "distro.uninstall", "distro.install", "distro.uninstall",
        "distro.install", "provider.destroy",
    ]
    assert bench.provider.alive == {}


def test_a_difference_stops(bench):
    looks(bench, text_of(HOSTS), text_of(HOSTS, OTHER))
    results = experiment.run(bench.config("v1.34.4", "v1.36.3", "v1.37.2", stages=(), reuse_node=True), bench.tools())
    assert results[0].problem is None
    assert all(isinstance(r.problem, NodeError) and "/etc/other" in str(r.problem) for r in results[1:])
    assert bench.provider.alive == {}


def test_left_behind(bench):
    looks(bench, text_of(HOSTS))
    bench.provider.leave_behind()
    [result] = experiment.run(bench.config("v1.34.4", stages=(), reuse_node=True), bench.tools())
    assert isinstance(result.problem, LeftBehind)
