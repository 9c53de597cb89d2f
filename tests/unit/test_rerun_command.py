"""The commands that the program proposes make attempts that fit: read by its own parser, stamp for stamp."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from lab import failure, judging, project
from lab.cli.flags import Flags, make_config
from lab.cli.verbs import VERBS
from lab.distros.registry import INSTEAD
from lab.manifests import Manifests
from lab.model import Cell, Environment, Gate, NodeError, ResultsError
from lab.providers.registry import PROVIDERS, SITES
from lab.report.comparability import rerun_command, select
from lab.run_state import CellResult, Failure
from lab.stages import registry
from tests.projects import ROOT, fake_stage
from tests.unit.test_comparability import attempt

GATES = (Gate(name="A", enabled=False, component="kubelet"), Gate(name="B", enabled=True))


def parsed(command):
    """The run that a command line asks for."""
    program, verb, *words = shlex.split(command)
    assert (program, verb) == ("lab", "run")
    context = VERBS["run"].load("run").make_context("run", words)
    return make_config(Flags(**context.params))


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("provider", ["qemu", "digitalocean", "ssh"])
@pytest.mark.parametrize("options", [{"order": "alternate", "reps": 5}, {"order": "random", "reps": 3}], ids=str)
@pytest.mark.parametrize("stage", registry.STAGES, ids=lambda stage: stage.name)
def test_it_gives_the_stamp_cell_and_place_again(stage, options, provider):
    manifests, scripts = Manifests.load(ROOT / "manifests"), project.node_scripts(ROOT)
    instead = INSTEAD["upstream"](SITES[provider])
    wanted = judging.stamp(stage, manifests, scripts, {"quick": False, **options}, instead)
    older = attempt(
        "v1.37.2", stage.name, distro="upstream", gates=GATES, path=Path(f"/elsewhere/cell/{stage.name}/0001"),
        environment=Environment(must_agree={"provider": provider}, shown={}),
    )  # fmt: skip
    config = parsed(rerun_command(older, wanted))
    assert judging.stamp(stage, manifests, scripts, config.options, instead).digest == wanted.digest
    assert [cell.name for cell in config.cells] == [Cell(distro="upstream", version="v1.37.2", gates=GATES).name]
    assert (config.stages, config.provider, config.results) == ((stage.name,), provider, Path("/elsewhere"))


@pytest.mark.usefixtures("signals")
def test_following_the_advice_ends_the_mix(bench):
    stage = fake_stage(params=lambda options: {"order": options["order"], "pairs": options["reps"]})
    bench.use_stages(stage)
    bench.monkeypatch.setitem(PROVIDERS, "fake", lambda setup: bench.provider)
    bench.run()
    assert bench.run("--order", "alternate", "--reps", "4", versions="v1.37.2").code == 4
    refused = bench.lab("summary", "--results", str(bench.results))
    assert refused.code == 4
    (command,) = re.findall(r"run the stage again for it: lab (.*)", refused.err)
    assert bench.lab(*shlex.split(command)).code == 0
    assert bench.lab("summary", "--results", str(bench.results)).code == 0


@pytest.mark.parametrize(
    "words",
    [
        ["--provider", "qemu", "--order", "alternate", "--reps", "5", "--no-download", "--results", "a folder"],
        ["--provider", "qemu", "--quick"],
        ["--preset", "article", "--stages", "cpu", "--ssh-port", "2222"],
        ["--host", "me@203.0.113.7", "--identity", "/keys/my id", "--known-hosts", "/k", "--accept-kubernetes"],
        ["--provider", "digitalocean", "--size", "s-4vcpu-8gb", "--region", "ams3", "--allow-from", "192.0.2.1"],
        ["--distro", "k3s", "--airgap-images", "--artifacts", "/binaries", "--no-build"],
    ],
    ids=lambda words: words[1],
)
def test_the_next_command_after_a_failed_stage_asks_for_the_same(words, monkeypatch):
    monkeypatch.delenv("DIGITALOCEAN_TOKEN", raising=False)
    versions = [] if "--preset" in words else ["--versions", "v1.37.2", "--gate", "B=true"]
    context = VERBS["run"].load("run").make_context("run", [*versions, *words])
    asked = make_config(Flags(**context.params))
    cell = asked.cells[-1]
    failed = Failure(text="no", stage="cpu", phase="pods")
    result = CellResult(cell=cell, run_id="r", node="n", failures=[failed])
    (command,) = failure.next_commands(result, asked)
    again = parsed(command)
    assert again == dataclasses.replace(asked, cells=(cell,), stages=("cpu",), keep="failed", seed=again.seed)


def test_on_a_kept_node_the_provider_is_that_of_the_node(bench):
    def collect(context):
        raise NodeError("no")

    bench.use_stages(fake_stage(collect=collect))
    ended = bench.run("--keep", "always", "--reps", "2")
    (node,) = bench.provider.alive
    assert f"--stages fake --order random --reps 2 --node {node} --results {bench.results}\n" in ended.err


def test_a_command_of_a_refusal_takes_the_parameters_of_the_latest():
    older = attempt("v1.36.3", inputs={"param/order": "random", "param/pairs": 3}, started="2026-11-01T00:00:00Z")
    latest = attempt("v1.37.2", inputs={"param/order": "alternate", "param/pairs": 5})
    with pytest.raises(ResultsError, match="--order alternate --reps 5"):
        select([older, latest])
