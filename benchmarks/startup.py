"""How long the program takes to say anything: help, version, completion, beside Python that does nothing.

    python benchmarks/startup.py --rounds 15

In turns, so that what else the machine does falls on all of them alike; each is a new process. Shown are the median and
the least of wall-clock seconds, CPU seconds (median), and the ratio of CPU seconds to those of ``python -c pass``.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time

LAB = [sys.executable, "-m", "lab"]
COMPLETE = "import sys; sys.argv[0] = 'lab'; from lab.cli.main import run; run()"
COMMANDS: dict[str, tuple[list[str], dict[str, str]]] = {
    "python -c pass": ([sys.executable, "-c", "pass"], {}),
    "python -c 'import typer, rich.console'": ([sys.executable, "-c", "import typer, rich.console"], {}),
    "lab --help": ([*LAB, "--help"], {}),
    "lab --version": ([*LAB, "--version"], {}),
    "lab scan --help": ([*LAB, "scan", "--help"], {}),
    "lab run --help": ([*LAB, "run", "--help"], {}),
    "completion of a verb": (
        [sys.executable, "-c", COMPLETE],
        {"_LAB_COMPLETE": "complete_bash", "COMP_WORDS": "lab su", "COMP_CWORD": "1"},
    ),
}
AIM_S = 0.3
"""For `lab --help`, wall clock, on a machine that does nothing else."""


def once(argv: list[str], more: dict[str, str]) -> tuple[float, float]:
    """Wall-clock and CPU seconds of one process and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(argv, env={**os.environ, **more}, stdout=subprocess.DEVNULL, check=True)
    wall_s = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(rounds: int) -> dict[str, list[tuple[float, float]]]:
    """All commands in turns; one round before that fills the caches of files and of bytecode."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for number in range(rounds + 1):
        for name, (argv, more) in COMMANDS.items():
            times = once(argv, more)
            if number:
                found[name].append(times)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    if rounds < 10:
        parser.error("--rounds: a median of fewer than 10 says little")
    found = measure(rounds)
    floor_s = statistics.median(cpu for _, cpu in found["python -c pass"])
    print(f"medians of {rounds} rounds; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print("| command | wall | least | CPU | CPU against python -c pass |\n|---|---|---|---|---|")
    for name, times in found.items():
        wall_s, cpu_s = (statistics.median(values) for values in zip(*times, strict=True))
        least_s = min(wall for wall, _ in times)
        print(f"| `{name}` | {wall_s:.2f} s | {least_s:.2f} s | {cpu_s:.2f} s | x{cpu_s / floor_s:.1f} |")
    help_s = statistics.median(wall for wall, _ in found["lab --help"])
    print(f"\nlab --help: {help_s:.2f} s, aim {AIM_S} s: {'reached' if help_s <= AIM_S else 'not reached here'}")


if __name__ == "__main__":
    main()
