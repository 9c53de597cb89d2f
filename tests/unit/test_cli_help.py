"""Help that is true: groups and their order, completion of verbs and options, and the page behind every error."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.testing

import lab
from lab.cli import help_topics, main, verbs
from lab.model import Interrupted, LabError, UsageError
from tests.projects import make_bench

ROOT = Path(__file__).resolve().parents[2]
ERRORS = (ROOT / "docs" / "errors.md").read_text()


def anchors(markdown):
    """Anchors of the headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", markdown, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def error_classes():
    """Every kind of LabError that there is, in all modules."""
    for module in pkgutil.walk_packages(lab.__path__, "lab."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    waiting, found = [LabError], set()
    while waiting:
        for kind in waiting.pop().__subclasses__():
            if kind.__module__.startswith("lab.") and kind not in found:
                found.add(kind)
                waiting.append(kind)
    return found


def instance(kind):
    return kind.__new__(kind)


# --- errors


def test_every_kind_of_error_names_a_part_of_the_page_that_is_there():
    there = anchors(ERRORS)
    classes = error_classes()

    assert {"HostKeyMismatch", "ApiRefused", "LeftBehind", "Missing"} <= {kind.__name__ for kind in classes}
    for kind in classes:
        page, mark, anchor = help_topics.topic(instance(kind)).partition("#")
        assert (page, mark) == ("docs/errors.md", "#"), kind
        assert anchor in there, kind


def test_every_topic_is_of_a_class_that_exists():
    assert set(help_topics.TOPICS) <= {kind.__name__ for kind in [*error_classes(), Interrupted]}


def test_every_part_of_the_page_gives_its_exit_code():
    parts = re.split(r"^## ", ERRORS, flags=re.MULTILINE)[1:]
    by_anchor = {anchors(f"# {part.splitlines()[0]}").pop(): part for part in parts}

    for kind in error_classes():
        anchor = help_topics.topic(instance(kind)).partition("#")[2]
        assert f"Exit {kind.exit_code}" in by_anchor[anchor], (kind, anchor)


def test_a_finer_class_wins_and_an_unknown_one_has_the_page():
    class Special(UsageError):
        pass

    class Odd(LabError):
        pass

    assert help_topics.topic(Special("x")) == "docs/errors.md#bad-usage-or-input"
    assert help_topics.topic(Odd("x")) == "docs/errors.md"


def test_the_anchors_of_links_inside_the_page_exist():
    linked = set(re.findall(r"\]\(#([^)]+)\)", ERRORS))

    assert linked
    assert linked <= anchors(ERRORS)


def test_an_error_is_two_lines_on_standard_error(tmp_path, monkeypatch, capfd):
    bench = make_bench(tmp_path, monkeypatch, capfd)
    ended = bench.lab("summary", "--results", "/nowhere")

    assert ended.out == ""
    assert re.fullmatch(r"error: --results /nowhere: .*\nhelp: docs/errors\.md#bad-usage-or-input\n", ended.err)


# --- help


def help_text():
    return typer.testing.CliRunner().invoke(main.app, ["--help"]).output


def test_help_lists_every_verb_under_its_group_in_order():
    text = help_text()
    found = re.findall(r"─ ([A-Z][a-z ]+) ─|^│ ([a-z]+)  ", text, re.MULTILINE)
    seen: dict[str, list[str]] = {}
    group = ""
    for heading, verb in found:
        group = heading or group
        if verb:
            seen.setdefault(group, []).append(verb)
    wanted: dict[str, list[str]] = {}
    for name, verb in verbs.VERBS.items():
        wanted.setdefault(verb.group, []).append(name)

    assert seen == wanted
    assert list(seen) == [verbs.SET_UP, verbs.MEASURE, verbs.READ, verbs.SCAN, verbs.NODES]


def test_groups_are_in_one_piece():
    groups = [verb.group for verb in verbs.VERBS.values()]

    assert len(set(groups)) == sum(one != other for one, other in zip(groups, ["", *groups], strict=False))


def test_help_loads_no_verb():
    code = "import sys; from lab.cli import main; main.main(['--help']); print([n for n in sys.modules if n in heavy])"
    done = subprocess.run(
        [sys.executable, "-c", f"heavy = {{'pandas', 'paramiko', 'lab.cli.run', 'lab.cli.scan'}}; {code}"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    assert done.stdout.splitlines()[-1] == "[]"


# --- completion


def completed(*words):
    """What bash is given at the end of the words, the last of which is being typed."""
    line = " ".join(["lab", *words])
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'lab'; from lab.cli.main import run; run()"],
        env={**os.environ, "_LAB_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words))},
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_all_verbs_are_offered():
    assert completed("") == list(verbs.VERBS)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["su"], ["summary"]),
        (["d"], [name for name in verbs.VERBS if name.startswith("d")]),
        (["nothing"], []),
        (["--vers"], ["--version"]),
        (["scan", "--pro"], ["--promql"]),
        (["summary", "--ju"], ["--junit"]),
        (["gc", "--"], ["--dry-run", "--json", "--help"]),
        (["plan", "--gate"], ["--gate", "--gate-leg"]),
    ],
)
def test_what_is_offered(words, wanted):
    assert completed(*words) == wanted


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_asks_this_program(shell):
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'lab'; from lab.cli.main import run; run()",
         "--show-completion", shell],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert f"complete_{shell}" in done.stdout
    assert "_LAB_COMPLETE" in done.stdout
