"""One CPU window from its raw texts: cores by cgroup, what else ran, and whether it counts. Pure but for its records.

The limits below were set before any window was measured, and none of them looks at the target's share.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from lab import cgroups
from lab.model import ParseError
from lab.parse.controller_load import between, held
from lab.parse.lines import Record, of_kind, records

MIN_BUSY = 0.95
"""Least part of all CPU time that must be used in a window that counts."""
MIN_RUNNING = 0.95
"""Least part of the samples in which every busy process of target and neighbour was runnable."""
MAX_STEAL = 0.01
MAX_VCPU_WAIT = 0.10
"""Most that a virtual CPU may have waited for a core of the controller, as a part of the window."""
MAX_OTHER_PODS = 0.02
"""Most cores that pods other than target and neighbour may have used together."""
MAX_FROZEN = 0.01
"""Most cores that a control plane on the node may have used while it was to stand still."""
MAX_GAP = 2.0
"""Longest distance of two samples, in sampling intervals."""

BUSY_PROCESSES = {"target": 1, "neighbour": 2}
USED = ("target-container", "target-pod", "neighbour-pod", "kubepods")


def parse_window(
    text: str, load: str | None, params: Mapping[str, Any], target: str | None = None
) -> dict[str, Any]:
    """One window: cores by cgroup (None where a counter was not there), states, and ``why_not`` (empty: it counts).

    ``target`` is the UID of the pod that the window must be of; None: of any.

    Texts that cannot be read make a window that does not count, with the reason; they never void the other windows.
    """
    try:
        found = records(text, "cpu-window", 2)
        if not found[-1]["ok"]:
            return _unread(found[-1]["reason"])
        if target not in (None, found[0]["options"]["target"]):
            return _unread(f"the window is of another pod, {found[0]['options']['target']}")
        samples = of_kind(found, "sample")
        if len(samples) < 2:
            return _unread("fewer than two samples")
        before, after = of_kind(found, "before")[0], of_kind(found, "after")[0]
        return _measured(samples, found[0], before, after, found[-1], json.loads(load or ""), params)
    except (ParseError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return _unread(f"{type(error).__name__}: {error}")


def _unread(reason: str) -> dict[str, Any]:
    return {"cores": {}, "why_not": [reason]}


def _measured(
    samples: Sequence[Record],
    begin: Record,
    before: Record,
    after: Record,
    end: Record,
    told: Mapping[str, Any],
    params: Mapping[str, Any],
) -> dict[str, Any]:
    snapshots = told["snapshots"]
    first, last = samples[0], samples[-1]
    seconds = last["mono"] - first["mono"]
    # The node's clock to the controller's: the same, but for what the snapshots around the program rule out. It began
    # after the first one and ended before the last, which was taken after its output had been fetched (seconds later).
    least, most = snapshots[0]["wall"] - begin["t"], snapshots[-1]["wall"] - end["t"]
    offset = min(max(0.0, least), most)
    result: dict[str, Any] = {
        "cores": {
            name: _cores(start, last["usage_usec"].get(name), seconds) for name, start in first["usage_usec"].items()
        },
        "seconds": round(seconds, 3),
        "samples": len(samples),
        "longest_gap_s": round(max(b["mono"] - a["mono"] for a, b in itertools.pairwise(samples)), 3),
        "target_class": cgroups.qos_from_path(before["paths"]["target-pod"]),
        "weights": before["weights"],
        "weights_after": after["weights"],
        "pods": after["pods"],
        **_cpu_time(first["stat"], last["stat"]),
        "running": {name: _running(samples, name, wanted) for name, wanted in BUSY_PROCESSES.items()},
        "pressure_some": _pressure(first["pressure"], last["pressure"], seconds),
        "sampler_cores": round((last["own_s"] - first["own_s"]) / seconds, 4),
        "controller": between(snapshots, first["t"] + offset, last["t"] + offset),
        **held(told.get("control_plane"), seconds),
    }
    return {**result, "why_not": why_not(result, params)}


def _cores(start: int | None, end: int | None, seconds: float) -> float | None:
    return None if start is None or end is None else round((end - start) / 1e6 / seconds, 4)


def _cpu_time(first: str, last: str) -> dict[str, float]:
    """Parts of all CPU time: busy (not idle, not waiting for I/O) and stolen; fields of /proc/stat's cpu line."""
    begin, end = ([int(word) for word in line.split()[1:9]] for line in (first, last))
    spent = [after - before for before, after in zip(begin, end, strict=True)]
    total = sum(spent)
    return {"busy": round(1 - (spent[3] + spent[4]) / total, 4), "steal": round(spent[7] / total, 4)}


def _running(samples: Sequence[Record], name: str, wanted: int) -> float:
    """Part of the samples in which at least ``wanted`` processes of a pod were runnable."""
    seen = sum(1 for record in samples if record["running"][name] >= wanted)
    return round(seen / len(samples), 4)


def _pressure(first: str, last: str, seconds: float) -> float | None:
    """Part of the window in which some task waited for a CPU; None without pressure information."""
    totals = [int(text.rpartition("total=")[2]) for text in (first, last) if "total=" in text]
    return round((totals[1] - totals[0]) / 1e6 / seconds, 4) if len(totals) == 2 else None


def why_not(window: Mapping[str, Any], params: Mapping[str, Any]) -> list[str]:
    """Reasons declared beforehand for which a window does not count."""
    reasons = []
    cores = window["cores"]
    unread = [name for name in USED if cores.get(name) is None]
    if unread:
        return [f"usage was not read: {', '.join(unread)}"]
    reasons += [f"the usage of {name} ran backwards" for name in USED if cores[name] < 0]
    if window["busy"] < MIN_BUSY:
        reasons.append(f"CPU was busy only {window['busy']:.0%} of the window")
    reasons += [
        f"the {name} was runnable in only {part:.0%} of the samples"
        for name, part in window["running"].items()
        if part < MIN_RUNNING
    ]
    if window["steal"] > MAX_STEAL:
        reasons.append(f"steal {window['steal']:.1%}")
    others = cores["kubepods"] - cores["target-pod"] - cores["neighbour-pod"]
    if others > MAX_OTHER_PODS:
        reasons.append(f"other pods used {others:.3f} cores")
    if window["weights"] != window["weights_after"]:
        reasons.append("a cgroup weight changed in the window")
    # The last sample may come a moment early: what matters is that none is missing.
    too_short = window["seconds"] < params["window_s"] - params["interval_s"] / 2
    if too_short or window["longest_gap_s"] > MAX_GAP * params["interval_s"]:
        reasons.append(f"sampled {window['seconds']} s with a gap of {window['longest_gap_s']} s")
    return reasons + _controller_reasons(window["controller"]) + _held_reasons(window)


def _held_reasons(window: Mapping[str, Any]) -> list[str]:
    if "frozen_plane_cores" not in window:
        return []
    cores = window["frozen_plane_cores"]
    if cores is None:
        return ["whether the control plane on the node stood still was not read"]
    return [f"the frozen control plane used {cores:.4f} cores"] if not 0 <= cores <= MAX_FROZEN else []


def _controller_reasons(controller: Mapping[str, Any] | None) -> list[str]:
    if controller is None:
        return ["the controller's load was not recorded for the whole window"]
    reasons = []
    if controller["has_vcpus"] and controller["vcpu_wait"] is None:
        reasons.append("how long the virtual CPUs waited was not read")
    elif controller["has_vcpus"] and controller["vcpu_wait"] > MAX_VCPU_WAIT:
        reasons.append(f"a virtual CPU waited {controller['vcpu_wait']:.1%} of the window for the controller's cores")
    gone = [name for name, cores in controller["control_plane_cores"].items() if cores is None]
    if gone:
        reasons.append(f"control plane not read: {', '.join(gone)}")
    return reasons
