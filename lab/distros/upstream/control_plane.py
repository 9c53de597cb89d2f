"""etcd, API server, scheduler and controller-manager as processes of the controller, with a real CA.

They run natively beside the guest, so that they cost the node nothing. Everything listens on loopback only.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab import processes
from lab.artifacts import Binaries
from lab.distros.contract import NODE_NAME
from lab.distros.upstream import pki
from lab.host import Deadline, LocalHost
from lab.kubectl import Kubectl, wait_for_api
from lab.model import Cell, NodeError, UsageError
from lab.processes import Identity
from lab.providers.qemu.guest import free_port

log = logging.getLogger(__name__)

SERVICE_RANGE = "10.96.0.0/16"
CONTROLLERS = (
    "resourcequota-controller", "namespace-controller", "node-lifecycle-controller", "taint-eviction-controller",
    "pod-garbage-collector-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """A running control plane. ``components`` maps a component to its process."""

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

    def check_alive(self) -> None:
        """NodeError with the log's end when a component has ended."""
        for name, process in self.components.items():
            if not process.is_alive():
                tail = "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-8:])
                raise NodeError(f"{name} has ended; its last lines:\n{tail}")

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


def gates_flag(cell: Cell, component: str) -> list[str]:
    """``--feature-gates=…`` for one component, or nothing."""
    chosen = [gate for gate in cell.gates if gate.component in (None, component)]
    text = ",".join(f"{gate.name}={'true' if gate.enabled else 'false'}" for gate in chosen)
    return [f"--feature-gates={text}"] if text else []


def start(
    *, binaries: Binaries, cell: Cell, folder: Path, node_folder: Path, addresses: tuple[str, ...], deadline: Deadline
) -> tuple[ControlPlane, dict[str, str]]:
    """Start all four and wait for ``/readyz``. Processes carry the mark of ``node_folder`` for later removal.

    ``addresses``: where the node reaches the controller. Also gives the kubelet's credentials, by file name.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    keys = pki.ControlPlanePki.make(
        now=datetime.datetime.now(datetime.UTC),
        api_ips=("10.96.0.1", *addresses),
        node_name=NODE_NAME,
    )
    keys.write(folder / "pki")
    ports = {name: free_port() for name in ("etcd", "peer", "api", "scheduler", "manager")}
    url = f"https://127.0.0.1:{ports['api']}"
    for name in ("admin", "scheduler", "controller-manager"):
        pki.write_private(folder / f"{name}.kubeconfig", keys.kubeconfig(url, name))
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
    launch("etcd", _etcd(binaries, folder, ports))
    launch("kube-apiserver", _api_server(binaries, cell, folder, ports))
    _wait_ready(plane, cell, deadline.sooner(240))
    launch("kube-scheduler", _scheduler(binaries, folder, ports))
    launch("kube-controller-manager", _manager(binaries, folder, ports))
    time.sleep(0.2)
    plane.check_alive()
    plane.save()
    return plane, kubelet_files(keys, addresses[0], ports["api"])


def _wait_ready(plane: ControlPlane, cell: Cell, deadline: Deadline) -> None:
    try:
        while True:
            plane.check_alive()
            try:
                wait_for_api(plane.kubectl, deadline.sooner(2.0))
                return
            except NodeError:
                if deadline.remaining_s() <= 0:
                    raise
    except NodeError as error:
        if "unrecognized feature gate" in str(error):
            gates = ", ".join(str(gate) for gate in cell.gates)
            raise UsageError(f"{cell.version} does not know a gate of: {gates}. {error}") from error
        raise


def _etcd(binaries: Binaries, folder: Path, ports: Mapping[str, int]) -> list[str]:
    keys = folder / "pki"
    client, peer = f"https://127.0.0.1:{ports['etcd']}", f"https://127.0.0.1:{ports['peer']}"
    return [
        str(binaries.components["etcd"]), "--name=lab", f"--data-dir={folder / 'etcd'}",
        # The data live as long as the node; waiting for the disk would only slow the API server down.
        "--unsafe-no-fsync", "--log-level=error",
        f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=lab={peer}",
        f"--cert-file={keys / 'etcd.crt'}", f"--key-file={keys / 'etcd.key'}",
        f"--trusted-ca-file={keys / 'etcd-ca.crt'}", "--client-cert-auth",
        f"--peer-cert-file={keys / 'etcd.crt'}", f"--peer-key-file={keys / 'etcd.key'}",
        f"--peer-trusted-ca-file={keys / 'etcd-ca.crt'}", "--peer-client-cert-auth",
    ]  # fmt: skip


def _api_server(binaries: Binaries, cell: Cell, folder: Path, ports: Mapping[str, int]) -> list[str]:
    keys = folder / "pki"
    return [
        str(binaries.components["kube-apiserver"]), "--bind-address=127.0.0.1", f"--secure-port={ports['api']}",
        f"--etcd-servers=https://127.0.0.1:{ports['etcd']}", f"--etcd-cafile={keys / 'etcd-ca.crt'}",
        f"--etcd-certfile={keys / 'apiserver-etcd.crt'}", f"--etcd-keyfile={keys / 'apiserver-etcd.key'}",
        f"--client-ca-file={keys / 'ca.crt'}",
        f"--tls-cert-file={keys / 'apiserver.crt'}", f"--tls-private-key-file={keys / 'apiserver.key'}",
        f"--kubelet-client-certificate={keys / 'apiserver-kubelet.crt'}",
        f"--kubelet-client-key={keys / 'apiserver-kubelet.key'}",
        f"--service-account-key-file={keys / 'sa.pub'}", f"--service-account-signing-key-file={keys / 'sa.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
        "--anonymous-auth=false", f"--service-cluster-ip-range={SERVICE_RANGE}", "--profiling=false",
        *gates_flag(cell, "apiserver"),
    ]  # fmt: skip


def _scheduler(binaries: Binaries, folder: Path, ports: Mapping[str, int]) -> list[str]:
    config = folder / "scheduler.kubeconfig"
    return [
        str(binaries.components["kube-scheduler"]), f"--kubeconfig={config}", "--leader-elect=false",
        "--bind-address=127.0.0.1", f"--secure-port={ports['scheduler']}",
        f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}",
    ]  # fmt: skip


def _manager(binaries: Binaries, folder: Path, ports: Mapping[str, int]) -> list[str]:
    config, keys = folder / "controller-manager.kubeconfig", folder / "pki"
    return [
        str(binaries.components["kube-controller-manager"]), f"--kubeconfig={config}", "--leader-elect=false",
        "--bind-address=127.0.0.1", f"--secure-port={ports['manager']}",
        f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}",
        f"--controllers={','.join(CONTROLLERS)}", "--use-service-account-credentials",
        f"--root-ca-file={keys / 'ca.crt'}", f"--service-account-private-key-file={keys / 'sa.key'}",
    ]  # fmt: skip


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
