"""Stage eviction: in which order the kubelet evicts under memory pressure, and which rival rule that order fits.

A hog outside all pods holds MemAvailable below the threshold. The order and all times come from the kubelet's own log.
Reading is in :mod:`lab.parse.eviction`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from lab import ranking
from lab.distros.contract import EVICTION_THRESHOLD, KUBELET_VERBOSITY, PRESSURE_TRANSITION_S
from lab.model import NodeError, WaitTimeout
from lab.parse import eviction as reading
from lab.stages.context import NAMESPACE, StageContext, Started
from lab.stages.contract import Observation, Raw, Stage

ARTICLE = ("evict-be", "evict-ctl", "evict-gua-ctl", "evict-emp", "evict-gua-emp")
PRIORITY = (*ARTICLE, "evict-low")
OVERHEAD_MIB = 1
"""What a pod holds beside its allocation (shell, sleep, page tables)."""


def collector(cases: tuple[str, ...]) -> Callable[[StageContext], None]:
    """``collect`` for one set of pods."""

    def collect(ctx: StageContext) -> None:
        count = int(ctx.params["repetitions"])
        ctx.save("plan.json", json.dumps({"repetitions": count, "cases": cases, "params": dict(ctx.params)}) + "\n")
        ctx.ensure_critical()
        if "evict-low" in cases:
            ctx.kubectl.apply(ctx.manifests.render("priority-low"))
        for number in ctx.repetitions(count):
            ctx.progress(f"eviction repetition {number} of {count}")
            with ctx.phases.track("waits"):
                _prove_recovered(ctx, number)
            _repetition(ctx, cases, number)

    return collect


def _repetition(ctx: StageContext, cases: tuple[str, ...], number: int) -> None:
    pods = ctx.ensure_pods(cases)
    with ctx.phases.track("waits"):
        holding = _wait_working_sets(ctx, pods, number)
    before = ctx.kubectl.get_text("pods", "-A")
    ctx.save(f"{number}-pods-before.json", before)
    ctx.save(f"{number}-node-before.json", ctx.node_object())
    ranking.check_sizes(reading.ranked_pods(holding, before), int(ctx.params["least_distance_mib"]) << 20)
    cursor = ctx.journal_cursor()
    words = [
        *_kubelet_words(ctx),
        *(f"{name}={ctx.params[name]}" for name in ("target_mib", "floor_mib", "deadline_s", "hold_s")),
        *(f"{name}={pod.uid}" for name, pod in pods.items()),
    ]
    limit = float(ctx.params["deadline_s"]) + float(ctx.params["hold_s"]) + 90
    with ctx.phases.track("windows"):
        _, problem = ctx.measure("hog.py", f"{number}-hog.jsonl", *words, timeout_s=limit)
    if problem:
        ctx.progress(f"repetition {number}: {problem}")
    with ctx.phases.track("fetch"):
        ctx.save(f"{number}-kubelet.log", ctx.journal(cursor, unit=ctx.cluster.kubelet_unit))
        ctx.save(f"{number}-kernel.log", ctx.journal(cursor, unit=None))
        ctx.save(f"{number}-pods-after.json", ctx.kubectl.get_text("pods", "-A"))
        ctx.save(f"{number}-node-after.json", ctx.node_object())
        ctx.save(f"{number}-events.json", ctx.kubectl.get_text("events", "-A", "--field-selector", "type=Warning"))


def _kubelet_words(ctx: StageContext) -> list[str]:
    return [f"url={ctx.cluster.kubelet_url}", f"folder={ctx.cluster.credentials_folder}"]


def _wait_working_sets(ctx: StageContext, pods: Mapping[str, Started], number: int) -> str:
    """Until the kubelet sees each pod hold its memory; WaitTimeout otherwise: a hog before that proves nothing."""
    words = []
    for name, pod in pods.items():
        size = (ctx.manifests.cases[name]["memory_mib"] + OVERHEAD_MIB) << 20
        words.append(f"{name}={pod.uid}:{size}")
    limit = float(ctx.params["working_set_deadline_s"])
    text, problem = ctx.measure(
        "working_set.py",
        f"{number}-working-sets.jsonl",
        *_kubelet_words(ctx),
        f"deadline_s={limit:g}",
        f"tolerance={int(ctx.params['tolerance_mib']) << 20}",
        f"namespace={NAMESPACE}",
        *words,
        timeout_s=limit + 60,
    )
    if problem:
        raise WaitTimeout(f"repetition {number}: pods do not hold their memory after {limit:g} s; {problem}")
    return text


def _prove_recovered(ctx: StageContext, number: int) -> None:
    """Nothing of an earlier repetition is left: old pods gone, no pressure, and a new pod can start."""
    left = [item["metadata"]["name"] for item in ctx.kubectl.get("pods", "-n", NAMESPACE)["items"]]
    ctx.delete_pods(left)
    ctx.ensure_calm()
    ctx.save(f"{number}-node-recovered.json", ctx.node_object())
    try:
        ctx.add_pod("probe", timeout_s=120)
    except NodeError as error:
        raise NodeError(f"before repetition {number} no new pod could start: {error}") from error
    ctx.save(f"{number}-probe.json", ctx.kubectl.get_text("pod", "probe", "-n", NAMESPACE))
    ctx.delete_pods(["probe"])
    ctx.ensure_critical()


def parse(raw: Raw) -> Observation:
    """Every repetition: sizes, order, ranking, times, models that survive, kernel OOM kills, and what is missing."""
    plan = json.loads(raw["plan.json"])
    repetitions = [
        {"repetition": number, **reading.parse_repetition(raw, number, plan["cases"])}
        for number in range(1, plan["repetitions"] + 1)
    ]
    return {"repetitions": repetitions}


def view(observation: Observation) -> dict[str, Any]:
    """``orders`` (list of lists of names without ``evict-``), ``models`` (fit every repetition), ``oom_kills`` (sum).

    Also ``rankings`` (the first of each repetition) and ``critical_last``. A value is None as soon as one repetition
    lacks it; orders and models also when the hog did not hold its target.
    """
    entries = observation["repetitions"]

    def whole(key: str) -> list[Any] | None:
        values = [entry[key] for entry in entries]
        return None if not values or None in values else values

    held = whole("held")
    sets = whole("models") if held is not None and all(held) else None
    kills, last = whole("oom_kills"), whole("critical_last")
    return {
        "orders": whole("order") if held is not None and all(held) else None,
        "rankings": whole("first_ranking"),
        "models": None if sets is None else sorted(set.intersection(*(set(names) for names in sets))),
        "oom_kills": None if kills is None else sum(kills),
        "critical_last": None if last is None else all(last),
        "held": held,
    }


def row(observation: Observation) -> dict[str, str]:
    """Orders, models, kernel OOM kills, times from the hog's start, gaps, and the kubelet's available figure."""
    entries = observation["repetitions"]
    orders = [" > ".join(entry["order"]) if entry["order"] else "?" for entry in entries]
    different = sorted(set(orders), key=orders.index)
    seen = view(observation)
    cells = {"order": "; ".join(f"{order} ({orders.count(order)}x)" for order in different) or "-"}
    cells["models that fit"] = ", ".join(seen["models"] or []) or "-"
    cells["kernel OOM kills"] = "-" if seen["oom_kills"] is None else str(seen["oom_kills"])
    for title, key in (
        ("first reclaim (s)", "first_reclaim_s"),
        ("first eviction (s)", "first_eviction_s"),
        ("last eviction (s)", "last_eviction_s"),
    ):
        cells[title] = _span([entry[key] for entry in entries])
    cells["gaps (s)"] = _span([gap for entry in entries for gap in entry["gaps_s"] or []])
    available = [entry["first_available_mib"] for entry in entries]
    cells["kubelet's available at first eviction (MiB)"] = _span(
        [None if mib is None else float(mib) for mib in available], "{:.0f}"
    )
    return cells


def _span(values: list[float | None], form: str = "{:.1f}") -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    low, high = form.format(min(known)), form.format(max(known))
    return low if low == high else f"{low}-{high}"


def notes(observation: Observation) -> list[str]:
    """Working sets, what the hog held, critical pods, and what is missing."""
    said = []
    for entry in observation["repetitions"]:
        label = f"repetition {entry['repetition']}"
        sets = ", ".join(f"{name} {size}" for name, size in (entry["working_sets_mib"] or {}).items())
        said.append(
            f"{label}: working sets (MiB) {sets or 'not read'}; MemAvailable held at {entry['held_text']}; "
            f"critical pods: {entry['critical_text']}"
        )
        if entry["order"]:
            figures = zip(entry["order"], entry["evicted_s"] or [], entry["available_mib"] or [], strict=False)
            steps = ", ".join(f"{name} {_text(after)} s ({_text(free)} MiB)" for name, after, free in figures)
            said.append(f"{label}: evicted after the hog's start, with the kubelet's own available figure: {steps}")
        if entry["slow_kills"]:
            names = ", ".join(entry["slow_kills"])
            said.append(f"{label}: killing took longer than the kubelet waits, evicted when cleaned up: {names}")
        said += [f"{label}: {problem}" for problem in entry["problems"]]
    return said


def _text(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"


def params(options: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters. MiB and seconds by name."""
    return {
        "threshold": EVICTION_THRESHOLD,
        "pressure_transition_s": PRESSURE_TRANSITION_S,
        "kubelet_verbosity": KUBELET_VERBOSITY,
        "repetitions": 1 if options["quick"] else int(options["reps"]),
        "target_mib": 1000,
        "floor_mib": 500,
        "tolerance_mib": 6,
        "least_distance_mib": 2,
        "working_set_deadline_s": 180,
        "deadline_s": 240,
        "hold_s": 12,
    }


def budget_s(options: Mapping[str, Any]) -> float:
    """About two and a half minutes a repetition under emulation."""
    return 150.0 * float(params(options)["repetitions"])


def windows_s(options: Mapping[str, Any]) -> float:
    """What the hog holds on for, and the kubelet's own pause after pressure between two repetitions."""
    chosen = params(options)
    count = int(chosen["repetitions"])
    return count * float(chosen["hold_s"]) + (count - 1) * float(chosen["pressure_transition_s"])


SCRIPTS = ("labnode.py", "working_set.py", "hog.py", "oci_image.py", "node_facts.sh")
SHARED_CASES = ("critical", "namespace", "probe")

STAGE = Stage(
    name="eviction",
    title="Eviction order under memory pressure",
    version=1,
    judge_version=3,
    cases=(*ARTICLE, *SHARED_CASES),
    scripts=SCRIPTS,
    params=params,
    budget_s=budget_s,
    collect=collector(ARTICLE),
    parse=parse,
    view=view,
    row=row,
    notes=notes,
    windows_s=windows_s,
)

PRIORITY_STAGE = dataclasses.replace(
    STAGE,
    name="eviction-priority",
    title="Eviction order with one pod of lower priority",
    cases=(*PRIORITY, *SHARED_CASES, "priority-low"),
    params=lambda options: {**params(options), "repetitions": 1},
    budget_s=lambda options: 150.0,
    windows_s=lambda options: float(params(options)["hold_s"]),
    collect=collector(PRIORITY),
)
