"""Folders of nodes below the cache, their owners, and the removal of what dead owners left.

A folder appears under its final name together with its owner, so that there is no moment in which a node exists and
nobody is responsible for it. The process table is the truth about what runs, not a file.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from lab import leftovers, processes
from lab.atomic import fsync_folder, replace_whole
from lab.host import Deadline
from lab.leftovers import Leftover
from lab.model import NodeError, NoSuchNode, UsageError
from lab.processes import Home, Identity
from lab.providers.contract import NodeRecord
from lab.ssh import Address, SshHost

LOCAL = "qemu"
"""Provider of folders that do not say whose they are."""

OWNER, NODE = "owner.json", "node.json"
ADOPT_LOCK_S = 20.0
ELSEWHERE_S = 7 * 86400.0
"""How long after the time it was to be kept a node that somebody uses elsewhere still counts as used."""


class NotBegun(NodeError):
    """How to reach a node was never written down, so nothing was ever done on it."""


class _Busy(UsageError):
    """Another process holds a node's lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFolder:
    """One folder. ``kept_until_s`` (Unix time) is 0 unless the user asked to keep the node.

    ``home`` is where the owner's pid means something, None in a folder of an older lab. ``is_given_up``: the owner has
    kept the node for others. ``damage`` says why the owner is not known; empty when it is.
    """

    id: str
    provider: str
    folder: Path
    run_id: str
    owner: Identity
    kept_until_s: float
    home: Home | None = None
    is_given_up: bool = False
    damage: str = ""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the owner is a process of another machine or pid namespace, which cannot be looked for from here."""
        return self.home not in (None, processes.home())

    def is_in_use(self, now_s: float) -> bool:
        """Whether a process is responsible; so it counts as long as nobody can know that it has ended."""
        if self.damage:
            return True
        if self.is_elsewhere:
            is_long_over = 0 < self.kept_until_s < now_s - ELSEWHERE_S
            return not (self.is_given_up or is_long_over)
        return self.owner.is_alive()

    def is_expired(self, now_s: float) -> bool:
        """Whether nobody is responsible any more: owner dead and, for a kept node, its time over."""
        return not self.is_in_use(now_s) and now_s >= self.kept_until_s

    @property
    def user(self) -> str:
        """The owner, for people."""
        return f"process {self.owner.pid}" + (" of another machine or container" if self.is_elsewhere else "")


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
        id=node_id,
        provider=provider,
        folder=folder,
        run_id=run_id,
        owner=processes.myself(),
        kept_until_s=0.0,
        home=processes.home(),
    )
    _write_owner(temporary, entry)
    try:
        temporary.rename(folder)
    except OSError as error:
        shutil.rmtree(temporary)
        raise UsageError(f"node {node_id} exists already; `lab down {node_id}` removes it") from error
    fsync_folder(parent)
    return entry


def keep(entry: NodeFolder, until_s: float) -> NodeFolder:
    """Mark a node as kept: it outlives its owner until ``until_s`` (Unix time), and others may take it over."""
    kept = replace(entry, kept_until_s=until_s, is_given_up=True)
    _write_owner(entry.folder, kept)
    return kept


def adopt(entry: NodeFolder, *, from_elsewhere: bool = False) -> NodeFolder:
    """Take a kept node over for this process, so that two runs cannot use it at once; UsageError when one does.

    ``from_elsewhere``: the caller knows that an owner on another machine, which cannot be asked, has ended.
    """
    with _locked(entry, ADOPT_LOCK_S):
        found = _known(_read(entry.folder))
        is_mine = found.owner == processes.myself() and not found.is_elsewhere
        if found.is_in_use(time.time()) and not is_mine:
            if not found.is_elsewhere:
                raise UsageError(f"node {entry.id} is in use by {found.user}; wait until that has ended, or end it")
            if not from_elsewhere:
                raise UsageError(
                    f"node {entry.id} is in use by {found.user}, as far as can be told from here; when that has ended, "
                    f"`lab down {entry.id}` removes the node"
                )
        mine = replace(found, owner=processes.myself(), home=processes.home(), is_given_up=False)
        _write_owner(entry.folder, mine)
    return mine


@contextlib.contextmanager
def _locked(entry: NodeFolder, wait_s: float) -> Iterator[None]:
    """Hold a node's lock. NoSuchNode when the folder is gone, _Busy when somebody holds it for longer."""
    gone = NoSuchNode(f"no node {entry.id!r}: it has just been removed")
    try:
        # Unlike most locks this one must not make the folder anew.
        descriptor = os.open(entry.folder / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError as error:
        raise gone from error
    try:
        deadline = Deadline.after(wait_s)
        while not _is_taken(descriptor):
            if deadline.remaining_s() <= 0:
                raise _Busy(f"node {entry.id} is being removed or taken over by another process; try again later")
            time.sleep(0.05)
        if not entry.folder.is_dir():
            raise gone
        yield
    finally:
        os.close(descriptor)


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_owner(folder: Path, entry: NodeFolder) -> None:
    data = {
        "provider": entry.provider,
        "pid": entry.owner.pid,
        "start_ticks": entry.owner.start_ticks,
        "run_id": entry.run_id,
        "kept_until_s": entry.kept_until_s,
        "is_given_up": entry.is_given_up,
    }
    if entry.home is not None:
        data |= {"machine": entry.home.machine, "pid_namespace": entry.home.pid_namespace}
    replace_whole(folder / OWNER, (json.dumps(data) + "\n").encode())


def _read(folder: Path) -> NodeFolder:
    """One folder as it is. Without owner.json its removal was cut off, so it is owned by nobody, and is local."""
    try:
        data = json.loads((folder / OWNER).read_text())
        home = None
        if "machine" in data:
            home = Home(machine=str(data["machine"]), pid_namespace=int(data["pid_namespace"]))
        return NodeFolder(
            id=folder.name,
            provider=str(data["provider"]),
            folder=folder,
            run_id=str(data["run_id"]),
            owner=Identity(pid=int(data["pid"]), start_ticks=int(data["start_ticks"])),
            kept_until_s=float(data["kept_until_s"]),
            home=home,
            is_given_up=bool(data.get("is_given_up", False)),
        )
    except FileNotFoundError:
        return _ownerless(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        damage = (
            f"node {folder.name}: {folder / OWNER} cannot be read ({type(error).__name__}: {error}), so nobody "
            f"knows its owner and nothing of it is touched; mend that file, or delete {folder} when nothing of it runs"
        )
        return replace(_ownerless(folder), damage=damage)


def _known(entry: NodeFolder) -> NodeFolder:
    """The entry; NodeError when its owner cannot be read."""
    if entry.damage:
        raise NodeError(entry.damage)
    return entry


def _ownerless(folder: Path) -> NodeFolder:
    nobody = Identity(pid=0, start_ticks=0)
    return NodeFolder(id=folder.name, provider=LOCAL, folder=folder, run_id="", owner=nobody, kept_until_s=0.0)


def read(cache: Path, provider: str | None = None) -> list[NodeFolder]:
    """All folders of this cache, or those of one provider, by id. Half-made ones (a dot in front) do not count yet.

    One whose owner cannot be read is among the local ones. NodeError when the folders cannot be listed.
    """
    found = [_read(folder) for folder in _listed(cache) if not folder.name.startswith(".")]
    return [entry for entry in found if provider in (None, entry.provider)]


def _listed(cache: Path) -> list[Path]:
    parent = nodes_folder(cache)
    try:
        return sorted(folder for folder in parent.iterdir() if folder.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise NodeError(f"the nodes in {parent} cannot be listed: {error}; mend the cause, or set LAB_CACHE") from error


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
    replace_whole(folder / NODE, (json.dumps(data, indent=2, sort_keys=True) + "\n").encode())


def read_node(entry: NodeFolder) -> tuple[SshHost, dict[str, str]]:
    """The node as :func:`write_node` left it: a host that is not connected yet, and its facts.

    NotBegun when it never did, NodeError when that cannot be read.
    """
    try:
        data = json.loads((entry.folder / NODE).read_text())
        address = Address(
            host=data["host"],
            port=data["port"],
            user=data["user"],
            host_keys=tuple(data["host_keys"]),
            identity=None if data["identity"] is None else Path(data["identity"]),
        )
        facts = dict(data["facts"])
        host = SshHost(address, entry.id, become=data["become"])
    except FileNotFoundError as error:
        raise NotBegun(f"node {entry.id} was never finished; `lab down {entry.id}` removes it") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NodeError(
            f"node {entry.id}: {entry.folder / NODE} cannot be read ({type(error).__name__}: {error}), so how to reach "
            f"the node is not known; mend that file, or delete {entry.folder} when the node is of no use any more"
        ) from error
    return host, facts


def find(cache: Path, node_id: str, provider: str | None = None) -> NodeFolder:
    """One folder by id; NoSuchNode names those that exist, NodeError says why it is not known whose it is."""
    entries = {entry.id: entry for entry in read(cache)}
    found = entries.get(node_id)
    if found is None or provider not in (None, _known(found).provider):
        known = [name for name, entry in entries.items() if provider in (None, entry.provider)]
        raise NoSuchNode(f"no node {node_id!r}; there are: {', '.join(known) or 'none'} (see `lab nodes`)")
    return _known(found)


def remove(entry: NodeFolder) -> None:
    """End the node's local processes and delete its folder; LeftBehind names what would not go."""
    leftovers.end_processes(entry.folder, what=f"node {entry.id}")
    leftovers.delete(entry.folder, what=f"node {entry.id}")


def expired(cache: Path, provider: str) -> list[NodeFolder]:
    """Folders that nobody is responsible for; half-made ones are among those of the local provider."""
    now = time.time()
    found = [entry for entry in read(cache, provider) if entry.is_expired(now)]
    if provider == LOCAL:
        half_made = [folder for folder in _listed(cache) if folder.name.startswith(".")]
        found += [_ownerless(folder) for folder in half_made if not _is_being_made(folder, now)]
    return found


def _is_being_made(folder: Path, now_s: float) -> bool:
    """Whether a half-made folder has a living owner; until that is written down, the pid in its name tells."""
    entry = _read(folder)
    if entry.owner.pid:
        return entry.is_in_use(now_s)
    pid = folder.name.rsplit(".", 1)[1]
    return pid.isdigit() and processes.identity(int(pid)) is not None


def collect(cache: Path, provider: str, end: Callable[[NodeFolder], None], *, dry_run: bool) -> list[str]:
    """End every expired folder of a provider; the ids. LeftBehind with all problems, among them unreadable owners.

    Whoever takes a node over in the meantime keeps it.
    """
    return leftovers.remove_all(left(cache, provider, end), dry_run=dry_run, problems=damages(cache, provider))


def left(cache: Path, provider: str, end: Callable[[NodeFolder], None]) -> list[Leftover]:
    """Folders that nobody is responsible for, to be removed by ``end``."""
    return [Leftover(id=place.id, remove=partial(_end_expired, place, end)) for place in expired(cache, provider)]


def damages(cache: Path, provider: str) -> list[str]:
    """What is wrong with folders whose owner cannot be read."""
    return [entry.damage for entry in read(cache, provider) if entry.damage]


def _end_expired(place: NodeFolder, end: Callable[[NodeFolder], None]) -> bool:
    """End a folder unless somebody has taken it over since it was looked at; whether it was ended."""
    if place.folder.name.startswith("."):
        end(place)
        return True
    try:
        with _locked(place, 0.0):
            if not _read(place.folder).is_expired(time.time()):
                return False
            end(place)
    except (NoSuchNode, _Busy):
        return False
    return True


def record(entry: NodeFolder) -> NodeRecord:
    """The folder as an entry of a list, as far as the folder alone tells."""
    now = time.time()
    in_use, is_over = entry.is_in_use(now), entry.is_expired(now)
    state = f"kept for {(entry.kept_until_s - now) / 3600:.1f} h more"
    if is_over:
        state = "left over (lab gc removes it)"
    elif entry.damage:
        state = f"{OWNER} cannot be read"
    elif in_use:
        state = f"in use by {entry.user}"
    return NodeRecord(
        id=entry.id,
        provider=entry.provider,
        state=state,
        in_use=in_use,
        is_expired=is_over,
        expires_s=entry.kept_until_s or None,
    )
