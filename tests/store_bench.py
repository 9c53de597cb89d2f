"""What the tests of the store share: one attempt with its facts and texts, and a disk that fills up."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from lab.model import JSON, Cell, Environment, Gate, Stamp
from lab.store import Attempt, AttemptWriter, Store

CELL = Cell(distro="upstream", version="v1.36.3", gates=(Gate(name="A", enabled=False, component="kubelet"),))
ENVIRONMENT = Environment(must_agree={"provider": "qemu"}, shown={"kernel": "6.12"})
STAMP = Stamp(inputs={"stage": "kernel", "param/window_s": 20, "script/hog.sh": "ab" * 32})
RAW = {"pods.json": '{"items": []}\n', "kubelet.log": "línea\r\nno newline at the end"}


def begin(store: Store, **changes: Any) -> AttemptWriter:
    """A new attempt with the facts above, some of them changed."""
    facts = {
        "cell": CELL,
        "stage": "kernel",
        "stamp": STAMP,
        "environment": ENVIRONMENT,
        "run_id": "run-1",
        "started": "2026-11-30T06:00:00Z",
        "smoke": False,
        "uncountable": (),
        "extra": {"seed": 7},
    }
    return store.begin(**(facts | changes))


def seal(writer: AttemptWriter, observation: JSON | None = None, verdict: JSON | None = None) -> Attempt:
    """Seal an attempt with an observation and a verdict of few words."""
    return writer.seal(
        observation=observation or {"weight": 59},
        verdict=verdict or {"verdicts": []},
        finished="2026-11-30T06:05:00Z",
    )


def sealed(store: Store, **changes: Any) -> Attempt:
    """A whole attempt with the texts of RAW."""
    writer = begin(store, **changes)
    for name, text in RAW.items():
        writer.save(name, text)
    return seal(writer)


def fill_disk(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Let every fsync from the ``at``-th on, counted from 1, say that the disk is full."""
    calls = {"n": 0}
    real = os.fsync

    def fsync(descriptor):
        calls["n"] += 1
        if calls["n"] >= at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
