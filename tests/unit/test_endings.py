"""A signal to any verb: exit code 130 and one message, and nothing is begun after it."""

from __future__ import annotations

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
