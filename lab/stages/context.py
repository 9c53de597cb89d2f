"""What a stage's ``collect`` may use: the cluster, the manifests, node programs, and a place to save raw texts."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.distros.contract import NODE_NAME, PROJECT_FOLDER, Cluster
from lab.host import Command, Completed, Deadline, Host, wait_until
from lab.kubectl import Kubectl, as_object, pod_state
from lab.manifests import Manifests
from lab.model import LabError, NodeError, WaitTimeout
from lab.phases import Phases

log = logging.getLogger(__name__)

NAMESPACE = "lab"
POD_START_S = 400.0
POD_STOP_S = 240.0

START = """\
place=$1 unit=$2
shift 2
[ -e "$place.status" ] || systemctl is-active --quiet "$unit.service" && exit 0
mkdir -p "${place%/*}"
exec systemd-run --quiet --collect --unit="$unit" --slice=lab.slice flock "$place.lock" sh -c '
    place=$1
    shift
    python3 "$@" >"$place" 2>"$place.stderr"
    echo $? >"$place.part"
    mv "$place.part" "$place.status"
' sh "$place" "$@"
"""
"""Start a program (``$3`` and on) as a unit, once: the same words again find that it runs or has ended."""

WAIT = """\
place=$1 unit=$2
until [ -e "$place.status" ]; do
    if ! systemctl is-active --quiet "$unit.service"; then
        [ -e "$place.status" ] || { echo "no status: its unit is gone"; exit 0; }
    fi
    flock "$place.lock" true
done
cat "$place.status"
"""
"""Wait for that program without using CPU (the lock is free when it has ended), and print its exit status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A running pod."""

    name: str
    uid: str
    container_id: str


@dataclass(slots=True, kw_only=True)
class StageContext:
    """One attempt of one stage on one cluster.

    ``save(name, text)`` stores a raw text at once. ``params`` are the stage's sampling parameters (part of its stamp),
    ``seed`` decides random orders (recorded, not part of the stamp). ``done`` are the repetitions (from 1) of which an
    earlier process of this run stored everything; ``begun(number, count)`` and ``finished(number, names)`` are told of
    each other one, with the names of its raw texts.
    """

    cluster: Cluster
    manifests: Manifests
    save: Callable[[str, str], None]
    params: Mapping[str, Any]
    seed: int
    phases: Phases
    progress: Callable[[str], None]
    pods_phase: str = field(default="pods")
    sleep: Callable[[float], None] = time.sleep
    done: frozenset[int] = frozenset()
    begun: Callable[[int, int], None] = lambda number, count: None
    finished: Callable[[int, Sequence[str]], None] = lambda number, names: None

    def repetitions(self, count: int) -> Iterator[int]:
        """Numbers of the repetitions that are still to be done, of 1 to ``count``.

        What is saved until the next one is asked for belongs to the present one, which is then done.
        """
        save = self.save
        names: list[str] = []

        def noting(name: str, text: str) -> None:
            save(name, text)
            names.append(name)

        for number in range(1, count + 1):
            if number in self.done:
                continue
            names.clear()
            self.begun(number, count)
            self.save = noting
            try:
                yield number
            finally:
                self.save = save
            self.finished(number, tuple(names))

    @property
    def host(self) -> Host:
        """The node."""
        return self.cluster.node.host

    @property
    def kubectl(self) -> Kubectl:
        """kubectl for the cluster."""
        return self.cluster.kubectl

    def script(
        self, name: str, *words: str, timeout_s: float, check: bool = True, repeatable: bool = False
    ) -> Completed:
        """Run a node program; its standard output is the raw text to save."""
        program = f"{PROJECT_FOLDER}/node-scripts/{name}"
        interpreter = "python3" if name.endswith(".py") else "sh"
        return self.host.run(
            Command(argv=(interpreter, program, *words), timeout_s=timeout_s, check=check, repeatable=repeatable)
        )

    def measure(
        self, name: str, save_as: str, *words: str, timeout_s: float, quiet_s: float = 0.0
    ) -> tuple[str, str]:
        """Run a node program under a unit in a slice of its own, its output kept in a file on the node, then fetched.

        The program does not hang on the connection: a link that is lost meanwhile costs nothing but waiting. For the
        first ``quiet_s`` the node is left alone altogether. Saves ``save_as`` and, when there is any,
        ``save_as.stderr``, also when the program failed or did not end in time. Returns the output and what went wrong
        (empty when it ended well). TransportError passes through.
        """
        # A name of its own each time: what an earlier measurement left must not pass for this one's.
        unit = f"lab-measure-{secrets.token_hex(4)}"
        place = f"{PROJECT_FOLDER}/out/{unit}"
        program = f"{PROJECT_FOLDER}/node-scripts/{name}"
        self.host.run(
            Command(argv=("sh", "-c", START, "sh", place, unit, program, *words), timeout_s=60, repeatable=True)
        )
        stop = Command(argv=("systemctl", "stop", f"{unit}.service"), repeatable=True, check=False)
        problem = ""
        try:
            self.sleep(quiet_s)
            argv = ("sh", "-c", WAIT, "sh", place, unit)
            status = self.host.run(Command(argv=argv, timeout_s=timeout_s - quiet_s, repeatable=True)).stdout.strip()
            if status != "0":
                problem = f"{name} ended with {status}"
        except WaitTimeout as error:
            problem = f"{name}: {error}"
            self.host.run(stop)
        except BaseException:
            # The node may live on, and whatever is measured there next must not run beside this.
            with contextlib.suppress(LabError):
                self.host.run(stop)
            raise
        text = self.host.run(Command(argv=("cat", place), timeout_s=60, repeatable=True, check=False)).stdout
        errors = self.host.run(Command(argv=("cat", f"{place}.stderr"), repeatable=True, check=False)).stdout
        self.save(save_as, text)
        if errors.strip():
            self.save(f"{save_as}.stderr", errors)
        if errors.strip() and problem:
            problem = f"{problem}: {errors.strip()[-400:]}"
        return text, problem

    def ensure_pods(self, cases: Sequence[str], *, timeout_s: float = POD_START_S) -> dict[str, Started]:
        """Have exactly these pods running in the lab's namespace: the others are deleted, the missing ones made."""
        with self.phases.track(self.pods_phase):
            present = {item["metadata"]["name"]: item for item in self.kubectl.get("pods", "-n", NAMESPACE)["items"]}
            wanted = [self.manifests.cases[case]["name"] for case in cases]
            unusable = [name for name, pod in present.items() if name not in wanted or pod_state(pod) != "Running"]
            self.kubectl.delete(NAMESPACE, unusable, deadline=Deadline.after(POD_STOP_S))
            usable = set(present) - set(unusable)
            missing = [case for case, name in zip(cases, wanted, strict=True) if name not in usable]
            if missing:
                self.kubectl.apply("---\n".join(self.manifests.render(case) for case in missing))
            return self._started(self.kubectl.wait_running(NAMESPACE, wanted, Deadline.after(timeout_s)), wanted)

    def add_pod(self, case: str, *, timeout_s: float = POD_START_S) -> Started:
        """Start one more pod beside those that run."""
        with self.phases.track(self.pods_phase):
            name = self.manifests.cases[case]["name"]
            self.kubectl.apply(self.manifests.render(case))
            found = self.kubectl.wait_running(NAMESPACE, [name], Deadline.after(timeout_s))
            return self._started(found, [name])[name]

    def delete_pods(self, names: Sequence[str]) -> None:
        """Delete pods of the lab's namespace and wait until they are gone."""
        with self.phases.track(self.pods_phase):
            self.kubectl.delete(NAMESPACE, names, deadline=Deadline.after(POD_STOP_S))

    def ensure_calm(self) -> None:
        """Wait until the node is Ready without memory pressure, by condition and by taint."""

        def calm() -> tuple[bool | None, str]:
            node = as_object(self.node_object())
            state = {entry["type"]: entry["status"] for entry in node["status"]["conditions"]}
            taints = [taint["key"] for taint in node["spec"].get("taints", [])]
            good = state.get("MemoryPressure") == "False" and state.get("Ready") == "True" and not taints
            return (True if good else None), f"{state}, taints {taints}"

        with self.phases.track("waits"):
            wait_until("the node to be without pressure", calm, Deadline.after(180), interval_s=2.0)

    def ensure_critical(self) -> None:
        """The stand-in for CoreDNS: a system-cluster-critical pod with 100m, in kube-system, on a calm node."""
        self.ensure_calm()
        with self.phases.track(self.pods_phase):
            found = {item["metadata"]["name"]: item for item in self.kubectl.get("pods", "-n", "kube-system")["items"]}
            if pod_state(found.get("critical")) != "Running":
                if "critical" in found:
                    self.kubectl.delete("kube-system", ["critical"], deadline=Deadline.after(POD_STOP_S))
                self.kubectl.apply(self.manifests.render("critical"))
                self.kubectl.wait_running("kube-system", ["critical"], Deadline.after(POD_START_S))

    def journal_cursor(self) -> str:
        """Cursor of the journal's newest entry on the node: later reads start after it."""
        argv = ("journalctl", "-n", "0", "--show-cursor", "--no-pager", "-q")
        text = self.host.run(Command(argv=argv, repeatable=True)).stdout
        found = text.rpartition("-- cursor: ")[2].strip()
        if not found:
            raise NodeError(f"the node's journal gave no cursor: {text!r}")
        return found

    def journal(self, cursor: str, *, unit: str | None) -> str:
        """The journal after a cursor with Unix times: of one unit, or (None) of the kernel."""
        source = ("-u", unit) if unit else ("-k",)
        argv = ("journalctl", *source, "--after-cursor", cursor, "-o", "short-unix", "--no-pager", "-q", "-a")
        return self.host.run(Command(argv=argv, timeout_s=90, repeatable=True)).stdout

    def node_object(self) -> str:
        """The node object in JSON, as it came."""
        return self.kubectl.get_text("node", NODE_NAME)

    @staticmethod
    def _started(found: Mapping[str, Any], names: Sequence[str]) -> dict[str, Started]:
        pods = {item["metadata"]["name"]: item for item in found["items"]}
        return {
            name: Started(
                name=name,
                uid=pods[name]["metadata"]["uid"],
                container_id=pods[name]["status"]["containerStatuses"][0]["containerID"].rpartition("//")[2],
            )
            for name in names
        }
