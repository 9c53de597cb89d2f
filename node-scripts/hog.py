"""Hold MemAvailable at a target from outside all pods until the pods named are gone, and show that it was held.

Arguments: url=… folder=… target_mib=… floor_mib=… deadline_s=… hold_s=… NAME=UID … The hog gives memory back when the
kernel's estimate falls below the floor, so that the kubelet acts and not the kernel's OOM killer. It runs on for hold_s
after the last pod went, to show what the kubelet does next.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from labnode import Summary, emit, keyed, meminfo_kib, pairs, pod_cgroup, pod_memory, read

OPTIONS = ("url", "folder", "target_mib", "floor_mib", "deadline_s", "hold_s")
BLOCK_MIB = 16
STEP_S = 0.1


class Hog:
    """Blocks of touched anonymous memory."""

    def __init__(self, target_mib: int, floor_mib: int) -> None:
        self.blocks: list[bytearray] = []
        self.target_mib, self.floor_mib = target_mib, floor_mib
        self.floor_hits = 0

    def adjust(self, available_mib: int) -> None:
        """Take or give back blocks towards the target; at most 8 blocks in one step."""
        if available_mib < self.floor_mib:
            self.floor_hits += 1
        surplus = available_mib - self.target_mib
        if surplus >= BLOCK_MIB:
            for _ in range(min(8, surplus // BLOCK_MIB)):
                self.blocks.append(bytearray(b"\x01") * (BLOCK_MIB << 20))
        elif surplus <= -BLOCK_MIB:
            del self.blocks[: min(8, -surplus // BLOCK_MIB)]


def watch(stop: threading.Event, hog: Hog, places: dict[str, str], summary: Summary) -> None:
    """One line a second, in a thread of its own, so that a slow kubelet does not stop the hog."""
    while not stop.wait(1.0):
        emit(
            "sample",
            mem_available_kib=meminfo_kib("MemAvailable"),
            rss_kib=keyed((read(f"/proc/{os.getpid()}/status") or "").replace(":", "").replace(" kB", ""), "VmRSS"),
            blocks=len(hog.blocks),
            floor_hits=hog.floor_hits,
            pods=pod_memory(places),
            summary=summary.read(),
            oom_kill=keyed(read("/proc/vmstat"), "oom_kill"),
            pod_events=read("/sys/fs/cgroup/kubepods.slice/memory.events"),
        )


def main() -> int:
    """Press until the pods are gone; exit 1 at the deadline."""
    words = pairs(sys.argv[1:])
    options = {name: words.pop(name) for name in OPTIONS}
    places = {name: folder for name, uid in words.items() if (folder := pod_cgroup(uid)) is not None}
    emit("start", program="hog", version=1, options=options, pods=words, missing=sorted(set(words) - set(places)))
    if len(places) != len(words):
        emit("end", ok=False, reason="a pod has no cgroup")
        return 1
    hog = Hog(int(options["target_mib"]), int(options["floor_mib"]))
    stop = threading.Event()
    watcher = threading.Thread(target=watch, args=(stop, hog, places, Summary(options["url"], options["folder"])))
    end = time.monotonic() + float(options["deadline_s"])
    gone_at: float | None = None
    emit("press", oom_kill=keyed(read("/proc/vmstat"), "oom_kill"))
    watcher.start()
    try:
        while True:
            available = meminfo_kib("MemAvailable")
            if available is not None:
                hog.adjust(available // 1024)
            now = time.monotonic()
            if not any(os.path.isdir(folder) for folder in places.values()):
                gone_at = gone_at or now
            if (gone_at is not None and now - gone_at > float(options["hold_s"])) or now > end:
                break
            time.sleep(STEP_S)
    finally:
        stop.set()
        watcher.join(timeout=15)
    emit("release", oom_kill=keyed(read("/proc/vmstat"), "oom_kill"), floor_hits=hog.floor_hits)
    hog.blocks.clear()
    emit("end", ok=gone_at is not None, reason="" if gone_at is not None else "pods were left at the deadline")
    return 0 if gone_at is not None else 1


if __name__ == "__main__":
    sys.exit(main())
