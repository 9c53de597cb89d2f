"""`lab diff`: inputs first, missing never zero, cells matched by minor, and exit codes."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.atomic import json_text
from lab.checksums import digests_of
from lab.cli.main import main
from lab.config import NodeOptions
from lab.model import Cell, Environment, Gate, Missing, UsageError
from lab.report import diff, measured, sides
from lab.report.measured import Number, Sample, Share, Summary, Word, against
from lab.report.sides import Pool, Side, SideCell, StageResult
from lab.stages import registry
from tests.projects import fake_stage, say

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "results"
OFF = Gate(name="PodLevelResourcesFixKubeletQOSClass", enabled=False)
NODE = {"provider": "qemu", "emulation": "tcg"}
DROPLET = {
    "provider": "digitalocean", "emulation": "kvm", "cgroup_mode": "v2", "cgroup_driver": "systemd", "vcpus": "2",
    "memory_class": "4096 MiB", "control_plane": "in the k3s process",
}  # fmt: skip
"""What tests/unit/test_k3s_distro.py expects of k3s on the default droplet."""


def result(values=None, *, inputs=None, must=None, shown=None):
    return StageResult(
        values=values or {},
        inputs=inputs or {},
        environment=Environment(must_agree=NODE if must is None else must, shown=shown or {}),
        source="attempt 1",
    )


def cell(version, *gates, distro="upstream", **stages):
    return SideCell(cell=Cell(distro=distro, version=version, gates=gates), stages=stages or {"cpu": result()})


def side(name, *cells, **more):
    return Side(name=name, description="", cells=cells, **more)


def paired(a, b):
    return [(one.cell.name, other.cell.name) for one, other in sides.match(a, b)]


# --- two values


@pytest.mark.parametrize(
    ("a", "b", "shown"),
    [
        (Word(text="x"), Word(text="x"), "same"),
        (Word(text="x"), Word(text="X"), "differs"),
        (Word(text="max"), Number(value=512), "differs"),
        (Number(value=4), Number(value=4), "same"),
        (Number(value=4), Number(value=17), "+13 (x4.25)"),
        (Number(value=1000), Number(value=-997), "-1997"),
        (Number(value=0), Number(value=3), "+3"),
        (Number(value=0), Number(value=0), "same"),
        (Sample(points=(1, 2, 9)), Summary(median=4, n=3), "+2 (x2)"),
        (Sample(points=(1, 2, 9)), Number(value=2), "same"),
        (Sample(points=(1, 2, 9)), Summary(low=2, high=9), "2 of 3 within"),
        (Summary(low=2, high=9), Sample(points=(1, 2, 9)), "2 of 3 within"),
        (Sample(points=(1, 9)), Summary(high=8.2), "1 of 2 within"),
        (Sample(points=(1, 9)), Summary(low=10), "0 of 2 within"),
        (Summary(low=2, high=9), Summary(low=2, high=9), "same"),
        (Summary(low=2, high=9), Summary(low=2, high=8), "-"),
        (Share(count=6, of=6), Share(count=9, of=9), "same"),
        (Share(count=0, of=48), Share(count=41, of=48), "differs"),
        (Share(count=0, of=0), Share(count=1, of=2), "differs"),
        (None, Number(value=0), "-"),
        (Number(value=0), None, "-"),
        (None, None, "-"),
    ],
)
def test_one_value_against_another(a, b, shown):
    assert against(a, b).text == shown


def test_a_missing_value_is_neither_zero_nor_a_difference():
    assert measured.text(None) == "-"
    assert measured.as_json(None) is None
    for present in (Number(value=0), Sample(points=(0.0,)), Share(count=0, of=3)):
        found = against(None, present)
        assert (found.verdict, found.difference, found.ratio) == ("-", None, None)
    with pytest.raises(Missing):
        Sample(points=())


@pytest.mark.parametrize(
    ("datum", "shown"),
    [
        (Number(value=0), "0"),
        (Number(value=-997), "-997"),
        (Number(value=4108140544), "4108140544"),
        (Sample(points=(0.0522,)), "0.0522"),
        (Sample(points=(3, 1, 2)), "2 (3, 1, 2)"),
        (Sample(points=tuple(range(11))), "5 (0 to 10, n = 11)"),
        (Summary(median=3.6, high=8.2, n=48), "3.6 (median; at most 8.2, n = 48)"),
        (Summary(low=3.0, high=9.2, n=12), "3 to 9.2, n = 12"),
        (Summary(low=3.0), "at least 3"),
        (Share(count=5, of=12), "5 of 12"),
    ],
)
def test_a_value_as_text(datum, shown):
    assert measured.text(datum) == shown


@given(
    st.lists(st.floats(min_value=0.001, max_value=1e6), min_size=1, max_size=9),
    st.lists(st.floats(min_value=0.001, max_value=1e6), min_size=1, max_size=9),
)
def test_turning_a_comparison_around_turns_sign_and_ratio(first, second):
    one, other = Sample(points=tuple(first)), Sample(points=tuple(second))
    there, back = against(one, other), against(other, one)
    assert there.verdict == back.verdict
    assert there.difference == pytest.approx(-back.difference)
    assert math.isclose(there.ratio * back.ratio, 1.0, rel_tol=1e-9)
    assert against(one, one).text == "same"


def test_pooling():
    assert measured.pooled([Sample(points=(1,)), Sample(points=(2, 3))]) == Sample(points=(1, 2, 3))
    assert measured.pooled([Share(count=1, of=3), Share(count=2, of=3)]) == Share(count=3, of=6)
    assert measured.pooled([Word(text="x"), Word(text="x")]) == Word(text="x")
    assert measured.pooled([Word(text="x"), Word(text="y")]) is None
    assert measured.pooled([Sample(points=(1,)), Number(value=1)]) is None
    assert measured.pooled([]) is None


# --- values of observations


def cpu_observation(**changes):
    window = {"pair": 1, "pod": "cpu-ctl", "try": 1, "why_not": [], "weights": {"target-pod": "20", "burstable": "63"}}
    windows = [
        {**window, "cores": {"target-container": 0.5, "neighbour-pod": 1.2}},
        {**window, "pod": "cpu-emp", "cores": {"target-container": 0.05, "neighbour-pod": 1.8}},
    ]
    slots = [[1, "cpu-ctl"], [1, "cpu-emp"]]
    return {"seed": 1, "order": "random", "slots": slots, "windows": windows, **changes}


def test_cpu_values():
    found = measured.values(registry.BY_NAME["cpu"], cpu_observation())
    assert found["cpu-emp (cores)"] == Sample(points=(0.05,))
    assert found["cpu-emp of cpu-ctl (%)"] == Number(value=10.0)
    assert found["cpu-emp below every cpu-ctl"] == Share(count=1, of=1)
    assert found["cpu-ctl pod cpu.weight"] == Number(value=20)
    assert "besteffort slice cpu.weight beside cpu-emp" not in found, "not read, so not there"


def test_a_window_that_does_not_count_leaves_no_ratio():
    whole = cpu_observation()
    refused = {**whole["windows"][1], "why_not": ["steal"]}
    found = measured.values(registry.BY_NAME["cpu"], cpu_observation(windows=[whole["windows"][0], refused]))
    assert {"cpu-emp (cores)", "cpu-ctl (cores)", "cpu-emp of cpu-ctl (%)"} & set(found) == set()
    assert found["slots with a window that counts"] == Share(count=1, of=2)


def test_a_stage_without_values_of_its_own_gives_its_row():
    assert measured.values(fake_stage(), {"number": 7}) == {"number": Word(text="7")}


# --- cells


def test_same_version_and_gates_first_then_the_nearest_patch():
    a = side("a", cell("v1.36.3"), cell("v1.36.5"), cell("v1.37.2"), cell("v1.37.2", OFF))
    b = side("b", cell("v1.36.4"), cell("v1.36.5"), cell("v1.37.1", OFF), cell("v1.38.0"))
    fix = "+PodLevelResourcesFixKubeletQOSClass=false"
    assert paired(a, b) == [
        ("upstream-v1.36.3", "upstream-v1.36.4"),
        ("upstream-v1.36.5", "upstream-v1.36.5"),
        (f"upstream-v1.37.2{fix}", f"upstream-v1.37.1{fix}"),
    ]
    found = diff.compare(a, b)
    assert (found.only_a, found.only_b) == (("upstream-v1.37.2",), ("upstream-v1.38.0",))
    assert [pair.label for pair in found.pairs] == ["1.36", "1.36 #2", "1.37 gates"]
    assert [pair.note for pair in found.pairs] == [
        "another patch release, matched by minor version", "the same cell",
        "another patch release, matched by minor version",
    ]  # fmt: skip


def test_the_same_distribution_is_matched_before_a_nearer_patch():
    a = side("a", cell("v1.36.3"), cell("v1.36.9", distro="k3s"), cell("v1.35.1"))
    b = side("b", cell("v1.36.3", distro="k3s"), cell("v1.35.1"))
    assert paired(a, b) == [("upstream-v1.35.1", "upstream-v1.35.1"), ("k3s-v1.36.9", "k3s-v1.36.3")]


def test_two_named_cells_are_a_pair_whatever_they_are():
    (pair,) = diff.compare(side("a", cell("v1.36.3")), side("b", cell("v1.37.2", OFF, distro="k3s"))).pairs
    assert pair.label == "1.36/1.37 gates"
    assert pair.note == "another minor version; another distribution; other gates"


def test_a_build_is_told():
    found = diff.compare(side("a", cell("v1.36.5", distro="k3s")), side("b", cell("v1.36.5+k3s1", distro="k3s")))
    assert found.pairs[0].note == "another build"


def test_nothing_in_common_is_an_error_that_names_both():
    a, b = side("a", cell("v1.34.4"), cell("v1.35.4")), side("b", cell("v1.36.3"))
    with pytest.raises(UsageError, match=r"a \(upstream-v1.34.4, upstream-v1.35.4\).*b \(upstream-v1.36.3\)"):
        diff.compare(a, b)


# --- inputs


def rows(a, b, **more):
    found = diff.compare(side("a", *a), side("b", *b, **more))
    return {(row.name, row.where): (row.a, row.b) for row in found.inputs}, found


def test_inputs_that_differ_are_named_with_stage_and_cell():
    digest = "a" * 64
    one = {"cpu": result(inputs={"param/pairs": 3, "script/hog.py": digest}), "class": result(must={"vcpus": "2"})}
    other = {"cpu": result(inputs={"param/pairs": 5, "script/hog.py": "b" * 64}), "class": result(must={"vcpus": "4"})}
    found, _ = rows([cell("v1.36.3", **one)], [cell("v1.36.3", **other)])
    assert found == {
        ("vcpus", "class"): ("2", "4"),
        ("cpu param/pairs", "cpu"): ("3", "5"),
        ("cpu script/hog.py", "cpu"): ("a" * 12, "b" * 12),
    }


def test_numbers_and_booleans_of_a_stamp_are_not_confused():
    found, _ = rows([cell("v1.36.3", cpu=result(inputs={"x": 1}))], [cell("v1.36.3", cpu=result(inputs={"x": True}))])
    assert found == {("cpu x", "all"): ("1", "true")}


def test_a_fact_that_a_stored_result_lacks_is_a_dash_and_one_that_an_article_lacks_is_not_stated():
    a, b = [cell("v1.36.3", cpu=result(shown={"runc": "1.3.6"}))], [cell("v1.36.5")]
    found, _ = rows(a, b)
    assert found == {("runc", "all"): ("1.3.6", None)}
    found, whole = rows(a, b, is_partial=True)
    assert (found, whole.unstated) == ({}, ("runc",))


def test_a_fact_that_must_agree_is_a_difference_unless_the_article_is_silent_on_it():
    a, b = [cell("v1.36.3")], [cell("v1.36.5", cpu=result(must={"provider": "qemu"}))]
    found, whole = rows(a, b)
    assert found == {("emulation", "all"): ("tcg", None)}
    assert whole.inputs[0].must_agree
    found, whole = rows(a, b, is_partial=True)
    assert (found, whole.unstated) == ({}, ("emulation",))
    assert diff.unstated_text(whole) == "Not stated by b, so not compared: emulation."


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        (("1.34", "1.35", "1.36", "1.37"), "all"),
        (("1.34", "1.35", "1.36"), "1.34 to 1.36"),
        (("1.34", "1.36"), "1.34, 1.36"),
        (("1.37",), "1.37"),
    ],
)
def test_spans_of_cells(labels, shown):
    assert diff.spans(labels, ("1.34", "1.35", "1.36", "1.37")) == shown


# --- values of several cells together


def pooled_row(a_cells, pool_cells, b_cells=("v1.34.12", "v1.35.9")):
    names = tuple(f"k3s-{version}" for version in pool_cells)
    pool = Pool(stage="cpu", name="x", cells=names, datum=Share(count=9, of=9), where="F")
    b = side("article", *(cell(version, distro="k3s") for version in b_cells), pools=(pool,), is_partial=True)
    found = diff.compare(side("results", *a_cells), b)
    (row,) = [row for row in found.stages["cpu"] if row.where == "F"]
    return row


def share(count, **more):
    return result({"x": Share(count=count, of=3)}, **more)


def test_our_values_of_the_same_cells_are_pooled():
    row = pooled_row([cell("v1.34.4", cpu=share(3)), cell("v1.35.4", cpu=share(2))], ("v1.34.12", "v1.35.9"))
    assert (row.a, row.pairs, row.note) == (Share(count=5, of=6), ("1.34", "1.35"), "")


def test_a_cell_without_the_value_is_named():
    row = pooled_row([cell("v1.34.4", cpu=share(3)), cell("v1.35.4")], ("v1.34.12", "v1.35.9"))
    assert row.a == Share(count=3, of=3)
    assert row.note == "results has no value for 1.35"


def test_cells_that_are_not_there_are_told():
    row = pooled_row([cell("v1.34.4", cpu=share(3))], ("v1.34.12", "v1.35.9"))
    assert "published for 2 cells together, matched here: 1" in row.note


def test_environments_are_not_pooled():
    cells = [cell("v1.34.4", cpu=share(3)), cell("v1.35.4", cpu=share(3, must={"provider": "ssh"}))]
    row = pooled_row(cells, ("v1.34.12", "v1.35.9"))
    assert row.a is None
    assert "several environments" in row.note


# --- the command


@pytest.fixture
def lab(capfd, monkeypatch):
    monkeypatch.chdir(ROOT)

    def run(*words):
        capfd.readouterr()
        code = main(["diff", *words])
        out, err = capfd.readouterr()
        return code, out, err

    return run


def test_the_committed_results_against_the_article(lab):
    code, out, err = lab("results", "article")
    assert (code, err) == (0, "")
    for text in ("upstream-v1.34.4", "k3s-v1.34.12", "another patch release, matched by minor version",
                 "another distribution", "Stage kernel: ", "digitalocean", "No test is made"):  # fmt: skip
        assert text in out
    assert out.index("Inputs that differ") < out.index("Stage class")


def test_a_cell_of_the_articles_own_set_up_differs_in_no_input(lab, tmp_path):
    """As `lab run --preset article` would store it on a droplet; made of an upstream attempt, for nobody ran it yet."""
    attempt = tmp_path / "k3s-v1.36.5" / "class" / "0001"
    shutil.copytree(ROOT / "results" / "upstream-v1.36.3" / "class" / "0001", attempt)
    stamp = json.loads((attempt / "stamp.json").read_text())
    stamp["cell"].update(distro="k3s", version="v1.36.5")
    stamp["environment"] = {"must_agree": DROPLET, "shown": {"image": NodeOptions().image, "runc": "1.4.2"}}
    (attempt / "stamp.json").write_text(json_text(stamp))
    (attempt / "SHA256SUMS").write_text("".join(f"{sha}  {name}\n" for name, sha in digests_of(attempt).items()))
    page = tmp_path / "page.html"
    code, out, err = lab(str(tmp_path), "article", "--html", str(page))
    assert code == 0, err
    silent = "Not stated by article, so not compared: emulation, runc, "
    for text in (out, page.read_text()):
        assert "No input and no fact of the environment that both sides state differs." in text
        assert silent in text
        assert "would have to agree" not in text
    found = json.loads(lab(str(tmp_path), "article", "--json")[1])
    assert [pair["note"] for pair in found["pairs"]] == ["the same cell"]
    assert found["inputs_that_differ"] == []
    assert {"emulation", "runc"} <= set(found["inputs_not_stated"])


def test_json_is_one_document_with_every_point(lab):
    code, out, _ = lab("results", "article", "--json")
    assert code == 0
    found = json.loads(out)
    assert [pair["pair"] for pair in found["pairs"]] == ["1.34", "1.35", "1.36", "1.37", "1.37 gates"]
    cpu = {(row["value"], *row["pairs"]): row for row in found["stages"]["cpu"]}
    ours = cpu["cpu-emp (cores)", "1.34"]
    assert len(ours["a"]["points"]) == 3
    assert ours["b"] == {"kind": "summary", "median": 0.083, "low": None, "high": None, "n": 3}
    assert ours["ratio"] == pytest.approx(0.083 / ours["a"]["median"])
    assert ours["published_in"].startswith("Finding 3")
    missing = cpu["cpu-emp of cpu-ctl (%)", "1.36"]
    if missing["a"] is None:
        assert (missing["verdict"], missing["difference"], missing["ratio"]) == ("-", None, None)


def test_a_folder_against_itself_is_the_same_in_everything(lab):
    found = json.loads(lab("results", "results", "--json")[1])
    assert found["inputs_that_differ"] == []
    assert {row["verdict"] for rows in found["stages"].values() for row in rows} == {"same"}
    assert {pair["note"] for pair in found["pairs"]} == {"the same cell"}


@pytest.mark.parametrize(
    ("a", "b", "cells"),
    [
        ("upstream-v1.36.3", "v1.37.2", ("v1.36.3", "v1.37.2")),
        ("results/upstream-v1.36.3", "results:1.37.2", ("v1.36.3", "v1.37.2")),
        ("results:v1.36.3", "article:v1.36.5", ("v1.36.3", "v1.36.5")),
        ("v1.37.2+PodLevelResourcesFixKubeletQOSClass=false", "v1.37.2", ("v1.37.2", "v1.37.2")),
        ("results/_runs/20261130T074759Z-fd5f", "20261130T074759Z-fd5f", ("v1.34.4", "v1.34.4")),
    ],
)
def test_what_can_be_named(lab, a, b, cells):
    code, out, err = lab(a, b, "--json")
    assert (code, err) == (0, "")
    (pair,) = json.loads(out)["pairs"]
    assert (pair["a"]["version"], pair["b"]["version"]) == cells


@pytest.mark.parametrize(
    ("a", "parts"),
    [
        ("nope", ["nope: not found", "upstream-v1.36.3", "20261130T075350Z-7487", "the word article"]),
        ("v1.36.9", ["v1.36.9: not found"]),
        ("./nope", ["no such folder", "the word article"]),
        ("nope:v1.36.3", ["no such folder"]),
        ("tests", ["no attempt is stored below tests"]),
        ("article:v1.33.1", ["no such cell", "k3s-v1.34.12"]),
        ("", ["a side without a name", "the word article"]),
    ],
)
def test_what_cannot_be_found_is_one_clear_error(lab, a, parts):
    code, out, err = lab(a, "article")
    assert (code, out) == (2, "")
    assert err.count("error: ") == 1
    for part in parts:
        assert part in err


def test_differing_values_do_not_change_the_exit_code(lab):
    code, out, _ = lab("v1.36.3", "v1.37.2")
    assert code == 0
    assert "differs" in out


def test_all_shows_what_the_article_does_not_give(lab):
    short, whole = lab("results", "article")[1], lab("results", "article", "--all")[1]
    assert "be pod cpu.weight" not in short
    assert "values of kernel that article does not give: see --all" in short
    assert "be pod cpu.weight" in whole
    assert "see --all" not in whole


def test_damaged_results_are_4(lab, tmp_path):
    name = "upstream-v1.36.3"
    shutil.copytree(RESULTS / name / "class", tmp_path / name / "class")
    (path,) = (tmp_path / name).glob("class/*/observation.json")
    path.write_text(path.read_text().replace("Guaranteed", "guaranteed", 1))
    code, out, err = lab(str(tmp_path), "article")
    assert (code, out) == (4, "")
    assert "observation.json" in err


def compare(bench, *words):
    return bench.lab("diff", *words, "--results", str(bench.results))


def test_two_runs_of_one_version(bench):
    bench.run(versions="v1.36.3")
    bench.use_stages(fake_stage(collect=say("7")))
    bench.run(versions="v1.36.3")
    first, second = sorted(path.name for path in bench.results.glob("_runs/*"))
    found = compare(bench, first, second, "--json").json()
    (row,) = found["stages"]["fake"]
    assert (row["a"]["text"], row["b"]["text"], row["verdict"]) in {("1", "7", "differs"), ("7", "1", "differs")}
    newest = compare(bench, str(bench.results), str(bench.results), "--json").json()
    assert newest["stages"]["fake"][0]["a"]["text"] == "7", "only the newest attempt that counts"


def test_runs_of_different_inputs_are_compared_and_the_input_is_named(bench):
    bench.run(versions="v1.36.3")
    bench.run("--reps", "5", versions="v1.36.3")
    first, second = sorted(path.name for path in bench.results.glob("_runs/*"))
    found = compare(bench, first, second, "--json").json()
    (row,) = found["inputs_that_differ"]
    assert (row["input"], {row["a"], row["b"]}) == ("fake param/reps", {"3", "5"})


def test_a_folder_of_mixed_inputs_is_4(bench):
    bench.run(versions="v1.36.3")
    bench.run("--reps", "5", versions="v1.37.2")
    ended = compare(bench, str(bench.results), "article")
    assert (ended.code, ended.out) == (4, "")
    assert "param/reps" in ended.error


def test_a_smoke_run_is_never_compared(bench):
    bench.run("--quick")
    (run,) = [path.name for path in bench.results.glob("_runs/*")]
    ended = compare(bench, run, "article")
    assert ended.code == 2
    assert "smoke run" in ended.error


def test_an_observation_of_another_parser_is_4(bench):
    bench.run(versions="v1.36.3")
    bench.use_stages(fake_stage(judge_version=2))
    ended = compare(bench, str(bench.results), "article")
    assert ended.code == 4
    assert "lab judge" in ended.error
