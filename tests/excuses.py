"""What a busy machine may leave unknown in a run on a real guest. Unknown for any other reason is a failure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lab.store import Attempt

STAGES = {"cpu-": "cpu", "eviction-": "eviction", "priority-": "eviction-priority"}
BUSY_WINDOW = ("a virtual CPU waited ", "CPU was busy only ", "steal ", "sampled ")
LEFT = "hog: pods were left at the deadline"
SEEN = re.compile(r"the log shows evictions of (\[.*\]), expected all of (\[.*\])")
ORDERS = {
    "eviction": ["be", "ctl", "gua-ctl", "emp", "gua-emp"],
    "eviction-priority": ["be", "low", "ctl", "gua-ctl", "emp", "gua-emp"],
}


def complaints(outcomes: Mapping[str, str], attempts: Iterable[Attempt]) -> list[str]:
    """What is wrong with the verdicts of one cell: empty when each HELD, or is excused by what its attempt stored.

    A share of CPU may be MISSED (the prediction is narrower than what falsifies). It may be UNKNOWN when every try of a
    slot was refused for the machine's sake; an order, when the hog's time was over before the last pods were evicted,
    the others in the right order. Nothing may be FALSIFIED, and no stage may have ended early.
    """
    by_stage = {attempt.stage: attempt for attempt in attempts}
    found = []
    for claim, outcome in sorted(outcomes.items()):
        stage = next((stage for prefix, stage in STAGES.items() if claim.startswith(prefix)), None)
        if outcome == "HELD" or (outcome == "MISSED" and stage == "cpu"):
            continue
        if outcome != "UNKNOWN" or stage is None:
            found.append(f"{claim}: {outcome}")
        elif stage not in by_stage:
            found.append(f"{claim}: {outcome}, and there is no attempt")
        else:
            found += [f"{claim}: {text}" for text in _unexcused(stage, by_stage[stage])]
    return found


def _unexcused(stage: str, attempt: Attempt) -> list[str]:
    if attempt.verdict["problem"] or attempt.observation is None:
        return [f"the stage ended early: {attempt.verdict['problem']}"]
    return windows(attempt.observation) if stage == "cpu" else evictions(attempt.observation, ORDERS[stage])


def windows(observation: Mapping[str, Any]) -> list[str]:
    """Slots without a window that counts and without an excuse; a text when there is none at all that is unknown."""
    found, busy = [], 0
    for pair, pod in observation["slots"]:
        tries = [entry for entry in observation["windows"] if (entry["pair"], entry["pod"]) == (pair, pod)]
        if not any(not entry["why_not"] for entry in tries):
            busy += 1
            reasons = [reason for entry in tries for reason in entry["why_not"]]
            found += [f"pair {pair} {pod}: {text}" for text in reasons if not text.startswith(BUSY_WINDOW)]
    return found if busy else ["unknown, although every slot has a window that counts"]


def evictions(observation: Mapping[str, Any], right: Sequence[str]) -> list[str]:
    """Problems of repetitions that no slow machine explains; a text when there is none at all."""
    found, late = [], 0
    for entry in observation["repetitions"]:
        seen = [SEEN.fullmatch(text) for text in entry["problems"]]
        orders = [ast.literal_eval(match[1]) for match in seen if match]
        if LEFT in entry["problems"] and any(order == list(right[: len(order)]) for order in orders):
            late += 1
            rest = [text for text in entry["problems"] if text != LEFT and not SEEN.fullmatch(text)]
        else:
            rest = list(entry["problems"])
        found += [f"repetition {entry['repetition']}: {text}" for text in rest]
    return found if found or late else ["unknown, although no repetition has a problem"]
