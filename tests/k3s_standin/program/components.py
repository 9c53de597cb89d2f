"""Command lines and configurations of the components that the program starts. Pure.

In k3s they are parts of one process. Here each is a process of its own, in the same unit, with the same level of
messages and the same gates.
"""

from __future__ import annotations

from collections.abc import Mapping

from .layout import AGENT, API_PORT, BIN, CNI, CREDENTIALS, DATABASE, KUBELET_CONFIGS, NODE_NAME, SOCKET, STATE, TLS
from .settings import Config

API_URL = f"https://127.0.0.1:{API_PORT}"
ETCD_URL, PEER_URL = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
"""Without TLS, which costs an emulated processor too much: a guest of a test has no other users."""

TAINT = "node.cloudprovider.kubernetes.io/uninitialized"
"""On every new node until the cloud controller has looked at it."""

CONTROLLERS = (
    "resourcequota-controller", "namespace-controller", "node-lifecycle-controller", "taint-eviction-controller",
    "pod-garbage-collector-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller",
)  # fmt: skip
"""Those that the stages need; the others would only take what an emulated processor has."""

KUBELET_DEFAULTS = f"""\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 0.0.0.0
authentication:
  anonymous: {{enabled: false}}
  webhook: {{enabled: true}}
  x509: {{clientCAFile: {TLS}/server-ca.crt}}
authorization: {{mode: Webhook}}
cgroupDriver: DRIVER
clusterDNS: [10.43.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix://{SOCKET}
evictionHard: {{imagefs.available: 5%, nodefs.available: 5%}}
evictionMinimumReclaim: {{imagefs.available: 10%, nodefs.available: 10%}}
failSwapOn: false
healthzBindAddress: 127.0.0.1
serializeImagePulls: false
staticPodPath: {AGENT}/pod-manifests
tlsCertFile: {TLS}/kubelet-serving.crt
tlsPrivateKeyFile: {TLS}/kubelet-serving.key
"""


def kubelet_defaults(*, is_unit: bool) -> str:
    """The first drop-in: k3s's own settings, with no threshold for memory (pkg/daemons/agent)."""
    return KUBELET_DEFAULTS.replace("DRIVER", "systemd" if is_unit else "cgroupfs")


def containerd_config(config: Config, *, is_unit: bool) -> str:
    """config.toml of containerd, whose folders are k3s's own."""
    return f"""\
version = 3
root = "{AGENT}/containerd"
state = "{STATE}/containerd"
[grpc]
  address = "{SOCKET}"
[plugins.'io.containerd.internal.v1.opt']
  path = "{AGENT}/containerd"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{config.pause_image}"
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{BIN}"]
  conf_dir = "{CNI}"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "{BIN}/runc"
  SystemdCgroup = {"true" if is_unit else "false"}
"""


def etcd() -> list[str]:
    """The store."""
    return [
        f"{BIN}/etcd", "--name=default", f"--data-dir={DATABASE}", "--unsafe-no-fsync", "--log-level=error",
        f"--listen-client-urls={ETCD_URL}", f"--advertise-client-urls={ETCD_URL}",
        f"--listen-peer-urls={PEER_URL}", f"--initial-advertise-peer-urls={PEER_URL}",
        f"--initial-cluster=default={PEER_URL}",
    ]  # fmt: skip


def api_server(config: Config) -> list[str]:
    """The API server, on loopback."""
    return [
        f"{BIN}/kube-apiserver", "--bind-address=127.0.0.1", f"--secure-port={API_PORT}",
        "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
        f"--etcd-servers={ETCD_URL}", f"--client-ca-file={TLS}/server-ca.crt",
        f"--tls-cert-file={TLS}/apiserver.crt", f"--tls-private-key-file={TLS}/apiserver.key",
        f"--kubelet-client-certificate={TLS}/apiserver-kubelet.crt",
        f"--kubelet-client-key={TLS}/apiserver-kubelet.key",
        f"--service-account-key-file={TLS}/sa.pub", f"--service-account-signing-key-file={TLS}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--anonymous-auth=false",
        "--service-cluster-ip-range=10.43.0.0/16", "--profiling=false", "--enable-priority-and-fairness=false",
        *_common(config),
    ]  # fmt: skip


def scheduler(config: Config) -> list[str]:
    """The scheduler."""
    kubeconfig = f"{CREDENTIALS}/scheduler.kubeconfig"
    return [
        f"{BIN}/kube-scheduler", f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1",
        *_alone(kubeconfig), *_common(config),
    ]  # fmt: skip


def manager(config: Config) -> list[str]:
    """The controller-manager. An emulated node may be late with its heartbeat."""
    kubeconfig = f"{CREDENTIALS}/controller-manager.kubeconfig"
    return [
        f"{BIN}/kube-controller-manager", f"--kubeconfig={kubeconfig}", "--leader-elect=false",
        "--bind-address=127.0.0.1", *_alone(kubeconfig), f"--controllers={','.join(CONTROLLERS)}",
        "--use-service-account-credentials", "--node-monitor-grace-period=300s",
        f"--root-ca-file={TLS}/server-ca.crt", f"--service-account-private-key-file={TLS}/sa.key", *_common(config),
    ]  # fmt: skip


def containerd() -> list[str]:
    """The runtime; its configuration is where its logs of a failure are fetched from."""
    return [f"{BIN}/containerd", f"--config={AGENT}/etc/containerd/config.toml"]


def kubelet(config: Config) -> list[str]:
    """The kubelet; it merges the folder of drop-ins itself and is told its gates there."""
    return [
        f"{BIN}/kubelet", f"--config-dir={KUBELET_CONFIGS}", f"--kubeconfig={CREDENTIALS}/kubelet.kubeconfig",
        f"--hostname-override={NODE_NAME}", f"--register-with-taints={TAINT}=true:NoSchedule",
        f"--v={config.verbosity}",
    ]  # fmt: skip


def _alone(kubeconfig: str) -> list[str]:
    """Nobody asks a scheduler or a controller-manager anything here, so neither has to look up who may."""
    return [
        f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}",
        "--authentication-skip-lookup",
    ]  # fmt: skip


def _common(config: Config) -> list[str]:
    return [f"--v={config.verbosity}", *_gates_flag(config.gates)]


def _gates_flag(gates: Mapping[str, bool]) -> list[str]:
    text = ",".join(f"{name}={'true' if state else 'false'}" for name, state in gates.items())
    return [f"--feature-gates={text}"] if text else []
