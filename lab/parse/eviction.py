"""One repetition of the eviction stage from its raw texts: order, ranking, times, models, kernel OOM kills. Pure."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lab import ranking
from lab.model import Missing
from lab.parse.kubelet_log import EvictionEvent, kubelet_available_bytes, parse_events
from lab.parse.lines import Record, of_kind, records
from lab.parse.pods import critical_pods, parse_pods
from lab.quantity import memory_bytes
from lab.ranking import RankedPod

PREFIX = "evict-"
NAMESPACE = "lab"
MIB = 1 << 20
HELD_MIB = 100
"""How near to its target the hog must have kept MemAvailable (median of the samples after the first eviction)."""
PARTS = ("working-sets.jsonl", "pods-before.json", "hog.jsonl", "kubelet.log", "kernel.log")
KEYS = (
    "order", "first_ranking", "models", "oom_kills", "held", "working_sets_mib", "first_reclaim_s", "first_eviction_s",
    "last_eviction_s", "slow_kills", "evicted_s", "gaps_s", "first_available_mib", "available_mib", "critical",
    "critical_last",
)  # fmt: skip
KERNEL_OOM = re.compile(r"invoked oom-killer|Out of memory: Killed process|oom-kill:|Memory cgroup out of memory")


def ranked_pods(working_sets: str, pods: str) -> list[RankedPod]:
    """The pods as the ranking sees them: class as stored, request of the containers, the kubelet's working set."""
    last = of_kind(records(working_sets, "working-set", 2), "poll")[-1]["summary"]["pods"]
    found = []
    for name, pod in parse_pods(pods).items():
        if not name.startswith(PREFIX):
            continue
        requests = pod["spec"]["containers"][0].get("resources", {}).get("requests", {})
        found.append(
            RankedPod(
                name=name.removeprefix(PREFIX),
                qos=pod["status"]["qosClass"],
                memory_request_bytes=memory_bytes(requests["memory"]) if "memory" in requests else 0,
                usage_bytes=int(last[f"{NAMESPACE}/{name}"]),
                priority=int(pod["spec"].get("priority", 0)),
            )
        )
    return found


def parse_repetition(raw: Mapping[str, str], number: int, cases: Sequence[str]) -> dict[str, Any]:
    """Everything that is known of one repetition; what is not known is None and named in ``problems``."""
    texts = {part: raw.get(f"{number}-{part}") for part in PARTS}
    absent = [part for part, text in texts.items() if text is None]
    problems = [f"not collected: {part}" for part in absent]
    result: dict[str, Any] = dict.fromkeys(KEYS)
    if not absent:
        held = {name: text or "" for name, text in texts.items()}
        hog = records(held["hog.jsonl"], "hog", 2)
        pods = ranked_pods(held["working-sets.jsonl"], held["pods-before.json"])
        events, result["slow_kills"] = settled(parse_events(held["kubelet.log"]))
        names = [case.removeprefix(PREFIX) for case in cases]
        result |= _order(events, names, problems)
        result |= _times(events, _pressed_at(hog), set(names))
        result["working_sets_mib"] = {pod.name: round(pod.usage_bytes / MIB) for pod in pods}
        result["oom_kills"] = _oom_kills(hog, held["kernel.log"], problems)
        result["held"], result["held_text"] = _held(hog, result["first_eviction_s"])
        result["models"] = _models(pods, result["order"])
        result["critical"] = _critical(events)
        result["critical_last"] = _critical_last(events, critical_pods(held["pods-before.json"]))
        if not hog[-1]["ok"]:
            problems.append(f"hog: {hog[-1]['reason']}")
        if result["held"] is False:
            problems.append(f"the hog did not hold its target: {result['held_text']}")
    result.setdefault("held_text", "not known")
    result["critical_text"] = _critical_text(result["critical"])
    result["problems"] = problems
    return result


def _mine(pod: str) -> str | None:
    namespace, _, name = pod.partition("/")
    return name.removeprefix(PREFIX) if namespace == NAMESPACE and name.startswith(PREFIX) else None


def settled(events: Sequence[EvictionEvent]) -> tuple[list[EvictionEvent], list[str]]:
    """The events with each slow kill turned into the eviction that it was, and the names of those pods.

    When killing a pod takes longer than the kubelet waits, it logs "pod failed to evict" and still counts the pod as
    evicted (``evictPod`` in eviction_manager.go returns true): it waits for the clean-up and logs that. Such a pod is
    evicted when the log says that it is cleaned up; without that line it stays a failure.
    """
    found: list[EvictionEvent] = []
    slow: list[str] = []
    for position, event in enumerate(events):
        if event.kind == "failed" and (name := _mine(event.pods[0])) is not None:
            later = (other for other in events[position:] if other.kind == "cleaned_up" and event.pods[0] in other.pods)
            cleaned = next(later, None)
            if cleaned is not None:
                slow.append(name)
                found.append(dataclasses.replace(event, kind="evicted", time_s=cleaned.time_s))
                continue
        found.append(event)
    return found, slow


def _order(events: Sequence[EvictionEvent], names: Sequence[str], problems: list[str]) -> dict[str, Any]:
    """The order of successful evictions, checked against the head of each ranking before it; None unless whole."""
    order: list[str] = []
    first_ranking: list[str] | None = None
    head: str | None = None
    resource: str | None = None
    for event in events:
        if event.kind in ("reclaim", "must_evict"):
            resource = event.detail["resourceName"]
        if event.kind == "ranked":
            ranked = [name for name in (_mine(pod) for pod in event.pods) if name is not None]
            first_ranking = first_ranking if first_ranking is not None else ranked
            head = _mine(event.pods[0]) if event.pods else None
        elif event.kind == "evicted" and (name := _mine(event.pods[0])) is not None:
            if name != head:
                problems.append(f"{name} was evicted, but the ranking before named {head} as next")
            if resource not in (None, "memory"):
                problems.append(f"{name} was evicted to reclaim {resource}")
            order.append(name)
    whole = sorted(order) == sorted(names)
    if not whole:
        problems.append(f"the log shows evictions of {order or 'no pod'}, expected all of {sorted(names)}")
    complete_ranking = first_ranking is not None and sorted(first_ranking) == sorted(names)
    consistent = not any("was evicted" in problem for problem in problems)
    return {
        "order": order if whole and consistent else None,
        "first_ranking": first_ranking if complete_ranking else None,
    }


def _pressed_at(hog: Sequence[Record]) -> float | None:
    pressed = of_kind(hog, "press")
    return float(pressed[0]["t"]) if pressed else None


def _times(events: Sequence[EvictionEvent], start: float | None, names: set[str]) -> dict[str, Any]:
    """Seconds from the hog's start to the first reclaim and evictions, gaps, and the kubelet's available figures."""
    reclaims = [event.time_s for event in events if event.kind == "reclaim"]
    evicted = [event for event in events if event.kind == "evicted" and _mine(event.pods[0]) in names]
    available: list[float | None] = [_available_before(events, event) for event in evicted]
    times = [event.time_s for event in evicted]
    return {
        "first_reclaim_s": _since(start, reclaims[:1]),
        "first_eviction_s": _since(start, times[:1]),
        "last_eviction_s": _since(start, times[-1:]),
        "evicted_s": [_since(start, [moment]) for moment in times] if times else None,
        "gaps_s": [round(later - earlier, 1) for earlier, later in itertools.pairwise(times)] if times else None,
        "available_mib": available if times else None,
        "first_available_mib": available[0] if available else None,
    }


def _since(start: float | None, moments: Sequence[float]) -> float | None:
    return None if start is None or not moments else round(moments[0] - start, 1)


def _available_before(events: Sequence[EvictionEvent], evicted: EvictionEvent) -> float | None:
    """The kubelet's newest memory.available at the moment of an eviction, in MiB."""
    figure = None
    for event in events:
        if event is evicted:
            break
        if event.kind == "observation" and event.detail.get("signal") == "memory.available":
            try:
                figure = round(kubelet_available_bytes(event) / MIB, 1)
            except Missing:
                continue
    return figure


def _oom_kills(hog: Sequence[Record], kernel_log: str, problems: list[str]) -> int | None:
    """Kills by the kernel in the window; None unless vmstat, memory.events and the kernel log all cover it.

    The largest of: the rise of ``oom_kill`` in /proc/vmstat, its rise in the pods' memory.events, and 1 for any line of
    the kernel log that speaks of one.
    """
    lines = [line for line in kernel_log.splitlines() if KERNEL_OOM.search(line)]
    problems += [f"kernel log: {line.strip()}" for line in lines[:3]]
    begin, end = kernel_log.find("lab-hog press"), kernel_log.find("lab-hog release")
    if begin < 0 or end < begin:
        problems.append("the kernel log does not cover the whole window")
        return None
    counts = [record["oom_kill"] for kind in ("press", "release") for record in of_kind(hog, kind)]
    events = [_event_count(record["pod_events"]) for record in of_kind(hog, "sample")]
    if len(counts) != 2 or None in counts or len(events) < 2 or None in (events[0], events[-1]):
        problems.append("the kill counters were not read at both ends of the window")
        return None
    first, last = events[0] or 0, events[-1] or 0
    return max(int(counts[1]) - int(counts[0]), last - first, 1 if lines else 0)


def _event_count(text: str | None) -> int | None:
    match = re.search(r"^oom_kill (\d+)$", text or "", flags=re.MULTILINE)
    return int(match[1]) if match else None


def _held(hog: Sequence[Record], first_eviction_s: float | None) -> tuple[bool | None, str]:
    """Whether the hog held its target from the first eviction on, and its figures as text (MiB)."""
    target = int(hog[0]["options"]["target_mib"])
    start = _pressed_at(hog)
    if start is None or first_eviction_s is None:
        return None, "not known"
    if [record["watcher_status"] for record in of_kind(hog, "release")] != [0]:
        return None, "not known: the watcher did not end well"
    values = sorted(
        record["mem_available_kib"] / 1024
        for record in of_kind(hog, "sample")
        if record["mem_available_kib"] is not None and record["t"] >= start + first_eviction_s
    )
    if not values:
        return None, "not known"
    middle = values[len(values) // 2]
    text = f"{middle:.0f} MiB (median; {values[0]:.0f}-{values[-1]:.0f}; target {target})"
    return abs(middle - target) <= HELD_MIB, text


def _models(pods: Sequence[RankedPod], order: Sequence[str] | None) -> list[str] | None:
    if order is None:
        return None
    models = ranking.applicable_models(pods)
    return sorted(name for name, model in models.items() if ranking.consistent(order, model.rank(pods)))


def _critical(events: Sequence[EvictionEvent]) -> dict[str, list[str]]:
    ranked = sorted({pod for event in events if event.kind == "ranked" for pod in event.pods if _mine(pod) is None})
    refused = sorted({pod for event in events if event.kind == "critical_refused" for pod in event.pods})
    return {"ranked": ranked, "refused": refused}


def _critical_last(events: Sequence[EvictionEvent], critical: set[str]) -> bool | None:
    """Whether critical pods stand at the end of every ranking that names one; None when none does."""
    rankings = [[pod in critical for pod in event.pods] for event in events if event.kind == "ranked"]
    with_critical = [ranking for ranking in rankings if any(ranking)]
    return all(ranking == sorted(ranking) for ranking in with_critical) if with_critical else None


def _critical_text(critical: Mapping[str, Sequence[str]] | None) -> str:
    if critical is None:
        return "not known"
    parts = [f"{what} {', '.join(pods)}" for what, pods in critical.items() if pods]
    return "; ".join(parts) or "none ranked, none refused"
