"""Stage cpu: what a pod receives beside a busy neighbour, with and without the empty block, in pairs.

The order inside a pair is random (the seed is recorded) or alternates as in the article. Everything else that ran in
the same window is recorded beside it, and decides whether the window counts (:mod:`lab.parse.cpu_window`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from lab import cgroups, controller_load, stats
from lab.parse import cpu_window
from lab.parse.pods import parse_pods
from lab.stages.context import StageContext, Started
from lab.stages.contract import Observation, Raw, Stage

CONTROL, EMPTY, NEIGHBOUR = "cpu-ctl", "cpu-emp", "cpu-neighbour"
TRIES = 3
"""How often a window may be run until it counts; the reasons why it does not have nothing to do with the share."""


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
    ctx.save("node.json", ctx.node_object())
    with ctx.phases.track("pods"):
        ctx.script("pod_signal.py", "STOP", neighbour.uid, timeout_s=60)
    for pair in ctx.repetitions(len(orders)):
        for name in orders[pair - 1]:
            target = ctx.add_pod(name)
            ctx.save(f"pods-{pair}-{name}.json", ctx.kubectl.get_text("pods", "-A"))
            for attempt in range(1, int(ctx.params["tries"]) + 1):
                ctx.progress(f"cpu pair {pair} of {len(orders)}: {name}" + (f", try {attempt}" if attempt > 1 else ""))
                reasons = _window(ctx, f"{pair}-{name}-{attempt}", target, neighbour)
                if not reasons:
                    break
                ctx.progress(f"window does not count: {'; '.join(reasons)}")
            ctx.delete_pods([name])


def _window(ctx: StageContext, label: str, target: Started, neighbour: Started) -> list[str]:
    """Run and save one window; why it does not count."""
    words = {
        "target": target.uid,
        "container": target.container_id,
        "neighbour": neighbour.uid,
        **{name: ctx.params[name] for name in ("warmup_s", "window_s", "interval_s")},
    }
    limit = ctx.params["warmup_s"] + ctx.params["window_s"] + 60
    snapshots: list[dict[str, Any]] = []
    argv = [f"{name}={value}" for name, value in words.items()]
    quiet = ctx.params["warmup_s"] + ctx.params["window_s"]
    tracked, recording = ctx.phases.track("windows"), controller_load.recording(ctx.cluster, snapshots)
    with tracked, ctx.cluster.frozen() as held, recording:
        text, problem = ctx.measure(
            "cpu_window.py", f"window-{label}.jsonl", *argv, timeout_s=limit, quiet_s=quiet
        )
    plane = {"placement": ctx.cluster.must_agree["control_plane"], **held}
    load = json.dumps({"snapshots": snapshots, "control_plane": plane}) + "\n"
    ctx.save(f"controller-{label}.json", load)
    if problem:
        ctx.progress(problem)
    return list(cpu_window.parse_window(text, load, ctx.params)["why_not"])


def parse(raw: Raw) -> Observation:
    """Every window with its cores, its neighbours' cores, and why it does not count (empty when it does)."""
    plan = json.loads(raw["plan.json"])
    windows: list[dict[str, Any]] = []
    for pair, names in enumerate(plan["orders"], start=1):
        for position, name in enumerate(names, start=1):
            facts = {"pair": pair, "pod": name, "position": position}
            labels = {number: f"{pair}-{name}-{number}" for number in range(1, plan["params"]["tries"] + 1)}
            tries = [
                (number, raw[f"window-{label}.jsonl"], raw.get(f"controller-{label}.json"))
                for number, label in labels.items()
                if f"window-{label}.jsonl" in raw
            ]
            uid = parse_pods(raw[f"pods-{pair}-{name}.json"])[name]["metadata"]["uid"] if tries else None
            if not tries:
                windows.append({**facts, "try": None, "cores": {}, "why_not": ["the window was not run"]})
            windows += [
                {**facts, "try": number, **cpu_window.parse_window(text, load, plan["params"], uid)}
                for number, text, load in tries
            ]
    slots = [[pair, name] for pair, names in enumerate(plan["orders"], start=1) for name in names]
    return {"seed": plan["seed"], "order": plan["params"]["order"], "slots": slots, "windows": windows}


def chosen(observation: Observation) -> list[dict[str, Any] | None]:
    """For each slot (pair and pod) the first window that counts, or None."""
    found = []
    for pair, name in observation["slots"]:
        mine = [window for window in observation["windows"] if (window["pair"], window["pod"]) == (pair, name)]
        found.append(next((window for window in mine if not window["why_not"]), None))
    return found


def counted(observation: Observation, pod: str) -> list[float]:
    """Cores received by a pod in the windows that count, in order."""
    windows = [window for window in chosen(observation) if window is not None and window["pod"] == pod]
    return [window["cores"]["target-container"] for window in windows]


def view(observation: Observation) -> dict[str, Any]:
    """``control``, ``empty`` (median cores), ``ratio`` (of medians), ``control_all``, ``empty_all``.

    All are None unless each slot has a window that counts.
    """
    control, empty = counted(observation, CONTROL), counted(observation, EMPTY)
    both = control and empty and None not in chosen(observation)
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
        "slots with a window that counts": f"{len(control) + len(empty)} of {len(observation['slots'])}",
    }


def _points(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{stats.median(values):.3f} ({', '.join(f'{value:.3f}' for value in values)})"


def _span(observation: Observation, *names: str) -> str:
    sums = []
    for window in chosen(observation):
        if window is None:
            continue
        parts = [window["cores"].get(name) for name in names]
        known = [part for part in parts if part is not None]
        if known:
            sums.append(sum(known))
    return f"{min(sums):.2f}-{max(sums):.2f}" if sums else "-"


def _fair(observation: Observation, pod: str) -> str:
    """Fluid fair share from the weights read in the pod's first counted window."""
    for window in chosen(observation):
        if window is None or window["pod"] != pod:
            continue
        weights = window["weights"]
        names = ("burstable", "besteffort", "target-pod", "neighbour-pod")
        if any(weights.get(name) is None for name in names):
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
    windows = [window for window in chosen(observation) if window is not None]
    pairs = sorted({pair for pair, _ in observation["slots"]})
    orders = ["-".join(name for number, name in observation["slots"] if number == pair) for pair in pairs]
    said = [f"order {observation['order']}, seed {observation['seed']}: {', '.join(orders)}"]
    waits = [window["controller"]["vcpu_wait"] for window in windows]
    plane = [window["controller"]["control_plane_cores"] for window in windows]
    if windows and None not in waits:
        sums = [sum(cores.values()) for cores in plane]
        said.append(
            f"controller in the windows: control plane {min(sums):.3f}-{max(sums):.3f} cores, "
            f"virtual CPUs waited {min(waits):.1%}-{max(waits):.1%}"
        )
    frozen = [window["frozen_plane_cores"] for window in windows if "frozen_plane_cores" in window]
    if frozen:
        said.append(f"control plane on the node: frozen, used at most {max(frozen):.4f} cores in a window")
    control, empty = counted(observation, CONTROL), counted(observation, EMPTY)
    if control and empty:
        if stats.enough_for_test(len(control), len(empty), 0.05):
            said.append(f"exact Mann-Whitney, two-sided: p = {stats.mann_whitney_p(empty, control):.3f}")
        else:
            least = stats.smallest_possible_p(len(control), len(empty))
            sizes = f"n = {len(control)} and {len(empty)}"
            said.append(f"{sizes}: too few for a test at 5 % (least possible p {least:.2f})")
    for window in observation["windows"]:
        if window["why_not"]:
            label = f"pair {window['pair']} {window['pod']} try {window['try']}"
            said.append(f"{label} does not count: {'; '.join(window['why_not'])}")
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
        "tries": TRIES,
        "neighbour_between_windows": "stopped",
    }


def budget_s(options: Mapping[str, Any]) -> float:
    """Windows, and about half a minute for each pod to start and go."""
    chosen = params(options)
    window = float(chosen["warmup_s"]) + float(chosen["window_s"]) + 25.0
    return 20.0 + 2 * int(chosen["pairs"]) * window


def windows_s(options: Mapping[str, Any]) -> float:
    """Warm-up and window of every slot that needs one try only."""
    chosen = params(options)
    return 2 * int(chosen["pairs"]) * (float(chosen["warmup_s"]) + float(chosen["window_s"]))


STAGE = Stage(
    name="cpu",
    title="CPU beside a busy neighbour",
    version=1,
    judge_version=3,
    cases=(NEIGHBOUR, CONTROL, EMPTY, "critical", "namespace"),
    scripts=("labnode.py", "cpu_window.py", "pod_signal.py", "oci_image.py", "node_facts.sh"),
    params=params,
    budget_s=budget_s,
    collect=collect,
    parse=parse,
    view=view,
    row=row,
    notes=notes,
    windows_s=windows_s,
)
