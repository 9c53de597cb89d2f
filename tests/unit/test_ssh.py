"""What only SSH can get wrong: host keys, lost connections, repeated commands, missing ends."""

from __future__ import annotations

import base64
import hashlib
import logging
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import replace

import paramiko
import pytest

from lab.host import Command, Deadline
from lab.model import NodeError, TransportError, UsageError, WaitTimeout
from lab.ssh import AuthenticationRefused, HostKeyMismatch, Reconnect, SshHost, parse_public_key
from lab.ssh_keys import make_key_pair
from tests.fakes import FakeClock
from tests.projects import ROOT
from tests.ssh_server import SshServer

SECRET = "hunter2-geheim"
SOON = Reconnect(limit_s=60, first_pause_s=0.01, longest_pause_s=0.05, answer_s=60)


@pytest.fixture
def server(tmp_path):
    made = SshServer(tmp_path / "server")
    yield made
    made.stop()


@pytest.fixture
def connect(server):
    """Make hosts on the running server; all are closed at the end."""
    server.start()
    made = []

    def make(*, reconnect=SOON, **changes):
        host = SshHost(server.address(**changes), "node-1", reconnect=reconnect)
        made.append(host)
        return host

    yield make
    for host in made:
        host.close()


def counting(tmp_path, **settings):
    """A command that leaves one line per execution, and the way to count them."""
    log = tmp_path / "executions"
    command = Command(argv=("sh", "-c", f"echo x >> {log}; echo out"), **settings)
    return command, lambda: len(log.read_text().splitlines()) if log.exists() else 0


class TestHostKey:
    def test_another_key_than_the_pinned_one_is_refused_before_anything_is_sent(self, connect, server):
        host = connect(host_key=make_key_pair("x")[1])
        with pytest.raises(HostKeyMismatch, match=r"node-1 at .*another host key"):
            host.connect()
        with pytest.raises(HostKeyMismatch):
            host.run(Command(argv=("true",), repeatable=True))
        assert server.executed == []

    def test_a_mismatch_is_no_transport_error_so_nothing_tries_again(self):
        assert not issubclass(HostKeyMismatch, TransportError)
        assert issubclass(HostKeyMismatch, NodeError)

    def test_waiting_for_a_node_stops_at_a_mismatch(self, connect, server, patient_boot):
        host = connect(host_key=make_key_pair("x")[1])
        calls = []
        with pytest.raises(HostKeyMismatch):
            host.wait_ready(Deadline.after(60), alive=lambda: calls.append(1))
        assert server.connections == 1
        assert len(calls) == 1

    def test_the_message_names_both_fingerprints_and_neither_key(self, connect, server):
        pinned = make_key_pair("x")[1]
        with pytest.raises(HostKeyMismatch) as caught:
            connect(host_key=pinned).connect()
        for key in (pinned, server.host_key):
            digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
            assert f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}" in str(caught.value)
            assert key.split()[1] not in "".join(traceback.format_exception(caught.value))

    @pytest.mark.parametrize("repeatable", [False, True])
    def test_a_key_that_changes_between_two_connections_is_refused(self, connect, server, repeatable):
        host = connect()
        host.connect()
        server.drop_connections()
        server.next_key = server.folder / "other"
        server.next_key.write_text(make_key_pair("x")[0])
        for _ in range(3):
            with pytest.raises(HostKeyMismatch):
                host.run(Command(argv=("true",), repeatable=repeatable))
        assert server.executed == []
        assert server.connections == 4

    def test_one_of_several_pinned_keys_of_the_same_type_is_enough(self, connect, server):
        host = connect()
        host.pin((make_key_pair("a")[1], server.host_key, make_key_pair("b")[1]))
        assert host.run(Command(argv=("echo", "in"))).stdout == "in\n"

    def test_without_a_pinned_key_nothing_is_accepted(self, connect, server):
        host = connect()
        host.pin(())
        with pytest.raises(HostKeyMismatch, match=r"pinned one \(none\)"):
            host.connect()

    def test_a_key_of_a_pinned_type_is_asked_for_first(self, connect, server):
        """A server with several keys shows the pinned one, whatever type the client likes best."""
        rsa = paramiko.RSAKey.generate(2048)
        ecdsa = paramiko.ECDSAKey.generate()
        server.more_keys = [rsa, ecdsa]
        for key in (rsa, ecdsa):
            host = connect(host_key=f"{key.get_name()} {key.get_base64()}")
            assert host.run(Command(argv=("echo", "in"))).stdout == "in\n"

    def test_a_server_without_a_key_of_the_pinned_type_is_a_mismatch(self, connect):
        rsa = paramiko.RSAKey.generate(2048)
        with pytest.raises(HostKeyMismatch, match="ssh-ed25519 SHA256:"):
            connect(host_key=f"{rsa.get_name()} {rsa.get_base64()}").connect()

    def test_the_pinned_key_may_have_a_comment(self, connect, server):
        host = connect(host_key=f"{server.host_key.strip()} and more words")
        assert host.run(Command(argv=("echo", "in"))).stdout == "in\n"

    def test_an_unknown_user_is_a_transport_error_without_an_endless_wait(self, connect):
        host = connect(user="nobody")
        with pytest.raises(AuthenticationRefused, match="Authentication"):
            host.connect()
        assert issubclass(AuthenticationRefused, TransportError)

    def test_a_private_key_that_cannot_be_used_is_named_before_any_connection(self, connect, server, tmp_path):
        key = tmp_path / "key"
        host = connect()
        host.address = replace(host.address, identity=key)
        with pytest.raises(UsageError, match=f"{key}: No such file"):
            host.connect()
        key.write_text("no key")
        with pytest.raises(UsageError, match=str(key)):
            host.connect()
        paramiko.RSAKey.generate(2048).write_private_key_file(str(key), password="secret")
        with pytest.raises(UsageError, match="passphrase"):
            host.connect()
        assert server.connections == 0

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "ssh-ed25519",
            "ssh-ed25519 !!!",
            "ssh-ed25519 AAAA",
            "ssh-rsa AAAAC3NzaC1lZDI1NTE5",
            "ssh-rsa AAAAB3NzaC1yc2EAAAAgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
            "no-type AAAA",
        ],
    )
    def test_text_that_is_no_key_is_named(self, text):
        with pytest.raises(NodeError, match="not an OpenSSH public key"):
            parse_public_key(text)

    def test_the_keys_that_the_lab_makes_are_read_back(self):
        public = make_key_pair("a comment")[1]
        assert parse_public_key(public).get_base64() == public.split()[1]


class TestWaitReady:
    def test_a_node_that_answers_late_is_waited_for(self, server):
        host = SshHost(server.address(), "node-1")
        calls = []

        def alive():
            calls.append(1)
            if len(calls) == 3:
                server.start()

        host.wait_ready(Deadline.after(60), alive)
        assert len(calls) >= 3
        assert host.run(Command(argv=("echo", "up"))).stdout == "up\n"
        host.close()

    def test_refused_logins_are_not_hammered(self, server, patient_boot):
        server.start()
        server.lets_in = False
        clock = FakeClock()
        host = SshHost(server.address(), "node-1", reconnect=Reconnect(clock=clock, sleep=clock.sleep))

        def alive():
            server.lets_in = len(clock.sleeps) == 3

        host.wait_ready(Deadline.after(60, clock), alive)
        host.close()
        assert clock.sleeps == [5, 5, 5]
        assert server.connections == 4

    def test_a_dead_machine_ends_the_wait(self, server):
        def alive():
            raise NodeError("the guest ended by itself")

        with pytest.raises(NodeError, match="ended by itself"):
            SshHost(server.address(), "node-1").wait_ready(Deadline.after(60), alive)

    def test_the_deadline_names_the_last_state(self, server):
        with pytest.raises(WaitTimeout, match=r"ssh on node-1; last seen: node-1 at \[127.0.0.1\]:\d+: "):
            SshHost(server.address(), "node-1").wait_ready(Deadline.after(0.3))


class TestLostConnection:
    def test_a_command_that_may_not_be_repeated_runs_once(self, connect, server, tmp_path):
        command, executions = counting(tmp_path)
        host = connect()
        server.break_next("executions", "drop")
        with pytest.raises(TransportError, match="executions"):
            host.run(command)
        assert executions() == 1
        assert server.count("executions") == 1

    def test_a_repeatable_command_runs_once_more(self, connect, server, tmp_path):
        command, executions = counting(tmp_path, repeatable=True)
        server.break_next("executions", "drop")
        assert connect().run(command).stdout == "out\n"
        assert executions() == 2
        assert server.connections == 2

    def test_as_often_as_the_connection_is_lost(self, connect, server, tmp_path):
        command, executions = counting(tmp_path, repeatable=True)
        for _ in range(5):
            server.break_next("executions", "drop")
        assert connect().run(command).stdout == "out\n"
        assert executions() == 6
        assert server.connections == 6

    def test_but_not_for_ever(self, connect, server, tmp_path):
        command, executions = counting(tmp_path, repeatable=True)
        for _ in range(200):
            server.break_next("executions", "drop")
        clock = FakeClock()
        # What passes on the real clock until a loss is noticed counts as well: a machine that stands still uses it up.
        host = connect(reconnect=Reconnect(limit_s=60, clock=clock, sleep=clock.sleep))
        with pytest.raises(TransportError, match="no connection that lasts within 60 s; last: node-1"):
            host.run(command)
        assert 2 <= executions() <= 17
        assert sum(clock.sleeps) <= 60

    @pytest.mark.parametrize("repeatable", [False, True])
    def test_output_before_the_loss_is_never_taken_for_all(self, connect, server, repeatable):
        command = Command(argv=("sh", "-c", "echo part; echo whole"), repeatable=repeatable)
        for _ in range(3):
            server.break_next("whole", "drop-midway")
        if repeatable:
            assert connect().run(command).stdout == "part\nwhole\n"
            assert server.count("whole") == 4
        else:
            with pytest.raises(TransportError):
                connect().run(command)
            assert server.count("whole") == 1

    def test_a_refused_login_after_a_loss_is_not_tried_again(self, connect, server, tmp_path):
        command, executions = counting(tmp_path, repeatable=True)
        host = connect()
        host.connect()
        server.drop_connections()
        server.lets_in = False
        with pytest.raises(AuthenticationRefused):
            host.run(command)
        assert server.connections == 2
        server.lets_in = True
        assert host.run(command).stdout == "out\n"
        assert executions() == 1

    def test_a_failing_command_is_not_repeated(self, connect, server):
        host = connect()
        with pytest.raises(NodeError, match="exit 7"):
            host.run(Command(argv=("sh", "-c", "exit 7"), repeatable=True))
        assert server.count("exit 7") == 1

    def test_a_timeout_is_not_repeated(self, connect, server):
        host = connect()
        host.connect()
        with pytest.raises(WaitTimeout):
            host.run(Command(argv=("sleep", "61"), timeout_s=3, repeatable=True))
        assert server.count("sleep 61") == 1

    def test_a_connection_lost_between_two_commands_is_made_again_for_any_command(self, connect, server, tmp_path):
        command, executions = counting(tmp_path)
        host = connect()
        host.connect()
        server.drop_connections()
        assert host.run(command).stdout == "out\n"
        assert executions() == 1

    def test_after_a_loss_the_next_command_finds_the_node_again(self, connect, server, tmp_path):
        command, executions = counting(tmp_path)
        host = connect()
        server.break_next("executions", "drop")
        with pytest.raises(TransportError):
            host.run(command)
        assert host.run(Command(argv=("echo", "logs"))).stdout == "logs\n"
        assert executions() == 1

    @pytest.mark.parametrize(("repeatable", "said"), [(False, "sleep 62"), (True, "Connection refused")])
    def test_a_server_that_dies_under_a_command(self, connect, server, repeatable, said):
        clock = FakeClock()
        host = connect(reconnect=Reconnect(clock=clock, sleep=clock.sleep))
        killer = threading.Thread(target=lambda: (server.running.wait(30), server.stop()))
        killer.start()
        with pytest.raises(TransportError, match=said):
            host.run(Command(argv=("sleep", "62"), repeatable=repeatable, timeout_s=60))
        killer.join()
        with pytest.raises(TransportError, match="ConnectionRefusedError"):
            host.run(Command(argv=("true",), repeatable=True))

    def test_closing_twice_and_using_it_again(self, connect, server):
        host = connect()
        host.close()
        assert host.run(Command(argv=("echo", "1"))).stdout == "1\n"
        host.close()
        host.close()
        assert host.run(Command(argv=("echo", "2"))).stdout == "2\n"
        assert server.connections == 2


class TestEndOfACommand:
    def test_a_missing_status_line_is_never_a_success(self, connect, server, tmp_path):
        command, executions = counting(tmp_path)
        server.break_next("executions", "no-marker")
        with pytest.raises(TransportError, match="no end seen"):
            connect().run(command)
        assert executions() == 1

    @pytest.mark.parametrize("fault", ["no-marker", "close"])
    @pytest.mark.parametrize("times", [1, 2])
    def test_a_lost_end_on_a_living_connection_is_chance_once(self, connect, server, tmp_path, fault, times):
        command, _ = counting(tmp_path, repeatable=True)
        for _ in range(times):
            server.break_next("executions", fault)
        host = connect()
        if times == 1:
            assert host.run(command).stdout == "out\n"
        else:
            with pytest.raises(TransportError, match="no end seen"):
                host.run(command)
        assert server.count("executions") == 2

    def test_a_channel_closed_without_anything_is_never_a_success(self, connect, server, tmp_path):
        command, executions = counting(tmp_path, check=False)
        server.break_next("executions", "close")
        with pytest.raises(TransportError):
            connect().run(command)
        assert executions() == 0

    def test_a_shell_that_is_killed_before_it_could_report(self, connect, server):
        # The login shell is the parent of `timeout`, which is the parent of this sh.
        line = "kill -9 $(sed -n 's/^PPid:[[:space:]]*//p' /proc/$PPID/status)"
        with pytest.raises(TransportError, match="no end seen"):
            connect().run(Command(argv=("sh", "-c", line), check=False))

    def test_a_command_cannot_forge_its_status(self, connect):
        done = connect().run(
            Command(argv=("sh", "-c", "printf '\\nlab-rc-0123456789abcdef=0\\n' >&2; exit 5"), check=False)
        )
        assert done.exit_status == 5
        assert done.stderr == "\nlab-rc-0123456789abcdef=0\n"

    def test_the_far_side_gets_a_deadline_of_its_own(self, connect, server):
        connect().run(Command(argv=("true",), timeout_s=67.2))
        assert server.executed[0].startswith("timeout -k 5 73 true; ")

    def test_a_server_that_never_answers_the_request_is_a_timeout(self, connect, server):
        server.break_next("echo", "no-reply")
        with pytest.raises(WaitTimeout, match="echo stuck"):
            connect().run(Command(argv=("echo", "stuck"), timeout_s=0.5))

    def test_a_server_that_closes_while_input_is_still_sent(self, connect, server):
        server.break_next("exit 3", "early-close")
        done = connect().run(Command(argv=("sh", "-c", "exit 3"), stdin="x" * 5_000_000, check=False))
        assert done.exit_status == 3


STOPPED = """
import time
from types import SimpleNamespace
from lab.host import Deadline
from lab.ssh_channel import {waiting}

closed = []
transport = SimpleNamespace(close=lambda: closed.append(1), is_active=lambda: True)
"""
HANGING_UP = """
channel = SimpleNamespace(get_transport=lambda: transport, close=lambda: None)
deadline = Deadline.after(1)
with hanging_up_after(deadline, channel):
    print("begun", flush=True)
    while deadline.remaining_s() > 0:
        time.sleep(0.02)
    time.sleep(0.1)
"""
ANSWERING = """
def request(kind):
    print("begun", flush=True)
    for _ in range(20):
        time.sleep(0.02)

transport.global_request = request
assert answers(transport, 2)
"""


@pytest.mark.parametrize(
    ("waiting", "text"), [("hanging_up_after", HANGING_UP), ("answers", ANSWERING)], ids=["end", "question"]
)
def test_a_stop_of_this_very_process_is_no_dead_link(waiting, text):
    script = f"{STOPPED.format(waiting=waiting)}{text}assert not closed\n"
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 0


class TestSecrets:
    @pytest.mark.parametrize(
        ("script", "fault", "kind"),
        [
            ("cat > /dev/null; exit 4", None, NodeError),
            ("cat > /dev/null; sleep 63", None, WaitTimeout),
            ("cat > /dev/null; echo x", "drop", TransportError),
            ("cat > /dev/null; echo x", "no-marker", TransportError),
            ("cat > /dev/null; echo x", "close", TransportError),
        ],
    )
    def test_neither_input_nor_environment_stands_in_an_error_or_a_log(
        self, connect, server, caplog, script, fault, kind
    ):
        caplog.set_level(logging.DEBUG)
        if fault:
            server.break_next("cat", fault)
        command = Command(
            argv=("sh", "-c", script),
            stdin=SECRET,
            env={"LAB_TOKEN": SECRET},
            timeout_s=0.7 if kind is WaitTimeout else 30,
            repeatable=False,
        )
        with pytest.raises(kind) as caught:
            connect().run(command)
        assert script in str(caught.value)
        assert SECRET not in "".join(traceback.format_exception(caught.value))
        assert SECRET not in caplog.text

    def test_a_text_that_is_put_is_in_no_command_line(self, connect, server, tmp_path):
        connect().put_text(SECRET, str(tmp_path / "secret"), mode=0o600)
        assert (tmp_path / "secret").read_text() == SECRET
        assert all(SECRET not in line for line in server.executed)


class TestPut:
    @pytest.fixture
    def source(self, tmp_path):
        path = tmp_path / "binary"
        path.write_bytes(b"new content" * 1000)
        return path

    def test_content_that_changed_on_its_way_never_reaches_the_target(self, connect, server, source, tmp_path):
        target = tmp_path / "target"
        target.write_bytes(b"old")
        server.corrupt_uploads = True
        with pytest.raises(NodeError, match=r"binary arrived as [0-9a-f]{64}, sent as [0-9a-f]{64}"):
            connect().put({str(target): source})
        assert target.read_bytes() == b"old"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["binary", "server", "target"]

    def test_a_folder_in_the_place_of_the_target(self, connect, server, source, tmp_path):
        (tmp_path / "target").mkdir()
        with pytest.raises(NodeError, match="directory"):
            connect().put({str(tmp_path / "target"): source})
        assert list((tmp_path / "target").iterdir()) == []
        assert server.opened == []

    def test_a_folder_that_takes_the_place_of_the_target_under_the_transfer(self, connect, server, source, tmp_path):
        target = tmp_path / "target"
        server.on_open = target.mkdir
        with pytest.raises(NodeError, match=r"mv: .*target"):
            connect().put({str(target): source})
        assert list(target.iterdir()) == []
        assert sorted(path.name for path in tmp_path.iterdir()) == ["binary", "server", "target"]

    @pytest.mark.parametrize(
        ("times", "told"),
        [
            pytest.param(1, "0 of 11000 bytes are there; is its disk full", id="seen in the size"),
            # More writes than paramiko leaves unanswered: it raises the answer to one of them.
            pytest.param(1000, "the node refused it; is its disk full", id="seen in an answer"),
        ],
    )
    def test_a_full_disk_is_named_and_nothing_is_left(self, connect, server, source, tmp_path, times, told):
        source.write_bytes(source.read_bytes() * times)
        server.disk_is_full = True
        with pytest.raises(NodeError, match=told):
            connect().put({str(tmp_path / "target"): source})
        assert sorted(path.name for path in tmp_path.iterdir()) == ["binary", "server"]

    def test_nothing_is_left_anywhere_when_one_of_several_files_is_refused(self, connect, server, source, tmp_path):
        one, other = tmp_path / "one" / "file", tmp_path / "other" / "file"

        def fill() -> None:
            server.disk_is_full = len(server.opened) == 2

        server.on_open = fill
        with pytest.raises(NodeError, match=r"cannot write .*/other/.*/2: .*is its disk full"):
            connect().put({str(one): source, str(other): source})
        assert len(server.opened) == 2
        assert [*one.parent.iterdir(), *other.parent.iterdir()] == []
        assert server.count("rm -rf") == 1

    def test_a_file_that_arrived_otherwise_keeps_those_after_it_from_their_places(
        self, connect, server, source, tmp_path
    ):
        def corrupt() -> None:
            server.corrupt_uploads = len(server.opened) == 2

        server.on_open = corrupt
        targets = [tmp_path / "data" / name for name in ("first", "second", "third")]
        with pytest.raises(NodeError, match="binary arrived as"):
            connect().put({str(target): source for target in targets})
        assert [path.name for path in (tmp_path / "data").iterdir()] == ["first"]

    def test_a_transfer_that_takes_too_long_leaves_the_target_alone(self, connect, source, tmp_path):
        target = tmp_path / "target"
        target.write_bytes(b"old")
        host = connect()
        host.connect()
        with pytest.raises(NodeError):
            host.put({str(target): source}, timeout_s=0.0)
        assert target.read_bytes() == b"old"

    def test_no_second_transfer_on_a_new_connection(self, connect, server, source, tmp_path):
        connect().put({str(tmp_path / "target"): source})
        connect().put({str(tmp_path / "target"): source})
        (arrival,) = server.opened
        assert re.fullmatch(rf"{tmp_path}/\.lab-put-[0-9a-f]{{32}}/1", arrival)
