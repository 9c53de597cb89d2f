"""Fixtures of many unit tests: a project of its own with fake nodes, and signals that cannot end the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.projects import Bench, listening, make_bench


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Bench:
    """An empty project and fakes for all that is outside of it."""
    return make_bench(tmp_path, monkeypatch, capfd)


@pytest.fixture
def signals() -> Iterator[None]:
    """See :func:`tests.projects.listening`."""
    with listening():
        yield
