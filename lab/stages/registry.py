"""All stages, in running order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lab.claims import Claim
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


def check_claims(claims: Iterable[Claim]) -> None:
    """UsageError when a claim names a stage that does not exist: nothing would ever judge it."""
    for claim in claims:
        if claim.stage not in BY_NAME:
            raise UsageError(f"claim {claim.id}: there is no stage {claim.stage!r}; there are: {', '.join(BY_NAME)}")
