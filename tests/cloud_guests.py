"""Real guests behind the local DigitalOcean API: Debian with real cloud-init, a loopback address each, and a firewall.

A droplet is a QEMU guest whose NoCloud volume holds the user data that the client sent and the account's keys, as a
cloud hands them over. Its public address is one of 127.20.0.0/16; the ports behind it are forwarded only while the
firewall's rules, as the API has them, let this machine in.
"""

from __future__ import annotations

import io
import ipaddress
import json
import os
import select
import shutil
import socket
import subprocess
import tarfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import pycdlib

from lab import processes
from lab.artifacts import load_releases
from lab.cli.shared import cache_folder
from lab.providers.digitalocean.access import PROBE_PORT
from lab.providers.qemu import guest, image
from tests.digitalocean_api.machines import InboundRule

_LEFT_OUT = {"containerd", "runc", "busybox-static"}
_LAB_FILES = ("/etc/systemd/system/lab-seed.service", "/etc/ssh/sshd_config.d/lab.conf", "/etc/sysctl.d/90-lab.conf")

CLOUD = image.Recipe(
    suite=image.NODE.suite,
    packages=tuple(sorted({*image.NODE.packages, "cloud-init", "sudo"} - _LEFT_OUT)),
    files={
        **{path: text for path, text in image.NODE.files.items() if path not in _LAB_FILES},
        # sudo looks its host's own name up, and there is no name server to ask.
        "/etc/cloud/cloud.cfg.d/99-local.cfg": (
            "datasource_list: [NoCloud]\nnetwork: {config: disabled}\nmanage_etc_hosts: true\n"
        ),
        # Sampling of memory accesses, on by default in this kernel and in no cloud's: a fifth of a virtual CPU here.
        "/etc/tmpfiles.d/damon.conf": "w /sys/module/damon_stat/parameters/enabled - - - - N\n",
    },
    setup=(
        "rm -f /etc/ssh/ssh_host_*",
        "systemctl enable systemd-networkd ssh lab-static-keys",
        "systemctl disable systemd-networkd-wait-online",
        "systemctl mask e2scrub_all.timer fstrim.timer dpkg-db-backup.timer systemd-tmpfiles-clean.timer",
        "update-initramfs -u -k all",
    ),
    disk_bytes=image.NODE.disk_bytes,
)
"""A machine as a cloud gives it: no container runtime, no key, nothing of the lab."""

RUNTIME_PACKAGES = ("busybox-static", "containerd", "runc")


def seed_volume(target: Path, droplet: Mapping[str, Any], user_data: str, public_keys: Sequence[str]) -> None:
    """A NoCloud volume: user data as they are, keys and host name as metadata."""
    meta = {
        "instance-id": f"droplet-{droplet['id']}",
        "local-hostname": droplet["name"],
        "public-keys": list(public_keys),
    }
    volume = pycdlib.PyCdlib()
    volume.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident="cidata")
    for number, (name, text) in enumerate((("user-data", user_data), ("meta-data", json.dumps(meta)))):
        data = text.encode()
        volume.add_fp(
            io.BytesIO(data), len(data), f"/FILE{number}.;1", rr_name=name, joliet_path=f"/{name}"
        )
    volume.write(str(target))
    volume.close()
    target.chmod(0o600)


class Gate:
    """Ports of one loopback address, forwarded to a guest while the rules allow it; a closed one refuses."""

    def __init__(self, address: str, forwards: Mapping[int, int]) -> None:
        self.address = address
        self.forwards = dict(forwards)
        self._listening: dict[int, socket.socket] = {}
        self._lock = threading.Lock()

    def apply(self, rules: Sequence[InboundRule] | None) -> None:
        """Open what the rules let this machine reach, close the rest; open connections stay, as in a stateful one."""
        with self._lock:
            for port in self.forwards:
                if rules is None or any(_lets_in(rule, port) for rule in rules):
                    self._open(port)
                else:
                    self._close(port)

    def close(self) -> None:
        """Close every port."""
        with self._lock:
            for port in list(self._listening):
                self._close(port)

    def _open(self, port: int) -> None:
        if port not in self._listening:
            server = socket.create_server((self.address, port))
            self._listening[port] = server
            threading.Thread(target=self._accept, args=(server, self.forwards[port]), daemon=True).start()

    def _close(self, port: int) -> None:
        server = self._listening.pop(port, None)
        if server is not None:
            server.shutdown(socket.SHUT_RDWR)
            server.close()

    @staticmethod
    def _accept(server: socket.socket, target: int) -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=_carry, args=(client, target), daemon=True).start()


def _lets_in(rule: InboundRule, port: int) -> bool:
    first, _, last = rule.ports.partition("-")
    matches = rule.ports in ("all", "0") or int(first) <= port <= int(last or first)
    here = ipaddress.ip_address("127.0.0.1")
    return rule.protocol == "tcp" and matches and any(
        here in ipaddress.ip_network(text, strict=False) for text in rule.addresses
    )


def _carry(client: socket.socket, target: int) -> None:
    """Bytes in both directions until either side ends."""
    try:
        with client, socket.create_connection(("127.0.0.1", target), timeout=10) as inner:
            inner.settimeout(None)
            peers = {client: inner, inner: client}
            while True:
                for ready in select.select(list(peers), [], [])[0]:
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    peers[ready].sendall(data)
    except OSError:
        return


@dataclass
class _Running:
    folder: Path
    gate: Gate
    thread: threading.Thread | None = None
    stopped: threading.Event = field(default_factory=threading.Event)


class GuestMachines:
    """The backend of a :class:`tests.digitalocean_api.server.LocalDigitalOcean`: one guest per droplet.

    ``ssh_port`` is forwarded to the same port of the guest. ``seen`` keeps what each droplet was given.
    """

    def __init__(self, folder: Path, *, ssh_port: int, memory_mib: int = 4096) -> None:
        self._folder = folder
        self._ssh_port = ssh_port
        self._memory_mib = memory_mib
        self._image = image.ensure(cache_folder(), print, CLOUD)
        self._machines: dict[int, _Running] = {}
        self._rules: dict[int, list[InboundRule] | None] = {}
        self._count = 0
        self.seen: dict[int, dict[str, Any]] = {}

    def start(self, droplet: Mapping[str, Any], user_data: str, public_keys: list[str]) -> None:
        """Boot in a thread of its own, behind the rules that were applied already."""
        number = int(droplet["id"])
        self._count += 1
        folder = self._folder / f"droplet-{number}"
        folder.mkdir(parents=True)
        forwards = dict(zip((self._ssh_port, PROBE_PORT), guest.free_ports(2), strict=True))
        # Two runs of tests at once must not want the same address.
        machine = _Running(folder=folder, gate=Gate(f"127.20.{os.getpid() % 250}.{self._count}", forwards))
        self._machines[number] = machine
        self.seen[number] = {"user_data": user_data, "public_keys": public_keys, "folder": folder}
        seed_volume(folder / "seed.iso", droplet, user_data, public_keys)
        machine.gate.apply(self._rules.get(number))
        machine.thread = threading.Thread(target=self._boot, args=(machine, forwards, int(droplet["vcpus"])))
        machine.thread.start()

    def _boot(self, machine: _Running, forwards: Mapping[int, int], vcpus: int) -> None:
        folder = machine.folder
        guest.make_overlay(self._image, folder / "disk.qcow2")
        if machine.stopped.is_set():
            return
        argv = guest.command_line(
            image=self._image,
            overlay=folder / "disk.qcow2",
            seed=folder / "seed.iso",
            console=folder / "console.log",
            forwards={here: there for there, here in forwards.items()},
            accel=guest.accelerator(self._image, folder),
            vcpus=vcpus,
            memory_mib=self._memory_mib,
        )
        processes.start(argv, folder=folder, log=folder / "qemu.log")
        if machine.stopped.is_set():
            processes.end_marked(folder)

    def stop(self, droplet_id: int) -> None:
        """End the guest; its console stays for the report of a failed test."""
        machine = self._machines.pop(droplet_id)
        machine.stopped.set()
        machine.gate.close()
        threading.Thread(target=processes.end_marked, args=(machine.folder,)).start()

    def address(self, droplet_id: int) -> str | None:
        """Its loopback address."""
        machine = self._machines.get(droplet_id)
        return None if machine is None else machine.gate.address

    def port_behind_gate(self, droplet_id: int) -> int:
        """Loopback port of the guest's SSH, past the firewall."""
        return self._machines[droplet_id].gate.forwards[self._ssh_port]

    def apply(self, droplet_id: int, inbound_rules: list[InboundRule] | None) -> None:
        """Open and close its ports."""
        self._rules[droplet_id] = inbound_rules
        if droplet_id in self._machines:
            self._machines[droplet_id].gate.apply(inbound_rules)

    def close(self) -> None:
        """End everything."""
        for number in list(self._machines):
            machine = self._machines[number]
            self.stop(number)
            if machine.thread is not None:
                machine.thread.join(timeout=60)
            processes.end_marked(machine.folder)


def runtime_files() -> Path:
    """A folder with ``containerd``, its shim, ``ctr``, ``runc`` and ``busybox`` from Debian's packages, made once."""
    target = cache_folder() / "images" / f"runtime-{CLOUD.suite}"
    with filelock.FileLock(f"{target}.lock", timeout=600):
        if not target.is_dir():
            work = target.with_suffix(".part")
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            _extract(work)
            work.rename(target)
    return target


def _extract(work: Path) -> None:
    mirror = image.apt_mirror(image._source_texts())
    archive = work / "packages.tar"
    argv = [
        "mmdebstrap", "--variant=extract", '--aptopt=Acquire::Check-Valid-Until "false"',
        '--aptopt=APT::Install-Recommends "false"', f"--include={','.join(RUNTIME_PACKAGES)}",
        CLOUD.suite, str(archive), f"deb {mirror} {CLOUD.suite} main",
    ]  # fmt: skip
    subprocess.run(argv, check=True, capture_output=True, timeout=600)
    wanted = {"containerd", "containerd-shim-runc-v2", "ctr", "runc", "busybox"}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.rpartition("/")[2]
            if name in wanted and member.isfile() and "bin/" in member.name:
                content = tar.extractfile(member)
                assert content is not None
                (work / name).write_bytes(content.read())
                (work / name).chmod(0o755)
    archive.unlink()
    missing = wanted - {path.name for path in work.iterdir()}
    assert not missing, f"Debian's packages gave no {sorted(missing)}"


def artifacts_folder(target: Path, kubernetes: Path) -> Path:
    """A folder as ``--artifacts`` takes it, with everything that a bare node needs: links only."""
    releases = load_releases()
    target.mkdir(parents=True, exist_ok=True)
    for source in kubernetes.glob("*.xz"):
        (target / source.name).symlink_to(source)
    files = runtime_files()
    containerd = target / f"containerd-{releases.containerd}-linux-amd64"
    containerd.mkdir()
    for name in ("containerd", "containerd-shim-runc-v2", "ctr"):
        (containerd / name).symlink_to(files / name)
    (target / f"runc-{releases.runc}-linux-amd64").symlink_to(files / "runc")
    (target / "busybox-linux-amd64").symlink_to(files / "busybox")
    return target
