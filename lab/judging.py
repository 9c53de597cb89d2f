"""Raw texts to an observation and verdicts; also the stamp of what a stage collects today. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from lab import claims as claim_rules
from lab.claims import Claim
from lab.manifests import Manifests
from lab.model import GATED, JSON, Cell, LabError, Missing, Stamp, Verdict, sha256_text
from lab.parse.node_facts import feature_gates, kubelet_version, told_gate
from lab.qos import CLASS_GATES, FIX_GATE, POD_LEVEL_GATE
from lab.stages.contract import Stage

PROBLEM = "problem.txt"
"""Raw text that says why a collection ended early."""

MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What Python raises over text of an unforeseen form, such as a list where an object was expected."""


def stamp(
    stage: Stage,
    manifests: Manifests,
    scripts: Mapping[str, str],
    options: Mapping[str, Any],
    instead: Mapping[str, Sequence[str]],
) -> Stamp:
    """Everything that decides what a stage collects: manifests, node programs, sampling parameters, its version.

    ``instead`` maps a node program that stages name to those that do its work on the nodes in question.
    """
    names = [name for named in stage.scripts for name in instead.get(named, (named,))]
    inputs: dict[str, Any] = {"stage": stage.name, "collect_version": stage.version}
    inputs |= {f"manifest/{case}": sha256_text(manifests.render(case, **stage.changes)) for case in stage.cases}
    inputs |= {f"script/{name}": sha256_text(scripts[name]) for name in names}
    inputs |= {f"param/{name}": value for name, value in stage.params(options).items()}
    return Stamp(inputs=inputs)


def observe(stage: Stage, raw: Mapping[str, str]) -> tuple[JSON | None, str]:
    """Observation, or None with the reason why there is none."""
    return _read(stage, stage.parse, raw)


def _read(stage: Stage, read: Callable[[Any], JSON], source: Mapping[str, Any]) -> tuple[JSON | None, str]:
    try:
        return read(source), ""
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
    another = other_than(cell, raw)
    seen = observation is not None and not another
    view, viewing = _read(stage, stage.view, observation or {}) if seen else (None, "")
    reasons = dict.fromkeys((raw.get(PROBLEM, "").strip(), reading, another, viewing))
    trouble = "; ".join(text for text in reasons if text)
    verdicts = [
        claim_rules.judge(claim, cell, view, trouble)
        for claim in claims
        if claim.stage == stage.name and claim_rules.applies(claim, cell)
    ]
    return observation, verdict_record(stage, verdicts, trouble)


def other_than(cell: Cell, raw: Mapping[str, str]) -> str:
    """Why these texts do not show that API server and kubelet were those of this cell; empty when they do.

    Every verdict rests on that, of whatever stage: on what both said of their versions and of the gates that decide the
    class or that the cell names. What was not read of them is no proof, and no default takes its place.
    """
    try:
        return _other_version(cell, raw) or _other_gates(cell, raw)
    except LabError as error:
        return str(error)
    except MALFORMED as error:
        return f"what the components say of themselves could not be read: {type(error).__name__}: {error}"


def _other_version(cell: Cell, raw: Mapping[str, str]) -> str:
    found = {
        "apiserver": json.loads(_said(raw, "apiserver-version.json"))["gitVersion"],
        "kubelet": kubelet_version(_said(raw, "node-facts.txt")),
    }
    for component, version in found.items():
        # A k3s release may be asked for by its Kubernetes version alone.
        if cell.version not in (version, version.partition("+")[0]):
            return f"the {component} was {version}, which is not {cell.name}"
    return ""


def _other_gates(cell: Cell, raw: Mapping[str, str]) -> str:
    for component in GATED:
        found = feature_gates(_said(raw, f"gates-{component}.txt"))
        told = {gate.name: gate.enabled for gate in cell.gates if gate.component in (None, component)}
        told.setdefault(POD_LEVEL_GATE, cell.minor >= 34)
        if told[POD_LEVEL_GATE]:  # with it off, the gates that depend on it are switched off as well
            told.setdefault(FIX_GATE, True)
        names = [*told, *(name for name in CLASS_GATES if name not in told)]
        for name in names:
            if cell.minor < CLASS_GATES.get(name, 0):
                continue
            seen = told_gate(found, name, component)
            if told.get(name, seen) is not seen:
                return f"the {component} had {name}={str(seen).lower()}, which is not so in {cell.name}"
    return ""


def _said(raw: Mapping[str, str], name: str) -> str:
    if name not in raw:
        raise Missing(f"{name} was not collected: nothing shows what ran")
    return raw[name]


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
