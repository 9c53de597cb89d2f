"""`lab run` and `lab plan`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from lab import experiment, failure, plan, project, resume
from lab.cli import console, progress, shared
from lab.cli.flags import Flags, check_places, check_resume, configured, make_config
from lab.cli.summary import check_notes, write_summary
from lab.config import RunConfig
from lab.model import EXIT_OK, EXIT_UNKNOWN, Cell, LabError, Outcome, UsageError, heaviest_code
from lab.providers.registry import SITES
from lab.report.outcomes import outcome_exit_code
from lab.report.phases import render_phases
from lab.resume import Past
from lab.run_records import earlier_phases
from lab.store import Store


@configured
def run(flags: Flags) -> None:
    """Measure: node, Kubernetes, stages, results, summary; then remove the node.

    Exit codes: 0 every judged claim held or was missed, 1 a claim is falsified, 2 bad input, 3 something is unknown,
    4 stored results do not belong together, 5 node or installation failed, 6 something was left behind,
    130 interrupted.

    A run that was killed, or lost its node, goes on with --resume RUN and does only what is missing.
    """
    if flags.dry_run:
        show_plan_of(flags)
        return
    console.be_quiet(flags.quiet)
    try:
        check_notes(flags.results)
        if flags.resume is None:
            _run(make_config(flags), None, flags)
        else:
            _resume(flags, flags.resume)
    finally:
        console.be_quiet(False)


def _resume(flags: Flags, run_id: str) -> None:
    """Go on with a run; nothing to do is no error."""
    check_resume(flags)
    check_places(flags)
    store = Store(flags.results)
    past = resume.open_run(store, run_id)
    with contextlib.closing(past.journal):
        config = past.config(
            results=flags.results, project=project.find(Path.cwd(), flags.project), cache=shared.cache_folder()
        )
        if resume.is_complete(past, config, store):
            console.progress(f"run {run_id} is complete: nothing to do")
            return
        _run(config, past, flags)


def _run(config: RunConfig, past: Past | None, flags: Flags) -> None:
    before = _before(config)

    def expected(cell: Cell) -> Mapping[str, float]:
        return before[cell] or {"": plan.cell_seconds(config)}

    tools = shared.make_tools(config)
    with progress.watching(expected) as watch:
        results = experiment.run(config, replace(tools, watch=watch), past)
    for result in results:
        console.progress(f"\n{result.cell.name}\n{render_phases(result.phases, before[result.cell])}")
        if result.kept:
            console.progress(f"kept: {result.kept}  (lab ssh {result.kept}; lab down {result.kept})")
        if result.failures:
            console.explain(failure.report(result, config))
        if result.problem is not None:
            console.fail(result.problem)
    told = console.shown(lambda: _print_results(results, flags))
    _leave(config, results, flags.junit, told)


def _before(config: RunConfig) -> dict[Cell, dict[str, float] | None]:
    """Seconds by phase of the newest earlier run of each cell."""
    return {cell: earlier_phases(config.results, cell, config.stages, config.options) for cell in config.cells}


def _leave(config: RunConfig, results: Sequence[experiment.CellResult], junit: Path | None, told: int) -> None:
    """Write the summary and what else was asked for, and end the program with the heaviest exit code."""
    codes = [told, outcome_exit_code([verdict for result in results for verdict in result.verdicts])]
    codes += [EXIT_UNKNOWN for result in results if result.failed_stages]
    codes += [result.problem.exit_code for result in results if result.problem is not None]
    if not config.quick and any(result.attempts for result in results):
        try:
            write_summary(config.results, config.project, junit)
        except LabError as error:
            codes.append(console.fail(error))
    elif junit is not None:
        console.progress(f"{junit} was not written: no attempt of this run counts")
    code = heaviest_code(codes)
    if code != EXIT_OK:
        raise typer.Exit(code)


def _as_json(result: experiment.CellResult) -> dict[str, Any]:
    return {
        "run": result.run_id,
        "cell": result.cell.as_json(),
        "phases_s": result.phases,
        "verdicts": [verdict.as_json() for verdict in result.verdicts],
        "attempts": [str(path) for path in result.attempts],
        "problem": None if result.problem is None else str(result.problem),
        "logs": None if result.logs is None else str(result.logs),
        "kept": result.kept,
    }


def _print_results(results: Sequence[experiment.CellResult], flags: Flags) -> None:
    if flags.as_json:
        console.print_json([_as_json(result) for result in results])
        return
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
    if rows:
        console.print_table("Verdicts", ["cell", "claim", "verdict", "reason"], rows)


@configured
def show_plan(flags: Flags) -> None:
    """Show what `lab run` with the same flags would do: cells, stages, minutes, cost, files. Touches nothing."""
    show_plan_of(flags)


def show_plan_of(flags: Flags) -> None:
    """The plan of a run with these flags, on standard output."""
    if flags.resume is not None:
        raise UsageError("--resume RUN does what is missing of that run; there is no plan of it")
    config = make_config(flags)
    distro = shared.make_tools(config).distro
    for cell in config.cells:
        distro.check(cell)
    stamps = shared.today_stamps(config.project, dict(config.options), config.distro, SITES[config.provider])
    price = shared.provider(config.provider, config.nodes).hourly_price()
    planned = plan.make(config, stamps)
    data = plan.as_json(config, planned, price, _before(config))
    if flags.as_json:
        console.print_json(data)
        return
    rows = [[entry.cell, entry.stage, f"{entry.seconds:.0f}", entry.folder, entry.stamp] for entry in planned]
    console.print_table("Attempts", ["cell", "stage", "seconds (emulation)", "stored below", "stamp"], rows)
    for line in _plan_lines(data, free=not price):
        console.data_console.print(line, markup=False)


def _plan_lines(data: dict[str, Any], *, free: bool) -> list[str]:
    cells, measured = len(data["cells"]), data["cells_measured_before"]
    basis = f"{measured} of {cells} cells as in an earlier run, the rest by budget" if measured else "by budget"
    if measured == cells:
        basis = "as in earlier runs"
    cost = "no cost" if free else f"about ${data['dollars']}"
    calls = f"at least {data['api_calls']} calls of its API" if data["api_calls"] else "no API calls"
    return [
        f"{data['nodes']} node(s) from {data['provider']}, about {data['minutes']} minutes under emulation; {cost}",
        f"expected {data['minutes_expected']} minutes ({basis}); never less than {data['minutes_windows']}, "
        "which are waited on purpose",
        calls,
        *(f"writes {name}" for name in data["files"]),
    ]
