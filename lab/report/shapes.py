"""Table of pod shapes and the class that each behaviour of Kubernetes gives them: text of docs/shapes.md. Pure.

``python -m lab.report.shapes > docs/shapes.md`` writes the page. Every class in it is the classifier's
(:mod:`lab.qos`); the shapes are data.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import yaml

from lab.qos import Behaviour, affected, classify, static_pod_class
from lab.report.tables import markdown

SHOWN = (Behaviour.BEFORE_1_34, Behaviour.EMPTY_BLOCK_SHADOWS, Behaviour.FIXED, Behaviour.FIX_OFF)
"""Behaviours that have a column."""

_CPU_MEMORY = {"cpu": "100m", "memory": "64Mi"}
_BELOW = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}}
_EQUAL = {"limits": _CPU_MEMORY}
_POD = {"cpu": "1", "memory": "1Gi"}
_LIMIT_RANGE = {"spec": {"limits": [{"type": "Container", "default": _CPU_MEMORY}]}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One row: a pod spec as data, and the LimitRange objects of its namespace."""

    name: str
    spec: Mapping[str, Any]
    limit_ranges: Sequence[Mapping[str, Any]] = ()


def _pod(*resources: Mapping[str, Any] | None, **more: Any) -> dict[str, Any]:
    """A spec with one container for each of ``resources`` (None: without the key); ``more`` are keys of the spec."""
    containers = [{} if own is None else {"resources": own} for own in resources]
    return {**more, "containers": [{"name": f"c{index}", **own} for index, own in enumerate(containers)]}


SHAPES: tuple[Shape, ...] = (
    Shape(name="nothing set", spec=_pod(None)),
    Shape(name="container `{}` alone", spec=_pod({})),
    Shape(name="container below its limits", spec=_pod(_BELOW)),
    Shape(name="container with limits alone", spec=_pod(_EQUAL)),
    Shape(name="`null` block", spec=_pod(_EQUAL, resources=None)),
    Shape(name="empty block, Burstable container", spec=_pod(_BELOW, resources={})),
    Shape(name="empty block, Guaranteed container", spec=_pod(_EQUAL, resources={})),
    Shape(name="empty block, nothing in the container", spec=_pod({}, resources={})),
    Shape(name="empty `requests`", spec=_pod(_EQUAL, resources={"requests": {}})),
    Shape(name="empty `limits`", spec=_pod(_EQUAL, resources={"limits": {}})),
    Shape(name="both empty", spec=_pod(_EQUAL, resources={"requests": {}, "limits": {}})),
    Shape(name="empty `claims` (refused where the gate is on)", spec=_pod(_EQUAL, resources={"claims": []})),
    Shape(name="zero at pod level", spec=_pod({}, resources={"requests": {"cpu": "0", "memory": "0"}})),
    Shape(
        name="zero cpu at pod level, memory in the container",
        spec=_pod({"requests": {"memory": "64Mi"}}, resources={"requests": {"cpu": "0"}}),
    ),
    Shape(name="pod-level requests", spec=_pod(None, resources={"requests": _POD})),
    Shape(name="pod-level limits", spec=_pod(None, resources={"limits": _POD})),
    Shape(name="pod-level limits, smaller requests in the container", spec=_pod(_EQUAL, resources={"limits": _POD})),
    Shape(name="pod-level requests, limits in every container", spec=_pod(_EQUAL, resources={"requests": _POD})),
    Shape(name="pod-level requests, a container without limits", spec=_pod(_EQUAL, {}, resources={"requests": _POD})),
    Shape(name="one resource at pod level", spec=_pod(_EQUAL, resources={"limits": {"cpu": "1"}})),
    Shape(
        name="huge pages at pod level",
        spec=_pod({"requests": {"cpu": "100m"}}, resources={"limits": {"cpu": "1", "hugepages-2Mi": "2Mi"}}),
    ),
    Shape(name="extended resource alone", spec=_pod({"limits": {"example.com/gpu": "1"}})),
    Shape(name="init container without resources", spec=_pod(_EQUAL, initContainers=[{"name": "i"}])),
    Shape(
        name="sidecar with requests",
        spec=_pod({}, initContainers=[{"name": "s", "restartPolicy": "Always", "resources": _BELOW}]),
    ),
    Shape(
        name="ephemeral container",
        spec=_pod(_EQUAL, ephemeralContainers=[{"name": "e"}]),
    ),
    Shape(name="LimitRange, nothing set", spec=_pod({}), limit_ranges=(_LIMIT_RANGE,)),
    Shape(name="LimitRange, empty block", spec=_pod({}, resources={}), limit_ranges=(_LIMIT_RANGE,)),
    Shape(name="LimitRange, pod-level limits", spec=_pod({}, resources={"limits": _POD}), limit_ranges=(_LIMIT_RANGE,)),
)

_HEAD = """\
# Shapes of pods and their class by version

Made from the classifier (`lab/qos.py`); `python -m lab.report.shapes > docs/shapes.md` writes it anew, and a test
compares. *Differs* marks the shapes that 1.34-1.36 class otherwise than 1.37: what `affected` says. "The fix" is the
gate `PodLevelResourcesFixKubeletQOSClass`. Where the gate `PodLevelResources` is off, every version behaves as up to
1.33.

The classifier is checked against API servers by `tests/e2e/test_differential.py`: v1.34.4, v1.35.4, v1.36.3, v1.37.2,
v1.37.2 with each of its two fixes off, and v1.36.3 and v1.37.2 with `PodLevelResources` off. No API server up to 1.33
takes part; that column rests on its source and on the two with the gate off.

## Pods that an API server creates
"""

_STATIC = """
## Static pods that differ from that

A kubelet computes the class of a static pod itself, without LimitRange, and since 1.37 without completing the block.
Shapes that are not here get the same class as above. This table rests on the source.
"""

_NOTES = """
## Notes

* A container-level `resources: {}` is never the reason for a difference.
* An empty block is not completed: not from the containers, not by a LimitRange.
* 1.37 completes a block of requests alone: with the containers' requests, and with limits where every container has
  one. Up to 1.36 only a block with limits was completed, and before a LimitRange was applied.
* Container limits become container requests on every version, before the class is computed.
* Amounts are compared exactly, rounded up to thousandths: `1000m` is `1`, and a zero is as if it were not set.
* Up to 1.36 an API server keeps a `status.qosClass` that is posted with a pod: a manifest exported from a cluster
  keeps its old class even when its block was removed. Delete the status before creating it anew. 1.37 ignores it.
"""


def page() -> str:
    """The whole of docs/shapes.md."""
    return f"{_HEAD}\n{_created()}\n{_STATIC}\n{_static()}\n{_NOTES}"


def _created() -> str:
    rows = [
        [
            *_description(shape),
            *(classify(shape.spec, behaviour, shape.limit_ranges) for behaviour in SHOWN),
            "differs" if affected(shape.spec, shape.limit_ranges) else "",
        ]
        for shape in SHAPES
    ]
    return _table(rows, "Differs")


def _static() -> str:
    rows = []
    for shape in SHAPES:
        created = [classify(shape.spec, behaviour) for behaviour in SHOWN]
        static = [static_pod_class(shape.spec, behaviour) for behaviour in SHOWN]
        if static != created and not shape.limit_ranges:
            rows.append([*_description(shape), *static])
    return _table(rows)


def _table(rows: Sequence[Sequence[str]], *last: str) -> str:
    columns = ["Shape", "Block", "Containers", *(behaviour.label for behaviour in SHOWN), *last]
    return markdown(pd.DataFrame(rows, columns=columns, dtype=object))


def _description(shape: Shape) -> tuple[str, str, str]:
    """Name, pod-level block and containers of a shape as one would write them."""
    parts = [_resources(container, "") for container in shape.spec["containers"]]
    parts += [_resources(container, _init_kind(container)) for container in shape.spec.get("initContainers", [])]
    parts += [_resources(container, "ephemeral ") for container in shape.spec.get("ephemeralContainers", [])]
    block = _flow(shape.spec["resources"]) if "resources" in shape.spec else "none"
    return shape.name, block, ", ".join(parts)


def _init_kind(container: Mapping[str, Any]) -> str:
    return "sidecar " if container.get("restartPolicy") == "Always" else "init "


def _resources(container: Mapping[str, Any], kind: str) -> str:
    return kind + (_flow(container["resources"]) if "resources" in container else "none")


def _flow(value: Any) -> str:
    """YAML on one line, as code."""
    if value is None:
        return "`null`"
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).strip()
    return f"`{text}`"


if __name__ == "__main__":
    sys.stdout.write(page())
