"""Snapshots of what the controller does during a window: control plane, other work, and threads of virtual CPUs.

A local guest shares its cores with the lab and the control plane. :mod:`lab.parse.controller_load` reads the snapshots.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
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
        while not stop.wait(INTERVAL_S):
            into.append(snapshot(cluster))
        into.append(snapshot(cluster))

    # Taken here, not in the thread: the block must not begin before it.
    into.append(snapshot(cluster))
    watcher = threading.Thread(target=watch, name="controller-load")
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
