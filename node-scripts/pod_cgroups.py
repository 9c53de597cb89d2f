"""Read what the kernel holds for pods: cgroup files at each level, and the OOM values of every process.

Arguments: NAME=UID for each pod. Lines: one "level" per cgroup folder (pod, container, and each parent up to
kubepods), one "process" per process.
"""

from __future__ import annotations

import os
import sys

from labnode import CGROUPS, container_cgroups, emit, pairs, pod_cgroup, processes, read

FILES = (
    "cpu.weight", "cpu.max", "memory.max", "memory.min", "memory.low", "memory.high", "memory.swap.max",
)  # fmt: skip


def level(kind: str, folder: str, pod: str = "") -> None:
    """One cgroup folder with its files; a file that is not there is null."""
    values = {name: read(os.path.join(folder, name)) for name in FILES}
    emit("level", level=kind, pod=pod, path=folder[len(CGROUPS) :], files=values)


def main() -> int:
    """Read all pods."""
    emit("start", program="pod-cgroups", version=1)
    parents: set[str] = set()
    for name, uid in pairs(sys.argv[1:]).items():
        folder = pod_cgroup(uid)
        if folder is None:
            emit("absent", pod=name, uid=uid)
            continue
        level("pod", folder, name)
        parent = os.path.dirname(folder)
        while "kubepods" in parent:
            parents.add(parent)
            parent = os.path.dirname(parent)
        for container in container_cgroups(folder):
            level("container", container, name)
            for pid in processes(container):
                emit(
                    "process",
                    pod=name,
                    pid=pid,
                    comm=read(f"/proc/{pid}/comm"),
                    cgroup=read(f"/proc/{pid}/cgroup"),
                    oom_score_adj=read(f"/proc/{pid}/oom_score_adj"),
                    oom_score=read(f"/proc/{pid}/oom_score"),
                )
    for folder in sorted(parents):
        level("parent", folder)
    emit("end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
