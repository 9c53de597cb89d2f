"""etcd, API server, scheduler and controller-manager as units of the node itself, for nodes that reach nobody.

They share a slice, which is frozen while something is measured: a control plane beside the measured pods would take
CPU from them. All of it listens on loopback; its keys and kubeconfigs are for root alone.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

from lab import interrupts
from lab.artifacts import KUBERNETES_COMPONENTS, Binaries
from lab.distros.contract import NODE_NAME, Waiting
from lab.distros.upstream import components, pki
from lab.distros.upstream.control_plane import gates_known, kubelet_files
from lab.distros.upstream.node import CREDENTIALS
from lab.distros.upstream.runtime import BIN, DATA, STATE
from lab.host import Command, Deadline, Host, put_texts
from lab.kubectl import Kubectl
from lab.model import Cell, NodeError

log = logging.getLogger(__name__)

SLICE = "lab-control.slice"
UNITS = ("lab-etcd", "lab-apiserver", "lab-scheduler", "lab-controller-manager")
FIRST, THEN = UNITS[:2], UNITS[2:]
"""The scheduler and the controller-manager end by themselves when there is no API server yet."""

PORTS = {"etcd": 16379, "peer": 16380, "api": 16443, "scheduler": 16259, "manager": 16257}
"""Loopback ports of the node: not the usual ones, which another program of the machine may have."""

LAYOUT = components.Layout(
    programs={name: f"{BIN}/{name}" for name in (*KUBERNETES_COMPONENTS, "etcd")},
    pki=PurePosixPath(f"{CREDENTIALS}/pki"),
    config=PurePosixPath(CREDENTIALS),
    data=PurePosixPath(f"{DATA}/etcd"),
    ports=PORTS,
)

KEYS = ("ca.", "etcd", "apiserver", "sa.")
"""Beginnings of the names of the keys and certificates that the components read; the rest is in kubeconfigs."""

JOURNAL_LINES = 12
FREEZE_S = 60.0
READY_S = 450.0

START = f"""\
set -e
units=$1
shift
trap '[ $? = 0 ] || {{ systemctl is-active $units; journalctl $(printf " -u %s" $units) -n {JOURNAL_LINES} \
-o cat --no-pager; }} >&2' EXIT
cd {BIN}
while [ $# -gt 0 ]; do
    ln -sfn "$2" "$1"
    shift 2
done
chmod 700 {CREDENTIALS} {CREDENTIALS}/pki
systemctl daemon-reload
systemctl start $units
"""
"""Arguments: the units in one word, then name and target of each link. Safe to repeat."""

ALIVE = f"""\
states=$(systemctl is-active "$@") || true
echo $states
case "$states" in *failed*|*inactive*|*unknown*|*deactivating*) ;; *) exit 0 ;; esac
exec journalctl $(printf " -u %s" "$@") -n {JOURNAL_LINES} -o cat --no-pager
"""
"""The units' states on one line; then, when one of them has ended, the last lines of all."""

READY = f"""\
seconds=$1
shift
# Hundredths of a second since boot: of whole seconds one may be over at once.
now() {{
    sed 's/\\.//; s/ .*//' /proc/uptime
}}
end=$(($(now) + seconds * 100))
while :; do
    answer=$(curl --silent --show-error --max-time 20 --cacert {CREDENTIALS}/pki/ca.crt \
        --cert {CREDENTIALS}/pki/apiserver-kubelet.crt --key {CREDENTIALS}/pki/apiserver-kubelet.key \
        {LAYOUT.api_url}/readyz 2>&1)
    [ "$answer" = ok ] && exit 0
    states=$(systemctl is-active "$@")
    case $states in *failed*|*inactive*|*unknown*|*deactivating*) break ;; esac
    [ "$(now)" -ge "$end" ] && break
    sleep 1
done
echo "$answer" | tail -c 500
echo $states
journalctl $(printf " -u %s" "$@") -n {JOURNAL_LINES} -o cat --no-pager
exit 1
"""
"""Wait on the node itself for the API server: kubectl would take from a slow machine what the server needs."""

HOLD = """\
verb=$1 slice=$2 wanted=$3
group=$(systemctl show --property=ControlGroup --value "$slice")
events=/sys/fs/cgroup$group/cgroup.events
used() {
    sed -n 's/^usage_usec //p' "/sys/fs/cgroup$group/cpu.stat"
}
before=
grep -qx 'frozen 1' "$events" && before=$(used)
said=$(systemctl "$verb" "$slice" 2>&1) || said="$said (exit status $?)"
tries=50
while [ $tries -gt 0 ]; do
    if grep -qx "frozen $wanted" "$events"; then
        [ "$wanted" = 1 ] && used || echo "$before"
        exit 0
    fi
    tries=$((tries - 1))
    sleep 0.1
done
echo "systemctl $verb $slice: $said; $events: $(cat "$events" 2>&1 | tr '\\n' ' ')"
exit 1
"""
"""Freeze or thaw, wait until the kernel says so (Documentation/admin-guide/cgroup-v2.rst, cgroup.events), and print
the CPU time that the slice had used while it stood still: after the one, before the other (cpu.stat, microseconds).
A thaw that is repeated prints nothing: the slice ran by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlane:
    """A control plane that runs on the node."""

    placement: ClassVar[str] = "node"

    host: Host
    kubectl: Kubectl

    def cpu_seconds(self) -> dict[str, float]:
        """Nothing: no component runs on the controller; the window's program reads the node's own slices."""
        return {}

    @contextmanager
    def frozen(self) -> Iterator[dict[str, int | None]]:
        """Freeze the slice while the block runs and thaw it whatever happens in it.

        The record has ``frozen_usage_usec`` and, after the block, ``thawed_usage_usec``: CPU time that the slice had
        used by then (None: not read). NodeError when it did not freeze, or did not thaw after a block that ended well.
        """
        record: dict[str, int | None] = {}
        try:
            record["frozen_usage_usec"] = self.hold("freeze")
            yield record
        except BaseException:
            interrupts.leaving = True
            try:
                self.thaw()
            except NodeError as error:
                # What ended the block says more; whoever attaches to the node thaws it.
                log.warning("%s: the control plane is still frozen: %s", self.host.name, error)
            raise
        record["thawed_usage_usec"] = self.thaw()

    def thaw(self) -> int | None:
        """Let the slice run; harmless when it does. A signal waits until that is done. CPU time as :meth:`hold`."""
        used: list[int | None] = []
        what = f"letting the control plane of {self.host.name} go on"
        interrupts.surely(what, lambda: used.append(self.hold("thaw")))
        return used[0]

    def hold(self, verb: str) -> int | None:
        """``freeze`` or ``thaw`` the slice; NodeError with its state when the kernel does not confirm it.

        Returns the CPU time in microseconds that the slice had used after it stood still, or before it went on; None
        when that could not be read.
        """
        argv = ("sh", "-c", HOLD, "sh", verb, SLICE, "1" if verb == "freeze" else "0")
        done = self.host.run(Command(argv=argv, timeout_s=FREEZE_S, repeatable=True, check=False))
        if done.exit_status != 0:
            raise NodeError(
                f"{self.host.name}: the control plane would not {verb}: {(done.stdout + done.stderr).strip()[-500:]}"
            )
        used = done.stdout.strip()
        return int(used) if used.isascii() and used.isdecimal() else None

    def check_alive(self) -> None:
        """NodeError with states and the journal's end when a unit has ended."""
        argv = ("sh", "-c", ALIVE, "sh", *UNITS)
        states, _, journal = self.host.run(Command(argv=argv, repeatable=True)).stdout.partition("\n")
        if journal or not states:
            shown = ", ".join(f"{unit} {state}" for unit, state in zip(UNITS, states.split(), strict=False))
            raise NodeError(f"the control plane on {self.host.name}: {shown}; its last lines:\n{journal.strip()}")


def programs(binaries: Binaries) -> tuple[dict[str, Path], dict[str, str]]:
    """What to bring: target path on the node to local file, and the links (name to name) beside them.

    A multi-call binary is brought once, under its own name; its components are links to it.
    """
    files: dict[str, Path] = {}
    links: dict[str, str] = {}
    for name in LAYOUT.programs:
        source = binaries.components[name].resolve()
        files[f"{BIN}/{source.name}"] = source
        if source.name != name:
            links[name] = source.name
    return files, links


def unit(description: str, argv: list[str]) -> str:
    """A systemd service in the slice. No argument holds what systemd would read otherwise (spaces, quotes, % or $).

    A component has deadlines of its own for its start, which a slow machine can miss: it may try three times.
    """
    return f"""\
[Unit]
Description={description}
StartLimitIntervalSec=900
StartLimitBurst=3
[Service]
Type=exec
Slice={SLICE}
ExecStart={" ".join(argv)}
Restart=on-failure
RestartSec=1
OOMScoreAdjust=-999
LimitNOFILE=1048576
"""


def texts(keys: pki.ControlPlanePki, cell: Cell) -> dict[str, tuple[str, int]]:
    """Every file of the control plane: path to (text, mode)."""
    # Nothing uses the API's own service, whose endpoint may not be on loopback (pkg/controlplane/reconcilers).
    server = [*components.api_server(LAYOUT, cell), "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"]
    # While it is frozen it sees no heartbeat of the node, and must not think that the node is gone.
    manager = [*components.manager(LAYOUT), "--node-monitor-grace-period=300s"]
    services = {
        "lab-etcd": unit("etcd of the node lab", components.etcd(LAYOUT)),
        "lab-apiserver": unit("kube-apiserver of the node lab", server),
        "lab-scheduler": unit("kube-scheduler of the node lab", components.scheduler(LAYOUT)),
        "lab-controller-manager": unit("kube-controller-manager of the node lab", manager),
    }
    holders = ("admin", "scheduler", "controller-manager")
    return {
        **{f"/etc/systemd/system/{name}.service": (text, 0o644) for name, text in services.items()},
        **{f"{LAYOUT.pki}/{name}": (text, 0o600) for name, text in keys.files().items() if name.startswith(KEYS)},
        **{f"{LAYOUT.config}/{name}.kubeconfig": (keys.kubeconfig(LAYOUT.api_url, name), 0o600) for name in holders},
    }


def on(host: Host) -> NodePlane:
    """The control plane of a node, running or not. kubectl keeps its cache within the lab's folders."""
    argv = (f"{BIN}/kubectl", f"--cache-dir={STATE}/kubectl")
    return NodePlane(
        host=host, kubectl=Kubectl(host=host, argv=argv, kubeconfig=f"{CREDENTIALS}/admin.kubeconfig")
    )


def start(
    host: Host, cell: Cell, links: Mapping[str, str], deadline: Deadline, ready: Waiting = nullcontext
) -> tuple[NodePlane, dict[str, str]]:
    """Start all four units and wait (in ``ready()``) for ``/readyz``; the executables are there.

    Also the kubelet's credentials.
    """
    keys = pki.ControlPlanePki.make(
        now=datetime.datetime.now(datetime.UTC), api_ips=(components.SERVICE_ADDRESS,), node_name=NODE_NAME
    )
    plane = on(host)
    put_texts(host, texts(keys, cell))
    _start_units(host, FIRST, links, deadline)
    with ready(), gates_known(cell):
        _wait_ready(host, deadline.sooner(READY_S).remaining_s())
    _start_units(host, THEN, {}, deadline)
    return plane, kubelet_files(keys, "127.0.0.1", PORTS["api"])


def _start_units(host: Host, units: tuple[str, ...], links: Mapping[str, str], deadline: Deadline) -> None:
    words = [word for link in sorted(links.items()) for word in link]
    argv = ("sh", "-c", START, "sh", " ".join(units), *words)
    host.run(Command(argv=argv, timeout_s=min(120.0, max(1.0, deadline.remaining_s())), repeatable=True))


def _wait_ready(host: Host, seconds: float) -> None:
    """NodeError with the last answer, the units' states and the journal's end when there is no ``/readyz`` in time."""
    argv = ("sh", "-c", READY, "sh", str(int(seconds)), *FIRST)
    done = host.run(Command(argv=argv, timeout_s=seconds + 60, repeatable=True, check=False))
    if done.exit_status != 0:
        raise NodeError(
            f"the API server on {host.name} does not say that it is ready; last answer, states of "
            f"{' and '.join(FIRST)}, last lines:\n{(done.stdout + done.stderr).strip()}"
        )


def attach(host: Host) -> NodePlane:
    """The control plane of a kept node, thawed; NodeError when it does not run any more."""
    plane = on(host)
    # A run that was killed inside a window left it frozen.
    plane.thaw()
    plane.check_alive()
    return plane
