"""The local provider: a throw-away guest on this machine, as an ordinary user."""

from __future__ import annotations

import json
import logging
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from lab import interrupts, processes
from lab.host import Deadline
from lab.model import LeftBehind, NodeError, UsageError, WaitTimeout
from lab.providers.contract import Node, NodeSpec
from lab.providers.qemu import folders, guest, image
from lab.ssh import Address, SshHost

log = logging.getLogger(__name__)

PORT_TRIES = 3


class QemuProvider:
    """Boots guests from the image in ``cache``."""

    name = "qemu"

    def __init__(self, cache: Path, progress: Callable[[str], None], *, ssh_port: int | None = None) -> None:
        self._cache = cache
        self._progress = progress
        self._ssh_port = ssh_port

    def check(self) -> None:
        """See :class:`lab.providers.contract.Provider`."""
        image.require_tools(for_build=not image.is_built(self._cache))

    def create(self, spec: NodeSpec, deadline: Deadline) -> Node:
        """See :class:`lab.providers.contract.Provider`."""
        self.check()
        disk_image = image.ensure(self._cache, self._progress)
        place = folders.make(self._cache, spec.name, spec.run_id)
        try:
            return self._boot(place, disk_image, spec, deadline)
        except BaseException:
            with interrupts.waiting(f"removing node {place.id}"):
                folders.remove(place)
            raise

    def _boot(self, place: folders.Guest, disk_image: image.Image, spec: NodeSpec, deadline: Deadline) -> Node:
        folder = place.folder
        accel = guest.accelerator(disk_image, folder)
        host_private, host_public = guest.make_key_pair("lab-node")
        private, public = guest.make_key_pair("lab-controller")
        identity = folder / "id_ed25519"
        identity.touch(mode=0o600)
        identity.write_text(private)
        texts = {
            "/etc/ssh/ssh_host_ed25519_key": (host_private, 0o600),
            "/etc/ssh/ssh_host_ed25519_key.pub": (host_public, 0o644),
            "/root/.ssh/authorized_keys": (public, 0o600),
        }
        guest.write_seed(folder / "seed.tar", texts, spec.files)
        guest.make_overlay(disk_image, folder / "disk.qcow2")
        process, port = self._start(folder, disk_image, spec, accel)
        facts = {
            "emulation": accel,
            "vcpus": str(spec.vcpus),
            "memory_mib": str(spec.memory_mib),
            "image": disk_image.digest,
            "ssh_port": str(port),
            "host_key": host_public.strip(),
            "pid": str(process.pid),
        }
        guest.write_facts(folder, facts)
        self._progress(f"booting {place.id} ({spec.vcpus} vCPUs, {spec.memory_mib} MiB, {accel})")
        node = self._node(place, facts)

        def alive() -> None:
            if process.poll() is not None:
                raise NodeError(
                    f"the guest ended by itself (status {process.returncode}); console:\n"
                    f"{guest.console_tail(folder / 'console.log')}\n{guest.console_tail(folder / 'qemu.log')}"
                )

        try:
            node.host.wait_ready(deadline, alive)
        except WaitTimeout as error:
            tail = guest.console_tail(folder / "console.log")
            raise WaitTimeout(f"{error}\nconsole of {place.id}, last lines:\n{tail}") from error
        return node

    def _start(
        self, folder: Path, disk_image: image.Image, spec: NodeSpec, accel: str
    ) -> tuple[subprocess.Popen[bytes], int]:
        """Start QEMU; another port is tried when somebody took the first, unless the user named it."""
        for attempt in range(PORT_TRIES):
            port = self._ssh_port or guest.free_port()
            argv = guest.command_line(
                image=disk_image,
                overlay=folder / "disk.qcow2",
                seed=folder / "seed.tar",
                console=folder / "console.log",
                ssh_port=port,
                accel=accel,
                vcpus=spec.vcpus,
                memory_mib=spec.memory_mib,
            )
            process = processes.start(argv, folder=folder, log=folder / "qemu.log")
            time.sleep(0.3)
            if process.poll() is None:
                return process, port
            text = guest.console_tail(folder / "qemu.log", 5)
            if "Could not set up host forwarding" not in text:
                raise NodeError(f"QEMU did not start (status {process.returncode}): {text}")
            if self._ssh_port is not None or attempt == PORT_TRIES - 1:
                raise UsageError(f"port {port} on 127.0.0.1 is taken; give another one with --ssh-port")
        raise AssertionError("unreachable: the loop returns or raises")

    def _node(self, place: folders.Guest, facts: dict[str, str]) -> Node:
        address = Address(
            host="127.0.0.1",
            port=int(facts["ssh_port"]),
            user="root",
            host_key=facts["host_key"],
            identity=place.folder / "id_ed25519",
        )
        pid = int(facts["pid"])
        return Node(
            id=place.id,
            provider=self.name,
            folder=place.folder,
            host=SshHost(address, place.id),
            facts=facts,
            controller_address=guest.CONTROLLER_ADDRESS,
            cpu_threads=lambda: guest.thread_names(pid),
        )

    def attach(self, node_id: str) -> Node:
        """See :class:`lab.providers.contract.Provider`; the guest now belongs to this process."""
        place = folders.adopt(folders.find(self._cache, node_id))
        try:
            facts = json.loads((place.folder / "node.json").read_text())
        except (OSError, ValueError) as error:
            raise NodeError(f"node {node_id} was never finished; `lab down {node_id}` removes it") from error
        node = self._node(place, facts)
        node.host.connect()
        return node

    def keep(self, node: Node, until_s: float) -> None:
        """Let the node outlive this process until ``until_s`` (Unix time)."""
        node.host.close()
        folders.keep(folders.find(self._cache, node.id), until_s)

    def destroy(self, node: Node) -> None:
        """See :class:`lab.providers.contract.Provider`."""
        node.host.close()
        try:
            place = folders.find(self._cache, node.id)
        except UsageError:
            return
        folders.remove(place)

    def down(self, node_id: str) -> None:
        """Remove a guest by id, whoever owned it."""
        folders.remove(folders.find(self._cache, node_id))

    def guests(self) -> list[folders.Guest]:
        """Guests of this cache."""
        return folders.read(self._cache)

    def collect_garbage(self, *, dry_run: bool) -> list[str]:
        """Remove guests whose owner is dead (and whose time is over); returns their ids. LeftBehind if one stays."""
        removed, problems = [], []
        for place in folders.expired(self._cache):
            try:
                if not dry_run:
                    folders.remove(place)
                removed.append(place.id)
            except LeftBehind as error:
                problems.append(str(error))
        if problems:
            raise LeftBehind("\n".join(problems))
        return removed
