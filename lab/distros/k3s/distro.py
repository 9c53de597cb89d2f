"""k3s as a distribution: a pinned release, laid down over SSH, started by systemd, read back and taken off again.

Control plane and kubelet are one process: it cannot be held still while something is measured, for the kubelet would be
too. What it takes of the CPU in a window is in that window's own record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from lab.artifacts import Binaries, k3s_release
from lab.distros import bundle, configz, kept
from lab.distros.contract import Cluster, Waiting
from lab.distros.gates import check_gates_took, check_versions, gate_lines, with_dependents
from lab.distros.k3s import node as k3s_node
from lab.distros.k3s import settings
from lab.distros.k3s.gates import check_gates
from lab.distros.k3s.node import State
from lab.distros.removal import Removal
from lab.host import Deadline
from lab.kubectl import as_object
from lab.model import Cell, UsageError
from lab.parse.node_facts import feature_gates
from lab.providers.contract import Node, Site

REMOVAL = Removal(before="k3s_before.sh", remove="k3s_remove.sh")
PLACEMENT = "in the k3s process"

LOGS: Mapping[str, tuple[str, ...]] = {
    "k3s.log": bundle.journal_of(settings.UNIT),
    "containerd.log": ("tail", "-n", "5000", settings.CONTAINERD_LOG),
    "containerd-config.toml": ("cat", f"{settings.DATA}/agent/etc/containerd/config.toml"),
}
"""What of k3s helps to explain a failure: file name to the command on the node that gives it."""


class K3s:
    """Installs k3s releases.

    ``resolve`` gives the program and busybox of a version. With ``resolve_images`` the release's own images are brought
    too, and sandboxes are made of its own image instead of the pods' one.
    """

    name = "k3s"

    def __init__(
        self,
        *,
        resolve: Callable[[str], Binaries],
        scripts: Mapping[str, str],
        progress: Callable[[str], None],
        resolve_images: Callable[[str], Binaries] | None = None,
    ) -> None:
        self._resolve = resolve
        self._resolve_images = resolve_images
        self._scripts = scripts
        self._progress = progress
        self._resolved: dict[str, tuple[Binaries, ...]] = {}

    def binaries(self, version: str) -> tuple[Binaries, ...]:
        """Verified files of a version, resolved once: program and busybox, then the images when they are wanted."""
        if version not in self._resolved:
            images = () if self._resolve_images is None else (self._resolve_images(version),)
            self._resolved[version] = (self._resolve(version), *images)
        return self._resolved[version]

    def check(self, cell: Cell) -> None:
        """See :class:`lab.distros.contract.Distro`: gates that cannot be set so on this version."""
        check_gates(with_dependents(cell))

    def files(self, cell: Cell, site: Site) -> Mapping[str, Path]:
        """See :class:`lab.distros.contract.Distro`. The same for every site: k3s brings its own runtime."""
        del site
        self.check(cell)
        program, *images = self.binaries(cell.version)
        found = {f"{settings.BIN}/{name}": path for name, path in program.components.items()}
        for archive in images:
            found |= {f"{settings.IMAGES}/{name}": path for name, path in archive.components.items()}
        return found

    def install(self, node: Node, cell: Cell, deadline: Deadline, ready: Waiting = nullcontext) -> Cluster:
        """See :class:`lab.distros.contract.Distro`. Its start and the waits are one call, all of it ``ready``."""
        told = with_dependents(cell)
        files = self.files(cell, node.site)
        REMOVAL.remember(node.host, self._scripts)
        kept.remember(node, cell)
        node.host.put(files, mode=0o755, timeout_s=max(60.0, deadline.remaining_s()))
        texts = settings.texts(told, own_images=self._resolve_images is not None)
        k3s_node.put_scripts(node.host, self._scripts, texts)
        with ready():
            started = k3s_node.start(node.host, cell, deadline)
        self._progress(f"{cell.name}: {'; '.join(started.splitlines())}")
        cluster = self._cluster(node, cell, told)
        return replace(cluster, facts_texts={**cluster.facts_texts, "k3s-start.txt": started})

    def attach(self, node: Node, cell: Cell) -> Cluster:
        """See :class:`lab.distros.contract.Distro`."""
        kept.require_same(node, cell)
        release = k3s_release(cell.version)
        running = as_object(k3s_node.kubectl(node.host).raw("/version")).get("gitVersion", "")
        if running != release:
            raise UsageError(f"node {node.id} runs {running or 'nothing'}, not {release}")
        k3s_node.put_scripts(node.host, self._scripts, {})
        return self._cluster(node, cell, with_dependents(cell))

    def _cluster(self, node: Node, cell: Cell, told: Cell) -> Cluster:
        state = k3s_node.read_state(node.host)
        release = replace(cell, version=k3s_release(cell.version))
        check_versions(release, as_object(state.api_version).get("gitVersion", ""), state.facts.kubelet)
        check_gates_took(told, {component: feature_gates(text) for component, text in state.gates.items()})
        configz.check(node.host.name, told, state.kubelet_config)
        brought = self.binaries(cell.version)
        must_agree, shown = _environment(node, state, brought)
        return Cluster(
            node=node,
            kubectl=k3s_node.kubectl(node.host),
            cell=cell,
            kubelet_unit=settings.UNIT,
            kubelet_url=settings.KUBELET_URL,
            credentials_folder=settings.CREDENTIALS,
            must_agree=must_agree,
            shown=shown,
            facts_texts={
                "node-facts.txt": state.facts.text,
                "configz.json": state.configz + "\n",
                "apiserver-version.json": state.api_version + "\n",
                "binaries.json": _sha256_text(brought),
                **{f"gates-{component}.txt": gate_lines(text, told) for component, text in state.gates.items()},
            },
        )

    def save_logs(self, cluster: Cluster | None, node: Node, folder: Path) -> None:
        """See :class:`lab.distros.contract.Distro`."""
        bundle.save(folder, cluster, node, LOGS, {})

    def uninstall(self, node: Node) -> None:
        """See :class:`lab.distros.contract.Distro`."""
        REMOVAL.take_off(node.host, self._scripts)


def _environment(node: Node, state: State, brought: Sequence[Binaries]) -> tuple[dict[str, str], dict[str, str]]:
    """Facts that comparable cells must agree on, and facts that are only shown."""
    facts = state.facts
    must_agree = {
        "provider": node.provider,
        "emulation": node.facts.get("emulation", "none"),
        "cgroup_mode": facts.cgroup_mode,
        "cgroup_driver": str(state.kubelet_config.get("cgroupDriver", "not reported")),
        "vcpus": str(facts.cpus),
        "memory_class": f"{node.facts.get('memory_mib', str(facts.memory_kib // 1024))} MiB",
        "control_plane": PLACEMENT,
    }
    shown = {
        "kernel": facts.kernel,
        "cpu_model": facts.cpu_model,
        "containerd": facts.containerd,
        "runc": facts.runc,
        "image": node.facts.get("image", ""),
        "k3s": state.version_line.removeprefix("k3s version "),
        "kubelet": facts.kubelet,
        "kubelet_sha256": facts.kubelet_sha256,
        "artifact_origin": brought[0].first_origin,
    }
    return must_agree, {name: value for name, value in shown.items() if value}


def _sha256_text(brought: Sequence[Binaries]) -> str:
    """Component to sha256 of all that was brought, as a JSON text."""
    found = {name: digest for binaries in brought for name, digest in binaries.sha256.items()}
    return json.dumps(found, indent=1, sort_keys=True) + "\n"
