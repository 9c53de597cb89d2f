"""A lock on the host itself, so that no two runs, of whatever controller, use it at once.

One file that appears whole, under flock(1) on its folder. It stays over a reboot, as what was installed does.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from lab import processes
from lab.host import Command, Host
from lab.model import CommandError, NodeError
from lab.processes import Identity

PLACE = "/var/lib/node-lab.lock"
FLOCK = ("flock", "-w", "20", "/var/lib", "sh", "-c")

# Arguments: lock file, text to write, text that may be replaced ("" for none). May be cut off and run again.
TAKE = (
    'set -eu; umask 077; found=; if [ -e "$1" ]; then found=$(cat "$1"); fi; '
    'if [ ! -e "$1" ] || { [ -n "$3" ] && [ "$found" = "$3" ]; }; then '
    'printf "%s\\n" "$2" > "$1.part"; mv -fT "$1.part" "$1"; found=$2; fi; date +%s; printf "%s\\n" "$found"'
)
RELEASE = 'set -eu; rm -f "$1.part"; if [ -e "$1" ] && [ "$(cat "$1")" = "$2" ]; then rm -f "$1"; fi'


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who uses a host. ``machine`` is empty when the controller cannot be told from others.

    ``folder`` is the node's folder on the controller; ``expires_s`` (Unix time) when others may take the host over.
    """

    node_id: str
    run_id: str
    controller: str
    machine: str
    pid: int
    start_ticks: int
    folder: str
    expires_s: float

    @property
    def text(self) -> str:
        """What stands in the file: one line of JSON in ASCII."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> Holder:
        """Inverse of :attr:`text`; NodeError when somebody else wrote it."""
        try:
            data = json.loads(text)
            return cls(
                node_id=str(data["node_id"]),
                run_id=str(data["run_id"]),
                controller=str(data["controller"]),
                machine=str(data["machine"]),
                pid=int(data["pid"]),
                start_ticks=int(data["start_ticks"]),
                folder=str(data["folder"]),
                expires_s=float(data["expires_s"]),
            )
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise NodeError(
                f"the lock {PLACE} on the host is not one of this lab ({text[:80]!r}); when you are sure that no run "
                "uses the host, remove that file"
            ) from error


def make(*, node_id: str, run_id: str, folder: Path, expires_s: float, machine_id: Path) -> Holder:
    """This process as a holder. ``machine_id`` is the file with the machine's own id, see machine-id(5)."""
    me, own = processes.myself(), processes.machine_id(machine_id)
    return Holder(
        node_id=node_id,
        run_id=run_id,
        controller=socket.gethostname(),
        machine=processes.machine_mark(own) if own else "",
        pid=me.pid,
        start_ticks=me.start_ticks,
        folder=str(folder.resolve()),
        expires_s=expires_s,
    )


def take(host: Host, mine: Holder) -> Holder | None:
    """Lock the host; the holder whose stale lock was replaced, if there was one. NodeError when it is in use."""
    found, now_s = _try(host, mine, "")
    if found == mine.text:
        return None
    holder = Holder.parse(found)
    reason = why_held(holder, mine, now_s)
    if reason:
        raise NodeError(f"{host.name}: the host is {reason} (lock {PLACE})")
    found, _ = _try(host, mine, found)
    if found != mine.text:
        raise NodeError(f"{host.name}: another run took the host at this moment; try again")
    return holder


def why_held(holder: Holder, mine: Holder, now_s: float) -> str:
    """Why the lock counts; empty when it is stale.

    A holder of this controller is judged by its process and its node's folder, another one by its expiry and the
    host's clock (``now_s``, Unix time).
    """
    if mine.machine and holder.machine == mine.machine:
        if Identity(pid=holder.pid, start_ticks=holder.start_ticks).is_alive():
            return f"in use by process {holder.pid} here (node {holder.node_id})"
        if _is_there(Path(holder.folder)):
            return f"still node {holder.node_id} of an earlier run; `lab down {holder.node_id}` gives it back"
        return ""
    if now_s < holder.expires_s:
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(holder.expires_s))
        return f"in use by {holder.controller}, process {holder.pid}, node {holder.node_id}, until {until}"
    return ""


def _is_there(folder: Path) -> bool:
    """Whether a folder exists, as far as this user may know; one that cannot be looked at counts."""
    try:
        folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def release(host: Host, text: str) -> None:
    """Remove the lock when it still says ``text``; anybody else's stays."""
    host.run(Command(argv=(*FLOCK, RELEASE, "sh", PLACE, text), timeout_s=40, repeatable=True))


def _try(host: Host, mine: Holder, replaceable: str) -> tuple[str, float]:
    """The lock's text after one try, and the host's clock (Unix time)."""
    argv = (*FLOCK, TAKE, "sh", PLACE, mine.text, replaceable)
    said = host.run(Command(argv=argv, timeout_s=40, repeatable=True)).stdout
    clock, _, text = said.partition("\n")
    if not clock.isdigit():
        raise CommandError(f"{host.name}: the lock said {said[:200]!r}")
    return text.strip("\n"), float(clock)
