"""`lab run` and `lab plan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from lab import experiment, interrupts, plan
from lab.cli import console, shared
from lab.cli.flags import configured
from lab.cli.summary import write_summary
from lab.config import RunConfig
from lab.model import EXIT_OK, EXIT_UNKNOWN, LabError, Outcome, heaviest_code
from lab.report.outcomes import outcome_exit_code
from lab.report.phases import render_phases
from lab.run_records import earlier_phases


@configured
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
        console.progress(f"\n{result.cell.name}\n{render_phases(result.phases, before[result.cell])}")
        if result.kept:
            console.progress(f"kept: {result.kept}  (lab ssh {result.kept}; lab down {result.kept})")
        if result.problem is not None:
            console.fail(result.problem)
    if as_json:
        console.print_json([_as_json(result) for result in results])
    else:
        _print_verdicts(results)
    codes = [outcome_exit_code([verdict for result in results for verdict in result.verdicts])]
    codes += [EXIT_UNKNOWN for result in results if result.failed_stages]
    codes += [result.problem.exit_code for result in results if result.problem is not None]
    if not config.quick and any(result.attempts for result in results):
        try:
            write_summary(config.results, config.project)
        except LabError as error:
            codes.append(console.fail(error))
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
    console.print_table("Verdicts", ["cell", "claim", "verdict", "reason"], rows)


@configured
def show_plan(config: RunConfig, as_json: bool) -> None:
    """Show what `lab run` with the same flags would do: cells, stages, minutes, files. Touches nothing."""
    stamps = shared.today_stamps(config.project, dict(config.options))
    price = shared.provider(config.provider, config.nodes).hourly_price()
    planned = plan.make(config, stamps)
    data = plan.as_json(config, planned, price)
    if as_json:
        console.print_json(data)
        return
    rows = [[entry.cell, entry.stage, f"{entry.seconds:.0f}", entry.folder, entry.stamp] for entry in planned]
    console.print_table("Attempts", ["cell", "stage", "seconds (emulation)", "stored below", "stamp"], rows)
    cost = f"about ${data['dollars']}" if price else "no cost"
    console.data_console.print(
        f"{data['nodes']} node(s) from {config.provider}, about {data['minutes']} minutes under emulation; {cost}",
        markup=False,
    )
