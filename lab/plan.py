"""What a run would do, before it does anything: cells, nodes, minutes, files. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from lab.config import RunConfig
from lab.model import JSON, Stamp
from lab.stages import registry

BOOT_BUDGET_S = 45.0
INSTALL_BUDGET_S = 35.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """One stage in one cell. ``seconds`` is an estimate for software emulation."""

    cell: str
    stage: str
    seconds: float
    folder: str
    stamp: str


def make(config: RunConfig, stamps: dict[str, Stamp]) -> list[PlannedStage]:
    """Every attempt that the run would make, in order."""
    base = "_smoke/" if config.quick else ""
    return [
        PlannedStage(
            cell=cell.name,
            stage=stage.name,
            seconds=stage.budget_s(config.options),
            folder=f"{config.results}/{base}{cell.name}/{stage.name}/",
            stamp=stamps[stage.name].digest[:12],
        )
        for cell in config.cells
        for stage in registry.select(config.stages)
    ]


def total_seconds(config: RunConfig, planned: list[PlannedStage]) -> float:
    """Stages, and boot and installation once a cell (none on a kept node)."""
    nodes = 0 if config.node else len(config.cells)
    return sum(entry.seconds for entry in planned) + nodes * (BOOT_BUDGET_S + INSTALL_BUDGET_S)


def as_json(config: RunConfig, planned: list[PlannedStage]) -> JSON:
    """The plan as plain data."""
    return {
        "provider": config.provider,
        "distro": config.distro,
        "nodes": 0 if config.node else len(config.cells),
        "minutes": round(total_seconds(config, planned) / 60, 1),
        "attempts": [
            {"cell": e.cell, "stage": e.stage, "seconds": e.seconds, "folder": e.folder, "stamp": e.stamp}
            for e in planned
        ],
    }
