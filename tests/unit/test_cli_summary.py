"""`lab summary`, `lab judge` and `lab verify` on stored results: good ones, damaged ones, mixed ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

from lab import experiment, judging
from lab.cli import summary
from lab.model import Cell, Environment
from lab.stages import qos_class
from tests.captures_helper import load
from tests.fakes import MUST_AGREE
from tests.projects import FOR_FAKE_STAGE, ROOT, commit_claims, fake_stage, make_bench, say, tree

LATER_UNIX = 1_900_000_000
"""After every attempt that these tests make by the tests' own clock."""

FILES = ("raw/number.txt", "observation.json", "verdict.json", "stamp.json", "SHA256SUMS")


@pytest.fixture
def bench(tmp_path, monkeypatch, capfd):
    """A bench whose attempts start at a known time, and with the results of two versions."""
    made = make_bench(tmp_path, monkeypatch, capfd)
    run(made, "v1.36.3,v1.37.2")
    return made


def run(bench, versions="v1.36.3", *words, code=0):
    assert bench.run(*words, versions=versions).code == code


def on(bench, verb, *words):
    return bench.lab(verb, "--results", str(bench.results), *words)


def flip(path):
    """Change one byte to another that fits the format."""
    content = bytearray(path.read_bytes())
    place = max(index for index, byte in enumerate(content) if chr(byte).isalnum())
    content[place] = ord("3") if content[place] != ord("3") else ord("4")
    path.write_bytes(content)


# --- summary


def test_summary_writes_a_file_and_prints_no_data(bench):
    (bench.results / "summary.md").unlink()
    ended = on(bench, "summary")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == f"wrote {bench.results / 'summary.md'}\n"
    text = (bench.results / "summary.md").read_text()
    for part in ("v1.36.3", "v1.37.2", "number-one", "The number is one", "HELD", "Stage fake"):
        assert part in text
    assert str(bench.root) not in text, "the same text on every machine"


@pytest.mark.parametrize(("text", "code"), [("1", 0), ("7", 0), ("2", 1), ("nothing", 3)])
def test_exit_code_of_summary(bench, text, code):
    bench.use_stages(fake_stage(collect=say(text)))
    bench.run()
    assert on(bench, "summary").code == code


def test_check_says_whether_the_summary_is_what_the_results_give(bench):
    path = bench.results / "summary.md"
    before = tree(bench.results)
    ended = on(bench, "summary", "--check")
    assert (ended.code, ended.out) == (0, "")
    assert tree(bench.results) == before, "a check writes nothing"
    good = path.read_bytes()
    for other in (good + b"\n", good.replace(b"HELD", b"MISSED", 1), b"\xff\xfe", b""):
        path.write_bytes(other)
        ended = on(bench, "summary", "--check")
        assert ended.code == 1
        assert f"{path} is out of date; `lab summary` writes it anew" in ended.err
        assert path.read_bytes() == other
    path.unlink()
    assert on(bench, "summary", "--check").code == 1
    assert not path.exists()
    assert on(bench, "summary").code == 0
    assert path.read_bytes() == good


def test_check_of_a_falsified_claim_that_is_up_to_date_is_0(bench):
    bench.use_stages(fake_stage(collect=say("2")))
    assert bench.run().code == 1
    assert on(bench, "summary", "--check").code == 0


def test_notes_go_into_the_summary(bench):
    (bench.results / "notes.md").write_text("Measured on a rainy day.\n")
    assert on(bench, "summary", "--check").code == 1
    on(bench, "summary")
    assert "Measured on a rainy day." in (bench.results / "summary.md").read_text()


def test_notes_that_are_no_text(bench):
    (bench.results / "notes.md").write_bytes(b"caf\xe9")
    ended = on(bench, "summary")
    assert ended.code == 2
    assert f"{bench.results / 'notes.md'} is not UTF-8 text" in ended.error


@pytest.mark.parametrize("verb", ["summary", "verify", "judge"])
def test_a_results_folder_that_is_not_there(bench, verb):
    ended = bench.lab(verb, "--results", "/nowhere")
    assert ended.code == 2
    assert ended.error.startswith("--results /nowhere: no such folder")


@pytest.mark.parametrize(("verb", "code"), [("summary", 3), ("verify", 0), ("judge", 3)])
def test_an_empty_results_folder(bench, verb, code):
    (bench.root / "empty").mkdir()
    assert bench.lab(verb, "--results", str(bench.root / "empty")).code == code


def test_a_full_disk_while_the_summary_is_written(bench, monkeypatch):
    before = (bench.results / "summary.md").read_bytes()
    commit_claims(bench.project, FOR_FAKE_STAGE.replace("The number is one", "Another title"))

    def fsync(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        ended = on(bench, "summary")
    assert ended.code == 4
    assert f"cannot write {bench.results / 'summary.md'}" in ended.error
    assert (bench.results / "summary.md").read_bytes() == before


# --- damage


@pytest.mark.parametrize("file", FILES)
def test_one_changed_byte_is_found_by_everything_that_reads_results(bench, file):
    path = bench.results / "upstream-v1.36.3" / "fake" / "0001" / file
    flip(path)
    before = tree(bench.results)
    for verb, *words in (["summary"], ["summary", "--check"], ["verify"], ["judge"], ["judge", "--dry-run"]):
        ended = on(bench, verb, *words)
        assert ended.code == 4, (verb, words)
        assert ended.out == ""
        # A changed line of the sums accuses the file that it is about, or is no line any more.
        assert str(path if file != "SHA256SUMS" else path.parent) in ended.err, (verb, words)
        assert len(ended.error) > 20
    assert tree(bench.results) == before, "damage is never summed or judged anew"


def test_a_run_beside_damaged_results_says_so_and_keeps_what_it_measured(bench):
    path = bench.results / "upstream-v1.36.3" / "fake" / "0001" / "raw" / "number.txt"
    flip(path)
    ended = bench.run(versions="v1.35.4")
    assert ended.code == 4
    assert str(path) in ended.error
    assert (bench.results / "upstream-v1.35.4" / "fake" / "0001" / "SHA256SUMS").exists()


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_found(bench, file):
    path = bench.results / "upstream-v1.37.2" / "fake" / "0001" / file
    path.unlink()
    for verb in ("summary", "verify", "judge"):
        ended = on(bench, verb)
        assert ended.code == 4
        assert str(path) in ended.err


def test_verify_names_every_problem(bench):
    for version in ("v1.36.3", "v1.37.2"):
        flip(bench.results / f"upstream-{version}" / "fake" / "0001" / "raw" / "number.txt")
    ended = on(bench, "verify")
    assert ended.code == 4
    assert ended.err.count("raw/number.txt: sha256 is ") == 2
    assert ended.error == f"2 problem(s) in {bench.results}"


def test_verify_of_a_good_tree_counts_smoke_and_unfinished_attempts(bench):
    run(bench, "v1.36.3", "--quick")
    ended = on(bench, "verify")
    assert (ended.code, ended.out) == (0, "")
    assert "3 attempts are whole and unchanged; 0 unfinished" in ended.err
    partial = bench.results / "upstream-v1.36.3" / "fake" / ".0002.partial"
    (partial / "raw").mkdir(parents=True)
    ended = on(bench, "verify")
    assert ended.code == 0
    assert "3 attempts are whole and unchanged; 1 unfinished" in ended.err
    assert f"unfinished: {partial}" in ended.err


def test_unfinished_attempts_count_for_nothing_and_are_named(bench):
    partial = bench.results / "upstream-v1.36.3" / "fake" / ".0002.partial"
    (partial / "raw").mkdir(parents=True)
    before = (bench.results / "summary.md").read_bytes()
    ended = on(bench, "summary")
    assert ended.code == 0
    assert f"1 unfinished attempts are left out: {partial}" in ended.err
    assert (bench.results / "summary.md").read_bytes() == before


def test_a_verdict_record_of_another_form_is_refused(bench):
    attempt = bench.store.attempts()[0]
    bench.store.rejudge(attempt, attempt.observation, {"judge_version": 1, "verdicts": [{"claim": "x"}]})
    ended = on(bench, "summary")
    assert ended.code == 4
    assert f"{attempt.path}/verdict.json is not a verdict record" in ended.error
    assert "lab judge" in ended.error


# --- mixes


@pytest.mark.parametrize("kind", ["parameter", "script", "manifest", "stage version"])
def test_results_of_two_stamps_name_the_input_that_differs(bench, kind):
    words = []
    if kind == "parameter":
        words, name = ["--reps", "5"], "param/reps: 3, latest 5"
    elif kind == "script":
        with (bench.project / "node-scripts" / "node_facts.sh").open("a") as file:
            file.write("# one more line\n")
        name = "script/node_facts.sh: "
    elif kind == "manifest":
        with (bench.project / "manifests" / "pod.yaml.j2").open("a") as file:
            file.write("# one more line\n")
        name = "manifest/be: "
    else:
        bench.use_stages(fake_stage(version=2))
        name = "collect_version: 1, latest 2"
    run(bench, "v1.36.3", *words, code=4)
    before = (bench.results / "summary.md").read_bytes()
    for options in ([], ["--check"]):
        ended = on(bench, "summary", *options)
        assert ended.code == 4
        assert ended.error.startswith("stage fake: results of different inputs cannot stand in one table")
        lines = [line for line in ended.error.splitlines() if line.startswith("    ")]
        differing = [line for line in lines if "run the stage again for it: lab run --stages fake" not in line]
        assert len(differing) == 1, "the input that differs and no other"
        assert name in differing[0]
        assert "upstream-v1.37.2 attempt 1" in ended.error
    assert (bench.results / "summary.md").read_bytes() == before
    assert on(bench, "verify").code == 0, "mixed is not damaged"
    run(bench, "v1.37.2", *words)
    assert on(bench, "summary", "--check").code == 0, "all cells measured again: one stamp"


def test_smoke_results_are_never_in_the_summary(bench):
    before = (bench.results / "summary.md").read_text()
    bench.use_stages(fake_stage(collect=say("2"), version=2))
    run(bench, "v1.36.3", "--quick", code=1)
    assert (bench.results / "summary.md").read_text() == before
    bench.use_stages(fake_stage())
    assert on(bench, "summary").code == 0
    assert (bench.results / "summary.md").read_text() == before


# --- judge


def changed_parser():
    """The same stage with a parser that reads one more than there is."""
    return fake_stage(parse=lambda raw: {"number": int(raw["number.txt"]) + 1})


def test_judge_without_a_change(bench):
    before = tree(bench.results)
    ended = on(bench, "judge")
    assert (ended.code, ended.out) == (0, "")
    assert "no verdict changes" in ended.err
    assert tree(bench.results) == before


def test_judge_reports_every_verdict_that_changes(bench):
    bench.use_stages(changed_parser())
    ended = on(bench, "judge", "--dry-run", "--json")
    assert ended.code == 1
    assert ended.json() == {
        "changes": [
            {"attempt": f"upstream-{version}/fake/0001", "claim": "number-one", "was": "HELD", "is": "FALSIFIED"}
            for version in ("v1.36.3", "v1.37.2")
        ]
    }
    table = on(bench, "judge", "--dry-run").out
    assert "Changed verdicts" in table
    assert table.count("FALSIFIED") == 2


def test_judge_dry_run_changes_nothing_and_write_changes_verdicts_alone(bench):
    raw = {attempt.path: attempt.raw() for attempt in bench.store.attempts()}
    before = tree(bench.results)
    bench.use_stages(changed_parser())
    assert on(bench, "judge", "--dry-run").code == 1
    assert tree(bench.results) == before
    assert on(bench, "judge").code == 1
    after = bench.store.attempts()
    assert {attempt.path: attempt.raw() for attempt in after} == raw
    assert [attempt.observation for attempt in after] == [{"number": 2}] * 2
    assert [attempt.stamp for attempt in after] == [after[0].stamp] * 2
    assert on(bench, "summary").code == 1
    assert on(bench, "judge").err.count("no verdict changes") == 1


def test_a_mended_parser_costs_no_node(bench):
    bench.use_stages(fake_stage(collect=say("one")))
    run(bench, "v1.36.3", code=3)
    bench.use_stages(fake_stage(parse=lambda raw: {"number": {"one": 1, "1": 1}[raw["number.txt"]]}))
    nodes = len(bench.provider.specs)
    ended = on(bench, "judge", "--json")
    assert ended.code == 0
    assert ended.json()["changes"] == [
        {"attempt": "upstream-v1.36.3/fake/0002", "claim": "number-one", "was": "UNKNOWN", "is": "HELD"}
    ]
    assert len(bench.provider.specs) == nodes


def test_a_claim_that_was_committed_after_the_attempt_is_unknown(bench):
    commit_claims(bench.project, FOR_FAKE_STAGE.replace("number == 1", "number <= 1"), unix=LATER_UNIX)
    ended = on(bench, "judge", "--json")
    assert ended.code == 3
    assert {change["is"] for change in ended.json()["changes"]} == {"UNKNOWN"}
    for attempt in bench.store.attempts():
        (entry,) = attempt.verdict["verdicts"]
        assert entry["reason"] == "the claim was not committed before this attempt started"


def test_a_claim_that_is_not_committed_is_unknown(bench):
    (bench.project / "CLAIM.md").write_text(FOR_FAKE_STAGE.replace("number == 1", "number <= 1"))
    assert on(bench, "judge", "--dry-run").code == 3


def test_a_new_title_changes_no_verdict(bench):
    text = FOR_FAKE_STAGE.replace("The number is one", "The number is still one")
    commit_claims(bench.project, text, unix=LATER_UNIX)
    assert "no verdict changes" in on(bench, "judge").err


def test_a_claim_that_was_taken_away_is_reported(bench):
    commit_claims(bench.project, FOR_FAKE_STAGE.replace("id: number-one", "id: number-two"), unix=LATER_UNIX)
    changes = on(bench, "judge", "--json", "--dry-run").json()["changes"]
    assert [(change["claim"], change["was"], change["is"]) for change in changes[:2]] == [
        ("number-one", "HELD", None),
        ("number-two", None, "UNKNOWN"),
    ]


def test_results_of_a_stage_that_is_gone(bench):
    bench.use_stages(fake_stage("other"))
    commit_claims(bench.project, FOR_FAKE_STAGE.replace("stage: fake", "stage: other"), unix=LATER_UNIX)
    ended = on(bench, "judge")
    assert ended.code == 4
    assert "this lab has no stage 'fake'" in ended.error


def test_smoke_attempts_are_judged_and_do_not_decide(bench):
    bench.use_stages(fake_stage(collect=say("2")))
    run(bench, "v1.36.3", "--quick", code=1)
    assert on(bench, "judge").code == 0


@pytest.mark.parametrize(("first", "second", "code"), [("no number", "1", 0), ("1", "no number", 3), ("2", "7", 0)])
def test_the_newest_attempt_decides_as_in_the_summary(bench, first, second, code):
    for text in (first, second):
        bench.use_stages(fake_stage(collect=say(text)))
        bench.run()
    assert on(bench, "judge").code == on(bench, "summary").code == code


def test_the_age_of_a_claim_is_no_matter_for_smoke(bench):
    run(bench, "v1.36.3", "--quick")
    commit_claims(bench.project, FOR_FAKE_STAGE.replace("number == 1", "number > 1"), unix=LATER_UNIX)
    changes = on(bench, "judge", "--json").json()["changes"]
    assert {change["attempt"]: change["is"] for change in changes} == {
        "upstream-v1.36.3/fake/0001": "UNKNOWN",
        "upstream-v1.37.2/fake/0001": "UNKNOWN",
        "_smoke/upstream-v1.36.3/fake/0001": "MISSED",
    }


@pytest.mark.parametrize("verb", ["summary", "judge"])
def test_claims_that_do_not_parse(bench, verb):
    (bench.project / "CLAIM.md").write_text("```yaml\nid: x\n")
    before = tree(bench.results)
    ended = on(bench, verb)
    assert ended.code == 2
    assert ended.error.startswith("CLAIM.md line 1: ")
    assert tree(bench.results) == before


def test_a_summary_of_what_another_parser_read_is_refused_until_it_is_judged(bench):
    bench.use_stages(fake_stage(judge_version=2))
    for words in (["summary"], ["summary", "--check"]):
        ended = on(bench, *words)
        assert ended.code == 4
        assert "upstream-v1.36.3/fake/0001, upstream-v1.37.2/fake/0001; run `lab judge` first" in ended.error
    assert "no verdict changes" in on(bench, "judge").err
    assert on(bench, "summary").code == 0


# --- real stages, in a process of its own


def test_a_process_over_stored_results_of_the_real_stages(tmp_path, monkeypatch, capfd):
    """The program without any fake judges and sums what a capture holds, and finds a changed byte."""
    bench = make_bench(tmp_path, monkeypatch, capfd, claims=(ROOT / "CLAIM.md").read_text())
    store_capture(bench, load("v1.34.4", "class"))

    def lab(*words):
        return subprocess.run(
            [sys.executable, "-m", "lab", *words, "--results", str(bench.results)],
            cwd=bench.project,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    judged = lab("judge", "--json")
    assert judged.returncode == 0, judged.stderr
    assert {change["is"] for change in json.loads(judged.stdout)["changes"]} == {"HELD"}
    assert lab("summary").returncode == 0
    assert "BestEffort" in (bench.results / "summary.md").read_text()
    flip(bench.results / "upstream-v1.34.4" / "class" / "0001" / "raw" / "pods.json")
    damaged = lab("summary", "--check")
    assert damaged.returncode == 4
    assert "raw/pods.json: sha256 is " in damaged.stderr
    assert "Traceback" not in damaged.stderr


def store_capture(bench, raw):
    """Stores captured texts as an attempt that nobody has judged yet."""
    tools = bench.tools()
    options = {"quick": False, "reps": 3, "order": "random"}
    writer = bench.store.begin(
        cell=Cell(distro="upstream", version="v1.34.4"),
        stage="class",
        stamp=judging.stamp(qos_class.STAGE, tools.manifests, tools.scripts, options, {}),
        environment=Environment(must_agree=MUST_AGREE),
        run_id="r-1",
        started="2027-01-15T08:00:00.000+00:00",
        smoke=False,
        uncountable=(),
        extra={},
    )
    for name, text in raw.items():
        writer.save(name, text)
    writer.seal(observation=None, verdict={"verdicts": []}, finished="2027-01-15T08:01:00.000+00:00")


# --- two runs that end together


def test_what_another_run_seals_meanwhile_is_in_the_summary(bench, monkeypatch):
    """The second run writes its summary between the first one's reading and its writing, unless it has to wait."""
    render, begun, others = summary._text, threading.Event(), []

    def second():
        begun.wait(30)
        summary.write_summary(bench.results, bench.project)

    def slow(stored, results):
        text = render(stored, results)
        if not begun.is_set():
            seal_another(bench)
            other = threading.Thread(target=second)
            other.start()
            others.append(other)
            begun.set()
            # Without a lock it is done long before this; with one it can only wait.
            other.join(2)
        return text

    monkeypatch.setattr(summary, "_text", slow)
    assert on(bench, "summary").code == 0
    (other,) = others
    other.join(60)
    assert not other.is_alive()
    assert "v1.36.3" in (bench.results / "summary.md").read_text()
    assert on(bench, "summary", "--check").code == 0


def seal_another(bench):
    """One more attempt of the first version, as another process stores it."""
    experiment.run(bench.config("v1.36.3"), bench.tools())
