"""What a pod has otherwise by a wrong class, part of the kubelet by part. Pure.

The places in Kubernetes that read the class, read at v1.34.4, v1.35.4, v1.36.3 and v1.37.2: cgroup parent and limits
(``pkg/kubelet/cm/pod_container_manager_linux.go``, ``helpers_linux.go``), OOM score (``pkg/kubelet/qos/policy.go``),
admission under pressure (``pkg/kubelet/eviction/eviction_manager.go``), preemption (``pkg/kubelet/preemption``), static
CPU and memory managers (``pkg/kubelet/cm/cpumanager``, ``memorymanager``), swap (``pkg/kubelet/kuberuntime``) and quota
(``pkg/quota/v1/evaluator/core/pods.go``). The eviction ranking does not read it.

Both sides are reckoned, the wrong class with what 1.34-1.36 make of the block and the right one with what 1.37 makes of
it, and only what differs is told.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lab.cgroups import BEST_EFFORT, BURSTABLE, GUARANTEED, cpu_max, memory_max, milli_cpu_to_shares, weight_linear
from lab.qos import Behaviour
from lab.qos_defaults import (
    COMPUTE,
    PodResources,
    Requirements,
    amounts,
    apply_defaults,
    is_pod_level_resource,
    together,
)

NODE_CRITICAL = "system-node-critical"
CRITICAL_PRIORITY = 2_000_000_000
NODE_CRITICAL_PRIORITY = CRITICAL_PRIORITY + 1000
"""The two priorities above the 1,000,000,000 that a PriorityClass of one's own may have at most
(``ValidatePriorityClass``, ``pkg/apis/scheduling/validation``): no other class, and no default one, is critical."""

_SYSTEM_PRIORITIES = {"system-cluster-critical": CRITICAL_PRIORITY, NODE_CRITICAL: NODE_CRITICAL_PRIORITY}
_MEMORY_PRESSURE = "node.kubernetes.io/memory-pressure"
_SLICES = {
    BEST_EFFORT: "in the BestEffort slice, whose pods have a cpu.weight of 1 together,",
    BURSTABLE: "in the Burstable slice",
    GUARANTEED: "directly below kubepods",
}
_ZERO = Fraction(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What else than resources and class decides how a kubelet treats a pod.

    ``preempted_by`` names whom the pod makes room for, empty for none.
    """

    critical: bool
    node_critical: bool
    preempted_by: str
    tolerates_pressure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCgroup:
    """What the kubelet writes into a pod's cgroup: the weight, and limits as the files read (``max`` for none)."""

    weight: int
    cpu_max: str
    memory_max: str


def losses(
    spec: Mapping[str, Any],
    wrong: str,
    right: str,
    limit_ranges: Sequence[Mapping[str, Any]] = (),
    *,
    standing: Standing | None = None,
) -> tuple[str, ...]:
    """What a pod of class ``wrong`` has otherwise than the same pod of class ``right``, a text per reader of it.

    ``standing`` is that of ``spec`` alone when it is not given. Nothing is said of a ``wrong`` that is no class, as a
    posted status may have one. ParseError for amounts that are none.
    """
    if wrong not in _SLICES:
        return ()
    standing = standing_of(spec) if standing is None else standing
    before = apply_defaults(spec, Behaviour.EMPTY_BLOCK_SHADOWS.defaults, limit_ranges)
    after = apply_defaults(spec, Behaviour.FIXED.defaults, limit_ranges)
    overhead = amounts(spec, "overhead")
    found = [*_cgroup(pod_cgroup(before, wrong, overhead), pod_cgroup(after, right, overhead), wrong, right, after)]
    if not standing.node_critical:
        found.append(f"OOM score: oom_score_adj {_oom_score(before, wrong)} instead of {_oom_score(after, right)}")
    if wrong == BEST_EFFORT:
        found.append("quota: a ResourceQuota of scope BestEffort counts it, or refuses it")
    elif right == BEST_EFFORT:
        found.append("quota: a ResourceQuota of scope BestEffort does not count it")
    found += _treatment(wrong, right, standing)
    if right == GUARANTEED and not has_pod_level_values(after):
        found.append(
            "CPU manager: no exclusive CPUs and no pinned memory under the static policies"
            if asks_for_whole_cpus(after)
            else "memory manager: no pinned memory under the static policy"
        )
    if right == BURSTABLE and not standing.critical and any(map(_may_swap, after.every_container)):
        found.append("swap: none under LimitedSwap")
    return tuple(found)


def standing_of(spec: Mapping[str, Any], *, mirror: bool = False, daemon: bool = False) -> Standing:
    """Standing of a pod: ``mirror`` for that of a static pod, ``daemon`` for one of a DaemonSet.

    ``IsCriticalPod``, ``IsNodeCriticalPod`` and ``Preemptable``, ``pkg/kubelet/types/pod_update.go``. Without a
    priority in the spec that of its priorityClassName counts, as the admission plugin Priority will set it. The
    DaemonSet controller adds the toleration (``AddOrUpdateDaemonPodTolerations``, ``pkg/controller/daemon/util``).
    """
    name, priority = spec.get("priorityClassName"), spec.get("priority")
    if not isinstance(priority, int) or isinstance(priority, bool):
        priority = _SYSTEM_PRIORITIES.get(name) if isinstance(name, str) else None
    critical = mirror or (priority is not None and priority >= CRITICAL_PRIORITY)
    if not critical or (priority is not None and priority < CRITICAL_PRIORITY):
        preempted_by = "a critical pod"
    else:
        preempted_by = f"a {NODE_CRITICAL} pod" if priority is not None and priority < NODE_CRITICAL_PRIORITY else ""
    tolerations = spec.get("tolerations")
    return Standing(
        critical=critical,
        node_critical=critical and name == NODE_CRITICAL,
        preempted_by=preempted_by,
        tolerates_pressure=daemon or any(map(_tolerates, tolerations if isinstance(tolerations, list) else ())),
    )


def pod_cgroup(pod: PodResources, qos: str, overhead: Mapping[str, Fraction]) -> PodCgroup:
    """Cgroup of a defaulted pod of class ``qos`` (``ResourceConfigForPod``, ``pkg/kubelet/cm/helpers_linux.go``).

    ``overhead`` is that of the pod's RuntimeClass. Amounts below zero, which no API server takes, count as zero.
    """
    if qos == BEST_EFFORT:
        return PodCgroup(weight=weight_linear(milli_cpu_to_shares(0)), cpu_max=cpu_max(None), memory_max="max")
    block = pod.block if has_pod_level_values(pod) else None
    requests = together(pod, lambda own: own.requests)
    limits = together(pod, lambda own: own.limits)
    if block is not None:
        requests |= {name: amount for name, amount in block.requests.items() if is_pod_level_resource(name)}
        limits |= {name: amount for name, amount in block.limits.items() if is_pod_level_resource(name)}
    written = {
        name: qos == GUARANTEED
        or (block is not None and block.limits.get(name, _ZERO) != 0)
        or all(own.limits.get(name, _ZERO) != 0 for own in pod.every_container)
        for name in COMPUTE
    }
    limits = {name: limits[name] + overhead.get(name, _ZERO) for name in COMPUTE if written[name] and limits.get(name)}
    request = requests.get("cpu", _ZERO) + overhead.get("cpu", _ZERO)
    return PodCgroup(
        weight=weight_linear(milli_cpu_to_shares(_up(request * 1000))),
        cpu_max=cpu_max(_up(limits.get("cpu", _ZERO) * 1000)),
        memory_max=memory_max(_up(limits.get("memory", _ZERO))),
    )


def has_pod_level_values(pod: PodResources) -> bool:
    """``IsPodLevelResourcesSet`` of a pod: a zero counts, an empty block does not.

    The static CPU and memory managers pass over such a pod in every class, unless the gate PodLevelResourceManagers
    is on, which it is by default in no version (``allocateForAdd`` in ``cpumanager/policy_static.go`` and
    ``memorymanager/policy_static.go``, ``pkg/features/kube_features.go``, 1.37.2).
    """
    block = pod.block
    return block is not None and any(map(is_pod_level_resource, (*block.requests, *block.limits)))


def asks_for_whole_cpus(pod: PodResources) -> bool:
    """Whether a container requests whole CPUs, one at least: the static policy looks at each container, not at sums.

    ``guaranteedCPUs``, ``pkg/kubelet/cm/cpumanager/policy_static.go``.
    """
    asked = (own.requests.get("cpu", _ZERO) for own in pod.every_container)
    return any(amount >= 1 and amount.denominator == 1 for amount in asked)


def _cgroup(has: PodCgroup, should: PodCgroup, wrong: str, right: str, pod: PodResources) -> Iterator[str]:
    """What differs in the pod's cgroup and in its place."""
    if has.weight != should.weight:
        share = ", and its share of the weight of the Burstable slice" if right == BURSTABLE else ""
        yield f"weight: cpu.weight {has.weight} instead of {should.weight}{share}"
    yield f"slice: {_SLICES[wrong]} instead of {_SLICES[right].rstrip(',')}"
    missing, other = [], []
    for file, is_set, wanted in (
        ("cpu.max", has.cpu_max, should.cpu_max),
        ("memory.max", has.memory_max, should.memory_max),
    ):
        if is_set == wanted:
            continue
        if is_set.startswith("max"):
            missing.append(file)
        else:
            other.append(f"{file} {is_set} instead of {'none' if wanted.startswith('max') else wanted}")
    told = [f"no {' and '.join(missing)} for the pod as a whole"] if missing else []
    if told or other:
        exclusive = "cpu.max" in missing and right == GUARANTEED and asks_for_whole_cpus(pod)
        lifted = exclusive and not has_pod_level_values(pod)
        note = " (exclusive CPUs of the static policy go without cpu.max too)" if lifted else ""
        yield f"limits at pod level: {', '.join([*told, *other])}{note}"


def _treatment(wrong: str, right: str, standing: Standing) -> Iterator[str]:
    """What admission under pressure and preemption do with it."""
    if wrong == BEST_EFFORT and not (standing.critical or standing.tolerates_pressure):
        yield "memory pressure: the kubelet of a node under memory pressure rejects it as a new pod"
    if wrong == BEST_EFFORT and standing.preempted_by:
        yield f"preemption: among the first to make room for {standing.preempted_by}"
    elif (wrong, right) == (BURSTABLE, GUARANTEED) and standing.preempted_by:
        yield f"preemption: makes room for {standing.preempted_by} before Guaranteed pods do"


def _oom_score(pod: PodResources, qos: str) -> str:
    """``GetContainerOOMScoreAdjust`` of a pod that is not node-critical, over containers and sizes of node."""
    if qos != BURSTABLE:
        return {BEST_EFFORT: "1000", GUARANTEED: "-997"}[qos]
    parts: tuple[Requirements, ...] = pod.every_container if pod.block is None else (*pod.every_container, pod.block)
    if all(own.requests.get("memory", _ZERO) == 0 for own in parts):
        return "999"
    return "3 to 999 (lower the more memory is requested)"


def _may_swap(own: Requirements) -> bool:
    """``GetContainerSwapBehavior`` for a container of a Burstable pod: a memory request, and another limit or none."""
    request = own.requests.get("memory", _ZERO)
    return request != 0 and request != own.limits.get("memory", _ZERO)


def _tolerates(toleration: Any) -> bool:
    """``ToleratesTaint`` for the taint of memory pressure, which has no value and the effect NoSchedule."""
    if not isinstance(toleration, Mapping):
        return False
    operator = toleration.get("operator") or "Equal"
    matched = (toleration.get("effect") or "NoSchedule") == "NoSchedule"
    matched = matched and (toleration.get("key") or _MEMORY_PRESSURE) == _MEMORY_PRESSURE
    return matched and (operator == "Exists" or (operator == "Equal" and not toleration.get("value")))


def _up(amount: Fraction) -> int:
    return max(0, math.ceil(amount))
