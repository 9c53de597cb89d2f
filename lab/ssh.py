"""Commands and files over SSH with paramiko, to a host whose key is known beforehand.

There is no trust on first use: the accepted host keys are given by the provider. Every command has a real deadline, and
its exit status is read from a marker that the command itself writes, since paramiko reports -1 for three different
events (signal, closed channel, lost connection). A lost connection is sought again; only a command that is marked
repeatable is then run again.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import paramiko

from lab.host import Clock, Command, Completed, Deadline, Sleep, failure_text, wait_until
from lab.model import CommandError, NodeError, TransportError, WaitTimeout
from lab.ssh_channel import answers, closing_at, exchange, hanging_up_after
from lab.ssh_connect import Address, AuthenticationRefused, HostKeyMismatch, open_client, parse_public_key
from lab.ssh_files import INSTALL, PREPARE, SHARED, WRITE, Shipment, parcels_of
from lab.ssh_line import described

__all__ = ["Address", "AuthenticationRefused", "HostKeyMismatch", "Reconnect", "SshHost", "parse_public_key"]

log = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_TIMEOUT_S = 20.0
BOOT_TRY_S = 5.0
"""For the first line of a booting node: its port may be forwarded before anything listens behind it.

After its first line it gets its time: an emulated node on a busy machine needs many seconds for a key exchange.
"""
REFUSED_PAUSE_S = 5.0
"""After a refused login. sshd's PerSourcePenalties add 5 s for each, and shut an address out from 15 s on."""
RECONNECT_S = 120.0
UNNOTICED_S = 45.0
"""A dead link is noticed this late at most: the next keepalive, the time it may stay unanswered, and some slack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconnect:
    """How a lost connection is sought again: for ``limit_s`` per call, with pauses that double up to the longest.

    ``answer_s`` is how long a node may take to answer a question about nothing before its link counts as dead.
    """

    limit_s: float = RECONNECT_S
    first_pause_s: float = 0.5
    longest_pause_s: float = 5.0
    answer_s: float = 10.0
    clock: Clock = time.monotonic
    sleep: Sleep = time.sleep


class _Outage:
    """What one call may still spend without a connection."""

    def __init__(self, left_s: float) -> None:
        self.left_s = left_s
        self.pause_s = 0.0
        self.has_stumbled = False


class SshHost:
    """One persistent connection to one node. Not to be used by two threads at once.

    With ``become`` every command runs as root by sudo, unless the login user is root already. Values of a command's
    ``env`` stand in the node's process list and in sudo's log; secrets belong on stdin.
    """

    def __init__(
        self, address: Address, name: str, *, become: bool = False, reconnect: Reconnect | None = None
    ) -> None:
        self.address = address
        self.name = name
        self._become = become and address.user != "root"
        self._reconnect = reconnect or Reconnect()
        self._client: paramiko.SSHClient | None = None
        self._was_connected = False
        self._alive: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def pin(self, host_keys: tuple[str, ...]) -> None:
        """Accept these host keys only, from the next connection on."""
        self.address = replace(self.address, host_keys=host_keys)

    def watch(self, alive: Callable[[], None]) -> None:
        """Ask ``alive`` before a lost connection is sought: it raises NodeError when the machine is known to be gone.

        That ends every wait for the node at once, as a TransportError.
        """
        self._alive = alive

    def check_alive(self) -> None:
        """TransportError when the machine is known to be gone; nothing is sent to it."""
        try:
            self._alive()
        except NodeError as error:
            raise TransportError(f"{self.name}: {error}") from error

    @contextlib.contextmanager
    def seeking_at_most(self, limit_s: float) -> Iterator[None]:
        """Inside the block no call seeks a lost connection for longer than this."""
        before = self._reconnect
        self._reconnect = replace(before, limit_s=min(limit_s, before.limit_s))
        try:
            yield
        finally:
            self._reconnect = before

    def connect(self, timeout_s: float = CONNECT_TIMEOUT_S, handshake_s: float | None = None) -> None:
        """Open the connection now. HostKeyMismatch stops for good; anything else is TransportError.

        TCP and the node's first line may take ``timeout_s`` each, what follows ``handshake_s`` (as much by default).
        """
        self.close()
        self._client = open_client(self.address, self.name, timeout_s, handshake_s or timeout_s)
        self._was_connected = True

    def wait_ready(self, deadline: Deadline, alive: Callable[[], None] | None = None) -> None:
        """Try to connect until it works. ``alive`` may raise when the machine behind it is known to be dead."""
        pause_s = 0.0

        def probe() -> tuple[bool | None, str]:
            nonlocal pause_s
            if alive is not None:
                alive()
            try:
                self.connect(timeout_s=BOOT_TRY_S, handshake_s=CONNECT_TIMEOUT_S)
            except TransportError as error:
                pause_s = REFUSED_PAUSE_S if isinstance(error, AuthenticationRefused) else 0.0
                return None, str(error)
            return True, "connected"

        def sleep(seconds: float) -> None:
            self._reconnect.sleep(min(max(seconds, pause_s), deadline.remaining_s()))

        wait_until(f"ssh on {self.name}", probe, deadline, interval_s=0.5, sleep=sleep)

    def check_become(self) -> None:
        """One NodeError that says what to do when commands would not run as root on this node."""
        done = self.run(Command(argv=("id", "-u"), check=False, repeatable=True))
        if done.exit_status == 0 and done.stdout.strip() == "0":
            return
        said = done.stderr.strip().splitlines()[-1:] or [f"exit {done.exit_status}, {done.stdout.strip()!r}"]
        reason = f"sudo says: {said[0]}"
        if not self._become:
            reason = "sudo is not used here"
        elif done.exit_status == 127:
            reason = "there is no sudo"
        elif "password is required" in done.stderr:
            reason = "sudo asks for a password"
        user = self.address.user
        raise NodeError(
            f"{self.name}: {user} is not root, and {reason}; log in as root, or let {user} use sudo without a password "
            f"(a sudoers line: {user} ALL=(ALL) NOPASSWD: ALL)"
        )

    def close(self) -> None:
        """End the connection; harmless when there is none."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _abandon(self) -> None:
        """Let go of the connection without taking any lock of paramiko's; the next command makes a new one."""
        client, self._client = self._client, None
        transport = None if client is None else client.get_transport()
        if transport is not None:
            transport.sock.close()

    def run(self, command: Command) -> Completed:
        """See :class:`lab.host.Host`.

        Before anything of a command is sent, a lost connection is sought again for any command. Afterwards only a
        ``repeatable`` one runs again, with what is left of its own time; up to 45 s in which the loss went unnoticed do
        not count against it, but against the limit of :class:`Reconnect`, which holds for the whole call.
        """
        return self._run(command, become=self._become)

    def _run(self, command: Command, *, become: bool) -> Completed:
        def once(channel: paramiko.Channel, deadline: Deadline) -> Completed:
            return self._run_once(channel, deadline, command, become=become)

        started = time.monotonic()
        ended = "no exit status"
        try:
            completed = self._surviving(command.shown(), command.timeout_s, command.repeatable, once)
            ended = f"exit {completed.exit_status}"
        finally:
            if log.isEnabledFor(logging.DEBUG):
                line = described(self.address, command, become=become)
                log.debug("%s: %s in %.2f s: %s", self.name, ended, time.monotonic() - started, line)
        if command.check and completed.exit_status != 0:
            raise CommandError(failure_text(self.name, command, completed))
        return completed

    def _surviving(
        self, what: str, timeout_s: float, repeatable: bool, once: Callable[[paramiko.Channel, Deadline], T]
    ) -> T:
        """Do something on a channel; after a lost connection on a new one, if nothing was sent or it is repeatable."""
        outage = _Outage(self._reconnect.limit_s)
        left_s = timeout_s
        with self._lock:
            while True:
                deadline = Deadline.after(left_s)
                channel = None
                try:
                    channel = self._channel(deadline)
                    with hanging_up_after(deadline, channel):
                        return once(channel, deadline)
                except (TransportError, WaitTimeout) as error:
                    self.check_alive()
                    if not self._may_repeat(error, repeatable or channel is None, channel is not None, outage):
                        raise
                    lost = error
                except NodeError:
                    raise
                except BaseException:
                    # A signal may have come while paramiko held one of its locks: nothing of it is used any more.
                    self._abandon()
                    raise
                log.info("%s: connecting again for: %s", self.name, what)
                unnoticed_s = min(left_s - deadline.remaining_s(), UNNOTICED_S)
                left_s = min(timeout_s, deadline.remaining_s() + unnoticed_s)
                outage.left_s -= unnoticed_s
                self._seek(outage, lost)

    def _may_repeat(self, error: NodeError, allowed: bool, was_sent: bool, outage: _Outage) -> bool:
        """Whether a failed try may be followed by another one."""
        if not allowed or not self._was_connected or isinstance(error, AuthenticationRefused):
            return False
        if isinstance(error, WaitTimeout):
            # A slow command has used up its time; behind a dead link nobody knows.
            return not answers(self._transport(), self._reconnect.answer_s)
        if was_sent and answers(self._transport(), self._reconnect.answer_s):
            # The command's shell died, not the connection: that may be chance once.
            allowed, outage.has_stumbled = not outage.has_stumbled, True
        return allowed

    def _seek(self, outage: _Outage, lost: NodeError) -> None:
        """Connect again within what is left of the outage; the first try of a call comes at once."""
        while outage.left_s > 0:
            started = self._reconnect.clock()
            if outage.pause_s > 0:
                self._reconnect.sleep(min(outage.pause_s, outage.left_s))
                self.check_alive()
            outage.pause_s = min(
                max(self._reconnect.first_pause_s, 2 * outage.pause_s), self._reconnect.longest_pause_s
            )
            try:
                self.connect(timeout_s=min(CONNECT_TIMEOUT_S, outage.left_s))
            except AuthenticationRefused:
                raise
            except TransportError as error:
                lost = error
            else:
                return
            finally:
                outage.left_s -= self._reconnect.clock() - started
        # A node that has been sought in vain costs the next call one try only.
        self._was_connected = False
        raise TransportError(
            f"{self.name}: no connection that lasts within {self._reconnect.limit_s:g} s; last: {lost}"
        ) from lost

    def _channel(self, deadline: Deadline) -> paramiko.Channel:
        """A channel on the present connection, or on the first one; until here nothing of a command was sent."""
        if not self._was_connected:
            self.connect()
        transport = self._transport()
        if transport is None:
            raise TransportError(f"{self.name}: the connection is gone")
        try:
            return transport.open_session(timeout=max(1.0, min(CONNECT_TIMEOUT_S, deadline.remaining_s())))
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise TransportError(f"{self.name}: no channel: {error}") from error

    def _transport(self) -> paramiko.Transport | None:
        transport = self._client.get_transport() if self._client is not None else None
        return transport if transport is not None and transport.is_active() else None

    def _run_once(
        self, channel: paramiko.Channel, deadline: Deadline, command: Command, *, become: bool
    ) -> Completed:
        started = time.monotonic()
        marker = f"lab-rc-{secrets.token_hex(8)}"
        line = f"{_shell_words(command, become)}; printf '\\n%s=%d\\n' {marker} $? >&2"
        what = f"{self.name}: {command.shown()}"
        try:
            with closing_at(deadline, channel, what):
                channel.exec_command(line)
            out, err = exchange(channel, command.stdin.encode(), deadline, what)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise TransportError(f"{self.name}: connection lost in: {command.shown()}: {error}") from error
        errors = err.decode(errors="replace")
        match = re.search(rf"\n{marker}=(\d+)\n\Z", errors)
        if match is None:
            # At the deadline it may be we who closed the channel.
            kind = TransportError if deadline.remaining_s() > 0 else WaitTimeout
            raise kind(f"{self.name}: no end seen of: {command.shown()}; stderr: {errors[-500:]}")
        return Completed(
            argv=command.argv,
            exit_status=int(match[1]),
            stdout=out.decode(errors="replace"),
            stderr=errors[: match.start()],
            seconds=time.monotonic() - started,
        )

    def put(self, files: Mapping[str, Path], *, mode: int = 0o644, timeout_s: float = 300.0) -> None:
        """See :class:`lab.host.Host`. Sent to new private folders, hashed there, then moved into place.

        Three channels for any number of files, one when all are there; ``timeout_s`` holds for each. A lost connection
        is survived at any point, and what has arrived is not sent again. With sudo the folder is the login user's, and
        root copies the files out of it before they are hashed.
        """
        parcels, permissions = parcels_of(files), f"{mode:o}"
        words = (permissions, *(word for parcel in parcels for word in (parcel.target, parcel.sha256)))
        there = self._script(PREPARE, *words, timeout_s=timeout_s).split()
        wanted = [parcel for number, parcel in enumerate(parcels) if str(number) not in there]
        if not wanted:
            return
        shipment = Shipment(wanted, shared=SHARED if self._become else None)

        def once(channel: paramiko.Channel, deadline: Deadline) -> None:
            shipment.send(channel, deadline, self.name)

        with self._removing_after_failure(shipment.folders):
            self._surviving(f"sending {shipment}", timeout_s, True, once)
            shipment.check(self.name, self._script(INSTALL, *shipment.words(permissions), timeout_s=timeout_s).split())

    @contextlib.contextmanager
    def _removing_after_failure(self, folders: Sequence[str]) -> Iterator[None]:
        """Remove the login user's folders, as many as there are then, when the block fails."""
        try:
            yield
        except (TransportError, HostKeyMismatch):
            log.warning("%s: %s may stay, there is no connection", self.name, ", ".join(folders))
            raise
        except BaseException:
            try:
                if folders:
                    self._run(Command(argv=("rm", "-rf", *folders), repeatable=True), become=False)
            except NodeError as error:
                log.warning("%s: %s may stay: %s", self.name, ", ".join(folders), error)
            raise

    def put_text(self, text: str, target: str, *, mode: int = 0o644) -> None:
        """See :class:`lab.host.Host`. One round trip; the text travels on stdin, so it is in no process list."""
        words = (target, f"{mode:o}", str(len(text.encode())))
        self.run(Command(argv=("sh", "-c", WRITE, "sh", *words), stdin=text, repeatable=True))

    def _script(self, script: str, *words: str, timeout_s: float) -> str:
        command = Command(argv=("sh", "-c", script, "sh", *words), timeout_s=timeout_s, repeatable=True)
        return self.run(command).stdout.strip()


def _shell_words(command: Command, become: bool) -> str:
    """The command for the login shell: sudo outermost, so that `timeout` may end what root runs."""
    argv = ["sudo", "-n", "--"] if become else []
    argv += ["timeout", "-k", "5", str(math.ceil(command.timeout_s) + 5)]
    if command.env:
        argv += ["env", *(f"{name}={value}" for name, value in command.env.items())]
    return shlex.join([*argv, *command.argv])
