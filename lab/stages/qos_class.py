"""Stage class: the pod-level block as stored, ``status.qosClass``, and the cgroup path, compared with each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab import cgroups, qos
from lab.parse.lines import of_kind, records
from lab.parse.pods import behaviour_on, parse_pods, stored_block
from lab.stages.context import StageContext
from lab.stages.contract import Observation, Raw, Stage

PODS = ("be", "ctl-burstable", "emp-burstable", "ctl-guaranteed", "emp-guaranteed", "plr-burstable")
SCRIPTS = ("labnode.py", "pod_cgroups.py", "oci_image.py", "node_facts.sh")


def collect(ctx: StageContext) -> None:
    """Six pods; the API's view and the kernel's view of each."""
    ctx.ensure_critical()
    pods = ctx.ensure_pods(PODS)
    ctx.save("pods.json", ctx.kubectl.get_text("pods", "-A"))
    words = [f"{pod.name}={pod.uid}" for pod in pods.values()]
    ctx.save("cgroups.jsonl", ctx.script("pod_cgroups.py", *words, timeout_s=90, repeatable=True).stdout)


def parse(raw: Raw) -> Observation:
    """Per pod: stored block, class by status, by cgroup path, and by the classifier for this version."""
    behaviour, _ = behaviour_on(raw)
    pods = parse_pods(raw["pods.json"])
    levels = of_kind(records(raw["cgroups.jsonl"], "pod-cgroups"), "level")
    paths = {record["pod"]: record["path"] for record in levels if record["level"] == "pod"}
    found: dict[str, Any] = {}
    for name in PODS:
        pod = pods.get(name)
        path = paths.get(name)
        found[name] = {
            "stored": None if pod is None else stored_block(pod),
            "status_class": None if pod is None else pod.get("status", {}).get("qosClass"),
            "cgroup_class": None if path is None else cgroups.qos_from_path(path),
            "cgroup_path": path,
            "expected_class": None if pod is None else qos.qos_class(pod["spec"], behaviour),
        }
    return {"behaviour": behaviour.name, "pods": found}


def view(observation: Observation) -> dict[str, Any]:
    """``pods[name].stored, .status_class, .cgroup_class, .expected_class``; ``agree`` when status and path agree."""
    pods = observation["pods"]
    pairs = [(pod["status_class"], pod["cgroup_class"]) for pod in pods.values()]
    known = all(None not in pair for pair in pairs)
    return {"pods": pods, "agree": all(first == second for first, second in pairs) if known else None}


def in_order(pods: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The six pods in the order of PODS, whatever the order in which they were stored."""
    return [(name, pods[name]) for name in PODS if name in pods]


def row(observation: Observation) -> dict[str, str]:
    """One column per pod: the class, or both where status and cgroup path differ."""
    return {name: class_text(pod) for name, pod in in_order(observation["pods"])}


def class_text(pod: Mapping[str, Any]) -> str:
    """``Burstable``, ``Burstable / cgroup BestEffort``, or ``-`` when nothing was seen."""
    status, path = pod["status_class"], pod["cgroup_class"]
    if status is None and path is None:
        return "-"
    return str(status) if status == path else f"{status or '?'} / cgroup {path or '?'}"


def notes(observation: Observation) -> list[str]:
    """Pods whose class is not what the classifier says for this behaviour, and the block as stored."""
    said = []
    for name, pod in observation["pods"].items():
        if pod["expected_class"] is not None and pod["status_class"] != pod["expected_class"]:
            said.append(f"{name}: status says {pod['status_class']}, the classifier {pod['expected_class']}")
    stored = {name: pod["stored"] for name, pod in observation["pods"].items() if name.startswith("emp-")}
    said.append("pod-level block as stored: " + ", ".join(f"{name} {text}" for name, text in stored.items()))
    return said


STAGE = Stage(
    name="class",
    title="QoS class: stored block, status and cgroup path",
    version=1,
    judge_version=1,
    cases=(*PODS, "critical", "namespace"),
    scripts=SCRIPTS,
    params=lambda options: {},
    budget_s=lambda options: 75.0,
    collect=collect,
    parse=parse,
    view=view,
    row=row,
    notes=notes,
)
