"""One CPU window: figures from raw texts, the declared limits at their boundaries, and texts that cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.parse import cpu_window
from lab.parse.cpu_window import parse_window, why_not
from tests.captures_helper import load

PARAMS = {"window_s": 4, "interval_s": 1, "warmup_s": 1}
POD = "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podaa.slice"
NAMES = ("target-container", "target-pod", "neighbour-pod", "kubepods")
MICRO = 1_000_000


def texts(samples: int = 5, **changed: Any) -> tuple[str, str]:
    """A window of one-second samples, half a core for the target and 1.5 for the neighbour, and the controller's."""
    weights = {"target-pod": "20"}
    lines: list[dict[str, Any]] = [
        {"kind": "start", "program": "cpu-window", "version": 2, "options": {"target": "aa"}, "t": 100.0},
        {"kind": "before", "paths": {"target-pod": POD}, "weights": weights, "pods": {"p": 1}, "t": 100.5},
    ]
    for step in range(samples):
        used = {"target-container": 0.5, "target-pod": 0.5, "neighbour-pod": 1.5, "kubepods": 2.0, "idle": 0.0}
        lines.append(
            {
                "kind": "sample",
                "t": 102.0 + step,
                "mono": 7.0 + step,
                "usage_usec": {name: round(cores * step * MICRO) for name, cores in used.items()},
                "running": {"target": 1, "neighbour": 2},
                "stat": f"cpu  {190 * step} 0 {10 * step} 0 0 0 0 0 0 0",
                "pressure": f"some avg10=1.00 avg60=1.00 avg300=1.00 total={step * MICRO // 2}",
                "own_s": 0.01 * step,
            }
        )
    lines += [
        {"kind": "after", "weights": weights, "pods": {"p": 1}, "t": 107.0},
        {"kind": "end", "ok": True, "t": 107.0},
    ]
    for index, record in changed.pop("records", {}).items():
        lines[index] |= record
    assert not changed
    snapshots = [
        {
            "wall": 1000.0 + wall,
            "control_plane_s": {"etcd": 0.1 * wall},
            "vcpus": {"CPU 0/TCG": {"run_ns": 0, "wait_ns": wall * 50_000_000}},
            "lab_s": 0.0,
            "loadavg": "1",
        }
        for wall in range(9)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines), json.dumps({"snapshots": snapshots})


def window(**changed: Any) -> dict[str, Any]:
    """A parsed window that counts, with some values changed."""
    good = {
        "cores": {"target-container": 0.5, "target-pod": 0.5, "neighbour-pod": 1.5, "kubepods": 2.0},
        "seconds": 4.0,
        "longest_gap_s": 1.0,
        "weights": {"target-pod": "20"},
        "weights_after": {"target-pod": "20"},
        "busy": 1.0,
        "steal": 0.0,
        "running": {"target": 1.0, "neighbour": 1.0},
        "controller": {"has_vcpus": True, "vcpu_wait": 0.0, "control_plane_cores": {"etcd": 0.1}},
    }
    return {**good, **changed}


# --- figures ----------------------------------------------------------------------------------------------------------


def test_figures_of_a_window():
    assert parse_window(*texts(), PARAMS) == {
        "cores": {"target-container": 0.5, "target-pod": 0.5, "neighbour-pod": 1.5, "kubepods": 2.0, "idle": 0.0},
        "seconds": 4.0,
        "samples": 5,
        "longest_gap_s": 1.0,
        "target_class": "Burstable",
        "weights": {"target-pod": "20"},
        "weights_after": {"target-pod": "20"},
        "pods": {"p": 1},
        "busy": 1.0,
        "steal": 0.0,
        "running": {"target": 1.0, "neighbour": 1.0},
        "pressure_some": 0.5,
        "sampler_cores": 0.01,
        # The controller's clock is 900 or 901 ahead: its snapshots at 1000 and 1008 enclose the program's 100 to 107.
        "controller": {
            "seconds": 4.0,
            "control_plane_cores": {"etcd": 0.1},
            "lab_cores": 0.0,
            "has_vcpus": True,
            "vcpu_wait": 0.05,
            "loadavg": "1",
        },
        "why_not": [],
    }


def test_idle_and_waiting_for_a_disk_are_not_busy_and_steal_is_counted_apart():
    """Of 1000 jiffies 700 are user's and system's, 100 idle, 50 iowait, 30 irq and softirq, 120 stolen."""
    first = {"stat": "cpu  0 0 0 0 0 0 0 0 5 5"}
    last = {"stat": "cpu  500 100 100 100 50 10 20 120 900 900"}
    found = parse_window(*texts(records={2: first, 6: last}), PARAMS)

    assert (found["busy"], found["steal"]) == (0.85, 0.12)


def test_without_pressure_information_there_is_no_figure_and_the_window_counts():
    found = parse_window(*texts(records={2: {"pressure": ""}, 6: {"pressure": ""}}), PARAMS)

    assert (found["pressure_some"], found["why_not"]) == (None, [])


def test_a_counter_that_was_not_read_is_none_and_never_zero():
    usage = dict.fromkeys(NAMES, 0)
    found = parse_window(*texts(records={2: {"usage_usec": {**usage, "target-container": None}}}), PARAMS)

    assert found["cores"]["target-container"] is None
    assert found["why_not"] == ["usage was not read: target-container"]


def test_running_counts_the_samples_in_which_all_busy_processes_were_runnable():
    one_less = {"running": {"target": 1, "neighbour": 1}}
    more = {"running": {"target": 3, "neighbour": 4}}
    found = parse_window(*texts(records={2: one_less, 3: more, 4: one_less}), PARAMS)

    assert found["running"] == {"target": 1.0, "neighbour": 0.6}


def test_the_class_is_read_from_the_targets_path():
    path = "/sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podaa.slice"

    assert parse_window(*texts(records={1: {"paths": {"target-pod": path}}}), PARAMS)["target_class"] == "BestEffort"


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_window_within_every_limit_counts():
    assert why_not(window(), PARAMS) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"busy": cpu_window.MIN_BUSY},
        {"running": {"target": cpu_window.MIN_RUNNING, "neighbour": cpu_window.MIN_RUNNING}},
        {"steal": cpu_window.MAX_STEAL},
        {"cores": {"target-container": 0.5, "target-pod": 0.5, "neighbour-pod": 1.5, "kubepods": 2.0199}},
        {"longest_gap_s": 2.0},
        {"seconds": 4.0},
        {"seconds": 3.999},
        {"controller": {"has_vcpus": True, "vcpu_wait": cpu_window.MAX_VCPU_WAIT, "control_plane_cores": {}}},
        {"controller": {"has_vcpus": False, "vcpu_wait": None, "control_plane_cores": {}}},
    ],
)
def test_a_window_at_a_limit_counts(changed):
    assert why_not(window(**changed), PARAMS) == []


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"busy": 0.9499}, "CPU was busy only 95% of the window"),
        ({"running": {"target": 0.9, "neighbour": 1.0}}, "the target was runnable in only 90% of the samples"),
        ({"running": {"target": 1.0, "neighbour": 0.9}}, "the neighbour was runnable in only 90% of the samples"),
        ({"steal": 0.0101}, "steal 1.0%"),
        (
            {"cores": {"target-container": 0.5, "target-pod": 0.5, "neighbour-pod": 1.5, "kubepods": 2.0301}},
            "other pods used 0.030 cores",
        ),
        ({"weights_after": {"target-pod": "21"}}, "a cgroup weight changed in the window"),
        ({"longest_gap_s": 2.001}, "sampled 4.0 s with a gap of 2.001 s"),
        ({"seconds": 3.4}, "sampled 3.4 s with a gap of 1.0 s"),
        ({"controller": None}, "the controller's load was not recorded for the whole window"),
        (
            {"controller": {"has_vcpus": True, "vcpu_wait": 0.1001, "control_plane_cores": {}}},
            "a virtual CPU waited 10.0% of the window for the controller's cores",
        ),
        (
            {"controller": {"has_vcpus": True, "vcpu_wait": None, "control_plane_cores": {}}},
            "how long the virtual CPUs waited was not read",
        ),
        (
            {"controller": {"has_vcpus": True, "vcpu_wait": 0.0, "control_plane_cores": {"etcd": None, "x": 0.1}}},
            "control plane not read: etcd",
        ),
    ],
)
def test_a_window_beyond_a_limit_does_not_count_and_says_why(changed, reason):
    assert why_not(window(**changed), PARAMS) == [reason]


@pytest.mark.parametrize("name", cpu_window.USED)
def test_a_window_without_one_of_the_needed_counters_does_not_count(name):
    for cores in ({**window()["cores"], name: None}, {k: v for k, v in window()["cores"].items() if k != name}):
        assert why_not(window(cores=cores), PARAMS) == [f"usage was not read: {name}"]


def test_all_reasons_are_given():
    reasons = why_not(window(busy=0.5, steal=0.2, controller=None), PARAMS)

    assert len(reasons) == 3


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 1.0])
def test_no_limit_looks_at_the_targets_share(share):
    cores = {"target-container": share, "target-pod": share, "neighbour-pod": 2.0 - share, "kubepods": 2.0}

    assert why_not(window(cores=cores), PARAMS) == []


@pytest.mark.parametrize("name", cpu_window.USED)
def test_negative_cores_do_not_count(name):
    # The other pods' part stays within its limit, whichever of the counters it is.
    cores = {**window()["cores"], name: -0.1}

    assert any("backwards" in reason for reason in why_not(window(cores=cores), PARAMS))


# --- a control plane on the node --------------------------------------------------------------------------------------


def with_plane(**plane: Any) -> dict[str, Any]:
    text, controller = texts()
    return parse_window(text, json.dumps({**json.loads(controller), "control_plane": plane}), PARAMS)


@pytest.mark.parametrize(("used", "cores"), [(0, 0.0), (40_000, 0.01)])
def test_a_control_plane_that_stood_still_is_recorded(used, cores):
    found = with_plane(placement="node", frozen_usage_usec=5, thawed_usage_usec=5 + used)

    assert (found["frozen_plane_cores"], found["why_not"]) == (cores, [])


@pytest.mark.parametrize(
    ("used", "reason"),
    [
        ({"thawed_usage_usec": 41_000}, "the frozen control plane used 0.0103 cores"),
        ({"thawed_usage_usec": -1_200}, "the frozen control plane used -0.0003 cores"),
        ({"thawed_usage_usec": None}, "whether the control plane on the node stood still was not read"),
        ({}, "whether the control plane on the node stood still was not read"),
        ({"thawed_usage_usec": "5"}, "TypeError"),
    ],
)
def test_a_control_plane_that_did_not_stand_still_does_not_count(used, reason):
    [said] = with_plane(placement="node", frozen_usage_usec=0, **used)["why_not"]

    assert reason in said


@pytest.mark.parametrize("placement", ["controller", "in the k3s process"])
def test_a_control_plane_elsewhere_is_not_held(placement):
    found = with_plane(placement=placement)

    assert found["why_not"] == []
    assert "frozen_plane_cores" not in found


def test_what_is_said_of_a_control_plane_must_say_where_it_is():
    assert "KeyError" in with_plane(frozen_usage_usec=0)["why_not"][0]


# --- texts that cannot be read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ({-1: {"ok": False, "reason": "the target or the neighbour has no cgroup"}}, "has no cgroup"),
        ({0: {"version": 1}}, "format version 1, this lab reads 2"),
        ({0: {"program": "hog"}}, "not the output of cpu-window"),
        ({-1: {"kind": "sample"}}, "the output is cut"),
        ({1: {"kind": "other"}}, "IndexError"),
        ({-2: {"kind": "other"}}, "IndexError"),
        ({6: {"mono": 7.0}, 3: {"mono": 7.0}, 4: {"mono": 7.0}, 5: {"mono": 7.0}}, "ZeroDivisionError"),
        ({2: {"stat": "intr 1 2"}}, "ValueError"),
        ({2: {"running": {"target": 1}}}, "KeyError"),
        ({2: {"mono": None}}, "TypeError"),
    ],
)
def test_a_text_of_another_form_does_not_count_and_says_why(records, reason):
    found = parse_window(*texts(records=records), PARAMS)

    assert found["cores"] == {}
    assert reason in found["why_not"][0]


@pytest.mark.parametrize("samples", [0, 1])
def test_fewer_than_two_samples_do_not_count(samples):
    assert parse_window(*texts(samples), PARAMS)["why_not"] == ["fewer than two samples"]


@pytest.mark.parametrize("controller", [None, "", "{}", '{"snapshots": []}', '{"snapshots": [{}]}', "[1]"])
def test_a_controller_text_of_another_form_does_not_count(controller):
    text, _ = texts()

    assert parse_window(text, controller, PARAMS)["why_not"] != []


@settings(max_examples=60)
@given(part=st.floats(0, 0.9999))
def test_a_captured_window_cut_anywhere_does_not_count(part):
    raw = load("v1.34.4", "cpu")
    text, controller = raw["window-1-cpu-ctl-1.jsonl"], raw["controller-1-cpu-ctl-1.json"]
    params = json.loads(raw["plan.json"])["params"]
    whole = text.rstrip("\n")

    assert parse_window(whole, controller, params)["why_not"] == []
    assert parse_window(whole[: int(len(whole) * part)], controller, params)["why_not"] != []


@settings(max_examples=60)
@given(text=st.text(max_size=200), controller=st.none() | st.text(max_size=50))
def test_no_text_at_all_makes_a_window_that_counts_or_an_error(text, controller):
    assert parse_window(text, controller, PARAMS)["why_not"] != []


@pytest.mark.parametrize("records", [{2: {"usage_usec": [1]}}, {6: {"usage_usec": None}}, {2: {"stat": 1}}])
def test_values_of_another_type_do_not_count(records):
    assert parse_window(*texts(records=records), PARAMS)["why_not"] != []
