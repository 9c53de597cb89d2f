"""The control plane on the controller stands still inside a window, and goes on whatever happened in it."""

from __future__ import annotations

import signal
import time

import pytest

from lab import processes
from lab.distros.upstream import control_plane
from lab.host import Deadline, LocalHost, wait_until
from lab.kubectl import Kubectl


@pytest.fixture
def plane(tmp_path):
    """Two processes that stand for components."""
    folder = tmp_path / "control-plane"
    folder.mkdir()
    components = {}
    for name in ("etcd", "kube-apiserver"):
        child = processes.start(["sleep", "1000"], folder=tmp_path, log=folder / f"{name}.log")
        components[name] = processes.identity(child.pid)
    yield control_plane.ControlPlane(
        folder=folder,
        api_port=1,
        kubectl=Kubectl(host=LocalHost(), argv=("kubectl",), kubeconfig="/nowhere"),
        components=components,
    )
    assert processes.end_marked(tmp_path) == []


def states(plane):
    return {name: processes.stat_fields(process.pid)[0] for name, process in plane.components.items()}


def wait_states(plane, wanted):
    wait_until(
        f"state {wanted}",
        lambda: (set(states(plane).values()) <= set(wanted) or None, str(states(plane))),
        Deadline.after(20),
        interval_s=0.01,
    )


def test_all_stand_still_inside_and_run_afterwards(plane):
    with plane.frozen():
        wait_states(plane, "T")
        used = plane.cpu_seconds()
        time.sleep(0.05)
        assert plane.cpu_seconds() == used
    wait_states(plane, "SR")


def test_they_go_on_when_the_window_fails(plane):
    def fail():
        with plane.frozen():
            wait_states(plane, "T")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    wait_states(plane, "SR")


def test_one_that_has_ended_meanwhile_does_no_harm(plane):
    gone = plane.components["kube-apiserver"]
    with plane.frozen():
        processes.send(gone, signal.SIGKILL)
        wait_until("the end", lambda: (not gone.is_alive() or None, "alive"), Deadline.after(20))
    wait_until("etcd", lambda: (states_of(plane.components["etcd"]) in "SR" or None, ""), Deadline.after(20))


def states_of(process):
    return processes.stat_fields(process.pid)[0]


def test_whoever_takes_over_wakes_what_a_killed_run_left_standing(plane):
    plane.save()
    for process in plane.components.values():
        processes.send(process, signal.SIGSTOP)
    wait_states(plane, "T")
    again = control_plane.attach(plane.folder)
    wait_states(again, "SR")


def test_removal_ends_what_stands_still(plane, tmp_path):
    for process in plane.components.values():
        processes.send(process, signal.SIGSTOP)
    wait_states(plane, "T")
    assert processes.end_marked(tmp_path, grace_s=20.0) == []
