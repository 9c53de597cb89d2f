"""Raw texts to an observation and verdicts; also the stamp of what a stage collects today. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from lab import claims as claim_rules
from lab.claims import Claim
from lab.manifests import Manifests
from lab.model import GATED, JSON, Cell, Interrupted, LabError, Stamp, Verdict, sha256_text
from lab.parse.node_facts import feature_gates
from lab.stages.contract import Stage

PROBLEM = "problem.txt"
"""Raw text that says why a collection ended early."""

MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What Python raises over text of an unforeseen form, such as a list where an object was expected."""


def stamp(stage: Stage, manifests: Manifests, scripts: Mapping[str, str], options: Mapping[str, Any]) -> Stamp:
    """Everything that decides what a stage collects: manifests, node programs, sampling parameters, its version."""
    inputs: dict[str, Any] = {"stage": stage.name, "collect_version": stage.version}
    inputs |= {f"manifest/{case}": sha256_text(manifests.render(case, **stage.changes)) for case in stage.cases}
    inputs |= {f"script/{name}": sha256_text(scripts[name]) for name in stage.scripts}
    inputs |= {f"param/{name}": value for name, value in stage.params(options).items()}
    return Stamp(inputs=inputs)


def observe(stage: Stage, raw: Mapping[str, str]) -> tuple[JSON | None, str]:
    """Observation, or None with the reason why there is none."""
    return _read(stage, stage.parse, raw)


def _read(stage: Stage, read: Callable[[Any], JSON], source: Mapping[str, Any]) -> tuple[JSON | None, str]:
    try:
        return read(source), ""
    except Interrupted:
        # A signal may come at any moment; it is no fault of the texts.
        raise
    except LabError as error:
        return None, str(error)
    except MALFORMED as error:
        # Text of an unforeseen form must not cost the raw texts: they are sealed, and judged again when the parser can.
        return None, f"the {stage.name} stage's texts could not be read: {type(error).__name__}: {error}"


def judge(
    stage: Stage, cell: Cell, raw: Mapping[str, str], claims: Sequence[Claim]
) -> tuple[JSON | None, JSON]:
    """Observation and verdict record of one attempt. What ended the collection early, if anything, is in PROBLEM."""
    observation, reading = observe(stage, raw)
    contradiction = gate_contradiction(cell, raw)
    seen = observation is not None and not contradiction
    view, viewing = _read(stage, stage.view, observation or {}) if seen else (None, "")
    trouble = "; ".join(text for text in (raw.get(PROBLEM, "").strip(), reading, contradiction, viewing) if text)
    verdicts = [
        claim_rules.judge(claim, cell, view, trouble)
        for claim in claims
        if claim.stage == stage.name and claim_rules.applies(claim, cell)
    ]
    return observation, verdict_record(stage, verdicts, trouble)


def gate_contradiction(cell: Cell, raw: Mapping[str, str]) -> str:
    """What a component's own metrics say against the gates of this cell; empty when nothing does."""
    for component in GATED:
        found = feature_gates(raw.get(f"gates-{component}.txt", ""))
        base = cell.gate("PodLevelResources", component, cell.minor >= 34)
        told = {"PodLevelResources": base}
        if base:  # with it off, the gates that depend on it are switched off as well
            fix = "PodLevelResourcesFixKubeletQOSClass"
            told[fix] = cell.gate(fix, component, cell.minor >= 37)
        for name, value in told.items():
            if found.get(name, value) is not value:
                return f"the {component} had {name}={str(found[name]).lower()}, which is not so in {cell.name}"
    return ""


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
