"""A real SSH server on loopback, in this process: commands run in a real shell, files arrive by SFTP.

A test may let the next matching command go wrong in one of the ways that :data:`FAULTS` names, close the door
(``lets_in``), or name a file whose key the server shows from the next connection on, once it is there (``next_key``).
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import paramiko

from lab import processes
from lab.ssh import Address
from lab.ssh_keys import make_key_pair

FAULTS = {
    "drop": "run it to its end, then cut the connection before anything of it is reported",
    "drop-midway": "send its first output, then cut the connection while it runs",
    "no-marker": "run it without the line that reports its status, and claim status 0",
    "no-reply": "never answer the request to run it",
    "close": "close the channel without running it",
    "early-close": "close the channel with its status while the client still sends",
}


SUDO = """#!/bin/sh
# As sudo with `Defaults env_reset`. It knows two options, and refuses what it does not know.
while [ $# -gt 0 ]; do
    case $1 in
    -n) quiet=1; shift ;;
    --) shift; break ;;
    -*) echo "sudo: invalid option -- '$1'" >&2; exit 1 ;;
    *) break ;;
    esac
done
[ "$quiet" ] || { echo "sudo: a terminal is required to read the password" >&2; exit 1; }
if [ -e "$0.refusal" ]; then cat "$0.refusal" >&2; exit 1; fi
exec env -i PATH="$PATH" HOME=/root %s="$%s" LAB_TEST_ROOT=1 "$@"
"""
ID = """#!/bin/sh
[ "$*" = -u ] && if [ "$LAB_TEST_ROOT" ]; then echo 0; else echo 1000; fi
"""


class SshServer:
    """Listens from :meth:`start` until :meth:`stop`.

    ``executed`` holds every command line that a client asked for, ``opened`` every file that was sent; ``channels``
    counts what was opened for either, and what is gone again.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        private, self.host_key = make_key_pair("test-host")
        self._key = paramiko.Ed25519Key.from_private_key(io.StringIO(private))
        client_private, client_public = make_key_pair("test-client")
        self.identity = folder / "id_ed25519"
        self.identity.touch(mode=0o600)
        self.identity.write_text(client_private)
        self.authorized = client_public.split()[1]
        self.executed: list[str] = []
        self.opened: list[str] = []
        self.channels = 0
        self.on_open: Callable[[], None] = lambda: None
        self.connections = 0
        self.running = threading.Event()
        self.released = threading.Event()
        self.is_over = False
        self.corrupt_uploads = False
        self.disk_is_full = False
        self.users = {"root"}
        self.lets_in = True
        self.environment: dict[str, str] = {}
        self.next_key: Path | None = None
        self.more_keys: list[paramiko.PKey] = []
        self._faults: list[tuple[str, str]] = []
        self._transports: list[paramiko.Transport] = []
        self._threads: list[threading.Thread] = []
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])

    def start(self) -> SshServer:
        self._socket.listen(8)
        self._spawn(self._accept)
        return self

    def stop(self) -> None:
        """As after a crash: no port, no connection, no process."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.is_over = True
        self.released.set()
        self.drop_connections()
        left = processes.end_marked(self.folder, grace_s=0.5)
        assert not left, left
        for thread in list(self._threads):
            thread.join(timeout=20)
            assert not thread.is_alive(), thread

    def drop_connections(self) -> None:
        for transport in list(self._transports):
            transport.close()
            transport.join(timeout=20)

    def address(self, *, host_key: str | None = None, user: str = "root", port: int | None = None) -> Address:
        return Address(
            host="127.0.0.1",
            port=port or self.port,
            user=user,
            host_keys=(host_key or self.host_key,),
            identity=self.identity,
        )

    def use_sudo(self, refusal: str | None = None) -> None:
        """Put a sudo in front of the PATH of all commands; ``refusal`` is what it says instead of doing anything."""
        folder = self.folder / "bin"
        folder.mkdir()
        for name, text in (("sudo", SUDO % (processes.MARK, processes.MARK)), ("id", ID)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        if refusal is not None:
            (folder / "sudo.refusal").write_text(refusal)
        self.environment["PATH"] = f"{folder}:{os.environ['PATH']}"

    def break_next(self, word: str, fault: str) -> None:
        """Let the next command line that contains ``word`` suffer ``fault``."""
        assert fault in FAULTS, f"no fault {fault}"
        self._faults.append((word, fault))

    def count(self, word: str) -> int:
        """How many command lines that contain ``word`` came in."""
        return sum(word in line for line in self.executed)

    def take_fault(self, line: str) -> str | None:
        for entry in self._faults:
            if entry[0] in line:
                self._faults.remove(entry)
                return entry[1]
        return None

    def run(self, transport: paramiko.Transport, channel: paramiko.Channel, line: str, fault: str | None) -> None:
        """Serve one command in a thread of its own."""
        self._spawn(_serve, self, transport, channel, line, fault)

    def _spawn(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            self._spawn(self._greet, connection)

    def _greet(self, connection: socket.socket) -> None:
        transport = paramiko.Transport(connection)
        self._transports.append(transport)
        if self.next_key is not None and self.next_key.exists():
            self._key = paramiko.Ed25519Key.from_private_key(io.StringIO(self.next_key.read_text()))
        for key in (self._key, *self.more_keys):
            transport.add_server_key(key)
        transport.set_subsystem_handler("sftp", paramiko.SFTPServer, _Files)
        try:
            transport.start_server(server=_Session(self, transport))
        except (paramiko.SSHException, EOFError, OSError):
            transport.close()


class _Session(paramiko.ServerInterface):
    def __init__(self, owner: SshServer, transport: paramiko.Transport) -> None:
        self.owner = owner
        self.transport = transport

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        known = username in self.owner.users and key.get_base64() == self.owner.authorized
        return paramiko.AUTH_SUCCESSFUL if known and self.owner.lets_in else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        self.owner.channels += 1
        return paramiko.OPEN_SUCCEEDED if kind == "session" else paramiko.OPEN_FAILED_UNKNOWN_CHANNEL_TYPE

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        line = command.decode()
        self.owner.executed.append(line)
        fault = self.owner.take_fault(line)
        if fault == "no-reply":
            self.owner.running.set()
            self.owner.released.wait(timeout=60)
        self.owner.run(self.transport, channel, line, fault)
        return True


def _serve(
    owner: SshServer, transport: paramiko.Transport, channel: paramiko.Channel, line: str, fault: str | None
) -> None:
    try:
        if fault == "close":
            time.sleep(0.05)
            return
        if fault == "no-marker":
            line = line.rpartition("; printf ")[0]
        _execute(owner, transport, channel, line, fault)
    except (OSError, EOFError, paramiko.SSHException):
        # The client has gone; the process is ended with the server.
        return
    finally:
        channel.close()


def _execute(
    owner: SshServer, transport: paramiko.Transport, channel: paramiko.Channel, line: str, fault: str | None
) -> None:
    child = subprocess.Popen(
        ["sh", "-c", line],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **owner.environment, processes.MARK: str(owner.folder)},
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    with child:
        if owner.is_over:
            # Asked for before the end and begun after it: nobody else would end it.
            os.killpg(child.pid, signal.SIGKILL)
        feeder = threading.Thread(target=_feed, args=(channel, child.stdin, fault), daemon=True)
        errors = threading.Thread(target=_pump, args=(child.stderr, channel.sendall_stderr, fault), daemon=True)
        feeder.start()
        errors.start()
        owner.running.set()
        if fault == "drop-midway":
            channel.sendall(os.read(child.stdout.fileno(), 1))
            transport.close()
            os.killpg(child.pid, signal.SIGKILL)
        _pump(child.stdout, channel.sendall, fault)
        errors.join()
        status = child.wait()
        if fault == "drop":
            transport.close()
        # sshd reports a shell that died of a signal without a status.
        if status >= 0:
            channel.send_exit_status(0 if fault == "no-marker" else status)
        channel.close()
        feeder.join()


def _pump(source: io.BufferedReader, send: object, fault: str | None) -> None:
    while chunk := os.read(source.fileno(), 1 << 16):
        if fault not in ("drop", "drop-midway"):
            with contextlib.suppress(OSError):
                send(chunk)  # type: ignore[operator]


def _feed(channel: paramiko.Channel, target: io.BufferedWriter, fault: str | None) -> None:
    with contextlib.suppress(OSError, ValueError), target:
        while fault != "early-close" and (chunk := channel.recv(1 << 16)):
            target.write(chunk)
            target.flush()


class _Files(paramiko.SFTPServerInterface):
    """Just enough SFTP to receive files into new folders."""

    def __init__(self, server: _Session, *arguments: object, **named: object) -> None:
        super().__init__(server, *arguments, **named)
        self.owner = server.owner

    def mkdir(self, path: str, attr: paramiko.SFTPAttributes) -> int:
        try:
            os.mkdir(path, 0o777 if attr.st_mode is None else attr.st_mode)
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)
        return paramiko.SFTP_OK

    def open(self, path: str, flags: int, attr: paramiko.SFTPAttributes) -> paramiko.SFTPHandle | int:
        self.owner.opened.append(path)
        self.owner.on_open()
        try:
            return _Upload(os.open(path, flags, 0o600), flags, self.owner)
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)


class _Upload(paramiko.SFTPHandle):
    def __init__(self, descriptor: int, flags: int, owner: SshServer) -> None:
        super().__init__(flags)
        self._descriptor = descriptor
        self._owner = owner

    def stat(self) -> paramiko.SFTPAttributes:
        return paramiko.SFTPAttributes.from_stat(os.fstat(self._descriptor))

    def write(self, offset: int, data: bytes) -> int:
        if self._owner.disk_is_full:
            return paramiko.SFTP_FAILURE
        content = bytes([data[0] ^ 1]) + data[1:] if self._owner.corrupt_uploads else data
        os.pwrite(self._descriptor, content, offset)
        return paramiko.SFTP_OK

    def close(self) -> None:
        os.close(self._descriptor)
