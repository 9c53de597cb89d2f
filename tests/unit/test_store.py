"""The results folder under crashes, full disks, damage and company."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab import store as store_module
from lab.model import Cell, Environment, Gate, ResultsError, Stamp, UsageError, sha256_text
from lab.store import Store, json_text, write_whole

CELL = Cell(distro="upstream", version="v1.36.3", gates=(Gate(name="A", enabled=False, component="kubelet"),))
ENVIRONMENT = Environment(must_agree={"provider": "qemu"}, shown={"kernel": "6.12"})
STAMP = Stamp(inputs={"stage": "kernel", "param/window_s": 20, "script/hog.sh": "ab" * 32})
RAW = {"pods.json": '{"items": []}\n', "kubelet.log": "línea\r\nno newline at the end"}


class Crash(BaseException):
    """Stands for the death of the process: no handler of the code under test may count on catching it."""


def begin(store, **changes):
    facts = {
        "cell": CELL,
        "stage": "kernel",
        "stamp": STAMP,
        "environment": ENVIRONMENT,
        "run_id": "run-1",
        "started": "2026-11-30T06:00:00Z",
        "smoke": False,
        "uncountable": (),
        "extra": {"seed": 7},
    }
    return store.begin(**(facts | changes))


def seal(writer, observation=None, verdict=None):
    return writer.seal(
        observation=observation or {"weight": 59},
        verdict=verdict or {"verdicts": []},
        finished="2026-11-30T06:05:00Z",
    )


def sealed(store, **changes):
    writer = begin(store, **changes)
    for name, text in RAW.items():
        writer.save(name, text)
    return seal(writer)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


# --- the ordinary way


def test_layout_and_content(store):
    attempt = sealed(store)
    folder = store.root / CELL.name / "kernel" / "0001"
    assert attempt.path == folder
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()) == [
        "SHA256SUMS",
        "observation.json",
        "raw/kubelet.log",
        "raw/pods.json",
        "stamp.json",
        "verdict.json",
    ]
    assert [path.name for path in folder.parent.iterdir()] == ["0001"]
    assert (folder / "observation.json").read_bytes() == b'{\n  "weight": 59\n}\n'
    assert (folder / "raw" / "kubelet.log").read_bytes() == RAW["kubelet.log"].encode()
    stamp = json.loads((folder / "stamp.json").read_text())
    assert stamp == {
        "format": 1,
        "stage": "kernel",
        "attempt": 1,
        "run": "run-1",
        "cell": CELL.as_json(),
        "inputs": dict(STAMP.inputs),
        "stamp": STAMP.digest,
        "environment": ENVIRONMENT.as_json(),
        "started": "2026-11-30T06:00:00Z",
        "finished": "2026-11-30T06:05:00Z",
        "smoke": False,
        "countable": True,
        "uncountable_reasons": [],
        "extra": {"seed": 7},
    }


def test_sums_satisfy_sha256sum(store):
    folder = sealed(store).path
    command = ["sha256sum", "--strict", "-c", "SHA256SUMS"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 5


def test_what_was_sealed_is_what_is_read(store):
    attempt = sealed(store, uncountable=("claims are dirty",))
    (read,) = store.attempts()
    assert read == attempt
    assert read.raw() == RAW
    assert (read.cell, read.stamp, read.environment) == (CELL, STAMP, ENVIRONMENT)
    assert (read.countable, read.uncountable_reasons) == (False, ("claims are dirty",))
    assert (read.observation, read.verdict, read.extra) == ({"weight": 59}, {"verdicts": []}, {"seed": 7})
    assert store.verify() == []


def test_an_attempt_without_raw_texts_or_observation(store):
    writer = begin(store)
    assert writer.raw() == {}
    attempt = writer.seal(observation=None, verdict={}, finished="f")
    assert (attempt.observation, attempt.raw()) == (None, {})
    assert (attempt.path / "observation.json").read_text() == "null\n"


def test_an_empty_raw_folder_may_vanish_as_in_a_checkout(store):
    attempt = begin(store).seal(observation=None, verdict={}, finished="f")
    assert not (attempt.path / "raw").exists()
    (attempt.path / "raw").mkdir()
    assert store.verify() == []


def test_bytes_that_are_not_utf8_survive(store):
    text = b"ok \xff\xfe end".decode("utf-8", errors="surrogateescape")
    writer = begin(store)
    writer.save("odd.txt", text)
    attempt = seal(writer, observation={"quoted": text})
    assert (attempt.path / "raw" / "odd.txt").read_bytes() == b"ok \xff\xfe end"
    assert attempt.raw() == {"odd.txt": text}
    assert attempt.observation == {"quoted": text}


def test_smoke_results_live_apart_and_never_count(store):
    quick = sealed(store, smoke=True)
    assert quick.path == store.root / "_smoke" / CELL.name / "kernel" / "0001"
    assert not quick.countable
    assert store.attempts() == []
    assert store.attempts(smoke=True) == [quick]


def test_filters_and_order(store):
    other = Cell(distro="k3s", version="v1.36.5")
    made = [sealed(store), sealed(store, stage="cpu"), sealed(store), sealed(store, cell=other)]
    store.open_run("run-1").event("done")
    write_whole(store.root / "summary.md", "text\n")
    assert store.attempts() == [made[3], made[1], made[0], made[2]]
    assert store.attempts(cell=CELL, stage="kernel") == [made[0], made[2]]
    assert [attempt.number for attempt in store.attempts(stage="kernel", cell=other)] == [1]


def test_more_than_9999_attempts(store):
    first = sealed(store)
    first.path.rename(first.path.with_name("9999"))
    writer = begin(store)
    assert writer.path.name == ".10000.partial"
    assert seal(writer).path.name == "10000"


@pytest.mark.parametrize("name", ["../x", "a/b", "/x", "", ".", "..", ".hidden", "a b", "a\nb", "a\\b", "x" * 300, "é"])
def test_raw_names_that_are_refused(store, name):
    writer = begin(store)
    with pytest.raises(UsageError, match="raw text"):
        writer.save(name, "x")
    assert writer.raw() == {}


def test_nothing_is_overwritten(store):
    writer = begin(store)
    writer.save("a.txt", "first")
    with pytest.raises(ResultsError, match="never overwritten"):
        writer.save("a.txt", "second")
    assert writer.raw() == {"a.txt": "first"}
    seal(writer)
    for action in (lambda: writer.save("b.txt", "x"), lambda: seal(writer)):
        with pytest.raises(ResultsError, match="begin a new attempt"):
            action()
    assert store.partials() == []
    assert store.verify() == []


@pytest.mark.parametrize("bad", [{"stage": "../up"}, {"stage": ""}, {"cell": Cell(distro="a/b", version="v1.36.3")}])
def test_names_of_folders_are_checked(store, bad):
    with pytest.raises(UsageError, match="cannot be a name on disk"):
        begin(store, **bad)
    assert not store.root.exists()


def test_values_that_json_lacks_are_refused(store):
    writer = begin(store)
    with pytest.raises(ResultsError, match="cannot be stored as JSON"):
        writer.seal(observation={"x": float("nan")}, verdict={}, finished="f")
    assert store.attempts() == []
    with pytest.raises(ResultsError, match="cannot be stored as JSON"):
        json_text({"x": {1}})


def test_json_form():
    assert json_text({"b": [1], "a": "ä"}) == '{\n  "a": "ä",\n  "b": [\n    1\n  ]\n}\n'


# --- numbers and company


def test_a_killed_run_keeps_its_texts_and_its_number(store):
    writer = begin(store)
    writer.save("a.txt", "said")
    partial = store.root / CELL.name / "kernel" / ".0001.partial"
    assert store.partials() == [partial]
    assert (partial / "raw" / "a.txt").read_text() == "said"
    assert json.loads((partial / "stamp.json").read_text())["stamp"] == STAMP.digest
    assert store.attempts() == []
    assert sealed(store).number == 2
    begin(store, smoke=True)
    assert len(store.partials()) == 2


def test_many_writers_at_once_get_different_numbers(store):
    count, barrier = 16, threading.Barrier(16)

    def work(index):
        barrier.wait(timeout=30)
        writer = begin(store, extra={"index": index})
        writer.save("who.txt", str(index))
        return seal(writer)

    with ThreadPoolExecutor(count) as pool:
        made = list(pool.map(work, range(count)))
    assert len({attempt.number for attempt in made}) == count
    assert sorted(attempt.raw()["who.txt"] for attempt in store.attempts()) == sorted(map(str, range(count)))


def test_a_number_that_another_process_sealed_meanwhile_is_not_taken(store, monkeypatch):
    looked = []

    def listdir(path, real=os.listdir):
        names = real(path)
        if not looked:
            looked.append(path)
            sealed(store)
        return names

    monkeypatch.setattr(os, "listdir", listdir)
    writer = begin(store)
    assert writer.number == 2
    assert [path.name for path in store.partials()] == [".0002.partial"]


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


# --- re-judging


def test_rejudge_replaces_the_derived_files_alone(store):
    attempt = sealed(store)
    before = {path: path.read_bytes() for path in attempt.path.rglob("*") if path.is_file()}
    again = store.rejudge(attempt, {"weight": 60}, {"verdicts": [1]})
    assert again == dataclasses.replace(attempt, observation={"weight": 60}, verdict={"verdicts": [1]})
    changed = {path.name for path, content in before.items() if path.read_bytes() != content}
    assert changed == {"observation.json", "verdict.json", "SHA256SUMS"}
    assert [path.name for path in attempt.path.parent.iterdir()] == ["0001"]
    assert store.rejudge(again, None, {}).observation is None


def test_rejudge_never_sums_damage_anew(store):
    attempt = sealed(store)
    (attempt.path / "raw" / "pods.json").write_text("forged")
    with pytest.raises(ResultsError, match=r"raw/pods\.json"):
        store.rejudge(attempt, {"weight": 60}, {})
    assert "forged" in (attempt.path / "raw" / "pods.json").read_text()
    assert len(store.verify()) == 1


def test_rejudge_without_hard_links(store, monkeypatch):
    attempt = sealed(store)

    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    again = store.rejudge(attempt, {"weight": 60}, {})
    assert again.raw() == RAW
    assert store.verify() == []


def test_readers_beside_a_rejudgement_see_whole_attempts(store):
    writer = begin(store)
    writer.save("a.txt", "said")
    attempt = seal(writer, observation={"n": -1}, verdict={"n": -1})
    stop = threading.Event()

    def read():
        count = 0
        while not stop.is_set():
            (found,) = store.attempts()
            assert found.verdict == found.observation
            assert found.raw() == {"a.txt": "said"}
            count += 1
        return count

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for n in range(20):
                store.rejudge(attempt, {"n": n}, {"n": n})
        finally:
            stop.set()
        assert all(reader.result(timeout=30) > 0 for reader in readers)


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


def fill_disk(monkeypatch, at):
    calls = {"n": 0}
    real = os.fsync

    def fsync(descriptor):
        calls["n"] += 1
        if calls["n"] >= at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


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


# --- files of a run


def test_journal_and_run_record(tmp_path):
    times = iter(["2026-11-30T06:00:00Z", "2026-11-30T06:00:01Z", "2026-11-30T06:00:02Z"])
    store = Store(tmp_path / "results", clock=lambda: next(times))
    journal = store.open_run("run-1")
    journal.event("node-wanted", name="lab-1", expires=None)
    journal.event("node-made", name="lab-1")
    store.open_run("run-1").event("continued")
    lines = (tmp_path / "results" / "_runs" / "run-1" / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"time": "2026-11-30T06:00:00Z", "kind": "node-wanted", "name": "lab-1", "expires": None},
        {"time": "2026-11-30T06:00:01Z", "kind": "node-made", "name": "lab-1"},
        {"time": "2026-11-30T06:00:02Z", "kind": "continued"},
    ]
    journal.finish({"argv": ["lab"]})
    assert (tmp_path / "results" / "_runs" / "run-1" / "run.json").read_text() == json_text({"argv": ["lab"]})


def test_a_torn_journal_line_stays_alone(store):
    journal = store.open_run("r")
    path = store.root / "_runs" / "r" / "journal.jsonl"
    path.write_text('{"kind": "torn')
    journal.event("next")
    torn, following = path.read_text().splitlines()
    assert torn == '{"kind": "torn'
    assert json.loads(following)["kind"] == "next"


def test_each_event_is_on_disk_before_the_call_returns(store, monkeypatch):
    journal = store.open_run("r")
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    journal.event("one")
    assert synced == [(store.root / "_runs" / "r" / "journal.jsonl").stat().st_size]


def test_threads_share_a_journal(store):
    journal = store.open_run("r")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: journal.event("e", n=n), range(40)))
    lines = (store.root / "_runs" / "r" / "journal.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["n"] for line in lines) == list(range(40))


def test_journal_failures(store, monkeypatch):
    with pytest.raises(UsageError, match="run"):
        store.open_run("../r")
    journal = store.open_run("r")
    with pytest.raises(TypeError):
        journal.event("e", time="mine")
    fill_disk(monkeypatch, 1)
    with pytest.raises(ResultsError, match=r"journal\.jsonl"):
        journal.event("e")


def test_format_number_is_what_this_lab_writes():
    assert store_module.FORMAT == 1
