"""What holds for every generated pod; the same pods go to real API servers in tests/e2e/test_differential.py."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import hypothesis
from hypothesis import given
from hypothesis import strategies as st

from lab.qos import Behaviour, affected, classify, qos_class, static_pod_class
from lab.qos_defaults import PodLevelDefaults, apply_defaults
from lab.quantity import format_quantity, parse_quantity
from tests.pod_strategies import EMPTY_BLOCKS, LIMIT_RANGES, NO_BLOCK, SHAPES, limit_range, pods

CLASSES = {"BestEffort", "Burstable", "Guaranteed"}
LENIENT = (Behaviour.BEFORE_1_34, Behaviour.FIXED, Behaviour.FIXED_EARLY_DEFAULTS)
"""Behaviours to which an empty block is no block."""


def ranges_of(drawn):
    return [limit_range(LIMIT_RANGES[drawn.ranges])]


def every_class(spec, limit_ranges=()):
    return [classify(spec, behaviour, limit_ranges) for behaviour in Behaviour]


@given(pods(NO_BLOCK), st.sampled_from(list(EMPTY_BLOCKS.values())))
def test_empty_block_changes_no_class_where_it_is_no_block(drawn, block):
    with_block = {**drawn.spec, "resources": block}
    for behaviour in LENIENT:
        assert classify(with_block, behaviour, ranges_of(drawn)) == classify(drawn.spec, behaviour, ranges_of(drawn))


@given(pods(tuple(EMPTY_BLOCKS)))
def test_empty_block_is_best_effort_elsewhere(drawn):
    for behaviour in (Behaviour.EMPTY_BLOCK_SHADOWS, Behaviour.FIX_OFF):
        assert classify(drawn.spec, behaviour, ranges_of(drawn)) == "BestEffort"
    without = {key: value for key, value in drawn.spec.items() if key != "resources"}
    is_anything = classify(without, Behaviour.FIXED, ranges_of(drawn)) != "BestEffort"
    assert affected(drawn.spec, ranges_of(drawn)) == is_anything


@given(pods(NO_BLOCK))
def test_versions_agree_without_a_block(drawn):
    # Up to 1.36 by sums over all containers, since 1.37 container by container.
    assert len(set(every_class(drawn.spec, ranges_of(drawn)))) == 1
    assert not affected(drawn.spec, ranges_of(drawn))


@given(pods(NO_BLOCK), st.data())
def test_empty_resources_of_a_container_are_harmless(drawn, data):
    spec = {**drawn.spec, "containers": [dict(container) for container in drawn.spec["containers"]]}
    chosen = data.draw(st.sampled_from(spec["containers"]))
    chosen["resources"] = {}
    classes = every_class(spec, ranges_of(drawn))
    del chosen["resources"]
    assert classes == every_class(spec, ranges_of(drawn))
    assert not affected(spec, ranges_of(drawn))


@given(pods())
def test_affected_is_a_difference_between_1_36_and_1_37(drawn):
    before = classify(drawn.spec, Behaviour.EMPTY_BLOCK_SHADOWS, ranges_of(drawn))
    after = classify(drawn.spec, Behaviour.FIXED, ranges_of(drawn))
    assert affected(drawn.spec, ranges_of(drawn)) == (before != after)


@given(pods())
def test_ephemeral_containers_never_matter(drawn):
    own = {"limits": {"cpu": "1", "memory": "1Gi"}}
    spec = {**drawn.spec, "ephemeralContainers": [{"name": "e"}, {"name": "f", "resources": own}]}
    assert every_class(spec, ranges_of(drawn)) == every_class(drawn.spec, ranges_of(drawn))


@given(pods(), st.randoms(use_true_random=False))
def test_order_of_containers_never_matters(drawn, random):
    containers = list(drawn.spec["containers"])
    random.shuffle(containers)
    assert every_class({**drawn.spec, "containers": containers}, ranges_of(drawn)) == every_class(
        drawn.spec, ranges_of(drawn)
    )


def respelled(value):
    """The same pod with every amount spelled in one plain way."""
    if isinstance(value, list):
        return [respelled(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: {
            name: None if amount is None else format_quantity(parse_quantity(amount)) for name, amount in item.items()
        }
        if key in ("requests", "limits") and isinstance(item, dict)
        else respelled(item)
        for key, item in value.items()
    }


@given(pods())
def test_spelling_of_amounts_never_matters(drawn):
    assert every_class(respelled(drawn.spec), ranges_of(drawn)) == every_class(drawn.spec, ranges_of(drawn))


@given(pods())
def test_resources_that_make_no_class_never_matter_to_containers_alone(drawn):
    spec = {key: value for key, value in drawn.spec.items() if key != "resources"}
    own = dict(spec["containers"][0].get("resources") or {})
    own["limits"] = {**(own.get("limits") or {}), "example.com/gadget": "1", "ephemeral-storage": "1Gi"}
    more = {**spec, "containers": [{**spec["containers"][0], "resources": own}, *spec["containers"][1:]]}
    assert every_class(more) == every_class(spec)


@given(pods())
def test_classes_are_the_three(drawn):
    assert set(every_class(drawn.spec, ranges_of(drawn))) <= CLASSES
    assert {static_pod_class(drawn.spec, behaviour) for behaviour in Behaviour} <= CLASSES


@given(pods())
def test_static_pods_differ_only_where_the_block_is_completed_late(drawn):
    for behaviour in (Behaviour.BEFORE_1_34, Behaviour.EMPTY_BLOCK_SHADOWS, Behaviour.FIXED_EARLY_DEFAULTS):
        assert static_pod_class(drawn.spec, behaviour) == qos_class(drawn.spec, behaviour)


def written(defaulted):
    """Defaulted resources as a spec that a server would give back."""

    def texts(own):
        return {
            key: {name: format_quantity(Fraction(amount)) for name, amount in amounts.items()}
            for key, amounts in (("requests", own.requests), ("limits", own.limits))
        }

    init = [
        {"resources": texts(own), **({"restartPolicy": "Always"} if index in defaulted.sidecars else {})}
        for index, own in enumerate(defaulted.init_containers)
    ]
    return {
        "containers": [{"resources": texts(own)} for own in defaulted.containers],
        "initContainers": init,
        "resources": None if defaulted.block is None else texts(defaulted.block),
    }


@given(pods(), st.sampled_from(list(PodLevelDefaults)))
def test_defaulting_twice_changes_nothing(drawn, pod_level):
    # A pod that was read back and is created anew on the same version.
    once = apply_defaults(drawn.spec, pod_level, ranges_of(drawn))
    twice = apply_defaults(written(once), pod_level, ranges_of(drawn))
    assert twice == once


def test_generated_pods_cover_every_shape_and_class_and_tell_all_behaviours_apart():
    counted: Counter[object] = Counter()

    @hypothesis.settings(max_examples=300, database=None)
    @given(pods())
    def count(drawn):
        classes = dict(zip(Behaviour, every_class(drawn.spec, ranges_of(drawn)), strict=True))
        counted.update([drawn.shape, *classes.items()])
        counted.update(pair for pair in itertools.combinations(Behaviour, 2) if classes[pair[0]] != classes[pair[1]])

    count()
    wanted = {*SHAPES, *itertools.product(Behaviour, CLASSES), *itertools.combinations(Behaviour, 2)}
    assert wanted - set(counted) == set()
