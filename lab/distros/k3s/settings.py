"""k3s on a node, as texts: its paths, configuration, kubelet drop-in and unit. Pure.

k3s and everything of it keeps to its usual folders, but for the program itself. No flag is used: a unit's command line
reads ``%`` otherwise, and a kubelet flag replaces a whole map where a drop-in adds one key to it.
"""

from __future__ import annotations

from typing import Any

import yaml

from lab.distros.contract import (
    EVICTION_THRESHOLD,
    KUBELET_VERBOSITY,
    NODE_NAME,
    PRESSURE_TRANSITION_S,
    PROJECT_FOLDER,
    Instead,
)
from lab.model import Cell

UNIT = "k3s"
BIN = f"{PROJECT_FOLDER}/bin"
K3S = f"{BIN}/k3s"
BUSYBOX = f"{BIN}/busybox"
CREDENTIALS = f"{PROJECT_FOLDER}/credentials"
KUBECONFIG = "/etc/rancher/k3s/k3s.yaml"
CONFIG = "/etc/rancher/k3s/config.yaml"
DATA = "/var/lib/rancher/k3s"
DROP_IN = f"{DATA}/agent/etc/kubelet.conf.d/50-lab.conf"
"""After k3s's own: 00 are its defaults, 10 and 20 copies of what a command line names (pkg/daemons/agent/agent.go)."""
IMAGES = f"{PROJECT_FOLDER}/images"
"""From where the node's program links them into k3s's folder, which must not be there before."""
CONTAINERD_LOG = f"{DATA}/agent/containerd/containerd.log"
KUBECTL = (K3S, "kubectl", "--cache-dir=/run/lab/kubectl")
KUBELET_URL = "https://127.0.0.1:10250"
NAMESPACE = "lab"

SANDBOX_IMAGE = "lab.local/busybox:1"
"""The pods' own image: its program sleeps, which is all that a sandbox needs, and no registry is asked for another."""

DISABLED = ("coredns", "local-storage", "metrics-server", "servicelb", "traefik")
"""Packaged parts that are left out.

CoreDNS among them: behind an API server on loopback its pod could not reach the API, its image would have to be
brought, its probes take CPU in every window, and the stages' own pod of the same priority and requests stands in for
it.
"""

INSTEAD: Instead = {"node_facts.sh": ("k3s_facts.sh",), "oci_image.py": ("busybox_image.py", "oci_image.py")}
"""What says what such a node is, and what makes the pods' image there (with what it imports)."""

START_S = 300
"""The longest start of the unit until k3s says that it is ready, in seconds."""

UNIT_TEXT = f"""\
[Unit]
Description=k3s under test
After=network.target
[Service]
Type=notify
User=root
ExecStartPre=-modprobe br_netfilter
ExecStartPre=-modprobe overlay
ExecStart={K3S} server
Delegate=yes
KillMode=process
Restart=no
TimeoutStartSec={START_S}
LogRateLimitIntervalSec=0
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
"""
"""As the installer writes it (install.sh), with three changes. It never restarts by itself: a k3s that ended within a
window must not look as if it had run through. Its start ends. And journald drops none of its lines, since the order of
evictions is read from them."""


def config(cell: Cell, *, own_images: bool) -> str:
    """config.yaml. ``own_images``: k3s's own sandbox image is on the node. The cell's gates are for both components."""
    settings: dict[str, Any] = {
        "bind-address": "127.0.0.1",
        "disable": list(DISABLED),
        "node-name": NODE_NAME,
        # One klog for the whole process: a level for the kubelet alone cannot be had.
        "v": KUBELET_VERBOSITY,
        "write-kubeconfig-mode": "0600",
    }
    if not own_images:
        settings["pause-image"] = SANDBOX_IMAGE
    if cell.gates:
        gates = ",".join(f"{gate.name}={'true' if gate.enabled else 'false'}" for gate in cell.gates)
        settings["kube-apiserver-arg"] = [f"feature-gates={gates}"]
    return yaml.safe_dump(settings, sort_keys=True)


def drop_in(cell: Cell) -> str:
    """What is added to k3s's own KubeletConfiguration, which has no threshold for memory."""
    settings: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "evictionHard": {"memory.available": EVICTION_THRESHOLD},
        "evictionPressureTransitionPeriod": f"{PRESSURE_TRANSITION_S}s",
        "nodeStatusUpdateFrequency": "5s",
    }
    if cell.gates:
        settings["featureGates"] = {gate.name: gate.enabled for gate in cell.gates}
    return yaml.safe_dump(settings, sort_keys=True)


def texts(cell: Cell, *, own_images: bool) -> dict[str, tuple[str, int]]:
    """Every file that is written: path to (text, mode)."""
    return {
        CONFIG: (config(cell, own_images=own_images), 0o600),
        DROP_IN: (drop_in(cell), 0o600),
        f"/etc/systemd/system/{UNIT}.service": (UNIT_TEXT, 0o644),
    }
