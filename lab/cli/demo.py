"""`lab demo`: the stored results of a checkout through everything that needs no node, in a folder of its own.

Each step is the command that is printed before it, so whoever saw it can repeat it. The results are copied first:
nothing is ever written to the folder that they come from.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from lab import project as projects
from lab.cli import console, stored_results
from lab.cli.verbs import VERBS
from lab.model import EXIT_OK, UsageError, heaviest_code
from lab.report import comparability
from lab.report.tables import verdict_frame

LEAST_SPACE = "some 20 MB"
NEEDS = (
    "the demo replays the results that come with the source of node lab, and an installed package has none: clone the "
    "repository and run `lab demo` inside, or name a clone with --project DIR"
)

OutOption = Annotated[
    Path | None, typer.Option("--out", help="New or empty folder to write into (default: a temporary one).")
]


def demo(
    out: OutOption = None,
    project: Annotated[Path | None, typer.Option("--project", help="A clone of the lab (default: found).")] = None,
) -> None:
    """Show what the lab makes of the stored results, in a folder of its own; no node and no token needed.

    Exit codes are those of the commands that it runs, the heaviest of them: 0 when all claims held or were missed.
    """
    folder = _project(project)
    stored_results.claims_of(folder)
    target = _target(out, folder)
    results = target / "results"
    console.progress(f"copying the results to {results} ({LEAST_SPACE})")
    shutil.copytree(folder / "results", results)
    stored = stored_results.read(results, folder)
    where = ["--results", str(results)]
    written = ["--junit", str(target / "claims.xml"), "--html-file", str(target / "index.html")]
    codes = [
        _step("Is every stored attempt whole and unchanged?", ["verify", *where]),
        _step(
            "What do the results say of the claims? As a summary, and for other programs.",
            ["summary", *where, *([] if project is None else ["--project", str(project)]), *written],
        ),
    ]
    _show_verdicts(stored)
    cells = {attempt.cell.name: attempt.cell for attempt in stored.selection.attempts if not attempt.cell.gates}
    names = [cell.name for cell in sorted(cells.values(), key=comparability.cell_order)]
    if len(names) > 1:
        codes.append(_step("What did the last version change?", ["diff", *names[-2:], *where, "--changed"]))
    codes.append(
        _step(
            "And beside the numbers that the article published?",
            ["diff", str(results), "article"],
            target / "article.txt",
        )
    )
    console.progress(f"\nAll of it is in {target}; nothing else was written.")
    console.progress("Next: `lab doctor` says whether this machine can measure; see docs/quick-start.md.")
    code = heaviest_code(codes)
    if code != EXIT_OK:
        raise typer.Exit(code)


def _project(given: Path | None) -> Path:
    """The clone whose results are shown; UsageError says what is needed where there is none."""
    try:
        found = projects.find(Path.cwd(), given)
    except UsageError as error:
        raise UsageError(f"{NEEDS} ({error})") from error
    if not any((found / "results").glob("*/*/*/stamp.json")):
        raise UsageError(f"{found / 'results'} holds no results: {NEEDS}")
    return found


def _target(given: Path | None, folder: Path) -> Path:
    """A folder that is empty and not among the results themselves."""
    if given is None:
        return Path(tempfile.mkdtemp(prefix="lab-demo-"))
    target = given.resolve()
    if target.is_relative_to((folder / "results").resolve()):
        raise UsageError(f"--out {given}: that is inside the results, which the demo never changes; name another")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"--out {given}: not an empty folder; name a new one")
    target.mkdir(parents=True, exist_ok=True)
    return target


def _step(text: str, words: Sequence[str], into: Path | None = None) -> int:
    """Say a command and run it, with its output into a file if one is given; its exit code."""
    shown = f"lab {shlex.join(words)}" + ("" if into is None else f" > {shlex.quote(str(into))}")
    console.progress(f"\n# {text}\n$ {shown}")
    with contextlib.ExitStack() as stack:
        if into is not None:
            file = stack.enter_context(into.open("w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(file))
        code = VERBS[words[0]].load(words[0]).main(list(words[1:]), prog_name=f"lab {words[0]}", standalone_mode=False)
    return code if isinstance(code, int) else EXIT_OK


def _show_verdicts(stored: stored_results.Stored) -> None:
    """The verdict table of each environment: claims as rows, cells as columns; long titles and gates stay out of it."""
    for key in stored.selection.environments():
        frame = verdict_frame(stored.selection, key, {claim.id: claim.title for claim in stored.claims})
        short = frame.drop(columns="title")
        titles: list[str] = []
        notes: list[str] = []
        for title in map(str, short.columns):
            version, _, gates = title.partition(" ")
            notes += [f"{'*' * (len(notes) + 1)} {title}"] if gates else []
            titles.append(f"{version}{'*' * len(notes) if gates else ''}")
        rows = [[str(value) for value in row] for row in short.to_numpy().tolist()]
        console.print_table("Verdicts", titles, rows)
        for note in notes:
            console.data_console.print(note, markup=False)
