"""Generated pod specs, rich in shapes of the pod-level block, most of them such that an API server takes them.

:func:`pods` gives a :class:`DrawnPod`. Its ``shape`` names the pod-level block, so that a test can count what it
covered. Amounts are drawn first and spelled afterwards, in one of the ways that Kubernetes takes for the same amount.
What would be refused (a limit below its request, huge pages without cpu or memory, a block below its containers) is
made rarely or never, so that a test against a real server compares classes and not refusals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

GI = 2**30
MI = 2**20

# Amount to its spellings. Thousandths for cpu (some are finer, which the API server rounds up), bytes for memory.
CPU = {
    0: ("0", 0, "0m", "0.0"),
    0.4: ("400u", "0.0004", "0.4m"),
    1.5: ("1500u", "1.5m"),
    100: ("100m", "0.1", 0.1, "1e-1", "100000u"),
    500: ("500m", "0.5", ".5", 0.5),
    1000: ("1", 1, "1000m", "1.0", "1e0", "1."),
    2000: ("2", 2, "2000m", "+2"),
}
MEMORY = {
    0: ("0", 0, "0Mi"),
    64 * MI: ("64Mi", 64 * MI, "65536Ki", "67108864000m"),
    100 * 10**6: ("100M", "1e8", 100_000_000, "100000k"),
    GI: ("1Gi", GI, "1024Mi", "1048576Ki"),
    2 * GI: ("2Gi", "2048Mi", "2147483648"),
}
# No five containers together request more than the greatest of these.
POD_CPU = {
    0: CPU[0],
    500: CPU[500],
    1000: CPU[1000],
    2000: CPU[2000],
    10_000: ("10", 10, "10000m", "1e1"),
    20_000: ("20", "20000m"),
}
POD_MEMORY = {
    0: MEMORY[0],
    GI: MEMORY[GI],
    2 * GI: MEMORY[2 * GI],
    20 * GI: ("20Gi", "20480Mi", 20 * GI),
    40 * GI: ("40Gi", "42949672960"),
}
HUGE = "hugepages-2Mi"
GADGET = "example.com/gadget"

# Blocks in which nothing is set. `claims` may not be set at pod level: an API server refuses even an empty list.
EMPTY_BLOCKS: dict[str, Any] = {
    "{}": {},
    "{requests: {}}": {"requests": {}},
    "{limits: {}}": {"limits": {}},
    "{requests: {}, limits: {}}": {"requests": {}, "limits": {}},
    "{requests: null}": {"requests": None},
    "{limits: null, requests: {}}": {"limits": None, "requests": {}},
    "{claims: null}": {"claims": None},
}
REFUSED_BLOCKS: dict[str, Any] = {
    "{claims: []}": {"claims": []},
    "unsupported name": {"requests": {"ephemeral-storage": "1Gi"}},
    "limit below request": {"requests": {"cpu": "20"}, "limits": {"cpu": "10"}},
}
REAL_SHAPES = (
    "requests", "limits", "equal", "below limits", "one resource", "zero requests", "zeros", "huge pages", "mixed",
)  # fmt: skip
NO_BLOCK = ("absent", "null")
SHAPES = (*NO_BLOCK, *EMPTY_BLOCKS, *REAL_SHAPES)
"""Names of the blocks that an API server can take."""

EMPTY_CONTAINER_RESOURCES: tuple[Any, ...] = (
    None, {}, {"requests": {}}, {"limits": {}}, {"requests": {}, "limits": {}}, {"claims": []}, {"requests": None},
)  # fmt: skip

# LimitRange items by name; each stands alone in a namespace.
LIMIT_RANGES: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "requests": [{"type": "Container", "defaultRequest": {"cpu": "10m", "memory": "16Mi"}}],
    "limits": [{"type": "Container", "default": {"cpu": "2", "memory": "2Gi"}}],
    "max": [
        {"type": "Container", "max": {"memory": "2Gi"}, "min": {"cpu": "0"}},
        {"type": "Pod", "max": {"memory": "80Gi"}},
    ],
}


@dataclass(frozen=True, slots=True)
class DrawnPod:
    """A pod spec, the name of its pod-level block in SHAPES or REFUSED_BLOCKS, and its namespace in LIMIT_RANGES."""

    shape: str
    spec: dict[str, Any]
    ranges: str


def limit_range(items: list[dict[str, Any]]) -> dict[str, Any]:
    """A LimitRange object with these items."""
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "range"}, "spec": {"limits": items}}


@st.composite
def amounts_of_one(draw: st.DrawFn, scale: dict[Any, tuple[Any, ...]]) -> tuple[Any, Any]:
    """Request and limit of one resource, spelled; None for one that is not set. The request is not above the limit."""
    levels = sorted(scale)
    kind = draw(st.sampled_from(["none", "request", "limit", "equal", "equal", "equal", "below", "zero request"]))
    low, high = sorted((draw(st.sampled_from(levels)), draw(st.sampled_from(levels))))
    request = {"request": low, "equal": high, "below": low, "zero request": 0}.get(kind)
    limit = {"limit": high, "equal": high, "below": high, "zero request": high}.get(kind)
    return tuple(  # type: ignore[return-value]
        None if amount is None else draw(st.sampled_from(scale[amount])) for amount in (request, limit)
    )


@st.composite
def container_resources(draw: st.DrawFn) -> dict[str, Any]:
    """A container's real requests and limits; possibly with resources that make no class."""
    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    for name, scale in (("cpu", CPU), ("memory", MEMORY)):
        request, limit = draw(amounts_of_one(scale))
        if request is not None:
            requests[name] = request
        if limit is not None:
            limits[name] = limit
    extra = draw(st.sampled_from(["", "", "", "", "storage", "gadget", "huge", "null"]))
    if extra == "storage":
        requests["ephemeral-storage"] = "1Gi"
    elif extra == "gadget":
        limits[GADGET] = draw(st.sampled_from(["1", 1]))
    elif extra == "huge" and (requests or limits):
        limits[HUGE] = draw(st.sampled_from(["2Mi", "4Mi", 4 * MI]))
    elif extra == "null" and "cpu" not in limits:
        requests["cpu"] = None
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value or draw(st.booleans())}


GUARANTEED = {"limits": {"cpu": "500m", "memory": "64Mi"}}


@st.composite
def containers(draw: st.DrawFn, prefix: str, most: int, kind: str) -> list[dict[str, Any]]:
    """A list of containers of one ``kind``: empty (nothing set), guaranteed, limited or any."""
    found = []
    for index in range(draw(st.integers(0 if prefix == "i" else 1, most))):
        container: dict[str, Any] = {"name": f"{prefix}{index}", "image": "registry.invalid/none"}
        if kind == "guaranteed":
            requests = draw(st.sampled_from([{}, {"requests": GUARANTEED["limits"]}]))
            container["resources"] = {**GUARANTEED, **requests}
        elif kind == "any" and draw(st.integers(0, 3)):
            container["resources"] = draw(container_resources())
        elif draw(st.booleans()):
            container["resources"] = draw(st.sampled_from(EMPTY_CONTAINER_RESOURCES))
        if prefix == "i" and draw(st.booleans()):
            container["restartPolicy"] = "Always"
        found.append(container)
    return found


@st.composite
def real_block(draw: st.DrawFn, shape: str) -> dict[str, Any]:
    """A pod-level block of one of REAL_SHAPES; mostly large enough for any containers of :func:`containers`."""
    large = draw(st.integers(0, 3)) > 0
    cpu = draw(st.sampled_from([10_000, 20_000] if large else [500, 1000, 2000]))
    memory = draw(st.sampled_from([20 * GI, 40 * GI] if large else [GI, 2 * GI]))

    def both(cpu: int, memory: int) -> dict[str, Any]:
        return {"cpu": draw(st.sampled_from(POD_CPU[cpu])), "memory": draw(st.sampled_from(POD_MEMORY[memory]))}

    one = draw(st.sampled_from(["cpu", "memory"]))
    if shape == "requests":
        return {"requests": both(cpu, memory)}
    if shape == "limits":
        return {"limits": both(cpu, memory)}
    if shape == "equal":
        return {"requests": both(cpu, memory), "limits": both(cpu, memory)}
    if shape == "below limits":
        return {"requests": both(cpu, memory), "limits": both(20_000, 40 * GI)}
    if shape == "one resource":
        keys = draw(st.sampled_from([("requests",), ("limits",), ("requests", "limits")]))
        return {key: {one: both(cpu, memory)[one]} for key in keys}
    if shape == "zero requests":
        return {"requests": {one: both(0, 0)[one]}}
    if shape == "zeros":
        return {key: both(0, 0) for key in draw(st.sampled_from([("requests",), ("limits",), ("requests", "limits")]))}
    if shape == "huge pages":
        own = {"cpu": both(cpu, memory)["cpu"]} if draw(st.booleans()) else {}
        return {"limits": {HUGE: draw(st.sampled_from(["40Mi", 40 * MI])), **own}}
    return {"requests": both(cpu, memory), "limits": {one: both(cpu, memory)[one]}}


@st.composite
def pods(draw: st.DrawFn, shapes: tuple[str, ...] = (*SHAPES, *SHAPES, *REFUSED_BLOCKS)) -> DrawnPod:
    """A pod with a pod-level block of one of the ``shapes``."""
    shape = draw(st.sampled_from(shapes))
    # A zero at pod level leaves little room, and in a Guaranteed pod every container must be so.
    roomy = ["empty", "guaranteed", "guaranteed", "any", "any", "any"]
    kind = draw(st.sampled_from(["empty", "empty", "any"] if shape.startswith("zero") else roomy))
    spec: dict[str, Any] = {"containers": draw(containers("c", 3, kind))}
    init_containers = draw(containers("i", 2, kind))
    if init_containers:
        spec["initContainers"] = init_containers
    if shape == "null":
        spec["resources"] = None
    elif shape in EMPTY_BLOCKS:
        spec["resources"] = EMPTY_BLOCKS[shape]
    elif shape in REFUSED_BLOCKS:
        spec["resources"] = REFUSED_BLOCKS[shape]
    elif shape != "absent":
        spec["resources"] = draw(real_block(shape))
    # A zero at pod level has no room for what a LimitRange gives to the containers.
    fitting_ranges = ["none"] if shape.startswith("zero") else ["none", *LIMIT_RANGES]
    return DrawnPod(shape, spec, draw(st.sampled_from(fitting_ranges)))
