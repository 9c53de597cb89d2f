"""Resources of a pod as Kubernetes sees them when it computes the class: read from a spec, then defaulted. Pure.

The API server fills in more than a person writes, and the class is computed from what is there afterwards. In order:

1. decoding: a container's limits become its missing requests (``SetDefaults_Pod``, ``pkg/apis/core/v1/defaults.go``),
   up to 1.36 the pod-level block is completed (``defaultHugePagePodLimits``, ``defaultPodRequests``, same file), then
   every amount is rounded up to thousandths (``SetDefaults_ResourceList``, called by ``SetObjectDefaults_Pod``);
2. mutating admission: a LimitRange of the namespace completes the containers
   (``plugin/pkg/admission/limitranger/admission.go``);
3. registry: since 1.37 the pod-level block is completed here (``DefaultPodLevelResources``, ``pkg/api/pod/util.go``,
   called by ``PrepareForCreate``, ``pkg/registry/core/pod/strategy.go``).

So a LimitRange has a say in the pod-level block since 1.37 only. An empty block is completed by none of them.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from lab.model import ParseError
from lab.quantity import parse_quantity

COMPUTE = ("cpu", "memory")
"""The resources that make a class (``supportedQoSComputeResources``)."""

HUGE_PAGES = "hugepages-"

Amounts = Mapping[str, Fraction]


class PodLevelDefaults(enum.Enum):
    """What becomes of the block ``spec.resources`` before the class is computed."""

    DROPPED = "gate PodLevelResources off: the API server removes the block (dropDisabledPodLevelResources)"
    AT_DECODING = "completed while the pod is decoded, before admission: up to 1.36"
    AT_CREATE = "completed after admission: since 1.37, gate PodLevelResourcesFixDefaulting"
    NEVER = "left as written: a static pod on a kubelet since 1.37, which decodes but has no registry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Requests and limits of one container or of the pod: resource name to amount in the resource's own unit.

    A name that is there with an amount of zero differs from a name that is not there.
    """

    requests: Amounts
    limits: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class PodResources:
    """All that the class depends on. Ephemeral containers are left out: they may not have resources.

    ``sidecars`` are the positions in ``init_containers`` of those that restart always. ``block`` is None when the spec
    has no block or ``null``, and has two empty mappings for every shape of an empty one.
    """

    containers: tuple[Requirements, ...]
    init_containers: tuple[Requirements, ...]
    sidecars: frozenset[int]
    block: Requirements | None

    @property
    def every_container(self) -> tuple[Requirements, ...]:
        """Init containers, sidecars among them, and containers."""
        return self.init_containers + self.containers

    def with_containers(self, change: Callable[[Requirements], Requirements]) -> PodResources:
        """The same pod with every container changed, the block as it is."""
        return replace(
            self,
            containers=tuple(map(change, self.containers)),
            init_containers=tuple(map(change, self.init_containers)),
        )


def apply_defaults(
    spec: Mapping[str, Any], pod_level: PodLevelDefaults, limit_ranges: Sequence[Mapping[str, Any]] = ()
) -> PodResources:
    """Resources of the pod ``spec`` that a person wrote, completed; the argument is not changed.

    ``limit_ranges`` are the LimitRange objects of the pod's namespace, applied in the order given: the first to name a
    resource wins. (The API server's own order is that of its cache: by chance, where there are several.) Nothing is
    validated: what the API server would refuse is completed all the same. ParseError for a spec or a LimitRange that is
    not of the form.
    """
    pod = read_pod(spec).with_containers(_limits_as_requests)
    if pod_level is PodLevelDefaults.AT_DECODING:
        pod = replace(pod, block=_block_at_decoding(pod))
    elif pod_level is PodLevelDefaults.DROPPED:
        pod = replace(pod, block=None)
    pod = pod.with_containers(_rounded)
    if pod.block is not None:
        pod = replace(pod, block=_rounded(pod.block))
    for limit_range in limit_ranges:
        defaults = limit_range_defaults(limit_range)
        pod = pod.with_containers(functools.partial(_completed, defaults))
    if pod_level is PodLevelDefaults.AT_CREATE:
        pod = replace(pod, block=_block_at_create(pod))
    return pod


def read_pod(spec: Mapping[str, Any]) -> PodResources:
    """Resources of a pod spec as written. ParseError when it is not of a pod's form."""
    init_containers = _list(spec, "initContainers")
    block = spec.get("resources")
    return PodResources(
        containers=tuple(_requirements(item.get("resources")) for item in _list(spec, "containers")),
        init_containers=tuple(_requirements(item.get("resources")) for item in init_containers),
        sidecars=frozenset(
            position for position, item in enumerate(init_containers) if item.get("restartPolicy") == "Always"
        ),
        block=None if block is None else _requirements(block),
    )


def amounts(resources: Mapping[str, Any], key: str) -> dict[str, Fraction]:
    """``resources[key]`` (requests or limits) as amounts by name, empty when it is absent or null.

    A null amount is zero and blanks around one do not count, as in ``Quantity.UnmarshalJSON``
    (``k8s.io/apimachinery/pkg/api/resource/quantity.go``). ParseError for anything that is not an amount.
    """
    return {str(name): _amount(value) for name, value in _mapping(resources, key).items()}


def is_pod_level_resource(name: str) -> bool:
    """Whether a block may name this resource: ``IsSupportedPodLevelResource``.

    ``k8s.io/component-helpers/resource/helpers.go``, the same from 1.33 to 1.37.
    """
    return name in COMPUTE or name.startswith(HUGE_PAGES)


def limit_range_defaults(limit_range: Mapping[str, Any]) -> Requirements:
    """What a LimitRange gives to a container that does not say it itself.

    Only items of type Container give defaults; those of type Pod have bounds alone. Within an item ``default`` is
    completed from ``max``, then ``defaultRequest`` from ``default`` and from ``min`` (``SetDefaults_LimitRangeItem``,
    ``pkg/apis/core/v1/defaults.go``); a later item overrules an earlier one (``defaultContainerResourceRequirements``,
    ``plugin/pkg/admission/limitranger/admission.go``). ParseError when it is not of a LimitRange's form.
    """
    requests: dict[str, Fraction] = {}
    limits: dict[str, Fraction] = {}
    for item in _list(_mapping(limit_range, "spec"), "limits"):
        if item.get("type") != "Container":
            continue
        default = {**amounts(item, "max"), **amounts(item, "default")}
        requests |= {**amounts(item, "min"), **default, **amounts(item, "defaultRequest")}
        limits |= default
    return _rounded(Requirements(requests=requests, limits=limits))


def _limits_as_requests(own: Requirements) -> Requirements:
    """``SetDefaults_Pod``, for a container."""
    return replace(own, requests={**own.limits, **own.requests})


def _completed(defaults: Requirements, own: Requirements) -> Requirements:
    """``mergeContainerResources``, ``plugin/pkg/admission/limitranger/admission.go``."""
    return Requirements(requests={**defaults.requests, **own.requests}, limits={**defaults.limits, **own.limits})


def _block_at_decoding(pod: PodResources) -> Requirements | None:
    """``defaultHugePagePodLimits``, then ``defaultPodRequests``: nothing without limits. 1.34.4, 1.35.4, 1.36.3.

    1.33, where the gate was alpha, also gave a limit to huge pages that had a pod-level request.
    """
    block = pod.block
    if block is None or not (block.requests or block.limits):
        return block
    block = _with_huge_page_limits(block, pod)
    return _with_requests(block, pod) if block.limits else block


def _block_at_create(pod: PodResources) -> Requirements | None:
    """``DefaultPodLevelResources``: huge pages, then requests, then limits; each with or without limits. 1.37.2."""
    block = pod.block
    if block is None or not (block.requests or block.limits):
        return block
    return _with_limits(_with_requests(_with_huge_page_limits(block, pod), pod), pod)


def _with_huge_page_limits(block: Requirements, pod: PodResources) -> Requirements:
    """``defaultHugePagePodLimits`` up to 1.36, ``defaultHugePagePodLevelLimits`` since 1.37."""
    huge_pages = {
        name: amount
        for name, amount in together(pod, _limits).items()
        if name.startswith(HUGE_PAGES) and name not in block.requests
    }
    return replace(block, limits={**huge_pages, **block.limits})


def _with_requests(block: Requirements, pod: PodResources) -> Requirements:
    """``defaultPodRequests``, since 1.37 ``defaultPodLevelRequests``: what the containers request, else the limit."""
    supported = {name: amount for name, amount in block.limits.items() if is_pod_level_resource(name)}
    requested = {name: amount for name, amount in together(pod, _requests).items() if name in COMPUTE}
    return replace(block, requests={**supported, **requested, **block.requests})


def _with_limits(block: Requirements, pod: PodResources) -> Requirements:
    """``defaultPodLevelLimits`` (1.37): requested, without a limit, limited in every container; at least the request.

    The source asks ephemeral containers as well; no pod has any when it is created.
    """
    limited = together(pod, _limits)
    added = {
        name: max(request, limited[name])
        for name, request in block.requests.items()
        if is_pod_level_resource(name)
        and name in limited
        and name not in block.limits
        and all(name in own.limits for own in pod.every_container)
    }
    return replace(block, limits={**block.limits, **added})


def _requests(own: Requirements) -> Amounts:
    return own.requests


def _limits(own: Requirements) -> Amounts:
    return own.limits


def together(pod: PodResources, pick: Callable[[Requirements], Amounts]) -> dict[str, Fraction]:
    """Requests or limits of all containers together.

    ``aggregateContainerResourcesByFn``, ``k8s.io/component-helpers/resource/helpers.go`` (1.37; ``AggregateContainer…``
    before): containers and sidecars add up; an ordinary init container runs beside the sidecars before it, and the
    highest such moment is a lower bound.
    """
    total: dict[str, Fraction] = {}
    for own in pod.containers:
        _add(total, pick(own))
    sidecars: dict[str, Fraction] = {}
    peak: dict[str, Fraction] = {}
    for position, own in enumerate(pod.init_containers):
        if position in pod.sidecars:
            _add(total, pick(own))
            _add(sidecars, pick(own))
        else:
            moment = dict(sidecars)
            _add(moment, pick(own))
            _raise(peak, moment)
    _raise(total, peak)
    return total


def _add(total: dict[str, Fraction], more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Fraction(0)) + amount


def _raise(total: dict[str, Fraction], floor: Amounts) -> None:
    for name, amount in floor.items():
        total[name] = max(total.get(name, amount), amount)


def _rounded(own: Requirements) -> Requirements:
    return Requirements(
        requests={name: _up_to_milli(amount) for name, amount in own.requests.items()},
        limits={name: _up_to_milli(amount) for name, amount in own.limits.items()},
    )


def _up_to_milli(amount: Fraction) -> Fraction:
    """``Quantity.RoundUp`` to thousandths of the unit, away from zero."""
    if 1000 % amount.denominator == 0:
        return amount
    return Fraction(math.ceil(amount * 1000) if amount > 0 else math.floor(amount * 1000), 1000)


def _requirements(resources: Any) -> Requirements:
    if resources is None:
        return Requirements(requests={}, limits={})
    if not isinstance(resources, Mapping):
        raise ParseError("resources is not a mapping", str(resources))
    return Requirements(requests=amounts(resources, "requests"), limits=amounts(resources, "limits"))


def _amount(value: Any) -> Fraction:
    if value is None:
        return Fraction(0)
    return parse_quantity(value.strip() if isinstance(value, str) else value)


def _list(parent: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    items = parent.get(key)
    if items is None:
        return []
    if not isinstance(items, list | tuple) or not all(isinstance(item, Mapping) for item in items):
        raise ParseError(f"{key} is not a list of mappings", str(items))
    return items


def _mapping(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """``parent[key]``, empty when it is absent or null."""
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ParseError(f"{key} is not a mapping", str(value))
    return value
