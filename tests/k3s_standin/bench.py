"""`lab run --distro k3s` in a process of its own, with a cache of its own and a mirror of the stand-in's releases."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.k3s_standin.mirror import Mirror

ROOT = Path(__file__).resolve().parent.parent.parent
MAKES_BUSYBOX = "busybox-linux-amd64"
"""Its name in a folder given with ``--artifacts``."""


@dataclass(frozen=True)
class Ended:
    """One run that has ended: its exit code, both outputs, and how long it took in seconds."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def error(self) -> str:
        """What it says went wrong: one error, and never a traceback."""
        assert "Traceback" not in self.err, self.err
        blocks = self.err.split("\nerror: ")
        assert len(blocks) == 2, self.err
        return blocks[1].partition("\nhelp: ")[0]


@dataclass(frozen=True)
class Bench:
    """``folder`` takes cache, results and outputs; a stand-in must never come into the user's own cache."""

    folder: Path
    mirror: Mirror
    host: tuple[str, ...]

    @property
    def results(self) -> Path:
        """Where the runs store what they measured."""
        return self.folder / "results"

    def give_busybox(self, source: Path) -> None:
        """What the pods' image is made of: not every machine has a static one of its own."""
        place = self.folder / "artifacts"
        place.mkdir(exist_ok=True)
        (place / MAKES_BUSYBOX).symlink_to(source)

    def run(self, versions: str, *words: str, timeout_s: float) -> Ended:
        """One run on the host; its messages are in ``folder`` while it goes on."""
        place = self.folder / "artifacts"
        place.mkdir(exist_ok=True)
        argv = [
            sys.executable, "-m", "lab", "run", "--distro", "k3s", "--versions", versions, "--quick", "--json",
            "--no-build", "--artifacts", str(place), "--results", str(self.results), *self.host, *words,
        ]  # fmt: skip
        environment = {
            **os.environ, "LAB_CACHE": str(self.folder / "cache"), "LAB_K3S_MIRROR": self.mirror.url,
            "NO_COLOR": "1",
        }  # fmt: skip
        start = time.monotonic()
        with (self.folder / f"run-{time.time_ns()}.txt").open("w+") as said:
            said.write("\n")
            said.flush()
            done = subprocess.run(
                argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=said, text=True, env=environment, timeout=timeout_s,
                check=False,
            )  # fmt: skip
            said.seek(0)
            return Ended(done.returncode, done.stdout, said.read(), time.monotonic() - start)
