"""What the verbs share: common options, the record of a run from flags, printing. argv and environment end here."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import platformdirs
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lab import claim_history, judging, project
from lab.artifacts import Sources, load_releases, resolve_upstream
from lab.config import NodeOptions, RunConfig
from lab.distros.registry import DISTROS
from lab.distros.upstream.build import GoBuilder
from lab.experiment import Tools
from lab.manifests import Manifests
from lab.model import LabError, Stamp
from lab.providers.contract import Provider
from lab.providers.registry import PROVIDERS, Setup, token_of
from lab.secrets import SECRETS
from lab.stages import registry
from lab.store import Store

ResultsOption = Annotated[Path, typer.Option("--results", help="Folder of stored results.")]
ProjectOption = Annotated[
    Path | None, typer.Option("--project", help="Folder with CLAIM.md, manifests and node-scripts (default: found).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]

RESULTS = Path("results")
UNBOUNDED_COLUMNS = 1 << 16
DEFAULT_OPTIONS = {"quick": False, "reps": 3, "order": "random"}


class _Progress(Console):
    """Standard error. A reader that has gone away (``2>&1 | head``, a closed terminal) must not end a measurement."""

    def on_broken_pipe(self) -> None:
        """Go on without a reader; the base class would end the program with the code of a falsified claim."""
        self.quiet = True


progress_console = _Progress(stderr=True, highlight=False, soft_wrap=True)
data_console = Console(highlight=False, soft_wrap=True)


def cache_folder() -> Path:
    """The user's cache, or LAB_CACHE."""
    given = os.environ.get("LAB_CACHE")
    return Path(given) if given else Path(platformdirs.user_cache_dir("node-lab"))


def progress(text: str) -> None:
    """One line of progress on standard error; lost when that cannot be written (a full disk, no terminal)."""
    _to_stderr(text)


def _to_stderr(text: str, style: str | None = None) -> None:
    with contextlib.suppress(OSError):
        progress_console.print(SECRETS.mask(text), markup=False, style=style)


def timed_progress() -> Callable[[str], None]:
    """Progress lines that begin with the time since now, for verbs that take minutes."""
    start = time.monotonic()

    def say(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - start), 60)
        progress(f"[{minutes:3d}:{seconds:02d}] {text}")

    return say


def print_json(value: Any) -> None:
    """Data as JSON on standard output."""
    typer.echo(SECRETS.mask(json.dumps(value, indent=2, ensure_ascii=False)))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Data as a table on standard output: as wide as it must be, or folded to the width of a terminal; never cut."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # A text from a node may hold what looks like rich's markup.
        table.add_row(*(Text(SECRETS.mask(text)) for text in row))
    console = data_console if data_console.is_terminal else Console(highlight=False, width=UNBOUNDED_COLUMNS)
    console.print(table, soft_wrap=False)


def artifacts_sources(folder: Path | None, *, download: bool, build: bool) -> Sources:
    """Where binaries come from, by flags and environment (LAB_ARTIFACTS and the mirrors)."""
    return Sources.from_environment(
        os.environ,
        cache=cache_folder(),
        releases=load_releases(),
        folder=folder,
        download=download,
        builder=GoBuilder(cache=cache_folder(), environ=os.environ) if build else None,
    )


def provider(name: str, nodes: NodeOptions | None = None, say: Callable[[str], None] = progress) -> Provider:
    """A provider on the user's cache, with tokens from the environment."""
    setup = Setup(cache=cache_folder(), progress=say, nodes=nodes or NodeOptions(), environ=os.environ)
    return PROVIDERS[name](setup)


def usable_providers() -> list[Provider]:
    """Those whose nodes can be listed here: all, but for the cloud without a token."""
    return [provider(name) for name in PROVIDERS if name != "digitalocean" or token_of(os.environ)]


def make_tools(config: RunConfig) -> Tools:
    """Provider, distribution, store and the project's files for a run."""
    say = timed_progress()
    scripts = project.node_scripts(config.project)
    sources = artifacts_sources(config.artifacts, download=config.download, build=config.build)
    return Tools(
        provider=provider(config.provider, config.nodes, say),
        distro=DISTROS[config.distro](
            resolve=lambda version: resolve_upstream(version, sources, say), scripts=scripts, progress=say
        ),
        store=Store(config.results),
        manifests=Manifests.load(config.project / "manifests"),
        scripts=scripts,
        claims=claim_history.read(config.project / "CLAIM.md"),
        progress=say,
    )


def today_stamps(folder: Path, options: dict[str, Any]) -> dict[str, Stamp]:
    """The stamp of every stage as the project stands now."""
    manifests = Manifests.load(folder / "manifests")
    scripts = project.node_scripts(folder)
    return {stage.name: judging.stamp(stage, manifests, scripts, options) for stage in registry.STAGES}


def fail(error: LabError) -> int:
    """Print an error on standard error; its exit code."""
    _to_stderr(f"error: {error}", "red")
    return error.exit_code
