"""What a run would do, before it does anything: cells, nodes, minutes, files. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_UP, Decimal

from lab.config import RunConfig
from lab.model import JSON, Stamp, UsageError
from lab.stages import registry

BOOT_BUDGET_S = 45.0
INSTALL_BUDGET_S = 35.0
KEEP_S = 8 * 3600.0
"""How long a node is kept that the user wants to keep."""

LIFE_MARGIN_S, LIFE_FACTOR = 3600.0, 3.0

LEAST_BILLED_S = 60.0
LEAST_BILL = Decimal("0.01")
"""A droplet is billed by the second, for a minute or a cent at least."""


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
    installs = 0 if config.node else len(config.cells)
    return sum(entry.seconds for entry in planned) + node_count(config) * BOOT_BUDGET_S + installs * INSTALL_BUDGET_S


def node_count(config: RunConfig) -> int:
    """Nodes that a run makes."""
    return 0 if config.node else min(len(config.cells), 1) if config.reuse_node else len(config.cells)


def cell_seconds(config: RunConfig) -> float:
    """Expected life of one cell's node, in seconds."""
    stages = sum(stage.budget_s(config.options) for stage in registry.select(config.stages))
    return BOOT_BUDGET_S + INSTALL_BUDGET_S + stages


def dollars(seconds: float, hourly_price: Decimal) -> Decimal:
    """What one node costs for a life of ``seconds``: by the second, at least a cent; rounded up to a cent."""
    if not hourly_price:
        return Decimal(0)
    exact = hourly_price * Decimal(max(seconds, LEAST_BILLED_S)) / 3600
    return max(LEAST_BILL, exact.quantize(Decimal("0.01"), rounding=ROUND_UP))


def expiry_s(config: RunConfig, now_s: float) -> float:
    """Unix time from which a node may be taken for a leftover: well after all that could be done with it."""
    kept = 0.0 if config.keep == "never" else KEEP_S
    return now_s + LIFE_MARGIN_S + LIFE_FACTOR * cell_seconds(config) + kept


def check_cost(config: RunConfig, hourly_price: Decimal) -> None:
    """UsageError when not even the first node fits into --max-cost."""
    first = dollars(cell_seconds(config), hourly_price)
    if config.max_cost is not None and first > config.max_cost:
        raise UsageError(
            f"--max-cost {config.max_cost}: one node is expected to cost ${first} "
            f"(${hourly_price} an hour); nothing was started"
        )


def as_json(config: RunConfig, planned: list[PlannedStage], hourly_price: Decimal) -> JSON:
    """The plan as plain data; ``dollars`` is text."""
    nodes = node_count(config)
    cost_s = total_seconds(config, planned) if config.reuse_node else cell_seconds(config)
    return {
        "provider": config.provider,
        "distro": config.distro,
        "nodes": nodes,
        "minutes": round(total_seconds(config, planned) / 60, 1),
        "dollars": str(nodes * dollars(cost_s, hourly_price)),
        "attempts": [
            {"cell": e.cell, "stage": e.stage, "seconds": e.seconds, "folder": e.folder, "stamp": e.stamp}
            for e in planned
        ],
    }
