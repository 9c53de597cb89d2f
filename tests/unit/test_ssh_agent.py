"""The user's ssh-agent: asked once for each connection, and not waited for without end."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from dataclasses import replace

import pytest

from lab import ssh_connect
from lab.model import TransportError
from lab.ssh import SshHost
from tests.ssh_server import SshServer

REQUEST_IDENTITIES, IDENTITIES_ANSWER = 11, 12
"""draft-miller-ssh-agent, section 6.1"""


class Agent:
    """Listens where SSH_AUTH_SOCK points to. It knows no key, or says nothing at all."""

    def __init__(self, place, *, is_silent):
        self.asked = []
        self._is_silent = is_silent
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(place))
        self._socket.listen(8)
        self._taken = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self._taken.append(connection)
                data = connection.recv(5)
                self.asked.append(data)
                if not self._is_silent:
                    connection.sendall(struct.pack(">IBI", 5, IDENTITIES_ANSWER, 0))

    def stop(self):
        self._socket.shutdown(socket.SHUT_RDWR)
        for each in (self._socket, *self._taken):
            each.close()


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """``make(is_silent=…)``; no key files are there."""
    made = []

    def make(*, is_silent):
        made.append(Agent(tmp_path / "agent", is_silent=is_silent))
        return made[0]

    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    monkeypatch.setenv("HOME", str(tmp_path))
    yield make
    for each in made:
        each.stop()


@pytest.fixture
def server(tmp_path):
    made = SshServer(tmp_path / "server").start()
    yield made
    made.stop()


def test_one_that_does_not_answer_is_told(agent, server, monkeypatch):
    monkeypatch.setattr(ssh_connect, "AGENT_S", 0.2)
    agent(is_silent=True)
    host = SshHost(replace(server.address(), identity=None), "own-host")
    ended = []

    def connect():
        with pytest.raises(TransportError, match="unset SSH_AUTH_SOCK, or name a key with --identity"):
            host.connect(timeout_s=5)
        ended.append(True)

    # Of its own, so that a wait without end fails this test and no other.
    trying = threading.Thread(target=connect, daemon=True)
    trying.start()
    trying.join(60)
    assert ended, "still waiting"


def test_one_that_answers_is_asked_once(agent, server):
    made = agent(is_silent=False)
    host = SshHost(replace(server.address(), identity=None), "own-host")
    with pytest.raises(TransportError, match="own-host at"):
        host.connect(timeout_s=20)
    assert made.asked == [struct.pack(">IB", 1, REQUEST_IDENTITIES)]


def test_it_is_left_alone_when_a_key_is_named(agent, server, monkeypatch):
    made = agent(is_silent=True)
    monkeypatch.setattr(ssh_connect, "AGENT_S", 0.2)
    host = SshHost(server.address(), "own-host")
    host.connect(timeout_s=20)
    host.close()
    assert made.asked == []


def test_without_one_the_key_files_are_tried(server, tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    address = server.address()
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519").write_text(address.identity.read_text())
    host = SshHost(replace(address, identity=None), "own-host")
    host.connect(timeout_s=20)
    host.close()


def test_one_that_speaks_something_else_is_an_error_of_the_connection(server, monkeypatch):
    def strange():
        raise ValueError("no agent")

    monkeypatch.setattr(ssh_connect, "_Agent", strange)
    host = SshHost(replace(server.address(), identity=None), "own-host")
    with pytest.raises(TransportError, match="cannot be used: ValueError: no agent"):
        host.connect(timeout_s=20)
