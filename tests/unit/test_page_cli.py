"""`lab summary --html`, `--html-file` and `--plots` on the results of a project that needs no node."""

from __future__ import annotations

import pytest

from tests.page_reader import read
from tests.projects import make_bench, tree


@pytest.fixture
def bench(tmp_path, monkeypatch, capfd):
    """Results of two versions of the stage that needs no node."""
    made = make_bench(tmp_path, monkeypatch, capfd)
    assert made.run(versions="v1.36.3,v1.37.2").code == 0
    return made


def on(bench, *words):
    return bench.lab("summary", "--results", str(bench.results), *words)


def test_the_page_is_written_beside_the_summary(bench):
    before = (bench.results / "summary.md").read_bytes()
    ended = on(bench, "--html")
    page = bench.results / "summary.html"
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.endswith(f"wrote {page}\n")
    assert (bench.results / "summary.md").read_bytes() == before
    text = page.read_text()
    root = read(text)
    assert "number-one" in root.text
    assert "v1.37.2" in root.by_id("fake-1-table").text
    assert str(bench.root) not in text
    assert on(bench, "--html").code == 0
    assert page.read_text() == text


def test_a_page_goes_where_it_is_told(bench, tmp_path):
    target = tmp_path / "new" / "page.html"
    assert on(bench, "--html-file", str(target)).code == 0
    assert read(target.read_text())
    assert not (bench.results / "summary.html").exists()


def test_pictures_are_files_of_both_forms(bench, tmp_path):
    folder = tmp_path / "pictures"
    ended = on(bench, "--plots", str(folder))
    assert ended.code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["verdicts-1.png", "verdicts-1.svg"]
    assert "wrote 2 files" in ended.err
    first = tree(folder)
    on(bench, "--plots", str(folder))
    assert tree(folder) == first


@pytest.mark.parametrize("words", [("--html",), ("--html-file", "x.html"), ("--plots", "x")])
def test_a_check_writes_nothing(bench, words):
    before = tree(bench.results)
    ended = on(bench, "--check", *words)
    assert ended.code == 2
    assert ended.error == f"--check writes nothing: leave out {words[0]}"
    assert tree(bench.results) == before


def test_what_cannot_be_written_is_said_before_anything_is(bench, tmp_path):
    (bench.results / "summary.md").unlink()
    assert "name a file" in on(bench, "--html-file", str(tmp_path)).error
    file = tmp_path / "file"
    file.touch()
    assert "that is no folder" in on(bench, "--plots", str(file)).error
    (bench.results / "summary.html").mkdir()
    assert on(bench, "--html").error.startswith(f"--html: {bench.results / 'summary.html'} is a folder; ")
    assert not (bench.results / "summary.md").exists()


@pytest.mark.parametrize("words", [("--html",), ("--plots", "pictures")])
def test_results_that_do_not_belong_together_give_no_page(bench, words):
    (stamp,) = bench.results.glob("*v1.36.3/fake/0001/stamp.json")
    text = stamp.read_text()
    stamp.write_text(text.replace('"param/reps": 3', '"param/reps": 4'))
    assert stamp.read_text() != text
    ended = on(bench, *words)
    assert ended.code == 4
    assert not (bench.results / "summary.html").exists()
    assert not (bench.project / "pictures").exists()


def test_mixed_inputs_give_no_page(bench):
    bench.run("--reps", "5", versions="v1.37.2")
    ended = on(bench, "--html")
    assert ended.code == 4
    assert "cannot stand in one table" in ended.error
    assert not (bench.results / "summary.html").exists()


def test_help_names_the_flags_and_what_is_written(bench):
    said = bench.lab("summary", "--help").out
    for part in ("--html", "--html-file", "--plots", "summary.html", "PNG"):
        assert part in said
