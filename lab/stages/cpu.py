"""Stage cpu: what a pod receives beside a busy neighbour, with and without the empty block, in pairs.

The order inside a pair is random (the seed is recorded) or alternates as in the article. Everything else that ran in the
same window is recorded beside it, and decides whether the window counts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from lab import cgroups, controller_load, stats
from lab.model import WaitTimeout
from lab.parse.lines import Record, of_kind, records
from lab.stages.context import StageContext, Started
from lab.stages.contract import Observation, Raw, Stage

CONTROL, EMPTY, NEIGHBOUR = "cpu-ctl", "cpu-emp", "cpu-neighbour"
BUSY = {CONTROL: 1, EMPTY: 1, NEIGHBOUR: 2}

MIN_BUSY = 0.95
"""Least part of all CPU time that must be used in a window that counts."""
MIN_NEIGHBOUR_RUNNING = 0.95
"""Least part of the samples in which every busy process of the neighbour was runnable."""
MAX_STEAL = 0.01
MAX_VCPU_WAIT = 0.10
"""Most that a virtual CPU may have waited for a core of the controller, as a part of the window."""


def order(pair: int, how: str, seed: int) -> list[str]:
    """Which pod goes first in a pair (counted from 0)."""
    if how == "alternate":
        return [CONTROL, EMPTY] if pair % 2 == 0 else [EMPTY, CONTROL]
    both = [CONTROL, EMPTY]
    random.Random(f"{seed}/{pair}").shuffle(both)
    return both


def collect(ctx: StageContext) -> None:
    """One window per pod and pair; the neighbour is stopped in between, so that pods can start."""
    ctx.ensure_critical()
    neighbour = ctx.ensure_pods([NEIGHBOUR])[NEIGHBOUR]
    orders = [order(pair, ctx.params["order"], ctx.seed) for pair in range(ctx.params["pairs"])]
    ctx.save("plan.json", json.dumps({"orders": orders, "seed": ctx.seed, "params": dict(ctx.params)}) + "\n")
    with ctx.phases.track("pods"):
        ctx.script("pod_signal.py", "STOP", neighbour.uid, timeout_s=60)
    for pair, names in enumerate(orders, start=1):
        for name in names:
            ctx.progress(f"cpu pair {pair} of {len(orders)}: {name}")
            target = ctx.add_pod(name)
            _window(ctx, pair, target, neighbour)
            ctx.delete_pods([name])


def _window(ctx: StageContext, pair: int, target: Started, neighbour: Started) -> None:
    words = {
        "target": target.uid,
        "container": target.container_id,
        "neighbour": neighbour.uid,
        **{name: ctx.params[name] for name in ("warmup_s", "window_s", "interval_s")},
    }
    limit = ctx.params["warmup_s"] + ctx.params["window_s"] + 60
    before = controller_load.snapshot(ctx.cluster)
    with ctx.phases.track("windows"):
        try:
            argv = [f"{name}={value}" for name, value in words.items()]
            text = ctx.script("cpu_window.py", *argv, timeout_s=limit, check=False).stdout
        except WaitTimeout as error:
            text = f"{error}\n"
    after = controller_load.snapshot(ctx.cluster)
    ctx.save(f"window-{pair}-{target.name}.jsonl", text)
    ctx.save(f"controller-{pair}-{target.name}.json", json.dumps({"before": before, "after": after}) + "\n")


def parse(raw: Raw) -> Observation:
    """Every window with its cores, its neighbours' cores, and why it does not count (empty when it does)."""
    plan = json.loads(raw["plan.json"])
    windows = []
    for pair, names in enumerate(plan["orders"], start=1):
        for position, name in enumerate(names, start=1):
            text, load = raw.get(f"window-{pair}-{name}.jsonl"), raw.get(f"controller-{pair}-{name}.json")
            facts = {"pair": pair, "pod": name, "position": position}
            if text is None or load is None:
                windows.append({**facts, "cores": {}, "why_not": ["the window was not run"]})
            else:
                windows.append({**facts, **parse_window(text, json.loads(load))})
    return {"seed": plan["seed"], "order": plan["params"]["order"], "windows": windows}


def parse_window(text: str, load: Mapping[str, Any]) -> dict[str, Any]:
    """One window: cores by cgroup (None where a counter was not there), shares of states, and why it does not count."""
    found = records(text, "cpu-window")
    if not found[-1]["ok"]:
        return {"cores": {}, "why_not": [found[-1]["reason"]]}
    samples, before, after = of_kind(found, "sample"), of_kind(found, "before")[0], of_kind(found, "after")[0]
    first, last = samples[0], samples[-1]
    seconds = last["mono"] - first["mono"]
    cores: dict[str, float | None] = {}
    for name, start in first["usage_usec"].items():
        end = last["usage_usec"].get(name)
        cores[name] = None if start is None or end is None else round((end - start) / 1e6 / seconds, 4)
    result = {
        "cores": cores,
        "seconds": round(seconds, 3),
        "target_class": cgroups.qos_from_path(before["paths"]["target-pod"]),
        "weights": before["weights"],
        "weights_after": after["weights"],
        "busy": _busy_part(first["stat"], last["stat"]),
        "steal": _steal_part(first["stat"], last["stat"]),
        "running": {name: _always_running(samples, name, BUSY[pod]) for name, pod in
                    (("target", CONTROL), ("neighbour", NEIGHBOUR))},
        "pressure_some": _pressure_part(first["pressure"], last["pressure"], seconds),
        "sampler_cores": round((last["own_s"] - first["own_s"]) / seconds, 4),
        "controller": controller_load.difference(load["before"], load["after"]),
    }
    return {**result, "why_not": why_not(result)}


def _jiffies(stat: str) -> list[int]:
    return [int(word) for word in stat.split()[1:9]]


def _busy_part(first: str, last: str) -> float:
    """Part of all CPU time that was not idle (idle and iowait are fields 4 and 5 of /proc/stat's cpu line)."""
    spent = [end - start for start, end in zip(_jiffies(first), _jiffies(last), strict=True)]
    return round(1 - (spent[3] + spent[4]) / sum(spent), 4)


def _steal_part(first: str, last: str) -> float:
    spent = [end - start for start, end in zip(_jiffies(first), _jiffies(last), strict=True)]
    return round(spent[7] / sum(spent), 4)


def _always_running(samples: Sequence[Record], name: str, wanted: int) -> float:
    """Part of the samples in which at least ``wanted`` processes of a pod were runnable."""
    seen = sum(1 for record in samples if record["running"][name] >= wanted)
    return round(seen / len(samples), 4)


def _pressure_part(first: str, last: str, seconds: float) -> float | None:
    """Part of the window in which some task waited for a CPU; None without pressure information."""
    totals = [int(text.rpartition("total=")[2]) for text in (first, last) if "total=" in text]
    return round((totals[1] - totals[0]) / 1e6 / seconds, 4) if len(totals) == 2 else None


def why_not(window: Mapping[str, Any]) -> list[str]:
    """Reasons declared beforehand for which a window does not count."""
    reasons = []
    if window["busy"] < MIN_BUSY:
        reasons.append(f"CPU was busy only {window['busy']:.0%} of the window")
    if window["running"]["neighbour"] < MIN_NEIGHBOUR_RUNNING:
        reasons.append(f"the neighbour was runnable in only {window['running']['neighbour']:.0%} of the samples")
    if window["steal"] > MAX_STEAL:
        reasons.append(f"steal {window['steal']:.1%}")
    wait = window["controller"]["vcpu_wait"]
    if wait is not None and wait > MAX_VCPU_WAIT:
        reasons.append(f"a virtual CPU waited {wait:.1%} of the window for the controller's cores")
    if window["cores"].get("target-container") is None:
        reasons.append("the target's usage was not read")
    return reasons


def counted(observation: Observation, pod: str) -> list[float]:
    """Cores received by a pod in the windows that count, in order."""
    return [
        window["cores"]["target-container"]
        for window in observation["windows"]
        if window["pod"] == pod and not window["why_not"]
    ]


def view(observation: Observation) -> dict[str, Any]:
    """``control``, ``empty`` (median cores), ``ratio`` (of medians), ``control_all``, ``empty_all``; None unless all count."""
    control, empty = counted(observation, CONTROL), counted(observation, EMPTY)
    all_count = bool(observation["windows"]) and not any(window["why_not"] for window in observation["windows"])
    both = all_count and control and empty
    return {
        "control": stats.median(control) if both else None,
        "empty": stats.median(empty) if both else None,
        "ratio": round(stats.ratio_of_medians(empty, control), 4) if both else None,
        "control_all": control if both else None,
        "empty_all": empty if both else None,
    }


def row(observation: Observation) -> dict[str, str]:
    """Medians with every point, the ratio, the neighbour, and the fair share that the live weights promise."""
    control, empty = counted(observation, CONTROL), counted(observation, EMPTY)
    seen = view(observation)
    fair = {name: _fair(observation, name) for name in (CONTROL, EMPTY)}
    return {
        "cpu-ctl cores": _points(control),
        "cpu-emp cores": _points(empty),
        "emp / ctl": "-" if seen["ratio"] is None else f"{seen['ratio']:.1%}",
        "neighbour cores": _span(observation, "neighbour-pod"),
        "system + user cores": _span(observation, "system", "user"),
        "booked / fair share ctl, emp": f"0.500 / {fair[CONTROL]}, 0.500 / {fair[EMPTY]}",
        "windows counted": f"{len(control) + len(empty)} of {len(observation['windows'])}",
    }


def _points(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{stats.median(values):.3f} ({', '.join(f'{value:.3f}' for value in values)})"


def _span(observation: Observation, *names: str) -> str:
    sums = []
    for window in observation["windows"]:
        parts = [window["cores"].get(name) for name in names]
        known = [part for part in parts if part is not None]
        if known:
            sums.append(sum(known))
    return f"{min(sums):.2f}-{max(sums):.2f}" if sums else "-"


def _fair(observation: Observation, pod: str) -> str:
    """Fluid fair share from the weights read in the pod's first counted window."""
    for window in observation["windows"]:
        weights = window.get("weights", {})
        names = ("burstable", "besteffort", "target-pod", "neighbour-pod")
        if window["pod"] != pod or window["why_not"] or any(weights.get(name) is None for name in names):
            continue
        value = {name: float(weights[name]) for name in names}
        target, neighbour = (value["target-pod"], 1.0), (value["neighbour-pod"], 2.0)
        tree: dict[str, tuple[float, dict[str, tuple[float, float]]]] = {
            "burstable": (value["burstable"], {NEIGHBOUR: neighbour})
        }
        if window["target_class"] == cgroups.BEST_EFFORT:
            tree["besteffort"] = (value["besteffort"], {pod: target})
        else:
            tree["burstable"][1][pod] = target
        shares = cgroups.fair_share(2.0, tree)
        return f"{next(pods[pod] for pods in shares.values() if pod in pods):.3f}"
    return "-"


def notes(observation: Observation) -> list[str]:
    """Order and seed, load beside the windows, what the repetitions allow to say, and windows that do not count."""
    windows = observation["windows"]
    said = [f"order {observation['order']}, seed {observation['seed']}: "
            + "; ".join(", ".join(w["pod"] for w in windows if w["pair"] == pair)
                        for pair in sorted({w["pair"] for w in windows}))]
    waits = [w["controller"]["vcpu_wait"] for w in windows if "controller" in w]
    plane = [sum(w["controller"]["control_plane_cores"].values()) for w in windows if "controller" in w]
    if plane and None not in waits:
        said.append(f"controller in the windows: control plane {min(plane):.3f}-{max(plane):.3f} cores, "
                    f"virtual CPUs waited {min(waits):.1%}-{max(waits):.1%}")
    control, empty = counted(observation, CONTROL), counted(observation, EMPTY)
    if control and empty:
        if stats.enough_for_test(len(control), len(empty), 0.05):
            said.append(f"exact Mann-Whitney, two-sided: p = {stats.mann_whitney_p(empty, control):.3f}")
        else:
            least = stats.smallest_possible_p(len(control), len(empty))
            said.append(f"n = {len(control)} and {len(empty)}: too few for a test at 5 % (least possible p {least:.2f})")
    said += [f"pair {w['pair']} {w['pod']} does not count: {'; '.join(w['why_not'])}" for w in windows if w["why_not"]]
    return said


def params(options: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters: pairs, order, seconds of warm-up and window, sampling interval."""
    quick = bool(options["quick"])
    return {
        "pairs": 1 if quick else int(options["reps"]),
        "order": options["order"],
        "warmup_s": 2 if quick else 5,
        "window_s": 5 if quick else 20,
        "interval_s": 1,
        "neighbour_between_windows": "stopped",
    }


def budget_s(options: Mapping[str, Any]) -> float:
    """Windows, and about half a minute for each pod to start and go."""
    chosen = params(options)
    window = float(chosen["warmup_s"]) + float(chosen["window_s"]) + 25.0
    return 20.0 + 2 * int(chosen["pairs"]) * window


STAGE = Stage(
    name="cpu",
    title="CPU beside a busy neighbour",
    version=1,
    judge_version=1,
    cases=(NEIGHBOUR, CONTROL, EMPTY, "critical", "namespace"),
    scripts=("labnode.py", "cpu_window.py", "pod_signal.py", "oci_image.py", "node_facts.sh"),
    params=params,
    budget_s=budget_s,
    collect=collect,
    parse=parse,
    view=view,
    row=row,
    notes=notes,
)
