"""Hold MemAvailable at a target from outside all pods until the pods named are gone, and show that it was held.

Arguments: url=… folder=… target_mib=… floor_mib=… deadline_s=… hold_s=… NAME=UID … The hog gives memory back when the
kernel's estimate falls below the floor, so that the kubelet acts and not the kernel's OOM killer. It runs on for hold_s
after the last pod went, to show what the kubelet does next.
"""

from __future__ import annotations

import os
import signal
import sys
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


def sample(hog_pid: int, places: dict[str, str], summary: Summary) -> None:
    """One line with everything that is watched."""
    status = (read(f"/proc/{hog_pid}/status") or "").replace(":", "").replace(" kB", "")
    emit(
        "sample",
        mem_available_kib=meminfo_kib("MemAvailable"),
        rss_kib=keyed(status, "VmRSS"),
        pods=pod_memory(places),
        summary=summary.read(),
        oom_kill=keyed(read("/proc/vmstat"), "oom_kill"),
        pod_events=read("/sys/fs/cgroup/kubepods.slice/memory.events"),
    )


def watch(hog_pid: int, places: dict[str, str], summary: Summary) -> None:
    """One sample a second by the clock until SIGTERM; runs in a process of its own, so that the hog cannot delay it."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    count, start = 0, time.monotonic()
    while not stopped:
        sample(hog_pid, places, summary)
        count += 1
        # Samples that took too long are not made up for: the next one waits for the next full second.
        elapsed = time.monotonic() - start
        time.sleep(1.0 - elapsed % 1.0)
    emit("watch-end", samples=count)


def start_watching(places: dict[str, str], summary: Summary) -> int:
    """Fork the watcher; its process id."""
    hog_pid = os.getpid()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            watch(hog_pid, places, summary)
            code = 0
        finally:
            os._exit(code)
    return child


def mark(text: str) -> None:
    """A line in the kernel's log, so that a log without an OOM kill is known to cover the whole window."""
    with open("/dev/kmsg", "w") as log:
        log.write(f"lab-hog {text}\n")


def press(hog: Hog, places: dict[str, str], deadline_s: float, hold_s: float) -> bool:
    """Hold the target until the pods are gone and hold_s is over; False when the deadline came first."""
    end = time.monotonic() + deadline_s
    gone_at: float | None = None
    while True:
        available = meminfo_kib("MemAvailable")
        if available is not None:
            hog.adjust(available // 1024)
        now = time.monotonic()
        if gone_at is None and not any(os.path.isdir(folder) for folder in places.values()):
            gone_at = now
        if gone_at is not None and now - gone_at > hold_s:
            return True
        if now > end:
            return gone_at is not None
        time.sleep(STEP_S)


def main() -> int:
    """Press until the pods are gone; exit 1 when they were not at the deadline."""
    words = pairs(sys.argv[1:])
    options = {name: words.pop(name) for name in OPTIONS}
    places = {name: folder for name, uid in words.items() if (folder := pod_cgroup(uid)) is not None}
    missing = sorted(set(words) - set(places))
    own = {"cgroup": read("/proc/self/cgroup"), "oom_score_adj": read("/proc/self/oom_score_adj")}
    emit("start", program="hog", version=2, options=options, pods=words, missing=missing, own=own)
    if missing:
        emit("end", ok=False, reason=f"no cgroup of {', '.join(missing)}")
        return 1
    hog = Hog(int(options["target_mib"]), int(options["floor_mib"]))
    watcher = start_watching(places, Summary(options["url"], options["folder"]))
    mark("press")
    emit("press", oom_kill=keyed(read("/proc/vmstat"), "oom_kill"))
    try:
        gone = press(hog, places, float(options["deadline_s"]), float(options["hold_s"]))
    finally:
        os.kill(watcher, signal.SIGTERM)
        _, status = os.waitpid(watcher, 0)
    emit("release", oom_kill=keyed(read("/proc/vmstat"), "oom_kill"), floor_hits=hog.floor_hits, watcher_status=status)
    mark("release")
    hog.blocks.clear()
    emit("end", ok=gone, reason="" if gone else "pods were left at the deadline")
    return 0 if gone else 1


if __name__ == "__main__":
    sys.exit(main())
