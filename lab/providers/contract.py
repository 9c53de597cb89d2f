"""What every provider does: make a node, find kept ones, and destroy a node until it is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Protocol

from lab.host import Deadline
from lab.ssh import SshHost


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the nodes of a provider are like, as far as a distribution must know.

    ``reaches_controller``: a node can open connections to this machine, so a control plane may run here.
    ``has_runtime``: containerd, runc and a static busybox are installed already.
    ``is_lasting``: the machine stays when the node is given back, so what was installed must be removed again.
    """

    reaches_controller: bool
    has_runtime: bool
    is_lasting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """What a node should be. ``files`` (target path to local file) may be laid onto it at boot to save a transfer.

    ``expires_s`` (Unix time) is decided before anything is made; what is made in a cloud carries it, and whoever finds
    it afterwards may remove it.
    """

    name: str
    run_id: str
    vcpus: int = 2
    memory_mib: int = 4096
    files: Mapping[str, Path] = field(default_factory=dict)
    expires_s: float = 0.0

    @property
    def id(self) -> str:
        """Name of the node everywhere: its folder, its host name, its tag."""
        return f"{self.name}-{self.run_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine that answers over SSH. ``folder`` holds what the controller keeps about it.

    ``controller_address`` is where the node reaches this machine, None unless ``site.reaches_controller``.
    """

    id: str
    provider: str
    site: Site
    folder: Path
    host: SshHost
    facts: Mapping[str, str]
    controller_address: str | None
    cpu_threads: Callable[[], Mapping[int, str]] = dict


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """One node in a list. ``state`` is for people; ``is_expired`` says that `lab gc` may remove it.

    ``expires_s`` (Unix time) is None for a node that belongs to a living process and was not kept.
    """

    id: str
    provider: str
    state: str
    in_use: bool
    is_expired: bool
    expires_s: float | None


class Provider(Protocol):
    """Makes and destroys nodes."""

    name: str
    site: Site

    def check(self, nodes: int) -> None:
        """Whether ``nodes`` more of them can be made; asked before anything is fetched, built or paid.

        UsageError or NodeError names what is missing and what to do.
        """

    def hourly_price(self) -> Decimal:
        """US dollars for one node and hour; 0 where nothing is charged."""

    def create(self, spec: NodeSpec, deadline: Deadline) -> Node:
        """A node that answers over SSH. On failure nothing is left and NodeError says what was seen last."""

    def attach(self, node_id: str) -> Node:
        """A kept node, by its id; NoSuchNode when there is none."""

    def keep(self, node: Node, until_s: float) -> None:
        """Let the node outlive this process until ``until_s`` (Unix time) or its expiry, whichever is sooner."""

    def destroy(self, node: Node) -> None:
        """Until it is gone; LeftBehind with the ids otherwise."""

    def records(self) -> list[NodeRecord]:
        """Every node of this provider that is there, whoever made it."""

    def down(self, node_id: str) -> None:
        """Remove a node by its id; LeftBehind when something stays.

        NoSuchNode only when it is known that there is none: whoever gets it need not look again.
        """

    def collect_garbage(self, *, dry_run: bool) -> list[str]:
        """Remove what nobody is responsible for any more; the ids. LeftBehind when something stays."""
