"""The node's half of an upstream cluster: the kubelet, its credentials, and the runtime that it drives.

Pure texts but for what takes a host.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from lab.distros.contract import EVICTION_THRESHOLD, KUBELET_VERBOSITY, NODE_NAME, PRESSURE_TRANSITION_S, PROJECT_FOLDER
from lab.distros.upstream.runtime import Runtime
from lab.host import Command, Deadline, Host, put_texts, wait_until
from lab.model import Cell, NodeError, WaitTimeout

KUBELET_UNIT = "lab-kubelet"
KUBELET_PORT = 10250
CREDENTIALS = "/etc/lab"


def kubelet_unit(runtime: Runtime) -> str:
    """The kubelet's systemd unit."""
    return f"""\
[Unit]
Description=kubelet under test
After={runtime.unit}.service
[Service]
ExecStart={PROJECT_FOLDER}/bin/kubelet --config={CREDENTIALS}/kubelet.yaml \
--kubeconfig={CREDENTIALS}/kubelet.kubeconfig --hostname-override={NODE_NAME} --v={KUBELET_VERBOSITY}
Restart=no
OOMScoreAdjust=-999
"""


def kubelet_config(cell: Cell, runtime: Runtime) -> str:
    """KubeletConfiguration as YAML."""
    config: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{CREDENTIALS}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{CREDENTIALS}/kubelet.crt",
        "tlsPrivateKeyFile": f"{CREDENTIALS}/kubelet.key",
        "cgroupDriver": "systemd",
        "containerRuntimeEndpoint": f"unix://{runtime.socket}",
        # Naming one signal drops the defaults of the others: the disk is not what is measured here.
        "evictionHard": {"memory.available": EVICTION_THRESHOLD},
        "evictionPressureTransitionPeriod": f"{PRESSURE_TRANSITION_S}s",
        "nodeStatusUpdateFrequency": "5s",
        "failSwapOn": False,
        **runtime.kubelet_settings,
    }
    gates = {gate.name: gate.enabled for gate in cell.gates if gate.component in (None, "kubelet")}
    if gates:
        config["featureGates"] = gates
    return yaml.safe_dump(config, sort_keys=True)


def texts(cell: Cell, credentials: Mapping[str, str], runtime: Runtime) -> dict[str, tuple[str, int]]:
    """Every file of the node: path to (text, mode)."""
    files = {f"{CREDENTIALS}/{name}": (text, 0o600) for name, text in credentials.items()}
    return {
        **files,
        f"{CREDENTIALS}/kubelet.yaml": (kubelet_config(cell, runtime), 0o600),
        f"/etc/systemd/system/{KUBELET_UNIT}.service": (kubelet_unit(runtime), 0o644),
        **runtime.files,
    }


def start(host: Host, files: Mapping[str, tuple[str, int]], runtime: Runtime, deadline: Deadline) -> None:
    """Lay down the files, start containerd and the kubelet; NodeError with the journal's end when a unit fails.

    A runtime of the machine's own may run already, with another configuration; one that the lab brings does not, which
    makes its start safe to repeat.
    """
    put_texts(host, files)
    brought = runtime.path is not None
    journal = f"journalctl -u {runtime.unit} -u {KUBELET_UNIT} -n 12 -o cat --no-pager >&2"
    script = (
        f"set -e; trap '[ $? = 0 ] || {journal}' EXIT; systemctl daemon-reload; "
        f"systemctl {'start' if brought else 'restart'} {runtime.unit}; "
        f"{shlex.join(runtime.image_argv)}; systemctl start {KUBELET_UNIT}"
    )
    timeout_s = min(300.0, max(1.0, deadline.remaining_s()))
    host.run(Command(argv=("sh", "-c", script), timeout_s=timeout_s, repeatable=brought))


def check_unit(host: Host) -> None:
    """NodeError with the kubelet's last lines when its unit is not running."""
    state = host.run(
        Command(argv=("systemctl", "is-active", KUBELET_UNIT), check=False, repeatable=True)
    ).stdout.strip()
    if state not in ("active", "activating"):
        tail = host.run(
            Command(argv=("journalctl", "-u", KUBELET_UNIT, "-n", "12", "-o", "cat", "--no-pager"), repeatable=True)
        ).stdout
        raise NodeError(f"the kubelet's unit is {state}; its last lines:\n{tail}")


def get(host: Host, path: str) -> str:
    """GET of a path of the kubelet's own port, with the reader's certificate, on the node."""
    argv = (
        "curl", "--silent", "--show-error", "--fail", "--max-time", "20", "--cacert", f"{CREDENTIALS}/ca.crt",
        "--cert", f"{CREDENTIALS}/reader.crt", "--key", f"{CREDENTIALS}/reader.key",
        f"https://127.0.0.1:{KUBELET_PORT}{path}",
    )  # fmt: skip
    return host.run(Command(argv=argv, repeatable=True, timeout_s=30)).stdout


def wait_unit_answers(host: Host, deadline: Deadline) -> None:
    """Wait for the kubelet's /healthz."""

    def probe() -> tuple[bool | None, str]:
        try:
            return (True if get(host, "/healthz").strip() == "ok" else None), "healthz"
        except WaitTimeout:
            raise
        except NodeError as error:
            check_unit(host)
            return None, str(error)[-200:]

    wait_until("the kubelet's /healthz", probe, deadline, interval_s=1.0)
