"""Stop or continue every process of a pod: ``pod_signal.py STOP|CONT UID``.

The neighbour is stopped between windows, so that a pod beside it can start; it runs again before the warm-up.
"""

from __future__ import annotations

import os
import signal
import sys

from labnode import emit, pod_cgroup, processes


def send(uid: str, name: str) -> int:
    """Send the signal; returns how many processes got it."""
    folder = pod_cgroup(uid)
    if folder is None:
        return 0
    number = {"STOP": signal.SIGSTOP, "CONT": signal.SIGCONT}[name]
    sent = 0
    for pid in processes(folder):
        try:
            os.kill(pid, number)
            sent += 1
        except ProcessLookupError:
            continue
    return sent


def main() -> int:
    """Signal one pod; exit 1 when it has no process."""
    emit("start", program="pod-signal", version=1)
    sent = send(sys.argv[2], sys.argv[1])
    emit("end", sent=sent)
    return 0 if sent else 1


if __name__ == "__main__":
    sys.exit(main())
