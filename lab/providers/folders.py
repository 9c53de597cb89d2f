"""Folders of local guests below the cache, their owners, and the removal of what dead owners left.

A folder appears under its final name together with its owner, so that there is no moment in which a guest exists and
nobody is responsible for it. The process table is the truth about what runs, not a file.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from lab import processes
from lab.model import LeftBehind, UsageError
from lab.processes import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """One folder. ``kept_until_s`` (Unix time) is 0 unless the user asked to keep the node."""

    id: str
    folder: Path
    run_id: str
    owner: Identity
    kept_until_s: float

    def is_expired(self, now_s: float) -> bool:
        """Whether nobody is responsible any more: owner dead and, for a kept guest, its time over."""
        return not self.owner.is_alive() and now_s >= self.kept_until_s


def nodes_folder(cache: Path) -> Path:
    """Where the folders of guests are."""
    return cache / "nodes"


def make(cache: Path, name: str, run_id: str) -> Guest:
    """A new folder, owned by this process."""
    parent = nodes_folder(cache)
    parent.mkdir(parents=True, exist_ok=True)
    node_id = f"{name}-{run_id}"
    folder = parent / node_id
    temporary = parent / f".{node_id}.{os.getpid()}"
    temporary.mkdir(mode=0o700)
    guest = Guest(id=node_id, folder=folder, run_id=run_id, owner=processes.myself(), kept_until_s=0.0)
    _write_owner(temporary, guest)
    try:
        temporary.rename(folder)
    except OSError as error:
        shutil.rmtree(temporary)
        raise UsageError(f"node {node_id} exists already; `lab down {node_id}` removes it") from error
    return guest


def keep(guest: Guest, until_s: float) -> Guest:
    """Mark a guest as kept: it outlives its owner until ``until_s`` (Unix time)."""
    kept = Guest(id=guest.id, folder=guest.folder, run_id=guest.run_id, owner=guest.owner, kept_until_s=until_s)
    _write_owner(guest.folder, kept)
    return kept


def adopt(guest: Guest) -> Guest:
    """Take a kept guest over for this process, so that two runs cannot use it at once."""
    if guest.owner.is_alive() and guest.owner != processes.myself():
        raise UsageError(f"node {guest.id} is in use by process {guest.owner.pid}")
    mine = Guest(
        id=guest.id,
        folder=guest.folder,
        run_id=guest.run_id,
        owner=processes.myself(),
        kept_until_s=guest.kept_until_s,
    )
    _write_owner(guest.folder, mine)
    return mine


def _write_owner(folder: Path, guest: Guest) -> None:
    temporary = folder / "owner.json.part"
    data = {
        "pid": guest.owner.pid,
        "start_ticks": guest.owner.start_ticks,
        "run_id": guest.run_id,
        "kept_until_s": guest.kept_until_s,
    }
    temporary.write_text(json.dumps(data) + "\n")
    temporary.replace(folder / "owner.json")


def read(cache: Path) -> list[Guest]:
    """All guests of this cache, by id. A folder without a readable owner counts as owned by nobody.

    Half-made folders (their names begin with a dot) are no guests yet.
    """
    guests = []
    for folder in sorted(nodes_folder(cache).glob("[!.]*")):
        if not folder.is_dir():
            continue
        try:
            data = json.loads((folder / "owner.json").read_text())
            guest = Guest(
                id=folder.name,
                folder=folder,
                run_id=str(data["run_id"]),
                owner=Identity(pid=int(data["pid"]), start_ticks=int(data["start_ticks"])),
                kept_until_s=float(data["kept_until_s"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            nobody = Identity(pid=0, start_ticks=0)
            guest = Guest(id=folder.name, folder=folder, run_id="", owner=nobody, kept_until_s=0.0)
        guests.append(guest)
    return guests


def find(cache: Path, node_id: str) -> Guest:
    """One guest by id; UsageError names those that exist."""
    guests = {guest.id: guest for guest in read(cache)}
    if node_id not in guests:
        raise UsageError(f"no node {node_id!r}; there are: {', '.join(guests) or 'none'} (see `lab nodes`)")
    return guests[node_id]


def remove(guest: Guest) -> None:
    """End the guest's processes and delete its folder; LeftBehind names what would not go."""
    stubborn = processes.end_marked(guest.folder)
    if stubborn:
        pids = ", ".join(str(process.pid) for process in stubborn)
        raise LeftBehind(f"node {guest.id}: processes {pids} would not end; folder {guest.folder} is still there")
    shutil.rmtree(guest.folder, ignore_errors=True)
    if guest.folder.exists():
        raise LeftBehind(f"node {guest.id}: folder {guest.folder} could not be deleted")


def expired(cache: Path) -> list[Guest]:
    """Guests that nobody is responsible for, half-made folders included."""
    leftovers = [guest for guest in read(cache) if guest.is_expired(time.time())]
    for folder in sorted(nodes_folder(cache).glob(".*")):
        pid = folder.name.rsplit(".", 1)[1]
        owner = processes.identity(int(pid)) if pid.isdigit() else None
        if owner is None:
            nobody = Identity(pid=0, start_ticks=0)
            leftovers.append(Guest(id=folder.name, folder=folder, run_id="", owner=nobody, kept_until_s=0.0))
    return leftovers
