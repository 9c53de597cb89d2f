"""What a pod loses by the wrong class, what mends it, and what does not. Pure.

The places in Kubernetes that read the class are those of v1.36.3: cgroup parent and limits
(``pkg/kubelet/cm/pod_container_manager_linux.go``, ``helpers_linux.go``), OOM score (``pkg/kubelet/qos/policy.go``),
admission under pressure (``pkg/kubelet/eviction/eviction_manager.go``), preemption (``pkg/kubelet/preemption``), static
CPU and memory managers (``pkg/kubelet/cm/cpumanager``, ``memorymanager``), swap (``pkg/kubelet/kuberuntime``) and quota
(``pkg/quota/v1/evaluator/core/pods.go``). The eviction ranking does not read it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from lab.cgroups import BEST_EFFORT, BURSTABLE, GUARANTEED, milli_cpu_to_shares, weight_linear
from lab.qos import Behaviour
from lab.qos_defaults import PodResources, apply_defaults, together
from lab.scan.producers import Producer
from lab.scan.records import EMPTY_BLOCK, POSTED_CLASS, STORED_CLASS

_OOM = {BEST_EFFORT: "1000", BURSTABLE: "3 to 999 (lower the more memory is requested)", GUARANTEED: "-997"}
_NO_STATUS = "delete the status of the manifest (its class is stored unread up to 1.36)"
_FILES = {"cpu": "cpu.max", "memory": "memory.max"}


def losses(
    spec: Mapping[str, Any], wrong: str, right: str, limit_ranges: Sequence[Mapping[str, Any]] = ()
) -> tuple[str, ...]:
    """What a pod of class ``wrong`` has otherwise than the same pod of class ``right``, one text per consumer.

    Nothing is said of a ``wrong`` that is no class, as a posted status may have one.
    """
    if wrong not in _OOM:
        return ()
    pod = apply_defaults(spec, Behaviour.BEFORE_1_34.defaults, limit_ranges)
    cpu = together(pod, lambda own: own.requests).get("cpu", Fraction(0))
    found = []
    if wrong == BEST_EFFORT:
        share = ", and its share of the weight of the Burstable slice" if right == BURSTABLE else ""
        weight = weight_linear(milli_cpu_to_shares(max(0, int(cpu * 1000))))
        found.append(f"weight: cpu.weight 1 instead of {weight}{share}")
        files = [file for name, file in _FILES.items() if _all_limited(pod, name)]
        if files:
            found.append(f"limits at pod level: no {' and '.join(files)} for the pod as a whole")
    found.append(f"OOM score: oom_score_adj {_OOM[wrong]} instead of {_OOM[right]}")
    if wrong == BEST_EFFORT:
        found.append("quota: a ResourceQuota of scope BestEffort counts it, or refuses it")
        found.append("memory pressure: a node under memory pressure rejects it as a new pod")
        found.append("preemption: among the first to make room for a critical pod")
    elif right == BEST_EFFORT:
        found.append("quota: a ResourceQuota of scope BestEffort does not count it")
    if right == GUARANTEED:
        some = "" if _asks_for_whole_cpus(pod) else " (a container would get some if it asked for whole ones)"
        found.append(f"CPU manager: no exclusive CPUs{some} and no pinned memory under the static policies")
    elif right == BURSTABLE and wrong == BEST_EFFORT:
        found.append("swap: none under LimitedSwap")
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def fixes(*, reason: str, path: str, producer: Producer | None, live: bool, posted: bool) -> tuple[str, ...]:
    """What mends it, the nearest fix first; each one is enough.

    ``reason`` is that of the finding. ``posted`` says that a manifest has a status with a class, which an API server up
    to 1.36 stores unread: nothing else in the manifest helps there before the status is gone.
    """
    later = "and recreate the pod" if live else "(pods from before keep their class until they are recreated)"
    upgrade = f"upgrade the API server to 1.37 or later {later}"
    if reason == STORED_CLASS:
        return ("recreate the pod, without the status if it is made from an exported manifest",)
    if reason == POSTED_CLASS:
        return (_NO_STATUS, upgrade)
    found = [producer.fix] if producer is not None and producer.fix else []
    if reason == EMPTY_BLOCK:
        found.append(f"remove the key: no `resources` in {path} (in a template: render it only when it has content)")
        found.append(
            "set it: real requests and limits for cpu and memory at pod level; the class then comes from them, and "
            "limits hold for the pod as a whole (requests alone may be affected again: only 1.37 completes them)"
        )
    else:
        found.append(
            "set both requests and limits for cpu and memory at pod level, so that no version has anything to complete"
        )
    if posted:
        found = [f"{_NO_STATUS}, and {text}" for text in found]
    return (*found, upgrade)


@functools.lru_cache(maxsize=2)
def no_help(*, empty: bool) -> tuple[str, ...]:
    """What looks like a fix and is none."""
    found = []
    if empty:
        found.append("requests or limits on the containers: an empty block hides them")
        found.append("a LimitRange: it fills the containers and leaves the block empty")
    found.append("a newer kubelet, or the gate on the kubelet alone: the API server computes and stores the class")
    found.append("an upgrade to 1.37 without recreating the pods: the stored class stays")
    return tuple(found)


def _asks_for_whole_cpus(pod: PodResources) -> bool:
    """Whether a container requests whole CPUs, one at least: the static policy looks at each container, not at sums.

    ``guaranteedCPUs``, ``pkg/kubelet/cm/cpumanager/policy_static.go``.
    """
    asked = (own.requests.get("cpu", Fraction(0)) for own in pod.every_container)
    return any(amount >= 1 and amount.denominator == 1 for amount in asked)


def _all_limited(pod: PodResources, name: str) -> bool:
    """Whether every container has a limit, which is what gives the pod's cgroup one (``ResourceConfigForPod``)."""
    parts = (*pod.containers, *pod.init_containers)
    return bool(parts) and all(part.limits.get(name, 0) > 0 for part in parts)
