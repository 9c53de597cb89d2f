"""The container runtime of a node: the one that its image has, or containerd and runc that the lab brings. Pure.

What the lab brings keeps to folders of its own, so that a containerd or docker of the machine's owner goes on
untouched, and so that nothing of it stays: each setting below names what containerd would otherwise do outside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from lab.distros.contract import PROJECT_FOLDER, Instead
from lab.providers.contract import Site

SANDBOX_IMAGE = "lab.local/busybox:1"
BIN = f"{PROJECT_FOLDER}/bin"
DATA = "/var/lib/lab"
STATE = "/run/lab"
PATH = f"{BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Search path for programs on a node where the lab's own containerd, runc and ctr must be found first."""

# Pods use the host's network, so containerd only needs to find some network plugin configured.
CNI_CONFIG = json.dumps({"cniVersion": "1.0.0", "name": "lab", "plugins": [{"type": "loopback"}]}) + "\n"

IMAGE_CONFIG = f"""\
version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{SANDBOX_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    SystemdCgroup = true
"""

BROUGHT_CONFIG = f"""\
version = 3
root = "{DATA}/containerd"
state = "{STATE}/containerd"
[grpc]
  address = "{STATE}/containerd/containerd.sock"
[plugins.'io.containerd.internal.v1.opt']
  path = "{DATA}/opt"
[plugins.'io.containerd.nri.v1.nri']
  disable = true
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{SANDBOX_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    conf_dir = "/etc/lab/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = "{BIN}/runc"
      Root = "{STATE}/runc"
      SystemdCgroup = true
"""

BROUGHT_UNIT = f"""\
[Unit]
Description=containerd of the node lab
After=network.target dbus.service
[Service]
Type=notify
Environment=PATH={PATH}
ExecStartPre=-modprobe overlay
ExecStart={BIN}/containerd --config=/etc/lab/containerd.toml
Delegate=yes
KillMode=process
Restart=no
OOMScoreAdjust=-999
LimitNPROC=infinity
LimitNOFILE=1048576
TasksMax=infinity
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A containerd on a node.

    ``files``: path to (text, mode) of its configuration. ``image_argv`` makes and imports the pods' image.
    ``kubelet_settings`` go into the kubelet's configuration. ``path`` is the search path under which its programs are
    found, None when root's own does.
    """

    unit: str
    socket: str
    files: Mapping[str, tuple[str, int]]
    image_argv: tuple[str, ...]
    kubelet_settings: Mapping[str, object] = field(default_factory=dict)
    path: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Environment for commands on the node that must find this runtime's programs."""
        return {} if self.path is None else {"PATH": self.path}


PRESENT = Runtime(
    unit="containerd",
    socket="/run/containerd/containerd.sock",
    files={
        "/etc/cni/net.d/10-lab.conflist": (CNI_CONFIG, 0o644),
        "/etc/containerd/config.toml": (IMAGE_CONFIG, 0o644),
    },
    image_argv=("python3", f"{PROJECT_FOLDER}/node-scripts/oci_image.py"),
)
"""The one that an image of the lab's own has."""

BROUGHT = Runtime(
    unit="lab-containerd",
    socket=f"{STATE}/containerd/containerd.sock",
    files={
        "/etc/lab/cni/10-lab.conflist": (CNI_CONFIG, 0o644),
        "/etc/lab/containerd.toml": (BROUGHT_CONFIG, 0o644),
        "/etc/systemd/system/lab-containerd.service": (BROUGHT_UNIT, 0o644),
    },
    image_argv=(
        "python3", f"{PROJECT_FOLDER}/node-scripts/busybox_image.py", f"{BIN}/busybox", f"{BIN}/ctr",
        f"{STATE}/containerd/containerd.sock",
    ),
    # Pods use the host's network and no service, so the kubelet's own chains would only have to be removed again
    # (pkg/kubelet/kubelet_network_linux.go); its log and plugin folders stay within the lab's.
    kubelet_settings={
        "makeIPTablesUtilChains": False,
        "podLogsDir": f"{DATA}/pod-logs",
        "volumePluginDir": f"{DATA}/volume-plugins",
    },
    path=PATH,
)  # fmt: skip
"""The one that the lab brings."""


def of_site(site: Site) -> Runtime:
    """A machine that stays keeps its own containerd as it is, so the lab brings one even when it has one."""
    return PRESENT if site.has_runtime and not site.is_lasting else BROUGHT


def instead(site: Site) -> Instead:
    """Where the lab brings the runtime, the pods' image is made of the busybox that it brings too."""
    return {} if of_site(site) is PRESENT else {"oci_image.py": ("busybox_image.py", "oci_image.py")}
