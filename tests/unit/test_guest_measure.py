"""The helper that goes on after an emulated guest's panic: only after that, only once, with what the failure says."""

from __future__ import annotations

import subprocess

import pytest

from tests.guests import Lab

PANICKED = (
    "what failed in upstream-v1.36.3: node n-1 (removed)\n"
    "  stage class, phase pods: the guest is gone, its kernel panicked (Oops: int3: 0000 [#1] SMP NOPTI); console:\n"
    "  next: lab run --resume 20261130T224135Z-8634 --results '/tmp/a b/results'\n"
)
RESUMED = ["run", "--resume", "20261130T224135Z-8634", "--results", "/tmp/a b/results", "--json"]


@pytest.mark.parametrize(
    ("answers", "calls", "status"),
    [
        ([(0, "")], 1, 0),
        ([(5, "its QEMU process 3 has ended")], 1, 5),
        ([(3, PANICKED)], 1, 3),
        ([(5, PANICKED), (0, "")], 2, 0),
        ([(5, PANICKED), (5, PANICKED), (0, "")], 2, 5),
    ],
    ids=["passed", "another end", "another status", "panicked", "panicked twice"],
)
def test_only_that_panic_and_only_once(tmp_path, monkeypatch, answers, calls, status):
    seen = []

    def call(self, *words, timeout_s):
        seen.append(list(words))
        code, text = answers[len(seen) - 1]
        return subprocess.CompletedProcess(words, code, "", text)

    monkeypatch.setattr(Lab, "call", call)
    done = Lab(results=tmp_path, artifacts=tmp_path).measure("run", "--versions", "v1.36.3", "--json", timeout_s=9)
    assert (len(seen), done.returncode) == (calls, status)
    assert seen[1:] in ([], [RESUMED])
