"""`lab demo`: what it shows is made by the commands that it names, and the results that it shows stay as they are."""

from __future__ import annotations

import shlex
import shutil
from xml.etree import ElementTree

import pytest

from lab.cli import demo
from lab.report import comparability
from lab.store import Store
from tests.projects import ROOT, make_bench, tree

STAGES = ("class", "quota")


@pytest.fixture
def bench(tmp_path, monkeypatch, capfd):
    """A project with two cells of the committed results, and the real stages."""
    from lab.stages import registry

    made = make_bench(tmp_path, monkeypatch, capfd, stages=registry.STAGES, claims=(ROOT / "CLAIM.md").read_text())
    for version in ("v1.36.3", "v1.37.2"):
        for stage in STAGES:
            place = f"results/upstream-{version}/{stage}"
            shutil.copytree(ROOT / place, made.project / place)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return made


def commands(ended):
    """What it said it ran: words, and the file that the output went to."""
    lines = [line.removeprefix("$ lab ") for line in ended.err.splitlines() if line.startswith("$ lab ")]
    return [(shlex.split(line.partition(" > ")[0]), line.partition(" > ")[2]) for line in lines]


def test_it_shows_summary_and_diff_and_changes_nothing(bench):
    before = tree(bench.project)
    out = bench.root / "shown"
    ended = bench.lab("demo", "--out", str(out))

    assert ended.code == 0
    assert tree(bench.project) == before
    assert "class-empty-block" in ended.out
    assert "emp-burstable answer" in ended.out
    assert (out / "results" / "summary.md").is_file()
    assert ElementTree.parse(out / "claims.xml").getroot().get("failures") == "0"
    assert "class-empty-block" in (out / "index.html").read_text()
    assert "Stage class" in (out / "article.txt").read_text()
    assert str(out) in ended.err.splitlines()[-2]


def test_every_command_that_it_names_can_be_repeated(bench):
    out = bench.root / "shown"
    named = commands(bench.lab("demo", "--out", str(out)))

    assert [words[0] for words, _ in named] == ["verify", "summary", "diff", "diff"]
    for words, target in named:
        again = bench.lab(*words)
        assert again.code == 0, words
        assert not target or (out / target).read_text() == again.out


def test_a_clone_elsewhere_is_named_in_the_commands(bench, monkeypatch):
    monkeypatch.chdir(bench.root)
    ended = bench.lab("demo", "--project", str(bench.project), "--out", str(bench.root / "shown"))

    assert ended.code == 0
    [summary] = [words for words, _ in commands(ended) if words[0] == "summary"]
    assert summary[summary.index("--project") + 1] == str(bench.project)


def test_the_recording_shows_the_commands_that_are_run_today(bench):
    """docs/demo.txt is made of the whole results; CONTRIBUTING.md says how."""
    recorded = (ROOT / "docs" / "demo.txt").read_text()
    today = bench.lab("demo", "--out", str(bench.root / "lab-demo"))

    def named(text):
        lines = [line for line in text.splitlines() if line.startswith(("$ lab ", "# "))]
        return [line.replace(str(bench.root), "/tmp") for line in lines]

    assert named(recorded) == named(today.err)


def test_without_a_place_it_makes_one(bench, monkeypatch):
    monkeypatch.setattr(demo.tempfile, "tempdir", str(bench.root))
    ended = bench.lab("demo")

    [made] = bench.root.glob("lab-demo-*")
    assert ended.code == 0
    assert (made / "results" / "summary.md").is_file()


@pytest.mark.parametrize("place", ["results", "results/new", "results/upstream-v1.36.3/class"])
def test_it_never_writes_into_the_results(bench, place):
    before = tree(bench.project)
    ended = bench.lab("demo", "--out", str(bench.project / place))

    assert ended.code == 2
    assert "inside the results" in ended.error
    assert tree(bench.project) == before


def test_it_does_not_write_over_what_is_there(bench):
    taken = bench.root / "taken"
    taken.mkdir()
    (taken / "mine").write_text("x")

    assert "not an empty folder" in bench.lab("demo", "--out", str(taken)).error
    assert "not an empty folder" in bench.lab("demo", "--out", str(taken / "mine")).error
    assert (taken / "mine").read_text() == "x"


def test_an_installed_package_without_a_clone_says_what_is_needed(bench, monkeypatch):
    monkeypatch.chdir(bench.root)
    monkeypatch.setattr("lab.project.__file__", str(bench.root / "site-packages" / "lab" / "project.py"))
    ended = bench.lab("demo")

    assert ended.code == 2
    assert "clone the repository" in ended.error
    assert "--project DIR" in ended.error


def test_a_project_without_results_says_so(bench):
    shutil.rmtree(bench.project / "results")
    ended = bench.lab("demo")

    assert ended.code == 2
    assert f"{bench.project / 'results'} holds no results" in ended.error


def test_damaged_results_are_not_shown_as_good(bench):
    path = next((bench.project / "results").glob("*/class/0001/raw/pods.json"))
    path.write_text(path.read_text() + " ")
    ended = bench.lab("demo", "--out", str(bench.root / "shown"))

    assert ended.code == 4
    assert "raw/pods.json: sha256 is" in ended.error
    assert "HELD" not in ended.out


def test_one_cell_alone_has_no_diff_of_versions(bench):
    shutil.rmtree(bench.project / "results" / "upstream-v1.36.3")
    ended = bench.lab("demo", "--out", str(bench.root / "shown"))

    assert ended.code == 0
    assert [words[0] for words, _ in commands(ended)] == ["verify", "summary", "diff"]
    assert len(comparability.select(Store(bench.root / "shown" / "results").attempts()).attempts) == len(STAGES)
