"""The report of a failure, and the bundle that a run takes along before its node goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import experiment, failure
from lab.config import RunConfig
from lab.distros.bundle import INDEX
from lab.model import Cell, CommandError, Gate, NodeError, TransportError
from lab.run_state import CellResult, Failure
from tests.projects import fake_stage

pytestmark = pytest.mark.usefixtures("signals")

CELL = Cell(distro="upstream", version="v1.37.2", gates=(Gate(name="A", enabled=False, component="kubelet"),))
RUN = "20261130T074759Z-fd5f"


def result(**changes):
    facts = {
        "cell": CELL,
        "run_id": RUN,
        "node": "n-1",
        "failures": [Failure(text="node n-1: exit 3: kubectl get pods\nstderr: no", stage="cpu", phase="pods")],
    }
    return CellResult(**(facts | changes))


def config(results=Path("results")):
    return RunConfig(
        cells=(CELL,), stages=("cpu",), provider="qemu", distro="upstream", results=results, project=Path("p"),
        cache=Path("c"), keep="never", seed=1, quick=False, reps=3, order="random",
    )  # fmt: skip


def test_no_failure_no_report():
    assert failure.report(result(failures=[]), config()) == ""


def test_what_where_and_what_next(tmp_path):
    (tmp_path / INDEX).write_text("a.log      12 bytes\nb.log     missing: no such file\n")
    assert failure.report(result(logs=tmp_path, kept="n-1"), config()).splitlines() == [
        "what failed in upstream-v1.37.2+A=false@kubelet: node n-1 (kept)",
        "  stage cpu, phase pods: node n-1: exit 3: kubectl get pods (and more, see there)",
        f"  logs: {tmp_path} (1 items are missing, index.txt says why)",
        "  next: lab ssh n-1",
        "  next: lab logs n-1",
        "  next: lab run --versions v1.37.2 --distro upstream --gate A=false@kubelet --stages cpu "
        "--order random --reps 3 --node n-1",
    ]


def test_a_run_that_is_not_complete_is_resumed(tmp_path):
    lines = failure.report(result(missing=("cpu",)), config(tmp_path)).splitlines()
    assert lines[0].endswith("node n-1 (removed)")
    assert lines[-1] == f"  next: lab run --resume {RUN} --results {tmp_path}"


def test_without_a_node():
    boot = [Failure(text="the guest never answered", stage="", phase="boot")]
    lines = failure.report(result(node=None, failures=boot, missing=("cpu",)), config()).splitlines()
    assert lines[0].endswith(": no node was made")
    assert lines[1] == "  phase boot: the guest never answered"
    early = [Failure(text="", stage="", phase="")]
    assert "before the first phase: no reason given" in failure.report(result(failures=early), config())


def test_the_bundle_is_taken_before_the_node_goes_and_holds_what_was_applied(bench):
    def collect(context):
        raise CommandError("node-1: exit 3: kubectl get pods")

    bench.use_stages(fake_stage("fake", collect=collect), fake_stage("other"))
    ended = bench.run()
    (folder,) = bench.distro.saved
    assert (folder / "manifests" / "be.yaml").read_text().startswith("apiVersion: v1")
    assert "manifests/be.yaml" in (folder / INDEX).read_text()
    assert bench.steps.names()[-2:] == ["distro.save_logs", "provider.destroy"]
    assert "stage fake, phase other: node-1: exit 3: kubectl get pods" in ended.err
    assert f"logs: {folder}" in ended.err
    again = "lab run --versions v1.36.3 --distro upstream --stages fake --order random --reps 3 --provider qemu"
    assert f"next: {again} --keep failed" in ended.err
    assert bench.run("--json", "--quiet").json()[0]["logs"] == str(bench.distro.saved[1])


def test_quiet_prints_the_report_and_no_progress(bench):
    bench.steps.fail("distro.install", NodeError("kubelet: unit lab-kubelet is failed"))
    ended = bench.run("--quiet")
    assert ended.code == 5
    assert ended.err.startswith("what failed in upstream-v1.36.3: node ")
    assert "phase install: kubelet: unit lab-kubelet is failed" in ended.err
    assert "[  0:0" not in ended.err
    assert "logs are in" not in ended.err


@pytest.mark.parametrize("error", [TransportError("the guest is gone"), NodeError("no journal")])
def test_the_phase_is_the_innermost_one_that_the_error_came_out_of(bench, error):
    def collect(context):
        with context.phases.track("waits"):
            try:
                raise KeyError("x")
            except KeyError:
                context.progress("mended")
            with context.phases.track("windows"):
                pass
            raise error

    bench.use_stages(fake_stage("fake", collect=collect))
    (ended,) = experiment.run(bench.config(), bench.tools())
    assert [(each.stage, each.phase) for each in ended.failures] == [("fake", "waits")]
