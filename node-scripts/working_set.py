"""Wait until the kubelet itself sees that every pod holds its memory, and show it.

Arguments: url=… folder=… deadline_s=… tolerance=BYTES namespace=… NAME=UID:BYTES … The kubelet's own stats summary
decides, since its ranking reads the same figures; it must show the right size at two different times, so that a pod
that is still allocating does not pass.
"""

from __future__ import annotations

import sys
import time

from labnode import Summary, emit, pairs, pod_cgroup, pod_memory

OPTIONS = ("url", "folder", "deadline_s", "tolerance", "namespace")


def main() -> int:
    """Poll once a second; exit 1 when the deadline passes first."""
    words = pairs(sys.argv[1:])
    options = {name: words.pop(name) for name in OPTIONS}
    emit("start", program="working-set", version=2, options=options, pods=words)
    uids = {name: text.split(":")[0] for name, text in words.items()}
    wanted = {name: int(text.split(":")[1]) for name, text in words.items()}
    summary = Summary(options["url"], options["folder"])
    tolerance = int(options["tolerance"])
    end = time.monotonic() + float(options["deadline_s"])
    confirmed: dict[str, str] = {}
    while True:
        places = {name: folder for name, uid in uids.items() if (folder := pod_cgroup(uid)) is not None}
        seen = summary.read()
        times = seen.get("times") or {}
        figures = {name: (seen.get("pods") or {}).get(f"{options['namespace']}/{name}") for name in wanted}
        emit("poll", summary=seen, cgroups=pod_memory(places))
        off = []
        for name, size in sorted(wanted.items()):
            seen_size = figures[name]
            time_of = str(times.get(f"{options['namespace']}/{name}"))
            if seen_size is None or abs(seen_size - size) > tolerance:
                confirmed.pop(name, None)
                off.append(name)
            elif confirmed.setdefault(name, time_of) == time_of:
                off.append(name)
        if not off or time.monotonic() > end:
            emit("end", ok=not off, off=off)
            return 1 if off else 0
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
