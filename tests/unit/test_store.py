"""The results folder in ordinary use and in company: layout, names, numbers, re-judging, the files of a run."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab import store as store_module
from lab.model import Cell, ResultsError, UsageError
from lab.store import Store, json_text, write_whole
from tests.store_bench import CELL, ENVIRONMENT, RAW, STAMP, begin, fill_disk, seal, sealed


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
        is_last = False
        while not is_last:
            is_last = stop.is_set()
            (found,) = store.attempts()
            assert found.verdict == found.observation
            assert found.raw() == {"a.txt": "said"}

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for n in range(20):
                store.rejudge(attempt, {"n": n}, {"n": n})
        finally:
            stop.set()
        for reader in readers:
            reader.result(timeout=60)


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
