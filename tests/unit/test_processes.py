"""Processes of a node, with real children. Every child carries a folder of the test as its mark, and only those end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab import processes
from lab.host import Deadline, wait_until
from lab.processes import MARK, Identity
from tests.fakes import Deadlines, FakeClock

LOOP = "echo ready; while :; do sleep 0.05; done"


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "node-a"
    made.mkdir()
    return made


@pytest.fixture
def start():
    """Start marked children; whatever is left is ended and collected."""
    children = []

    def go(folder, script=LOOP, **settings):
        log = folder / f"log-{len(children)}"
        child = processes.start(["sh", "-c", script], folder=folder, log=log, **settings)
        children.append(child)
        wait_until(
            "the child to be ready", lambda: ("ready" in log.read_text() or None, log.read_text()), Deadline.after(20),
            interval_s=0.01,
        )  # fmt: skip
        return child

    yield go
    for child in children:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def ended(process):
    return wait_until("the end", lambda: (not process.is_alive() or None, "alive"), Deadline.after(20), interval_s=0.01)


def _zombie(pid):
    """Wait until the process has ended and nobody has collected it, or it is gone altogether."""
    wait_until(
        "a zombie", lambda: ((processes.stat_fields(pid) or ["gone"])[0] in ("Z", "gone") or None, ""),
        Deadline.after(20), interval_s=0.01,
    )  # fmt: skip


def on_a_clock(monkeypatch):
    """The clock of all waits of :mod:`lab.processes` from now on, which moves only by hand."""
    clock = FakeClock()
    monkeypatch.setattr(processes, "Deadline", Deadlines(clock))
    return clock


def slowly(clock, monkeypatch):
    """Let it take long, on that clock, to look for processes."""
    real = processes.marked

    def marked(folder):
        found = real(folder)
        clock.advance(1000)
        return found

    monkeypatch.setattr(processes, "marked", marked)


class TestIdentity:
    def test_this_process_is_alive_and_always_the_same(self):
        me = processes.myself()
        assert me.pid == os.getpid()
        assert me.is_alive()
        assert me == processes.myself()

    def test_a_pid_that_was_used_again_is_another_process(self):
        me = processes.myself()
        assert not Identity(pid=me.pid, start_ticks=me.start_ticks - 1).is_alive()
        assert not Identity(pid=me.pid, start_ticks=0).is_alive()

    @pytest.mark.parametrize("pid", [0, 2**22 + 1, 99999999])
    def test_no_process_has_no_identity(self, pid):
        assert processes.identity(pid) is None
        assert not Identity(pid=pid, start_ticks=0).is_alive()
        assert processes.stat_fields(pid) is None

    def test_a_zombie_is_not_alive(self):
        child = subprocess.Popen(["true"])
        try:
            found = processes.identity(child.pid)
            assert found is not None
            _zombie(child.pid)
            assert not found.is_alive()
            assert processes.identity(child.pid) == found
        finally:
            child.wait()
        assert not found.is_alive()

    @pytest.mark.parametrize("name", ["a) R 1 2 (b", ") Z 0", "sp ace", "(("])
    def test_a_process_may_have_any_name(self, name, start, folder):
        child = start(folder, f'ln -s "$(command -v sleep)" "./{name}"; echo ready; exec "./{name}" 1000')
        wait_until(
            "the new name", lambda: (("sleep" not in (comm := _comm(child.pid)) and comm != "sh") or None, comm),
            Deadline.after(20), interval_s=0.01,
        )  # fmt: skip
        found = processes.identity(child.pid)
        assert found.is_alive()
        assert processes.stat_fields(child.pid)[0] in "SRD"


def _comm(pid):
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


class TestStart:
    def test_session_folder_log_and_environment(self, folder, start):
        child = start(folder, f'echo ready "$PWD" "${MARK}" "$X"; echo err >&2; sleep 1000', env={"X": "1"})
        assert os.getsid(child.pid) == child.pid
        text = wait_until(
            "both lines", lambda: (t if "err" in (t := (folder / "log-0").read_text()) else None, t), Deadline.after(20)
        )
        assert f"ready {folder} {folder} 1" in text

    def test_the_log_is_continued(self, folder):
        log = folder / "log"
        for _ in range(2):
            processes.start(["echo", "line"], folder=folder, log=log).wait()
        assert log.read_text() == "line\nline\n"


class TestMarked:
    def test_a_child_is_found_and_so_are_its_own_children(self, folder, start):
        child = start(folder, "sleep 1000 & echo ready; wait")
        found = processes.marked(folder)
        assert child.pid in [process.pid for process in found]
        assert len(found) == 2

    def test_a_folder_whose_name_begins_alike_is_another(self, tmp_path, folder, start):
        longer = tmp_path / "node-a-2"
        longer.mkdir()
        child = start(longer)
        assert processes.marked(folder) == []
        assert processes.end_marked(folder) == []
        assert child.poll() is None
        assert child.pid in [process.pid for process in processes.marked(longer)]

    def test_the_folder_above_is_another(self, tmp_path, folder, start):
        child = start(folder)
        assert processes.end_marked(tmp_path) == []
        assert child.poll() is None

    def test_other_variables_with_that_value_do_not_count(self, folder, tmp_path, start):
        other = tmp_path / "other"
        other.mkdir()
        start(other, env={"X": f"{MARK}={folder}", f"{MARK}_2": str(folder)})
        assert processes.marked(folder) == []

    def test_a_folder_may_be_named_in_several_ways(self, tmp_path, folder, start, monkeypatch):
        link = tmp_path / "link"
        link.symlink_to(folder)
        child = start(link)
        monkeypatch.chdir(tmp_path)
        for name in (folder, link, type(folder)("node-a"), folder / ".." / "node-a"):
            assert child.pid in [process.pid for process in processes.marked(name)]

    def test_one_in_the_middle_of_execve_is_found(self, folder, start, monkeypatch):
        """Its environment is empty for a moment, as the kernel has it before the new one is laid down.

        The moment may be long: here the machine stands still for five seconds between two looks.
        """
        child = start(folder, "echo ready; exec sleep 1000")
        wait_until("the mark", lambda: (processes.marked(folder) or None, ""), Deadline.after(20))
        real, fields, empty = Path.read_bytes, processes.stat_fields, [b""] * 3
        clock = on_a_clock(monkeypatch)
        monkeypatch.setattr(processes, "time", SimpleNamespace(sleep=lambda seconds: clock.advance(5)))

        def in_exec(pid):
            found = fields(pid)
            return [*found[:48], "0", *found[49:]] if pid == child.pid and empty else found

        monkeypatch.setattr(processes, "stat_fields", in_exec)
        monkeypatch.setattr(
            Path, "read_bytes",
            lambda path: empty.pop() if empty and path == Path(f"/proc/{child.pid}/environ") else real(path),
        )  # fmt: skip
        assert [process.pid for process in processes.marked(folder)] == [child.pid]
        assert empty == []

    def test_one_in_the_middle_of_execve_is_looked_at_again_though_the_time_is_over(self, folder, start, monkeypatch):
        """As when this process was stopped for longer than that after its first look."""
        child = start(folder, "echo ready; exec sleep 1000")
        wait_until("the mark", lambda: (processes.marked(folder) or None, ""), Deadline.after(20))
        clock = on_a_clock(monkeypatch)
        real, fields, empty = Path.read_bytes, processes.stat_fields, [b""]

        def read_bytes(path):
            if not empty or path != Path(f"/proc/{child.pid}/environ"):
                return real(path)
            clock.advance(2 * processes.EXEC_S)
            return empty.pop()

        def in_exec(pid):
            found = fields(pid)
            return [*found[:48], "0", *found[49:]] if pid == child.pid else found

        monkeypatch.setattr(processes, "stat_fields", in_exec)
        monkeypatch.setattr(Path, "read_bytes", read_bytes)
        assert [process.pid for process in processes.marked(folder)] == [child.pid]

    def test_a_process_without_any_variable_is_not_waited_for(self, folder, start):
        child = start(folder, "echo ready; exec env -i sleep 1000")
        wait_until("the new program", lambda: (_comm(child.pid) == "sleep" or None, ""), Deadline.after(20))
        assert processes._is_in_exec(child.pid) is False
        assert processes.marked(folder) == []

    def test_it_does_not_find_this_process(self, folder):
        assert processes.marked(folder) == []


class TestEndMarked:
    def test_nothing_to_end(self, folder):
        assert processes.end_marked(folder) == []

    def test_a_child_ends_and_leaves_no_zombie(self, folder, start):
        child = start(folder)
        assert processes.end_marked(folder) == []
        assert processes.identity(child.pid) is None

    def test_a_child_that_ends_between_two_questions_leaves_no_zombie(self, folder, start, monkeypatch):
        child = start(folder, "echo ready; exec sleep 1000")
        asked, kill = Identity.is_alive, os.killpg
        sent = []

        def is_alive(process):
            while sent:
                kill(*sent.pop())
                _zombie(process.pid)
            return asked(process)

        monkeypatch.setattr(os, "killpg", lambda *order: sent.append(order))
        monkeypatch.setattr(Identity, "is_alive", is_alive)
        assert processes.end_marked(folder, grace_s=0.2) == []
        assert processes.identity(child.pid) is None

    def test_a_child_that_ended_by_itself_leaves_no_zombie(self, folder):
        child = processes.start(["true"], folder=folder, log=folder / "log")
        _zombie(child.pid)
        assert processes.end_marked(folder) == []
        assert processes.identity(child.pid) is None

    def test_others_of_a_job_in_which_a_marked_one_runs_stay(self, folder):
        script = f'{MARK}="{folder}" sleep 1000 & echo ready; exec sleep 1000'
        with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, process_group=0) as other:
            try:
                assert other.stdout.readline() == b"ready\n"
                wait_until("the mark", lambda: (processes.marked(folder) or None, ""), Deadline.after(20))
                assert processes.end_marked(folder) == []
                assert other.poll() is None
            finally:
                os.killpg(other.pid, signal.SIGKILL)

    def test_a_polite_child_may_clean_up(self, folder, start):
        start(folder, "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
        assert processes.end_marked(folder, grace_s=20) == []
        assert "bye" in (folder / "log-0").read_text()

    def test_to_look_for_a_polite_child_takes_nothing_off_its_time(self, folder, start, monkeypatch):
        start(folder, "trap 'sleep 0.3; echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
        slowly(on_a_clock(monkeypatch), monkeypatch)
        assert processes.end_marked(folder, grace_s=20) == []
        assert "bye" in (folder / "log-0").read_text()

    def test_a_killed_child_that_is_gone_late_did_go(self, folder, start, monkeypatch):
        """The kernel takes its time, and this process was stopped for longer than it waits."""
        start(folder, f"trap '' TERM; {LOOP}")
        slowly(on_a_clock(monkeypatch), monkeypatch)
        told, timers = os.killpg, []

        def late(group, number):
            timers.append(threading.Timer(0.5 if number == signal.SIGKILL else 0, told, (group, number)))
            timers[-1].start()

        monkeypatch.setattr(os, "killpg", late)
        try:
            assert processes.end_marked(folder, grace_s=0) == []
        finally:
            for timer in timers:
                timer.join()
            monkeypatch.setattr(os, "killpg", told)

    def test_a_child_that_ignores_the_request_is_killed(self, folder, start):
        child = start(folder, f"trap '' TERM; {LOOP}")
        found = processes.identity(child.pid)
        assert processes.end_marked(folder, grace_s=0.2) == []
        assert not found.is_alive()
        child.wait()

    def test_a_stopped_child_ends_too(self, folder, start):
        child = start(folder)
        os.kill(child.pid, signal.SIGSTOP)
        found = processes.identity(child.pid)
        assert processes.end_marked(folder, grace_s=0.2) == []
        assert not found.is_alive()

    def test_a_child_that_starts_another_on_its_way_out(self, folder, start):
        start(folder, "trap 'sleep 1000 & exit 0' TERM; echo ready; while :; do sleep 0.05; done")
        assert processes.end_marked(folder, grace_s=5) == []
        assert processes.marked(folder) == []

    def test_one_of_the_group_whose_mark_cannot_be_read_ends_too(self, folder, start):
        start(folder, 'env -i sleep 1000 & echo "$!" > hidden; echo ready; wait')
        hidden = processes.identity(int((folder / "hidden").read_text()))
        wait_until(
            "its own environment",
            lambda: (hidden.pid not in [process.pid for process in processes.marked(folder)] or None, ""),
            Deadline.after(20), interval_s=0.01,
        )  # fmt: skip
        assert processes.end_marked(folder) == []
        assert ended(hidden)

    def test_the_group_of_this_process_is_never_told(self, folder):
        code = (
            "import os, sys; from pathlib import Path; from lab import processes\n"
            "folder = Path(sys.argv[1])\n"
            "os.environ[processes.MARK] = str(folder)\n"
            "if os.fork() == 0:\n"
            "    os.execvp('sleep', ['sleep', '1000'])\n"
            "import time\n"
            "while not processes.marked(folder): time.sleep(0.01)\n"
            "left = processes.end_marked(folder, grace_s=20)\n"
            "print(os.wait()[1], left)"
        )
        done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
        assert done.stdout == f"{int(signal.SIGTERM)} []\n"

    def test_an_orphan_is_ended(self, folder):
        code = (
            "import sys; from pathlib import Path; from lab import processes\n"
            "folder = Path(sys.argv[1])\n"
            "print(processes.start(['sleep', '1000'], folder=folder, log=folder / 'log').pid)"
        )
        done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
        orphan = processes.identity(int(done.stdout))
        assert orphan.is_alive()
        assert processes.end_marked(folder) == []
        assert ended(orphan)
