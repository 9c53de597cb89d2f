"""What the verbs share: common options, the record of a run from flags, printing. argv and environment end here."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
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
from lab.config import RunConfig, make_cells
from lab.distros.registry import DISTROS
from lab.distros.upstream.build import GoBuilder
from lab.experiment import Tools
from lab.manifests import Manifests
from lab.model import LabError, Stamp, UsageError
from lab.providers.qemu.provider import QemuProvider
from lab.providers.registry import PROVIDERS
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
        progress_console.print(text, markup=False, style=style)


def timed_progress() -> Callable[[str], None]:
    """Progress lines that begin with the time since now, for verbs that take minutes."""
    start = time.monotonic()

    def say(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - start), 60)
        progress(f"[{minutes:3d}:{seconds:02d}] {text}")

    return say


def print_json(value: Any) -> None:
    """Data as JSON on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Data as a table on standard output: as wide as it must be, or folded to the width of a terminal; never cut."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # A text from a node may hold what looks like rich's markup.
        table.add_row(*(Text(text) for text in row))
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


def qemu_provider(ssh_port: int | None = None) -> QemuProvider:
    """The local provider on the user's cache."""
    return QemuProvider(cache_folder(), progress, ssh_port=ssh_port)


def _check_numbers(reps: int, max_minutes: float | None, ssh_port: int | None) -> None:
    if not 1 <= reps <= 50:
        raise UsageError(f"--reps {reps}: give 1 to 50")
    if max_minutes is not None and not (math.isfinite(max_minutes) and max_minutes > 0):
        raise UsageError(f"--max-minutes {max_minutes:g}: give a number above 0")
    if ssh_port is not None and not 1 <= ssh_port <= 65535:
        raise UsageError(f"--ssh-port {ssh_port}: give 1 to 65535")


def make_config(
    *,
    versions: str,
    stages: str,
    gate: Sequence[str],
    gate_leg: Sequence[str],
    distro: str,
    provider: str,
    results: Path,
    project_folder: Path | None,
    keep: str,
    seed: int | None,
    quick: bool,
    reps: int,
    order: str,
    node: str | None,
    artifacts: Path | None,
    download: bool,
    build: bool,
    max_minutes: float | None,
    ssh_port: int | None,
) -> RunConfig:
    """One checked record from the flags of `run` and `plan`; UsageError names the flag that is wrong."""
    for flag, value, known in (
        ("--distro", distro, tuple(DISTROS)),
        ("--provider", provider, tuple(PROVIDERS)),
        ("--keep", keep, ("never", "failed", "always")),
        ("--order", order, ("random", "alternate")),
    ):
        if value not in known:
            raise UsageError(f"{flag} {value}: there is only {', '.join(known)}")
    _check_numbers(reps, max_minutes, ssh_port)
    names = tuple(part for part in re.split(r"[,\s]+", stages) if part) or tuple(registry.BY_NAME)
    cells = make_cells(distro, versions, tuple(gate), tuple(gate_leg))
    if node is not None and len(cells) != 1:
        raise UsageError("--node takes one version, the one that runs on that node")
    return RunConfig(
        cells=cells,
        stages=tuple(stage.name for stage in registry.select(names)),
        provider=provider,
        distro=distro,
        results=results,
        project=project.find(Path.cwd(), project_folder),
        cache=cache_folder(),
        keep=keep,
        seed=secrets.randbelow(2**31) if seed is None else seed,
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


def make_tools(config: RunConfig) -> Tools:
    """Provider, distribution, store and the project's files for a run."""
    say = timed_progress()
    scripts = project.node_scripts(config.project)
    sources = artifacts_sources(config.artifacts, download=config.download, build=config.build)
    return Tools(
        provider=PROVIDERS[config.provider](config.cache, say, ssh_port=config.ssh_port),
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
