"""Folders that cannot be read, files where folders are expected, and a standard output that takes nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lab.atomic import folders_in
from lab.model import NodeError, ResultsError
from lab.providers import folders
from tests.projects import ROOT

pytestmark = pytest.mark.usefixtures("signals")

LONG = "--versions " + ",".join(f"v1.36.{patch}" for patch in range(400))
"""A plan that is longer than what a pipe takes without a reader."""


@pytest.fixture
def forbidden(monkeypatch):
    """Folders of these names cannot be read, whoever runs the tests."""
    names = set()
    listing, looking, opening = os.scandir, os.listdir, os.open

    def refuse(path):
        if os.path.basename(str(path).rstrip("/")) in names:
            raise PermissionError(13, "Permission denied", str(path))

    def guarded(real):
        def call(path, *words, **settings):
            refuse(path)
            return real(path, *words, **settings)

        return call

    for name, real in (("scandir", listing), ("listdir", looking), ("open", opening)):
        monkeypatch.setattr(os, name, guarded(real))
    return names


@pytest.mark.parametrize("name", ["upstream-v1.36.3", "fake", "_runs"])
def test_what_cannot_be_read_does_not_pass_for_what_is_not_there(bench, forbidden, name):
    assert bench.run(versions="v1.36.3,v1.37.2").code == 0
    forbidden.add(name)
    for verb in ("verify", "summary", "judge") if name != "_runs" else ("verify",):
        ended = bench.lab(verb, "--results", str(bench.results))
        assert ended.code == 4, verb
        assert f"{name} cannot be read: Permission denied" in ended.error


def test_folders_of_nodes_that_cannot_be_read_are_not_no_nodes(tmp_path, forbidden):
    assert folders.read(tmp_path) == []
    (tmp_path / "nodes").mkdir()
    forbidden.add("nodes")
    for look in (lambda: folders.read(tmp_path), lambda: folders.expired(tmp_path, folders.LOCAL)):
        with pytest.raises(NodeError, match=r"cannot be listed: .*Permission denied"):
            look()


def test_folders_by_name_without_files_and_links_to_nothing(tmp_path):
    for name in ("b", "a", "_runs", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/nonexistent")
    assert [path.name for path in folders_in(tmp_path)] == ["a", "b"]
    assert [path.name for path in folders_in(tmp_path, but=".")] == ["_runs", "a", "b"]
    assert folders_in(tmp_path / "file") == folders_in(tmp_path / "nothing") == []


def test_a_link_to_nothing_in_place_of_an_attempt_is_named_as_it_is(bench):
    bench.run()
    link = bench.results / "upstream-v1.36.3" / "fake" / "0009"
    link.symlink_to("/nonexistent")
    with pytest.raises(ResultsError, match=f"^{link} cannot be read: .*; restore it"):
        bench.store.attempts()


def test_strange_things_beside_results_change_nothing(bench):
    bench.run()
    before = bench.lab("verify", "--results", str(bench.results)).err
    for name in ("foreign/deep/deeper", "lost+found", "upstream-v1.36.3/notes/x", "upstream-v1.36.3/fake/notes", ".x"):
        (bench.results / name).mkdir(parents=True)
    for name in ("stray.txt", "upstream-v1.36.3/file", "upstream-v1.36.3/fake/README"):
        (bench.results / name).write_text("x")
    for name in ("link", "upstream-v1.36.3/link", "upstream-v1.36.3/fake/link", "_smoke"):
        (bench.results / name).symlink_to("/nonexistent")
    assert bench.lab("verify", "--results", str(bench.results)).err == before
    assert bench.lab("summary", "--check", "--results", str(bench.results)).code == 0


@pytest.mark.parametrize("verb", ["verify", "summary", "judge"])
def test_a_file_is_no_results_folder(bench, verb):
    bench.results.write_text("x")
    ended = bench.lab(verb, "--results", str(bench.results))
    assert ended.code == 2
    assert "that is a file" in ended.error


# --- standard output


def started(bench, *words, **settings):
    """The program in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "lab", *words]
    return subprocess.Popen(argv, cwd=bench.project, env=environment, stderr=subprocess.PIPE, text=True, **settings)


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["table", "json"])
def test_a_reader_that_leaves_changes_no_exit_code(bench, words):
    process = started(bench, "plan", "--provider", "qemu", *LONG.split(), *words, stdout=subprocess.PIPE)
    process.stdout.read(1)
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), errors) == (0, "")


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["table", "json"])
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_full_disk_is_one_error_that_names_it(bench, monkeypatch, words, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with open("/dev/full", "w") as full:
        process = started(bench, "plan", "--provider", "qemu", "--versions", "v1.36.3", *words, stdout=full)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 5
    assert errors.startswith("error: standard output cannot be written: No space left on device; send it elsewhere")
    assert errors.count("\n") == 2, "the error and where it is explained"


class Full:
    """A standard output that takes nothing."""

    def __init__(self, fileno):
        self._fileno = fileno

    def write(self, text):
        raise OSError(28, "No space left on device")

    def flush(self):
        pass

    def isatty(self):
        return False

    def fileno(self):
        return self._fileno


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["table", "json"])
def test_a_run_whose_output_cannot_be_written_still_writes_its_summary(bench, monkeypatch, words):
    with open(os.devnull, "w") as nowhere:
        monkeypatch.setattr(sys, "stdout", Full(os.dup(nowhere.fileno())))
        ended = bench.run(*words)
    assert ended.code == 5
    assert "standard output cannot be written" in ended.error
    assert (bench.results / "summary.md").exists()


def test_what_was_left_behind_outweighs_an_output_that_cannot_be_written(bench, monkeypatch):
    bench.provider.leave_behind()
    with open(os.devnull, "w") as nowhere:
        monkeypatch.setattr(sys, "stdout", Full(os.dup(nowhere.fileno())))
        code = bench.lab("run", "--versions", "v1.36.3", "--results", str(bench.results), leaves=1).code
    assert code == 6
