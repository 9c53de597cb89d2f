"""Processes that belong to a folder (of a node, of an image that is built), found by a mark in their environment.

A crash between starting a process and writing its pid into a file would lose it; the mark is there from the first
instruction. A process is identified by pid *and* start time, since pids are used again.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lab.host import Deadline
from lab.model import sha256_json

_logger = logging.getLogger(__name__)

MARK = "LAB_NODE_FOLDER"
EXEC_S = 20.0
"""How long a process may be in the middle of execve before it is taken for one without an environment. Nothing stays
there, but a machine that stands still may let it, or whoever looks, wait for seconds."""
KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of include/linux/sched.h."""
MACHINE_ID = Path("/etc/machine-id")

KILLED_S = 30.0
"""How long one that was killed may take to be gone, on a machine that has much else to do or stands still meanwhile."""

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Children of this process that nobody has collected yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process for as long as it lives. ``start_ticks`` is field 22 of /proc/PID/stat (clock ticks since boot)."""

    pid: int
    start_ticks: int

    def is_alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        state = _state(self.pid)
        return state is not None and state[1] == self.start_ticks and state[0] not in "ZX"


def identity(pid: int) -> Identity | None:
    """Identity of a running process, or None when there is none."""
    state = _state(pid)
    return None if state is None else Identity(pid=pid, start_ticks=state[1])


def myself() -> Identity:
    """Identity of this process."""
    found = identity(os.getpid())
    if found is None:
        raise RuntimeError("/proc does not show this process; the lab needs Linux with /proc mounted")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Where a pid means something: a machine (see :func:`machine_mark`) and the inode of a pid namespace on it."""

    machine: str
    pid_namespace: int


def home() -> Home:
    """Where the pids of this process hold."""
    return Home(machine=machine_mark(machine_id()), pid_namespace=os.stat("/proc/self/ns/pid").st_ino)


def machine_id(file: Path = MACHINE_ID) -> str:
    """The machine's own id, see machine-id(5); empty where there is none."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def machine_mark(own_id: str) -> str:
    """What tells this machine from others. Containers may share the id of their machine; their names differ.

    The id itself is not for others to read.
    """
    return sha256_json([own_id, socket.gethostname()])[:16]


def stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat after the name, from field 3 (state) on; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def _state(pid: int) -> tuple[str, int] | None:
    fields = stat_fields(pid)
    return None if fields is None else (fields[0], int(fields[19]))


def start(
    argv: Sequence[str], *, folder: Path, log: Path, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, marked as part of the node at ``folder``; output goes to ``log``."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
            env={**os.environ, **(env or {}), MARK: str(folder.resolve())},
        )
    _logger.debug("started process %d: %s", child.pid, shlex.join(argv))
    _children[child.pid] = child
    return child


def marked(folder: Path) -> list[Identity]:
    """Live processes of this user that carry the mark of ``folder``."""
    # Resolved on both sides: another run may name the same folder by a link or from another working directory.
    wanted = os.fsencode(f"{MARK}={folder.resolve()}")
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        if wanted in _environment(int(entry.name)):
            process = identity(int(entry.name))
            if process is not None and process.is_alive():
                found.append(process)
    return found


def _environment(pid: int) -> list[bytes]:
    """Variables of a process; empty for one that may not be looked at, is gone or has none.

    In the middle of execve there are none to be seen, for milliseconds, on a busy machine for tens of them: whoever
    looks then would miss a process that has just been started. That is waited for.
    """
    deadline = Deadline.after(EXEC_S)
    try:
        found = Path(f"/proc/{pid}/environ").read_bytes()
        while not found:
            # Looked at once more when the time is over: it may have been over since the first look.
            is_last = deadline.remaining_s() <= 0
            was_in_exec = _is_in_exec(pid)
            found = Path(f"/proc/{pid}/environ").read_bytes()
            if is_last or not was_in_exec:
                break
            time.sleep(0.005)
    except OSError:
        return []
    return found.split(b"\0")


def _is_in_exec(pid: int) -> bool:
    """Whether the end of its environment is not known to the kernel yet (proc(5), /proc/PID/stat, fields 9 and 51)."""
    fields = stat_fields(pid)
    if fields is None or fields[0] in "ZX" or int(fields[6]) & KERNEL_THREAD:
        return False
    return int(fields[48]) == 0


def end_marked(folder: Path, *, grace_s: float = 2.0) -> list[Identity]:
    """End every process of a node, with its group: SIGTERM, then SIGKILL after ``grace_s``. Those that would not go."""
    left: list[Identity] = []
    for number, seconds in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILLED_S)):
        living = marked(folder)
        _send(living, number)
        # Their time begins when they have been told: to look for them may take seconds.
        deadline = Deadline.after(seconds)
        while living := [process for process in living if not _has_ended(process)]:
            if deadline.remaining_s() <= 0:
                break
            time.sleep(0.05)
        left = marked(folder)
        if not left:
            break
    _collect()
    return left


def _send(living: Iterable[Identity], number: int) -> None:
    """Send a signal to processes, and to the whole first group of a session of their own, as :func:`start` makes it.

    In it may be some whose mark cannot be read, since they run as others in a user namespace. Any other group may be a
    shell's job with processes that are not ours.
    """
    told = set()
    for process in living:
        with suppress(ProcessLookupError, PermissionError):
            if not process.is_alive():
                continue
            group = os.getpgid(process.pid)
            if group != os.getsid(process.pid) or group == os.getpgrp():
                os.kill(process.pid, number)
            elif group not in told:
                told.add(group)
                os.killpg(group, number)


def _has_ended(process: Identity) -> bool:
    """Whether it has ended. A child of ours has only once it is collected.

    Asked in any other way, one that ends between the two questions would stay as a zombie, and one whose first thread
    has ended would pass for gone before the rest.
    """
    child = _children.get(process.pid)
    if child is not None and child.poll() is None:
        return False
    return not process.is_alive()


def _collect() -> None:
    """Collect children of ours that have ended, those that nobody asked to as well, so that none stays as a zombie."""
    for pid, child in list(_children.items()):
        if child.poll() is not None:
            _children.pop(pid, None)
