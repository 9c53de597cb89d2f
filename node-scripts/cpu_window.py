"""One CPU window: let the neighbour run, warm up, then sample until the window is over, and stop the neighbour again.

Arguments: target=UID neighbour=UID container=ID warmup_s=5 window_s=20 interval_s=1. Everything is resolved before the
warm-up; inside the window nothing but reads of /proc and /sys is done.
"""

from __future__ import annotations

import os
import sys
import time

from labnode import CGROUPS, container_cgroups, emit, keyed, pairs, pod_cgroup, processes, read
from pod_signal import send


def folders(target: str, neighbour: str, container: str) -> dict[str, str]:
    """Name to cgroup folder of everything that is sampled."""
    parts = {
        "target-pod": target,
        "neighbour-pod": neighbour,
        "kubepods": f"{CGROUPS}/kubepods.slice",
        "burstable": f"{CGROUPS}/kubepods.slice/kubepods-burstable.slice",
        "besteffort": f"{CGROUPS}/kubepods.slice/kubepods-besteffort.slice",
        "system": f"{CGROUPS}/system.slice",
        "user": f"{CGROUPS}/user.slice",
        "lab": f"{CGROUPS}/lab.slice",
        "root": CGROUPS,
    }
    for folder in container_cgroups(target):
        if container in folder:
            parts["target-container"] = folder
    return {name: folder for name, folder in parts.items() if os.path.isdir(folder)}


def pod_processes() -> dict[str, int]:
    """Every pod cgroup on the node and how many processes it holds: what else could take CPU."""
    found = {}
    for folder, names, _ in os.walk(f"{CGROUPS}/kubepods.slice"):
        for name in [name for name in names if "-pod" in name]:
            found[name] = len(processes(os.path.join(folder, name)))
    return found


def running(pids: list[int]) -> int:
    """How many of the processes are running or waiting for a CPU at this moment."""
    states = [(read(f"/proc/{pid}/stat") or "? (x) ?").rsplit(") ", 1)[1][:1] for pid in pids]
    return states.count("R")


def sample(places: dict[str, str], groups: dict[str, list[int]]) -> None:
    """One line with all counters."""
    emit(
        "sample",
        mono=time.monotonic(),
        usage_usec={name: keyed(read(f"{folder}/cpu.stat"), "usage_usec") for name, folder in places.items()},
        running={name: running(pids) for name, pids in groups.items()},
        stat=(read("/proc/stat") or "").split("\n", 1)[0],
        pressure=(read("/proc/pressure/cpu") or "").split("\n", 1)[0],
        own_s=round(time.process_time(), 4),
    )


def main() -> int:
    """Run the window; exit 1 when a pod is not there."""
    options = pairs(sys.argv[1:])
    emit("start", program="cpu-window", version=2, options=options)
    target, neighbour = pod_cgroup(options["target"]), pod_cgroup(options["neighbour"])
    if target is None or neighbour is None:
        emit("end", ok=False, reason="the target or the neighbour has no cgroup")
        return 1
    places = folders(target, neighbour, options["container"])
    groups = {"target": processes(target), "neighbour": processes(neighbour)}
    weights = {name: read(f"{folder}/cpu.weight") for name, folder in places.items()}
    emit("before", paths=places, weights=weights, pods=pod_processes())
    send(options["neighbour"], "CONT")
    try:
        time.sleep(float(options["warmup_s"]))
        start = time.monotonic()
        window, interval = float(options["window_s"]), float(options["interval_s"])
        step = 0
        while True:
            sample(places, groups)
            step += 1
            if step * interval > window:
                break
            time.sleep(max(0.0, start + step * interval - time.monotonic()))
    finally:
        send(options["neighbour"], "STOP")
    weights = {name: read(f"{folder}/cpu.weight") for name, folder in places.items()}
    emit("after", weights=weights, pods=pod_processes())
    emit("end", ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
