"""What k3s leaves on a machine beside its own folders: links, a network namespace, rules, parameters, files.

Flannel, kube-proxy and the network policies are not here; what they would have made is made in their place, so that the
removal has to find it. The names are those that k3s's parts use.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from .layout import CNI
from .staging import write

NAMESPACE = "cni-0d5cb0ff-55aa-4d3c-9c4b-0e6c8f2f7a11"
POD_LINK, POD_END = "veth5ad0c0de", "veth0pod"

LINKS = (
    f"unshare --net=/run/netns/{NAMESPACE} true",
    "ip link add cni0 type bridge",
    "ip link add flannel.1 type vxlan id 1 dstport 8472 nolearning",
    f"ip link add {POD_LINK} type veth peer name {POD_END}",
    f"ip link set {POD_LINK} master cni0",
    f"ip link set {POD_END} netns {NAMESPACE}",
    "ip link set cni0 up",
)
"""What flannel and the plugins make for pods that have a network of their own: each line is one command."""

RULES = """\
*filter
:FLANNEL-FWD - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-ROUTER-INPUT - [0:0]
-A INPUT -m comment --comment "kube-router netpol - 4IA2OSFRMVNDXBVV" -j KUBE-ROUTER-INPUT
-A INPUT -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FLANNEL-FWD -s 10.42.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A KUBE-ROUTER-INPUT -d 10.43.0.0/16 -m comment --comment "allow traffic to primary cluster IP range" -j RETURN
COMMIT
*nat
:FLANNEL-POSTRTG - [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -s 10.42.0.0/16 -d 10.42.0.0/16 -m comment --comment "flanneld masq" -j RETURN
COMMIT
"""
"""In the form of iptables-save(8); the kubelet adds its own chains to these."""

SYSCTLS = {
    "net/ipv4/conf/all/forwarding": "1",
    "net/ipv4/conf/default/forwarding": "1",
    "net/ipv6/conf/all/forwarding": "1",
    "net/bridge/bridge-nf-call-iptables": "1",
    "net/netfilter/nf_conntrack_tcp_timeout_established": "86400",
    "net/netfilter/nf_conntrack_tcp_timeout_close_wait": "3600",
}
"""As k3s's own system set-up has them; those of the kernel that are there."""

FILES = {
    "/run/flannel/subnet.env": "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.0.1/24\n",
    "/var/lib/cni/networks/cbr0/last_reserved_ip.0": "10.42.0.2",
    "/etc/rancher/node/password": "stand-in\n",
    # Pods are on the machine's own network: containerd only needs to find some plugin configured.
    f"{CNI}/10-flannel.conflist": '{"cniVersion": "1.0.0", "name": "cbr0", "plugins": [{"type": "loopback"}]}\n',
}


def lay(log: Callable[[str], None]) -> None:
    """Make all of it, as far as it is not there; OSError with what a tool said."""
    for path, text in FILES.items():
        write(Path(path), text)
    for name, value in SYSCTLS.items():
        place = Path("/proc/sys", name)
        if place.exists():
            place.write_text(value)
    if not Path("/sys/class/net/cni0").exists():
        log("Creating the links of flannel and of the bridge")
        place = Path("/run/netns", NAMESPACE)
        place.parent.mkdir(exist_ok=True)
        place.touch()
        for line in LINKS:
            call(line.split())
        log("Adding the rules of kube-proxy, flannel and the network policies")
        call(["iptables-restore", "--noflush"], RULES)


def call(argv: Sequence[str], text: str = "") -> None:
    """One tool of the machine; OSError with its message when it fails."""
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise OSError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr.strip()}")
