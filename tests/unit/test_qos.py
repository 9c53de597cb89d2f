from __future__ import annotations

import copy
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.model import ParseError
from lab.qos import Behaviour, apply_defaults, behaviour_for, is_pod_level_resources_set, qos_class
from lab.quantity import parse_quantity

BEFORE, SHADOWS, FIXED = Behaviour.BEFORE_1_34, Behaviour.EMPTY_BLOCK_SHADOWS, Behaviour.FIXED
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
def test_behaviour_by_version_and_gates(minor, pod_level, fix, behaviour):
    assert behaviour_for(minor, pod_level, fix) is behaviour


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
    assert qos_class(pod(GUARD, block=block), FIXED) == "Guaranteed"
    assert qos_class(pod(GUARD, block=block), BEFORE) == "Guaranteed"


def test_null_block_is_no_block():
    assert qos_class(pod(GUARD, block=None), SHADOWS) == "Guaranteed"
    assert qos_class(pod(BURST, block=None), FIXED) == "Burstable"


@pytest.mark.parametrize("block", [{"requests": {"cpu": "0"}}, resources("0/0", "0/0"), {"requests": {"memory": 0}}])
def test_zero_quantities_at_pod_level_count_as_set_but_as_nothing(block):
    assert is_pod_level_resources_set(block)
    assert qos_class(pod({}, block=block), SHADOWS) == "BestEffort"
    assert qos_class(pod({}, block=block), FIXED) == "BestEffort"
    assert qos_class(pod(GUARD, block=block), FIXED, default_pod_limits=False) == "BestEffort"


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


def test_pod_level_requests_default_to_the_containers_before_the_limits():
    block = resources(None, "1/1Gi")
    assert qos_class(pod({"requests": {"cpu": "500m"}}, block=block), SHADOWS) == "Burstable"
    defaulted = apply_defaults(pod({"requests": {"cpu": "500m"}}, block=block))["resources"]
    assert defaulted["requests"] == {"cpu": "500m", "memory": str(2**30)}
    assert defaulted["limits"] == block["limits"]


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


def test_defaults_leave_an_empty_block_and_the_argument_alone():
    spec = pod(resources(None, "1/1Gi"), block={})
    before = copy.deepcopy(spec)
    defaulted = apply_defaults(spec)
    assert spec == before
    assert defaulted["resources"] == {}
    assert defaulted["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}


def test_defaults_drop_the_block_with_the_gate_off():
    assert "resources" not in apply_defaults(pod({}, block=BURST), pod_level=False)


def test_pod_level_request_is_the_peak_of_containers_sidecars_and_init_containers():
    def item(cpu, **more):
        return {"name": "x", "resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "containers": [item("100m"), item("200m")],
        "initContainers": [
            item("250m"),
            item("300m", restartPolicy="Always"),
            item("400m"),
            item("50m", restartPolicy="Always"),
        ],
        "resources": {"limits": {"cpu": "2"}},
    }
    assert apply_defaults(spec)["resources"] == {"requests": {"cpu": "700m"}, "limits": {"cpu": "2"}}
    spec["containers"][0] = item("1")
    assert parse_quantity(apply_defaults(spec)["resources"]["requests"]["cpu"]) == Fraction(155, 100)


def test_pod_level_requests_that_are_there_are_kept():
    block = {"requests": {"cpu": "0"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    defaulted = apply_defaults(pod({"requests": {"cpu": "500m", "nvidia.com/gpu": "1"}}, block=block))
    assert defaulted["resources"]["requests"] == {"cpu": "0", "memory": str(2**30)}


def test_pod_level_limits_are_defaulted_from_the_containers_since_1_37():
    spec = pod(resources(None, "1/1Gi"), resources(None, "1/1Gi"), block=resources("2/2Gi"))
    assert qos_class(spec, SHADOWS) == "Burstable"
    assert qos_class(spec, FIXED, default_pod_limits=False) == "Burstable"
    assert qos_class(spec, FIXED) == "Guaranteed"
    assert qos_class(spec, SHADOWS, default_pod_limits=True) == "Guaranteed"
    assert qos_class(spec, BEFORE, default_pod_limits=True) == "Guaranteed"


def test_pod_level_limits_need_a_limit_in_every_container():
    spec = pod(resources(None, "1/1Gi"), {"limits": {"cpu": "1"}}, block=resources("2/2Gi"))
    assert apply_defaults(spec, default_pod_limits=True)["resources"]["limits"] == {"cpu": "2"}
    assert qos_class(spec, FIXED) == "Burstable"


def test_huge_page_limits_stop_the_other_pod_level_limits():
    container = {"limits": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "2Mi"}}
    assert qos_class(pod(container, block=resources("1/1Gi")), FIXED) == "Burstable"


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
    ],
)
def test_specs_of_another_form_are_refused(spec):
    with pytest.raises(ParseError):
        qos_class(spec, SHADOWS)


AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "ephemeral-storage"]), st.sampled_from(["0", "1", "2", "1000m"])
)


@st.composite
def admitted_resources(draw):
    limits = draw(AMOUNTS)
    requests = {
        name: value
        for name, value in draw(AMOUNTS).items()
        if name not in limits or parse_quantity(value) <= parse_quantity(limits[name])
    }
    return {"requests": requests, "limits": limits}


def class_by_sums(containers):
    """The form of the rule before 1.37: sums over the containers, each needing both limits."""
    sums = {"requests": {}, "limits": {}}
    every_container_limited = True
    for container in containers:
        filled = {"limits": container["limits"], "requests": {**container["limits"], **container["requests"]}}
        for key in sums:
            for name in ("cpu", "memory"):
                amount = parse_quantity(filled[key].get(name, "0"))
                if amount > 0:
                    sums[key][name] = sums[key].get(name, 0) + amount
        every_container_limited &= all(parse_quantity(filled["limits"].get(n, "0")) > 0 for n in ("cpu", "memory"))
    if not sums["requests"] and not sums["limits"]:
        return "BestEffort"
    return "Guaranteed" if every_container_limited and sums["requests"] == sums["limits"] else "Burstable"


@given(st.lists(admitted_resources(), min_size=1, max_size=3))
def test_both_forms_of_the_rule_agree_on_admitted_pods(containers):
    expected = class_by_sums(containers)
    for behaviour in Behaviour:
        assert qos_class(pod(*containers), behaviour) == expected
    assert qos_class(pod(*containers, block={}), FIXED) == expected
    assert qos_class(pod(*containers, block={}), SHADOWS) == "BestEffort"


@given(st.lists(admitted_resources(), max_size=3), st.one_of(st.none(), admitted_resources()))
def test_defaulting_twice_changes_nothing(containers, block):
    once = apply_defaults(pod(*containers, block=block))
    assert apply_defaults(once) == once
