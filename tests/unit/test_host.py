"""Deadlines, waiting, messages, and what only the controller's own host does."""

from __future__ import annotations

import base64
import os
import signal
import stat
import subprocess
import sys
import tarfile
import threading
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab import interrupts, processes
from lab.host import (
    UNPACK,
    Command,
    Completed,
    Deadline,
    LocalHost,
    failure_text,
    put_texts,
    told_when_long,
    wait_until,
)
from lab.model import CommandError, Interrupted, NodeError, WaitTimeout
from tests.fakes import FakeClock, FakeHost, Reply


class TestToldWhenLong:
    def test_what_takes_long_is_told_once_and_while_it_lasts(self):
        said, told = [], threading.Event()

        def say(text):
            said.append(text)
            told.set()

        with told_when_long("waiting for an answer", say, after_s=0.01):
            assert told.wait(60)
        assert said == ["waiting for an answer"]

    def test_what_is_quick_is_not(self):
        said = []
        before = set(threading.enumerate())
        with told_when_long("waiting", said.append, after_s=3600):
            (timer,) = [new for new in set(threading.enumerate()) - before if isinstance(new, threading.Timer)]
        timer.join(60)
        assert not timer.is_alive()
        assert said == []

    def test_an_error_passes_through_and_ends_the_waiting(self):
        with pytest.raises(NodeError), told_when_long("waiting", pytest.fail, after_s=3600):
            raise NodeError("no")


class TestDeadline:
    def test_it_counts_down_and_never_below_zero(self):
        clock = FakeClock()
        deadline = Deadline.after(10, clock)
        assert deadline.remaining_s() == 10
        clock.advance(4)
        assert deadline.remaining_s() == 6
        clock.advance(60)
        assert deadline.remaining_s() == 0

    @pytest.mark.parametrize(("seconds", "left"), [(3, 3), (10, 10), (30, 10), (0, 0)])
    def test_a_sooner_deadline_never_reaches_beyond_the_first(self, seconds, left):
        clock = FakeClock()
        assert Deadline.after(10, clock).sooner(seconds).remaining_s() == left

    @given(st.lists(st.floats(0, 100), min_size=1, max_size=5), st.floats(0, 100))
    def test_nested_deadlines_cannot_add_up(self, inner, outer):
        clock = FakeClock(0.0)
        deadline = Deadline.after(outer, clock)
        for seconds in inner:
            nested = deadline.sooner(seconds)
            assert nested.at_s <= deadline.at_s
            assert nested.clock is clock
            deadline = nested
        assert deadline.remaining_s() <= min([outer, *inner])


class TestWaitUntil:
    def wait(self, answers, seconds=10.0, interval_s=1.0):
        clock = FakeClock()
        given_answers = iter(answers)
        value = wait_until(
            "the thing", lambda: next(given_answers), Deadline.after(seconds, clock), interval_s=interval_s,
            sleep=clock.sleep,
        )  # fmt: skip
        return value, clock

    def test_a_value_at_once_needs_no_sleep(self):
        value, clock = self.wait([("there", "")])
        assert (value, clock.sleeps) == ("there", [])

    @pytest.mark.parametrize("value", [0, "", False, [], {}])
    def test_every_value_but_none_ends_the_wait(self, value):
        assert self.wait([(None, "not yet"), (value, "")])[0] == value

    def test_it_probes_once_more_after_the_last_sleep(self):
        value, clock = self.wait([(None, "1"), (None, "2"), (None, "3"), ("late", "")], seconds=2.5)
        assert value == "late"
        assert clock.sleeps == [1.0, 1.0, 0.5]

    def test_the_timeout_carries_what_was_seen_last(self):
        with pytest.raises(WaitTimeout, match=r"^gave up waiting for the thing; last seen: second$"):
            self.wait([(None, "first"), (None, "second")], seconds=1.0)

    def test_without_any_state(self):
        with pytest.raises(WaitTimeout, match="last seen: nothing"):
            self.wait([(None, "")], seconds=0)

    def test_no_time_left_still_means_one_probe(self):
        assert self.wait([("there", "")], seconds=0)[0] == "there"

    def test_an_error_of_the_probe_passes_through(self):
        def probe():
            raise NodeError("the guest is dead")

        with pytest.raises(NodeError, match="the guest is dead"):
            wait_until("x", probe, Deadline.after(10))


class TestFailureText:
    def text(self, stdout="", stderr=""):
        command = Command(argv=("a b", "c"), stdin="secret", env={"TOKEN": "secret"})
        done = Completed(argv=command.argv, exit_status=3, stdout=stdout, stderr=stderr, seconds=1.0)
        return failure_text("node", command, done)

    def test_where_what_and_how(self):
        assert self.text() == "node: exit 3: 'a b' c"

    def test_empty_streams_are_left_out(self):
        assert self.text(stdout=" \n", stderr="why\n") == "node: exit 3: 'a b' c\nstderr: why"

    def test_long_streams_keep_their_ends(self):
        text = self.text(stdout="x" * 5000 + "the end", stderr="y" * 5000)
        assert "x" * 1993 + "the end" in text
        assert "x" * 1994 not in text
        assert len(text) < 4200

    def test_no_secret(self):
        assert "secret" not in self.text("out", "err")
        assert "secret" not in Command(argv=("x",), stdin="secret", env={"A": "secret"}).shown()


class TestLocalHost:
    def test_the_whole_group_ends_at_the_deadline(self, tmp_path):
        pid_file = tmp_path / "pid"
        line = f"sleep 1000 & echo $! > {pid_file}; wait"
        # The deadline is to come after the shell has written: how long that takes is the machine's business.
        for timeout_s in (1, 10, 60):
            with pytest.raises(WaitTimeout):
                LocalHost().run(Command(argv=("sh", "-c", line), timeout_s=timeout_s))
            if pid_file.exists() and pid_file.read_text():
                break
        child = processes.identity(int(pid_file.read_text()))
        if child is not None:
            wait_until("the child to end", lambda: (not child.is_alive() or None, "alive"), Deadline.after(20))

    def test_the_group_ends_when_a_signal_ends_the_run(self, tmp_path):
        pid_file = tmp_path / "pid"

        def tell():
            wait_until("the child", lambda: (pid_file.exists() or None, ""), Deadline.after(60), interval_s=0.01)
            os.kill(os.getpid(), signal.SIGTERM)

        line = f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; sleep 1000"
        teller = threading.Thread(target=tell)
        teller.start()
        with pytest.raises(Interrupted), interrupts.raising():
            LocalHost().run(Command(argv=("sh", "-c", line), timeout_s=120))
        teller.join()
        assert processes.identity(int(pid_file.read_text())) is None

    def test_a_command_has_no_terminal_of_the_lab(self):
        done = LocalHost().run(Command(argv=("sh", "-c", "cut -d' ' -f6 /proc/$$/stat; echo $$")))
        session, own = done.stdout.split()
        assert session == own

    def test_a_program_that_cannot_be_started_for_another_reason(self, tmp_path):
        program = tmp_path / "nonsense"
        program.write_bytes(b"\x7fELF nonsense")
        program.chmod(0o755)
        with pytest.raises(NodeError, match="controller: cannot run"):
            LocalHost().run(Command(argv=(str(program),)))

    def test_output_is_utf8_whatever_the_locale(self):
        script = "from lab.host import *; print(ascii(LocalHost().run(Command(argv=('cat',), stdin=chr(228))).stdout))"
        env = {**os.environ, "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "'\\xe4'"

    def test_a_secret_text_is_never_readable_by_others(self, tmp_path, monkeypatch):
        before = os.umask(0)
        seen = []
        real = type(tmp_path).write_bytes

        def spy(path, data):
            seen.append(stat.S_IMODE(path.stat().st_mode))
            return real(path, data)

        monkeypatch.setattr(type(tmp_path), "write_bytes", spy)
        try:
            LocalHost().put_text("key", str(tmp_path / "key"), mode=0o600)
        finally:
            os.umask(before)
        assert seen == [0o600]


class TestPutTexts:
    def test_one_round_trip_with_everything_on_standard_input(self):
        host = FakeHost()
        put_texts(host, {"/etc/lab/b.key": ("secret", 0o600), "/opt/a.sh": ("ä", 0o755)}, timeout_s=11)
        (command,) = host.commands
        assert command.argv == UNPACK
        assert command.timeout_s == 11
        assert command.repeatable
        assert "secret" not in command.shown()
        assert host.files == {"/etc/lab/b.key": (b"secret", 0o600), "/opt/a.sh": ("ä".encode(), 0o755)}

    def test_files_belong_to_root_and_the_archive_is_the_same_every_time(self):
        host = FakeHost()
        for texts in ({"/b": ("1", 0o644), "/a": ("2", 0o600)}, {"/a": ("2", 0o600), "/b": ("1", 0o644)}):
            put_texts(host, texts)
        first, second = (command.stdin for command in host.commands)
        assert first == second
        with tarfile.open(fileobj=BytesIO(base64.b64decode(first))) as tar:
            assert [(entry.name, entry.uid, entry.gid) for entry in tar] == [("a", 0, 0), ("b", 0, 0)]

    @pytest.mark.parametrize("kept", [0, 1, 4, 77, -78, -2, -1])
    def test_an_archive_that_was_cut_off_lays_nothing_down(self, tmp_path, kept):
        host = FakeHost()
        put_texts(host, {"/a": ("first", 0o600), "/b": ("second\n" * 99, 0o600)})
        argv = [word.replace("--directory=/", f"--directory={tmp_path}") for word in UNPACK]
        sent = host.commands[0].stdin
        done = subprocess.run(argv, input=sent[:kept], capture_output=True, text=True, timeout=20, check=False)
        assert (done.returncode, done.stderr) == (3, "the archive was cut off\n")
        assert list(tmp_path.iterdir()) == []
        subprocess.run(argv, input=sent, text=True, timeout=20, check=True)
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "first", "b": "second\n" * 99}

    def test_a_failure_names_no_text(self):
        host = FakeHost()
        host.answer(UNPACK, Reply(status=2, stderr="tar: disk full"))
        with pytest.raises(CommandError, match="disk full") as caught:
            put_texts(host, {"/a": ("secret", 0o600)})
        assert "secret" not in str(caught.value)


class TestFakeHost:
    """The fake must be able to fail a test."""

    def test_a_command_nobody_prepared(self):
        with pytest.raises(pytest.fail.Exception, match="not prepared for: rm -rf /"):
            FakeHost().run(Command(argv=("rm", "-rf", "/"), check=False))

    def test_answers_in_order_and_no_more(self):
        host = FakeHost()
        host.answer(("date",), Reply(stdout="1"), NodeError("lost"), Reply(stdout="2"))
        assert host.run(Command(argv=("date",))).stdout == "1"
        with pytest.raises(NodeError, match="lost"):
            host.run(Command(argv=("date",)))
        assert host.run(Command(argv=("date",))).stdout == "2"
        with pytest.raises(pytest.fail.Exception, match="more calls"):
            host.run(Command(argv=("date",)))

    def test_time_passes_on_its_clock(self):
        clock = FakeClock()
        host = FakeHost(clock=clock)
        host.answer(("slow",), Reply(seconds=40))
        with pytest.raises(WaitTimeout):
            host.run(Command(argv=("slow",), timeout_s=30))
        assert clock.now == 1030
