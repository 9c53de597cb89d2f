"""How much the kubelet-log parser costs against a bare regular-expression loop and against `json.loads`.

The log is made here: mostly lines that have nothing to do with evictions, as in a real journal, with a full eviction
cycle at equal distances. Each round times every reader once, in turn; the table shows medians and their ratios.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable

from tabulate import tabulate

from lab.parse.kubelet_log import parse_events

PREFIX = "{:.6f} node kubelet[321]: I1130 07:00:00.000000     321 "
NOISE = (
    'kubelet.go:2532] "SyncLoop (PLEG): event for pod" pod="lab/ctl-burstable" event={"ID":"5c3e","Type":"Started"}',
    'reconciler_common.go:251] "operationExecutor.VerifyControllerAttachedVolume started" pod="lab/be"',
    'status_manager.go:890] "Failed to get status for pod" podUID="5c3e" pod="lab/be" err="not found"',
)
CYCLE = (
    'eviction_manager.go:369] "Eviction manager: attempting to reclaim" resourceName="memory"',
    'eviction_manager.go:380] "Eviction manager: must evict pod(s) to reclaim" resourceName="memory"',
    'eviction_manager.go:398] "Eviction manager: pods ranked for eviction" pods=["lab/evict-be","lab/evict-ctl"]',
    'eviction_manager.go:627] "Eviction manager: pod is evicted successfully" pod="lab/evict-be"',
)
EVENT = re.compile(r'eviction_manager\.go:\d+\] "Eviction manager: ([^"]+)"')


def make_log(lines: int, cycles: int = 20) -> str:
    """A journal of about ``lines`` lines with ``cycles`` eviction cycles."""
    step = max(1, lines // cycles)
    written: list[str] = []
    for number in range(lines):
        texts = CYCLE if number % step == step - 1 else (NOISE[number % len(NOISE)],)
        written += [PREFIX.format(1764488461 + number / 100) + text for text in texts]
    return "\n".join(written) + "\n"


def regex_loop(text: str) -> int:
    """Messages of the eviction manager by one expression per line; no time, no pods, no check."""
    return sum(1 for line in text.splitlines() if EVENT.search(line))


def json_loop(lines: list[str]) -> int:
    """`json.loads` on every line: a peer that everybody knows."""
    return sum(1 for line in lines if json.loads(line))


def seconds(work: Callable[[], object]) -> float:
    """Processor time of one call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    """Time all readers in turn and print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--lines", type=int, default=20_000, help="lines of the log that is made (default: 20000)")
    options.add_argument("--rounds", type=int, default=7, help="how often each reader runs (default: 7)")
    given = options.parse_args()
    text = make_log(given.lines)
    records = [json.dumps({"kind": "sample", "line": line}) for line in text.splitlines()]
    found, expected = len(parse_events(text)), regex_loop(text)
    if found != expected:
        raise SystemExit(f"the readers do not agree (parser {found} events, loop {expected}), so a ratio says nothing")
    readers: dict[str, Callable[[], object]] = {
        "regular-expression loop": lambda: regex_loop(text),
        "json.loads per line": lambda: json_loop(records),
        "lab.parse.kubelet_log.parse_events": lambda: parse_events(text),
    }
    times: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(given.rounds):
        for name, work in readers.items():
            times[name].append(seconds(work))
    medians = {name: statistics.median(values) for name, values in times.items()}
    floor = medians["regular-expression loop"]
    rows = [
        [name, f"{median * 1e6 / len(records):.2f}", f"{median / floor:.1f}", f"{min(times[name]) / floor:.1f}"]
        for name, median in medians.items()
    ]
    print(f"{len(records)} lines, {found} events, {given.rounds} rounds")
    titles = ["reader", "µs per line (median)", "ratio to the loop", "ratio of its best round"]
    print(tabulate(rows, headers=titles, disable_numparse=True, colalign=("left", "right", "right", "right")))


if __name__ == "__main__":
    main()
