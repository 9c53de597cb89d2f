"""What the controller did during a window, with real threads and invented counters."""

from __future__ import annotations

import os
import subprocess
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab import controller_load
from lab.controller_load import recording, snapshot
from lab.host import Deadline, wait_until
from lab.model import Cell
from lab.parse.controller_load import between
from lab.providers.contract import NodeSpec
from tests.fakes import FakeDistro, FakeProvider

CELL = Cell(distro="upstream", version="v1.36.3")


def cluster(tmp_path, *, threads=dict, own=dict):
    provider = FakeProvider(root=tmp_path, cpu_threads=threads)
    node = provider.create(NodeSpec(name="n", run_id="r"), Deadline.after(60))
    return FakeDistro(own_cpu_s=own).install(node, CELL, Deadline.after(60))


def vcpu(wait_s):
    return None if wait_s is None else {"run_ns": 7, "wait_ns": round(wait_s * 1e9)}


def entry(wall, *, plane=None, waits=None, lab_s=0.0, loadavg="0.10 0.20 0.30 1/100 5"):
    return {
        "wall": wall, "control_plane_s": plane or {}, "vcpus": {n: vcpu(w) for n, w in (waits or {}).items()},
        "lab_s": lab_s, "stat": "cpu  1 2 3", "loadavg": loadavg,
    }  # fmt: skip


class TestSnapshot:
    def test_counters_of_this_very_process(self, tmp_path):
        own = threading.get_native_id()
        made = cluster(tmp_path, threads=lambda: {own: "CPU 0/TCG"}, own=lambda: {"etcd": 1.5})
        before = time.time()
        found = snapshot(made)
        assert before <= found["wall"] <= time.time()
        assert found["control_plane_s"] == {"etcd": 1.5}
        assert found["vcpus"]["CPU 0/TCG"]["run_ns"] > 0
        assert found["vcpus"]["CPU 0/TCG"]["wait_ns"] >= 0
        assert found["lab_s"] > 0
        assert found["stat"].startswith("cpu ")
        assert len(found["loadavg"].split()) == 5

    def test_a_thread_that_is_gone_is_not_zero(self, tmp_path):
        found = snapshot(cluster(tmp_path, threads=lambda: {2**22 + 1: "CPU 1/TCG"}))
        assert found["vcpus"] == {"CPU 1/TCG": None}

    def test_a_provider_without_threads(self, tmp_path):
        assert snapshot(cluster(tmp_path))["vcpus"] == {}


class TestRecording:
    def test_one_at_the_start_one_at_the_end_and_some_between(self, tmp_path, monkeypatch):
        monkeypatch.setattr(controller_load, "INTERVAL_S", 0.01)
        found = []
        enough = threading.Event()
        calls = []

        def own():
            calls.append(1)
            if len(calls) >= 4:
                enough.set()
            return {}

        with recording(cluster(tmp_path, own=own), found):
            assert enough.wait(30)
        assert len(found) >= 5
        assert [item["wall"] for item in found] == sorted(item["wall"] for item in found)
        assert "controller-load" not in [thread.name for thread in threading.enumerate()]

    def test_an_error_of_the_block_ends_it_too(self, tmp_path):
        found = []
        with pytest.raises(ZeroDivisionError), recording(cluster(tmp_path), found):
            _ = 1 / 0
        assert len(found) >= 2
        assert "controller-load" not in [thread.name for thread in threading.enumerate()]


class TestBetween:
    def test_rates_over_the_window(self):
        found = between(
            [
                entry(100, plane={"etcd": 10.0, "api": 0.0}, waits={"0": 1.0, "1": 1.0}, lab_s=5.0),
                entry(110, plane={"etcd": 12.0, "api": 0.5}, waits={"0": 1.5, "1": 3.0}, lab_s=5.1, loadavg="late"),
            ],
            100,
            110,
        )
        assert found == {
            "seconds": 10,
            "control_plane_cores": {"api": 0.05, "etcd": 0.2},
            "lab_cores": 0.01,
            "has_vcpus": True,
            "vcpu_wait": 0.2,
            "loadavg": "late",
        }

    def test_the_narrowest_that_enclose_the_window(self):
        snapshots = [entry(wall, lab_s=float(wall)) for wall in (90, 100, 101, 109, 111, 120)]
        assert between(snapshots, 100.5, 110)["seconds"] == 11
        assert between(snapshots, 101, 109)["seconds"] == 8
        assert between(snapshots, 90, 120)["seconds"] == 30

    @pytest.mark.parametrize(("start", "end"), [(99, 105), (105, 111), (99, 111)])
    def test_a_window_that_is_not_covered_is_unknown(self, start, end):
        assert between([entry(100), entry(110)], start, end) is None

    def test_a_window_without_length_is_unknown(self):
        assert between([entry(100)], 100, 100) is None
        assert between([entry(100), entry(110)], 110, 100) is None

    def test_no_snapshots(self):
        assert between([], 1, 2) is None

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ({"0": 1.0, "1": None}, {"0": 2.0, "1": 2.0}),
            ({"0": 1.0, "1": 1.0}, {"0": 2.0, "1": None}),
            ({"0": 1.0, "1": 1.0}, {"0": 2.0}),
            ({"0": 1.0}, {"0": 2.0, "1": 2.0}),
            ({"0": 1.0}, {}),
        ],
    )
    def test_one_virtual_cpu_that_could_not_be_read_makes_the_wait_unknown(self, before, after):
        found = between([entry(1, waits=before), entry(2, waits=after)], 1, 2)
        assert found["vcpu_wait"] is None
        assert found["has_vcpus"] is True

    def test_a_provider_that_shows_no_threads(self):
        found = between([entry(1), entry(2)], 1, 2)
        assert (found["vcpu_wait"], found["has_vcpus"]) == (None, False)

    def test_a_component_that_ended_or_began_is_not_zero(self):
        found = between([entry(1, plane={"etcd": 1.0}), entry(2, plane={"api": 1.0})], 1, 2)
        assert found["control_plane_cores"] == {"etcd": None, "api": None}

    @given(
        st.lists(st.floats(0, 1000, allow_nan=False), min_size=2, max_size=8, unique=True).map(sorted),
        st.floats(0, 1000),
        st.floats(0.001, 1000),
    )
    def test_what_is_reported_covers_the_window(self, walls, start, length):
        found = between([entry(wall, lab_s=wall) for wall in walls], start, start + length)
        covered = walls[0] <= start and walls[-1] >= start + length
        assert (found is not None) == covered
        if found is not None:
            assert found["seconds"] >= round(length, 2) - 0.01


def test_waiting_for_the_core_of_another_is_seen(tmp_path):
    """Two busy processes on one core: each has to wait for the other, and the kernel says for how long."""
    core = str(min(os.sched_getaffinity(0)))
    argv = ["taskset", "-c", core, "sh", "-c", "while :; do :; done"]
    children = [subprocess.Popen(argv) for _ in range(2)]
    try:
        made = cluster(tmp_path, threads=lambda: {child.pid: f"CPU {child.pid}/TCG" for child in children})
        first = snapshot(made)

        def waited():
            now = snapshot(made)
            found = between([first, now], first["wall"], now["wall"])
            return (found if found and (found["vcpu_wait"] or 0) > 0.1 else None), str(found)

        assert wait_until("one of them to wait", waited, Deadline.after(60), interval_s=0.05)["has_vcpus"]
    finally:
        for child in children:
            child.kill()
            child.wait()
