"""Command lines of the control plane's components, pure: the same ones, wherever they run.

Everything listens on loopback and talks TLS; the node and RBAC authorizers are on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from lab.model import Cell

SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
"""First of the range: the address of the API's own service, which stands in its certificate."""

CONTROLLERS = (
    "resourcequota-controller", "namespace-controller", "node-lifecycle-controller", "taint-eviction-controller",
    "pod-garbage-collector-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where a control plane's files are on its machine.

    ``programs`` maps a component to its executable; ``pki`` holds the certificates by the names of pki.py, ``config``
    the kubeconfigs ``<holder>.kubeconfig``, ``data`` what etcd stores. ``ports``: etcd, peer, api, scheduler, manager.
    """

    programs: Mapping[str, str]
    pki: PurePath
    config: PurePath
    data: PurePath
    ports: Mapping[str, int]

    @property
    def api_url(self) -> str:
        """Where the API server answers on its machine."""
        return f"https://127.0.0.1:{self.ports['api']}"


def gates_flag(cell: Cell, component: str) -> list[str]:
    """``--feature-gates=…`` for one component, or nothing."""
    chosen = [gate for gate in cell.gates if gate.component in (None, component)]
    text = ",".join(f"{gate.name}={'true' if gate.enabled else 'false'}" for gate in chosen)
    return [f"--feature-gates={text}"] if text else []


def etcd(layout: Layout) -> list[str]:
    """The store."""
    keys, ports = layout.pki, layout.ports
    client, peer = f"https://127.0.0.1:{ports['etcd']}", f"https://127.0.0.1:{ports['peer']}"
    return [
        layout.programs["etcd"], "--name=lab", f"--data-dir={layout.data}",
        # The data live as long as the node; waiting for the disk would only slow the API server down.
        "--unsafe-no-fsync", "--log-level=error",
        f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=lab={peer}",
        f"--cert-file={keys / 'etcd.crt'}", f"--key-file={keys / 'etcd.key'}",
        f"--trusted-ca-file={keys / 'etcd-ca.crt'}", "--client-cert-auth",
        f"--peer-cert-file={keys / 'etcd.crt'}", f"--peer-key-file={keys / 'etcd.key'}",
        f"--peer-trusted-ca-file={keys / 'etcd-ca.crt'}", "--peer-client-cert-auth",
    ]  # fmt: skip


def api_server(layout: Layout, cell: Cell) -> list[str]:
    """The API server, told its gates."""
    keys, ports = layout.pki, layout.ports
    return [
        layout.programs["kube-apiserver"], "--bind-address=127.0.0.1", f"--secure-port={ports['api']}",
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


def scheduler(layout: Layout) -> list[str]:
    """The scheduler."""
    config = layout.config / "scheduler.kubeconfig"
    return [
        layout.programs["kube-scheduler"], f"--kubeconfig={config}", "--leader-elect=false",
        "--bind-address=127.0.0.1", f"--secure-port={layout.ports['scheduler']}",
        f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}",
    ]  # fmt: skip


def manager(layout: Layout) -> list[str]:
    """The controller-manager, with the controllers that the stages need."""
    config, keys = layout.config / "controller-manager.kubeconfig", layout.pki
    return [
        layout.programs["kube-controller-manager"], f"--kubeconfig={config}", "--leader-elect=false",
        "--bind-address=127.0.0.1", f"--secure-port={layout.ports['manager']}",
        f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}",
        f"--controllers={','.join(CONTROLLERS)}", "--use-service-account-credentials",
        f"--root-ca-file={keys / 'ca.crt'}", f"--service-account-private-key-file={keys / 'sa.key'}",
    ]  # fmt: skip
