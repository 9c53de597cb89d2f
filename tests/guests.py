"""What the tests with real guests share: running the program as a user would, and looking for what it left."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab import processes
from lab.cli.shared import cache_folder
from lab.model import EXIT_NODE
from lab.providers import folders

ROOT = Path(__file__).resolve().parent.parent
EMULATION_FLAW = "the guest is gone, its kernel panicked (Oops: int3"
"""See lab/providers/qemu/image.py (STATIC_KEYS): what is left of it says nothing about what is tested."""


@dataclass(frozen=True)
class Lab:
    """The program in a process of its own, with a results folder of its own and the user's cache."""

    results: Path
    artifacts: Path

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "lab", *words]

    def run_words(self, version: str, *words: str) -> tuple[str, ...]:
        return (
            "run", "--versions", version, "--quick", "--no-download", "--no-build",
            "--artifacts", str(self.artifacts), "--results", str(self.results), *words,
        )  # fmt: skip

    def call(
        self, *words: str, timeout_s: float, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**os.environ, **(env or {})},
            check=False,
        )

    def measure(self, *words: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """A run; it goes on, as its failure says, when an emulated guest's kernel met QEMU's flaw. Once, and told."""
        done = self.call(*words, timeout_s=timeout_s)
        if done.returncode != EXIT_NODE or EMULATION_FLAW not in done.stderr:
            return done
        (following,) = re.findall("next: lab (run --resume .*)", done.stderr)
        print(f"GUEST PANICKED under software emulation, goes on with: lab {following}\n{done.stderr}")
        as_before = [word for word in words if word == "--json"]
        return self.call(*shlex.split(following), *as_before, timeout_s=timeout_s)

    def start(self, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(*words),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(env or {})},
        )


def guests_of(owner_pid: int) -> list[folders.NodeFolder]:
    """Guests that a process owns."""
    return [guest for guest in folders.read(cache_folder()) if guest.owner.pid == owner_pid]


def wait_for(what: str, probe: Callable[[], object], seconds: float) -> None:
    """Wait until ``probe`` gives something true; fail the test otherwise."""
    end = time.monotonic() + seconds
    while not probe():
        assert time.monotonic() < end, f"{what} did not happen within {seconds} s"
        time.sleep(0.2)


def assert_nothing_left(guest: folders.NodeFolder) -> None:
    """Neither folder nor process of a guest is there any more."""
    assert not guest.folder.exists()
    assert processes.marked(guest.folder) == []


def leftovers() -> list[str]:
    """What `lab gc` would remove."""
    done = subprocess.run(
        [sys.executable, "-m", "lab", "gc", "--dry-run", "--json"],
        cwd=ROOT, capture_output=True, text=True, timeout=180, check=True,
    )  # fmt: skip
    return list(json.loads(done.stdout)["removed"])
