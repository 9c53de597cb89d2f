"""Ready experiments by name: versions, gate legs, distribution, order, repetitions; reads presets.toml alone."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.config import make_cells
from lab.model import UsageError

DEFAULT_PATH = Path(__file__).resolve().parent / "presets.toml"
_KEYS = frozenset({"distro", "versions", "gate_legs", "order", "reps"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """What a preset gives where the command line says nothing; texts have the form of the flags of the same name."""

    name: str
    distro: str
    versions: str
    gate_legs: tuple[str, ...]
    order: str
    reps: int

    def legs_for(self, versions: str | None) -> tuple[str, ...]:
        """The gate legs that belong to an experiment: all, or those of the ``versions`` (as cells) that were given."""
        if versions is None:
            return self.gate_legs
        wanted = {cell.release for cell in make_cells(self.distro, versions, (), ())}
        of_leg = {leg: make_cells(self.distro, "", (), (leg,))[0].release for leg in self.gate_legs}
        return tuple(leg for leg in self.gate_legs if of_leg[leg] in wanted)


def get(name: str, path: Path | None = None) -> Preset:
    """One preset; UsageError names those that there are."""
    found = load(path)
    if name not in found:
        raise UsageError(f"--preset {name}: there is only {', '.join(sorted(found))}")
    return found[name]


def load(path: Path | None = None) -> dict[str, Preset]:
    """All presets of a file (the packaged one by default); UsageError names the file and what is wrong."""
    path = DEFAULT_PATH if path is None else path
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as presets: {error}") from error
    try:
        return {name: _preset(name, table) for name, table in data.items()}
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _preset(name: str, table: Mapping[str, Any] | object) -> Preset:
    if not isinstance(table, dict) or set(table) != _KEYS:
        raise UsageError(f"preset {name} needs exactly {', '.join(sorted(_KEYS))}; found {table!r}")
    lists = [table["versions"], table["gate_legs"]]
    if any(not isinstance(entry, list) or not all(isinstance(text, str) for text in entry) for entry in lists):
        raise UsageError(f"preset {name}: versions and gate_legs are lists of texts")
    if any(not isinstance(table[key], str) for key in ("distro", "order")) or type(table["reps"]) is not int:
        raise UsageError(f"preset {name}: distro and order are texts, reps is a whole number")
    preset = Preset(
        name=name,
        distro=table["distro"],
        versions=",".join(table["versions"]),
        gate_legs=tuple(table["gate_legs"]),
        order=table["order"],
        reps=table["reps"],
    )
    # Checked here, so that a wrong preset is found by its test and not by the first run that uses it.
    make_cells(preset.distro, preset.versions, (), preset.gate_legs)
    return preset
