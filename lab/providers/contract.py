"""What every provider does: make a node, find kept ones, and destroy a node until it is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lab.host import Deadline
from lab.ssh import SshHost


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """What a node should be. ``files`` (target path to local file) may be laid onto it at boot to save a transfer."""

    name: str
    run_id: str
    vcpus: int = 2
    memory_mib: int = 4096
    files: Mapping[str, Path] = field(default_factory=dict)
    expires_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine that answers over SSH. ``folder`` holds what the controller keeps about it."""

    id: str
    provider: str
    folder: Path
    host: SshHost
    facts: Mapping[str, str]
    controller_address: str | None
    cpu_threads: Callable[[], Mapping[int, str]] = dict


class Provider(Protocol):
    """Makes and destroys nodes."""

    name: str

    def check(self) -> None:
        """UsageError when this machine lacks what the provider needs; asked before anything is fetched or built."""

    def create(self, spec: NodeSpec, deadline: Deadline) -> Node:
        """A node that answers over SSH. On failure nothing is left and NodeError carries the console's last lines."""

    def attach(self, node_id: str) -> Node:
        """A kept node, by its id; UsageError when there is none."""

    def keep(self, node: Node, until_s: float) -> None:
        """Let the node outlive this process until ``until_s`` (Unix time)."""

    def destroy(self, node: Node) -> None:
        """Until it is gone; LeftBehind with the ids otherwise."""
