"""What a run would do, before it does anything: cells, nodes, minutes, cost, API calls, files. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_UP, Decimal

from lab.config import RunConfig
from lab.model import JSON, Cell, Stamp, UsageError
from lab.stages import registry

BOOT_BUDGET_S = 45.0
INSTALL_BUDGET_S = 35.0
ON_A_NEW_NODE = ("install", "ready", "removal")
"""Phases, beside the boot, that a run on a kept node does not have."""
KEEP_S = 8 * 3600.0
"""How long a node is kept that the user wants to keep."""

LIFE_MARGIN_S, LIFE_FACTOR = 3600.0, 3.0

LEAST_BILLED_S = 60.0
LEAST_BILL = Decimal("0.01")
"""A droplet is billed by the second, for a minute or a cent at least."""


API_CALLS: Mapping[str, tuple[int, int]] = {"digitalocean": (12, 17)}
"""Least calls of a provider's API: once a run (account, catalogue, lists, scopes), and for each node from its tag to
the last DELETE. Waiting asks again every few seconds. Providers that are not named have no API."""

SEALED = ("observation.json", "verdict.json", "stamp.json", "SHA256SUMS")
"""Files of an attempt beside its raw texts."""

Before = Mapping[Cell, Mapping[str, float] | None]
"""Seconds by phase of an earlier run of the same cell, stages and options; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """One stage in one cell. ``seconds`` is an estimate for software emulation, ``windows_s`` waited on purpose."""

    cell: str
    stage: str
    seconds: float
    windows_s: float
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
            windows_s=stage.windows_s(config.options),
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


def expected_seconds(config: RunConfig, planned: list[PlannedStage], before: Before) -> tuple[float, int]:
    """Expected time of all, and for how many cells it rests on an earlier run instead of on budgets."""
    known = {cell: phases for cell in config.cells if (phases := before.get(cell))}
    rest = [entry for entry in planned if entry.cell not in {cell.name for cell in known}]
    cells = len(config.cells) - len(known)
    # One that boots anew for each cell, or once for all of them, or was there before.
    boots = [phases.get("boot", 0.0) for phases in known.values()] + cells * [BOOT_BUDGET_S]
    boot_s = 0.0 if config.node else max(boots, default=0.0) if config.reuse_node else sum(boots)
    apart = {"boot", *(ON_A_NEW_NODE if config.node else ())}
    measured = sum(seconds for phases in known.values() for name, seconds in phases.items() if name not in apart)
    installs = 0 if config.node else cells
    budgets = sum(entry.seconds for entry in rest) + installs * INSTALL_BUDGET_S
    return measured + boot_s + budgets, len(known)


def api_calls(config: RunConfig) -> int:
    """Calls of the provider's API that the run makes at least; 0 for a provider without one."""
    run, node = API_CALLS.get(config.provider, (0, 0))
    count = node_count(config)
    return run + node * count if count else 0


def files(config: RunConfig, planned: list[PlannedStage]) -> list[str]:
    """What would be written, ``<…>`` standing for what is not known yet."""
    run = f"{config.results}/_runs/<run>"
    attempts = [f"{entry.folder}<attempt>/{{raw/*,{','.join(SEALED)}}}" for entry in planned]
    nodes = [f"{config.cache}/nodes/<node>/ (as long as the node is there)"]
    summary = [] if config.quick else [f"{config.results}/summary.md"]
    logs = f"{config.cache}/logs/<run>/<cell>/ (after a failure)"
    return [*attempts, f"{run}/journal.jsonl", f"{run}/run.json", f"{run}/SHA256SUMS", *summary, *nodes, logs]


def as_json(config: RunConfig, planned: list[PlannedStage], hourly_price: Decimal, before: Before) -> JSON:
    """The plan as plain data; ``dollars`` is text, and nothing is rounded down that costs."""
    nodes = node_count(config)
    cost_s = total_seconds(config, planned) if config.reuse_node else cell_seconds(config)
    expected_s, measured = expected_seconds(config, planned, before)
    dollars_in_all = nodes * dollars(cost_s, hourly_price)
    return {
        "provider": config.provider,
        "distro": config.distro,
        "cells": [cell.name for cell in config.cells],
        "nodes": nodes,
        "minutes": round(total_seconds(config, planned) / 60, 1),
        "minutes_windows": round(sum(entry.windows_s for entry in planned) / 60, 1),
        "minutes_expected": round(expected_s / 60, 1),
        "cells_measured_before": measured,
        "dollars": str(dollars_in_all),
        "cents": int(dollars_in_all * 100),
        "api_calls": api_calls(config),
        "files": files(config, planned),
        "attempts": [
            {"cell": e.cell, "stage": e.stage, "seconds": e.seconds, "folder": e.folder, "stamp": e.stamp}
            for e in planned
        ],
    }
