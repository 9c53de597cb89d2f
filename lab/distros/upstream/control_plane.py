"""etcd, API server, scheduler and controller-manager as processes of the controller, with a real CA.

They run natively beside the guest, so that they cost the node nothing. Everything listens on loopback only.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from lab import processes
from lab.artifacts import Binaries
from lab.distros.contract import NODE_NAME, Waiting
from lab.distros.upstream import components, pki
from lab.host import Deadline, LocalHost
from lab.kubectl import Kubectl, wait_for_api
from lab.model import Cell, NodeError, UsageError
from lab.processes import Identity
from lab.providers.qemu.guest import free_ports

log = logging.getLogger(__name__)

PORTS = ("etcd", "peer", "api", "scheduler", "manager")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """A running control plane. ``components`` maps a component to its process."""

    placement: ClassVar[str] = "controller"

    folder: Path
    api_port: int
    kubectl: Kubectl
    components: dict[str, Identity]

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time (user and system) used so far by each component, from /proc/PID/stat."""
        ticks = os.sysconf("SC_CLK_TCK")
        used = {}
        for name, process in self.components.items():
            fields = processes.stat_fields(process.pid)
            # The pid may belong to another process by now.
            if fields is not None and int(fields[19]) == process.start_ticks:
                used[name] = (int(fields[11]) + int(fields[12])) / ticks
        return used

    def frozen(self) -> AbstractContextManager[dict[str, int | None]]:
        """It goes on: it takes nothing of the node, and what it takes of this machine's cores is recorded."""
        return nullcontext({})

    def check_alive(self) -> None:
        """NodeError with the log's end when a component has ended."""
        for name, process in self.components.items():
            if not process.is_alive():
                tail = "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-8:])
                raise NodeError(f"{name} has ended; its last lines:\n{tail}")

    def watching(self, check_node: Callable[[], None]) -> ControlPlane:
        """The same, with a kubectl that notices when the node is gone: see :class:`lab.kubectl.Kubectl`."""
        return replace(self, kubectl=replace(self.kubectl, check_node=check_node))

    def save(self) -> None:
        """Write down what :func:`attach` needs to find this control plane again from another process."""
        data = {
            "api_port": self.api_port,
            "kubectl": list(self.kubectl.argv),
            "components": {name: [entry.pid, entry.start_ticks] for name, entry in self.components.items()},
        }
        (self.folder / "plane.json").write_text(json.dumps(data, indent=1) + "\n")


def attach(folder: Path) -> ControlPlane:
    """The control plane of a kept node; NodeError when it does not run any more."""
    try:
        data = json.loads((folder / "plane.json").read_text())
    except (OSError, ValueError) as error:
        raise NodeError(f"no control plane was left running for this node: {error}") from error
    plane = ControlPlane(
        folder=folder,
        api_port=data["api_port"],
        kubectl=Kubectl(
            host=LocalHost(), argv=tuple(data["kubectl"]), kubeconfig=str(folder / "admin.kubeconfig")
        ),
        components={
            name: Identity(pid=pid, start_ticks=ticks) for name, (pid, ticks) in data["components"].items()
        },
    )
    plane.check_alive()
    return plane


def start(
    *,
    binaries: Binaries,
    cell: Cell,
    folder: Path,
    node_folder: Path,
    addresses: tuple[str, ...],
    deadline: Deadline,
    ready: Waiting = nullcontext,
) -> tuple[ControlPlane, dict[str, str]]:
    """Start all four and wait (in ``ready()``) for ``/readyz``. Processes carry the mark of ``node_folder`` for later
    removal.

    ``addresses``: where the node reaches the controller. Also gives the kubelet's credentials, by file name.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    keys = pki.ControlPlanePki.make(
        now=datetime.datetime.now(datetime.UTC),
        api_ips=(components.SERVICE_ADDRESS, *addresses),
        node_name=NODE_NAME,
    )
    keys.write(folder / "pki")
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    layout = components.Layout(
        programs={name: str(path) for name, path in binaries.components.items()},
        pki=folder / "pki",
        config=folder,
        data=folder / "etcd",
        ports=ports,
    )
    for name in ("admin", "scheduler", "controller-manager"):
        pki.write_private(folder / f"{name}.kubeconfig", keys.kubeconfig(layout.api_url, name))
    started: dict[str, Identity] = {}

    def launch(name: str, argv: list[str]) -> None:
        child = processes.start(argv, folder=node_folder, log=folder / f"{name}.log")
        found = processes.identity(child.pid)
        if found is not None:
            started[name] = found

    kubectl = Kubectl(
        host=LocalHost(),
        argv=(str(binaries.components["kubectl"]),),
        kubeconfig=str(folder / "admin.kubeconfig"),
    )
    plane = ControlPlane(folder=folder, api_port=ports["api"], kubectl=kubectl, components=started)
    launch("etcd", components.etcd(layout))
    launch("kube-apiserver", components.api_server(layout, cell))
    with ready(), gates_known(cell):
        _wait_ready(plane, deadline.sooner(240))
    launch("kube-scheduler", components.scheduler(layout))
    launch("kube-controller-manager", components.manager(layout))
    time.sleep(0.2)
    plane.check_alive()
    plane.save()
    return plane, kubelet_files(keys, addresses[0], ports["api"])


def _wait_ready(plane: ControlPlane, deadline: Deadline) -> None:
    while True:
        plane.check_alive()
        try:
            wait_for_api(plane.kubectl, deadline.sooner(2.0))
            return
        except NodeError:
            if deadline.remaining_s() <= 0:
                raise


@contextmanager
def gates_known(cell: Cell) -> Iterator[None]:
    """Around the wait for an API server: UsageError when it ended because it does not know a gate."""
    try:
        yield
    except NodeError as error:
        if "unrecognized feature gate" in str(error):
            gates = ", ".join(str(gate) for gate in cell.gates)
            raise UsageError(f"{cell.version} does not know a gate of: {gates}. {error}") from error
        raise


def kubelet_files(keys: pki.ControlPlanePki, api_address: str, api_port: int) -> dict[str, str]:
    """Texts that the kubelet and the reader of its figures need on the node, by file name."""
    return {
        "ca.crt": keys.ca_pem,
        "kubelet.crt": keys.pairs["kubelet-serving"].cert_pem,
        "kubelet.key": keys.pairs["kubelet-serving"].key_pem,
        "kubelet.kubeconfig": keys.kubeconfig(f"https://{api_address}:{api_port}", "kubelet"),
        "reader.crt": keys.pairs["reader"].cert_pem,
        "reader.key": keys.pairs["reader"].key_pem,
    }
