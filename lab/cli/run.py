"""`lab run` and `lab plan`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lab import experiment, interrupts, plan
from lab.cli import shared
from lab.cli.summary import write_summary
from lab.config import RunConfig
from lab.model import EXIT_OK, EXIT_UNKNOWN, LabError, Outcome, heaviest_code
from lab.report.outcomes import outcome_exit_code
from lab.report.phases import render_phases
from lab.run_records import earlier_phases

Versions = Annotated[str, typer.Option("--versions", help="Kubernetes versions, comma-separated: v1.36.3,v1.37.2")]
Stages = Annotated[str, typer.Option("--stages", help="Some of class,kernel,quota,cpu,eviction (default: all).")]
GateOption = Annotated[
    list[str] | None, typer.Option("--gate", help="NAME=false[@apiserver|@kubelet], for every version; repeatable.")
]
GateLeg = Annotated[
    list[str] | None,
    typer.Option("--gate-leg", help="VERSION:NAME=false[,NAME=false]: one more column of the experiment; repeatable."),
]
Distribution = Annotated[str, typer.Option("--distro", help="upstream")]
ProviderOption = Annotated[str, typer.Option("--provider", help="qemu")]
Keep = Annotated[str, typer.Option("--keep", help="Keep the node afterwards: never, failed or always.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of random orders (default: drawn and recorded).")]
Quick = Annotated[bool, typer.Option("--quick", help="Short windows, one repetition; stored as smoke, never counted.")]
Reps = Annotated[int, typer.Option("--reps", help="Repetitions of the eviction case and pairs of CPU windows.")]
Order = Annotated[str, typer.Option("--order", help="Order inside a CPU pair: random, or alternate as in the article.")]
NodeOption = Annotated[str | None, typer.Option("--node", help="Use this kept node instead of a new one.")]
Artifacts = Annotated[
    Path | None, typer.Option("--artifacts", help="Folder with binaries (also LAB_ARTIFACTS).", file_okay=False)
]
Download = Annotated[bool, typer.Option("--download/--no-download", help="Allow fetching official releases.")]
Build = Annotated[bool, typer.Option("--build/--no-build", help="Allow building from the published Go modules.")]
MaxMinutes = Annotated[float | None, typer.Option("--max-minutes", help="Start no further version after this long.")]
SshPort = Annotated[int | None, typer.Option("--ssh-port", help="Loopback port of the guest's SSH (default: any).")]


def _configured(action: Callable[[RunConfig, bool], None]) -> Callable[..., None]:
    """A command with the flags of a run; ``run`` and ``plan`` take the same ones."""

    def command(
        versions: Versions,
        stages: Stages = "",
        gate: GateOption = None,
        gate_leg: GateLeg = None,
        distro: Distribution = "upstream",
        provider: ProviderOption = "qemu",
        keep: Keep = "never",
        seed: Seed = None,
        quick: Quick = False,
        reps: Reps = 3,
        order: Order = "random",
        node: NodeOption = None,
        artifacts: Artifacts = None,
        download: Download = True,
        build: Build = True,
        max_minutes: MaxMinutes = None,
        ssh_port: SshPort = None,
        results: shared.ResultsOption = shared.RESULTS,
        project: shared.ProjectOption = None,
        as_json: shared.JsonOption = False,
    ) -> None:
        config = shared.make_config(
            versions=versions,
            stages=stages,
            gate=gate or [],
            gate_leg=gate_leg or [],
            distro=distro,
            provider=provider,
            results=results,
            project_folder=project,
            keep=keep,
            seed=seed,
            quick=quick,
            reps=reps,
            order=order,
            node=node,
            artifacts=artifacts,
            download=download,
            build=build,
            max_minutes=max_minutes,
            ssh_port=ssh_port,
        )
        action(config, as_json)

    command.__doc__ = inspect.getdoc(action)
    return command


@_configured
def run(config: RunConfig, as_json: bool) -> None:
    """Measure: node, Kubernetes, stages, results, summary; then remove the node.

    Exit codes: 0 every judged claim held or was missed, 1 a claim is falsified, 2 bad input, 3 something is unknown,
    4 stored results do not belong together, 5 node or installation failed, 6 something was left behind,
    130 interrupted.
    """
    tools = shared.make_tools(config)
    before = {cell: earlier_phases(config.results, cell, config.stages, config.options) for cell in config.cells}
    with interrupts.raising():
        results = experiment.run(config, tools)
    for result in results:
        shared.progress(f"\n{result.cell.name}\n{render_phases(result.phases, before[result.cell])}")
        if result.kept:
            shared.progress(f"kept: {result.kept}  (lab ssh {result.kept}; lab down {result.kept})")
        if result.problem is not None:
            shared.fail(result.problem)
    if as_json:
        shared.print_json([_as_json(result) for result in results])
    else:
        _print_verdicts(results)
    codes = [outcome_exit_code([verdict for result in results for verdict in result.verdicts])]
    codes += [EXIT_UNKNOWN for result in results if result.failed_stages]
    codes += [result.problem.exit_code for result in results if result.problem is not None]
    if not config.quick and any(result.attempts for result in results):
        try:
            write_summary(config.results, config.project)
        except LabError as error:
            codes.append(shared.fail(error))
    code = heaviest_code(codes)
    if code != EXIT_OK:
        raise typer.Exit(code)


def _as_json(result: experiment.CellResult) -> dict[str, Any]:
    return {
        "cell": result.cell.as_json(),
        "phases_s": result.phases,
        "verdicts": [verdict.as_json() for verdict in result.verdicts],
        "attempts": [str(path) for path in result.attempts],
        "problem": None if result.problem is None else str(result.problem),
        "kept": result.kept,
    }


def _print_verdicts(results: Sequence[experiment.CellResult]) -> None:
    rows = [
        [
            result.cell.label,
            verdict.claim,
            verdict.outcome.value,
            "" if verdict.outcome is Outcome.HELD else verdict.reason,
        ]
        for result in results
        for verdict in result.verdicts
    ]
    shared.print_table("Verdicts", ["cell", "claim", "verdict", "reason"], rows)


@_configured
def show_plan(config: RunConfig, as_json: bool) -> None:
    """Show what `lab run` with the same flags would do: cells, stages, minutes, files. Touches nothing."""
    stamps = shared.today_stamps(config.project, dict(config.options))
    planned = plan.make(config, stamps)
    data = plan.as_json(config, planned)
    if as_json:
        shared.print_json(data)
        return
    rows = [[entry.cell, entry.stage, f"{entry.seconds:.0f}", entry.folder, entry.stamp] for entry in planned]
    shared.print_table("Attempts", ["cell", "stage", "seconds (emulation)", "stored below", "stamp"], rows)
    shared.data_console.print(
        f"{data['nodes']} node(s) from {config.provider}, about {data['minutes']} minutes under emulation; "
        "cost 0 (local guests)",
        markup=False,
    )
