"""What `-v` logs of a remote command: a line that a person's shell and OpenSSH's client run as the lab did."""

from __future__ import annotations

import logging
import re
import shlex
import subprocess
from dataclasses import replace

import pytest

from lab.host import Command
from lab.model import CommandError, NodeError, TransportError
from lab.secrets import SECRETS, MaskingFilter
from lab.ssh import Reconnect, SshHost
from lab.ssh_line import described, paste_ready, remote_line
from tests.ssh_server import SshServer

ODD = ("printf", "%s|", "a b", "it's", '"$HOME"', "*", "#", "ä\n")


@pytest.fixture
def server(tmp_path):
    made = SshServer(tmp_path / "server").start()
    yield made
    made.stop()


@pytest.fixture
def host(server):
    made = SshHost(server.address(), "node-1", reconnect=Reconnect(limit_s=60))
    yield made
    made.close()


def in_a_shell(line, home):
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    return subprocess.run(["sh", "-c", line], capture_output=True, timeout=60, check=False, env=environment)


def logged(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "lab.ssh"]


def test_the_line_runs_in_a_shell_of_its_own(server, host, tmp_path):
    command = Command(argv=ODD)
    line = paste_ready(server.address(), command, become=False)
    done = in_a_shell(line, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == host.run(command).stdout == 'a b|it\'s|"$HOME"|*|#|ä\n|'


def test_the_line_trusts_the_pinned_key_alone(server, tmp_path):
    other = SshServer(tmp_path / "other")
    other.start()
    try:
        wrong = server.address(host_key=other.host_key)
    finally:
        other.stop()
    line = paste_ready(wrong, Command(argv=("true",)), become=False)
    done = in_a_shell(line, tmp_path)
    assert done.returncode == 255
    assert b"Host key verification failed" in done.stderr


def test_duration_and_exit_status_are_logged(host, caplog):
    caplog.set_level(logging.DEBUG)
    host.run(Command(argv=("echo", "a b")))
    with pytest.raises(CommandError):
        host.run(Command(argv=("sh", "-c", "exit 3")))
    good, bad = logged(caplog)
    assert re.match(r"node-1: exit 0 in \d+\.\d\d s: ", good)
    assert shlex.split(good.partition(" s: ")[2])[-1] == "echo 'a b'"
    assert bad.startswith("node-1: exit 3 in ")


def test_a_command_without_an_end_is_logged_too(server, host, caplog):
    caplog.set_level(logging.DEBUG)
    server.stop()
    with pytest.raises(TransportError):
        host.run(Command(argv=("echo", "x")))
    (line,) = logged(caplog)
    assert line.startswith("node-1: no exit status in ")


def test_input_is_counted_and_not_shown(server):
    text = described(server.address(), Command(argv=("cat",), stdin="a key"), become=True)
    assert text.endswith("'sudo -n -- cat'  # not shown: 5 characters of input")
    assert "a key" not in text
    both = described(server.address(), Command(argv=("cat",), stdin="a key", env={"A": "y", "B": "z"}), become=False)
    assert both.endswith(" cat  # not shown: 5 characters of input; the values of A, B")


def test_a_secret_in_a_command_is_masked(host, caplog):
    secret = "dop_v1_0123456789abcdef"
    SECRETS.add(secret)
    caplog.handler.addFilter(MaskingFilter(SECRETS))
    caplog.set_level(logging.DEBUG)
    host.run(Command(argv=("echo", f"it's {secret}"), env={"LAB_X": secret}))
    assert secret not in caplog.text
    assert "***" in caplog.text


def test_what_the_own_configuration_of_ssh_does_is_left_to_it(server):
    bare = replace(server.address(), identity=None, host_keys=())
    assert paste_ready(bare, Command(argv=("true",)), become=False) == f"ssh -p {server.port} root@127.0.0.1 true"
    assert remote_line(Command(argv=("id", "-u"), env={"A": "b"}), become=True) == "sudo -n -- id -u"


class TestGone:
    """A machine that is known to be gone ends every wait at once."""

    @pytest.fixture
    def gone(self, server, host):
        asked = []

        def alive():
            asked.append(1)
            if not server.lets_in:
                raise NodeError("the guest is gone, its QEMU process 42 has ended; console:\npanic")

        host.watch(alive)
        host.run(Command(argv=("true",)))
        assert asked == [], "nothing is asked while all is well"
        return host

    def test_a_wait_ends_with_the_reason(self, server, gone):
        server.lets_in = False
        server.drop_connections()
        with pytest.raises(TransportError, match="node-1: the guest is gone, its QEMU process 42"):
            gone.run(Command(argv=("echo", "x"), repeatable=True, timeout_s=50))

    def test_a_machine_that_is_there_is_sought(self, server, gone):
        server.drop_connections()
        assert gone.run(Command(argv=("echo", "x"), repeatable=True)).stdout == "x\n"

    def test_a_bundle_does_not_seek_for_long(self, server, host):
        host.run(Command(argv=("true",)))
        with host.seeking_at_most(0.2):
            server.stop()
            with pytest.raises(TransportError, match=r"within 0\.2 s"):
                host.run(Command(argv=("true",)))
        assert host._reconnect.limit_s == 60
