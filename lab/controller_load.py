"""What the controller did during a window: control plane, other work, and how long virtual CPUs had to wait.

A local guest shares its cores with the lab and the control plane. ``wait_ns`` of /proc/PID/task/TID/schedstat is the
time a thread was runnable and did not run (Documentation/scheduler/sched-stats.rst), in nanoseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.distros.contract import Cluster

INTERVAL_S = 1.0


def snapshot(cluster: Cluster) -> dict[str, Any]:
    """Counters of one moment: wall clock, CPU seconds by control-plane process, vCPU threads, the CPU line."""
    return {
        "wall": time.time(),
        "control_plane_s": dict(cluster.own_cpu_s()),
        "vcpus": {name: _schedstat(tid) for tid, name in cluster.node.cpu_threads().items()},
        "lab_s": time.process_time(),
        "stat": Path("/proc/stat").read_text().split("\n", 1)[0],
        "loadavg": Path("/proc/loadavg").read_text().strip(),
    }


def _schedstat(tid: int) -> dict[str, int] | None:
    try:
        run_ns, wait_ns, _ = Path(f"/proc/{tid}/schedstat").read_text().split()
    except (OSError, ValueError):
        return None
    return {"run_ns": int(run_ns), "wait_ns": int(wait_ns)}


@contextmanager
def recording(cluster: Cluster, into: list[dict[str, Any]]) -> Iterator[None]:
    """Take a snapshot every second while the block runs, in a thread; at least one at the start and one at the end."""
    stop = threading.Event()

    def watch() -> None:
        into.append(snapshot(cluster))
        while not stop.wait(INTERVAL_S):
            into.append(snapshot(cluster))
        into.append(snapshot(cluster))

    watcher = threading.Thread(target=watch, name="controller-load")
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def between(snapshots: Sequence[Mapping[str, Any]], start: float, end: float) -> dict[str, Any] | None:
    """Difference over the narrowest snapshots that enclose ``start`` to ``end``; None if none do.

    ``start`` and ``end`` are by the controller's wall clock. ``vcpu_wait`` is the largest over the virtual CPUs (0.1: a
    tenth of the time it could not run although it wanted to); None when one could not be read. A control-plane process
    that ended in between is None in ``control_plane_cores``.
    """
    before = [entry for entry in snapshots if entry["wall"] <= start]
    after = [entry for entry in snapshots if entry["wall"] >= end]
    if not before or not after:
        return None
    first, last = before[-1], after[0]
    seconds = last["wall"] - first["wall"]
    waits: list[float | None] = []
    for name in sorted(set(first["vcpus"]) | set(last["vcpus"])):
        then, now = first["vcpus"].get(name), last["vcpus"].get(name)
        waits.append(None if then is None or now is None else (now["wait_ns"] - then["wait_ns"]) / 1e9 / seconds)
    known = [wait for wait in waits if wait is not None]
    return {
        "seconds": round(seconds, 2),
        "control_plane_cores": {
            name: _rate(first["control_plane_s"].get(name), last["control_plane_s"].get(name), seconds)
            for name in sorted(set(first["control_plane_s"]) | set(last["control_plane_s"]))
        },
        "lab_cores": _rate(first["lab_s"], last["lab_s"], seconds),
        "has_vcpus": bool(waits),
        "vcpu_wait": round(max(known), 4) if known and len(known) == len(waits) else None,
        "loadavg": last["loadavg"],
    }


def _rate(then: float | None, now: float | None, seconds: float) -> float | None:
    return None if then is None or now is None else round((now - then) / seconds, 4)
