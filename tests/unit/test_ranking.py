from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.model import Missing, UsageError
from lab.ranking import (
    MODELS,
    RankedPod,
    applicable_models,
    check_sizes,
    class_tiers,
    consistent,
    kubelet_source,
    priority_first,
    separable,
    usage_only,
)

MIB = 2**20
TOLERANCE = 16 * MIB


def pod(name, qos, request, usage, priority=0):
    return RankedPod(name=name, qos=qos, memory_request_bytes=request * MIB, usage_bytes=usage * MIB, priority=priority)


def article(emp, gua_emp):
    return [
        pod("be", "BestEffort", 0, 54),
        pod("ctl", "Burstable", 256, 204),
        pod("gua-ctl", "Guaranteed", 256, 154),
        pod("emp", emp, 256, 104),
        pod("gua-emp", gua_emp, 256, 54),
    ]


ON_1_36 = article("BestEffort", "BestEffort")
ON_1_37 = article("Burstable", "Guaranteed")
LOW = pod("low", "Burstable", 256, 24, priority=-10)
OBSERVED = ["be", "ctl", "gua-ctl", "emp", "gua-emp"]


def groups(text):
    return tuple(frozenset(group.split()) for group in text.split("|"))


@pytest.mark.parametrize("pods", [ON_1_36, ON_1_37])
def test_source_gives_the_order_of_the_article_on_every_version(pods):
    assert kubelet_source(pods) == groups("be|ctl|gua-ctl|emp|gua-emp")
    assert consistent(OBSERVED, kubelet_source(pods))


def test_class_tiers_follow_the_stored_class():
    assert class_tiers(ON_1_36) == groups("be emp gua-emp|ctl|gua-ctl")
    assert class_tiers(ON_1_37) == groups("be|ctl emp|gua-ctl gua-emp")
    assert not consistent(OBSERVED, class_tiers(ON_1_36))
    assert not consistent(OBSERVED, class_tiers(ON_1_37))


def test_usage_only_ignores_requests():
    assert usage_only(ON_1_36) == groups("ctl|gua-ctl|emp|be gua-emp")
    assert not consistent(OBSERVED, usage_only(ON_1_36))


@pytest.mark.parametrize("pods", [ON_1_36, ON_1_37])
def test_five_pods_separate_the_models_that_apply(pods):
    assert list(applicable_models(pods)) == ["class_tiers", "kubelet_source", "usage_only"]
    check_sizes(pods, TOLERANCE)
    assert separable(class_tiers(pods), kubelet_source(pods))


@pytest.mark.parametrize("pods", [ON_1_36, ON_1_37])
def test_a_pod_of_lower_priority_brings_in_the_fourth_model(pods):
    six = [*pods, LOW]
    assert list(applicable_models(six)) == list(MODELS)
    check_sizes(six, TOLERANCE)
    assert kubelet_source(six) == groups("be|low|ctl|gua-ctl|emp|gua-emp")
    assert priority_first(six) == groups("low|be|ctl|gua-ctl|emp|gua-emp")
    assert consistent(["be", "low", *OBSERVED[1:]], kubelet_source(six))
    assert not consistent(["be", "low", *OBSERVED[1:]], priority_first(six))


def test_with_one_priority_the_source_and_priority_first_agree():
    assert priority_first(ON_1_36) == kubelet_source(ON_1_36)
    assert not separable(priority_first(ON_1_36), kubelet_source(ON_1_36))


def test_exceeding_comes_before_priority_and_priority_before_size():
    over, low, high = (
        pod("over", "Burstable", 10, 11, 5),
        pod("low", "Burstable", 90, 10, 1),
        pod("high", "Burstable", 90, 80, 2),
    )
    assert kubelet_source([high, low, over]) == groups("over|low|high")
    assert priority_first([high, low, over]) == groups("low|high|over")


def test_usage_equal_to_the_request_does_not_exceed_it():
    equal, below, above = (
        pod("equal", "Burstable", 50, 50, 1),
        pod("below", "Burstable", 50, 49, 0),
        pod("above", "Burstable", 50, 51, 9),
    )
    assert kubelet_source([equal, below, above]) == groups("above|below|equal")


def test_equal_pods_form_one_group():
    twins = [pod("a", "Burstable", 10, 5), pod("b", "Guaranteed", 20, 15)]
    assert kubelet_source(twins) == groups("a b")
    assert class_tiers(twins) == groups("a|b")


@pytest.mark.parametrize("order", [["be", "ctl"], [*OBSERVED, "coredns"], []])
def test_an_order_of_other_pods_is_not_judged(order):
    with pytest.raises(Missing):
        consistent(order, kubelet_source(ON_1_36))


def test_an_order_with_a_pod_twice_is_refused():
    with pytest.raises(UsageError, match="twice"):
        consistent([*OBSERVED, "be"], kubelet_source(ON_1_36))


def test_separable_needs_the_same_pods():
    with pytest.raises(UsageError, match="different pods"):
        separable(groups("a|b"), groups("a|c"))


def test_sizes_that_cannot_tell_two_models_apart_name_them():
    pods = [pod("be", "BestEffort", 0, 300), pod("bu", "Burstable", 256, 200), pod("gu", "Guaranteed", 256, 100)]
    with pytest.raises(UsageError, match="class_tiers and kubelet_source"):
        check_sizes(pods, TOLERANCE)


def test_priority_that_agrees_with_size_cannot_be_told_apart():
    pods = [dataclasses.replace(p, priority=-1 if p.name == "be" else 0) for p in ON_1_36]
    with pytest.raises(UsageError, match="kubelet_source and priority_first"):
        check_sizes(pods, TOLERANCE)


def test_pods_nearer_than_the_tolerance_are_named():
    near = [*ON_1_36[:3], pod("emp", "BestEffort", 256, 150), ON_1_36[4]]
    with pytest.raises(UsageError, match="gua-ctl and emp differ by 4 MiB"):
        check_sizes(near, TOLERANCE)
    check_sizes(near, 4 * MIB)


def test_gap_of_exactly_the_tolerance_is_enough():
    check_sizes(ON_1_36, 50 * MIB)
    with pytest.raises(UsageError, match="differ by 50 MiB"):
        check_sizes(ON_1_36, 50 * MIB + 1)


def test_pod_too_near_to_its_request_is_named():
    near = [pod("ctl", "Burstable", 256, 250), ON_1_36[0], ON_1_36[2]]
    with pytest.raises(UsageError, match="pod ctl uses 6 MiB"):
        check_sizes(near, TOLERANCE)


def test_equal_distance_is_refused_without_any_tolerance():
    with pytest.raises(UsageError, match="a and b"):
        check_sizes([pod("a", "Burstable", 10, 5), pod("b", "Guaranteed", 20, 15)], 0)


@pytest.mark.parametrize("pods", [[], [LOW], [LOW, LOW]])
def test_too_few_or_unnamed_pods(pods):
    with pytest.raises(UsageError, match="names of their own"):
        check_sizes(pods, TOLERANCE)


def test_unknown_class_is_refused():
    with pytest.raises(UsageError, match="besteffort"):
        class_tiers([pod("a", "besteffort", 0, 1)])


PODS = st.lists(
    st.tuples(
        st.sampled_from(["BestEffort", "Burstable", "Guaranteed"]),
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(-1, 1),
    ),
    min_size=2,
    max_size=5,
).map(lambda rows: [pod(f"p{i}", *row) for i, row in enumerate(rows)])


@given(PODS, st.sampled_from(list(MODELS)), st.sampled_from(list(MODELS)))
def test_separable_means_that_no_order_fits_both(pods, one, other):
    first, second = MODELS[one].rank(pods), MODELS[other].rank(pods)
    both = [
        order
        for order in itertools.permutations([p.name for p in pods])
        if consistent(order, first) and consistent(order, second)
    ]
    assert separable(first, second) == (not both)


@given(PODS, st.sampled_from(list(MODELS)), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(pods, name, rng):
    shuffled = list(pods)
    rng.shuffle(shuffled)
    ranked = MODELS[name].rank(pods)
    assert MODELS[name].rank(shuffled) == ranked
    assert sorted(n for group in ranked for n in group) == sorted(p.name for p in pods)


def less(one, other):
    """The comparison as the kubelet writes it: three comparators, the first that differs decides."""
    over = [p.usage_bytes > p.memory_request_bytes for p in (one, other)]
    if over[0] != over[1]:
        return over[0]
    if one.priority != other.priority:
        return one.priority < other.priority
    return one.usage_bytes - one.memory_request_bytes > other.usage_bytes - other.memory_request_bytes


@given(PODS)
def test_source_model_agrees_with_the_comparators(pods):
    position = {name: i for i, group in enumerate(kubelet_source(pods)) for name in group}
    for one, other in itertools.permutations(pods, 2):
        assert (position[one.name] < position[other.name]) == less(one, other)
