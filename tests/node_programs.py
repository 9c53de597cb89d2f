"""The programs that run on a node, as modules, and a cgroup mount of temporary folders for them to look at."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.captures_helper import ROOT

SCRIPTS = ROOT / "node-scripts"
NAMES = [path.stem for path in sorted(SCRIPTS.glob("*.py"))]
# Linux gives no process a number above 2^22 (PID_MAX_LIMIT in include/linux/threads.h).
NO_PROCESS = (1 << 22) + 1

UID = "0f02f4ae-23e2-49bd-a573-7a44a5a734f8"
ESCAPED = UID.replace("-", "_")
BURSTABLE = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED}.slice"


def late_in_a_second() -> None:
    """Return when the last fifth of a second of this machine's uptime has begun."""
    while time.clock_gettime(time.CLOCK_BOOTTIME) % 1 < 0.8:
        time.sleep(0.01)


@contextmanager
def imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """All programs, freshly imported as ``python3 FILE`` finds them: from their own folder."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in NAMES})
    for name in NAMES:
        sys.modules.pop(name, None)


def cgroup_mount(scripts: SimpleNamespace, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Let all programs take ``folder`` for the cgroup mount; returns what makes a cgroup in it.

    ``make(path, cpu_max="max 100000")`` writes the file ``cpu.max`` and gives the folder.
    """
    for module in vars(scripts).values():
        if hasattr(module, "CGROUPS"):
            monkeypatch.setattr(module, "CGROUPS", str(folder))

    def make(path: str, **files: object) -> str:
        place = folder / path
        place.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (place / name.replace("_", ".")).write_text(f"{text}\n")
        return str(place)

    return make


class Clock:
    """Time that passes by sleeping alone; stands in for the module ``time``."""

    def __init__(self) -> None:
        self.now = 50.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds

    def time(self) -> float:
        return 1_800_000_000.0 + self.now

    def process_time(self) -> float:
        return 0.0
