"""Commands and files over SSH with paramiko, to a host whose key is known beforehand.

There is no trust on first use: the one accepted host key is given by the provider. Every command has a real deadline,
both streams are drained in one loop, and the exit status is read from a marker that the command itself writes, since
paramiko reports -1 for three different events (signal, closed channel, lost connection).
"""

from __future__ import annotations

import base64
import hashlib
import logging
import math
import posixpath
import re
import secrets
import shlex
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.pkey import UnknownKeyType

from lab.host import Command, Completed, Deadline, failure_text, wait_until
from lab.model import CommandError, NodeError, TransportError, WaitTimeout

log = logging.getLogger(__name__)

# paramiko logs every refused attempt of a booting node with a traceback; its errors reach us as exceptions.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)

CONNECT_TIMEOUT_S = 20.0
BOOT_TRY_S = 5.0
"""One try while a node boots: the port may be forwarded before anything listens behind it."""
POLL_S = 0.02
CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a node answers, and the only host key that is accepted there (OpenSSH public key text)."""

    host: str
    port: int
    user: str
    host_key: str
    identity: Path


class HostKeyMismatch(NodeError):
    """The node showed another key than the pinned one. Never retried."""


def parse_public_key(text: str) -> paramiko.PKey:
    """``ssh-ed25519 AAAA… [comment]`` to a key; NodeError when it is not one."""
    fields = text.split()
    if len(fields) < 2:
        raise NodeError(f"not an OpenSSH public key: {text[:60]!r}")
    try:
        return paramiko.PKey.from_type_string(fields[0], base64.b64decode(fields[1], validate=True))
    except (ValueError, OverflowError, paramiko.SSHException, UnknownKeyType) as error:
        raise NodeError(f"not an OpenSSH public key: {text[:60]!r}: {error}") from error


class SshHost:
    """One persistent connection to one node. Not to be used by two threads at once."""

    def __init__(self, address: Address, name: str) -> None:
        self.address = address
        self.name = name
        self._client: paramiko.SSHClient | None = None
        self._lock = threading.Lock()

    def connect(self, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Open the connection now. HostKeyMismatch stops for good; anything else is TransportError."""
        self.close()
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        key = parse_public_key(self.address.host_key)
        known_as = self.address.host if self.address.port == 22 else f"[{self.address.host}]:{self.address.port}"
        client.get_host_keys().add(known_as, key.get_name(), key)
        try:
            client.connect(
                self.address.host,
                port=self.address.port,
                username=self.address.user,
                pkey=paramiko.Ed25519Key.from_private_key_file(str(self.address.identity)),
                allow_agent=False,
                look_for_keys=False,
                timeout=timeout_s,
                banner_timeout=timeout_s,
                auth_timeout=timeout_s,
                channel_timeout=timeout_s,
            )
        except paramiko.BadHostKeyException as error:
            client.close()
            raise HostKeyMismatch(
                f"{self.name} at {known_as} shows another host key than the pinned one; this may be another machine "
                "or someone in between. Nothing was sent. Destroy the node and make a new one."
            ) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            client.close()
            raise TransportError(f"{self.name} at {known_as}: {type(error).__name__}: {error}") from error
        transport = client.get_transport()
        if transport is not None:
            transport.set_keepalive(10)
        self._client = client

    def wait_ready(self, deadline: Deadline, alive: Callable[[], None] | None = None) -> None:
        """Try to connect until it works. ``alive`` may raise when the machine behind it is known to be dead."""

        def probe() -> tuple[bool | None, str]:
            if alive is not None:
                alive()
            try:
                self.connect(timeout_s=BOOT_TRY_S)
            except HostKeyMismatch:
                raise
            except TransportError as error:
                return None, str(error)
            return True, "connected"

        wait_until(f"ssh on {self.name}", probe, deadline, interval_s=0.5)

    def close(self) -> None:
        """End the connection; harmless when there is none."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def run(self, command: Command) -> Completed:
        """See :class:`lab.host.Host`. Only a ``repeatable`` command is tried again, once, after a lost connection."""
        with self._lock:
            try:
                completed = self._run_once(command)
            except TransportError:
                if not command.repeatable:
                    raise
                log.info("%s: connection lost, once more: %s", self.name, command.shown())
                self.connect()
                completed = self._run_once(command)
        log.debug("%s: exit %d in %.2f s: %s", self.name, completed.exit_status, completed.seconds, command.shown())
        if command.check and completed.exit_status != 0:
            raise CommandError(failure_text(self.name, command, completed))
        return completed

    def _channel(self, timeout_s: float) -> paramiko.Channel:
        """A channel, on a new connection if the old one is gone: until here nothing of a command was sent."""
        transport = self._transport()
        if transport is not None:
            try:
                return transport.open_session(timeout=timeout_s)
            except (paramiko.SSHException, OSError, EOFError) as error:
                log.info("%s: connection lost: %s", self.name, error)
        self.connect()
        transport = self._transport()
        if transport is None:
            raise TransportError(f"{self.name}: the connection is gone")
        try:
            return transport.open_session(timeout=timeout_s)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise TransportError(f"{self.name}: no channel: {error}") from error

    def _transport(self) -> paramiko.Transport | None:
        transport = self._client.get_transport() if self._client is not None else None
        return transport if transport is not None and transport.is_active() else None

    def _run_once(self, command: Command) -> Completed:
        started = time.monotonic()
        deadline = Deadline.after(command.timeout_s)
        marker = f"lab-rc-{secrets.token_hex(8)}"
        environment = [f"{name}={value}" for name, value in command.env.items()]
        argv = ["timeout", "-k", "5", str(math.ceil(command.timeout_s) + 5)]
        argv += ["env", *environment, *command.argv] if environment else command.argv
        line = f"{shlex.join(argv)}; printf '\\n%s=%d\\n' {marker} $? >&2"
        channel = self._channel(min(CONNECT_TIMEOUT_S, command.timeout_s))
        try:
            _request(channel, deadline, f"{self.name}: {command.shown()}", lambda: channel.exec_command(line))
            out, err = _exchange(channel, command.stdin.encode(), deadline, f"{self.name}: {command.shown()}")
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise TransportError(f"{self.name}: connection lost in: {command.shown()}: {error}") from error
        finally:
            channel.close()
        errors = err.decode(errors="replace")
        match = re.search(rf"\n{marker}=(\d+)\n\Z", errors)
        if match is None:
            raise TransportError(f"{self.name}: no end seen of: {command.shown()}; stderr: {errors[-500:]}")
        return Completed(
            argv=command.argv,
            exit_status=int(match[1]),
            stdout=out.decode(errors="replace"),
            stderr=errors[: match.start()],
            seconds=time.monotonic() - started,
        )

    def put(self, source: Path, target: str, *, mode: int = 0o644, timeout_s: float = 300.0) -> None:
        """See :class:`lab.host.Host`. Sent to a temporary name, hashed there, then moved into place."""
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if self._sha256(target, timeout_s) == digest:
            self.run(Command(argv=("chmod", f"{mode:o}", target), repeatable=True))
            return
        temporary = f"{target}.part"
        self.run(Command(argv=("mkdir", "-p", posixpath.dirname(target) or "."), repeatable=True))
        self._send(source, temporary, timeout_s)
        arrived = self._sha256(temporary, timeout_s)
        if arrived != digest:
            raise NodeError(f"{self.name}: {source.name} arrived as {arrived}, sent as {digest}")
        self.run(Command(argv=("chmod", f"{mode:o}", temporary), repeatable=True))
        self.run(Command(argv=("mv", "-f", temporary, target)))

    def put_text(self, text: str, target: str, *, mode: int = 0o644) -> None:
        """See :class:`lab.host.Host`. One round trip; the text travels on stdin, so it is in no process list."""
        script = (
            'umask 077; mkdir -p "$(dirname "$1")" && cat > "$1.part" && chmod "$2" "$1.part" && mv -f "$1.part" "$1"'
        )
        self.run(Command(argv=("sh", "-c", script, "sh", target, f"{mode:o}"), stdin=text, repeatable=True))

    def _sha256(self, path: str, timeout_s: float) -> str | None:
        script = '[ -e "$1" ] || { echo absent; exit 0; }; sha256sum < "$1"'
        done = self.run(Command(argv=("sh", "-c", script, "sh", path), timeout_s=timeout_s, repeatable=True))
        word = done.stdout.split()[0]
        return None if word == "absent" else word

    def _send(self, source: Path, target: str, timeout_s: float) -> None:
        channel = self._channel(CONNECT_TIMEOUT_S)
        channel.settimeout(min(60.0, timeout_s))
        deadline = Deadline.after(timeout_s)
        try:
            what = f"{self.name}: sending {source.name}"
            _request(channel, deadline, what, lambda: channel.invoke_subsystem("sftp"))
            sftp = paramiko.SFTPClient(channel)
            with source.open("rb") as file, sftp.open(target, "wb") as remote:
                remote.set_pipelined(True)
                while chunk := file.read(CHUNK // 2):
                    if deadline.remaining_s() <= 0:
                        raise WaitTimeout(f"{self.name}: {source.name} not sent within {timeout_s:g} s")
                    remote.write(chunk)
        except (FileNotFoundError, PermissionError) as error:
            raise NodeError(f"{self.name}: cannot write {target}: {error.strerror}") from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise TransportError(f"{self.name}: sending {source.name}: {error}") from error
        finally:
            channel.close()


def _request(channel: paramiko.Channel, deadline: Deadline, what: str, ask: Callable[[], None]) -> None:
    """Make a channel request; WaitTimeout at the deadline.

    paramiko waits for the answer without an end. Closing the channel wakes it up.
    """
    guard = threading.Timer(deadline.remaining_s(), channel.close)
    guard.daemon = True
    guard.start()
    try:
        ask()
    except paramiko.SSHException as error:
        if deadline.remaining_s() <= 0:
            raise WaitTimeout(f"no answer in time: {what}") from error
        raise
    finally:
        guard.cancel()


def _exchange(channel: paramiko.Channel, stdin: bytes, deadline: Deadline, what: str) -> tuple[bytes, bytes]:
    """Feed stdin and drain both streams until the remote side closes; WaitTimeout at the deadline."""
    out, err = bytearray(), bytearray()
    channel.setblocking(0)
    offset = 0
    if not stdin:
        channel.shutdown_write()
    while True:
        moved = False
        while channel.recv_ready():
            out += channel.recv(CHUNK)
            moved = True
        while channel.recv_stderr_ready():
            err += channel.recv_stderr(CHUNK)
            moved = True
        if offset < len(stdin) and not channel.closed and channel.send_ready():
            try:
                offset += channel.send(stdin[offset : offset + CHUNK // 2])
                moved = True
            except TimeoutError:
                moved = False
            except OSError:
                # A command may end without having read all of its input; then the channel closes under this write.
                if not channel.closed:
                    raise
            if offset >= len(stdin):
                channel.shutdown_write()
        ended = channel.closed or (channel.exit_status_ready() and channel.eof_received)
        if ended and not channel.recv_ready() and not channel.recv_stderr_ready():
            return bytes(out), bytes(err)
        transport = channel.get_transport()
        if not transport.is_active() and not moved:
            return bytes(out), bytes(err)
        if deadline.remaining_s() <= 0:
            raise WaitTimeout(f"no end in time: {what}; stderr so far: {bytes(err[-300:]).decode(errors='replace')}")
        if not moved:
            time.sleep(POLL_S)
