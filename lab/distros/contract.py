"""What every distribution does: install one pinned version on a node, and say what really runs there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lab.host import Deadline
from lab.kubectl import Kubectl
from lab.model import Cell
from lab.providers.contract import Node, Site

NODE_NAME = "node"
EVICTION_THRESHOLD = "2Gi"
PRESSURE_TRANSITION_S = 30
KUBELET_VERBOSITY = 3
"""The eviction manager's observations, with its own figure of what is available, need this much."""

PROJECT_FOLDER = "/opt/lab"

Instead = Mapping[str, tuple[str, ...]]
"""Node programs that stages name, to those that do their work on a distribution's nodes: part of the stamps."""

Waiting = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running Kubernetes of one node.

    ``kubelet_unit`` is the systemd unit whose journal holds the kubelet's log. ``kubelet_url`` and
    ``credentials_folder`` are valid on the node: the kubelet's own port, and ca.crt, reader.crt, reader.key.
    ``facts_texts`` is what the components said of themselves (stored with every attempt). ``own_cpu_s`` gives CPU
    seconds used so far by each control-plane process on the controller (empty when it runs elsewhere).
    ``frozen()`` holds the whole control plane still while its block runs: no API call can be made inside, and nothing
    of it takes CPU from what is measured. Its record has, after the block, the CPU time of the control plane in
    microseconds as it stood still and before it went on (``frozen_usage_usec``, ``thawed_usage_usec``; None: not
    read); it is empty where nothing is held.
    """

    node: Node
    kubectl: Kubectl
    cell: Cell
    kubelet_unit: str
    kubelet_url: str
    credentials_folder: str
    must_agree: Mapping[str, str]
    shown: Mapping[str, str]
    facts_texts: Mapping[str, str] = field(default_factory=dict)
    own_cpu_s: Callable[[], Mapping[str, float]] = dict
    frozen: Callable[[], AbstractContextManager[dict[str, int | None]]] = lambda: nullcontext({})


class Distro(Protocol):
    """Installs and removes one Kubernetes version."""

    name: str

    def check(self, cell: Cell) -> None:
        """UsageError for what can be seen to be wrong with a cell before anything of it is fetched."""

    def files(self, cell: Cell, site: Site) -> Mapping[str, Path]:
        """Binaries such a node needs: target path to verified local file (fetched or built now when missing)."""

    def install(self, node: Node, cell: Cell, deadline: Deadline, ready: Waiting = nullcontext) -> Cluster:
        """Until the node is Ready and pods can be created.

        ``ready()`` is held around each wait for something to be ready, so that these are timed on their own.
        """

    def attach(self, node: Node, cell: Cell) -> Cluster:
        """The cluster that an earlier run left on a kept node; UsageError when its version or gates differ.

        Also when nobody can say which gates it was told: see :mod:`lab.distros.kept`.
        """

    def save_logs(self, cluster: Cluster | None, node: Node, folder: Path) -> None:
        """Fetch what helps to explain a failure; never raises a LabError."""

    def uninstall(self, node: Node) -> None:
        """Take everything off a lasting node that :meth:`install` brought, pods included; harmless when half of it
        is there. NodeError with what would not go."""
