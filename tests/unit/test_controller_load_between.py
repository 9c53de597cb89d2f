"""What the controller did between two moments, from snapshots of its counters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.parse.controller_load import between

S = 1_000_000_000


def snapshot(wall: float, waits: dict[str, int | None] | None = None, **changed: object) -> dict[str, object]:
    """One snapshot; ``waits`` is nanoseconds waited so far by virtual CPU."""
    vcpus = {name: None if wait is None else {"run_ns": 0, "wait_ns": wait} for name, wait in (waits or {}).items()}
    return {"wall": wall, "vcpus": vcpus, "control_plane_s": {}, "lab_s": 0.0, "loadavg": f"at {wall}", **changed}


def test_the_narrowest_snapshots_that_enclose_the_window_are_taken():
    snapshots = [
        snapshot(0, {"a": 0}, lab_s=0.0),
        snapshot(10, {"a": 1 * S}, lab_s=1.0),
        snapshot(20, {"a": 2 * S}, lab_s=4.0),
        snapshot(30, {"a": 9 * S}, lab_s=9.0),
    ]

    assert between(snapshots, 12.0, 18.0) == {
        "seconds": 10,
        "control_plane_cores": {},
        "lab_cores": 0.3,
        "has_vcpus": True,
        "vcpu_wait": 0.1,
        "loadavg": "at 20",
    }


@pytest.mark.parametrize(
    ("start", "end", "seconds"),
    [(10.0, 20.0, 10), (9.9, 20.0, 20), (10.0, 20.1, 20), (0.0, 30.0, 30)],
)
def test_a_snapshot_at_the_very_moment_encloses_it(start, end, seconds):
    found = between([snapshot(wall) for wall in (0, 10, 20, 30)], start, end)

    assert found is not None
    assert found["seconds"] == seconds


@pytest.mark.parametrize(("start", "end"), [(-0.1, 20.0), (5.0, 30.1), (-1.0, 31.0), (31.0, 32.0)])
def test_a_window_that_is_not_enclosed_has_no_answer(start, end):
    assert between([snapshot(wall) for wall in (0, 10, 20, 30)], start, end) is None


def test_no_snapshot_is_no_answer():
    assert between([], 0.0, 1.0) is None


def test_a_window_without_length_has_no_answer():
    assert between([snapshot(10)], 10.0, 10.0) is None


def test_the_virtual_cpu_that_waited_longest_counts():
    found = between([snapshot(0, {"a": 5 * S, "b": 0}), snapshot(4, {"a": 6 * S, "b": 2 * S})], 1.0, 2.0)

    assert found is not None
    assert found["vcpu_wait"] == 0.5


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ({"a": 0, "b": None}, {"a": 1 * S, "b": 1 * S}),
        ({"a": 0, "b": 0}, {"a": 1 * S, "b": None}),
        ({"a": 0}, {"a": 1 * S, "b": 0}),
        ({"a": 0, "b": 0}, {"a": 1 * S}),
        ({"a": None}, {"a": None}),
    ],
    ids=["not read at first", "not read at last", "new", "gone", "none read"],
)
def test_a_virtual_cpu_that_was_not_read_at_both_ends_makes_the_wait_unknown(first, last):
    found = between([snapshot(0, first), snapshot(1, last)], 0.0, 1.0)

    assert found is not None
    assert (found["has_vcpus"], found["vcpu_wait"]) == (True, None)


def test_a_node_elsewhere_has_no_virtual_cpus_here():
    found = between([snapshot(0), snapshot(1)], 0.0, 1.0)

    assert found is not None
    assert (found["has_vcpus"], found["vcpu_wait"]) == (False, None)


def test_control_plane_cores_by_process_and_none_for_one_that_began_or_ended():
    first = snapshot(0, control_plane_s={"etcd": 1.0, "kube-apiserver": 4.0, "old": 1.0})
    last = snapshot(2, control_plane_s={"etcd": 1.5, "kube-apiserver": 4.0, "new": 0.0})
    found = between([first, last], 0.0, 2.0)

    assert found is not None
    assert found["control_plane_cores"] == {"etcd": 0.25, "kube-apiserver": 0.0, "new": None, "old": None}


@given(
    walls=st.lists(st.floats(0, 1000), min_size=1, max_size=12, unique=True).map(sorted),
    start=st.floats(0, 1000),
    length=st.floats(0.001, 100),
)
def test_the_answer_covers_the_window_with_no_smaller_choice_possible(walls, start, length):
    end = start + length
    found = between([snapshot(wall) for wall in walls], start, end)
    enclosing = [last - first for first in walls for last in walls if first <= start and end <= last]

    if enclosing:
        assert found is not None
        assert found["seconds"] == round(min(enclosing), 2)
    else:
        assert found is None
