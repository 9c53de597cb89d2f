"""The results folder under crashes, damage and full disks."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil

import pytest

from lab.model import ResultsError, sha256_text
from lab.store import Store, json_text, write_whole
from tests.store_bench import RAW, begin, fill_disk, seal, sealed


class Crash(BaseException):
    """Stands for the death of the process: no handler of the code under test may count on catching it."""


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


# --- crashes


PATCHED = ("replace", "rename", "fsync", "mkdir", "link", "rmdir", "unlink")


def crash_at(monkeypatch, step, *, after=False):
    """Patches every call that changes a disk so that the step-th dies, before or after its effect; then all do."""
    calls = {"n": 0}

    def dying(real):
        def call(*arguments, **options):
            calls["n"] += 1
            if calls["n"] < step:
                return real(*arguments, **options)
            if calls["n"] == step and after:
                real(*arguments, **options)
            raise Crash

        return call

    for name in PATCHED:
        monkeypatch.setattr(os, name, dying(getattr(os, name)))


def steps_until_done(monkeypatch, tmp_path, prepare, action, check):
    """Runs the action on a fresh store with a crash at step 1, 2, … until it ends without one."""
    for after in (False, True):
        for step in range(1, 500):
            store = Store(tmp_path / f"{after}-{step}")
            prepared = prepare(store)
            with monkeypatch.context() as patch:
                crash_at(patch, step, after=after)
                crashed = True
                with contextlib.suppress(Crash):
                    action(store, prepared)
                    crashed = False
            check(store, crashed)
            shutil.rmtree(store.root)
            if not crashed:
                break
        assert step > 15
        assert step < 499


def kept_texts(partial):
    return {path.name: path.read_bytes().decode() for path in partial.glob("raw/[!.]*")}


def test_a_crash_at_any_step_of_writing_leaves_a_whole_attempt_or_none(monkeypatch, tmp_path):
    done = []

    def action(store, _):
        done.clear()
        writer = begin(store)
        for name, text in RAW.items():
            writer.save(name, text)
            done.append(name)
        seal(writer)

    def check(store, crashed):
        found = store.attempts()
        assert store.verify() == []
        texts = [attempt.raw() for attempt in found]
        texts += [kept_texts(partial) for partial in store.partials()]
        assert len(texts) <= 1
        for name in done:
            assert texts[0][name] == RAW[name]
        assert all(text == RAW[name] for kept in texts for name, text in kept.items())
        if found:
            assert found[0].raw() == RAW
        else:
            assert crashed
        taken = len(texts)
        assert sealed(store).number in (taken + 1, taken + 2)

    steps_until_done(monkeypatch, tmp_path, lambda store: done.clear(), action, check)


def test_a_crash_at_any_step_of_a_rejudgement_leaves_the_old_or_the_new(monkeypatch, tmp_path):
    old = ({"weight": 59}, {"verdicts": []})
    new = ({"weight": 60}, {"verdicts": [1]})
    seen = set()

    def check(store, crashed):
        (found,) = store.attempts()
        assert store.verify() == []
        assert found.raw() == RAW
        assert (found.observation, found.verdict) in (old, new)
        seen.add((crashed, found.observation["weight"], found.path.name))
        # Whatever was left behind, numbers go on and the next re-judgement works and tidies.
        assert begin(store).number == 2
        again = store.rejudge(found, {"weight": 61}, {})
        assert (again.observation, again.path.name) == ({"weight": 61}, "0001")
        assert store.attempts() == [again]
        assert sorted(path.name for path in again.path.parent.iterdir()) == [".0002.partial", "0001"]

    steps_until_done(monkeypatch, tmp_path, sealed, lambda store, attempt: store.rejudge(attempt, *new), check)
    assert seen == {(True, 59, "0001"), (True, 59, ".0001.old"), (True, 60, "0001"), (False, 60, "0001")}


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_while_replacing_a_file_leaves_the_old_or_the_new_text(monkeypatch, tmp_path, after):
    path = tmp_path / "summary.md"
    for step in range(1, 20):
        path.write_text("old")
        with monkeypatch.context() as patch:
            crash_at(patch, step, after=after)
            with contextlib.suppress(Crash):
                write_whole(path, "new")
        assert path.read_text() in ("old", "new")
    assert path.read_text() == "new"


# --- damage


FILES = ["raw/pods.json", "raw/kubelet.log", "observation.json", "verdict.json", "stamp.json", "SHA256SUMS"]


@pytest.mark.parametrize("file", FILES)
def test_one_changed_byte_anywhere_is_found(store, file):
    attempt = sealed(store)
    path = attempt.path / file
    content = path.read_bytes()
    for position in range(0, len(content), max(1, len(content) // 40)):
        damaged = bytearray(content)
        damaged[position] ^= 1
        path.write_bytes(bytes(damaged))
        with pytest.raises(ResultsError, match=re.escape(str(attempt.path))):
            store.attempts()
        assert store.verify()
    path.write_bytes(content)
    assert store.attempts() == [attempt]


def test_a_changed_file_is_named_with_both_hashes(store):
    attempt = sealed(store)
    (attempt.path / "verdict.json").write_text("{}\n")
    with pytest.raises(ResultsError) as caught:
        store.attempts()
    was = sha256_text(json_text({"verdicts": []}))
    assert str(caught.value) == (
        f"{attempt.path}/verdict.json: sha256 is {sha256_text(chr(123) + chr(125) + chr(10))}, SHA256SUMS says {was}"
    )


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_found(store, file):
    attempt = sealed(store)
    (attempt.path / file).unlink()
    with pytest.raises(ResultsError, match=file):
        store.attempts()


def test_unlisted_files_folders_and_links_are_found(store, tmp_path):
    attempt = sealed(store)
    (tmp_path / "same").write_text(RAW["pods.json"])

    def link():
        (attempt.path / "raw" / "pods.json").unlink()
        (attempt.path / "raw" / "pods.json").symlink_to(tmp_path / "same")

    for action, name in (
        (lambda: (attempt.path / "raw" / "more.txt").write_text(""), "raw/more.txt"),
        (lambda: (attempt.path / ".hidden").write_text(""), ".hidden"),
        (lambda: (attempt.path / "folder").mkdir(), "folder"),
        (link, "raw/pods.json"),
    ):
        action()
        with pytest.raises(ResultsError, match=name.replace(".", r"\.")):
            store.attempts()
    assert len(store.verify()) == 4


def test_a_file_in_place_of_the_raw_folder_is_found(store):
    attempt = begin(store).seal(observation=None, verdict={}, finished="f")
    (attempt.path / "raw").write_text("x")
    with pytest.raises(ResultsError, match="/raw: sha256 is"):
        store.attempts()


def rewrite_stamp(attempt, changes):
    """Edits stamp.json and its sum, as somebody would who wants it to pass."""
    path, sums = attempt.path / "stamp.json", attempt.path / "SHA256SUMS"
    was = sha256_text(path.read_text())
    path.write_text(json_text(json.loads(path.read_text()) | changes))
    sums.write_text(sums.read_text().replace(was, sha256_text(path.read_text())))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"format": 2}, "has the format 2"),
        ({"inputs": {"stage": "kernel"}}, "its inputs give the stamp"),
        ({"inputs": 5}, "cannot be read"),
        ({"stamp": "0" * 64}, "its inputs give the stamp"),
        ({"attempt": 2}, "it was moved"),
        ({"stage": "cpu"}, "it was moved"),
        ({"smoke": True}, "it was moved"),
        ({"cell": {"distro": "k3s", "version": "v1.36.5", "gates": []}}, "it was moved"),
        ({"cell": {"distro": "k3s"}}, "cannot be read"),
        ({"cell": {"distro": "k3s", "version": "v1.36.5", "gates": ["x"]}}, "cannot be read"),
        ({"environment": "x"}, "cannot be read"),
    ],
)
def test_a_stamp_that_does_not_fit_is_refused(store, changes, part):
    rewrite_stamp(sealed(store), changes)
    with pytest.raises(ResultsError, match=part):
        store.attempts()


def test_an_unknown_format_is_named_before_its_sums(store):
    attempt = sealed(store)
    rewrite_stamp(attempt, {"format": 2})
    (attempt.path / "SHA256SUMS").write_text("another form\n")
    with pytest.raises(ResultsError, match="use the lab that wrote it"):
        store.attempts()


def test_a_moved_attempt_is_refused(store):
    attempt = sealed(store)
    shutil.copytree(attempt.path, attempt.path.with_name("0002"))
    with pytest.raises(ResultsError, match="it was moved"):
        store.attempts()


def test_raw_texts_of_an_attempt_that_is_gone_are_not_empty(store):
    attempt = sealed(store)
    shutil.rmtree(attempt.path)
    with pytest.raises(ResultsError, match="is gone"):
        attempt.raw()


def test_verify_collects_every_problem(store):
    damaged = [sealed(store), sealed(store, stage="cpu"), sealed(store, smoke=True)]
    sealed(store)
    for attempt in damaged:
        (attempt.path / "verdict.json").write_text("x")
    (damaged[0].path / "observation.json").unlink()
    problems = store.verify()
    assert len(problems) == 4
    assert all("SHA256SUMS says" in problem for problem in problems)


# --- a disk that is full


def test_a_full_disk_while_saving_says_what_is_kept(store, monkeypatch):
    writer = begin(store)
    writer.save("a.txt", "12345")
    with monkeypatch.context() as patch:
        fill_disk(patch, 1)
        with pytest.raises(ResultsError) as caught:
            writer.save("b.txt", "more")
    message = str(caught.value)
    assert f"cannot write {writer.path}/raw/b.txt: [Errno {errno.ENOSPC}]" in message
    assert f"1 raw texts (5 bytes) are kept in {writer.path}; free space" in message
    assert writer.raw() == {"a.txt": "12345"}
    writer.save("b.txt", "more")
    assert seal(writer).raw() == {"a.txt": "12345", "b.txt": "more"}
    assert store.verify() == []


def test_a_full_disk_while_sealing_names_the_file_and_can_be_retried(store, monkeypatch):
    named = set()
    for at in range(1, 9):
        writer = begin(store)
        writer.save("a.txt", "said")
        with monkeypatch.context() as patch:
            fill_disk(patch, at)
            with pytest.raises(ResultsError, match=r"1 raw texts \(4 bytes\) are kept in") as caught:
                seal(writer)
        named.add(str(caught.value).split(": ")[0].rpartition("/")[2])
        assert kept_texts(writer.path) == {"a.txt": "said"}
        seal(writer)
    assert named == {"observation.json", "verdict.json", "stamp.json", "SHA256SUMS"}
    assert len(store.attempts()) == 8


def test_a_full_disk_while_rejudging_keeps_the_old(store, monkeypatch):
    attempt = sealed(store)
    with monkeypatch.context() as patch:
        fill_disk(patch, 1)
        with pytest.raises(ResultsError, match="free space"):
            store.rejudge(attempt, {"weight": 60}, {})
    assert store.attempts() == [attempt]


def test_other_failures_of_the_disk(store, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="mend the cause"):
        write_whole(tmp_path / "file" / "summary.md", "x")
    with pytest.raises(ResultsError, match="cannot write"):
        begin(Store(tmp_path / "file"))
    with pytest.raises(ResultsError, match="cannot write"):
        begin(store).save("a.txt", "lone \ud800 surrogate")
