from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.cgroups import (
    LINEAR,
    LOG_QUADRATIC,
    container_scope,
    container_weight_formula,
    cpu_max,
    fair_share,
    memory_max,
    milli_cpu_to_shares,
    oom_score_adj,
    pod_path,
    pod_slice,
    qos_from_path,
    qos_path,
    qos_slice,
    weight_linear,
    weight_log_quadratic,
)
from lab.model import ParseError, UsageError

CLASSES = ("Guaranteed", "Burstable", "BestEffort")
UID = "1f6b2c9e-3a4d-4a54-9c1b-0d7f6a2b9c10"
UID_ = UID.replace("-", "_")


@pytest.mark.parametrize(
    ("milli", "shares", "linear", "quadratic"),
    [
        (0, 2, 1, 1),
        (10, 10, 1, 4),
        (100, 102, 4, 17),
        (200, 204, 8, 29),
        (500, 512, 20, 59),
        (1000, 1024, 39, 100),
        (1100, 1126, 43, 108),
        (1600, 1638, 63, 145),
        (2000, 2048, 79, 174),
        (4000, 4096, 157, 303),
    ],
)
def test_known_weights(milli, shares, linear, quadratic):
    assert milli_cpu_to_shares(milli) == shares
    assert weight_linear(shares) == linear
    assert weight_log_quadratic(shares) == quadratic


def test_shares_are_clamped_at_both_ends():
    assert milli_cpu_to_shares(1) == 2
    assert milli_cpu_to_shares(2) == 2
    assert milli_cpu_to_shares(3) == 3
    assert milli_cpu_to_shares(256_000) == 262144
    assert milli_cpu_to_shares(10**9) == 262144


@pytest.mark.parametrize("formula", [weight_linear, weight_log_quadratic])
def test_weight_ends(formula):
    assert [formula(shares) for shares in (0, 1, 2, 262144, 10**7)] == [0, 1, 1, 10000, 10000]
    with pytest.raises(UsageError, match="-1"):
        formula(-1)


@given(st.integers(2, 262143))
def test_weights_never_fall_as_shares_grow_and_stay_in_range(shares):
    for formula in (weight_linear, weight_log_quadratic):
        assert 1 <= formula(shares) <= formula(shares + 1) <= 10000


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("1.1.12", "linear"),
        ("1.2.0", "linear"),
        ("1.2.9", "linear"),
        ("1.3.0", "linear"),
        ("1.3.1", "linear"),
        ("1.3.2", "log-quadratic"),
        ("v1.3.4", "log-quadratic"),
        ("1.3.10", "log-quadratic"),
        ("1.4.0", "log-quadratic"),
        ("1.4.0-rc.1", "log-quadratic"),
        ("1.10.0", "log-quadratic"),
        ("2.0.0", "log-quadratic"),
        ("1.1.5+ds1", "linear"),
        ("runc version 1.3.3\ncommit: v1.3.3-0-gd842d771\nspec: 1.2.1\n", "log-quadratic"),
        ("runc version 1.3.1\ncommit: v1.3.3-0-gd842d771\nspec: 1.2.1\n", "linear"),
    ],
)
def test_formula_by_runc_version(version, name):
    assert container_weight_formula(version).name == name


@pytest.mark.parametrize(
    "version", ["", "1.3", "latest", "crun version 1.23.1", "x1.3.2", "1.3.2.1", "1.3.x", "unknown"]
)
def test_unreadable_runc_version(version):
    with pytest.raises(ParseError, match="runc"):
        container_weight_formula(version)


def test_the_two_formulas_differ_for_the_article():
    assert (LINEAR.weight(102), LOG_QUADRATIC.weight(102)) == (4, 17)


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (None, "max 100000"),
        (0, "max 100000"),
        (1, "1000 100000"),
        (10, "1000 100000"),
        (11, "1100 100000"),
        (200, "20000 100000"),
        (500, "50000 100000"),
        (1000, "100000 100000"),
        (2500, "250000 100000"),
    ],
)
def test_cpu_max(limit, text):
    assert cpu_max(limit) == text


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (None, "max"),
        (0, "max"),
        (256 * 2**20, "268435456"),
        (4096, "4096"),
        (4097, "4096"),
        (100_000_000, "99999744"),
    ],
)
def test_memory_max_is_whole_pages(limit, text):
    assert memory_max(limit) == text


@pytest.mark.parametrize("call", [cpu_max, memory_max, milli_cpu_to_shares])
def test_negative_amounts_are_refused(call):
    with pytest.raises(UsageError, match="-5"):
        call(-5)


CAPACITY = 4_009_980 * 1024


@pytest.mark.parametrize(
    ("qos", "request_bytes", "adjust"),
    [
        ("Guaranteed", 256 * 2**20, -997),
        ("Guaranteed", 0, -997),
        ("BestEffort", 0, 1000),
        ("BestEffort", 256 * 2**20, 1000),
        ("Burstable", 256 * 2**20, 935),
        ("Burstable", 0, 999),
        ("Burstable", CAPACITY // 1000 - 1, 999),
        ("Burstable", CAPACITY // 1000 + 1, 999),
        ("Burstable", CAPACITY // 500 + 1, 998),
        ("Burstable", CAPACITY // 2, 500),
        ("Burstable", CAPACITY, 3),
        ("Burstable", CAPACITY * 2, 3),
        ("Burstable", CAPACITY * 996 // 1000, 5),
        ("Burstable", CAPACITY * 998 // 1000, 3),
    ],
)
def test_oom_score_adj(qos, request_bytes, adjust):
    assert oom_score_adj(qos, request_bytes, CAPACITY) == adjust


def test_oom_score_adj_refuses_nonsense():
    with pytest.raises(UsageError, match="Besteffort"):
        oom_score_adj("Besteffort", 0, CAPACITY)
    with pytest.raises(UsageError, match="machine's memory"):
        oom_score_adj("Burstable", 0, 0)
    with pytest.raises(UsageError, match="negative"):
        oom_score_adj("Burstable", -1, CAPACITY)


def test_systemd_paths():
    assert qos_slice("Guaranteed") == "kubepods.slice"
    assert qos_slice("Burstable") == "kubepods.slice/kubepods-burstable.slice"
    assert qos_slice("BestEffort") == "kubepods.slice/kubepods-besteffort.slice"
    assert pod_slice(UID, "Guaranteed") == f"kubepods.slice/kubepods-pod{UID_}.slice"
    assert pod_slice(UID, "Burstable") == (
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice"
    )


def test_cgroupfs_paths_keep_the_dashes():
    assert qos_path("Guaranteed", "cgroupfs") == "kubepods"
    assert pod_path(UID, "Guaranteed", "cgroupfs") == f"kubepods/pod{UID}"
    assert pod_path(UID, "BestEffort", "cgroupfs") == f"kubepods/besteffort/pod{UID}"
    assert pod_path(UID, "Burstable", "cgroupfs", "/kubelet") == f"kubelet/kubepods/burstable/pod{UID}"


def test_kind_root_is_a_prefix_of_every_directory():
    assert pod_path(UID, "BestEffort", "systemd", "/kubelet") == (
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
        f"kubelet-kubepods-besteffort-pod{UID_}.slice"
    )


def test_container_names():
    assert container_scope("0abc", "systemd") == "cri-containerd-0abc.scope"
    assert container_scope("containerd://0abc", "systemd") == "cri-containerd-0abc.scope"
    assert container_scope("0abc", "cgroupfs") == "0abc"
    assert container_scope("0abc", "systemd", "crio") == "crio-0abc.scope"
    with pytest.raises(UsageError, match="docker"):
        container_scope("0abc", "systemd", "docker")


def test_path_refusals_name_the_fault():
    with pytest.raises(UsageError, match="elogind"):
        pod_path(UID, "Burstable", "elogind")
    with pytest.raises(UsageError, match="burstable"):
        qos_slice("burstable")
    with pytest.raises(UsageError, match="UID"):
        pod_path("", "Burstable", "systemd")
    with pytest.raises(UsageError, match="UID"):
        pod_path("../x", "Burstable", "cgroupfs")


@pytest.mark.parametrize("driver", ["systemd", "cgroupfs"])
@pytest.mark.parametrize("root", ["", "/kubelet", "/a-b/c"])
@pytest.mark.parametrize("qos", CLASSES)
@pytest.mark.parametrize("uid", [UID, "0123456789abcdef0123456789abcdef"])
def test_class_is_read_back_from_every_path_that_is_built(driver, root, qos, uid):
    pod = pod_path(uid, qos, driver, root)
    container = f"{pod}/{container_scope('0' * 64, driver)}"
    for path in (pod, "/" + pod, f"0::/{pod}", f"0::/{container}\n", f"/sys/fs/cgroup/{container}/"):
        assert qos_from_path(path) == qos
    if qos != "Guaranteed":
        assert qos_from_path(qos_path(qos, driver, root)) == qos


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "0::/",
        "/system.slice/k3s.service",
        "/kubepods.slice",
        "/kubepods",
        "/kubelet.slice/kubelet-kubepods.slice",
        "0::/../cri-containerd-0abc.scope",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-besteffort-pod{UID_}.slice",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-pod{UID_}.slice",
        f"/kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{UID_}.slice",
        f"/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice",
        f"/kubepods.slice/kubepods-pod{UID_}",
        "/kubepods/burstable/system",
        "/notkubepods/burstable/pod1",
        "/kubepods/other/pod1",
    ],
)
def test_paths_without_a_class(path):
    assert qos_from_path(path) is None


def test_innermost_node_decides():
    outer = pod_slice(UID, "BestEffort")
    inner = pod_path("1-2", "Burstable", "systemd", "/kubelet")
    assert qos_from_path(f"/{outer}/cri-containerd-1.scope/{inner}/cri-containerd-2.scope") == "Burstable"
    assert qos_from_path(f"/{outer}/cri-containerd-1.scope/kubepods/pod7/x") == "Guaranteed"


def test_article_shares_without_and_with_the_empty_block():
    control = fair_share(2, {"burstable": (63, {"ctl": (20, 1), "neighbour": (39, 2)}), "besteffort": (1, {})})
    assert control["burstable"]["ctl"] == pytest.approx(0.678, abs=5e-4)
    assert control["besteffort"] == {}
    empty = fair_share(2, {"burstable": (43, {"neighbour": (39, 2)}), "besteffort": (1, {"emp": (1, 1)})})
    assert empty["besteffort"]["emp"] == pytest.approx(0.045, abs=5e-4)
    assert empty["burstable"]["neighbour"] == pytest.approx(2 - 2 / 44)


def test_what_a_slice_does_not_want_goes_to_its_siblings():
    shares = fair_share(4, {"small": (100, {"idle": (1, 0.5)}), "large": (1, {"busy": (1, 4)})})
    assert shares == {"small": {"idle": 0.5}, "large": {"busy": 3.5}}


def test_what_a_pod_does_not_want_goes_to_its_siblings():
    shares = fair_share(3, {"one": (7, {"a": (10, 0.25), "b": (5, 9), "c": (5, 1)})})
    assert shares == {"one": {"a": 0.25, "b": 1.75, "c": 1.0}}


def test_idle_machine_gives_everyone_their_demand():
    tree = {"a": (1, {"x": (1, 0.3)}), "b": (9999, {"y": (1, 0.4), "z": (3, 0.0)})}
    assert fair_share(2, tree) == {"a": {"x": 0.3}, "b": {"y": 0.4, "z": 0.0}}


@pytest.mark.parametrize(
    ("cpus", "tree"),
    [
        (0, {}),
        (-1, {}),
        (math.nan, {}),
        (2, {"a": (0, {})}),
        (2, {"a": (1, {"x": (0, 1)})}),
        (2, {"a": (1, {"x": (1, -1)})}),
        (2, {"a": (1, {"x": (1, math.nan)})}),
    ],
)
def test_unusable_trees_are_refused(cpus, tree):
    with pytest.raises(UsageError):
        fair_share(cpus, tree)


PODS = st.dictionaries(
    st.sampled_from("pqrs"),
    st.tuples(st.integers(1, 10000), st.integers(0, 400).map(lambda n: n / 100)),
    max_size=4,
)


@given(
    st.integers(1, 8),
    st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(1, 10000), PODS), max_size=3),
)
def test_share_is_work_conserving_and_fair(cpus, tree):
    shares = fair_share(cpus, tree)
    demand = sum(want for _, pods in tree.values() for _, want in pods.values())
    given_out = sum(cores for pods in shares.values() for cores in pods.values())
    assert given_out == pytest.approx(min(cpus, demand))
    for name, (_, pods) in tree.items():
        assert set(shares[name]) == set(pods)
        per_weight = [
            (shares[name][pod] / weight, shares[name][pod] >= want - 1e-9) for pod, (weight, want) in pods.items()
        ]
        hungry = [rate for rate, satisfied in per_weight if not satisfied]
        for rate, _ in per_weight:
            assert all(rate <= other * (1 + 1e-6) for other in hungry)
