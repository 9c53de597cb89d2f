"""Raw texts to an observation and verdicts; also the stamp of what a stage collects today. Pure but for claim history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from lab import claims as claim_rules
from lab.claims import Claim
from lab.manifests import Manifests
from lab.model import JSON, Cell, LabError, Stamp, Verdict, sha256_text
from lab.stages.contract import Stage


def stamp(stage: Stage, manifests: Manifests, scripts: Mapping[str, str], options: Mapping[str, Any]) -> Stamp:
    """Everything that decides what a stage collects: manifests, node programs, sampling parameters, its version."""
    inputs: dict[str, Any] = {"stage": stage.name, "collect_version": stage.version}
    inputs |= {f"manifest/{case}": sha256_text(manifests.render(case)) for case in stage.cases}
    inputs |= {f"script/{name}": sha256_text(scripts[name]) for name in stage.scripts}
    inputs |= {f"param/{name}": value for name, value in stage.params(options).items()}
    return Stamp(inputs=inputs)


def observe(stage: Stage, raw: Mapping[str, str]) -> tuple[JSON | None, str]:
    """Observation, or None with the reason why there is none."""
    try:
        return stage.parse(raw), ""
    except KeyError as error:
        return None, f"raw text {error} was not collected"
    except LabError as error:
        return None, str(error)


def judge(stage: Stage, cell: Cell, raw: Mapping[str, str], claims: Sequence[Claim], problem: str = "") -> tuple[JSON | None, JSON]:
    """Observation and verdict record of one attempt. ``problem`` is what ended the collection early, if anything did."""
    observation, reading = observe(stage, raw)
    trouble = "; ".join(text for text in (problem, reading) if text)
    view = None if observation is None else stage.view(observation)
    verdicts = [
        claim_rules.judge(claim, cell, view, trouble)
        for claim in claims
        if claim.stage == stage.name and claim_rules.applies(claim, cell)
    ]
    return observation, verdict_record(stage, verdicts, trouble)


def verdict_record(stage: Stage, verdicts: Sequence[Verdict], problem: str) -> JSON:
    """Plain form of verdict.json."""
    return {
        "judge_version": stage.judge_version,
        "problem": problem,
        "verdicts": [verdict.as_json() for verdict in verdicts],
    }


def unix(text: str) -> float:
    """ISO 8601 time of a stored record to Unix seconds."""
    return datetime.fromisoformat(text).timestamp()
