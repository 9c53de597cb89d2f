"""Feature gates on k3s, checked before anything is started. Pure."""

from __future__ import annotations

from lab.distros.k3s.known_gates import FIRST_MINOR, KNOWN, LAST_MINOR
from lab.model import Cell, UsageError


def check_gates(cell: Cell) -> None:
    """UsageError for a gate of one component only, and for one that this version does not know.

    k3s starts API server and kubelet in its own process (pkg/daemons/executor/embed.go), and that process has one set
    of gates (DefaultFeatureGate in k8s.io/apiserver/pkg/util/feature): whoever is told last decides for both.
    """
    for gate in cell.gates:
        if gate.component is not None:
            raise UsageError(
                f"gate {gate}: k3s runs API server and kubelet in one process with one set of gates, so that a gate "
                f"cannot differ between them; leave out @{gate.component}, or take --distro upstream, where they are "
                "processes of their own"
            )
        if not FIRST_MINOR <= cell.minor <= LAST_MINOR:
            raise UsageError(
                f"gate {gate}: which gates k3s {cell.version} knows is not known to the lab, only those of 1."
                f"{FIRST_MINOR} to 1.{LAST_MINOR}; nothing was started. --distro upstream asks the program itself"
            )
        if cell.minor not in KNOWN.get(gate.name, ()):
            raise UsageError(
                f"gate {gate}: k3s {cell.version} does not know it ({_where(gate.name)}); nothing was started"
            )


def _where(name: str) -> str:
    """In which versions there is such a gate."""
    minors = KNOWN.get(name)
    if minors is None:
        return f"nor does any version from 1.{FIRST_MINOR} to 1.{LAST_MINOR}"
    first, last = f"1.{minors[0]}", f"1.{minors[-1]}"
    return f"only {first} does" if first == last else f"only {first} to {last} do"
