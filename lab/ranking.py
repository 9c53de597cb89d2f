"""Models of the kubelet's eviction order under memory pressure, and which of them a set of pods separates.

A model gives a partial order: groups of pod names, first victims first, no order inside a group.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lab.cgroups import BEST_EFFORT, BURSTABLE, GUARANTEED
from lab.model import Missing, UsageError

Groups = tuple[frozenset[str], ...]

_CLASS_ORDER = {BEST_EFFORT: 0, BURSTABLE: 1, GUARANTEED: 2}
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPod:
    """One pod as the ranking sees it.

    ``qos`` is the class as stored in ``status.qosClass``, so BestEffort for an empty block on 1.34 to 1.36;
    ``memory_request_bytes`` what its containers request together, ``usage_bytes`` its working set.
    """

    name: str
    qos: str
    memory_request_bytes: int
    usage_bytes: int
    priority: int = 0

    @property
    def above_request_bytes(self) -> int:
        """Usage minus request; negative when the pod uses less than it requests."""
        return self.usage_bytes - self.memory_request_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A named rule. It says something only about pods that differ in each field of ``varies``."""

    name: str
    rank: Callable[[Sequence[RankedPod]], Groups]
    varies: tuple[str, ...]


def class_tiers(pods: Sequence[RankedPod]) -> Groups:
    """The common claim: BestEffort pods first, then Burstable, then Guaranteed, by the stored class."""
    return _groups(pods, lambda pod: _class_tier(pod.qos))


def kubelet_source(pods: Sequence[RankedPod]) -> Groups:
    """What the kubelet's code does, by three keys.

    Pods above their request first, then lower priority, then larger usage over request.
    ``rankMemoryPressure``, ``pkg/kubelet/eviction/helpers.go``; its sort is not stable, so equal pods form
    a group.
    """
    return _groups(pods, lambda pod: (pod.above_request_bytes <= 0, pod.priority, -pod.above_request_bytes))


def priority_first(pods: Sequence[RankedPod]) -> Groups:
    """Lower priority first whatever the usage, then larger usage over request."""
    return _groups(pods, lambda pod: (pod.priority, -pod.above_request_bytes))


def usage_only(pods: Sequence[RankedPod]) -> Groups:
    """Larger usage first, requests ignored."""
    return _groups(pods, lambda pod: -pod.usage_bytes)


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model(name="class_tiers", rank=class_tiers, varies=("qos",)),
        Model(name="kubelet_source", rank=kubelet_source, varies=("above_request_bytes",)),
        Model(name="priority_first", rank=priority_first, varies=("priority",)),
        Model(name="usage_only", rank=usage_only, varies=("usage_bytes",)),
    )
}


def applicable_models(pods: Sequence[RankedPod]) -> dict[str, Model]:
    """The models whose inputs these pods vary, by name, in the order of :data:`MODELS`."""
    return {
        name: model
        for name, model in MODELS.items()
        if all(len({getattr(pod, field) for pod in pods}) > 1 for field in model.varies)
    }


def consistent(order: Sequence[str], groups: Groups) -> bool:
    """Whether an observed order of names is one that a model's groups allow.

    Missing when the order does not name exactly the pods of the groups: then the model can be neither
    confirmed nor refuted. UsageError when it names one twice.
    """
    position = {name: index for index, name in enumerate(order)}
    if len(position) != len(order):
        raise UsageError(f"the order {list(order)} names a pod twice")
    expected = frozenset().union(*groups)
    if position.keys() != expected:
        absent, extra = sorted(expected - position.keys()), sorted(position.keys() - expected)
        raise Missing(f"the order cannot be judged: not in it: {absent}, not in the model: {extra}")
    return all(
        max(position[name] for name in earlier) < min(position[name] for name in later)
        for earlier, later in itertools.pairwise(groups)
    )


def separable(groups_a: Groups, groups_b: Groups) -> bool:
    """Whether no order at all is consistent with both.

    For orders with ties that holds exactly when two pods stand one way round in the first and the other way
    round in the second. UsageError when the two do not order the same pods.
    """
    first, second = _positions(groups_a), _positions(groups_b)
    if first.keys() != second.keys():
        raise UsageError(f"two models order different pods: {sorted(first)} and {sorted(second)}")
    return any(
        (first[one] - first[other]) * (second[one] - second[other]) < 0
        for one, other in itertools.combinations(first, 2)
    )


def check_sizes(pods: Sequence[RankedPod], tolerance_bytes: int) -> None:
    """Refuse pods whose eviction order could not tell the applicable models apart.

    ``tolerance_bytes`` is how far a working set may be from its plan. UsageError names the two models that
    allow one and the same order, the two pods whose usage over request is nearer than the tolerance, or the
    pod so near to its request that it may fall on either side.
    """
    names = [pod.name for pod in pods]
    if len(pods) < 2 or len(set(names)) != len(names):
        raise UsageError(f"an eviction order needs two or more pods with names of their own, not {names}")
    for pod in pods:
        if abs(pod.above_request_bytes) < tolerance_bytes:
            raise UsageError(
                f"pod {pod.name} uses {_mib(abs(pod.above_request_bytes))} more or less than its request, within the "
                f"tolerance of {_mib(tolerance_bytes)}: move its allocation away from the request"
            )
    for one, other in itertools.combinations(pods, 2):
        distance = abs(one.above_request_bytes - other.above_request_bytes)
        if distance < tolerance_bytes or distance == 0:
            raise UsageError(
                f"pods {one.name} and {other.name} differ by {_mib(distance)} in usage over request, within the "
                f"tolerance of {_mib(tolerance_bytes)}: set their allocations further apart"
            )
    ranked = {name: model.rank(pods) for name, model in applicable_models(pods).items()}
    for one_model, other_model in itertools.combinations(ranked, 2):
        if not separable(ranked[one_model], ranked[other_model]):
            raise UsageError(
                f"these pods cannot tell the models {one_model} and {other_model} apart: "
                "some order agrees with both, so change the allocations or requests"
            )


def _groups(pods: Sequence[RankedPod], key: Callable[[RankedPod], Any]) -> Groups:
    """Pods with one key in one group, groups in the order of their keys."""
    ordered = sorted(pods, key=key)
    return tuple(frozenset(pod.name for pod in group) for _, group in itertools.groupby(ordered, key=key))


def _positions(groups: Groups) -> dict[str, int]:
    return {name: index for index, group in enumerate(groups) for name in group}


def _class_tier(qos: str) -> int:
    if qos not in _CLASS_ORDER:
        raise UsageError(f"QoS class {qos!r} is not known: use {', '.join(_CLASS_ORDER)}")
    return _CLASS_ORDER[qos]


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:g} MiB"
