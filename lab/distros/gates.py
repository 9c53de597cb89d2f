"""Feature gates and releases, whatever the distribution: what follows from those asked for, and whether they run."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lab.model import GATED, Cell, Gate, NodeError

DEPENDENT_GATES = {
    "PodLevelResources": (
        ("InPlacePodLevelResourcesVerticalScaling", 35),
        ("PodLevelResourceManagers", 36),
        ("PodLevelResourcesFixKubeletQOSClass", 37),
        ("PodLevelResourcesFixDefaulting", 37),
    )
}
"""Gates that cannot stay on when another is off, with the minor that brought them (pkg/features/kube_features.go)."""


def with_dependents(cell: Cell) -> Cell:
    """The cell with every gate also off that depends on one that is off; gates the user named stay as named."""
    gates = list(cell.gates)
    for gate in cell.gates:
        for name, since in DEPENDENT_GATES.get(gate.name, ()):
            if gate.enabled or cell.minor < since:
                continue
            named = [other.component for other in cell.gates if other.name == name]
            targets = [gate.component] if gate.component or not named else list(GATED)
            gates += [
                Gate(name=name, enabled=False, component=target)
                for target in targets
                if None not in named and target not in named
            ]
    return Cell(distro=cell.distro, version=cell.version, gates=tuple(gates))


def check_gates_took(cell: Cell, found: Mapping[str, Mapping[str, bool]]) -> None:
    """NodeError when ``kubernetes_feature_enabled`` of a component differs from what it was told."""
    for gate in cell.gates:
        for component in GATED:
            if gate.component not in (None, component):
                continue
            seen = found[component].get(gate.name)
            if seen is not gate.enabled:
                raise NodeError(
                    f"gate {gate} was set on the {component}, but its metrics say "
                    f"{'nothing of it' if seen is None else str(seen).lower()}"
                )


RELEVANT_GATE = re.compile(r"PodLevel|InPlacePod|QoS|Quota|CPUManager|MemoryManager|Swap|Cgroup|Evict|Limit|DRANode")


def gate_lines(metrics: str, cell: Cell) -> str:
    """The gates, as the component's metrics show them, that touch resources or that the user set."""
    named = {gate.name for gate in cell.gates}
    lines = []
    for line in metrics.splitlines():
        match = re.match(r'kubernetes_feature_enabled\{name="([^"]+)"', line)
        if match and (match[1] in named or RELEVANT_GATE.search(match[1])):
            lines.append(line)
    return "\n".join(lines) + "\n"


def check_versions(cell: Cell, api_server: str, kubelet: str) -> None:
    """NodeError when what runs is not what was asked for; UsageError would blame the user for it."""
    for component, found in (("API server", api_server), ("kubelet", kubelet)):
        if found != cell.version:
            raise NodeError(f"the {component} says that it is {found or 'nothing'}, asked for was {cell.version}")
