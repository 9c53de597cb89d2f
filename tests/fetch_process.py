"""A `lab fetch` in a process of its own, in the middle of something that a stand-in for a tool does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from lab import processes
from lab.host import Deadline, wait_until
from tests.conftest import ROOT
from tests.projects import Bench

ENOUGH_S = 60.0


class FetchProcess:
    """The stand-in writes into ``told`` its child, itself and its folder when they are at work (words of one line)."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench, self.cache = bench, bench.root / "cache"
        self.told, self.errors = bench.root / "told", bench.root / "errors"
        self.temporary = bench.root / "temporary"
        for folder in (bench.root / "bin", self.temporary):
            folder.mkdir()
        monkeypatch.setenv("PATH", f"{bench.root / 'bin'}:{os.environ['PATH']}")
        monkeypatch.setenv("TMPDIR", str(self.temporary))
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        self.lab: subprocess.Popen[bytes] | None = None

    def tool(self, name: str, text: str) -> None:
        """Put a program first on PATH."""
        path = self.bench.root / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def begin(self, *argv: str) -> str:
        """Start Python with these arguments; the stand-in's folder once it is at work. The identities are kept."""
        with self.errors.open("wb") as errors:
            self.lab = subprocess.Popen([sys.executable, *argv], stderr=errors, cwd=self.bench.root)
        self.wait_for("the tool", self.told.exists)
        child, leader, folder = self.told.read_text().split()
        self.tools = [processes.identity(int(pid)) for pid in (child, leader)]
        assert all(tool is not None and tool.is_alive() for tool in self.tools)
        return folder

    def wait_for(self, what: str, reached: Callable[[], bool]) -> None:
        """Until something is so; WaitTimeout with what the lab said."""
        deadline = Deadline.after(ENOUGH_S)
        wait_until(what, lambda: (reached() or None, self.errors.read_text()), deadline, interval_s=0.05)

    def marks(self) -> Iterable[Path]:
        """Folders whose marked processes are ended after the test, whether the folders are there or not."""
        raise NotImplementedError

    def end(self) -> None:
        """End what may be left."""
        if self.lab is not None:
            self.lab.kill()
            self.lab.wait(ENOUGH_S)
        for folder in self.marks():
            processes.end_marked(folder, grace_s=0)


def fixture_of(kind: type[FetchProcess]) -> Callable[..., Iterator[FetchProcess]]:
    """A fixture that makes one of these and ends what it left."""

    @pytest.fixture
    def build(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[FetchProcess]:
        made = kind(bench, monkeypatch)
        yield made
        made.end()

    return build
