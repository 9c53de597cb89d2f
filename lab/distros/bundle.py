"""The bundle of a failure: whatever helps to explain it, fetched from a node before that goes, as far as it can be had.

One folder; ``index.txt`` has a line for each item: its size, or why it is missing. All texts are masked. One deadline
holds for all items together, and after a lost connection nothing more is asked of that node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lab.distros.contract import Cluster
from lab.host import Command, Completed, Deadline
from lab.kubectl import Kubectl
from lab.model import LabError, TransportError
from lab.providers.contract import Node
from lab.secrets import SECRETS

INDEX = "index.txt"
BUNDLE_S = 90.0
"""For all that is fetched from one node."""

ITEM_S = 30.0
SEEK_S = 10.0
"""How long a lost connection is sought for a bundle: the node goes next in any case."""

LAST_BYTES = 1 << 20
"""Of a local file."""

CGROUPS = r"""
root=/sys/fs/cgroup
find "$root" -maxdepth 8 -path '*kubepods*' -type d | sort | head -n 200 | while read -r group; do
    for name in cpu.weight cpu.max cpu.stat memory.max memory.min memory.low memory.high memory.swap.max \
        memory.current memory.events pids.current cgroup.procs; do
        [ -e "$group/$name" ] && printf '== %s/%s\n' "$group" "$name" && cat "$group/$name"
    done
done
[ -d "$root" ]
"""

NODE: Mapping[str, tuple[str, ...]] = {
    "kernel.log": ("journalctl", "-k", "-b", "-n", "20000", "-o", "short-unix", "--no-pager"),
    "cgroups.txt": ("sh", "-c", CGROUPS),
    "journal.log": ("journalctl", "-b", "-n", "20000", "-o", "short-unix", "--no-pager"),
    "cloud-init.log": ("tail", "-n", "5000", "/var/log/cloud-init.log"),
    "cloud-init-output.log": ("tail", "-n", "5000", "/var/log/cloud-init-output.log"),
}
"""What every node has, whatever is installed on it: file name to the command that gives it."""

CLUSTER: Mapping[str, tuple[str, ...]] = {
    "pods.json": ("pods", "-A"),
    "events.json": ("events", "-A"),
    "nodes.json": ("nodes",),
}


def journal_of(*units: str) -> tuple[str, ...]:
    """Command for the journal of units."""
    return ("journalctl", *(word for unit in units for word in ("-u", unit)), "-o", "short-unix", "--no-pager")


class Bundle:
    """A folder of texts with its index. Only a full disk raises (OSError)."""

    def __init__(self, folder: Path, deadline: Deadline | None = None) -> None:
        self.folder = folder
        self._deadline = deadline or Deadline.after(BUNDLE_S)
        self._lost: dict[str, str] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def text(self, name: str, text: str) -> None:
        """Store one item."""
        data = SECRETS.mask(text).encode(errors="replace")
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self._note(name, f"{len(data)} bytes")

    def missing(self, name: str, reason: str) -> None:
        """Say why an item is not there."""
        said = " ".join(reason.split()) or "no reason given"
        self._note(name, f"missing: {said if len(said) <= 300 else f'{said[:100]} … {said[-200:]}'}")

    def _note(self, name: str, text: str) -> None:
        with (self.folder / INDEX).open("a", encoding="utf-8") as file:
            file.write(SECRETS.mask(f"{name:<28} {text}\n"))

    def file(self, name: str, path: Path) -> None:
        """Store the end of a local file."""
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - LAST_BYTES))
                text = file.read().decode(errors="replace")
        except OSError as error:
            self.missing(name, error.strerror or str(error))
            return
        self.text(name, text)

    def command(self, name: str, node: Node, argv: tuple[str, ...]) -> None:
        """Store what a command on the node prints; an exit status other than 0 is noted, and what it said stored."""

        def ask(seconds: float) -> Completed:
            with node.host.seeking_at_most(min(SEEK_S, seconds)):
                return node.host.run(Command(argv=argv, timeout_s=seconds, repeatable=True, check=False))

        self._answer(name, node.host.name, ask)

    def kubectl(self, name: str, kubectl: Kubectl, words: tuple[str, ...]) -> None:
        """Store objects of the API in JSON."""
        kubectl = kubectl.without_node()

        def ask(seconds: float) -> Completed:
            return kubectl.call("get", *words, "-o", "json", timeout_s=seconds, check=False, repeatable=True)

        self._answer(name, kubectl.host.name, ask)

    def _seconds(self, name: str, host: str) -> float | None:
        """How long an item may take; None, and noted, when nothing more is to be asked."""
        if host in self._lost:
            self.missing(name, f"not asked for, since the connection is lost: {self._lost[host]}")
            return None
        left_s = self._deadline.remaining_s()
        if left_s < 1:
            self.missing(name, "not asked for: the time for all items is over")
            return None
        return min(ITEM_S, left_s)

    def _answer(self, name: str, host: str, ask: Callable[[float], Completed]) -> None:
        seconds = self._seconds(name, host)
        if seconds is None:
            return
        try:
            done = ask(seconds)
        except LabError as error:
            if isinstance(error, TransportError):
                self._lost[host] = str(error)
            self.missing(name, str(error))
            return
        if done.exit_status != 0 and not done.stdout.strip():
            self.missing(name, f"exit {done.exit_status}: {done.stderr}")
            return
        self.text(name, done.stdout)
        if done.exit_status != 0:
            said = " ".join(done.stderr.split())[-200:]
            self._note(name, f"is what was printed before exit {done.exit_status}: {said}")


def save(
    folder: Path, cluster: Cluster | None, node: Node, items: Mapping[str, tuple[str, ...]], local: Mapping[str, Path]
) -> None:
    """The bundle of a node: ``local`` files, a distribution's ``items``, what every node has, objects of the API.

    ``items`` maps a file name to the command on the node that gives it.
    """
    bundle = Bundle(folder)
    for name, path in local.items():
        bundle.file(name, path)
    console = node.folder / "console.log"
    if console.exists():
        bundle.file("console.log", console)
    else:
        bundle.missing("console.log", f"nodes of provider {node.provider} have none that could be read from here")
    for name, argv in {**items, **NODE}.items():
        bundle.command(name, node, argv)
    for name, words in CLUSTER.items():
        if cluster is None:
            bundle.missing(name, "the installation did not come to its end")
        else:
            bundle.kubectl(name, cluster.kubectl, words)
