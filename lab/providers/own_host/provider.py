"""The user's own host as a node: checked, locked, used, and given back as it was, which two fingerprints prove.

Nothing is made and nothing destroyed here. What the lab knows of the host is in the node's folder on the controller:
how to reach it, its lock's text, the fingerprint from before and the programs that take the second one, so that both
are taken by the same program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Protocol

from lab import fingerprint, interrupts, processes, project
from lab.atomic import replace_whole
from lab.config import NodeOptions
from lab.fingerprint import Fingerprint
from lab.host import Clock, Command, Deadline, Sleep
from lab.model import LeftBehind, NodeError, NoSuchNode, ParseError, UsageError
from lab.providers import folders
from lab.providers.contract import Node, NodeRecord, NodeSpec, Site
from lab.providers.folders import NodeFolder, NotBegun
from lab.providers.own_host import lock, preflight
from lab.providers.own_host.address import resolve, shown
from lab.providers.own_host.lock import Holder
from lab.providers.own_host.preflight import PROJECT_FOLDER
from lab.ssh import SshHost
from lab.ssh_connect import Address

BOOT_S = 120
FINGERPRINT_S = 180.0
SETTLE_S, SETTLE_PAUSE_S = 30.0, 5.0
"""Units, cgroups and mounts of ended processes go a little later."""

REMOVE_S = 300.0
DAY_S = 86400.0

PROBE = "fingerprint.py"
REMOVES = ("k3s_remove.sh", "upstream_remove.sh")
"""Each does nothing on a host where its distribution is not; the last one takes the project's folder away."""

# The program that came with what is installed; before it was laid down, the controller's own.
RUN_REMOVE = 'if [ -f "$1" ]; then exec sh "$1"; fi; exec sh -s'

LOCK, BEFORE, AFTER, TOLD = "lock.json", "fingerprint-before.txt", "fingerprint-after.txt", "left-behind.txt"


class HostMaker(Protocol):
    """Makes the connection to an address."""

    def __call__(self, address: Address, name: str, *, become: bool) -> SshHost:
        """A host that is not connected yet."""


class OwnHostProvider:
    """Borrows the host that ``options`` name. Without one, nodes of earlier runs can still be listed and given back.

    ``programs`` is a folder with the programs for nodes (default: that of the project), ``known_hosts`` the files to
    trust (default: those of ssh).
    """

    name = "ssh"
    site = Site(reaches_controller=False, has_runtime=False, is_lasting=True)

    def __init__(
        self,
        cache: Path,
        progress: Callable[[str], None],
        *,
        options: NodeOptions,
        programs: Path | None = None,
        known_hosts: Sequence[Path] | None = None,
        machine_id: Path = processes.MACHINE_ID,
        make_host: HostMaker = SshHost,
        sleep: Sleep = time.sleep,
        clock: Clock = time.monotonic,
        now: Clock = time.time,
    ) -> None:
        self._cache = cache
        self._progress = progress
        self._options = options
        self._programs = programs
        self._known_hosts = known_hosts
        self._machine_id = machine_id
        self._make_host = make_host
        self._sleep, self._clock, self._now = sleep, clock, now

    def check(self, nodes: int) -> None:
        """See :class:`lab.providers.contract.Provider`: what was given, key file, known host key."""
        if nodes:
            resolve(self._options, self._known_hosts)
            self._read_programs()

    def hourly_price(self) -> Decimal:
        """See :class:`lab.providers.contract.Provider`."""
        return Decimal(0)

    def create(self, spec: NodeSpec, deadline: Deadline) -> Node:
        """See :class:`lab.providers.contract.Provider`; here: take the host, when it is fit and nobody uses it."""
        address = resolve(self._options, self._known_hosts)
        programs = self._read_programs()
        place = folders.make(self._cache, spec.id, spec.run_id, self.name)
        host = self._host(address, place.id)
        try:
            for name, text in programs.items():
                _write(place.folder / name, text)
            host.connect()
            host.check_become()
            self._take(place, host, spec)
            return self._prepare(place, host, deadline)
        except BaseException as error:
            interrupts.leaving = True
            failed = error

            def let_go() -> None:
                try:
                    self._let_go(place, host)
                except NodeError as problem:
                    raise LeftBehind(
                        f"{failed}\nbesides, the lock {lock.PLACE} may still be on {shown(address)} ({problem}); "
                        f"`lab down {place.id}` removes it"
                    ) from failed

            interrupts.surely(f"letting go of {shown(address)}", let_go)
            raise

    def _host(self, address: Address, node_id: str) -> SshHost:
        return self._make_host(address, node_id, become=address.user != "root")

    def _read_programs(self) -> dict[str, str]:
        """The programs that give the host back, by file name; UsageError when one cannot be read."""
        folder = self._programs or project.find(Path.cwd()) / "node-scripts"
        try:
            return {name: (folder / name).read_text(encoding="utf-8") for name in (PROBE, *REMOVES)}
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read the programs for nodes in {folder}: {error}") from error

    def _take(self, place: NodeFolder, host: SshHost, spec: NodeSpec) -> None:
        """Lock the host. What reaches it again is written down first, so that a crash leaves no lock of nobody."""
        facts = {"host": shown(host.address)}
        folders.write_node(place.folder, host.address, facts, become=host.address.user != "root")
        mine = lock.make(
            node_id=place.id,
            run_id=spec.run_id,
            folder=place.folder,
            expires_s=spec.expires_s or self._now() + DAY_S,
            machine_id=self._machine_id,
        )
        _write(place.folder / LOCK, mine.text)
        stale = lock.take(host, mine)
        if stale is not None:
            self._progress(f"{place.id}: node {stale.node_id} of {stale.controller} was never given back; cleaning up")
            said = self._remove_distribution(place, host)
            if said:
                raise NodeError(f"{place.id}: what node {stale.node_id} installed would not go: {'; '.join(said)}")

    def _prepare(self, place: NodeFolder, host: SshHost, deadline: Deadline) -> Node:
        """Look the host over, take the first fingerprint, write down its facts."""
        # While it still boots, the host changes by itself. It may well be degraded afterwards.
        argv = ("timeout", str(BOOT_S), "systemctl", "is-system-running", "--wait")
        host.run(Command(argv=argv, timeout_s=BOOT_S + 20, check=False, repeatable=True))
        text = host.run(Command(argv=("sh", "-c", preflight.SCRIPT), timeout_s=60, repeatable=True)).stdout
        _write(place.folder / "preflight.txt", text)
        where = f"{place.id} at {shown(host.address)}"
        try:
            found = preflight.parse(text)
            said = preflight.problems(found, accept_kubernetes=self._options.accept_kubernetes)
            if said:
                raise NodeError(f"{where} cannot be used: {'; '.join(said)}")
            before = _measure(host, place.folder, deadline.sooner(FINGERPRINT_S))
            entries = fingerprint.parse(before).entries
        except ParseError as error:
            raise NodeError(f"{where} cannot be used: {error}") from error
        facts = {**preflight.facts(found), "host": shown(host.address)}
        folders.write_node(place.folder, host.address, facts, become=host.address.user != "root")
        _write(place.folder / BEFORE, before)
        if found.swap_kib:
            self._progress(f"{place.id}: the host has {found.swap_kib // 1024} MiB of swap; it stays on")
        if found.kubernetes:
            self._progress(f"{place.id}: accepted although Kubernetes is there: {', '.join(found.kubernetes)}")
        self._progress(f"{place.id}: {shown(host.address)} is taken; {len(entries)} things noted to compare afterwards")
        return self._node(place, host, facts)

    def _let_go(self, place: NodeFolder, host: SshHost) -> None:
        """After a failed create: nothing was installed, so only the lock goes. NodeError when it does not."""
        try:
            if (place.folder / LOCK).exists():
                lock.release(host, _lock_text(place))
        finally:
            host.close()
        folders.remove(place)

    def _node(self, place: NodeFolder, host: SshHost, facts: dict[str, str]) -> Node:
        return Node(
            id=place.id,
            provider=self.name,
            site=self.site,
            folder=place.folder,
            host=host,
            facts=facts,
            controller_address=None,
        )

    def _again(self, place: NodeFolder) -> tuple[SshHost, dict[str, str]]:
        """The host of a folder, not connected yet, and its facts; NodeError when it was never written down."""
        host, facts = folders.read_node(place)
        return self._host(host.address, place.id), facts

    def attach(self, node_id: str) -> Node:
        """See :class:`lab.providers.contract.Provider`; the host is now this process's."""
        place = folders.adopt(folders.find(self._cache, node_id, self.name))
        host, facts = self._again(place)
        if not (place.folder / BEFORE).exists():
            raise NodeError(f"node {node_id} was never finished; `lab down {node_id}` gives the host back")
        host.connect()
        return self._node(place, host, facts)

    def keep(self, node: Node, until_s: float) -> None:
        """See :class:`lab.providers.contract.Provider`; never beyond the expiry that the host's lock shows."""
        node.host.close()
        place = folders.find(self._cache, node.id, self.name)
        expires_s = Holder.parse(_lock_text(place)).expires_s
        folders.keep(place, min(until_s, expires_s))

    def destroy(self, node: Node) -> None:
        """Give the host back after the distribution has removed itself; LeftBehind with every difference."""
        try:
            place = folders.find(self._cache, node.id, self.name)
        except NoSuchNode:
            node.host.close()
            return
        self._give_back(place, node.host)

    def down(self, node_id: str) -> None:
        """See :class:`lab.providers.contract.Provider`: remove the distribution, then as :meth:`destroy`.

        A node whose differences were told before is forgotten, whatever is left; LeftBehind tells it once more.
        """
        # Whoever names a node of another machine knows that its run has ended.
        place = folders.adopt(folders.find(self._cache, node_id, self.name), from_elsewhere=True)
        self._end(place, forget=(place.folder / TOLD).exists())

    def collect_garbage(self, *, dry_run: bool) -> list[str]:
        """See :class:`lab.providers.contract.Provider`: hosts of dead owners, kept ones once their time is over."""
        return folders.collect(
            self._cache, self.name, lambda place: self._end(place, forget=False), dry_run=dry_run
        )

    def records(self) -> list[NodeRecord]:
        """See :class:`lab.providers.contract.Provider`: what this controller has borrowed; ``state`` says where."""
        return [self._record(place) for place in folders.read(self._cache, self.name)]

    def _record(self, place: NodeFolder) -> NodeRecord:
        found = folders.record(place)
        try:
            where = shown(folders.read_node(place)[0].address)
        except NotBegun:
            where = "no host yet"
        except NodeError:
            where = "its host cannot be read"
        told = ", changes are left" if (place.folder / TOLD).exists() else ""
        return replace(found, state=f"{found.state}, {where}{told}")

    def _end(self, place: NodeFolder, *, forget: bool) -> None:
        """Remove what a distribution left, then give the host back."""
        try:
            host, _ = self._again(place)
        except NotBegun:
            # Nothing was done on the host before this was written down.
            folders.remove(place)
            return
        except NodeError as error:
            raise LeftBehind(f"{error}\nIts host was not given back") from error
        self._give_back(place, host, remove=True, forget=forget)

    def _give_back(self, place: NodeFolder, host: SshHost, *, remove: bool = False, forget: bool = False) -> None:
        where = shown(host.address)
        left: Sequence[str] = ()
        try:
            if (place.folder / BEFORE).exists():
                failed = self._remove_distribution(place, host) if remove else []
                left = [*failed, *self._differences(place, host)]
            if left and not forget:
                _write(place.folder / TOLD, "\n".join(left) + "\n")
                raise LeftBehind(
                    f"node {place.id}: {where} is not as it was before ({len(left)} differences):{_listed(left)}\n"
                    f"Both fingerprints are in {place.folder}. `lab down {place.id}` tries again and then forgets the "
                    "node; until then no run uses that host"
                )
            if (place.folder / LOCK).exists():
                lock.release(host, _lock_text(place))
        except (NodeError, ParseError, OSError, ValueError) as error:
            raise LeftBehind(
                f"node {place.id}: {where} could not be given back: {error}\nWhat is known of it is in {place.folder}; "
                "if that host is gone for good, delete this folder"
            ) from error
        finally:
            host.close()
        folders.remove(place)
        if left:
            raise LeftBehind(f"node {place.id} is forgotten; on {where} {len(left)} differences stay:{_listed(left)}")

    def _remove_distribution(self, place: NodeFolder, host: SshHost) -> list[str]:
        """Run the removal of every distribution; what they complain of. They can be repeated, and may find nothing."""
        complaints = []
        for name in REMOVES:
            command = Command(
                argv=("sh", "-c", RUN_REMOVE, "sh", f"{PROJECT_FOLDER}/node-scripts/{name}"),
                stdin=(place.folder / name).read_text(encoding="utf-8"),
                timeout_s=REMOVE_S,
                check=False,
                repeatable=True,
            )
            done = host.run(command)
            if done.exit_status != 0:
                said = [line for line in (done.stdout + done.stderr).split("\n") if line.strip()]
                complaints += [f"{name}: {line}" for line in said or [f"exit {done.exit_status}"]]
        return complaints

    def _differences(self, place: NodeFolder, host: SshHost) -> tuple[str, ...]:
        """What is not as it was before, once nothing ends by itself any more."""
        before = fingerprint.parse((place.folder / BEFORE).read_text(encoding="utf-8"))
        if ("file", PROJECT_FOLDER) not in before.entries:
            argv = ("rm", "-rf", "--one-file-system", "--", PROJECT_FOLDER)
            # What would not go is a difference below.
            host.run(Command(argv=argv, timeout_s=60, check=False, repeatable=True))
        deadline = Deadline.after(SETTLE_S, self._clock)
        while True:
            found = fingerprint.compare(before, self._after(place, host))
            if not found or deadline.remaining_s() <= 0:
                return found
            self._sleep(min(SETTLE_PAUSE_S, deadline.remaining_s()))

    def _after(self, place: NodeFolder, host: SshHost) -> Fingerprint:
        text = _measure(host, place.folder, Deadline.after(FINGERPRINT_S))
        _write(place.folder / AFTER, text)
        return fingerprint.parse(text)


def _measure(host: SshHost, folder: Path, deadline: Deadline) -> str:
    """One fingerprint, by the program in the node's folder. It comes on standard input and leaves no file."""
    program = (folder / PROBE).read_text(encoding="utf-8")
    argv = ("python3", "-I", "-B", "-")
    return host.run(
        Command(argv=argv, stdin=program, timeout_s=max(1.0, deadline.remaining_s()), repeatable=True)
    ).stdout


def _lock_text(place: NodeFolder) -> str:
    """What the host's lock says; NodeError when that is not known, since another text would release nothing."""
    file = place.folder / LOCK
    text = file.read_text(encoding="utf-8")
    if not text.strip():
        raise NodeError(f"{file} is empty, so its lock {lock.PLACE} cannot be told from that of others")
    return text


def _write(path: Path, text: str) -> None:
    """A small file, whole or absent."""
    replace_whole(path, text.encode())


def _listed(lines: Sequence[str]) -> str:
    return "".join(f"\n  - {line}" for line in lines)
