"""The article's published numbers (article.toml) as one side of a comparison; reads that one file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.model import Cell, Environment, Gate, UsageError
from lab.report.measured import Datum, Number, Share, Summary, Word
from lab.report.sides import Pool, Side, SideCell, StageResult

DEFAULT_PATH = Path(__file__).resolve().parent / "article.toml"
DISTRO = "k3s"
_KEYS = frozenset({"title", "source", "remarks", "cell", "environment", "input", "value"})
_PLACES = {"stage", "cells", "where", "is"}


def load(path: Path | None = None) -> Side:
    """The article as a side named ``article``; UsageError names the file and the entry that is wrong."""
    path = DEFAULT_PATH if path is None else path
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as the article's numbers: {error}") from error
    try:
        return from_data(data)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: an entry has not the expected form: {type(error).__name__}: {error}") from error


def from_data(data: Mapping[str, Any]) -> Side:
    """The side that parsed TOML describes; UsageError when entries contradict each other or name what is not there."""
    if unknown := sorted(set(data) - _KEYS):
        raise UsageError(f"unknown key {', '.join(unknown)}")
    environment = Environment.from_json(data["environment"])
    cells = {}
    for entry in data["cell"]:
        gates = tuple(Gate.parse(text) for text in entry.get("gates", []))
        cell = Cell(distro=DISTRO, version=entry["version"], gates=gates)
        if cell.label in cells:
            raise UsageError(f"two cells {cell.label}")
        cells[cell.label] = (cell, tuple(entry["stages"]))
    inputs: dict[str, Any] = {}
    for entry in data["input"]:
        inputs[entry["stage"]] = {**inputs.get(entry["stage"], {}), **entry["is"]}
    values, wheres, pools = _values(data["value"], {label: stages for label, (_, stages) in cells.items()})
    return Side(
        name="article",
        description=f"“{data['title']}”: {data['source']}",
        is_partial=True,
        remarks=tuple(data["remarks"]),
        cells=tuple(
            SideCell(
                cell=cell,
                stages={
                    stage: StageResult(
                        values=values.get((label, stage), {}),
                        inputs=inputs.get(stage, {}),
                        environment=environment,
                        source="published",
                        where=wheres.get((label, stage), {}),
                    )
                    for stage in stages
                },
            )
            for label, (cell, stages) in cells.items()
        ),
        pools=tuple(
            Pool(
                stage=stage, name=name, cells=tuple(cells[label][0].name for label in labels), datum=found, where=where
            )
            for stage, name, labels, found, where in pools
        ),
    )


_Key = tuple[str, str]
_Pooled = tuple[str, str, Sequence[str], Datum, str]


def _values(
    entries: Sequence[Mapping[str, Any]], stages: Mapping[str, Sequence[str]]
) -> tuple[dict[_Key, dict[str, Datum]], dict[_Key, dict[str, str]], list[_Pooled]]:
    """Values and places by (cell label, stage), and what is published for several cells together."""
    values: dict[_Key, dict[str, Datum]] = {}
    wheres: dict[_Key, dict[str, str]] = {}
    pools: list[_Pooled] = []
    for entry in entries:
        stage, where, labels = entry["stage"], entry["where"], entry["cells"]
        if set(entry) - _PLACES - {"together"} or not labels or not where:
            raise UsageError(f"[[value]] needs stage, cells, where, is, and may have together; found {dict(entry)!r}")
        for label in labels:
            if stage not in stages.get(label, ()):
                raise UsageError(f"[[value]] {where!r}: no cell {label!r} with stage {stage!r}")
        for name, plain in entry["is"].items():
            read = datum(name, plain)
            if entry.get("together", False):
                if any(pool[:2] == (stage, name) for pool in pools):
                    raise UsageError(f"{stage}: {name!r} is published twice for several cells")
                pools.append((stage, name, tuple(labels), read, where))
                continue
            for label in labels:
                if name in values.setdefault((label, stage), {}):
                    raise UsageError(f"{label} {stage}: {name!r} is there twice")
                values[label, stage][name] = read
                wheres.setdefault((label, stage), {})[name] = where
    return values, wheres, pools


def datum(name: str, plain: object) -> Datum:
    """A published value: text, number, list of names (an order), ``{median, low, high, n}`` or ``{count, of}``."""
    match plain:
        case bool():
            pass
        case str():
            return Word(text=plain)
        case int() | float():
            return Number(value=float(plain))
        case list() if plain and all(isinstance(part, str) for part in plain):
            return Word(text=" > ".join(plain))
        case {"count": int(count), "of": int(of), **rest} if not rest and 0 <= count <= of:
            return Share(count=count, of=of)
        case dict() if _is_summary(plain):
            return Summary(**plain)
    raise UsageError(f"{name!r} is {plain!r}: not a text, a number, an order, a share or a summary")


def _is_summary(plain: Mapping[str, Any]) -> bool:
    numbers = all(isinstance(part, int | float) and not isinstance(part, bool) for part in plain.values())
    return numbers and set(plain) <= {"median", "low", "high", "n"} and bool(set(plain) - {"n"})
