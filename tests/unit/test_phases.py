"""Exclusive times of nested phases, on a clock of the test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.phases import Phases
from tests.fakes import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def phases(clock):
    return Phases(clock)


def test_nothing_tracked_is_nothing(phases):
    assert phases.seconds() == {}


def test_time_between_phases_counts_for_none(phases, clock):
    with phases.track("boot"):
        clock.advance(10)
    clock.advance(100)
    with phases.track("install"):
        clock.advance(5)
    assert phases.seconds() == {"boot": 10.0, "install": 5.0}


def test_an_inner_phase_is_not_counted_in_the_outer_one(phases, clock):
    with phases.track("stage"):
        clock.advance(1)
        with phases.track("pods"):
            clock.advance(20)
            with phases.track("api"):
                clock.advance(300)
            clock.advance(20)
        clock.advance(1)
    assert phases.seconds() == {"stage": 2.0, "pods": 40.0, "api": 300.0}


def test_the_same_phase_adds_up_also_inside_itself(phases, clock):
    with phases.track("pods"):
        clock.advance(1)
        with phases.track("pods"):
            clock.advance(2)
        clock.advance(4)
    with phases.track("pods"):
        clock.advance(8)
    assert phases.seconds() == {"pods": 15.0}


def test_an_error_ends_its_phase(phases, clock):
    def work():
        clock.advance(3)
        raise RuntimeError

    with phases.track("stage"):
        with pytest.raises(RuntimeError), phases.track("pods"):
            work()
        clock.advance(4)
    clock.advance(100)
    with phases.track("removal"):
        clock.advance(1)
    assert phases.seconds() == {"stage": 4.0, "pods": 3.0, "removal": 1.0}


def test_order_of_first_use_and_a_phase_without_time(phases, clock):
    for name in ("b", "a", "b", "c"):
        with phases.track(name):
            pass
    assert list(phases.seconds().items()) == [("b", 0.0), ("a", 0.0), ("c", 0.0)]


def test_rounded_only_at_the_end(phases, clock):
    for _ in range(10):
        with phases.track("x"):
            clock.advance(0.04)
    assert phases.seconds() == {"x": 0.4}


def test_a_running_phase_is_reported_up_to_its_last_change(phases, clock):
    with phases.track("stage"):
        clock.advance(5)
        with phases.track("inner"):
            assert phases.seconds() == {"stage": 5.0, "inner": 0.0}


TREES = st.recursive(
    st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.just([])),
    lambda children: st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.lists(children, max_size=3)),
    max_leaves=8,
)


@given(st.lists(TREES, max_size=3))
def test_the_phases_add_up_to_the_time_that_passed(trees):
    clock = FakeClock(0.0)
    phases = Phases(clock)

    def play(tree):
        name, seconds, children = tree
        with phases.track(name):
            clock.advance(seconds)
            for child in children:
                play(child)

    for tree in trees:
        play(tree)
    assert sum(phases.seconds().values()) == clock.now


def test_where_an_error_came_from_is_the_innermost_phase(phases):
    def work():
        with phases.track("stage"), phases.track("pods"):
            raise KeyError("x")

    with pytest.raises(KeyError) as caught, phases.track("cell"):
        work()
    assert phases.where(caught.value) == "pods"
    assert phases.where(ValueError("of another place")) == ""


def test_an_error_that_another_was_raised_from_keeps_its_phase(phases):
    def work():
        try:
            with phases.track("waits"):
                raise KeyError("x")
        except KeyError as error:
            raise RuntimeError("told better") from error

    with pytest.raises(RuntimeError) as caught, phases.track("stage"):
        work()
    assert phases.where(caught.value) == "waits"


def test_an_error_that_was_mended_is_not_the_place_of_the_next_one(phases):
    for name in ("first", "second"):
        with pytest.raises(KeyError) as caught, phases.track(name):
            raise KeyError(name)
        assert phases.where(caught.value) == name


def test_what_runs_now_and_for_how_long(phases, clock):
    assert (phases.current(), phases.elapsed_s()) == (("", 0.0), 0.0)
    clock.advance(5)
    with phases.track("boot"):
        clock.advance(10)
        assert (phases.current(), phases.elapsed_s()) == (("boot", 10.0), 10.0)
    clock.advance(100)
    assert (phases.current(), phases.elapsed_s()) == (("", 0.0), 110.0)
    with phases.track("boot"):
        clock.advance(1)
        assert phases.current() == ("boot", 11.0)
