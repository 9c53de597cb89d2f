"""Exit 2 says that nothing was started and nothing was written, so what is wrong is found before anything is."""

from __future__ import annotations

import shutil

import pytest
import typer

from lab.cli import endings, scan
from lab.model import UsageError
from tests.projects import commit_claims, fake_stage, tree

pytestmark = pytest.mark.usefixtures("signals")

NO_ANSWER = """
```yaml
id: number-one
stage: fake
title: There is no answer for v1.37.2
when: 1 if version == 'v1.37.2' else True
predict: number == 1
falsify: number != 1
```
"""


def test_a_node_that_is_not_there(bench):
    ended = bench.run("--node", "nonexist")
    assert ended.code == 2
    assert ended.error.startswith("no node 'nonexist'; there are: none")
    assert "--resume" not in ended.err
    assert not bench.results.exists()


def test_a_node_with_another_version_is_let_go_as_it_was(bench):
    bench.run("--keep", "always")
    (node,) = bench.provider.alive
    before = tree(bench.results)
    ended = bench.run("--node", node, versions="v1.37.2")
    assert (ended.code, tree(bench.results)) == (2, before)
    assert bench.steps.names()[-2:] == ["provider.attach", "distro.attach"], "it is not kept for longer"
    assert bench.provider.alive[node].host.closes == 1


def test_a_resumed_run_whose_node_is_gone(bench):
    bench.run("--keep", "always")
    (node,) = bench.provider.alive

    def stop(context):
        raise KeyboardInterrupt

    bench.use_stages(fake_stage(collect=stop))
    assert bench.run("--node", node).code == 130
    bench.provider.alive.clear()
    before = tree(bench.results)
    (run_id,) = [path.parent.name for path in bench.results.glob("_runs/*/*.jsonl") if "attach" in path.read_text()]
    ended = bench.lab("run", "--resume", run_id, "--results", str(bench.results))
    assert ended.code == 2
    assert f"no node '{node}'" in ended.error
    assert tree(bench.results) == before


def test_a_run_folder_without_a_journal_gets_none(bench):
    (bench.results / "_runs/r").mkdir(parents=True)
    before = tree(bench.root)
    ended = bench.lab("run", "--resume", "r", "--results", str(bench.results))
    assert (ended.code, tree(bench.root)) == (2, before)


def test_what_is_found_when_a_run_is_under_way_is_no_bad_usage(bench):
    bench.steps.fail("provider.create", UsageError("cannot use the private key /k: it has a passphrase"))
    ended = bench.run()
    assert ended.code == 5
    assert "cannot use the private key /k: it has a passphrase" in ended.error


@pytest.mark.parametrize("verb", ["run", "summary"])
def test_a_folder_for_junit(bench, verb):
    if verb == "summary":
        bench.run()
        (bench.results / "summary.md").unlink()
    before = tree(bench.root)
    words = ["run", "--versions", "v1.36.3"] if verb == "run" else [verb]
    ended = bench.lab(*words, "--results", str(bench.results), "--junit", str(bench.root))
    assert ended.code == 2
    assert ended.error.startswith(f"--junit {bench.root}: that is a folder")
    assert tree(bench.root) == before


def test_notes_that_are_no_text(bench):
    bench.results.mkdir()
    (bench.results / "notes.md").write_bytes(b"\xff")
    before = tree(bench.root)
    ended = bench.run()
    assert ended.code == 2
    assert "is not UTF-8 text" in ended.error
    assert (tree(bench.root), bench.steps.calls) == (before, [])


def test_a_version_of_another_distribution_is_found_before_the_first_is_fetched(bench):
    ended = bench.run(versions="v1.36.3,v1.37.2+k3s1")
    assert ended.code == 2
    assert "belongs to k3s" in ended.error
    assert bench.steps.calls == []


def test_a_claim_without_an_answer_is_found_before_any_verdict_is_stored(bench):
    assert bench.run(versions="v1.36.3,v1.37.2").code == 0
    before = tree(bench.results)
    commit_claims(bench.project, NO_ANSWER)
    ended = bench.lab("judge", "--results", str(bench.results))
    assert ended.code == 2
    assert "upstream-v1.37.2" in ended.error
    assert tree(bench.results) == before


def test_a_demo_of_claims_that_do_not_parse(bench):
    bench.run()
    shutil.copytree(bench.results, bench.project / "results")
    commit_claims(bench.project, "```yaml\nid: x\n")
    target = bench.root / "out"
    ended = bench.lab("demo", "--out", str(target))
    assert ended.code == 2
    assert not target.exists()


WRONG_WORDS = {
    "no-such-verb": (["bogus"], "No such command 'bogus'; see `lab --help`"),
    "no-such-option-of-the-program": (["--junk"], "No such option: --junk; see `lab --help`"),
    "scan": (["scan", "--bogus", "a.yaml"], "No such option: --bogus; see `lab scan --help`"),
    "diff": (["diff", "only-one"], "Missing argument 'B'; see `lab diff --help`"),
    "verify": (["verify", "--json"], "No such option: --json; see `lab verify --help`"),
    "gc": (["gc", "more"], "Got unexpected extra argument(s) (more); see `lab gc --help`"),
    "run": (["run", "--versions"], "Option '--versions' requires an argument."),
}


@pytest.mark.parametrize("name", WRONG_WORDS)
def test_words_that_no_verb_takes_are_an_error_like_every_other(bench, name):
    words, text = WRONG_WORDS[name]
    bench.monkeypatch.setattr("sys.argv", ["lab"])
    # As a script's: under `python -m pytest` the program would be called by that name.
    bench.monkeypatch.setattr("__main__.__package__", None)
    ended = bench.lab(*words)
    assert (ended.code, ended.out, ended.error) == (2, "", text)
    assert ended.err.endswith("\nhelp: docs/errors.md#bad-usage-or-input\n")


@pytest.mark.parametrize("name", ["lab scan", "kubectl lab-qos"])
def test_so_they_are_for_a_scan_alone(capfd, name):
    assert scan.run_alone(["--bogus"], name=name) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"Usage: {name} [OPTIONS] [paths]...",
        f"error: No such option: --bogus; see `{name} --help`",
        "help: docs/errors.md#bad-usage-or-input",
    ]


def test_a_secret_among_wrong_words_is_masked(bench):
    bench.monkeypatch.setenv("DIGITALOCEAN_TOKEN", "dop_v1_of_a_test")
    assert "dop_v1_of_a_test" not in bench.lab("gc", "dop_v1_of_a_test").error


def test_no_words_at_all_are_answered_with_the_help(bench):
    ended = bench.lab()
    assert (ended.code, ended.err) == (2, "")
    assert "Look after nodes" in ended.out


@pytest.mark.parametrize(
    ("raised", "code"), [(typer.Exit(), 0), (typer.Exit(3), 3), (typer.Abort(), 130), (EOFError(), 130)],
    ids=["exit", "exit-3", "abort", "eof"],
)
def test_other_ends_that_typer_has(raised, code):
    app = typer.Typer(add_completion=False)

    @app.command()
    def act() -> None:
        raise raised

    assert endings.exit_code(lambda: app(args=[], standalone_mode=False)) == code
