"""The probe from outside: what counts as closed, on real sockets; and the words to the node around it."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from lab.host import Deadline
from lab.model import CommandError, NodeError
from lab.providers.digitalocean import access
from lab.ssh import Address
from tests.fakes import FakeHost, Reply


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(access, "PROBE_S", 0.3)


@contextlib.contextmanager
def listening(monkeypatch, serve=None, backlog=5):
    """A port of 127.0.0.1 as the probe's; ``serve`` gets each connection."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(backlog)
        monkeypatch.setattr(access, "PROBE_PORT", server.getsockname()[1])
        taken = []

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    taken.append(connection)
                    serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        if serve is not None:
            thread.start()
        yield server
        server.shutdown(socket.SHUT_RDWR)
        for connection in taken:
            connection.close()
        if serve is not None:
            thread.join(timeout=20)


def test_a_listener_that_takes_the_connection_and_says_nothing_is_open(monkeypatch):
    with listening(monkeypatch, serve=lambda connection: None):
        assert access._answers("127.0.0.1")


def test_a_forwarder_that_closes_at_once_is_closed(monkeypatch):
    monkeypatch.setattr(access, "PROBE_S", 60.0)
    with listening(monkeypatch, serve=lambda connection: connection.close()):
        assert not access._answers("127.0.0.1")


def test_a_port_that_refuses_is_closed(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(access, "PROBE_PORT", free.getsockname()[1])
        assert not access._answers("127.0.0.1")


def test_a_firewall_that_drops_is_closed(monkeypatch):
    """Nobody accepts and the queue is full: the handshake gets no answer, as behind a firewall that drops packets."""
    with listening(monkeypatch, backlog=0) as server, contextlib.ExitStack() as stack:
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        with pytest.raises(TimeoutError):
            socket.create_connection(server.getsockname(), timeout=0.3)
        assert not access._answers("127.0.0.1")


class Node(FakeHost):
    """A node on which the listener can be started and reached."""

    def __init__(self):
        super().__init__("node")
        self.address = Address(host="127.0.0.1", port=22, user="root", host_keys=(), identity=None)
        start = ("systemd-run", "--quiet", "--collect", f"--unit={access.UNIT}", "python3", "-c", access.LISTEN)
        self.answer(start, Reply())
        self.answer(("python3", "-c", access.REACH), Reply())
        self.answer(("systemctl", "stop", f"{access.UNIT}.service"), Reply())


@pytest.mark.parametrize("is_open", [True, False])
def test_the_listener_is_ended_whatever_the_probe_says(monkeypatch, is_open):
    node = Node()
    monkeypatch.setattr(access, "_answers", lambda address: is_open)
    where = access.Access(progress=lambda text: None)
    if is_open:
        with pytest.raises(NodeError, match=f"port {access.PROBE_PORT} of 127.0.0.1 can be reached"):
            where.prove_closed(node)
    else:
        where.prove_closed(node)
    assert node.argvs[-1] == ("systemctl", "stop", f"{access.UNIT}.service")


@pytest.mark.parametrize(("found", "kind"), [("qemu\n", "tcg"), ("kvm\n", "kvm"), ("none\n", "none"), ("", "none")])
def test_how_the_node_is_virtualized(found, kind):
    node = Node()
    node.answer(("systemd-detect-virt", "--vm"), Reply(stdout=found))
    assert access.Access(progress=print).virtualization(node) == kind


@pytest.mark.parametrize("status", [0, 2])
def test_a_first_boot_that_got_over_its_errors_is_over(status):
    node = Node()
    node.answer(("cloud-init", "status", "--wait", "--long"), Reply(stdout="status: done\n", status=status))
    access.wait_cloud_init(node, Deadline.after(60))


def test_a_first_boot_that_failed():
    node = Node()
    node.answer(("cloud-init", "status", "--wait", "--long"), Reply(stdout="status: error\n", status=1))
    with pytest.raises(CommandError, match="cloud-init failed: status: error"):
        access.wait_cloud_init(node, Deadline.after(60))
