"""Where the experiment's own files are found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lab import project
from lab.model import UsageError
from tests.projects import ROOT, make_project


@pytest.fixture
def made(tmp_path):
    return make_project(tmp_path, in_git=False)


def test_the_folder_itself_and_any_folder_below_it(made):
    assert project.find(made) == made
    below = made / "manifests" / "deep" / "down"
    below.mkdir(parents=True)
    assert project.find(below) == made


def test_the_nearest_project_wins(made):
    inner = make_project(made, in_git=False)
    assert project.find(inner / "manifests") == inner


def test_outside_of_any_project_the_source_tree_serves(tmp_path):
    assert project.find(tmp_path) == ROOT


def test_a_given_folder_is_taken_as_it_is(made, tmp_path):
    assert project.find(tmp_path, made) == made
    with pytest.raises(UsageError, match="not a lab project"):
        project.find(made, made / "manifests")


@pytest.mark.parametrize("mark", ["CLAIM.md", "manifests", "manifests/cases.toml", "node-scripts"])
def test_a_project_has_all_its_marks(made, mark):
    path = made / mark
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(UsageError) as caught:
        project.find(made, made)
    assert str(caught.value).startswith(f"{made}: not a lab project (it needs CLAIM.md, manifests/cases.toml, ")
    assert caught.value.exit_code == 2


def test_a_relative_folder_and_a_link_are_resolved(made, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(made)
    monkeypatch.chdir(tmp_path)
    assert project.find(Path("elsewhere"), Path("link")) == made


def test_node_scripts_are_programs_and_nothing_else(made):
    (made / "node-scripts" / "notes.txt").write_text("no program\n")
    (made / "node-scripts" / "__pycache__").mkdir()
    found = project.node_scripts(made)
    assert set(found) == {path.name for path in (ROOT / "node-scripts").glob("*.*") if path.suffix in (".py", ".sh")}
    assert "node_facts.sh" in found
    assert found["hog.py"] == (ROOT / "node-scripts" / "hog.py").read_text()
    assert list(found) == sorted(found)


def test_a_program_that_is_no_text_is_named(made):
    (made / "node-scripts" / "odd.py").write_bytes(b"# caf\xe9\n")
    with pytest.raises(UsageError, match=r"odd\.py.*UTF-8"):
        project.node_scripts(made)
