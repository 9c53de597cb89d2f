"""`lab summary`, `lab judge` and `lab verify`: everything that works on stored results alone."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Annotated, Any

import typer

from lab import claims as claim_rules
from lab import judging
from lab.atomic import opened
from lab.claim_history import ClaimFile
from lab.cli import console, page, publish, shared, stored_results
from lab.distros.registry import INSTEAD
from lab.model import EXIT_FALSIFIED, EXIT_OK, Outcome, ResultsError, Stamp, UsageError, Verdict
from lab.providers.registry import SITES
from lab.report import comparability
from lab.report.outcomes import outcome_exit_code
from lab.report.statistics import predicted_orders
from lab.report.summary import render
from lab.run_records import Seal, run_folders, seal_of
from lab.stages import registry
from lab.store import Attempt, Store, write_whole

SUMMARY = "summary.md"
NOTES = "notes.md"
"""What a person has to say about the results; goes into the summary as it is."""


def summary_text(results: Path, folder: Path | None) -> tuple[str, list[Verdict]]:
    """The summary of the stored results, and every verdict in it; ResultsError when they do not belong together."""
    stored = stored_results.read(results, folder)
    return _text(stored, results), stored.verdicts


def _text(stored: stored_results.Stored, results: Path) -> str:
    return render(
        stored.selection,
        registry.BY_NAME,
        {claim.id: claim.title for claim in stored.claims},
        _today(stored.project),
        _notes(results / NOTES),
        predicted_orders(stored.claims),
    )


def check_notes(results: Path) -> None:
    """UsageError for notes that would stop :func:`write_summary` at its end: asked before anything is measured."""
    _notes(results / NOTES)


def _notes(path: Path) -> str:
    """What a person wrote; "" when nothing is there."""
    try:
        return path.read_text(encoding="utf-8") if path.exists() else ""
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from error


def _today(folder: Path) -> comparability.Today:
    """What the attempts of a table would be stamped today, with the sampling parameters that they were run with."""
    known: dict[tuple[str, str], dict[str, Stamp]] = {}

    def today(comparison: comparability.Comparison) -> Stamp | None:
        distro = comparison.attempts[0].cell.distro
        provider = dict(comparison.environment).get("provider", "")
        if distro not in INSTEAD or provider not in SITES:
            return None
        if (distro, provider) not in known:
            known[distro, provider] = shared.today_stamps(folder, shared.DEFAULT_OPTIONS, distro, SITES[provider])
        stamp = known[distro, provider].get(comparison.stage)
        if stamp is None:
            return None
        given = {name: value for name, value in comparison.stamp.inputs.items() if name.startswith("param/")}
        fixed = {name: value for name, value in stamp.inputs.items() if not name.startswith("param/")}
        return Stamp(inputs={**fixed, **given})

    return today


def write_summary(
    results: Path, folder: Path | None, junit: Path | None = None, asked: page.Wanted | None = None
) -> list[Verdict]:
    """Write results/summary.md and what else is asked for (JUnit, page, pictures); tell GitHub. The verdicts in it."""
    shared.require_file_name("--junit", junit, "claims.xml")
    stored_results.require_folder(results)
    # Another run that ends now must not write over this with what it read before. The store locks stages' folders only.
    with opened(results, fcntl.LOCK_EX):
        stored = stored_results.read(results, folder)
        write_whole(results / SUMMARY, _text(stored, results))
        console.progress(f"wrote {results / SUMMARY}")
        if asked:
            page.write(stored, asked, _today(stored.project), _notes(results / NOTES))
    unfinished = Store(results).partials()
    if unfinished:
        console.progress(f"{len(unfinished)} unfinished attempts are left out: {', '.join(map(str, unfinished))}")
    if junit is not None:
        publish.write_junit(stored, junit)
    publish.publish_job(stored)
    return stored.verdicts


def summary(
    results: shared.ResultsOption = shared.RESULTS,
    project: shared.ProjectOption = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if summary.md is out of date.")] = False,
    junit: shared.JunitOption = None,
    html: page.HtmlOption = False,
    html_file: page.HtmlFileOption = None,
    plots: page.PlotsOption = None,
) -> None:
    """Write results/summary.md from stored results alone.

    Exit codes: 0 all held or missed, 1 a claim is falsified, 3 something is unknown, 4 results are damaged or mixed.
    With --check: 0 up to date, 1 out of date, 4 damaged or mixed.
    """
    asked = page.wanted(results, html, html_file, plots)
    others = shared.given({
        "--junit": junit is not None,
        "--html": html,
        "--html-file": html_file is not None,
        "--plots": plots is not None,
    })
    if check and others:
        raise UsageError(f"--check writes nothing: leave out {others}")
    if check:
        text, _ = summary_text(results, project)
        path = results / SUMMARY
        if not path.is_file() or path.read_bytes() != text.encode("utf-8", errors="surrogateescape"):
            console.progress(f"{path} is out of date; `lab summary` writes it anew")
            raise typer.Exit(EXIT_FALSIFIED)
        console.progress(f"{path} is what the stored results give")
        return
    code = outcome_exit_code(write_summary(results, project, junit, asked))
    if code != EXIT_OK:
        raise typer.Exit(code)


def verify(results: shared.ResultsOption = shared.RESULTS) -> None:
    """Check every stored attempt and run against its checksums. Exit 4 when one is damaged.

    Covered are all files of sealed attempts, their stamps too, and the record and journal of runs that have ended.
    Runs of older labs have no checksums: "not sealed". What is unfinished has none yet. summary.md is checked by
    `lab summary --check`; notes.md is a person's.
    """
    stored_results.require_folder(results)
    store = Store(results)
    problems = store.verify()
    seals: dict[Path, Seal] = {}
    for folder in run_folders(results):
        try:
            seals[folder] = seal_of(folder)
        except ResultsError as error:
            problems += str(error).split("\n")
    for problem in problems:
        console.progress(problem)
    if problems:
        raise ResultsError(f"{len(problems)} problem(s) in {results}")
    count = len(store.attempts()) + len(store.attempts(smoke=True))
    unfinished = store.partials()
    console.progress(f"{count} attempts are whole and unchanged; {len(unfinished)} unfinished")
    told = [f"{list(seals.values()).count(seal)} {seal}" for seal in Seal]
    console.progress(f"runs: {'; '.join(told)}")
    for path in [*unfinished, *(folder for folder, seal in seals.items() if seal is Seal.UNFINISHED)]:
        console.progress(f"unfinished: {path}")


def judge(
    results: shared.ResultsOption = shared.RESULTS,
    project: shared.ProjectOption = None,
    as_json: shared.JsonOption = False,
    write: Annotated[bool, typer.Option("--write/--dry-run", help="Store the new verdicts, or only show them.")] = True,
) -> None:
    """Judge all stored raw texts again with today's code and CLAIM.md; report every verdict that changes.

    A claim that was committed after an attempt had started cannot be held by it: its verdict is UNKNOWN. The exit
    code is that of the attempts which the summary shows: 0 all held or missed, 1 falsified, 3 something is unknown.
    """
    stored_results.require_folder(results)
    _, claims = stored_results.claims_of(project)
    if claims.is_shallow:
        raise UsageError(
            "this clone's history is cut, so nobody can tell since when its claims stand; run `git fetch --unshallow`"
        )
    store = Store(results)
    attempts = [*store.attempts(), *store.attempts(smoke=True)]
    for attempt in attempts:
        for claim in claims.claims:
            if claim.stage == attempt.stage:
                # A claim that has no answer for a cell is found before the first verdict is stored.
                claim_rules.applies(claim, attempt.cell)
    changes: list[dict[str, Any]] = []
    newest: dict[tuple[str, str], tuple[int, list[Verdict]]] = {}
    for attempt in attempts:
        observation, record = _judged(attempt, claims)
        before = {entry["claim"]: entry["outcome"] for entry in attempt.verdict.get("verdicts", [])}
        after = {entry["claim"]: entry["outcome"] for entry in record["verdicts"]}
        for claim in sorted(set(before) | set(after)):
            if before.get(claim) != after.get(claim):
                place = str(attempt.path.relative_to(results))
                changes.append({"attempt": place, "claim": claim, "was": before.get(claim), "is": after.get(claim)})
        place_in_table = (attempt.cell.name, attempt.stage)
        if not attempt.smoke and attempt.countable and attempt.number > newest.get(place_in_table, (0, []))[0]:
            newest[place_in_table] = (attempt.number, [Verdict.from_json(entry) for entry in record["verdicts"]])
        if write and (observation != attempt.observation or record != attempt.verdict):
            store.rejudge(attempt, observation, record)
    if as_json:
        console.print_json({"changes": changes})
    elif changes:
        rows = [[c["attempt"], c["claim"], str(c["was"] or "-"), str(c["is"] or "-")] for c in changes]
        console.print_table("Changed verdicts", ["attempt", "claim", "was", "is"], rows)
    else:
        console.progress("no verdict changes")
    code = outcome_exit_code([verdict for _, verdicts in newest.values() for verdict in verdicts])
    if code != EXIT_OK:
        raise typer.Exit(code)


def _judged(attempt: Attempt, claims: ClaimFile) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Observation and verdict record of a stored attempt; late claims are UNKNOWN."""
    stage = registry.BY_NAME.get(attempt.stage)
    if stage is None:
        raise ResultsError(f"{attempt.path}: this lab has no stage {attempt.stage!r}")
    observation, record = judging.judge(stage, attempt.cell, attempt.raw(), claims.claims)
    if attempt.smoke:
        return observation, record
    started = judging.unix(attempt.started)
    by_id = {claim.id: claim for claim in claims.claims}
    for entry in record["verdicts"]:
        since = claims.since(by_id[entry["claim"]].digest)
        if since is None or since > started:
            entry["outcome"] = Outcome.UNKNOWN.value
            entry["reason"] = "the claim was not committed before this attempt started"
    return observation, record
