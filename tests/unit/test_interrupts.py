"""Real signals to this very process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from lab import interrupts, processes
from lab.host import Command, LocalHost
from lab.interrupts import SIGNALS, raising, waiting
from lab.model import EXIT_INTERRUPTED, Interrupted, LeftBehind, NodeError


def send(number):
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def quiet():
    """Signals that do nothing, so that a mistake in the code under test fails a test and not the whole run."""
    seen = []
    before = {number: signal.signal(number, lambda number, frame: seen.append(number)) for number in SIGNALS}
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


class TestRaising:
    @pytest.mark.parametrize("number", SIGNALS)
    def test_a_signal_becomes_an_error_with_its_exit_code(self, number):
        with pytest.raises(Interrupted, match=f"stopped by {number.name}") as caught, raising():
            send(number)
        assert caught.value.exit_code == EXIT_INTERRUPTED

    @pytest.mark.parametrize("number", SIGNALS)
    def test_the_old_handlers_come_back(self, number, quiet):
        with pytest.raises(Interrupted), raising():
            send(number)
        send(number)
        assert quiet == [number]

    def test_without_a_signal_nothing_happens(self, quiet):
        with raising():
            pass
        assert quiet == []

    def test_an_error_of_the_block_passes_and_the_handlers_come_back(self, quiet):
        with pytest.raises(NodeError, match="lost"), raising():
            raise NodeError("lost")
        send(signal.SIGTERM)
        assert quiet == [signal.SIGTERM]

    def test_what_is_ignored_stays_ignored(self):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with raising():
                send(signal.SIGHUP)
                with waiting("x"):
                    send(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_a_run_under_nohup_survives_its_terminal(self):
        code = (
            "import os, signal; from lab.interrupts import raising\n"
            "with raising():\n    os.kill(os.getpid(), signal.SIGHUP)\nprint('alive')"
        )
        done = subprocess.run(["nohup", sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "alive\n"


class TestWhileAThreadStarts:
    """The system has the thread, and Python has not noted it yet."""

    @pytest.fixture(autouse=True)
    def interrupted_start(self, monkeypatch):
        real = threading._start_new_thread

        def start(*arguments):
            found = real(*arguments)
            send(signal.SIGTERM)
            send(signal.SIGTERM)
            return found

        monkeypatch.setattr(threading, "_start_new_thread", start)

    def test_it_starts_and_the_signal_comes_then(self, capfd):
        def start_and_wait(thread, done):
            thread.start()
            assert done.wait(60)
            # Not pause: a signal just before it would leave it waiting without an end.
            time.sleep(20)

        done = threading.Event()
        thread = threading.Thread(target=done.set)
        with pytest.raises(Interrupted, match="SIGTERM"), raising():
            start_and_wait(thread, done)
        thread.join(60)
        assert thread not in threading.enumerate()
        assert capfd.readouterr().err == ""

    def test_a_clean_up_that_has_begun_meanwhile_is_not_cut_off(self, monkeypatch):
        def start_and_clean_up():
            threading.Thread(target=time.sleep, args=(0,)).start()
            with waiting("removing"):
                signal.raise_signal(signal.SIGALRM)
                done.append("removed")

        # The alarm comes when the clean-up has surely begun.
        monkeypatch.setattr(signal, "setitimer", lambda which, seconds: None)
        done = []
        with pytest.raises(Interrupted, match="SIGTERM"), raising():
            start_and_clean_up()
        assert done == ["removed"]

    def test_the_end_of_the_block_does_not_lose_it(self, quiet):
        with pytest.raises(Interrupted, match="SIGTERM"), raising():
            threading.Thread(target=time.sleep, args=(0,)).start()
        time.sleep(0.1)
        assert quiet == []


class TestWaiting:
    @pytest.mark.parametrize("number", SIGNALS)
    def test_the_block_ends_before_the_error_is_raised(self, number, capfd):
        done = []

        def clean_up():
            send(number)
            send(number)
            done.append("removed")

        with pytest.raises(Interrupted, match=f"stopped by {number.name}"), waiting("removing node n-1"):
            clean_up()
        assert done == ["removed"]
        assert capfd.readouterr().err.count("still removing node n-1") == 2

    def test_the_first_of_several_is_named(self):
        def clean_up():
            send(signal.SIGTERM)
            send(signal.SIGINT)

        with pytest.raises(Interrupted, match="SIGTERM"), waiting("x"):
            clean_up()

    def test_without_a_signal_nothing_is_raised_or_said(self, capfd):
        with waiting("removing"):
            pass
        assert capfd.readouterr().err == ""

    def test_a_terminal_that_is_gone_does_not_end_the_clean_up(self):
        code = (
            "import os, signal; from lab.interrupts import waiting; from lab.model import Interrupted\n"
            "os.close(2)\n"
            "try:\n    with waiting('removing'):\n        os.kill(os.getpid(), signal.SIGHUP)\n"
            "        print('removed')\n"
            "except Interrupted as error:\n    print(error)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "removed\nstopped by SIGHUP\n"

    def test_an_error_of_the_clean_up_is_not_hidden_by_a_signal(self):
        def clean_up():
            send(signal.SIGINT)
            raise NodeError("disk busy")

        told = "stopped by SIGINT; removing did not end well: disk busy"
        with pytest.raises(Interrupted, match=told), waiting("removing"):
            clean_up()

    def test_what_is_left_behind_outweighs_a_signal(self):
        def clean_up():
            send(signal.SIGINT)
            raise LeftBehind("droplet 7")

        with pytest.raises(LeftBehind, match="droplet 7"), waiting("removing"):
            clean_up()

    @pytest.mark.parametrize("when", ["before", "inside"])
    def test_an_action_that_fails_does_not_lose_a_signal(self, when, monkeypatch):
        def action():
            if when == "inside":
                send(signal.SIGTERM)
            raise NodeError("link lost")

        real, tries = interrupts.waiting, []

        def waiting_late(what):
            tries.append(what)
            if when == "before" and len(tries) == 1:
                raise Interrupted("stopped by SIGTERM")
            return real(what)

        monkeypatch.setattr(interrupts, "waiting", waiting_late)
        with pytest.raises(Interrupted, match="stopped by SIGTERM; thawing did not end well: link lost"):
            interrupts.surely("thawing", action)

    def test_no_handler_of_errors_takes_it_for_one(self):
        with pytest.raises(Interrupted), raising(), suppress(Exception):
            send(signal.SIGINT)

    def test_inside_of_raising_and_back(self):
        steps = []

        def run():
            with raising():
                try:
                    send(signal.SIGINT)
                finally:
                    with waiting("removing"):
                        send(signal.SIGTERM)
                        steps.append("removed")

        with pytest.raises(Interrupted, match="SIGTERM"):
            run()
        assert steps == ["removed"]

    def test_the_old_handlers_come_back(self, quiet):
        with waiting("x"):
            pass
        send(signal.SIGINT)
        assert quiet == [signal.SIGINT]


class TestLeaving:
    """A clean-up is about to begin: its first statement is an assignment, and signals wait from then on."""

    @pytest.fixture(autouse=True)
    def as_before(self):
        yield
        assert interrupts.leaving is False
        interrupts.leaving = False

    def test_a_signal_before_the_clean_up_waits_for_its_end(self):
        def fail_and_clean_up():
            try:
                raise NodeError("no boot")
            except NodeError:
                interrupts.leaving = True
                send(signal.SIGTERM)
                interrupts.surely("removing", lambda: (time.sleep(0.1), done.append("removed")))
                raise

        done = []
        with pytest.raises(Interrupted, match="SIGTERM"), raising():
            fail_and_clean_up()
        assert done == ["removed"]

    def test_a_signal_comes_when_there_was_nothing_to_clean_up(self):
        def leave_and_go_on():
            interrupts.leaving = True
            send(signal.SIGTERM)
            interrupts.leaving = False
            time.sleep(20)

        with pytest.raises(Interrupted, match="SIGTERM"), raising():
            leave_and_go_on()

    def test_what_another_block_left_does_not_hold_signals_back(self):
        interrupts.leaving = True
        with pytest.raises(Interrupted), raising():
            send(signal.SIGINT)


def test_a_process_that_is_being_started_is_not_lost(monkeypatch):
    """The signal comes when the system has the process and nobody has its number yet."""
    real, started = subprocess._fork_exec, []

    def fork_exec(*arguments):
        started.append(real(*arguments))
        send(signal.SIGTERM)
        return started[0]

    monkeypatch.setattr(subprocess, "_fork_exec", fork_exec)
    with pytest.raises(Interrupted, match="SIGTERM"), raising():
        LocalHost().run(Command(argv=("sleep", "1000"), timeout_s=120))
    assert processes.identity(started[0]) is None
