"""One node for several cells: between two of them everything is taken off, and two fingerprints prove it.

What an uninstall leaves behind would be in the next version's numbers. So a difference ends the run and is named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

from lab import fingerprint, interrupts
from lab.distros.contract import Distro
from lab.fingerprint import Fingerprint
from lab.host import Clock, Command, Deadline, Host, Sleep
from lab.model import LabError, LeftBehind, NodeError, ParseError, UsageError
from lab.providers.contract import Node, NodeRecord, NodeSpec, Provider

PROBE = "fingerprint.py"
PROBE_S = 180.0
SETTLE_S, SETTLE_PAUSE_S = 30.0, 5.0
"""Units, cgroups and mounts of ended processes go a little later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanSlate:
    """What a node was before the first cell. ``scripts`` are the project's programs for nodes."""

    node: Node
    before: Fingerprint
    scripts: Mapping[str, str]
    sleep: Sleep = field(default=time.sleep, repr=False)
    clock: Clock = field(default=time.monotonic, repr=False)

    @classmethod
    def take(cls, node: Node, scripts: Mapping[str, str]) -> CleanSlate:
        """Look at a node on which nothing is installed yet. ParseError when its fingerprint cannot be read."""
        return cls(node=node, before=measure(node.host, scripts), scripts=scripts)

    def restore(self, distro: Distro, progress: Callable[[str], None]) -> None:
        """Uninstall and compare. NodeError with every difference that is still there after SETTLE_S."""
        distro.uninstall(self.node)
        deadline = Deadline.after(SETTLE_S, self.clock)
        while found := fingerprint.compare(self.before, measure(self.node.host, self.scripts)):
            if deadline.remaining_s() <= 0:
                listed = "".join(f"\n  - {line}" for line in found)
                raise NodeError(
                    f"node {self.node.id} cannot be used again: after the removal of {distro.name} it is not as it was "
                    f"before ({len(found)} differences):{listed}"
                )
            self.sleep(min(SETTLE_PAUSE_S, deadline.remaining_s()))
        progress(f"{self.node.id}: {distro.name} is off; all {len(self.before.entries)} things noted are as before")


def measure(host: Host, scripts: Mapping[str, str]) -> Fingerprint:
    """One fingerprint; its program travels on standard input and leaves no file."""
    if PROBE not in scripts:
        raise UsageError(f"the project's node-scripts hold no {PROBE}; take the folder of this version of the lab")
    command = Command(argv=("python3", "-I", "-B", "-"), stdin=scripts[PROBE], timeout_s=PROBE_S, repeatable=True)
    return fingerprint.parse(host.run(command).stdout)


def give_back(provider: Provider, distro: Distro, node: Node, progress: Callable[[str], None]) -> None:
    """Take off a lasting node what was installed, then destroy it or hand it back. LeftBehind when something stays.

    The provider has the last word: it compares the machine with what it was, whatever the removal said of itself.
    """
    unsure: LabError | None = None
    if node.site.is_lasting:
        try:
            distro.uninstall(node)
        except LabError as error:
            progress(f"{node.id}: the removal did not end well: {error}")
            unsure = error
    try:
        provider.destroy(node)
    except LabError as error:
        raise LeftBehind(f"{error}\n{unsure}" if unsure else str(error)) from error


class SharedNode:
    """A provider that makes one node of another provider's and gives it out for every cell of a run.

    ``destroy`` only puts it aside: what the cell installed is taken off, and the node compared, when the next cell asks
    for one. :meth:`close` destroys it, and must be called however the run ends. ``cells`` is how many there will be.
    """

    def __init__(
        self,
        provider: Provider,
        distro: Distro,
        scripts: Mapping[str, str],
        progress: Callable[[str], None],
        *,
        cells: int,
        now: Clock = time.time,
    ) -> None:
        self.name, self.site = provider.name, provider.site
        self._provider = provider
        self._distro = distro
        self._scripts = scripts
        self._progress = progress
        self._cells = cells
        self._now = now
        self._slate: CleanSlate | None = None
        self._refusal: str | None = None

    def check(self, nodes: int) -> None:
        """See :class:`lab.providers.contract.Provider`: one node is enough."""
        self._provider.check(min(nodes, 1))

    def hourly_price(self) -> Decimal:
        """See :class:`lab.providers.contract.Provider`."""
        return self._provider.hourly_price()

    def create(self, spec: NodeSpec, deadline: Deadline) -> Node:
        """The node: made for the first cell, and cleaned for each later one.

        NodeError with every difference when it is not as it was; the same again for every further cell.
        """
        if self._refusal is not None:
            raise NodeError(self._refusal)
        if self._slate is None:
            self._slate = self._first(spec, deadline)
            return self._slate.node
        try:
            self._slate.restore(self._distro, self._progress)
        except (NodeError, ParseError) as error:
            self._refusal = str(error)
            raise NodeError(self._refusal) from error
        return self._slate.node

    def _first(self, spec: NodeSpec, deadline: Deadline) -> CleanSlate:
        """A node that lives as long as all cells need, and on which nothing lies that a removal would take away."""
        life_s = self._cells * (spec.expires_s - self._now())
        node = self._provider.create(replace(spec, files={}, expires_s=self._now() + life_s), deadline)
        try:
            return CleanSlate.take(node, self._scripts)
        except BaseException:
            interrupts.leaving = True
            interrupts.surely(f"removing node {node.id}", lambda: self._provider.destroy(node))
            raise

    def attach(self, node_id: str) -> Node:
        """See :class:`lab.providers.contract.Provider`."""
        return self._provider.attach(node_id)

    def keep(self, node: Node, until_s: float) -> None:
        """Refused: a kept node could not be given to the next cell."""
        raise UsageError(f"node {node.id} is used for several versions and cannot be kept")

    def destroy(self, node: Node) -> None:
        """Put the node aside for the next cell."""
        self._progress(f"{node.id}: stays until the run ends")

    def close(self) -> None:
        """Destroy the node, if one was made. LeftBehind as :meth:`lab.providers.contract.Provider.destroy`."""
        if self._slate is not None:
            node, self._slate = self._slate.node, None
            give_back(self._provider, self._distro, node, self._progress)

    def records(self) -> list[NodeRecord]:
        """See :class:`lab.providers.contract.Provider`."""
        return self._provider.records()

    def down(self, node_id: str) -> None:
        """See :class:`lab.providers.contract.Provider`."""
        self._provider.down(node_id)

    def collect_garbage(self, *, dry_run: bool) -> list[str]:
        """See :class:`lab.providers.contract.Provider`."""
        return self._provider.collect_garbage(dry_run=dry_run)
