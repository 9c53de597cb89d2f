"""`lab summary --junit` and what is told to GitHub: written whole, outside of it nothing."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from lab.report import job_summary
from lab.secrets import SECRETS
from tests.projects import fake_stage, make_bench, say
from tests.unit.test_report_junit import shape_problems


@pytest.fixture
def bench(tmp_path, monkeypatch, capfd):
    made = make_bench(tmp_path, monkeypatch, capfd)
    assert made.run().code == 0
    return made


@pytest.fixture
def github(bench, monkeypatch):
    """The file that GitHub shows; as in Actions."""
    path = bench.root / "step_summary"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    return path


def on(bench, *words):
    return bench.lab("summary", "--results", str(bench.results), *words)


def test_claims_are_written_as_tests(bench):
    target = bench.root / "new" / "claims.xml"
    ended = on(bench, "--junit", str(target))

    assert (ended.code, ended.out) == (0, "")
    assert f"wrote {target}" in ended.err
    root = ElementTree.parse(target).getroot()
    assert shape_problems(root) == []
    assert [(case.get("classname"), case.get("name")) for case in root.iter("testcase")] == [
        ("upstream-v1.36.3.fake", "number-one")
    ]


def test_a_falsified_claim_fails_and_the_file_is_there_nevertheless(bench):
    bench.use_stages(fake_stage(collect=say("2")))
    assert bench.run().code == 1
    target = bench.root / "claims.xml"

    assert on(bench, "--junit", str(target)).code == 1
    root = ElementTree.parse(target).getroot()
    assert (root.get("tests"), root.get("failures")) == ("1", "1")


def test_a_folder_is_no_file(bench):
    ended = on(bench, "--junit", str(bench.root))

    assert ended.code == 2
    assert f"--junit {bench.root}: that is a folder" in ended.error


def test_a_check_writes_nothing(bench):
    target = bench.root / "claims.xml"
    ended = on(bench, "--check", "--junit", str(target))

    assert ended.code == 2
    assert not target.exists()


def test_no_file_from_damaged_results(bench):
    path = bench.results / "upstream-v1.36.3" / "fake" / "0001" / "raw" / "number.txt"
    path.write_text("7")
    target = bench.root / "claims.xml"

    assert on(bench, "--junit", str(target)).code == 4
    assert not target.exists()


def test_a_secret_is_masked_in_the_file(bench):
    SECRETS.add("hunter2-hunter2")
    bench.use_stages(fake_stage(collect=say("hunter2-hunter2")))
    assert bench.run().code == 3
    target = bench.root / "claims.xml"
    on(bench, "--junit", str(target))

    assert "UNKNOWN" in target.read_text()
    assert "hunter2" not in target.read_text()


def test_a_run_writes_the_claims_as_tests(bench):
    target = bench.root / "claims.xml"
    ended = bench.run("--junit", str(target), versions="v1.37.2")

    assert ended.code == 0
    cells = [suite.get("name") for suite in ElementTree.parse(target).getroot()]
    assert cells == ["upstream-v1.36.3", "upstream-v1.37.2"], "as in the summary: all that counts"


def test_a_smoke_run_has_no_claims_to_write_and_says_so(bench):
    target = bench.root / "claims.xml"
    ended = bench.run("--quick", "--junit", str(target))

    assert ended.code == 0
    assert f"{target} was not written" in ended.err
    assert not target.exists()


def test_github_gets_the_verdicts_after_what_is_there(bench, github):
    github.write_text("# Before\n")
    ended = on(bench)

    assert ended.code == 0
    assert github.read_text().startswith("# Before\n## node lab\n\n1 HELD\n")
    assert "::" not in ended.err


def test_a_run_tells_github_once(bench, github):
    bench.use_stages(fake_stage(collect=say("2")))
    ended = bench.run()

    assert ended.code == 1
    assert github.read_text().count("## node lab") == 1
    [line] = [line for line in ended.err.splitlines() if line.startswith("::")]
    assert line.startswith("::error title=number-one FALSIFIED::v1.36.3: ")


@pytest.mark.parametrize("without", ["GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"])
def test_outside_of_actions_nothing_is_written(bench, github, monkeypatch, without):
    monkeypatch.delenv(without)

    assert on(bench).code == 0
    assert not github.exists()


def test_a_full_summary_stays_below_the_limit_and_it_is_said(bench, github):
    github.write_bytes(b"x" * job_summary.LIMIT_BYTES)
    ended = on(bench)

    assert github.stat().st_size == job_summary.LIMIT_BYTES
    assert "no room" in ended.err


def test_a_summary_that_cannot_be_written_ends_nothing(bench, github):
    github.mkdir()
    ended = on(bench)

    assert ended.code == 0
    assert "the job's summary was not written" in ended.err
