"""The article's numbers as data: what it says, where, and nothing else."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path

import pytest

from lab import article
from lab.model import UsageError
from lab.report import comparability, measured
from lab.report.measured import Number, Share, Summary, Word
from lab.stages import registry
from lab.store import Store

RESULTS = Path(__file__).resolve().parent.parent.parent / "results"
OFF = "v1.37.1 PodLevelResourcesFixKubeletQOSClass=false"
AFFECTED = ("v1.34.12", "v1.35.9", "v1.36.5")
# The lab's observations do not hold the requests that these were reckoned with.
NOT_MEASURED_HERE = {f"{name} usage less request (MiB)" for name in ("ctl", "gua-ctl", "emp", "gua-emp")}


@pytest.fixture(scope="module")
def side():
    return article.load()


@pytest.fixture(scope="module")
def plain():
    return tomllib.loads(article.DEFAULT_PATH.read_text())


def value(side, label, stage, name):
    (cell,) = [cell for cell in side.cells if cell.cell.label == label]
    return cell.stages[stage].values.get(name)


def test_four_versions_of_k3s_and_the_gate_leg(side):
    assert [cell.cell.label for cell in side.cells] == [*AFFECTED, "v1.37.1", OFF]
    assert {cell.cell.distro for cell in side.cells} == {"k3s"}
    assert list(side.cells[-1].stages) == ["class", "kernel", "quota"], "neither CPU nor eviction with the gate off"
    assert side.is_partial
    assert "Makes Kubernetes 1.34 to 1.36 Pods BestEffort" in side.description


@pytest.mark.parametrize("pod", ["emp-burstable", "emp-guaranteed"])
def test_class_of_the_empty_block(side, pod):
    fixed = "Burstable" if pod == "emp-burstable" else "Guaranteed"
    for label in (*AFFECTED, OFF):
        assert value(side, label, "class", f"{pod} class") == Word(text="BestEffort")
    assert value(side, "v1.37.1", "class", f"{pod} class") == Word(text=fixed)


@pytest.mark.parametrize(
    ("label", "empty", "control", "percent"),
    [("v1.34.12", 0.083, 0.579, 14.3), ("v1.35.9", 0.070, 0.580, 12.1), ("v1.36.5", 0.061, 0.573, 10.6)],
)
def test_cpu_medians_and_their_ratio_agree(side, label, empty, control, percent):
    assert value(side, label, "cpu", "cpu-emp (cores)") == Summary(median=empty, n=3)
    assert value(side, label, "cpu", "cpu-ctl (cores)") == Summary(median=control, n=3)
    assert value(side, label, "cpu", "cpu-emp of cpu-ctl (%)") == Number(value=percent)
    assert 100 * empty / control == pytest.approx(percent, abs=0.1)


def test_what_is_not_said_is_not_there(side):
    assert value(side, "v1.37.1", "cpu", "cpu-emp of cpu-ctl (%)") is None
    assert value(side, "v1.34.12", "kernel", "emp-burstable oom_score") is None
    assert value(side, "v1.37.1", "kernel", "emp-burstable oom_score_adj") is None
    assert value(side, OFF, "quota", "emp-burstable answer") is None
    environment = side.cells[0].stages["cpu"].environment
    assert "emulation" not in environment.must_agree
    assert "kernel" not in environment.shown


def test_kernel_numbers(side):
    for pod, adjust in (("be", 1000), ("ctl-burstable", 935), ("emp-burstable", 1000), ("ctl-guaranteed", -997)):
        assert value(side, "v1.36.5", "kernel", f"{pod} oom_score_adj") == Number(value=adjust)
    assert value(side, "v1.36.5", "kernel", "ctl-guaranteed pod cpu.weight") == Number(value=8)
    assert value(side, "v1.36.5", "kernel", "emp-guaranteed pod memory.max (MiB)") == Word(text="max")
    assert value(side, "v1.36.5", "kernel", "emp-guaranteed container memory.max (MiB)") == Number(value=256)


def test_values_of_all_versions_together(side):
    pools = {(pool.stage, pool.name): pool for pool in side.pools}
    assert pools["eviction", "gaps of at most 4.0 s"].datum == Share(count=41, of=48)
    assert pools["eviction", "gaps between evictions (s)"].datum == Summary(median=3.6, high=8.2, n=48)
    assert pools["eviction", "first reclaim (s)"].cells == tuple(cell.cell.name for cell in side.cells[:4])
    assert pools["cpu", "cpu-emp below every cpu-ctl"].datum == Share(count=9, of=9)


def test_every_value_and_input_has_its_place(side, plain):
    for cell in side.cells:
        for result in cell.stages.values():
            assert set(result.where) == set(result.values)
    assert all(pool.where for pool in side.pools)
    assert all(entry["where"] for entry in plain["input"])


def test_the_lab_measures_what_the_article_publishes_under_the_same_names(side):
    here = {}
    for attempt in comparability.select(Store(RESULTS).attempts()).attempts:
        found = measured.values(registry.BY_NAME[attempt.stage], attempt.observation)
        here.setdefault(attempt.stage, set()).update(found)
    published = {(stage, name) for cell in side.cells for stage, r in cell.stages.items() for name in r.values}
    published |= {(pool.stage, pool.name) for pool in side.pools}
    assert {name for stage, name in published if name not in here[stage]} == NOT_MEASURED_HERE


def test_the_lab_has_the_inputs_that_the_article_states(side):
    for cell in side.cells:
        for stage, result in cell.stages.items():
            params = registry.BY_NAME[stage].params({"quick": False, "reps": 3, "order": "alternate"})
            assert set(result.inputs) <= {f"param/{name}" for name in params}


# --- a file that is wrong


def broken(plain, change):
    data = copy.deepcopy(plain)
    change(data)
    return data


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda data: data.update(extra=1), "unknown key extra"),
        (lambda data: data["cell"].append(data["cell"][0]), "two cells v1.34.12"),
        (lambda data: data["value"].append(data["value"][0]), "is there twice"),
        (lambda data: data["value"].append(data["value"][-1]), "published twice"),
        (lambda data: data["value"][0]["cells"].append("v1.33.1"), "no cell 'v1.33.1'"),
        (lambda data: data["value"][0].update(stage="resize"), "with stage 'resize'"),
        (lambda data: data["value"][0].update(cells=[]), "needs stage, cells"),
        (lambda data: data["value"][0].update(where=""), "needs stage, cells"),
        (lambda data: data["value"][0].update(note="x"), "needs stage, cells"),
        (lambda data: data["cell"][4].update(gates=["X"]), "is not NAME=true"),
    ],
)
def test_contradictions_are_refused(plain, change, part):
    with pytest.raises(UsageError, match=part):
        article.from_data(broken(plain, change))


@pytest.mark.parametrize(
    "plain",
    [True, None, [], [1], {}, {"n": 3}, {"median": True}, {"median": "3"}, {"mean": 1.0}, {"count": 5, "of": 4},
     {"count": 1, "of": 2, "n": 3}, {"count": -1, "of": 2}],
)  # fmt: skip
def test_a_value_of_another_form_is_refused(plain):
    with pytest.raises(UsageError, match="'x' is"):
        article.datum("x", plain)


def test_zero_is_a_value():
    assert article.datum("x", 0) == Number(value=0.0)
    assert article.datum("x", {"median": 0}) == Summary(median=0)


@pytest.mark.parametrize("text", ["x = [", "title = 'x'", "cell = 3\nenvironment = 1\n"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, text):
    path = tmp_path / "article.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"article\.toml"):
        article.load(path)
