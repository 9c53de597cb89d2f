"""What the controller itself did during a window: CPU of the control plane and how long the virtual CPUs had to wait.

A local guest shares its cores with the lab and the control plane. ``run_delay`` in /proc/PID/task/TID/schedstat is the
time a thread was runnable and did not run (Documentation/scheduler/sched-stats.rst), in nanoseconds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.distros.contract import Cluster


def snapshot(cluster: Cluster) -> dict[str, Any]:
    """Monotonic time, control-plane CPU seconds by process, and run and wait nanoseconds by virtual CPU thread."""
    return {
        "mono": time.monotonic(),
        "control_plane_s": dict(cluster.own_cpu_s()),
        "vcpus": {name: _schedstat(tid) for tid, name in cluster.node.cpu_threads().items()},
        "lab_s": time.process_time(),
    }


def _schedstat(tid: int) -> dict[str, int] | None:
    try:
        run_ns, wait_ns, _ = Path(f"/proc/{tid}/schedstat").read_text().split()
    except (OSError, ValueError):
        return None
    return {"run_ns": int(run_ns), "wait_ns": int(wait_ns)}


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Between two snapshots: seconds, control-plane cores by process, and the part of the time vCPUs waited.

    ``vcpu_wait`` is the largest over the virtual CPUs (0.1 = a tenth of the time it wanted to run and could not); None
    when the provider shows no threads or one could not be read.
    """
    seconds = after["mono"] - before["mono"]
    used = {name: round((value - before["control_plane_s"][name]) / seconds, 4)
            for name, value in after["control_plane_s"].items() if name in before["control_plane_s"]}
    waits = []
    for name, now in after["vcpus"].items():
        then = before["vcpus"].get(name)
        waits.append(None if now is None or then is None else (now["wait_ns"] - then["wait_ns"]) / 1e9 / seconds)
    known = [wait for wait in waits if wait is not None]
    return {
        "seconds": round(seconds, 2),
        "control_plane_cores": used,
        "lab_cores": round((after["lab_s"] - before["lab_s"]) / seconds, 4),
        "vcpu_wait": round(max(known), 4) if known and len(known) == len(waits) else None,
    }
