"""What nobody foresaw still ends the program, but the run's record must not say that all was well."""

from __future__ import annotations

import subprocess

import pytest

from lab import experiment, interrupts, resume
from lab.model import LeftBehind
from tests.projects import fake_stage

pytestmark = pytest.mark.usefixtures("signals")


def fail(bench):
    with pytest.raises(ZeroDivisionError), interrupts.raising():
        experiment.run(bench.config("v1.36.3", "v1.37.2"), bench.tools())
    assert bench.provider.alive == {}
    return bench.record()["cells"]


@pytest.mark.parametrize(
    ("step", "phase"), [("provider.create", "boot"), ("distro.install", "install"), ("provider.destroy", "removal")]
)
def test_a_cell_is_not_recorded_as_done(bench, monkeypatch, step, phase):
    noted = []
    finish = experiment._finish

    def see(journal, record, tools, results):
        noted.extend(results)
        finish(journal, record, tools, results)

    monkeypatch.setattr(experiment, "_finish", see)
    bench.steps.fail(step, ZeroDivisionError("a fault"), call=1)
    if phase == "removal":
        monkeypatch.setattr(bench.provider, "destroy", lambda node: (bench.provider.alive.clear(), 1 / 0))
    (cell,) = fail(bench)
    assert "upstream-v1.36.3: unforeseen ZeroDivisionError: " in cell["problem"]
    (result,) = noted
    assert [failure.phase for failure in result.failures] == [phase]
    (told,) = [event for event in bench.journal() if event["kind"] == "problem"]
    assert "unforeseen ZeroDivisionError" in told["text"]
    assert len(resume.resumable(bench.store)) == 1


def test_what_was_left_behind_before_is_not_forgotten(bench, monkeypatch):
    bench.use_stages(fake_stage())

    def release(work, node):
        bench.provider.alive.clear()
        work.result.problem = LeftBehind("node n: processes 4242 would not end")
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(experiment, "_release", release)
    (cell,) = fail(bench)
    assert "processes 4242 would not end" in cell["problem"]


def test_a_program_out_of_time_is_no_fault_of_the_lab_there(bench):
    """One that a provider did not turn into an error of its own."""
    bench.steps.fail("provider.create", subprocess.TimeoutExpired(["qemu-img"], 60), call=1)
    with pytest.raises(subprocess.TimeoutExpired):
        experiment.run(bench.config(), bench.tools())
    (cell,) = bench.record()["cells"]
    assert "unforeseen TimeoutExpired: Command '['qemu-img']' timed out after 60 seconds" in cell["problem"]
