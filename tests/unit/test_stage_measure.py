"""Measurements under a unit: the scripts run for real, with a small systemd in PATH, and what measure makes of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from lab import processes
from lab.host import Command, Deadline, LocalHost, wait_until
from lab.model import WaitTimeout
from lab.stages.context import START, WAIT
from tests.captures_helper import Bench
from tests.fakes import Reply
from tests.test_gates import shellcheck_problems

# Just enough of systemd-run(1) and systemctl(1): a unit is a process whose pid stands in a file of its name.
SYSTEMD_RUN = """#!/bin/sh
for word in "$@"; do
    case "$word" in
        --quiet|--collect|--slice=lab.slice) shift ;;
        --unit=*) unit=${word#--unit=}; shift ;;
        -*) echo "unknown flag $word" >&2; exit 1 ;;
        *) break ;;
    esac
done
[ -e "$UNITS/$unit" ] && { echo "Unit $unit was already loaded" >&2; exit 1; }
setsid "$@" >/dev/null 2>&1 </dev/null &
echo $! >"$UNITS/$unit"
echo started >>"$UNITS/log"
"""
SYSTEMCTL = """#!/bin/sh
unit=${3%.service}
[ "$1 $2" = "is-active --quiet" ] || { echo "unknown call $*" >&2; exit 1; }
[ -e "$UNITS/$unit" ] || exit 3
read -r state <"/proc/$(cat "$UNITS/$unit")/stat" 2>/dev/null || exit 3
case "$state" in *") Z "*) exit 3 ;; esac
"""


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A machine with that systemd; gives its folder."""
    tools, units = tmp_path / "bin", tmp_path / "units"
    tools.mkdir()
    units.mkdir()
    for name, text in (("systemd-run", SYSTEMD_RUN), ("systemctl", SYSTEMCTL)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("UNITS", str(units))
    yield tmp_path
    for unit in units.glob("lab-*"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(unit.read_text()), signal.SIGKILL)


def start(node: Path, program: str, unit: str = "lab-measure-1") -> str:
    """Start a Python program as the unit; gives where its output goes."""
    script = node / "program.py"
    script.write_text(program)
    place = str(node / "out" / unit)
    LocalHost().run(Command(argv=("sh", "-c", START, "sh", place, unit, str(script), "a word", "x=1")))
    return place


def wait(place: str, unit: str = "lab-measure-1", timeout_s: float = 30) -> str:
    return LocalHost().run(Command(argv=("sh", "-c", WAIT, "sh", place, unit), timeout_s=timeout_s)).stdout


class TestScripts:
    def test_output_status_and_words(self, node):
        place = start(node, "import sys; print(sys.argv[1:]); print('oh', file=sys.stderr); sys.exit(3)")
        assert wait(place) == "3\n"
        assert Path(place).read_text() == "['a word', 'x=1']\n"
        assert Path(f"{place}.stderr").read_text() == "oh\n"

    def test_starting_again_while_it_runs_or_after_it_has_ended_starts_nothing(self, node):
        program = f"import pathlib, time\nwhile not pathlib.Path({str(node / 'go')!r}).exists(): time.sleep(0.01)"
        place = start(node, program)
        start(node, program)
        (node / "go").touch()
        assert wait(place) == "0\n"
        start(node, program)
        assert (node / "units" / "log").read_text() == "started\n"

    def test_two_that_wait_get_the_same_answer(self, node):
        place = start(node, "import time; time.sleep(0.5); print('done')")
        waiters = [
            subprocess.Popen(["sh", "-c", WAIT, "sh", place, "lab-measure-1"], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        assert [waiter.communicate(timeout=30)[0] for waiter in waiters] == ["0\n", "0\n"]

    def test_a_unit_that_was_killed_has_no_status(self, node):
        place = start(node, "import time; time.sleep(600)")
        pid = (node / "units" / "lab-measure-1").read_text().strip()

        def leads():
            return (os.getpgid(int(pid)) == int(pid) or None), "not a group of its own yet"

        wait_until("the unit to be a group of its own", leads, Deadline.after(20))
        os.killpg(int(pid), signal.SIGKILL)
        wait_until(
            "the unit to be gone",
            lambda: ((processes.stat_fields(int(pid)) or ["gone"])[0] in ("Z", "X", "gone") or None, pid),
            Deadline.after(20),
        )
        assert wait(place) == "no status: its unit is gone\n"

    def test_waiting_uses_no_cpu(self, node):
        program = f"import pathlib, time\npathlib.Path({str(node / 'begun')!r}).touch()\ntime.sleep(1.5)"
        place = start(node, program)
        # From here on the lock is held: until then somebody who waits asks again at once.
        wait_until("the program", lambda: ((node / "begun").exists() or None, ""), Deadline.after(60), interval_s=0.01)
        before = os.times()
        assert wait(place) == "0\n"
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        assert used < 1.0, "a loop that asks again and again would use about as much as it takes"


def bench(tmp_path: Path, *answers: Reply | Exception) -> Bench:
    made = Bench(tmp_path, {})
    made.programs["cpu_window.py"] = list(answers)
    return made


class TestMeasure:
    def test_the_node_is_left_alone_for_the_quiet_time(self, tmp_path):
        at = bench(tmp_path, Reply(stdout="a line\n"))
        assert at.context.measure("cpu_window.py", "w.jsonl", "x=1", timeout_s=90, quiet_s=25) == ("a line\n", "")
        assert at.slept == [25]
        assert at.saved == {"w.jsonl": "a line\n"}
        waits = [command for command in at.node_host.commands if WAIT in command.argv]
        assert [(command.timeout_s, command.repeatable) for command in waits] == [(65, True)]

    def test_every_command_of_it_may_be_sent_again(self, tmp_path):
        at = bench(tmp_path, Reply(stdout="", status=1, stderr="Traceback\n"))
        text, problem = at.context.measure("cpu_window.py", "w.jsonl", timeout_s=90)
        assert (text, problem) == ("", "cpu_window.py ended with 1: Traceback")
        assert at.saved == {"w.jsonl": "", "w.jsonl.stderr": "Traceback\n"}
        assert all(command.repeatable for command in at.node_host.commands)

    def test_two_measurements_of_one_name_do_not_share_a_file(self, tmp_path):
        at = bench(tmp_path, Reply(stdout="first\n"), Reply(stdout="second\n"))
        assert at.context.measure("cpu_window.py", "a.jsonl", timeout_s=9)[0] == "first\n"
        assert at.context.measure("cpu_window.py", "b.jsonl", timeout_s=9)[0] == "second\n"

    def test_one_that_does_not_end_is_stopped_and_what_it_wrote_is_kept(self, tmp_path):
        at = bench(tmp_path, WaitTimeout("no end in time"))
        text, problem = at.context.measure("cpu_window.py", "w.jsonl", timeout_s=9)
        assert (text, problem) == ("", "cpu_window.py: no end in time")
        assert at.saved == {"w.jsonl": ""}
        assert [command.argv[:2] for command in at.node_host.commands].count(("systemctl", "stop")) == 1


def test_scripts_are_posix(tmp_path):
    for name, script in (("start", START), ("wait", WAIT)):
        path = tmp_path / f"{name}.sh"
        path.write_text("#!/bin/sh\n" + script)
        problems = shellcheck_problems([path])
        assert not problems, problems
