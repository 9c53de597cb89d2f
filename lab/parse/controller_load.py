"""What the controller did in a window, from snapshots of its counters (:mod:`lab.controller_load` takes them). Pure.

``wait_ns`` of /proc/PID/task/TID/schedstat is the time a thread was runnable and did not run
(Documentation/scheduler/sched-stats.rst), in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


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
    if seconds <= 0:
        return None
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


def held(plane: Mapping[str, Any] | None, seconds: float) -> dict[str, float | None]:
    """``frozen_plane_cores`` of a control plane on the node: what it used between freezing and thawing, by the length
    of the window; None when that was not read. Empty for a control plane elsewhere (also where none is recorded)."""
    if plane is None or plane["placement"] != "node":
        return {}
    frozen, thawed = plane.get("frozen_usage_usec"), plane.get("thawed_usage_usec")
    if frozen is None or thawed is None:
        return {"frozen_plane_cores": None}
    return {"frozen_plane_cores": round((thawed - frozen) / 1e6 / seconds, 4)}


def _rate(then: float | None, now: float | None, seconds: float) -> float | None:
    return None if then is None or now is None else round((now - then) / seconds, 4)
