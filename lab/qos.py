"""Executable QoS classifier: which class a pod spec gets, per behaviour of Kubernetes. Pure.

Rebuilt from ``ComputePodQOS``, of which Kubernetes has two copies: ``pkg/apis/core/helper/qos/qos.go`` for internal
types (API server) and ``pkg/apis/core/v1/helper/qos/qos.go`` for v1 (kubelet, quota). Read at v1.33.6, v1.34.4,
v1.35.4, v1.36.3 and v1.37.2; in each the two copies decide alike, and what differs is what was filled in before (see
:mod:`lab.qos_defaults`):

* A pod from the API server: :func:`classify`. The API server computes the class once, at create (``PrepareForCreate``,
  ``pkg/registry/core/pod/strategy.go``), and stores it; kubelet and quota read the stored one (``GetPodQOS``).
* A pod that was posted with a status, as an exported manifest has one: :func:`stored_class`.
* A static pod: :func:`static_pod_class`. Its file holds no status, so the kubelet computes the class itself.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeGuard

from lab.cgroups import BEST_EFFORT, BURSTABLE, GUARANTEED
from lab.qos_defaults import (
    COMPUTE,
    PodLevelDefaults,
    PodResources,
    Requirements,
    amounts,
    apply_defaults,
    is_pod_level_resource,
)

POD_LEVEL_GATE = "PodLevelResources"
FIX_GATE = "PodLevelResourcesFixKubeletQOSClass"
DEFAULTING_GATE = "PodLevelResourcesFixDefaulting"
CLASS_GATES = {POD_LEVEL_GATE: 32, FIX_GATE: 37}
"""The gates that decide the class of a stored pod, with the minor that brought each."""


class Behaviour(enum.Enum):
    """One way in which Kubernetes classifies pods: ``label`` for people, and what becomes of the pod-level block."""

    BEFORE_1_34 = ("<= 1.33", PodLevelDefaults.DROPPED)
    EMPTY_BLOCK_SHADOWS = ("1.34-1.36", PodLevelDefaults.AT_DECODING)
    FIXED = ("1.37+", PodLevelDefaults.AT_CREATE)
    FIX_OFF = ("1.37+ with the fix off", PodLevelDefaults.AT_CREATE)
    FIXED_EARLY_DEFAULTS = ("1.37+ with the defaulting fix off", PodLevelDefaults.AT_DECODING)

    def __init__(self, label: str, defaults: PodLevelDefaults) -> None:
        self.label = label
        self.defaults = defaults


def behaviour_of(minor: int, gates: Mapping[str, bool]) -> Behaviour:
    """Behaviour of version 1.``minor`` with the ``gates`` that were set; a gate that is not there has its default.

    Gates (``pkg/features/kube_features.go``): POD_LEVEL_GATE came in 1.32 and is on since 1.34; FIX_GATE and
    DEFAULTING_GATE came in 1.37, on. A gate has no effect before it came. With POD_LEVEL_GATE off every version behaves
    as up to 1.33. 1.32 and 1.33 with it on, as an alpha, are taken for 1.34; they differ for huge pages only.
    """
    if minor < 32 or not gates.get(POD_LEVEL_GATE, minor >= 34):
        return Behaviour.BEFORE_1_34
    if minor < 37:
        return Behaviour.EMPTY_BLOCK_SHADOWS
    return {
        (True, True): Behaviour.FIXED,
        (True, False): Behaviour.FIXED_EARLY_DEFAULTS,
        (False, True): Behaviour.FIX_OFF,
        (False, False): Behaviour.EMPTY_BLOCK_SHADOWS,
    }[gates.get(FIX_GATE, True), gates.get(DEFAULTING_GATE, True)]


def behaviour_for(minor: int, pod_level_resources: bool, fix_gate: bool) -> Behaviour:
    """Behaviour for pods that were read back from an API server: BEFORE_1_34, EMPTY_BLOCK_SHADOWS or FIXED.

    Such a pod is defaulted already, so how it was makes no difference, and 1.37 with the fix off is 1.34-1.36.
    """
    found = behaviour_of(minor, {POD_LEVEL_GATE: pod_level_resources, FIX_GATE: fix_gate})
    return Behaviour.EMPTY_BLOCK_SHADOWS if found is Behaviour.FIX_OFF else found


def classify(spec: Mapping[str, Any], behaviour: Behaviour, limit_ranges: Sequence[Mapping[str, Any]] = ()) -> str:
    """Class that an API server stores for a pod ``spec`` as a person writes it: Guaranteed, Burstable or BestEffort.

    ``limit_ranges`` are the LimitRange objects of the namespace. Containers and init containers (sidecars are init
    containers) count, ephemeral containers do not. Validation is not done: a spec that the API server refuses gets a
    class all the same. ParseError for a spec or LimitRange that is not of the form.
    """
    return _RULES[behaviour](apply_defaults(spec, behaviour.defaults, limit_ranges))


def stored_class(
    pod: Mapping[str, Any], minor: int, gates: Mapping[str, bool], limit_ranges: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Class that an API server 1.``minor`` with ``gates`` stores for a whole ``pod`` object, status included.

    Up to 1.36 ``PrepareForCreate`` asks ``GetPodQOS`` before it clears the status, so a class that was posted is stored
    unread, whatever text it is, and the quota of a class sees that text. A pod exported from a cluster and created anew
    keeps its class in this way. 1.37 clears the status first. ParseError as in :func:`classify`.
    """
    status = pod.get("status")
    posted = status.get("qosClass") if isinstance(status, Mapping) else None
    if minor < 37 and posted:
        return str(posted)
    return classify(pod["spec"], behaviour_of(minor, gates), limit_ranges)


def qos_class(spec: Mapping[str, Any], behaviour: Behaviour) -> str:
    """:func:`classify` for a pod that was read back: no LimitRange has anything to add."""
    return classify(spec, behaviour)


def static_pod_class(spec: Mapping[str, Any], behaviour: Behaviour) -> str:
    """Class that a kubelet computes for a static pod's ``spec``.

    The kubelet decodes the file (``tryDecodeSinglePod``, ``pkg/kubelet/config/common.go``) and has neither LimitRange
    nor registry. So where the API server completes the block at create, a static pod's block stays as it was written:
    with limits alone it is Guaranteed on 1.36 and Burstable on 1.37. ParseError as in :func:`classify`.
    """
    late = behaviour.defaults is PodLevelDefaults.AT_CREATE
    return _RULES[behaviour](apply_defaults(spec, PodLevelDefaults.NEVER if late else behaviour.defaults))


def affected(spec: Mapping[str, Any], limit_ranges: Sequence[Mapping[str, Any]] = ()) -> bool:
    """Whether 1.34-1.36 give a pod spec another class than 1.37 does.

    Mostly that is an empty block over containers with resources. The other reason is that 1.37 completes a block of
    requests alone, which 1.34-1.36 leave as it is. Without a block the versions agree on every pod that can be created.
    ParseError as in :func:`classify`.
    """
    if spec.get("resources") is None:
        return False
    return classify(spec, Behaviour.EMPTY_BLOCK_SHADOWS, limit_ranges) != classify(spec, Behaviour.FIXED, limit_ranges)


def is_pod_level_resources_set(block: Mapping[str, Any] | None) -> TypeGuard[Mapping[str, Any]]:
    """Whether a pod-level block as written names cpu, memory or huge pages in requests or limits.

    ``IsPodLevelResourcesSet``, ``k8s.io/component-helpers/resource/helpers.go``; since 1.37 also in
    ``pkg/apis/core/helper/helpers.go``. ParseError for a block that is not of the form.
    """
    if block is None:
        return False
    return any(is_pod_level_resource(name) for key in ("requests", "limits") for name in amounts(block, key))


def class_before_1_34(pod: PodResources) -> str:
    """``ComputePodQOS`` with the gate off: the containers decide.

    ``pkg/apis/core/helper/qos/qos.go``, v1.33.6 to v1.36.3, by sums. v1.37.2 with the gate off has the other form,
    which gives the same for every pod that can be created.
    """
    return _by_sums(pod.every_container)


def class_1_34(pod: PodResources) -> str:
    """``ComputePodQOS`` of v1.34.4, v1.35.4 and v1.36.3: a block that is not nil decides alone, an empty one included.

    ``pkg/apis/core/helper/qos/qos.go`` line 89, ``pkg/apis/core/v1/helper/qos/qos.go`` line 92 (v1.36.3: 87).
    """
    return _by_sums(pod.every_container if pod.block is None else (pod.block,))


def class_1_37(pod: PodResources) -> str:
    """``ComputePodQOS`` of v1.37.2: a block decides when it sets a pod-level resource, a zero included.

    ``pkg/apis/core/helper/qos/qos.go`` line 46, ``pkg/apis/core/v1/helper/qos/qos.go`` line 43.
    """
    block = pod.block
    if block is not None and any(is_pod_level_resource(name) for name in (*block.requests, *block.limits)):
        return _requirements_class(block)
    return _combined(pod.every_container)


def class_1_37_fix_off(pod: PodResources) -> str:
    """``ComputePodQOS`` of v1.37.2 with ``PodLevelResourcesFixKubeletQOSClass`` off: a block that is not nil decides.

    Same places as :func:`class_1_37`.
    """
    return _combined(pod.every_container) if pod.block is None else _requirements_class(pod.block)


_RULES: Mapping[Behaviour, Callable[[PodResources], str]] = {
    Behaviour.BEFORE_1_34: class_before_1_34,
    Behaviour.EMPTY_BLOCK_SHADOWS: class_1_34,
    Behaviour.FIXED: class_1_37,
    Behaviour.FIX_OFF: class_1_37_fix_off,
    Behaviour.FIXED_EARLY_DEFAULTS: class_1_37,
}


def _by_sums(parts: Iterable[Requirements]) -> str:
    """The rule up to 1.36: amounts above zero are summed; Guaranteed needs both limits in every part and equal sums."""
    requests: dict[str, Fraction] = {}
    limits: dict[str, Fraction] = {}
    limited = True
    for part in parts:
        for total, own in ((requests, part.requests), (limits, part.limits)):
            for name in COMPUTE:
                if own.get(name, 0) > 0:
                    total[name] = total.get(name, Fraction(0)) + own[name]
        limited = limited and all(part.limits.get(name, 0) > 0 for name in COMPUTE)
    if not requests and not limits:
        return BEST_EFFORT
    return GUARANTEED if limited and requests == limits else BURSTABLE


def _combined(parts: Iterable[Requirements]) -> str:
    """The rule of 1.37: the class that all parts have, Burstable when they differ or one is."""
    classes = {_requirements_class(part) for part in parts}
    if not classes:
        return BEST_EFFORT
    return classes.pop() if len(classes) == 1 else BURSTABLE


def _requirements_class(own: Requirements) -> str:
    """``requirementsQOS`` and ``resourceQOS`` (1.37): each resource by itself; a zero is as if not set."""
    shapes = set()
    for name in COMPUTE:
        request, limit = own.requests.get(name, Fraction(0)), own.limits.get(name, Fraction(0))
        if request != limit:
            return BURSTABLE
        shapes.add(GUARANTEED if request else BEST_EFFORT)
    return shapes.pop() if len(shapes) == 1 else BURSTABLE
