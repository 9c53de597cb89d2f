"""How long `lab summary` takes over many cells, and whether twice as many take twice as long.

Each generated cell holds copies of committed attempts (class, kernel and quota by default) under a version of its own;
raw texts are hard links, stamps and sums are written anew, so every file is read and checked as in a real folder. The
program is started as a user starts it; the least time shows what it needs, the median what the machine gave.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
CELL = "upstream-v1.36.3"
PATCHES = 500
"""Cells are spread over minor versions from 1.34 on, this many patch releases each."""


def version(number: int) -> str:
    """A version of its own for each cell."""
    return f"v1.{34 + number // PATCHES}.{number % PATCHES}"


def copy_attempt(source: Path, target: Path, to_version: str) -> None:
    """An attempt as it is, but for the version of its cell."""
    target.mkdir(parents=True)
    (target / "raw").mkdir()
    sums = []
    for path in sorted(path for path in source.rglob("*") if path.is_file() and path.name != "SHA256SUMS"):
        name = path.relative_to(source)
        copy = target / name
        if path.name == "stamp.json":
            stamp = json.loads(path.read_text())
            stamp["cell"]["version"] = to_version
            copy.write_text(json.dumps(stamp, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
        else:
            try:
                os.link(path, copy)
            except OSError:
                copy.write_bytes(path.read_bytes())
        sums.append(f"{hashlib.sha256(copy.read_bytes()).hexdigest()}  {name.as_posix()}\n")
    (target / "SHA256SUMS").write_text("".join(sums))


def generate(folder: Path, cells: int, stages: Sequence[str]) -> int:
    """Fill a results folder; number of attempts."""
    for number in range(cells):
        name = version(number)
        for stage in stages:
            newest = max((ROOT / "results" / CELL / stage).glob("[0-9]*"))
            copy_attempt(newest, folder / f"upstream-{name}" / stage / newest.name, name)
    return cells * len(stages)


def measure(folder: Path, words: Sequence[str]) -> tuple[float, float]:
    """Wall and processor time of one `lab summary` in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    argv = [sys.executable, "-m", "lab", "summary", "--results", str(folder), "--project", str(ROOT), *words]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if "wrote" not in done.stderr:
        raise SystemExit(f"lab summary ended with {done.returncode}: {done.stderr}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Sizes in turns, rounds over all of them, one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", default="500,1000,2000", help="Numbers of cells, with commas.")
    parser.add_argument("--stages", default="class,kernel,quota", help="Stages of each cell, with commas.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--html", action="store_true", help="Also write the page.")
    arguments = parser.parse_args()
    sizes = [int(word) for word in arguments.cells.split(",")]
    stages = arguments.stages.split(",")
    words = ["--html"] if arguments.html else []
    with tempfile.TemporaryDirectory() as place:
        folders = {size: Path(place) / str(size) for size in sizes}
        counts = {size: generate(folder, size, stages) for size, folder in folders.items()}
        found: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes}
        for _ in range(arguments.rounds):
            for size in sizes:
                found[size].append(measure(folders[size], words))
    rows = [
        [
            size,
            counts[size],
            f"{min(wall for wall, _ in found[size]):.2f}",
            f"{statistics.median(wall for wall, _ in found[size]):.2f}",
            f"{min(cpu for _, cpu in found[size]):.2f}",
            f"{1000 * min(cpu for _, cpu in found[size]) / size:.2f}",
        ]
        for size in sizes
    ]
    titles = ["cells", "attempts", "least wall (s)", "median wall (s)", "least CPU (s)", "CPU per cell (ms)"]
    sys.stdout.write(tabulate(rows, titles, tablefmt="github") + "\n")
    sys.stdout.write(f"load of the machine (1, 5, 15 minutes): {os.getloadavg()}, CPUs: {os.cpu_count()}\n")


if __name__ == "__main__":
    main()
