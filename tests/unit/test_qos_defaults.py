"""Defaulting by example, worked out from pkg/apis/core/v1/defaults.go (to 1.36) and pkg/api/pod/util.go (1.37)."""

from __future__ import annotations

import copy
from fractions import Fraction

import pytest

from lab.model import ParseError
from lab.qos_defaults import PodLevelDefaults, Requirements, apply_defaults, limit_range_defaults, read_pod

DROPPED, AT_DECODING, AT_CREATE, NEVER = PodLevelDefaults
EARLY_AND_LATE = [AT_DECODING, AT_CREATE]
GI = 2**30


def pod(*resources, init=(), **more):
    spec = {"containers": [{"name": f"c{index}", "resources": own} for index, own in enumerate(resources)], **more}
    return {**spec, "initContainers": list(init)} if init else spec


def req(requests=None, limits=None):
    return Requirements(
        requests={name: Fraction(amount) for name, amount in (requests or {}).items()},
        limits={name: Fraction(amount) for name, amount in (limits or {}).items()},
    )


def limit_range(*items):
    return {"kind": "LimitRange", "spec": {"limits": list(items)}}


def container_range(**keys):
    return limit_range({"type": "Container", **keys})


@pytest.mark.parametrize("pod_level", list(PodLevelDefaults))
def test_limits_become_missing_requests_of_every_kind_of_container(pod_level):
    own = {"limits": {"cpu": "1", "memory": "1Gi", "example.com/gpu": "1"}, "requests": {"cpu": "0"}}
    expected = req({"cpu": 0, "memory": GI, "example.com/gpu": 1}, {"cpu": 1, "memory": GI, "example.com/gpu": 1})
    defaulted = apply_defaults(pod(own, init=[{"resources": own}]), pod_level)
    assert defaulted.containers == defaulted.init_containers == (expected,)


def test_argument_is_not_changed():
    spec = pod({"limits": {"cpu": "1"}}, resources={"limits": {"cpu": "2"}})
    before = copy.deepcopy(spec)
    apply_defaults(spec, AT_CREATE, [container_range(default={"memory": "1Gi"})])
    assert spec == before


@pytest.mark.parametrize(
    "block", [{}, {"requests": {}}, {"limits": {}}, {"requests": None, "limits": {}}, {"claims": []}]
)
@pytest.mark.parametrize("pod_level", [AT_DECODING, AT_CREATE, NEVER])
def test_empty_block_stays_empty(block, pod_level):
    container = {"limits": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "2Mi"}}
    assert apply_defaults(pod(container, resources=block), pod_level).block == req()


@pytest.mark.parametrize("pod_level", list(PodLevelDefaults))
def test_no_block_stays_no_block(pod_level):
    assert apply_defaults(pod({"limits": {"cpu": "1"}}), pod_level).block is None
    assert apply_defaults(pod({"limits": {"cpu": "1"}}, resources=None), pod_level).block is None


def test_block_dropped_or_left_alone():
    spec = pod({"requests": {"cpu": "1"}}, resources={"limits": {"cpu": "2"}})
    assert apply_defaults(spec, DROPPED).block is None
    assert apply_defaults(spec, NEVER).block == req({}, {"cpu": 2})


@pytest.mark.parametrize("pod_level", EARLY_AND_LATE)
def test_requests_are_the_containers_then_the_limits(pod_level):
    spec = pod({"requests": {"cpu": "500m"}}, resources={"limits": {"cpu": "1", "memory": "1Gi"}})
    block = apply_defaults(spec, pod_level).block
    assert block == req({"cpu": Fraction(1, 2), "memory": GI}, {"cpu": 1, "memory": GI})


@pytest.mark.parametrize("pod_level", EARLY_AND_LATE)
def test_requests_that_are_there_are_kept(pod_level):
    spec = pod(
        {"requests": {"cpu": "500m", "nvidia.com/gpu": "1", "ephemeral-storage": "1Gi"}},
        resources={"requests": {"cpu": "0"}, "limits": {"cpu": "1", "memory": "1Gi"}},
    )
    assert apply_defaults(spec, pod_level).block == req({"cpu": 0, "memory": GI}, {"cpu": 1, "memory": GI})


@pytest.mark.parametrize("pod_level", EARLY_AND_LATE)
def test_requests_are_the_peak_of_containers_sidecars_and_init_containers(pod_level):
    def item(cpu, **more):
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    init = [
        item("250m"),
        item("300m", restartPolicy="Always"),
        item("400m"),
        item("50m", restartPolicy="Always"),
        item("100m", restartPolicy="OnFailure"),
    ]
    spec = pod(item("100m")["resources"], item("200m")["resources"], init=init, resources={"limits": {"cpu": "2"}})
    # Containers and sidecars: 650m. The third init container beside the first sidecar: 700m.
    block = apply_defaults(spec, pod_level).block
    assert block is not None
    assert block.requests == {"cpu": Fraction(7, 10)}
    spec["containers"][0] = item("1")
    block = apply_defaults(spec, pod_level).block
    assert block is not None
    assert block.requests == {"cpu": Fraction(155, 100)}


def test_requests_alone_up_to_1_36_and_since():
    spec = pod({"requests": {"cpu": "100m", "memory": "64Mi"}}, resources={"requests": {"cpu": "1"}})
    assert apply_defaults(spec, AT_DECODING).block == req({"cpu": 1})
    assert apply_defaults(spec, AT_CREATE).block == req({"cpu": 1, "memory": 64 * 2**20})


def test_limits_since_1_37_need_a_limit_in_every_container():
    both = {"limits": {"cpu": "1", "memory": "1Gi"}}
    spec = pod(both, {"limits": {"cpu": "3"}}, resources={"requests": {"cpu": "2", "memory": "2Gi"}})
    assert apply_defaults(spec, AT_CREATE).block == req({"cpu": 2, "memory": 2 * GI}, {"cpu": 4})
    assert apply_defaults(spec, AT_DECODING).block == req({"cpu": 2, "memory": 2 * GI})
    spec["initContainers"] = [{"resources": {"limits": {"memory": "1Gi"}}}]
    assert apply_defaults(spec, AT_CREATE).block == req({"cpu": 2, "memory": 2 * GI})


def test_limits_since_1_37_are_at_least_the_request():
    spec = pod({"limits": {"cpu": "1"}}, resources={"requests": {"cpu": "3"}})
    assert apply_defaults(spec, AT_CREATE).block == req({"cpu": 3}, {"cpu": 3})


def test_limits_since_1_37_beside_another_limit():
    # Per resource: the memory limit that is there does not stop the one for cpu.
    spec = pod(
        {"limits": {"cpu": "1", "memory": "1Gi"}}, resources={"requests": {"cpu": "1"}, "limits": {"memory": "2Gi"}}
    )
    assert apply_defaults(spec, AT_CREATE).block == req({"cpu": 1, "memory": GI}, {"cpu": 1, "memory": 2 * GI})


@pytest.mark.parametrize("pod_level", EARLY_AND_LATE)
def test_huge_pages_get_limit_and_request_from_the_containers(pod_level):
    container = {"limits": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "2Mi"}}
    block = apply_defaults(pod(container, container, resources={"requests": {"cpu": "2"}}), pod_level).block
    assert block is not None
    assert block.limits["hugepages-2Mi"] == block.requests["hugepages-2Mi"] == 4 * 2**20
    # That limit lets requests be completed up to 1.36 too; limits for cpu and memory come since 1.37 only.
    assert block.requests["memory"] == 2 * GI
    assert ("cpu" in block.limits) == (pod_level is AT_CREATE)


@pytest.mark.parametrize("pod_level", EARLY_AND_LATE)
def test_huge_pages_with_a_pod_level_request_get_no_limit_from_the_sum_at_first(pod_level):
    container = {"limits": {"cpu": "1", "hugepages-2Mi": "2Mi"}}
    block = apply_defaults(pod(container, resources={"requests": {"hugepages-2Mi": "4Mi"}}), pod_level).block
    assert block is not None
    # Since 1.37 defaultPodLevelLimits raises the sum to the request; up to 1.36 the limit stays missing.
    assert block.limits.get("hugepages-2Mi") == (4 * 2**20 if pod_level is AT_CREATE else None)


@pytest.mark.parametrize(
    ("pod_level", "request_milli"),
    # Three times 0.4m: up to 1.36 summed as written (1.2m), then rounded up; since 1.37 each rounded up first.
    [(AT_DECODING, 2), (AT_CREATE, 3)],
)
def test_rounding_before_or_after_the_sum(pod_level, request_milli):
    own = {"requests": {"cpu": "0.4m"}}
    defaulted = apply_defaults(pod(own, own, own, resources={"limits": {"cpu": "1"}}), pod_level)
    assert defaulted.block == req({"cpu": Fraction(request_milli, 1000)}, {"cpu": 1})
    assert defaulted.containers[0] == req({"cpu": Fraction(1, 1000)})


def test_limit_range_is_before_or_after_the_block():
    spec = pod({}, resources={"limits": {"cpu": "2"}})
    limit_ranges = [container_range(defaultRequest={"cpu": "1"})]
    assert apply_defaults(spec, AT_DECODING, limit_ranges).block == req({"cpu": 2}, {"cpu": 2})
    assert apply_defaults(spec, AT_CREATE, limit_ranges).block == req({"cpu": 1}, {"cpu": 2})


def test_limit_range_completes_every_kind_of_container_but_what_is_there():
    limit_ranges = [container_range(default={"cpu": "2", "memory": "2Gi"}, defaultRequest={"cpu": "1"})]
    init = [{}, {"resources": None, "restartPolicy": "Always"}]
    defaulted = apply_defaults(pod({"limits": {"cpu": "500m"}}, init=init), NEVER, limit_ranges)
    filled = req({"cpu": 1, "memory": 2 * GI}, {"cpu": 2, "memory": 2 * GI})
    assert defaulted.init_containers == (filled, filled)
    half = Fraction(1, 2)
    assert defaulted.containers == (req({"cpu": half, "memory": 2 * GI}, {"cpu": half, "memory": 2 * GI}),)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({}, req()),
        ({"default": {"cpu": "2"}}, req({"cpu": 2}, {"cpu": 2})),
        ({"defaultRequest": {"cpu": "2"}}, req({"cpu": 2})),
        ({"max": {"cpu": "2"}}, req({"cpu": 2}, {"cpu": 2})),
        ({"max": {"cpu": "2"}, "default": {"cpu": "1"}}, req({"cpu": 1}, {"cpu": 1})),
        ({"min": {"cpu": "1"}}, req({"cpu": 1})),
        ({"min": {"cpu": "1"}, "default": {"cpu": "2"}}, req({"cpu": 2}, {"cpu": 2})),
        ({"min": {"cpu": "1"}, "defaultRequest": {"cpu": "3"}}, req({"cpu": 3})),
        ({"default": None, "max": {"cpu": "0.1m"}}, req({"cpu": Fraction(1, 1000)}, {"cpu": Fraction(1, 1000)})),
        ({"maxLimitRequestRatio": {"cpu": "2"}}, req()),
    ],
)
def test_what_a_limit_range_gives(item, expected):
    assert limit_range_defaults(container_range(**item)) == expected


def test_limits_of_type_pod_give_nothing():
    assert limit_range_defaults(limit_range({"type": "Pod", "max": {"cpu": "2"}, "min": {"cpu": "1"}})) == req()


def test_first_limit_range_wins():
    first, second = container_range(default={"cpu": "1"}), container_range(default={"cpu": "2", "memory": "1Gi"})
    (own,) = apply_defaults(pod({}), NEVER, [first, second]).containers
    assert own == req({"cpu": 1, "memory": GI}, {"cpu": 1, "memory": GI})


def test_reading():
    init = [{"resources": {}}, {"restartPolicy": "Always"}, {"restartPolicy": "Never"}]
    found = read_pod(pod({"requests": {"cpu": None, "memory": " 1Ki "}}, init=init, ephemeralContainers=[{}]))
    assert found.containers == (req({"cpu": 0, "memory": 1024}),)
    assert found.init_containers == (req(),) * 3
    assert found.sidecars == {1}
    assert found.every_container == (req(),) * 3 + found.containers


@pytest.mark.parametrize(
    "bad",
    [
        {"spec": []},
        {"spec": {"limits": {}}},
        {"spec": {"limits": ["Container"]}},
        {"spec": {"limits": [{"type": "Container", "default": ["cpu"]}]}},
        {"spec": {"limits": [{"type": "Container", "max": {"cpu": "much"}}]}},
    ],
)
def test_limit_ranges_of_another_form_are_refused(bad):
    with pytest.raises(ParseError):
        apply_defaults(pod({}), NEVER, [bad])
