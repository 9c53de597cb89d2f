"""Where everything is on the node, and what a release says of itself."""

from __future__ import annotations

DATA = "/var/lib/rancher/k3s"
STAGED = f"{DATA}/data"
BIN = f"{STAGED}/current/bin"
TLS = f"{DATA}/server/tls"
CREDENTIALS = f"{DATA}/server/cred"
DATABASE = f"{DATA}/server/db/etcd"
AGENT = f"{DATA}/agent"
KUBELET_CONFIGS = f"{AGENT}/etc/kubelet.conf.d"
CONTAINERD_CONFIG = f"{AGENT}/etc/containerd/config.toml"
CONTAINERD_LOG = f"{AGENT}/containerd/containerd.log"
CNI = f"{AGENT}/etc/cni/net.d"
IMAGES = f"{AGENT}/images"
TRIES = f"{DATA}/server/tries"
"""How often a program that ends at its first start has been started."""

CONFIG = "/etc/rancher/k3s/config.yaml"
KUBECONFIG = "/etc/rancher/k3s/k3s.yaml"
STATE = "/run/k3s"
SOCKET = f"{STATE}/containerd/containerd.sock"

API_PORT = 6443
NODE_NAME = "node"
"""The certificates in the release are for a node of this name."""

MARK = "stand-in"
"""In the place of the commit, in what ``k3s --version`` says."""

RELEASE = "release.json"
PAYLOAD = "payload.tar.gz"
KEYS = "keys/"
"""Names in the program's file: what it is, its executables, and the beginning of the names of keys and kubeconfigs."""

WORKS, NEVER_READY, ENDS, ENDS_ONCE = "works", "never-ready", "ends", "ends-once"
BEHAVIOURS = (WORKS, NEVER_READY, ENDS, ENDS_ONCE)
"""What ``k3s server`` does, chosen when the release is made."""


class Refused(Exception):
    """What was asked for is nothing that the lab is known to use: the description of that, or the lab, has changed."""
