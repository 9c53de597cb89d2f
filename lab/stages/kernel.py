"""Stage kernel: what the kernel holds for each pod, beside what the kubelet's and the runtime's formulas give."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lab import cgroups, qos
from lab.parse.lines import Record, of_kind, records
from lab.parse.pods import all_pods, behaviour_on, container_id, parse_pods
from lab.qos import Behaviour
from lab.quantity import cpu_milli, memory_bytes
from lab.stages.context import StageContext
from lab.stages.contract import Observation, Raw, Stage
from lab.stages.qos_class import PODS, SCRIPTS, in_order

FILES = ("cpu.weight", "cpu.max", "memory.max", "memory.min", "memory.low", "memory.high", "memory.swap.max")
COMPARED = ("cpu_weight", "cpu_max", "memory_max")
PROTECTION = ("memory_min", "memory_low", "memory_high", "memory_swap_max")
"""Files that only MemoryQoS and swap change; shown when they differ from a node without either."""


def collect(ctx: StageContext) -> None:
    """The same six pods; every cgroup level and every process."""
    ctx.ensure_critical()
    pods = ctx.ensure_pods(PODS)
    ctx.save("pods.json", ctx.kubectl.get_text("pods", "-A"))
    ctx.save("node.json", ctx.node_object())
    words = [f"{pod.name}={pod.uid}" for pod in pods.values()]
    ctx.save("cgroups.jsonl", ctx.script("pod_cgroups.py", *words, timeout_s=90, repeatable=True).stdout)


def parse(raw: Raw) -> Observation:
    """Read values beside expected ones, for pod, container, both parents and every process."""
    behaviour, facts = behaviour_on(raw)
    formula = cgroups.container_weight_formula(facts.runc)
    pods = parse_pods(raw["pods.json"])
    found = records(raw["cgroups.jsonl"], "pod-cgroups")
    levels, processes = of_kind(found, "level"), of_kind(found, "process")
    capacity = facts.memory_kib * 1024
    result: dict[str, Any] = {}
    for name in PODS:
        pod = pods.get(name)
        mine = [record for record in levels if record["pod"] == name]
        wanted = None if pod is None else container_id(pod)
        result[name] = {
            "class": None if pod is None else pod.get("status", {}).get("qosClass"),
            "pod": _files(_one(mine, "pod", None)),
            "container": _files(_one(mine, "container", wanted)),
            "path": _path(_one(mine, "pod", None)),
            **_process_values(processes, name, wanted),
            "expected": None if pod is None else expected(pod["spec"], behaviour, formula, capacity),
        }
    parents = {record["path"].rsplit("/", 1)[1]: _files(record) for record in levels if record["level"] == "parent"}
    return {
        "pods": result,
        "parents": parents,
        "parents_expected": expected_parents(all_pods(raw["pods.json"]).values(), facts.cpus, behaviour),
        "capacity_bytes": capacity,
        "pod_formula": "linear (kubelet)",
        "container_formula": f"{formula.name} (runc {facts.runc})",
    }


def _one(levels: Sequence[Record], kind: str, wanted: str | None) -> Record | None:
    if kind == "container" and wanted is None:
        return None
    for record in levels:
        if record["level"] == kind and (wanted is None or wanted in record["path"]):
            return record
    return None


def _files(record: Record | None) -> dict[str, Any]:
    """cgroup files with ``_`` for ``.``; the weight as a number; None for what is not there."""
    texts = {} if record is None else record["files"]
    values: dict[str, Any] = {name.replace(".", "_"): texts.get(name) for name in FILES}
    if values["cpu_weight"] is not None:
        values["cpu_weight"] = int(values["cpu_weight"])
    return values


def _path(record: Record | None) -> str | None:
    return None if record is None else str(record["path"])


def _process_values(processes: Sequence[Record], name: str, wanted: str | None) -> dict[str, Any]:
    """OOM values of every process of the pod's own container (not of the sandbox's)."""
    mine = [
        record
        for record in processes
        if record["pod"] == name and wanted is not None and record["cgroup"] and wanted in record["cgroup"]
    ]
    adjust = [int(record["oom_score_adj"]) for record in mine if record["oom_score_adj"] is not None]
    score = [int(record["oom_score"]) for record in mine if record["oom_score"] is not None]
    same = len(set(adjust)) == 1
    return {
        "oom_score_adj_all": adjust,
        "oom_score_adj": adjust[0] if same else None,
        "oom_score": max(score) if score else None,
    }


def expected(
    spec: Mapping[str, Any], behaviour: Behaviour, formula: cgroups.WeightFormula, capacity: int
) -> dict[str, Any]:
    """What the kubelet writes for the pod and the runtime for its only container.

    Rests on ``ResourceConfigForPod`` (pkg/kubelet/cm/helpers_linux.go) and ``GetContainerOOMScoreAdjust``
    (pkg/kubelet/qos/policy.go): a BestEffort pod gets the least weight and no limit, whatever its containers ask for.
    """
    kind = qos.qos_class(spec, behaviour)
    block = spec.get("resources")
    pod_level = behaviour is not Behaviour.BEFORE_1_34 and qos.is_pod_level_resources_set(block)
    own = spec["containers"][0].get("resources", {})
    total = block if pod_level and block is not None else own
    request, limit = _amounts(total, "requests"), _amounts(total, "limits")
    shares = cgroups.milli_cpu_to_shares(request["cpu"] or 0)
    best_effort = kind == cgroups.BEST_EFFORT
    container_limit = _amounts(own, "limits")
    if pod_level:
        # A container without a limit of its own gets the pod's (kubelet's container config with pod-level resources).
        container_limit = {name: container_limit[name] or limit[name] for name in container_limit}
    # Without a request of its own a container's shares come from its limit (calculateLinuxResources).
    container_shares = cgroups.milli_cpu_to_shares(_amounts(own, "requests")["cpu"] or container_limit["cpu"] or 0)
    return {
        "class": kind,
        "pod": {
            "cpu_weight": cgroups.weight_linear(2 if best_effort else shares),
            "cpu_max": cgroups.cpu_max(None if best_effort else limit["cpu"]),
            "memory_max": cgroups.memory_max(None if best_effort else limit["memory"]),
        },
        "container": {
            "cpu_weight": formula.weight(container_shares),
            "cpu_max": cgroups.cpu_max(container_limit["cpu"]),
            "memory_max": cgroups.memory_max(container_limit["memory"]),
        },
        "oom_score_adj": cgroups.oom_score_adj(kind, request["memory"] or 0, capacity),
    }


def expected_parents(pods: Iterable[Mapping[str, Any]], cpus: int, behaviour: Behaviour) -> dict[str, int]:
    """Weight of ``kubepods`` (all CPUs) and of both class slices (the Burstable pods' requests; the least).

    Rests on ``setCPUCgroupConfig`` (pkg/kubelet/cm/qos_container_manager_linux.go). By systemd name; a slice without a
    value here has no formula.
    """
    burstable = 0
    for pod in pods:
        if pod.get("status", {}).get("qosClass") == cgroups.BURSTABLE:
            burstable += _pod_request_milli(pod["spec"], behaviour)
    return {
        "kubepods.slice": cgroups.weight_linear(cgroups.milli_cpu_to_shares(cpus * 1000)),
        "kubepods-burstable.slice": cgroups.weight_linear(cgroups.milli_cpu_to_shares(burstable)),
        "kubepods-besteffort.slice": cgroups.weight_linear(2),
    }


def _pod_request_milli(spec: Mapping[str, Any], behaviour: Behaviour) -> int:
    block = spec.get("resources")
    if behaviour is not Behaviour.BEFORE_1_34 and block is not None and qos.is_pod_level_resources_set(block):
        return _amounts(block, "requests")["cpu"] or 0
    return sum(_amounts(entry.get("resources", {}), "requests")["cpu"] or 0 for entry in spec["containers"])


def _amounts(block: Mapping[str, Any], key: str) -> dict[str, int | None]:
    part = block.get(key) or {}
    return {
        "cpu": cpu_milli(part["cpu"]) if "cpu" in part else None,
        "memory": memory_bytes(part["memory"]) if "memory" in part else None,
    }


def view(observation: Observation) -> dict[str, Any]:
    """``pods[name].pod.cpu_weight`` …, ``.container.…``, ``.oom_score_adj``, ``.expected.…``.

    Also ``parents`` (both slices above the pod) and ``mismatches`` (None unless all values were read).
    """
    complete = all(_is_complete(pod) for pod in observation["pods"].values())
    return {
        "pods": observation["pods"],
        "parents": observation["parents"],
        "mismatches": mismatches(observation) if complete else None,
    }


def _is_complete(pod: Mapping[str, Any]) -> bool:
    read = [pod[level][name] for level in ("pod", "container") for name in COMPARED]
    return None not in (pod["expected"], pod["oom_score_adj"], *read)


def mismatches(observation: Observation) -> list[str]:
    """Every read value that differs from its formula, as ``pod level file: read, expected``."""
    found = []
    for name, pod in observation["pods"].items():
        if pod["expected"] is None:
            continue
        for level in ("pod", "container"):
            for file in COMPARED:
                read, wanted = pod[level][file], pod["expected"][level][file]
                if read is not None and read != wanted:
                    found.append(f"{name} {level} {file}: {read}, formula gives {wanted}")
        if pod["oom_score_adj"] is not None and pod["oom_score_adj"] != pod["expected"]["oom_score_adj"]:
            wanted = pod["expected"]["oom_score_adj"]
            found.append(f"{name} oom_score_adj: {pod['oom_score_adj']}, formula gives {wanted}")
    return found


def unusual(observation: Observation) -> list[str]:
    """Protection files that differ from a node without MemoryQoS and swap, and slice weights that no formula gives."""
    found = []
    for name, pod in observation["pods"].items():
        for level in ("pod", "container"):
            usual = {"memory_min": "0", "memory_low": "0", "memory_high": "max"}
            # The kubelet forbids containers to swap; the pod above them has no limit of its own.
            usual["memory_swap_max"] = "0" if level == "container" else "max"
            for file in PROTECTION:
                read = pod[level][file]
                if read is not None and read != usual[file]:
                    found.append(f"{name} {level} {file}: {read}, usual is {usual[file]}")
    for slice_name, weight in observation["parents_expected"].items():
        read = observation["parents"].get(slice_name, {}).get("cpu_weight")
        if read is not None and read != weight:
            found.append(f"{slice_name} cpu_weight: {read}, formula gives {weight}")
    return found


def row(observation: Observation) -> dict[str, str]:
    """Per pod: weight of pod/container, CPU and memory limit of the pod, oom_score_adj and oom_score."""
    cells = {}
    for name, pod in in_order(observation["pods"]):
        level = pod["pod"]
        cells[name] = (
            f"weight {_text(level['cpu_weight'])}/{_text(pod['container']['cpu_weight'])}, "
            f"cpu {_cpus(level['cpu_max'])}, mem {_mebibytes(level['memory_max'])}, "
            f"adj {_text(pod['oom_score_adj'])} (score {_text(pod['oom_score'])})"
        )
    return cells


def _text(value: Any) -> str:
    return "-" if value is None else str(value)


def _cpus(value: str | None) -> str:
    """cpu.max as CPUs."""
    match = re.fullmatch(r"(\d+) ([1-9]\d*)", value or "")
    if match is not None:
        return f"{int(match[1]) / int(match[2]):g}"
    return "max" if (value or "").startswith("max ") else _text(value)


def _mebibytes(value: str | None) -> str:
    return _text(value) if value is None or not value.isdigit() else f"{int(value) / (1 << 20):g}Mi"


def notes(observation: Observation) -> list[str]:
    """Formulas, slice weights, and every value that no formula explains."""
    weights = ", ".join(
        f"{name} {_text(files['cpu_weight'])}" for name, files in sorted(observation["parents"].items())
    )
    said = [
        f"weight pod/container: pods and slices {observation['pod_formula']}, "
        f"containers {observation['container_formula']}",
        f"slice weights: {weights}",
    ]
    return said + [f"not explained: {text}" for text in [*mismatches(observation), *unusual(observation)]]


STAGE = Stage(
    name="kernel",
    title="Kernel numbers: weights, limits and OOM values",
    version=1,
    judge_version=2,
    cases=(*PODS, "critical", "namespace"),
    scripts=SCRIPTS,
    params=lambda options: {},
    budget_s=lambda options: 15.0,
    collect=collect,
    parse=parse,
    view=view,
    row=row,
    notes=notes,
)
