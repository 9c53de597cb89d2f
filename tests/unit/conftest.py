"""Fixtures of many unit tests: a project with fake nodes, signals that cannot end the tests, the programs of a node."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.node_programs import cgroup_mount, imported
from tests.projects import Bench, listening, make_bench


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Bench:
    """An empty project and fakes for all that is outside of it."""
    return make_bench(tmp_path, monkeypatch, capfd)


@pytest.fixture
def signals() -> Iterator[None]:
    """See :func:`tests.projects.listening`."""
    with listening():
        yield


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The programs of node-scripts/, imported."""
    with imported(monkeypatch) as programs:
        yield programs


@pytest.fixture
def tree(scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What makes a cgroup where those programs look for them: see :func:`tests.node_programs.cgroup_mount`."""
    return cgroup_mount(scripts, tmp_path, monkeypatch)


@pytest.fixture
def patient_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's first line may take long: a try of a boot that ended before it would be one more connection."""
    monkeypatch.setattr("lab.ssh.BOOT_TRY_S", 60.0)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that sleeps, as the leader of nothing else, and is gone afterwards."""
    process = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait()
