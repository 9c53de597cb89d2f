"""The campaigns on the DigitalOcean account in memory in full: crashes of the lab, and accounts full of strangers."""

from __future__ import annotations

import pytest

from tests.cloud_crashes import IS_CAMPAIGN, collect_in_many_accounts, run_schedules
from tests.cloud_runs import Laboratory, run_killed_runs
from tests.projects import make_bench

pytestmark = pytest.mark.skipif(
    not IS_CAMPAIGN, reason="minutes to an hour: LAB_CAMPAIGN=1 runs it; a share of it is part of every `make test`"
)


def test_a_thousand_crash_schedules(tmp_path, monkeypatch):
    print(run_schedules(tmp_path, monkeypatch, 1000))


def test_a_thousand_schedules_of_whole_runs(tmp_path, monkeypatch, capfd):
    laboratory = Laboratory.make(make_bench(tmp_path, monkeypatch, capfd), monkeypatch)
    print(run_killed_runs(laboratory, 1000))


def test_ten_thousand_accounts(tmp_path):
    print(collect_in_many_accounts(tmp_path, 10_000))
