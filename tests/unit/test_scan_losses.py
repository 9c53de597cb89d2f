from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.cgroups import (
    BEST_EFFORT,
    BURSTABLE,
    GUARANTEED,
    cpu_max,
    memory_max,
    milli_cpu_to_shares,
    oom_score_adj,
    weight_linear,
)
from lab.qos import Behaviour, classify, is_pod_level_resources_set
from lab.qos_defaults import apply_defaults, together
from lab.scan.findings import findings_of
from lab.scan.losses import losses, standing_of
from lab.scan.records import FixedPlace, Item
from tests.pod_strategies import EMPTY_BLOCKS, GI, NO_BLOCK, SHAPES, pods

CLASSES = (BEST_EFFORT, BURSTABLE, GUARANTEED)
SMALL = {"name": "a", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
WHOLE = {"name": "a", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}
PRESSURE = "node.kubernetes.io/memory-pressure"


def told(spec, kind="Pod", **more):
    """Losses of the one finding of an object, by the word before the colon."""
    body = {"spec": spec, **more} if kind == "Pod" else {"spec": {"template": {"spec": spec}}, **more}
    version = {"Pod": "v1", "Rollout": "argoproj.io/v1alpha1"}.get(kind, "apps/v1")
    value = {"apiVersion": version, "kind": kind, "metadata": {"name": "p", **more.pop("metadata", {})}, **body}
    [finding] = findings_of(Item(value=value, file="f", place=FixedPlace(first=1)))
    return dict(text.split(": ", 1) for text in finding.loses)


def burstable(**more):
    return {"resources": {}, "containers": [SMALL], **more}


# --- cgroup -----------------------------------------------------------------------------------------------------------


def test_a_guaranteed_pod():
    text = told({"resources": {}, "containers": [WHOLE]})

    assert text["weight"] == "cpu.weight 1 instead of 79"
    assert text["limits at pod level"].startswith("no cpu.max and memory.max for the pod as a whole")
    assert text["OOM score"] == "oom_score_adj 1000 instead of -997"
    assert "directly below kubepods" in text["slice"]
    assert text["CPU manager"] == "no exclusive CPUs and no pinned memory under the static policies"
    assert not {"eviction", "swap"} & text.keys()


def test_sidecars_and_init_containers_count():
    def container(cpu, **more):
        return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **more}

    text = told({
        "resources": {},
        "containers": [container("100m")],
        "initContainers": [container("200m", restartPolicy="Always"), container("500m"), container("50m")],
    })  # fmt: skip

    # max(100 + 200, 200 + 500) = 700m -> 716 shares -> weight 28
    assert text["weight"].startswith("cpu.weight 1 instead of 28")
    assert "limits at pod level" not in text


def test_a_pod_that_requests_no_cpu_loses_no_weight():
    text = told({"resources": {}, "containers": [{"name": "a", "resources": {"requests": {"memory": "64Mi"}}}]})

    assert "weight" not in text
    assert "BestEffort slice" in text["slice"]


def test_values_at_pod_level_count():
    both = {"cpu": 2, "memory": "1Gi"}
    spec = {"resources": {"requests": both, "limits": both}, "containers": [{"name": "a"}]}
    text = told(spec, status={"qosClass": BEST_EFFORT})

    assert text["weight"] == "cpu.weight 1 instead of 79"
    assert text["limits at pod level"] == "no cpu.max and memory.max for the pod as a whole"
    assert not {"CPU manager", "memory manager"} & text.keys()


def test_a_completed_block_changes_the_limits():
    spec = {
        "resources": {"requests": {"cpu": 2, "memory": "1Gi"}},
        "containers": [{"name": "a", "resources": {"limits": {"cpu": 1, "memory": "1Gi"}}}],
    }
    text = told(spec)

    assert text["limits at pod level"] == "cpu.max 100000 100000 instead of 200000 100000"
    assert "before Guaranteed pods" in text["preemption"]
    assert not {"CPU manager", "memory manager", "weight"} & text.keys()


def test_the_overhead_of_a_runtime_class_counts():
    assert told(burstable(overhead={"cpu": "400m"}))["weight"].startswith("cpu.weight 1 instead of 20,")


# --- priority and tolerations -----------------------------------------------------------------------------------------

TREATED = {"OOM score", "memory pressure", "preemption", "swap"}


@pytest.mark.parametrize(
    ("spec", "left"),
    [
        ({}, TREATED),
        # No class of one's own, and no default one, is critical, whatever its value.
        ({"priorityClassName": "my-highest"}, TREATED), ({"priority": 1_000_000_000}, TREATED),
        ({"priorityClassName": "system-cluster-critical"}, {"OOM score", "preemption"}),
        ({"priorityClassName": "system-node-critical"}, set()),
        ({"priority": 2_000_000_000}, {"OOM score", "preemption"}), ({"priority": 2_000_001_000}, {"OOM score"}),
        ({"priority": 0, "priorityClassName": "system-node-critical"}, TREATED),
        ({"priority": True, "priorityClassName": ["system-node-critical"]}, TREATED),
    ],
)  # fmt: skip
def test_what_critical_pods_are_spared(spec, left):
    assert TREATED & told(burstable(**spec)).keys() == left


def test_a_cluster_critical_pod_makes_room_for_a_node_critical_one():
    text = told(burstable(priorityClassName="system-cluster-critical"))

    assert text["preemption"] == "among the first to make room for a system-node-critical pod"


def test_the_pod_of_a_static_pod_is_critical():
    metadata = {"annotations": {"kubernetes.io/config.mirror": "x"}}

    assert TREATED & told(burstable(), metadata=metadata).keys() == {"OOM score"}
    assert TREATED & told(burstable(priority=0), metadata=metadata).keys() == {"OOM score", "preemption"}


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True), ({"key": PRESSURE, "operator": "Exists"}, True), ({"key": PRESSURE}, True),
        ({"key": PRESSURE, "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": PRESSURE, "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": PRESSURE, "value": "true"}, False), ({"key": "other", "operator": "Exists"}, False),
        ({"key": PRESSURE, "operator": "Gt", "value": "1"}, False), ("text", False),
    ],
)  # fmt: skip
def test_who_tolerates_memory_pressure_is_not_rejected(toleration, tolerated):
    assert ("memory pressure" not in told(burstable(tolerations=[toleration]))) is tolerated


def test_the_pods_of_a_daemon_set_tolerate_memory_pressure():
    assert "memory pressure" not in told(burstable(), kind="DaemonSet")
    assert "memory pressure" in told(burstable(), kind="Deployment")


def test_a_node_critical_daemon_set():
    text = told(burstable(priorityClassName="system-node-critical"), kind="DaemonSet")

    assert set(text) == {"weight", "slice", "quota"}


# --- managers and swap ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpus", "whole"), [(["2"], True), (["500m", "500m"], False), (["1500m"], False), (["1", "500m"], True)]
)
def test_the_static_policy_looks_at_each_container(cpus, whole):
    containers = [{"name": f"c{n}", "resources": {"limits": {"cpu": c, "memory": "1Gi"}}} for n, c in enumerate(cpus)]
    text = told({"resources": {}, "containers": containers})

    assert ("CPU manager" in text, "memory manager" in text) == (whole, not whole)
    assert ("without cpu.max too" in text["limits at pod level"]) is whole


@pytest.mark.parametrize(
    ("resources", "swaps"),
    [
        ({"requests": {"memory": "1Gi"}}, True), ({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}, True),
        ({"limits": {"memory": "1Gi"}}, False), ({"requests": {"cpu": "1"}}, False),
        ({"requests": {"memory": 0}, "limits": {"memory": "1Gi"}}, False),
    ],
)  # fmt: skip
def test_swap_is_for_containers_below_their_memory_limit(resources, swaps):
    assert ("swap" in told({"resources": {}, "containers": [{"name": "a", "resources": resources}]})) is swaps


# --- properties -------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(pods(SHAPES), st.sampled_from([None, *CLASSES]))
def test_what_is_told_agrees_with_classifier_and_formulas(drawn, posted):
    """Of generated pods, each loss is told exactly when the formulas give two values, and with these."""
    spec = drawn.spec
    wrong, right = posted or classify(spec, Behaviour.EMPTY_BLOCK_SHADOWS), classify(spec, Behaviour.FIXED)
    if wrong == right:
        return
    text = dict(each.split(": ", 1) for each in losses(spec, wrong, right))
    has, should = (
        expected(apply_defaults(spec, behaviour.defaults), qos)
        for behaviour, qos in ((Behaviour.EMPTY_BLOCK_SHADOWS, wrong), (Behaviour.FIXED, right))
    )

    weight = re.match(r"cpu\.weight (\d+) instead of (\d+)", text.get("weight", ""))
    assert (None if weight is None else tuple(map(int, weight.groups()))) == (
        None if has[0] == should[0] else (has[0], should[0])
    )
    limits = text.get("limits at pod level", "")
    for file, old, new in (("cpu.max", has[1], should[1]), ("memory.max", has[2], should[2])):
        assert (file in limits.partition(" (")[0]) == (old != new)
        if old != new and not old.startswith("max"):
            assert f"{file} {old} instead of {'none' if new.startswith('max') else new}" in limits
    old, new = text["OOM score"].removeprefix("oom_score_adj ").split(" instead of ")
    for said, qos in ((old, wrong), (new, right)):
        low, high = re.fullmatch(r"(-?\d+)(?: to (\d+) .*)?", said).groups()
        for container in (spec["containers"] if drawn.shape in (*NO_BLOCK, *EMPTY_BLOCKS) else []):
            request = apply_defaults({"containers": [container]}, Behaviour.FIXED.defaults).containers[0].requests
            score = oom_score_adj(qos, int(request.get("memory", 0)), 8 * GI)
            assert int(low) <= score <= int(high or low)
    exclusive = right == GUARANTEED and not is_pod_level_resources_set(spec.get("resources"))
    assert bool({"CPU manager", "memory manager"} & text.keys()) == exclusive
    assert ("memory pressure" in text) == (wrong == BEST_EFFORT)
    assert "quota" in text or BEST_EFFORT not in (wrong, right)


def expected(pod, qos):
    """cpu.weight, cpu.max and memory.max of a defaulted pod, reckoned in whole units."""
    if qos == BEST_EFFORT:
        return 1, cpu_max(None), "max"
    block = pod.block
    own_requests, own_limits = (block.requests, block.limits) if block else ({}, {})
    requests = {**together(pod, lambda own: own.requests), **own_requests}
    limits = {**together(pod, lambda own: own.limits), **own_limits}
    found = [weight_linear(milli_cpu_to_shares(-int(-requests.get("cpu", 0) * 1000 // 1)))]
    for name, scale, spelled in (("cpu", 1000, cpu_max), ("memory", 1, memory_max)):
        everywhere = all(own.limits.get(name) for own in pod.every_container)
        applies = qos == GUARANTEED or everywhere or own_limits.get(name)
        found.append(spelled(-int(-limits.get(name, 0) * scale // 1) if applies else None))
    return tuple(found)


@pytest.mark.parametrize("wrong", [BURSTABLE, BEST_EFFORT, "nonsense"])
def test_a_class_that_is_none_loses_nothing(wrong):
    assert bool(losses(burstable(), wrong, GUARANTEED)) == (wrong in CLASSES)


def test_standing_survives_any_spec():
    assert standing_of({"tolerations": {"a": 1}, "priority": "9", "priorityClassName": 3}).preempted_by
