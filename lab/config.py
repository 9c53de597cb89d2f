"""What a run was asked for, as one frozen record; argv and environment end in lab.cli, which makes it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from lab.model import GATED, Cell, Gate, UsageError, minor_of

OLDEST_MINOR = 34

TOKEN_VARIABLES = ("DIGITALOCEAN_TOKEN", "DIGITALOCEAN_ACCESS_TOKEN")


def token_of(environ: Mapping[str, str]) -> str:
    """The cloud's token from the environment; empty when there is none."""
    return next((environ[name] for name in TOKEN_VARIABLES if environ.get(name)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What kind of node is wanted; each provider reads the fields that concern it.

    ``host`` is ``user@addr[:port]``, ``known_hosts`` the file with its keys (None: where ssh(1) looks); ``allow_from``
    the one address that may reach a droplet's SSH port (None: this machine's own public address). ``vcpus`` and
    ``memory_mib`` are for local guests.
    """

    ssh_port: int | None = None
    host: str | None = None
    identity: Path | None = None
    known_hosts: Path | None = None
    accept_kubernetes: bool = False
    size: str = "s-2vcpu-4gb"
    region: str = "fra1"
    image: str = "ubuntu-24-04-x64"
    allow_from: str | None = None
    vcpus: int = 2
    memory_mib: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One `lab run`. ``cells`` in running order; ``options`` are what stages make their sampling parameters of."""

    cells: tuple[Cell, ...]
    stages: tuple[str, ...]
    provider: str
    distro: str
    results: Path
    project: Path
    cache: Path
    keep: str
    seed: int
    quick: bool
    reps: int
    order: str
    node: str | None = None
    reuse_node: bool = False
    own_images: bool = False
    artifacts: Path | None = None
    download: bool = True
    build: bool = True
    max_minutes: float | None = None
    max_cost: Decimal | None = None
    nodes: NodeOptions = field(default_factory=NodeOptions)

    @property
    def options(self) -> Mapping[str, Any]:
        """The part that decides sampling parameters."""
        return {"quick": self.quick, "reps": self.reps, "order": self.order}


def make_cells(distro: str, versions: str, gates: tuple[str, ...], gate_legs: tuple[str, ...]) -> tuple[Cell, ...]:
    """Cells from the command line, in order.

    ``versions`` is comma-separated; ``gates`` apply to every version; each of ``gate_legs``
    (``VERSION:NAME=false[,NAME=…]``) adds one more cell. UsageError quotes what was given with its
    flag; versions are not given by a flag everywhere.
    """
    chosen = tuple(_gate(text) for text in gates)
    cells = [Cell(distro=distro, version=_version(text), gates=chosen) for text in split_list(versions)]
    cells += [_leg(distro, leg) for leg in gate_legs]
    if not cells:
        raise UsageError("no version given; example: v1.36.3,v1.37.2")
    for cell in cells:
        if "+" in cell.version and distro != "k3s":
            raise UsageError(f"version {cell.version} belongs to k3s, not to {distro}: leave out the part from '+' on")
        _check_gates(cell)
    _check_once(cells)
    return tuple(cells)


def _gate(text: str) -> Gate:
    try:
        return Gate.parse(text)
    except UsageError as error:
        raise UsageError(f"--gate {error}") from error


def _leg(distro: str, leg: str) -> Cell:
    version, _, text = leg.partition(":")
    if not split_list(text):
        raise UsageError(f"--gate-leg {leg!r} is not VERSION:NAME=false")
    try:
        gates = tuple(Gate.parse(gate) for gate in split_list(text))
        return Cell(distro=distro, version=_version(version), gates=gates)
    except UsageError as error:
        raise UsageError(f"--gate-leg {leg!r}: {error}") from error


def _check_once(cells: Sequence[Cell]) -> None:
    """UsageError for two cells that are one, whatever words they took."""
    seen: dict[tuple[str, frozenset[Gate]], Cell] = {}
    for cell in cells:
        first = seen.setdefault((cell.release, frozenset(cell.gates)), cell)
        if first is not cell:
            same = "" if first.version == cell.version else f" ({first.version} and {cell.version} are one release)"
            raise UsageError(f"{cell.name} is asked for twice{same}")


def _check_gates(cell: Cell) -> None:
    """UsageError when one component is told twice about a gate: nobody should have to guess which one it obeys."""
    for component in GATED:
        told: dict[str, Gate] = {}
        for gate in cell.gates:
            if gate.component not in (None, component):
                continue
            if gate.name in told:
                raise UsageError(
                    f"{cell.version}: the {component} is told both {told[gate.name]} and {gate}; give one of them, "
                    "or one each for @apiserver and @kubelet"
                )
            told[gate.name] = gate


def split_list(text: str) -> list[str]:
    """Entries of a comma-separated list; none when there are only commas and spaces."""
    return [part for part in re.split(r"[,\s]+", text) if part]


def _version(text: str) -> str:
    version = text if text.startswith("v") else f"v{text}"
    try:
        minor = minor_of(version)
    except UsageError:
        # As it was typed, without the letter that was put before it.
        raise UsageError(f"version {text!r} is not of the form v1.36.3") from None
    if minor < OLDEST_MINOR:
        raise UsageError(f"version {version}: the oldest that the lab measures is v1.{OLDEST_MINOR}")
    return version
