"""A machine that runs commands, and waiting with a deadline.

``Host`` is the protocol that the SSH layer, the controller itself and the fakes of the tests fulfil. A command is an
argv list, never a shell string; its deadline covers the whole call.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import logging
import os
import shlex
import shutil
import signal
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from lab.model import CommandError, NodeError, WaitTimeout, sha256_text

ARCHIVE_END = "."
UNPACK = (
    "sh",
    "-c",
    'text=$(cat); whole=${text%.}; [ "$whole" != "$text" ] || { echo "the archive was cut off" >&2; exit 3; }; '
    'printf %s "$whole" | base64 -d | tar --extract --directory=/ --no-same-owner --preserve-permissions',
)
"""How :func:`put_texts` lays its archive down on a host: base64, then ARCHIVE_END, gone when the link died."""

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""What a shell gives for a program that is missing or cannot be run (POSIX, Shell Command Language, 2.8.2)."""

log = logging.getLogger(__name__)

T = TypeVar("T")
Clock = Callable[[], float]
Sleep = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run. ``repeatable`` allows a retry after a lost connection; ``check`` makes a non-zero exit an error."""

    argv: tuple[str, ...]
    stdin: str = ""
    timeout_s: float = 30.0
    repeatable: bool = False
    check: bool = True
    env: Mapping[str, str] = field(default_factory=dict)

    def shown(self) -> str:
        """Paste-ready text; stdin and environment are left out, since they may hold credentials."""
        return shlex.join(self.argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """What a command gave. ``exit_status`` is the command's own; a lost connection raises TransportError instead.

    As in a shell, it is 128 and the signal's number after a signal, and 127 when there is no such program. Both streams
    are UTF-8 with a replacement character for what is not; line ends are as they came.
    """

    argv: tuple[str, ...]
    exit_status: int
    stdout: str
    stderr: str
    seconds: float


class Host(Protocol):
    """A machine that runs commands and takes files."""

    @property
    def name(self) -> str:
        """Short name for messages."""

    def run(self, command: Command) -> Completed:
        """Run to the end. CommandError on an unexpected exit, WaitTimeout at the deadline, TransportError otherwise."""

    def put(self, files: Mapping[str, Path], *, mode: int = 0o644, timeout_s: float = 300.0) -> None:
        """Copy files there, target path to local file: each verified by sha256 and moved into place whole.

        A target that already matches is kept, and only gets its mode. Missing folders are made. NodeError when one
        cannot be written; others may be in place then.
        """

    def put_text(self, text: str, target: str, *, mode: int = 0o644) -> None:
        """Write a small text file there, whole; missing folders are made. NodeError when it cannot be written."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time that is passed down, so that nested waits cannot add up."""

    at_s: float
    clock: Clock = time.monotonic

    @classmethod
    def after(cls, seconds: float, clock: Clock = time.monotonic) -> Deadline:
        """The point ``seconds`` from now."""
        return cls(clock() + seconds, clock)

    def remaining_s(self) -> float:
        """Seconds left; never negative."""
        return max(0.0, self.at_s - self.clock())

    def sooner(self, seconds: float) -> Deadline:
        """This deadline or ``seconds`` from now, whichever comes first."""
        return Deadline(min(self.at_s, self.clock() + seconds), self.clock)


QUIET_S = 3.0
"""How long something may take before a person is told what is waited for."""


@contextlib.contextmanager
def told_when_long(text: str, say: Callable[[str], None], after_s: float = QUIET_S) -> Iterator[None]:
    """Say ``text`` once, from a thread of its own, when the block takes longer than ``after_s``."""
    timer = threading.Timer(after_s, say, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def wait_until(
    what: str,
    probe: Callable[[], tuple[T | None, str]],
    deadline: Deadline,
    *,
    interval_s: float = 0.5,
    sleep: Sleep = time.sleep,
) -> T:
    """Call ``probe`` until its first item is not None, and return that item.

    ``probe`` gives (value or None, text of the state seen). WaitTimeout carries the last state. The probe runs at least
    once, and once more after the last sleep.
    """
    while True:
        value, state = probe()
        if value is not None:
            return value
        if deadline.remaining_s() <= 0:
            raise WaitTimeout(f"gave up waiting for {what}; last seen: {state or 'nothing'}")
        sleep(min(interval_s, deadline.remaining_s()))


def failure_text(host: str, command: Command, completed: Completed) -> str:
    """Message of a CommandError: where, what, exit status, both streams (their ends)."""
    parts = [f"{host}: exit {completed.exit_status}: {command.shown()}"]
    for label, text in (("stdout", completed.stdout), ("stderr", completed.stderr)):
        if text.strip():
            parts.append(f"{label}: {text.strip()[-2000:]}")
    return "\n".join(parts)


class LocalHost:
    """The controller itself, as an ordinary user."""

    name = "controller"

    def run(self, command: Command) -> Completed:
        """See :class:`Host`. The child's whole process group ends at the deadline."""
        started = time.monotonic()
        try:
            status, out, err = _run_here(command)
        except subprocess.TimeoutExpired as error:
            raise WaitTimeout(f"{self.name}: no end within {command.timeout_s:g} s: {command.shown()}") from error
        except (FileNotFoundError, PermissionError) as error:
            status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            out, err = b"", f"{command.argv[0]}: {error.strerror}\n".encode()
        except OSError as error:
            raise NodeError(f"{self.name}: cannot run {command.argv[0]}: {error.strerror or error}") from error
        seconds = time.monotonic() - started
        log.debug("%s: exit %d in %.2f s: %s", self.name, status, seconds, command.shown())
        completed = Completed(
            argv=command.argv,
            exit_status=status,
            stdout=out.decode(errors="replace"),
            stderr=err.decode(errors="replace"),
            seconds=seconds,
        )
        if command.check and completed.exit_status != 0:
            raise CommandError(failure_text(self.name, command, completed))
        return completed

    def put(self, files: Mapping[str, Path], *, mode: int = 0o644, timeout_s: float = 300.0) -> None:
        """See :class:`Host`; ``timeout_s`` has no effect on a local copy."""
        del timeout_s
        for target, source in files.items():
            self._put_one(source, target, mode)

    def _put_one(self, source: Path, target: str, mode: int) -> None:
        place, temporary = Path(target), Path(f"{target}.part")
        try:
            digest = _sha256(source)
            if place.is_file() and _sha256(place) == digest:
                place.chmod(mode)
                return
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, temporary)
            if _sha256(temporary) != digest:
                raise NodeError(f"{self.name}: {source.name} changed while it was copied to {target}")
            temporary.chmod(mode)
            temporary.replace(place)
        except OSError as error:
            raise NodeError(f"{self.name}: cannot write {target}: {error.strerror or error}") from error

    def put_text(self, text: str, target: str, *, mode: int = 0o644) -> None:
        """See :class:`Host`."""
        temporary = Path(f"{target}.{sha256_text(text)[:8]}.part")
        try:
            temporary.parent.mkdir(parents=True, exist_ok=True)
            # The text may be a secret: nobody else may read it before its mode is set.
            temporary.touch(mode=0o600)
            temporary.write_bytes(text.encode())
            temporary.chmod(mode)
            temporary.replace(target)
        except OSError as error:
            raise NodeError(f"{self.name}: cannot write {target}: {error.strerror or error}") from error


def _run_here(command: Command) -> tuple[int, bytes, bytes]:
    """Exit status as in a shell, and both streams; the command's group is killed when this is left early."""
    child = subprocess.Popen(
        command.argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **command.env},
        start_new_session=True,
    )
    with child:
        try:
            out, err = child.communicate(command.stdin.encode(), timeout=command.timeout_s)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            raise
    return (child.returncode if child.returncode >= 0 else 128 - child.returncode), out, err


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def put_texts(host: Host, texts: Mapping[str, tuple[str, int]], *, timeout_s: float = 60.0) -> None:
    """Write several text files in one round trip: absolute target path to (text, mode). Owner root, whole files.

    The texts travel on stdin as a tar archive, so that no private key stands in a process list.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for target, (text, mode) in sorted(texts.items()):
            entry = tarfile.TarInfo(target.lstrip("/"))
            entry.size, entry.mode = len(text.encode()), mode
            tar.addfile(entry, io.BytesIO(text.encode()))
    packed = base64.encodebytes(buffer.getvalue()).decode()
    host.run(Command(argv=UNPACK, stdin=packed + ARCHIVE_END, timeout_s=timeout_s, repeatable=True))
