"""The pictures for papers: the same bytes each time, with what each must show."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib as mpl
import pytest

from lab import claim_history
from lab.report import comparability, pictures
from lab.report.page.build import build
from lab.report.page.model import Bar, Chart, Grid, GridCell, Line, Node, Panel, Point, Reading, Series, Tree, Value
from lab.stages import registry
from lab.store import Store

UNEXPLAINED = Reading(name="cpu.weight", read=Value(text="5"), expected="4")
ROOT = Path(__file__).resolve().parent.parent.parent


def plain(text):
    return text


@pytest.fixture(scope="module")
def drawn():
    """Pictures of one version of each stage, by id."""
    attempts = comparability.select(Store(ROOT / "results").attempts()).attempts
    chosen = tuple(a for a in attempts if a.cell.version == ("v1.34.4" if a.stage == "cpu" else "v1.36.3"))
    claims = claim_history.read(ROOT / "CLAIM.md").claims
    page = build(comparability.Selection(attempts=chosen), registry.BY_NAME, claims, None, lambda a: a.raw())
    return {picture.id: picture for picture in page.pictures()}


@pytest.fixture
def as_text(monkeypatch):
    """Let text in an SVG stay text, so that it can be read."""
    monkeypatch.setitem(pictures.SETTINGS, "svg.fonttype", "none")


def words(picture, mask=plain):
    """Every text of a picture."""
    root = ElementTree.fromstring(pictures.draw(picture, "svg", mask))
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_there_is_a_picture_of_each_kind(drawn):
    assert list(drawn) == [
        "verdicts-1", "class-1-matrix", "kernel-1-upstream-v1.36.3", "quota-1-answers", "cpu-1-chart",
        *(f"eviction-1-upstream-v1.36.3-{number}-chart" for number in (1, 2, 3)),
        "eviction-priority-1-upstream-v1.36.3-1-chart",
    ]  # fmt: skip


@pytest.mark.parametrize("form", pictures.FORMS)
@pytest.mark.parametrize("name", ["class-1-matrix", "kernel-1-upstream-v1.36.3", "cpu-1-chart"])
def test_the_same_picture_has_the_same_bytes_without_date_or_program(drawn, name, form):
    first = pictures.draw(drawn[name], form, plain)
    assert pictures.draw(drawn[name], form, plain) == first
    assert mpl.__version__.encode() not in first
    for mark in (b"dc:date", b"tIME", b"Software", b"href=\"http"):
        assert mark not in first
    assert first.startswith({"png": b"\x89PNG\r\n", "svg": b"<?xml"}[form])


def test_a_table_shows_words_and_signs_not_colour_alone(drawn, as_text):
    said = words(drawn["class-1-matrix"])
    assert "○ BestEffort" in said
    assert "● Guaranteed" in said
    assert "block {}" in said


def test_a_tree_shows_each_cgroup_with_its_values(drawn, as_text):
    said = words(drawn["kernel-1-upstream-v1.36.3"])
    assert {"kubepods.slice", "kubepods-besteffort.slice", "ctl-guaranteed (Guaranteed)"} <= set(said)
    assert said.count("container") == 6
    assert any("cpu.weight 12 (= expected)" in text for text in said)


def test_a_strip_shows_ratio_names_and_the_band(drawn, as_text):
    said = words(drawn["cpu-1-chart"])
    assert {"8.7%", "cpu-ctl (control)", "cpu-emp (empty block)", "equal: 0.8-1.25", "v1.34.4"} <= set(said)


def test_a_timeline_names_each_evicted_pod_and_each_line(drawn, as_text):
    said = words(drawn["eviction-1-upstream-v1.36.3-1-chart"])
    for pod in ("be", "ctl", "gua-ctl", "emp", "gua-emp"):
        assert said.count(pod) == 2, "at its eviction, and at its line"
    assert {"MemAvailable", "hog (RSS)", "threshold 2Gi", "the kubelet ranks the pods"} <= set(said)


def chart(**changes):
    """A small chart of one of each thing."""
    points = (Point(x=0, y=1, text="p"), Point(x=1, y=2, text="q"))
    series = Series(name="cores", form="points", style=0, points=points)
    panel = Panel(
        title="top", unit="cores", low=0, high=3, series=(series,),
        bars=(Bar(x=0, low=1, high=2, centre=1.5, text=""),),
        levels=(Line(at=2, label="level", text=""),),
    )  # fmt: skip
    values = {
        "id": "c", "title": "t", "description": "d", "x_title": "x", "low": -0.5, "high": 1.5, "panels": (panel,),
        "slots": ("one", "two"), "moments": (Line(at=1, label="now", text=""),),
    }  # fmt: skip
    return Chart(**(values | changes))


def test_every_part_of_a_chart_leaves_a_trace():
    whole = chart()
    panel = whole.panels[0]
    seen = {pictures.draw(whole, "svg", plain)}
    for other in (
        chart(moments=()),
        chart(slots=("one", "three")),
        chart(title="u"),
        *(
            chart(panels=(dataclasses.replace(panel, **{part: empty}),))
            for part, empty in (("series", ()), ("bars", ()), ("levels", ()), ("band", (0.5, 1, "b")), ("unit", "s"))
        ),
        chart(panels=(dataclasses.replace(
            panel, series=(dataclasses.replace(panel.series[0], points=panel.series[0].points[:1]),)),)),
    ):  # fmt: skip
        seen.add(pictures.draw(other, "svg", plain))
    assert len(seen) == 10


@pytest.mark.parametrize(
    "picture",
    [
        chart(title="$x_1$ <b> &\x00 secret99"),
        Grid(id="g", caption="$x$ <b>\x00 secret99", columns=("a",), rows=((Value(text="$y"), ()),)),
        Tree(
            id="t", caption="<b> secret99", legend=("$",),
            roots=(Node(title="$n$\x00", path=Value(text=""), readings=(UNEXPLAINED,)),),
        ),
        Grid(id="e", caption="empty secret99", columns=("a", "b"), rows=()),
        Tree(id="t", caption="empty secret99", legend=(), roots=()),
    ],
)  # fmt: skip
def test_texts_of_nodes_are_only_texts_and_secrets_are_masked(picture, as_text):
    said = words(picture, lambda text: text.replace("secret99", "***"))
    assert any("***" in text for text in said)
    assert not any("secret99" in text for text in said)


def test_a_value_that_no_formula_explains_is_named(as_text):
    tree = Tree(id="t", caption="c", legend=(), roots=(Node(title="n", path=Value(text=""), readings=(UNEXPLAINED,)),))
    assert "cpu.weight 5 (expected 4)" in words(tree)


def test_a_long_word_in_a_cell_is_broken_not_lost(as_text):
    long = "x" * 70
    cell = GridCell(values=(Value(text=long),))
    grid = Grid(id="g", caption="c", columns=("a", long), rows=((Value(text="r"), (cell,)),))
    assert sum(text.count("x") for text in words(grid)) == 140


def test_the_drawing_library_is_loaded_only_to_draw():
    code = (
        "import sys, lab.cli.main, lab.cli.summary, lab.report.pictures;"
        "sys.exit(any(name.startswith('matplotlib') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=120).returncode == 0
