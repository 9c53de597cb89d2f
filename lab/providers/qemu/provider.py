"""The local provider: a throw-away guest on this machine, as an ordinary user."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

from lab import interrupts, leftovers, processes
from lab.host import Deadline
from lab.model import NodeError, NoSuchNode, WaitTimeout
from lab.providers import folders
from lab.providers.contract import Node, NodeRecord, NodeSpec, Site
from lab.providers.qemu import build_folder, guest, image
from lab.ssh import Address
from lab.ssh_connect import HostKeyMismatch
from lab.ssh_keys import make_key_pair

log = logging.getLogger(__name__)

PORT_TRIES = 3
BOOT_TRIES = 3
TAKEN = "Could not set up host forwarding"
QEMU_LOG = "qemu.log"
LISTEN_S = 20.0
"""How long QEMU may take to listen, or to say that it cannot; beside a guest that boots it was up to 5 s."""



class QemuProvider:
    """Boots guests from the image in ``cache``."""

    name = "qemu"
    site = Site(reaches_controller=True, has_runtime=True, is_lasting=False)

    def __init__(self, cache: Path, progress: Callable[[str], None], *, ssh_port: int | None = None) -> None:
        self._cache = cache
        self._progress = progress
        self._ssh_port = ssh_port

    def check(self, nodes: int) -> None:
        """See :class:`lab.providers.contract.Provider`; guests are made one after the other, so any number will do."""
        del nodes
        image.require_tools(for_build=not image.is_built(self._cache))

    def hourly_price(self) -> Decimal:
        """See :class:`lab.providers.contract.Provider`."""
        return Decimal(0)

    def create(self, spec: NodeSpec, deadline: Deadline) -> Node:
        """See :class:`lab.providers.contract.Provider`."""
        self.check(1)
        disk_image = image.ensure(self._cache, self._progress)
        place = folders.make(self._cache, spec.id, spec.run_id, self.name)
        try:
            return self._boot(place, disk_image, spec, deadline)
        except BaseException:
            interrupts.leaving = True
            interrupts.surely(f"removing node {place.id}", lambda: folders.remove(place))
            raise

    def _boot(self, place: folders.NodeFolder, disk_image: image.Image, spec: NodeSpec, deadline: Deadline) -> Node:
        folder = place.folder
        accel = guest.accelerator(disk_image, folder)
        host_private, host_public = make_key_pair("lab-node")
        private, public = make_key_pair("lab-controller")
        identity = folder / "id_ed25519"
        identity.touch(mode=0o600)
        identity.write_text(private)
        texts = {
            "/etc/ssh/ssh_host_ed25519_key": (host_private, 0o600),
            "/etc/ssh/ssh_host_ed25519_key.pub": (host_public, 0o644),
            "/root/.ssh/authorized_keys": (public, 0o600),
        }
        guest.write_seed(folder / "seed.tar", texts, spec.files)
        facts = {
            "emulation": accel,
            "vcpus": str(spec.vcpus),
            "memory_mib": str(spec.memory_mib),
            "image": disk_image.digest,
        }
        panics = taken = 0
        while True:
            guest.make_overlay(disk_image, folder / "disk.qcow2")
            port = self._ssh_port or guest.free_port()
            process = _start(folder, disk_image, spec, accel, port)
            address = Address(host="127.0.0.1", port=port, user="root", host_keys=(host_public,), identity=identity)
            folders.write_node(folder, address, {**facts, "pid": str(process.pid), "boot_tries": str(panics + 1)})
            self._progress(f"booting {place.id} ({spec.vcpus} vCPUs, {spec.memory_mib} MiB, {accel})")
            node = self._node(place)
            try:
                _wait_ready(node, process, deadline)
                return node
            except _PortTaken as error:
                taken += 1
                if self._ssh_port is not None or taken == PORT_TRIES:
                    raise NodeError(f"port {port} on 127.0.0.1 is taken; give another one with --ssh-port") from error
                self._progress(f"{place.id}: somebody else took port {port} meanwhile; once more with another one")
            except _Panic as error:
                panics += 1
                if panics == BOOT_TRIES or accel != "tcg":
                    raise
                self._progress(f"{place.id}: its kernel panicked while it booted; once more")
                log.warning("%s", error)

    def _node(self, place: folders.NodeFolder) -> Node:
        host, facts = folders.read_node(place)
        pid = int(facts["pid"])
        host.watch(guest.watchman(pid, place.folder))
        return Node(
            id=place.id,
            provider=self.name,
            site=self.site,
            folder=place.folder,
            host=host,
            facts=facts,
            controller_address=guest.CONTROLLER_ADDRESS,
            cpu_threads=lambda: guest.thread_names(pid),
        )

    def attach(self, node_id: str) -> Node:
        """See :class:`lab.providers.contract.Provider`; the guest now belongs to this process."""
        node = self._node(folders.adopt(folders.find(self._cache, node_id, self.name)))
        node.host.connect()
        return node

    def keep(self, node: Node, until_s: float) -> None:
        """Let the node outlive this process until ``until_s`` (Unix time)."""
        node.host.close()
        folders.keep(folders.find(self._cache, node.id, self.name), until_s)

    def destroy(self, node: Node) -> None:
        """See :class:`lab.providers.contract.Provider`."""
        node.host.close()
        try:
            place = folders.find(self._cache, node.id, self.name)
        except NoSuchNode:
            return
        folders.remove(place)

    def down(self, node_id: str) -> None:
        """See :class:`lab.providers.contract.Provider`; whoever owned it."""
        folders.remove(folders.find(self._cache, node_id, self.name))

    def records(self) -> list[NodeRecord]:
        """See :class:`lab.providers.contract.Provider`: the guests of this cache."""
        return [folders.record(entry) for entry in folders.read(self._cache, self.name)]

    def collect_garbage(self, *, dry_run: bool) -> list[str]:
        """See :class:`lab.providers.contract.Provider`: guests of dead owners, kept ones once their time is over.

        Also what is there of an image whose builder is dead.
        """
        nodes = folders.left(self._cache, self.name, folders.remove)
        problems = folders.damages(self._cache, self.name)
        return leftovers.remove_all([*nodes, *build_folder.left(self._cache)], dry_run=dry_run, problems=problems)


class _Panic(NodeError):
    """The guest's kernel gave up before anybody could log in."""


class _PortTaken(NodeError):
    """QEMU could not listen on the port that leads to the guest."""


def _start(
    folder: Path, disk_image: image.Image, spec: NodeSpec, accel: str, port: int
) -> subprocess.Popen[bytes]:
    """Start QEMU. Whether it could have its port it says up to seconds later, when its memory and disks are set up."""
    # Nothing that an earlier try said may pass for the answer of this one.
    for name in ("console.log", QEMU_LOG):
        (folder / name).unlink(missing_ok=True)
    argv = guest.command_line(
        image=disk_image,
        overlay=folder / "disk.qcow2",
        seed=folder / "seed.tar",
        console=folder / "console.log",
        forwards={port: 22},
        accel=accel,
        vcpus=spec.vcpus,
        memory_mib=spec.memory_mib,
    )
    return processes.start(argv, folder=folder, log=folder / QEMU_LOG)


def _why_ended(folder: Path, status: int) -> NodeError:
    """Of a guest that has ended before anybody could log in.

    Its kernel patches its own code while it boots, and under software emulation another virtual CPU sometimes runs into
    the half-written instruction (int3): that is :class:`_Panic`, a matter of luck, and nothing was measured yet.
    """
    said = guest.last_words(folder)
    if TAKEN in guest.console_tail(folder / QEMU_LOG):
        return _PortTaken(said)
    kind = NodeError if guest.panic(folder) is None else _Panic
    return kind(f"the guest ended by itself (status {status}); console:\n{said}")


def _wait_ready(node: Node, process: subprocess.Popen[bytes], deadline: Deadline) -> None:
    """Wait for SSH. NodeError when the guest has ended, WaitTimeout at the deadline, both with the console's end."""

    def alive() -> None:
        status = process.poll()
        if status is not None:
            raise _why_ended(node.folder, status)

    try:
        node.host.wait_ready(deadline, alive)
    except HostKeyMismatch:
        # Behind the port may be another guest, and this QEMU is about to find out that it cannot have it.
        ends = deadline.sooner(LISTEN_S)
        while ends.remaining_s() > 0:
            alive()
            time.sleep(0.1)
        raise
    except WaitTimeout as error:
        console = guest.console_tail(node.folder / "console.log")
        raise WaitTimeout(f"{error}\nconsole of {node.id}, last lines:\n{console}") from error
