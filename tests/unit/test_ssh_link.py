"""A link that is cut, refuses, freezes or is led elsewhere: what survives, what never runs twice, what always stops."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace

import paramiko
import pytest

from lab import processes
from lab.host import Command, Deadline, wait_until
from lab.model import Interrupted, NodeError, TransportError, WaitTimeout
from lab.ssh import CONNECT_TIMEOUT_S, UNNOTICED_S, HostKeyMismatch, Reconnect, SshHost
from tests.fakes import Deadlines, FakeClock
from tests.link import Link
from tests.ssh_server import SshServer

SOON = Reconnect(limit_s=60, first_pause_s=0.01, longest_pause_s=0.05, answer_s=60)
IMPATIENT = replace(SOON, answer_s=3)
LARGE = 3_000_000


@pytest.fixture
def server(tmp_path):
    made = SshServer(tmp_path / "server").start()
    yield made
    made.stop()


@pytest.fixture
def link(server):
    made = Link(server.port)
    yield made
    made.stop()


@pytest.fixture
def connect(server, link):
    """Make hosts that reach the server through the link; all are closed at the end."""
    made = []

    def make(reconnect=SOON):
        host = SshHost(server.address(port=link.port), "node-1", reconnect=reconnect)
        made.append(host)
        return host

    yield make
    for host in made:
        host.close()


@pytest.fixture
def host(connect):
    return connect()


class Watch:
    """The clock of a command's deadlines: as the machine's, and a test may put it forward."""

    def __init__(self):
        self.ahead_s = 0.0

    def __call__(self):
        return time.monotonic() + self.ahead_s


@pytest.fixture
def watch(monkeypatch):
    made = Watch()
    monkeypatch.setattr("lab.ssh.Deadline", Deadlines(made))
    return made


def counting(tmp_path, line="echo out", **settings):
    """A command that leaves one line per execution, and the way to count them."""
    log = tmp_path / "executions"
    command = Command(argv=("sh", "-c", f"echo x >> {log}; {line}"), **settings)
    return command, lambda: len(log.read_text().splitlines()) if log.exists() else 0


def hanging_once(tmp_path, **settings):
    """A command that hangs when it runs for the first time, and the way to count its executions."""
    return counting(tmp_path, f"[ $(wc -l < {tmp_path}/executions) -gt 1 ] || sleep 60; echo out", **settings)


def once_running(server, act, executions=lambda: 1):
    """Call ``act`` in a thread when the server has started a command, and it has counted itself."""
    server.running.clear()

    def wait_and_act():
        server.running.wait(30)
        wait_until("the first execution", lambda: (executions() or None, "none"), Deadline.after(30), interval_s=0.005)
        act()

    thread = threading.Thread(target=wait_and_act, daemon=True)
    thread.start()
    return thread


def wait_for_end(server):
    """Until no process of a command is left on the server."""
    wait_until(
        "the end of all commands",
        lambda: (True if not processes.marked(server.folder) else None, "running"),
        Deadline.after(30),
        interval_s=0.02,
    )


class TestCut:
    def test_a_long_repeatable_command_survives_an_outage(self, server, link, host, tmp_path):
        command, executions = hanging_once(tmp_path, repeatable=True)
        breaker = once_running(server, lambda: link.cut_for(0.6), executions)
        assert host.run(command).stdout == "out\n"
        breaker.join()
        assert executions() == 2
        assert link.accepted == 2

    def test_a_command_that_may_not_be_repeated_runs_once(self, server, link, host, tmp_path):
        command, executions = hanging_once(tmp_path)
        breaker = once_running(server, link.cut, executions)
        with pytest.raises(TransportError, match="executions"):
            host.run(command)
        breaker.join()
        assert executions() == 1
        assert host.run(Command(argv=("echo", "next"))).stdout == "next\n"
        assert executions() == 1

    @pytest.mark.parametrize("repeatable", [False, True])
    def test_an_outage_between_two_commands_is_waited_for(self, link, host, tmp_path, repeatable):
        command, executions = counting(tmp_path, repeatable=repeatable)
        host.connect()
        link.cut_for(0.4)
        assert host.run(command).stdout == "out\n"
        assert executions() == 1

    def test_pauses_grow_to_five_seconds_and_end_after_two_minutes(self, link, connect):
        clock = FakeClock()
        host = connect(Reconnect(clock=clock, sleep=clock.sleep))
        host.connect()
        link.refuse()
        link.cut()
        with pytest.raises(TransportError, match="no connection that lasts within 120 s"):
            host.run(Command(argv=("true",), repeatable=True))
        assert clock.sleeps[:6] == [0.5, 1, 2, 4, 5, 5]
        assert max(clock.sleeps) == 5
        # What passed on the real clock before the loss was noticed counts as well.
        assert 60 < sum(clock.sleeps) <= 120

    def test_a_node_sought_in_vain_costs_the_next_command_one_try(self, link, connect):
        clock = FakeClock()
        host = connect(Reconnect(clock=clock, sleep=clock.sleep))
        host.connect()
        link.refuse()
        link.cut()
        for _ in range(2):
            with pytest.raises(TransportError):
                host.run(Command(argv=("true",)))
        assert sum(clock.sleeps) <= 120
        link.allow()
        assert host.run(Command(argv=("echo", "back"))).stdout == "back\n"

    def test_a_node_that_never_answered_is_not_sought(self, link, connect):
        clock = FakeClock()
        link.refuse()
        with pytest.raises(TransportError, match="Connection refused"):
            connect(Reconnect(clock=clock, sleep=clock.sleep)).run(Command(argv=("true",), repeatable=True))
        assert clock.sleeps == []


    @pytest.mark.parametrize("repeatable", [False, True])
    def test_a_connection_that_ends_just_before_a_request_is_waited_for(
        self, server, host, monkeypatch, tmp_path, repeatable
    ):
        """paramiko forgets there that the channel has ended, and would wait for its end."""
        pending = paramiko.Channel._event_pending
        lost = []

        def late(channel):
            if not lost:
                lost.append(channel)
                server.drop_connections()
                wait_until("the end", lambda: (channel.closed or None, "open"), Deadline.after(30), interval_s=0.01)
            pending(channel)

        monkeypatch.setattr(paramiko.Channel, "_event_pending", late)
        command, executions = counting(tmp_path, repeatable=repeatable, timeout_s=600)
        if repeatable:
            assert host.run(command).stdout == "out\n"
        else:
            with pytest.raises(TransportError):
                host.run(command)
        assert executions() == int(repeatable)


class TestSignal:
    """A signal while paramiko is between taking a lock of its own and the block that would give it back."""

    @pytest.mark.parametrize("method", ["_send_user_message", "open_session"])
    def test_the_next_command_does_not_wait_for_that_lock(self, host, monkeypatch, method):
        real = getattr(paramiko.Transport, method)

        def interrupted(transport, *arguments, **settings):
            monkeypatch.setattr(paramiko.Transport, method, real)
            transport.clear_to_send_lock.acquire()
            raise Interrupted("stopped by SIGINT")

        assert host.run(Command(argv=("echo", "1"))).stdout == "1\n"
        monkeypatch.setattr(paramiko.Transport, method, interrupted)
        with pytest.raises(Interrupted):
            host.run(Command(argv=("echo", "2"), repeatable=True))
        said = []
        command = Command(argv=("echo", "3"), timeout_s=60)
        waiting = threading.Thread(target=lambda: said.append(host.run(command).stdout), daemon=True)
        waiting.start()
        waiting.join(60)
        assert said == ["3\n"]


class TestFrozen:
    def test_the_deadline_finds_it(self, server, link, host):
        breaker = once_running(server, link.freeze)
        with pytest.raises(WaitTimeout, match="sleep 60"):
            host.run(Command(argv=("sleep", "60"), timeout_s=0.8))
        breaker.join()

    @pytest.mark.parametrize("size", [0, 20_000_000])
    def test_neither_input_nor_goodbye_holds_a_command_up(self, server, link, host, size):
        host.connect()
        breaker = once_running(server, link.freeze)
        with pytest.raises(NodeError):
            host.run(Command(argv=("sh", "-c", "cat; sleep 60"), stdin="x" * size, timeout_s=0.5))
        breaker.join()

    def test_the_next_command_leaves_the_frozen_connection_behind(self, link, host, monkeypatch):
        real, limits = paramiko.Transport.open_session, []

        def impatient(transport, *, timeout):
            monkeypatch.setattr(paramiko.Transport, "open_session", real)
            limits.append(timeout)
            return real(transport, timeout=1.0)

        host.connect()
        link.freeze()
        monkeypatch.setattr(paramiko.Transport, "open_session", impatient)
        assert host.run(Command(argv=("echo", "next"), timeout_s=60)).stdout == "next\n"
        assert link.accepted == 2
        # Real commands wait as long as for a connection.
        assert limits == [CONNECT_TIMEOUT_S]

    def test_a_repeatable_command_leaves_it_behind_at_its_deadline(self, server, link, connect, watch, tmp_path):
        command, executions = hanging_once(tmp_path, repeatable=True, timeout_s=600)
        host = connect(IMPATIENT)
        host.connect()

        def freeze_until_the_deadline():
            link.freeze()
            watch.ahead_s += command.timeout_s

        breaker = once_running(server, freeze_until_the_deadline, executions)
        assert host.run(command).stdout == "out\n"
        breaker.join()
        assert executions() == 2
        assert link.accepted == 2

    def test_a_dead_peer_gets_no_credit_for_ever(self, link, connect, watch, tmp_path):
        """Each new connection freezes as well: the limit of the outage ends it."""
        command, executions = counting(tmp_path, "sleep 60", repeatable=True, timeout_s=600)
        limit_s = UNNOTICED_S + 3
        host = connect(replace(IMPATIENT, limit_s=limit_s))
        host.connect()
        stop = threading.Event()

        def freeze_all():
            while not stop.wait(0.01):
                if executions() > 0:
                    link.freeze()
                    watch.ahead_s += command.timeout_s

        freezer = threading.Thread(target=freeze_all)
        freezer.start()
        try:
            with pytest.raises(TransportError, match=f"no connection that lasts within {limit_s:g} s"):
                host.run(command)
        finally:
            stop.set()
            freezer.join()

    def test_a_pause_of_the_link_shorter_than_the_deadline_loses_nothing(self, server, link, host, tmp_path):
        command, executions = counting(tmp_path, "cat; echo out", stdin="y" * LARGE, timeout_s=600)

        def pause():
            link.freeze()
            threading.Timer(0.4, link.thaw).start()

        breaker = once_running(server, pause)
        assert host.run(command).stdout == "y" * LARGE + "out\n"
        breaker.join()
        assert executions() == 1
        assert link.accepted == 1

    def test_the_kernel_is_told_to_find_a_dead_peer(self, host):
        host.connect()
        sock = host._transport().sock
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10


class TestAnotherMachine:
    """Whoever answers with another key gets nothing, at whatever moment he steps in."""

    @pytest.fixture
    def other(self, tmp_path):
        made = SshServer(tmp_path / "other")
        # He would let us in.
        yield made.start()
        made.stop()

    @pytest.fixture
    def lead_astray(self, server, link, other):
        def act(*, cut=True):
            other.authorized = server.authorized
            link.target = other.port
            if cut:
                link.cut()

        return act

    @pytest.mark.parametrize("moment", ["before", "between", "under a command", "under a transfer", "wait_ready"])
    def test_it_stops_and_is_never_tried_again(
        self, server, link, host, other, lead_astray, tmp_path, patient_boot, moment
    ):
        source = tmp_path / "source"
        source.write_bytes(b"x" * LARGE)
        command, _ = counting(tmp_path, "sleep 60; echo out", repeatable=True)
        if moment in ("before", "wait_ready"):
            lead_astray()
        elif moment == "between":
            host.connect()
            lead_astray()
        elif moment == "under a transfer":
            host.connect()
            lead_astray(cut=False)
            link.cut_after(LARGE // 2)
        else:
            once_running(server, lead_astray)
        acts = {
            "wait_ready": lambda: host.wait_ready(Deadline.after(60)),
            "under a transfer": lambda: host.put({str(tmp_path / "target"): source}),
        }
        with pytest.raises(HostKeyMismatch):
            acts.get(moment, lambda: host.run(command))()
        assert other.connections == 1
        for _ in range(3):
            with pytest.raises(HostKeyMismatch):
                host.run(command)
        assert other.connections == 4
        assert other.executed == []
        assert other.opened == []
        assert not (tmp_path / "target").exists()


class TestFiles:
    @pytest.fixture
    def source(self, tmp_path):
        path = tmp_path / "binary"
        path.write_bytes(bytes(range(256)) * 2000)
        return path

    @pytest.mark.parametrize("count", [10, 4_500, 9_000, 50_000, 300_000, 512_000, 516_000, 520_000])
    def test_put_survives_a_cut_anywhere(self, server, link, host, source, tmp_path, count):
        target = tmp_path / "data" / "target"
        host.connect()
        link.cut_after(count)
        host.put({str(target): source}, mode=0o750)
        assert target.read_bytes() == source.read_bytes()
        assert target.stat().st_mode & 0o7777 == 0o750
        assert [path.name for path in target.parent.iterdir()] == ["target"]

    def test_files_that_have_arrived_are_not_sent_again_after_a_cut(self, server, link, host, source, tmp_path):
        small = tmp_path / "small"
        small.write_bytes(b"small" * 1000)
        names = {"first": small, "second": source, "third": small}
        host.connect()
        link.cut_after(300_000)
        host.put({str(tmp_path / "data" / name): path for name, path in names.items()})
        assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == {
            name: path.read_bytes() for name, path in names.items()
        }
        assert [path.rpartition("/")[2] for path in server.opened] == ["1", "2", "2", "3"]
        assert server.count("rm -rf") == 1

    @pytest.mark.parametrize("word", ["mkdir -p", "mv -fT", "chmod"])
    def test_put_survives_a_step_whose_answer_is_lost(self, server, host, source, tmp_path, word):
        target = tmp_path / "target"
        for fault in ("drop", "no-marker"):
            server.break_next(word, fault)
        host.put({str(target): source}, mode=0o700)
        assert target.read_bytes() == source.read_bytes()
        assert target.stat().st_mode & 0o7777 == 0o700

    def test_put_gives_up_with_the_target_untouched(self, link, connect, source, tmp_path):
        target = tmp_path / "target"
        target.write_bytes(b"old")
        host = connect(replace(SOON, limit_s=0.2))
        host.connect()
        link.cut_after(100_000)
        link.refuse()
        with pytest.raises(TransportError):
            host.put({str(target): source})
        assert target.read_bytes() == b"old"

    @pytest.mark.parametrize("limit_s", [0.0, 30.0])
    def test_a_text_cut_on_its_way_never_stands_for_the_whole(self, server, link, connect, tmp_path, limit_s):
        target = tmp_path / "data" / "text"
        target.parent.mkdir()
        target.write_text("old")
        text = "0123456789\n" * 30_000
        host = connect(replace(SOON, limit_s=limit_s))
        host.connect()
        link.cut_after(100_000)
        if limit_s:
            host.put_text(text, str(target))
        else:
            with pytest.raises(TransportError):
                host.put_text(text, str(target))
        wait_for_end(server)
        assert target.read_text() == (text if limit_s else "old")
        assert [path.name for path in target.parent.iterdir()] == ["text"]


def test_both_streams_drain_over_a_slow_link(link, host):
    link.latency_s = 0.003
    line = f"head -c {LARGE} /dev/zero | tr '\\0' e >&2; echo out"
    done = host.run(Command(argv=("sh", "-c", line), timeout_s=60))
    assert (done.stdout, len(done.stderr), set(done.stderr)) == ("out\n", LARGE, {"e"})
