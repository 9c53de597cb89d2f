"""Executable QoS classifier: which class a pod spec gets, per behaviour of Kubernetes.

Rebuilt from ``ComputePodQOS`` in ``pkg/apis/core/v1/helper/qos/qos.go`` (kubelet, quota) and its twin for
internal types ``pkg/apis/core/helper/qos/qos.go`` (API server), with the defaulting of
``pkg/apis/core/v1/defaults.go`` before it. The behaviours differ in one condition only: when the pod-level
block ``spec.resources`` is used.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeGuard

from lab.cgroups import BEST_EFFORT, BURSTABLE, GUARANTEED
from lab.model import ParseError
from lab.quantity import format_quantity, parse_quantity

_COMPUTE = ("cpu", "memory")
_HUGE_PAGES = "hugepages-"

Amounts = dict[str, Fraction]


class Behaviour(enum.Enum):
    """When ``ComputePodQOS`` looks at the pod-level block."""

    BEFORE_1_34 = "pod-level resources off: the block is dropped and never looked at"
    EMPTY_BLOCK_SHADOWS = "a block that is not nil decides, an empty one included"
    FIXED = "a block decides only when it sets a pod-level resource"


def behaviour_for(minor: int, pod_level_resources: bool, fix_gate: bool) -> Behaviour:
    """Behaviour of version 1.``minor`` with its effective gates.

    ``pod_level_resources``: gate ``PodLevelResources`` (there since 1.32, on by default since 1.34).
    ``fix_gate``: gate ``PodLevelResourcesFixKubeletQOSClass`` (there since 1.37, on by default); without
    effect before.
    """
    if minor < 32 or not pod_level_resources:
        return Behaviour.BEFORE_1_34
    return Behaviour.FIXED if minor >= 37 and fix_gate else Behaviour.EMPTY_BLOCK_SHADOWS


def qos_class(spec: Mapping[str, Any], behaviour: Behaviour, *, default_pod_limits: bool | None = None) -> str:
    """``Guaranteed``, ``Burstable`` or ``BestEffort`` for a pod ``spec`` as a person writes it.

    Defaults are applied first (:func:`apply_defaults`). ``default_pod_limits`` says whether gate
    ``PodLevelResourcesFixDefaulting`` is on; None takes the release's default, on where the behaviour is
    FIXED. Containers and init containers (sidecars are init containers) count, ephemeral containers do not.
    Validation is not done: a spec that the API server refuses gets a class all the same. ParseError for a
    spec that is not of a pod's form.
    """
    fix_defaulting = behaviour is Behaviour.FIXED if default_pod_limits is None else default_pod_limits
    pod_level = behaviour is not Behaviour.BEFORE_1_34
    defaulted = apply_defaults(spec, pod_level=pod_level, default_pod_limits=pod_level and fix_defaulting)
    block = defaulted.get("resources")
    if behaviour is Behaviour.EMPTY_BLOCK_SHADOWS and block is not None:
        return _requirements_qos(block)
    if behaviour is Behaviour.FIXED and is_pod_level_resources_set(block):
        return _requirements_qos(block)
    classes = {_requirements_qos(_resources(container)) for container in _containers(defaulted)}
    if not classes:
        return BEST_EFFORT
    return classes.pop() if len(classes) == 1 else BURSTABLE


def apply_defaults(
    spec: Mapping[str, Any], *, pod_level: bool = True, default_pod_limits: bool = False
) -> dict[str, Any]:
    """A copy of ``spec`` with the resource defaults of the API server; the argument is not changed.

    Containers: a limit without a request becomes the request (``SetDefaults_Pod``). Pod level, only for a
    block with limits: a missing request becomes what the containers request together, else the limit
    (``defaultPodRequests``). With ``default_pod_limits``, only for a block with requests and no limits:
    limits become the containers' sum where every container has one (``defaultPodLimits``, 1.37).
    ``pod_level`` False drops the block, as the API server does with the gate off. An empty block stays as
    it is. ParseError for a spec that is not of a pod's form.
    """
    result = dict(spec)
    for key in ("containers", "initContainers"):
        if key in spec:
            result[key] = [_with_default_requests(item) for item in _list(spec, key)]
    if not pod_level:
        result.pop("resources", None)
        return result
    block = spec.get("resources")
    if block is None:
        return result
    if not isinstance(block, Mapping):
        raise ParseError("spec.resources is not a mapping", str(block))
    requests, limits = _quantities(block, "requests"), _quantities(block, "limits")
    if limits:
        together = {name: amount for name, amount in _aggregate(result, "requests").items() if name in _COMPUTE}
        supported = {name: amount for name, amount in limits.items() if _is_supported(name)}
        result["resources"] = _with(block, "requests", {**supported, **together}, requests)
    elif default_pod_limits and any(_is_supported(name) for name in requests):
        result["resources"] = _with(block, "limits", _pod_limits(result, requests), limits)
    return result


def is_pod_level_resources_set(block: Mapping[str, Any] | None) -> TypeGuard[Mapping[str, Any]]:
    """Whether a pod-level block names cpu, memory or huge pages in requests or limits.

    ``IsPodLevelResourcesSet``, ``k8s.io/component-helpers/resource/helpers.go``.
    """
    if block is None:
        return False
    return any(_is_supported(name) for key in ("requests", "limits") for name in _quantities(block, key))


def _requirements_qos(resources: Mapping[str, Any]) -> str:
    """Class of one set of requirements (``requirementsQOS``, ``resourceQOS``); a zero is as if not set."""
    requests, limits = _quantities(resources, "requests"), _quantities(resources, "limits")
    shapes = set()
    for name in _COMPUTE:
        request, limit = _milli(requests.get(name)), _milli(limits.get(name))
        if request != limit:
            return BURSTABLE
        shapes.add(GUARANTEED if request else BEST_EFFORT)
    return shapes.pop() if len(shapes) == 1 else BURSTABLE


def _milli(amount: Fraction | None) -> int:
    """Thousandths of the unit, to which the API server rounds up (``SetDefaults_ResourceList``)."""
    return 0 if amount is None else math.ceil(amount * 1000)


def _is_supported(name: str) -> bool:
    """``IsSupportedPodLevelResource``, ``k8s.io/component-helpers/resource/helpers.go``."""
    return name in _COMPUTE or name.startswith(_HUGE_PAGES)


def _pod_limits(spec: Mapping[str, Any], pod_requests: Amounts) -> Amounts:
    """Pod-level limits that ``defaultPodLimits`` fills in: cpu and memory that every container limits."""
    together = _aggregate(spec, "limits")
    # defaultHugePagePodLimits runs before and leaves a pod-level limit, which stops defaultPodLimits.
    if any(name.startswith(_HUGE_PAGES) and name not in pod_requests for name in together):
        return {}
    limited = [_quantities(_resources(container), "limits") for container in _containers(spec)]
    return {name: together[name] for name in _COMPUTE if limited and all(name in own for own in limited)}


def _aggregate(spec: Mapping[str, Any], key: str) -> Amounts:
    """Requests or limits of all containers together, with sidecars and init containers.

    ``aggregateContainerResourcesByFn``, ``k8s.io/component-helpers/resource/helpers.go``: containers and
    sidecars add up; an ordinary init container runs beside the sidecars before it, and the highest such
    moment is a lower bound.
    """
    total: Amounts = {}
    for container in _list(spec, "containers"):
        _add(total, _quantities(_resources(container), key))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in _list(spec, "initContainers"):
        own = _quantities(_resources(container), key)
        if container.get("restartPolicy") == "Always":
            _add(total, own)
            _add(sidecars, own)
        else:
            moment = dict(sidecars)
            _add(moment, own)
            _raise(peak, moment)
    _raise(total, peak)
    return total


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Fraction(0)) + amount


def _raise(total: Amounts, floor: Amounts) -> None:
    for name, amount in floor.items():
        total[name] = max(total.get(name, amount), amount)


def _with_default_requests(container: Mapping[str, Any]) -> dict[str, Any]:
    """The container with each limit that has no request as its request."""
    resources = _resources(container)
    if not resources.get("limits"):
        return dict(container)
    requests = {**_mapping(resources, "limits"), **_mapping(resources, "requests")}
    return {**container, "resources": {**resources, "requests": requests}}


def _with(block: Mapping[str, Any], key: str, defaults: Amounts, given: Amounts) -> dict[str, Any]:
    """The block with ``defaults`` in ``key`` for the names that are not ``given``."""
    added = {name: format_quantity(amount) for name, amount in defaults.items() if name not in given}
    return {**block, key: {**_mapping(block, key), **added}} if added else dict(block)


def _containers(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The containers that have a say in the class."""
    return [*_list(spec, "initContainers"), *_list(spec, "containers")]


def _list(spec: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    items = spec.get(key)
    if items is None:
        return []
    if not isinstance(items, list | tuple) or not all(isinstance(item, Mapping) for item in items):
        raise ParseError(f"spec.{key} is not a list of containers", str(items))
    return items


def _resources(container: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(container, "resources")


def _mapping(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """``parent[key]``, empty when it is absent or null."""
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ParseError(f"{key} is not a mapping", str(value))
    return value


def _quantities(resources: Mapping[str, Any], key: str) -> Amounts:
    """Resource names to amounts; ``Quantity.UnmarshalJSON`` reads null as zero."""
    amounts = _mapping(resources, key)
    return {str(name): Fraction(0) if text is None else parse_quantity(text) for name, text in amounts.items()}
