"""Upstream components: the kubelet in the node, everything else on the controller where the node can reach it.

A control plane inside the node takes CPU from the very windows that are measured: where it must be there, it is frozen
meanwhile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from lab.artifacts import Binaries
from lab.distros import bundle, configz, kept
from lab.distros.contract import NODE_NAME, PROJECT_FOLDER, Cluster, Waiting
from lab.distros.gates import check_gates_took, check_versions, gate_lines, with_dependents
from lab.distros.removal import Removal
from lab.distros.upstream import control_plane, node_plane
from lab.distros.upstream import node as kubelet_node
from lab.distros.upstream.runtime import BIN, BROUGHT, of_site
from lab.host import Command, Deadline, LocalHost, put_texts, wait_until
from lab.kubectl import Kubectl, as_object
from lab.model import Cell, UsageError
from lab.parse.node_facts import NodeFacts, feature_gates, parse_node_facts
from lab.providers.contract import Node, Site

NAMESPACE = "lab"
REMOVAL = Removal(before="upstream_before.sh", remove="upstream_remove.sh")

READER_RBAC = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: lab-reader}
rules:
- apiGroups: [""]
  resources: [nodes/stats, nodes/metrics, nodes/proxy, nodes/configz, nodes/healthz]
  verbs: [get]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: lab-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: lab-reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: lab-reader}]
"""

FACTS_S = 240.0
"""Starting five large programs once, for their versions, takes a minute on a slow machine with a control plane."""


class Plane(Protocol):
    """A running control plane, wherever it is. ``placement`` is what the environment of a record calls that."""

    @property
    def placement(self) -> str:
        """``controller`` or ``node``."""

    @property
    def kubectl(self) -> Kubectl:
        """kubectl as the administrator."""

    def cpu_seconds(self) -> Mapping[str, float]:
        """CPU seconds used so far by each component on the controller."""

    def frozen(self) -> AbstractContextManager[dict[str, int | None]]:
        """Hold all of it still while a block runs; see :class:`lab.distros.contract.Cluster`."""


class Upstream:
    """Installs upstream Kubernetes: the control plane beside the node or in it, a runtime where there is none."""

    name = "upstream"

    def __init__(
        self,
        *,
        resolve: Callable[[str], Binaries],
        scripts: Mapping[str, str],
        progress: Callable[[str], None],
        resolve_runtime: Callable[[], Binaries] | None = None,
    ) -> None:
        self._resolve = resolve
        self._resolve_runtime = resolve_runtime
        self._scripts = scripts
        self._progress = progress
        self._binaries: dict[str, Binaries] = {}
        self._runtime: Binaries | None = None

    def binaries(self, version: str) -> Binaries:
        """Verified binaries of a version, resolved once."""
        if version not in self._binaries:
            self._binaries[version] = self._resolve(version)
        return self._binaries[version]

    def runtime(self) -> Binaries:
        """Verified containerd, runc and busybox for nodes without them, resolved once."""
        if self._runtime is None:
            if self._resolve_runtime is None:
                raise UsageError("this run was given no source of containerd and runc for nodes without a runtime")
            self._runtime = self._resolve_runtime()
        return self._runtime

    def check(self, cell: Cell) -> None:
        """See :class:`lab.distros.contract.Distro`: nothing, since only a release's own programs know its gates."""
        del cell

    def files(self, cell: Cell, site: Site) -> Mapping[str, Path]:
        """See :class:`lab.distros.contract.Distro`. Also refuses gates that the version does not know."""
        binaries = self.binaries(cell.version)
        check_gates(cell, binaries)
        if site.reaches_controller:
            found = {f"{BIN}/kubelet": binaries.components["kubelet"].resolve()}
        else:
            found, _ = node_plane.programs(binaries)
        if of_site(site) is BROUGHT:
            found |= {f"{BIN}/{name}": path.resolve() for name, path in self.runtime().components.items()}
        return found

    def install(self, node: Node, cell: Cell, deadline: Deadline, ready: Waiting = nullcontext) -> Cluster:
        """See :class:`lab.distros.contract.Distro`."""
        told = with_dependents(cell)
        runtime = of_site(node.site)
        files = self.files(cell, node.site)
        if runtime is BROUGHT:
            REMOVAL.remember(node.host, self._scripts)
        kept.remember(node, cell)
        plane: Plane
        if node.site.reaches_controller:
            plane, credentials = self._plane_here(node, told, deadline, ready)
            plane.kubectl.apply(READER_RBAC)
            self._put_files(node, files, deadline)
        else:
            self._put_files(node, files, deadline)
            _, links = node_plane.programs(self.binaries(cell.version))
            plane, credentials = node_plane.start(node.host, told, links, deadline, ready)
            plane.kubectl.apply(READER_RBAC)
        kubelet_node.start(node.host, kubelet_node.texts(told, credentials, runtime), runtime, deadline)
        with ready():
            kubelet_node.wait_unit_answers(node.host, deadline.sooner(300))
            _wait_node_ready(plane.kubectl, deadline.sooner(400))
        return self._cluster(node, cell, told, plane)

    def _plane_here(
        self, node: Node, told: Cell, deadline: Deadline, ready: Waiting
    ) -> tuple[control_plane.ControlPlane, dict[str, str]]:
        """Start the control plane on this machine; also the kubelet's credentials."""
        if node.controller_address is None:
            raise UsageError(f"nodes of provider {node.provider} cannot reach a control plane on the controller")
        plane, credentials = control_plane.start(
            binaries=self.binaries(told.version),
            cell=told,
            folder=node.folder / "control-plane",
            node_folder=node.folder,
            addresses=(node.controller_address,),
            deadline=deadline,
            ready=ready,
        )
        return plane.watching(node.host.check_alive), credentials

    def _put_files(self, node: Node, files: Mapping[str, Path], deadline: Deadline) -> None:
        """Lay programs onto the node; what is there already, from its boot on, is only checked."""
        node.host.put(files, mode=0o755, timeout_s=max(60.0, deadline.remaining_s()))
        self._put_scripts(node)

    def attach(self, node: Node, cell: Cell) -> Cluster:
        """See :class:`lab.distros.contract.Distro`."""
        kept.require_same(node, cell)
        plane: Plane
        if node.site.reaches_controller:
            plane = control_plane.attach(node.folder / "control-plane").watching(node.host.check_alive)
        else:
            plane = node_plane.attach(node.host)
        running = as_object(plane.kubectl.raw("/version")).get("gitVersion", "")
        if running != cell.version:
            raise UsageError(f"node {node.id} runs {running or 'nothing'}, not {cell.version}")
        self._put_scripts(node)
        return self._cluster(node, cell, with_dependents(cell), plane)

    def _put_scripts(self, node: Node) -> None:
        """Lay the node programs onto the node, as they are in the project now."""
        put_texts(
            node.host,
            {f"{PROJECT_FOLDER}/node-scripts/{name}": (text, 0o755) for name, text in self._scripts.items()},
        )

    def _cluster(self, node: Node, cell: Cell, told: Cell, plane: Plane) -> Cluster:
        runtime = of_site(node.site)
        argv = ("sh", f"{PROJECT_FOLDER}/node-scripts/node_facts.sh")
        facts = parse_node_facts(
            node.host.run(Command(argv=argv, timeout_s=FACTS_S, repeatable=True, env=runtime.environment)).stdout
        )
        brought = [self.binaries(cell.version), *([self.runtime()] if runtime is BROUGHT else [])]
        metrics = {
            "apiserver": plane.kubectl.raw("/metrics"),
            "kubelet": kubelet_node.get(node.host, "/metrics"),
        }
        configuration = kubelet_node.get(node.host, "/configz")
        version = plane.kubectl.raw("/version")
        check_versions(cell, as_object(version).get("gitVersion", ""), facts.kubelet)
        check_gates_took(told, {name: feature_gates(text) for name, text in metrics.items()})
        config = configz.kubelet_config(configuration)
        configz.check(node.host.name, told, config)
        must_agree, shown = _environment(node, facts, brought, config, plane.placement)
        return Cluster(
            node=node,
            kubectl=plane.kubectl,
            cell=cell,
            kubelet_unit=kubelet_node.KUBELET_UNIT,
            kubelet_url=f"https://127.0.0.1:{kubelet_node.KUBELET_PORT}",
            credentials_folder=kubelet_node.CREDENTIALS,
            must_agree=must_agree,
            shown=shown,
            facts_texts={
                "node-facts.txt": facts.text,
                "configz.json": configuration,
                "apiserver-version.json": version,
                "binaries.json": _sha256_text(brought),
                "gates-apiserver.txt": gate_lines(metrics["apiserver"], told),
                "gates-kubelet.txt": gate_lines(metrics["kubelet"], told),
            },
            own_cpu_s=plane.cpu_seconds,
            frozen=plane.frozen,
        )

    def save_logs(self, cluster: Cluster | None, node: Node, folder: Path) -> None:
        """See :class:`lab.distros.contract.Distro`."""
        items = {
            "kubelet.log": bundle.journal_of(kubelet_node.KUBELET_UNIT),
            "containerd.log": bundle.journal_of(of_site(node.site).unit),
        }
        if not node.site.reaches_controller:
            items["control-plane.log"] = bundle.journal_of(*node_plane.UNITS)
        here = {path.name: path for path in sorted((node.folder / "control-plane").glob("*.log"))}
        bundle.save(folder, cluster, node, items, here)

    def uninstall(self, node: Node) -> None:
        """See :class:`lab.distros.contract.Distro`."""
        REMOVAL.take_off(node.host, self._scripts)


def check_gates(cell: Cell, binaries: Binaries) -> None:
    """UsageError when a component of this version does not list a gate that the user set."""
    told = with_dependents(cell)
    for component, program in (("apiserver", "kube-apiserver"), ("kubelet", "kubelet")):
        chosen = [gate for gate in told.gates if gate.component in (None, component)]
        if not chosen:
            continue
        text = LocalHost().run(Command(argv=(str(binaries.components[program]), "--help"), timeout_s=60)).stdout
        known = set(re.findall(r"([A-Za-z0-9]+)=true\|false", text))
        for gate in chosen:
            if known and gate.name not in known:
                raise UsageError(
                    f"gate {gate}: the {program} of {cell.version} does not know {gate.name}; nothing was started"
                )


def _sha256_text(brought: Sequence[Binaries]) -> str:
    """Component to sha256 of all that was brought, as a JSON text."""
    found = {name: digest for binaries in brought for name, digest in binaries.sha256.items()}
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def _environment(
    node: Node, facts: NodeFacts, brought: Sequence[Binaries], config: Mapping[str, Any], placement: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Facts that comparable cells must agree on, and facts that are only shown.

    ``brought``: the components' binaries, and those of the runtime when the lab brings one.
    """
    must_agree = {
        "provider": node.provider,
        "emulation": node.facts.get("emulation", "none"),
        "cgroup_mode": facts.cgroup_mode,
        "cgroup_driver": str(config.get("cgroupDriver", "not reported")),
        "vcpus": str(facts.cpus),
        "memory_class": f"{node.facts.get('memory_mib', str(facts.memory_kib // 1024))} MiB",
        "control_plane": placement,
    }
    shown = {
        "kernel": facts.kernel,
        "cpu_model": facts.cpu_model,
        "containerd": facts.containerd,
        "runc": facts.runc,
        "image": node.facts.get("image", ""),
        "kubelet": facts.kubelet,
        "kubelet_sha256": facts.kubelet_sha256,
        "artifact_origin": brought[0].first_origin,
        "runtime_origin": brought[1].first_origin if len(brought) > 1 else "",
    }
    return must_agree, {name: value for name, value in shown.items() if value}


def _wait_node_ready(kubectl: Kubectl, deadline: Deadline) -> None:
    """Node Ready, then the default service account of the namespaces that take pods, then no memory pressure."""
    kubectl.apply(f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}\n")

    def ready() -> tuple[bool | None, str]:
        done = kubectl.call("get", "node", NODE_NAME, "-o", "json", check=False, repeatable=True)
        if done.exit_status != 0:
            return None, done.stderr.strip()[-200:]
        state = node_conditions(done.stdout)
        good = state.get("Ready") == "True" and state.get("MemoryPressure") == "False"
        return (True if good else None), str(state)

    wait_until("the node to be Ready", ready, deadline, interval_s=1.0)
    for namespace in (NAMESPACE, "kube-system"):

        def account(namespace: str = namespace) -> tuple[bool | None, str]:
            done = kubectl.call("get", "serviceaccount", "default", "-n", namespace, check=False, repeatable=True)
            return (True if done.exit_status == 0 else None), done.stderr.strip()[-200:]

        wait_until(f"the default service account of {namespace}", account, deadline, interval_s=0.5)


def node_conditions(text: str) -> dict[str, str]:
    """Condition type to status, from a node object in JSON."""
    return {entry["type"]: entry["status"] for entry in as_object(text).get("status", {}).get("conditions", [])}
