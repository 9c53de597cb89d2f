"""`lab summary --html` and `--plots`: the page of the stored results, and its pictures as files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from lab.atomic import write_bytes_whole, write_whole
from lab.cli import console
from lab.cli.stored_results import Stored
from lab.model import UsageError
from lab.report.comparability import AttemptRecord, Today
from lab.secrets import SECRETS
from lab.stages import registry
from lab.store import Attempt

PAGE = "summary.html"

HtmlOption = Annotated[bool, typer.Option("--html", help=f"Also write one self-contained page, RESULTS/{PAGE}.")]
HtmlFileOption = Annotated[
    Path | None, typer.Option("--html-file", help="The same page, into this file.", metavar="FILE")
]
PlotsOption = Annotated[
    Path | None, typer.Option("--plots", help="Also write each picture as PNG and SVG into this folder.", metavar="DIR")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What was asked for beside the summary: ``html`` a file, ``plots`` a folder; None: not wanted."""

    html: Path | None
    plots: Path | None

    def __bool__(self) -> bool:
        return self.html is not None or self.plots is not None


def wanted(results: Path, html: bool, html_file: Path | None, plots: Path | None) -> Wanted:
    """The flags as places; UsageError when one names what cannot be written."""
    target = html_file or (results / PAGE if html else None)
    if target is not None and target.is_dir():
        if html_file is None:
            raise UsageError(f"--html: {target} is a folder; move it, or name a file with --html-file")
        raise UsageError(f"--html-file {target}: that is a folder; name a file, such as {target / PAGE}")
    if plots is not None and plots.exists() and not plots.is_dir():
        raise UsageError(f"--plots {plots}: that is no folder; name one for the pictures")
    return Wanted(html=target, plots=plots)


def write(stored: Stored, asked: Wanted, today: Today, notes: str) -> None:
    """Write the page and the pictures that were asked for, each file whole."""
    # Loaded only here: the help of the verb should not wait for templates, nor a page for the drawing library.
    from lab.report.page.build import build

    page = build(stored.selection, registry.BY_NAME, stored.claims, today, _raw_texts, notes)
    if asked.html is not None:
        from lab.report.page.render import page_text

        write_whole(asked.html, page_text(page, SECRETS.mask))
        console.progress(f"wrote {asked.html}")
    if asked.plots is not None:
        from lab.report import pictures

        names = []
        for picture in page.pictures():
            for form in pictures.FORMS:
                name = f"{picture.id}.{form}"
                write_bytes_whole(asked.plots / name, pictures.draw(picture, form, SECRETS.mask))
                names.append(name)
        console.progress(f"wrote {len(names)} files to {asked.plots}: {', '.join(names) or 'there is no picture'}")


def _raw_texts(attempt: AttemptRecord) -> Mapping[str, str]:
    if not isinstance(attempt, Attempt):
        raise TypeError(f"{attempt!r} does not come from a store")
    return attempt.raw()
