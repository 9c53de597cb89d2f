"""A signal to any verb: exit code 130 and one message, and nothing is begun after it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import typer
import typer.main

from lab import interrupts
from lab.cli import main, nodes, scan, verbs
from lab.model import Interrupted
from lab.providers.contract import NodeRecord
from lab.providers.digitalocean import inventory
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("signals")

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stops(number):
    """What a verb would be, if it got a signal at once."""

    def act() -> None:
        os.kill(os.getpid(), number)
        raise AssertionError("went on")

    return act


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", list(verbs.VERBS))
def test_every_verb_ends_with_the_code_of_an_interruption(monkeypatch, capfd, name, number):
    def load(verb, name):
        alone = typer.Typer(add_completion=False)
        alone.command(name)(stops(number))
        return typer.main.get_command(alone)

    monkeypatch.setattr(verbs.Verb, "load", load)
    assert main.main([name]) == 130
    out, err = capfd.readouterr()
    assert out == ""
    assert err == f"error: stopped by {number.name}\nhelp: docs/errors.md#interrupted\n"


@pytest.mark.parametrize("number", NUMBERS)
def test_so_does_the_plugin_of_kubectl(monkeypatch, capfd, number):
    monkeypatch.setattr(scan, "_run", lambda options: stops(number)())
    assert scan.run_alone([str(ROOT / "manifests")], name="kubectl lab-qos") == 130
    assert f"error: stopped by {number.name}" in capfd.readouterr().err


def test_a_program_of_its_own(tmp_path):
    """With the interpreter's own handlers to begin with, and the code that a shell sees."""
    code = (
        "import os, signal, sys\nfrom lab.cli import main, nodes, shared\n"
        "shared.usable_providers = lambda: os.kill(os.getpid(), signal.SIGTERM)\nmain.run(['gc'])"
    )
    env = {**os.environ, "LAB_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert "error: stopped by SIGTERM" in done.stderr


class Provider:
    """One of several that are asked in turn; a signal comes while it works."""

    def __init__(self, asked):
        self.asked = asked

    def collect_garbage(self, *, dry_run):
        self.work()

    def records(self):
        self.work()

    def work(self):
        self.asked.append(self)
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("words", [("gc",), ("nodes",), ("down", "--all")], ids=lambda words: words[0])
def test_no_further_provider_is_asked(bench, monkeypatch, words):
    asked = []
    monkeypatch.setattr(nodes.shared, "usable_providers", lambda: [Provider(asked), Provider(asked)])
    ended = bench.lab(*words)
    assert (ended.code, ended.error) == (130, "stopped by SIGTERM")
    assert len(asked) == 1


def test_no_further_node_is_removed(bench, monkeypatch):
    class Two:
        def __init__(self):
            self.told = []

        def records(self):
            rest = {"provider": "qemu", "state": "", "in_use": False, "is_expired": True, "expires_s": None}
            return [NodeRecord(id=name, **rest) for name in ("a-r1", "b-r1")]

        def down(self, name):
            self.told.append(name)
            os.kill(os.getpid(), signal.SIGINT)

    two = Two()
    monkeypatch.setattr(nodes.shared, "usable_providers", lambda: [two])
    assert bench.lab("down", "--all").code == 130
    assert two.told == ["a-r1"]


def test_a_removal_in_the_cloud_is_not_noted_as_a_problem_and_gone_on_with():
    problems = []
    with pytest.raises(Interrupted), interrupts.raising():
        inventory.Remover._try(problems, stops(signal.SIGTERM))
    assert problems == []


# --- characters that a stream cannot encode

UNUSUAL = "caf\u00e9 \u201cquoted\u201d \U0001f600 \udcff"
PRINTING = f"""
import sys
from lab.cli import console, endings
def program():
    value = {UNUSUAL!a}
    if sys.argv[1] == "json":
        console.print_json([value])
    else:
        console.data_console.print(value, markup=False)
        console.print_table(value, [value], [[value]])
    console.progress(value)
sys.exit(endings.exit_code(program))
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8", "utf-8:strict", "ascii:surrogateescape"])
@pytest.mark.parametrize("form", ["json", "text"])
def test_a_character_that_a_stream_cannot_encode_is_written_out(encoding, form):
    env = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PRINTING, form], env=env, capture_output=True, check=False)
    name = encoding.partition(":")[0]
    out, err = done.stdout.decode(name), done.stderr.decode(name)
    assert (done.returncode, "Traceback" in err) == (0, False), err
    shown = UNUSUAL.encode(name, "backslashreplace").decode(name)
    assert shown in err
    if form == "json":
        assert json.loads(out) == [UNUSUAL]
    else:
        assert shown in out


def test_a_comparison_on_a_terminal_of_ascii():
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "lab", "diff", "results", "article"], env=env, cwd=ROOT, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u201c" in done.stdout


def test_a_handler_that_cannot_fail_stays():
    env = {**os.environ, "PYTHONIOENCODING": "ascii:replace", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PRINTING, "text"], env=env, capture_output=True, check=False)
    assert done.returncode == 0
    assert b"caf? ?quoted? ? ?" in done.stdout
