"""All stages, in running order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lab.model import UsageError
from lab.stages import cpu, eviction, kernel, qos_class, quota
from lab.stages.contract import Stage

STAGES: tuple[Stage, ...] = (
    qos_class.STAGE,
    kernel.STAGE,
    quota.STAGE,
    cpu.STAGE,
    eviction.STAGE,
    eviction.PRIORITY_STAGE,
)

BY_NAME: Mapping[str, Stage] = {stage.name: stage for stage in STAGES}


def select(names: Sequence[str]) -> tuple[Stage, ...]:
    """Stages by name, in running order; UsageError names those that exist."""
    unknown = sorted(set(names) - set(BY_NAME))
    if unknown:
        raise UsageError(f"unknown stage {', '.join(unknown)}; there are: {', '.join(BY_NAME)}")
    return tuple(stage for stage in STAGES if stage.name in names)
