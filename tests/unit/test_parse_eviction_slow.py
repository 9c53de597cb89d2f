"""A real repetition in which killing two pods took longer than the kubelet waits (v1.36.3, a busy machine)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.parse import eviction
from lab.parse.kubelet_log import parse_events

FOLDER = Path(__file__).resolve().parent.parent / "captures_special" / "slow-kill"
CASES = ("evict-be", "evict-ctl", "evict-gua-ctl", "evict-emp", "evict-gua-emp")
RAW = {path.name: path.read_text() for path in FOLDER.iterdir()}
LOG = "1-kubelet.log"


def test_slow_kills_are_evictions_at_the_moment_of_their_cleaning_up() -> None:
    found = eviction.parse_repetition(RAW, 1, CASES)
    assert found["order"] == ["be", "ctl", "gua-ctl", "emp", "gua-emp"]
    assert found["slow_kills"] == ["be", "ctl"]
    assert found["models"] == ["kubelet_source"]
    assert found["problems"] == []
    pressed = 1796028245.295659 - found["first_reclaim_s"]
    # The log's own times of "pods successfully cleaned up" for be and ctl, of "evicted successfully" for the others.
    moments = [1796028260.372310, 1796028275.935597, 1796028285.640481, 1796028296.833995, 1796028306.022775]
    # first_reclaim_s is rounded to a tenth, so the start is known to that.
    assert found["evicted_s"] == pytest.approx([moment - pressed for moment in moments], abs=0.11)


def test_a_failure_that_was_never_cleaned_up_stays_one() -> None:
    lines = [line for line in RAW[LOG].splitlines() if not ("cleaned up" in line and "evict-be" in line)]
    found = eviction.parse_repetition({**RAW, LOG: "\n".join(lines) + "\n"}, 1, CASES)
    assert found["order"] is None
    assert found["slow_kills"] == ["ctl"]


def test_cleaning_up_before_the_failure_proves_nothing() -> None:
    events = parse_events(RAW[LOG])
    failed = next(event for event in events if event.kind == "failed")
    cleaned = next(event for event in events if event.kind == "cleaned_up")
    assert eviction.settled([cleaned, failed]) == ([cleaned, failed], [])


def test_a_slow_kill_out_of_the_ranking_is_no_order() -> None:
    failure = 'err="timeout waiting to kill pod" pod="lab/evict-be"'
    text = RAW[LOG].replace(failure, failure.replace("evict-be", "evict-emp"), 1)
    assert text != RAW[LOG]
    assert eviction.parse_repetition({**RAW, LOG: text}, 1, CASES)["order"] is None
