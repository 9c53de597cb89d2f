"""Folders of nodes below the cache, their owners, and the removal of what dead owners left.

A folder appears under its final name together with its owner, so that there is no moment in which a node exists and
nobody is responsible for it. The process table is the truth about what runs, not a file.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import filelock

from lab import leftovers, processes
from lab.leftovers import Leftover
from lab.model import NodeError, NoSuchNode, UsageError
from lab.processes import Identity
from lab.providers.contract import NodeRecord
from lab.ssh import Address, SshHost

LOCAL = "qemu"
"""Provider of folders that do not say whose they are."""

ADOPT_LOCK_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFolder:
    """One folder. ``kept_until_s`` (Unix time) is 0 unless the user asked to keep the node."""

    id: str
    provider: str
    folder: Path
    run_id: str
    owner: Identity
    kept_until_s: float

    def is_expired(self, now_s: float) -> bool:
        """Whether nobody is responsible any more: owner dead and, for a kept node, its time over."""
        return not self.owner.is_alive() and now_s >= self.kept_until_s


def nodes_folder(cache: Path) -> Path:
    """Where the folders of nodes are."""
    return cache / "nodes"


def make(cache: Path, node_id: str, run_id: str, provider: str) -> NodeFolder:
    """A new folder, owned by this process."""
    parent = nodes_folder(cache)
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / node_id
    temporary = parent / f".{node_id}.{os.getpid()}"
    temporary.mkdir(mode=0o700)
    entry = NodeFolder(
        id=node_id, provider=provider, folder=folder, run_id=run_id, owner=processes.myself(), kept_until_s=0.0
    )
    _write_owner(temporary, entry)
    try:
        temporary.rename(folder)
    except OSError as error:
        shutil.rmtree(temporary)
        raise UsageError(f"node {node_id} exists already; `lab down {node_id}` removes it") from error
    return entry


def keep(entry: NodeFolder, until_s: float) -> NodeFolder:
    """Mark a node as kept: it outlives its owner until ``until_s`` (Unix time)."""
    kept = replace(entry, kept_until_s=until_s)
    _write_owner(entry.folder, kept)
    return kept


def adopt(entry: NodeFolder) -> NodeFolder:
    """Take a kept node over for this process, so that two runs cannot use it at once."""
    with filelock.FileLock(entry.folder / "owner.lock", timeout=ADOPT_LOCK_S):
        owner = _read(entry.folder).owner
        if owner.is_alive() and owner != processes.myself():
            raise UsageError(f"node {entry.id} is in use by process {owner.pid}; wait until that has ended, or end it")
        mine = replace(_read(entry.folder), owner=processes.myself())
        _write_owner(entry.folder, mine)
    return mine


def _write_owner(folder: Path, entry: NodeFolder) -> None:
    temporary = folder / "owner.json.part"
    data = {
        "provider": entry.provider,
        "pid": entry.owner.pid,
        "start_ticks": entry.owner.start_ticks,
        "run_id": entry.run_id,
        "kept_until_s": entry.kept_until_s,
    }
    temporary.write_text(json.dumps(data) + "\n")
    temporary.replace(folder / "owner.json")


def _read(folder: Path) -> NodeFolder:
    """One folder as it is; without a readable owner it is owned by nobody, and was a local entry's."""
    try:
        data = json.loads((folder / "owner.json").read_text())
        return NodeFolder(
            id=folder.name,
            provider=str(data["provider"]),
            folder=folder,
            run_id=str(data["run_id"]),
            owner=Identity(pid=int(data["pid"]), start_ticks=int(data["start_ticks"])),
            kept_until_s=float(data["kept_until_s"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return _ownerless(folder)


def _ownerless(folder: Path) -> NodeFolder:
    nobody = Identity(pid=0, start_ticks=0)
    return NodeFolder(id=folder.name, provider=LOCAL, folder=folder, run_id="", owner=nobody, kept_until_s=0.0)


def read(cache: Path, provider: str | None = None) -> list[NodeFolder]:
    """All folders of this cache, or those of one provider, by id. Half-made ones (a dot in front) do not count yet."""
    found = [_read(folder) for folder in sorted(nodes_folder(cache).glob("[!.]*")) if folder.is_dir()]
    return [entry for entry in found if provider in (None, entry.provider)]


def write_node(folder: Path, address: Address, facts: Mapping[str, str], *, become: bool = False) -> None:
    """node.json: what `lab ssh` and a later run need to reach the node again."""
    data = {
        "host": address.host,
        "port": address.port,
        "user": address.user,
        "host_keys": [key.strip() for key in address.host_keys],
        "identity": None if address.identity is None else str(address.identity),
        "become": become,
        "facts": dict(facts),
    }
    temporary = folder / "node.json.part"
    temporary.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n")
    temporary.replace(folder / "node.json")


def read_node(entry: NodeFolder) -> tuple[SshHost, dict[str, str]]:
    """The node as :func:`write_node` left it: a host that is not connected yet, and its facts. NodeError otherwise."""
    try:
        data = json.loads((entry.folder / "node.json").read_text())
        address = Address(
            host=data["host"],
            port=data["port"],
            user=data["user"],
            host_keys=tuple(data["host_keys"]),
            identity=None if data["identity"] is None else Path(data["identity"]),
        )
        facts = dict(data["facts"])
        host = SshHost(address, entry.id, become=data["become"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NodeError(f"node {entry.id} was never finished; `lab down {entry.id}` removes it") from error
    return host, facts


def find(cache: Path, node_id: str, provider: str | None = None) -> NodeFolder:
    """One folder by id; NoSuchNode names those that exist."""
    entries = {entry.id: entry for entry in read(cache, provider)}
    if node_id not in entries:
        raise NoSuchNode(f"no node {node_id!r}; there are: {', '.join(entries) or 'none'} (see `lab nodes`)")
    return entries[node_id]


def remove(entry: NodeFolder) -> None:
    """End the node's local processes and delete its folder; LeftBehind names what would not go."""
    leftovers.end_processes(entry.folder, what=f"node {entry.id}")
    leftovers.delete(entry.folder, what=f"node {entry.id}")


def expired(cache: Path, provider: str) -> list[NodeFolder]:
    """Folders that nobody is responsible for; half-made ones are among those of the local provider."""
    leftovers = [entry for entry in read(cache, provider) if entry.is_expired(time.time())]
    for folder in sorted(nodes_folder(cache).glob(".*")) if provider == LOCAL else ():
        pid = folder.name.rsplit(".", 1)[1]
        owner = processes.identity(int(pid)) if pid.isdigit() else None
        if owner is None:
            leftovers.append(_ownerless(folder))
    return leftovers


def collect(cache: Path, provider: str, end: Callable[[NodeFolder], None], *, dry_run: bool) -> list[str]:
    """Call ``end`` for each folder that nobody is responsible for; their ids.

    LeftBehind, after all were tried, with what could not be ended.
    """
    return leftovers.remove_all(left(cache, provider, end), dry_run=dry_run)


def left(cache: Path, provider: str, end: Callable[[NodeFolder], None]) -> list[Leftover]:
    """Folders that nobody is responsible for, to be removed by ``end``."""
    return [Leftover(id=place.id, remove=partial(end, place)) for place in expired(cache, provider)]


def record(entry: NodeFolder) -> NodeRecord:
    """The folder as an entry of a list, as far as the folder alone tells."""
    now = time.time()
    in_use, is_over = entry.owner.is_alive(), entry.is_expired(now)
    state = f"kept for {(entry.kept_until_s - now) / 3600:.1f} h more"
    if is_over:
        state = "left over (lab gc removes it)"
    elif in_use:
        state = f"in use by process {entry.owner.pid}"
    return NodeRecord(
        id=entry.id,
        provider=entry.provider,
        state=state,
        in_use=in_use,
        is_expired=is_over,
        expires_s=entry.kept_until_s or None,
    )
