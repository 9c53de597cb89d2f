"""The record of a run that has ended is sealed with checksums, which `lab verify` holds it against."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from lab import run_records, store
from lab.journal import RunJournal
from lab.model import ResultsError
from lab.run_records import Seal, run_folders, seal_of
from lab.store import Store
from tests.projects import ROOT, fake_stage

pytestmark = pytest.mark.usefixtures("signals")


@pytest.fixture
def ended(bench):
    """The folder of a run that has ended."""
    assert bench.run().code == 0
    (folder,) = run_folders(bench.results)
    return folder


def test_runs_that_begin_in_the_same_second_never_share_a_folder(bench, monkeypatch):
    drawn, real = iter(["aaaa", "aaaa", "bbbb"]), secrets.token_hex
    draw = SimpleNamespace(token_hex=lambda size: next(drawn) if size == 2 else real(size))
    moment = datetime(2026, 12, 1, 2, 0, 0, tzinfo=UTC)
    monkeypatch.setattr(store, "datetime", SimpleNamespace(now=lambda zone: moment))
    monkeypatch.setattr(store, "secrets", draw)
    assert (bench.run().code, bench.run().code) == (0, 0)
    assert [path.name for path in run_folders(bench.results)] == ["20261201T020000Z-aaaa", "20261201T020000Z-bbbb"]


def verified(bench):
    return bench.lab("verify", "--results", str(bench.results))


def test_a_run_that_has_ended_is_sealed(bench, ended):
    assert sorted(path.name for path in ended.iterdir()) == ["SHA256SUMS", "journal.jsonl", "run.json"]
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=ended, check=True)
    found = verified(bench)
    assert found.code == 0
    assert "runs: 1 whole and unchanged; 0 not sealed; 0 unfinished" in found.err


@pytest.mark.parametrize("change", ["run.json", "journal.jsonl", "SHA256SUMS", "more"])
def test_a_changed_file_is_damage(bench, ended, change):
    path = ended / change
    path.write_text((path.read_text() if path.exists() else "") + " ")
    found = verified(bench)
    assert found.code == 4
    assert str(path) in found.err
    assert found.error == f"1 problem(s) in {bench.results}"


@pytest.mark.parametrize("name", ["run.json", "journal.jsonl"])
def test_a_missing_file_is_damage(bench, ended, name):
    (ended / name).unlink()
    found = verified(bench)
    assert found.code == 4
    assert f"{ended / name}: sha256 is unknown, the file is missing" in found.err


def test_a_run_that_stopped_before_its_seal_is_unfinished_and_gets_it_by_going_on(bench, ended):
    (ended / "SHA256SUMS").unlink()
    found = verified(bench)
    assert found.code == 0
    assert "0 whole and unchanged; 0 not sealed; 1 unfinished" in found.err
    assert f"unfinished: {ended}" in found.err
    assert bench.lab("run", "--resume", ended.name, "--results", str(bench.results)).code == 0
    assert seal_of(ended) is Seal.SEALED
    assert len(bench.store.attempts()) == 1, "nothing is measured for it"


def test_a_run_is_unfinished_while_it_goes_on_and_sealed_anew_afterwards(bench):
    seen = []

    def stop(context):
        seen.append(seal_of(*run_folders(bench.results)))
        raise KeyboardInterrupt

    bench.use_stages(fake_stage(collect=stop))
    assert bench.run().code == 130
    (folder,) = run_folders(bench.results)
    first = (folder / "SHA256SUMS").read_text()
    assert seal_of(folder) is Seal.SEALED
    assert bench.lab("run", "--resume", folder.name, "--results", str(bench.results)).code == 130
    assert seen == [Seal.UNFINISHED, Seal.UNFINISHED]
    assert seal_of(folder) is Seal.SEALED
    assert (folder / "SHA256SUMS").read_text() != first


def test_the_seal_is_gone_for_good_before_the_journal_grows(bench, ended, monkeypatch):
    journal = RunJournal(ended, lambda: "now")
    length = (ended / "journal.jsonl").stat().st_size

    def fsync(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(ResultsError):
            journal.event("resume")
    assert not (ended / "SHA256SUMS").exists()
    assert (ended / "journal.jsonl").stat().st_size == length
    assert seal_of(ended) is Seal.UNFINISHED


def test_a_run_that_is_taken_up_while_it_is_read_is_not_damaged(bench, ended, monkeypatch):
    check = run_records.check

    def meanwhile(folder):
        RunJournal(folder, lambda: "now").event("resume")
        (folder / "SHA256SUMS").write_text("0" * 64 + "  run.json\n")
        check(folder)

    monkeypatch.setattr(run_records, "check", meanwhile)
    assert seal_of(ended) is Seal.UNFINISHED


def test_runs_of_a_lab_that_sealed_none_are_unharmed(bench):
    shutil.copytree(ROOT / "results" / "_runs", bench.results / "_runs")
    for folder in (bench.results / "_runs").iterdir():
        (folder / "SHA256SUMS").unlink(missing_ok=True)
    count = len(run_folders(bench.results))
    found = verified(bench)
    assert found.code == 0
    assert f"runs: 0 whole and unchanged; {count} not sealed; 0 unfinished" in found.err
    (run_folders(bench.results)[0] / "run.json").write_text("{")
    assert verified(bench).code == 4, "that much can be seen without sums"


def test_what_is_no_run_is_passed_over(bench, ended):
    (ended.parent / "a-folder").mkdir()
    (ended.parent / "a-file").write_text("x")
    (ended.parent / "nowhere").symlink_to("/nonexistent")
    assert run_folders(bench.results) == [ended]
    assert verified(bench).code == 0


def test_the_events_say_that_sums_come(bench, ended):
    first = json.loads((ended / "journal.jsonl").read_text().splitlines()[0])
    assert (first["kind"], first["sums"]) == ("run", True)
    assert Store(bench.results).verify() == []
