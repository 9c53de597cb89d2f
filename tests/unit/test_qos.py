"""Classes by example, worked out from ComputePodQOS in pkg/apis/core/helper/qos/qos.go, v1.34.4 to v1.37.2."""

from __future__ import annotations

import pytest

from lab.model import ParseError
from lab.qos import (
    DEFAULTING_GATE,
    FIX_GATE,
    POD_LEVEL_GATE,
    Behaviour,
    affected,
    behaviour_for,
    behaviour_of,
    classify,
    is_pod_level_resources_set,
    qos_class,
    static_pod_class,
    stored_class,
)

BEFORE, SHADOWS, FIXED = Behaviour.BEFORE_1_34, Behaviour.EMPTY_BLOCK_SHADOWS, Behaviour.FIXED
FIX_OFF, EARLY = Behaviour.FIX_OFF, Behaviour.FIXED_EARLY_DEFAULTS
ABSENT = object()


def resources(requests=None, limits=None):
    return {
        key: dict(zip(("cpu", "memory"), value.split("/"), strict=True))
        for key, value in (("requests", requests), ("limits", limits))
        if value is not None
    }


def pod(*containers, block=ABSENT, **more):
    spec = {"containers": [{"name": f"c{i}", "resources": r} for i, r in enumerate(containers)], **more}
    if block is not ABSENT:
        spec["resources"] = block
    return spec


BURST = resources("100m/256Mi", "500m/512Mi")
GUARD = resources("200m/256Mi", "200m/256Mi")
ARTICLE = {
    "ctl-burstable": (pod(BURST), ("Burstable", "Burstable", "Burstable")),
    "emp-burstable": (pod(BURST, block={}), ("Burstable", "BestEffort", "Burstable")),
    "ctl-guaranteed": (pod(GUARD), ("Guaranteed", "Guaranteed", "Guaranteed")),
    "emp-guaranteed": (pod(GUARD, block={}), ("Guaranteed", "BestEffort", "Guaranteed")),
    "plr-burstable": (pod({}, block=BURST), ("BestEffort", "Burstable", "Burstable")),
    "be": (pod({}), ("BestEffort", "BestEffort", "BestEffort")),
}


@pytest.mark.parametrize("name", ARTICLE)
def test_the_six_pods_of_the_article(name):
    spec, expected = ARTICLE[name]
    assert tuple(qos_class(spec, behaviour) for behaviour in (BEFORE, SHADOWS, FIXED)) == expected


@pytest.mark.parametrize(
    ("minor", "pod_level", "fix", "behaviour"),
    [
        (31, True, True, BEFORE),
        (32, False, False, BEFORE),
        (33, True, False, SHADOWS),
        (34, True, True, SHADOWS),
        (36, True, True, SHADOWS),
        (36, False, True, BEFORE),
        (37, True, True, FIXED),
        (37, True, False, SHADOWS),
        (37, False, True, BEFORE),
        (38, True, True, FIXED),
    ],
)
def test_behaviour_for_pods_that_were_read_back(minor, pod_level, fix, behaviour):
    assert behaviour_for(minor, pod_level, fix) is behaviour


@pytest.mark.parametrize(
    ("minor", "gates", "behaviour"),
    [
        (31, {POD_LEVEL_GATE: True}, BEFORE),
        (33, {}, BEFORE),
        (33, {POD_LEVEL_GATE: True}, SHADOWS),
        (34, {}, SHADOWS),
        (36, {}, SHADOWS),
        (36, {FIX_GATE: True, DEFAULTING_GATE: True}, SHADOWS),
        (36, {POD_LEVEL_GATE: False}, BEFORE),
        (37, {}, FIXED),
        (37, {"AnotherGate": False}, FIXED),
        (37, {FIX_GATE: False}, FIX_OFF),
        (37, {DEFAULTING_GATE: False}, EARLY),
        (37, {FIX_GATE: False, DEFAULTING_GATE: False}, SHADOWS),
        (37, {POD_LEVEL_GATE: False, FIX_GATE: True}, BEFORE),
        (40, {}, FIXED),
    ],
)
def test_behaviour_by_version_and_gates(minor, gates, behaviour):
    assert behaviour_of(minor, gates) is behaviour


def test_labels_are_those_of_the_tables():
    labels = [behaviour.label for behaviour in (BEFORE, SHADOWS, FIXED, FIX_OFF)]
    assert labels == ["<= 1.33", "1.34-1.36", "1.37+", "1.37+ with the fix off"]
    assert len({behaviour.label for behaviour in Behaviour}) == len(Behaviour)


EMPTY_SHAPES = [
    {},
    {"requests": {}},
    {"limits": {}},
    {"requests": {}, "limits": {}},
    {"requests": None},
    {"claims": []},
]


@pytest.mark.parametrize("block", EMPTY_SHAPES)
def test_every_empty_shape_shadows_before_the_fix_only(block):
    assert qos_class(pod(GUARD, block=block), SHADOWS) == "BestEffort"
    assert qos_class(pod(GUARD, block=block), FIX_OFF) == "BestEffort"
    assert qos_class(pod(GUARD, block=block), FIXED) == "Guaranteed"
    assert qos_class(pod(GUARD, block=block), EARLY) == "Guaranteed"
    assert qos_class(pod(GUARD, block=block), BEFORE) == "Guaranteed"
    assert affected(pod(GUARD, block=block))
    assert not affected(pod({}, block=block))


def test_null_block_is_no_block():
    assert qos_class(pod(GUARD, block=None), SHADOWS) == "Guaranteed"
    assert qos_class(pod(BURST, block=None), FIXED) == "Burstable"


@pytest.mark.parametrize("block", [{"requests": {"cpu": "0"}}, resources("0/0", "0/0"), {"requests": {"memory": 0}}])
def test_zero_quantities_at_pod_level_count_as_set_but_as_nothing(block):
    assert is_pod_level_resources_set(block)
    assert qos_class(pod({}, block=block), SHADOWS) == "BestEffort"
    assert qos_class(pod({}, block=block), FIXED) == "BestEffort"
    assert qos_class(pod({}, block=block), FIX_OFF) == "BestEffort"


def test_huge_pages_set_the_block_but_have_no_class():
    block = {"requests": {"hugepages-2Mi": "4Mi"}, "limits": {"hugepages-2Mi": "4Mi"}}
    assert is_pod_level_resources_set(block)
    assert qos_class(pod({}, block=block), FIXED) == "BestEffort"


def test_other_pod_level_names_do_not_set_the_block():
    block = {"requests": {"ephemeral-storage": "1Gi"}}
    assert not is_pod_level_resources_set(block)
    assert qos_class(pod(GUARD, block=block), SHADOWS) == "BestEffort"
    assert qos_class(pod(GUARD, block=block), FIXED) == "Guaranteed"


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (resources("1/1Gi", "1/1Gi"), "Guaranteed"),
        (resources(None, "1/1Gi"), "Guaranteed"),
        (resources("1/1Gi"), "Burstable"),
        (resources("500m/1Gi", "1/1Gi"), "Burstable"),
        ({"limits": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"memory": "1Gi"}}, "Burstable"),
        (resources("1000m/1024Mi", "1/1Gi"), "Guaranteed"),
    ],
)
@pytest.mark.parametrize("behaviour", [SHADOWS, FIXED])
def test_real_pod_level_blocks(block, expected, behaviour):
    assert qos_class(pod({}, block=block), behaviour) == expected


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "0", "memory": "0"}}, "BestEffort"),
        ({"limits": {"cpu": "0"}}, "BestEffort"),
        ({"requests": {"ephemeral-storage": "1Gi"}}, "BestEffort"),
        ({"limits": {"hugepages-2Mi": "4Mi"}}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"memory": "1Gi"}}, "Burstable"),
        (resources("1/1Gi"), "Burstable"),
        (resources(None, "1/1Gi"), "Guaranteed"),
        (resources("1/1Gi", "1/1Gi"), "Guaranteed"),
        (resources("0.1/1Gi", "100m/1024Mi"), "Guaranteed"),
        (resources("1/1Gi", "1/2Gi"), "Burstable"),
        (resources("1/1Gi", "2/1Gi"), "Burstable"),
        (resources("0/1Gi", "1/1Gi"), "Burstable"),
        ({"requests": {"cpu": None}, "limits": {"cpu": 1, "memory": "1Gi"}}, "Burstable"),
        (
            {"requests": {"cpu": 0.5, "memory": 1048576}, "limits": {"cpu": "500m", "memory": "1Mi"}},
            "Guaranteed",
        ),
        (resources("999u/1Gi", "1m/1Gi"), "Guaranteed"),
        ({**GUARD, "limits": {**GUARD["limits"], "ephemeral-storage": "1Gi"}}, "Guaranteed"),
    ],
)
@pytest.mark.parametrize("behaviour", list(Behaviour))
def test_one_container(container, expected, behaviour):
    assert qos_class(pod(container), behaviour) == expected


def test_containers_are_combined():
    assert qos_class(pod(GUARD, resources(None, "1/1Gi")), FIXED) == "Guaranteed"
    assert qos_class(pod(GUARD, {}), FIXED) == "Burstable"
    assert qos_class(pod({}, {}), FIXED) == "BestEffort"
    assert qos_class(pod({}, BURST), FIXED) == "Burstable"


def test_sums_that_cancel_are_still_burstable():
    one, other = resources("1/1Gi", "2/1Gi"), resources("2/1Gi", "2/1Gi")
    assert qos_class(pod(one, other), FIXED) == "Burstable"


def test_init_containers_and_sidecars_count_and_ephemeral_containers_do_not():
    init = [{"name": "i", "resources": {}}]
    sidecar = [{"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1m"}}}]
    assert qos_class(pod(GUARD, initContainers=init), FIXED) == "Burstable"
    assert qos_class(pod({}, initContainers=sidecar), FIXED) == "Burstable"
    assert qos_class(pod({}, initContainers=[{"name": "i", "resources": GUARD}]), FIXED) == "Burstable"
    assert qos_class(pod(GUARD, initContainers=[{"name": "i", "resources": GUARD}]), FIXED) == "Guaranteed"
    assert qos_class(pod(GUARD, ephemeralContainers=[{"name": "e"}]), FIXED) == "Guaranteed"
    assert qos_class(pod({}, ephemeralContainers=[{"name": "e", "resources": GUARD}]), FIXED) == "BestEffort"


def test_no_containers():
    assert qos_class({}, FIXED) == "BestEffort"
    assert qos_class({"containers": [{"name": "c"}]}, BEFORE) == "BestEffort"


def test_requests_alone_are_completed_since_1_37():
    # defaultPodLevelLimits, pkg/api/pod/util.go: every container has the limit.
    spec = pod(resources(None, "1/1Gi"), resources(None, "1/1Gi"), block=resources("2/2Gi"))
    assert [qos_class(spec, behaviour) for behaviour in (BEFORE, SHADOWS, EARLY)] == [
        "Guaranteed", "Burstable", "Burstable"
    ]  # fmt: skip
    assert [qos_class(spec, behaviour) for behaviour in (FIXED, FIX_OFF)] == ["Guaranteed", "Guaranteed"]
    assert affected(spec)


def test_a_zero_request_alone_is_completed_since_1_37():
    # defaultPodLevelRequests: memory from the container. Up to 1.36 defaultPodRequests needs a limit to begin.
    spec = pod({"requests": {"memory": "64Mi"}}, block={"requests": {"cpu": "0"}})
    assert [qos_class(spec, behaviour) for behaviour in (SHADOWS, FIXED)] == ["BestEffort", "Burstable"]
    assert affected(spec)
    # ... and huge pages of a container are such a limit (defaultHugePagePodLimits runs first).
    spec["containers"][0]["resources"]["limits"] = {"hugepages-2Mi": "2Mi"}
    assert [qos_class(spec, behaviour) for behaviour in (SHADOWS, FIXED)] == ["Burstable", "Burstable"]


def test_container_below_its_own_limit_in_sum_only():
    # An API server refuses it. Up to 1.36 the rule compares sums, since 1.37 container by container.
    spec = pod(resources("2/1Gi", "1/1Gi"), resources("1/1Gi", "2/1Gi"))
    assert qos_class(spec, SHADOWS) == "Guaranteed"
    assert qos_class(spec, FIXED) == "Burstable"
    assert not affected(spec)


def test_limit_range_completes_the_containers_but_not_an_empty_block():
    limit_ranges = [{"spec": {"limits": [{"type": "Container", "default": {"cpu": "1", "memory": "1Gi"}}]}}]
    assert {classify(pod({}), behaviour, limit_ranges) for behaviour in Behaviour} == {"Guaranteed"}
    classes = [classify(pod({}, block={}), behaviour, limit_ranges) for behaviour in (BEFORE, SHADOWS, FIXED, FIX_OFF)]
    assert classes == ["Guaranteed", "BestEffort", "Guaranteed", "BestEffort"]
    assert affected(pod({}, block={}), limit_ranges)
    assert not affected(pod({}, block={}))


def test_limit_range_reaches_the_block_since_1_37_only():
    limit_ranges = [{"spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "1"}}]}}]
    spec = pod({}, block=resources(None, "2/2Gi"))
    classes = [classify(spec, behaviour, limit_ranges) for behaviour in (SHADOWS, EARLY, FIXED)]
    assert classes == ["Guaranteed", "Guaranteed", "Burstable"]
    assert affected(spec, limit_ranges)
    assert not affected(spec)


def test_static_pod_has_no_registry_since_1_37():
    # tryDecodeSinglePod, pkg/kubelet/config/common.go: decoded and validated, never DefaultPodLevelResources.
    limits = pod({}, block=resources(None, "1/1Gi"))
    assert [static_pod_class(limits, behaviour) for behaviour in (BEFORE, SHADOWS, FIXED, FIX_OFF, EARLY)] == [
        "BestEffort", "Guaranteed", "Burstable", "Burstable", "Guaranteed"
    ]  # fmt: skip
    empty = pod(GUARD, block={})
    assert [static_pod_class(empty, behaviour) for behaviour in (BEFORE, SHADOWS, FIXED, FIX_OFF)] == [
        "Guaranteed", "BestEffort", "Guaranteed", "BestEffort"
    ]  # fmt: skip
    assert static_pod_class(pod(resources(None, "1/1Gi")), FIXED) == "Guaranteed"


@pytest.mark.parametrize("posted", ["Guaranteed", "nonsense"])
def test_posted_class_is_stored_up_to_1_36(posted):
    # PrepareForCreate, pkg/registry/core/pod/strategy.go: GetPodQOS is asked before the status is cleared up to 1.36.
    whole = {"spec": pod(BURST, block={}), "status": {"qosClass": posted}}
    assert [stored_class(whole, minor, {}) for minor in (33, 34, 36)] == [posted] * 3
    assert stored_class(whole, 36, {POD_LEVEL_GATE: False}) == posted
    assert stored_class(whole, 37, {}) == "Burstable"
    assert stored_class(whole, 37, {FIX_GATE: False}) == "BestEffort"


@pytest.mark.parametrize("status", [None, {}, {"qosClass": ""}, {"qosClass": None}, {"phase": "Running"}])
def test_no_class_posted(status):
    assert stored_class({"spec": pod(BURST, block={}), "status": status}, 36, {}) == "BestEffort"
    assert stored_class({"spec": pod(BURST)}, 36, {}) == "Burstable"


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": {}},
        {"containers": ["c"]},
        {"containers": [{"resources": []}]},
        {"containers": [{"resources": {"limits": ["cpu"]}}]},
        {"containers": [{"resources": {"requests": {"cpu": "lots"}}}]},
        {"containers": [], "resources": []},
        {"containers": [], "resources": "{}"},
        {"containers": [], "resources": {"limits": {"cpu": "lots"}}},
    ],
)
def test_specs_of_another_form_are_refused(spec):
    with pytest.raises(ParseError):
        qos_class(spec, SHADOWS)
