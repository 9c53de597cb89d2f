"""One SSH channel: asking for something with a deadline, moving its streams, telling a slow command from a dead link.

paramiko's own timeouts are per read, its requests and ``recv_exit_status`` wait without an end, and a command that
fills the stream nobody reads never ends. So everything here polls against one deadline and drains both streams.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import paramiko

from lab.host import Deadline
from lab.model import WaitTimeout

POLL_S = 0.02
CHUNK = 1 << 16
WATCH_S = 0.1
HANG_UP_S = 1.0
STEPS = 10


@contextlib.contextmanager
def closing_at(deadline: Deadline, channel: paramiko.Channel, what: str) -> Iterator[None]:
    """Close the channel at the deadline, which wakes up whatever waits on it; that is then a WaitTimeout."""
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(WATCH_S):
            if deadline.remaining_s() <= 0:
                _close(channel)
            if channel.closed or not channel.get_transport().is_active():
                # A request clears this event before it waits, also one that a closing channel has just set.
                channel.event.set()

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except (paramiko.SSHException, OSError, EOFError) as error:
        if deadline.remaining_s() <= 0:
            raise WaitTimeout(f"no answer in time: {what}") from error
        raise
    finally:
        finished.set()


@contextlib.contextmanager
def hanging_up_after(deadline: Deadline, channel: paramiko.Channel) -> Iterator[None]:
    """Close the channel at the end, and the whole connection if that is not done soon after the deadline.

    Even to close a channel is to send something, and on a dead link with full buffers paramiko sends without an end.
    After a signal nothing is sent: it may have come while paramiko held the lock that this needs.
    """
    transport, left_s, finished = channel.get_transport(), deadline.remaining_s(), threading.Event()

    def guard() -> None:
        if not finished.wait(left_s) and not _is_set_within(finished, HANG_UP_S):
            transport.close()

    threading.Thread(target=guard, daemon=True).start()
    try:
        yield
    except Exception:
        _close(channel)
        raise
    else:
        _close(channel)
    finally:
        finished.set()


def _is_set_within(event: threading.Event, seconds: float) -> bool:
    """Whether it comes in this time; in steps, of which a stop of this very process takes away one at most.

    After it a single wait would be over at once, before any other thread could do what is waited for.
    """
    return any(event.wait(seconds / STEPS) for _ in range(STEPS))


def _close(channel: paramiko.Channel) -> None:
    with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
        channel.close()


def answers(transport: paramiko.Transport | None, within_s: float) -> bool:
    """Whether the peer still talks to us: it has to reply to a global request, if only to refuse it (RFC 4254, 4).

    ``is_active`` alone says only that nobody has closed the connection. On False the transport is closed.
    """
    if transport is None or not transport.is_active():
        return False

    answered = threading.Event()

    def ask() -> None:
        with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
            transport.global_request("keepalive@openssh.com")
        answered.set()

    threading.Thread(target=ask, daemon=True).start()
    if not _is_set_within(answered, within_s) or not transport.is_active():
        transport.close()
        return False
    return True


def exchange(channel: paramiko.Channel, stdin: bytes, deadline: Deadline, what: str) -> tuple[bytes, bytes]:
    """Feed stdin and drain both streams until the remote side closes; WaitTimeout at the deadline.

    A lost connection only ends the streams early: what they hold is to be trusted with an end marker alone.
    """
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
            sent = _send_some(channel, stdin[offset : offset + CHUNK // 2])
            offset += sent
            moved = moved or sent > 0
            if offset >= len(stdin):
                channel.shutdown_write()
        ended = channel.closed or (channel.exit_status_ready() and channel.eof_received)
        if ended and not channel.recv_ready() and not channel.recv_stderr_ready():
            return bytes(out), bytes(err)
        if not channel.get_transport().is_active() and not moved:
            return bytes(out), bytes(err)
        if deadline.remaining_s() <= 0:
            raise WaitTimeout(f"no end in time: {what}; stderr so far: {bytes(err[-300:]).decode(errors='replace')}")
        if not moved:
            time.sleep(POLL_S)


def _send_some(channel: paramiko.Channel, data: bytes) -> int:
    """Bytes that went; 0 when the window is full, or when the command has ended without reading all of its input."""
    try:
        return channel.send(data)
    except TimeoutError:
        return 0
    except OSError:
        # The channel may close under this write; any other error is the connection's.
        if not channel.closed:
            raise
        return 0
