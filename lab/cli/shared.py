"""What the verbs share: common options, and the tools of a run. argv and environment end here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import platformdirs
import typer

from lab import claim_history, judging, project
from lab.artifacts import Sources, load_releases
from lab.cli import console
from lab.config import NodeOptions, RunConfig, token_of
from lab.distros.registry import DISTROS, INSTEAD
from lab.distros.registry import Setup as DistroSetup
from lab.distros.upstream.build import GoBuilder
from lab.experiment import Tools
from lab.manifests import Manifests
from lab.model import ResultsError, Stamp, UsageError
from lab.providers.contract import Provider, Site
from lab.providers.registry import PROVIDERS, Setup
from lab.report import comparability
from lab.stages import registry
from lab.store import Store

ResultsOption = Annotated[Path, typer.Option("--results", help="Folder of stored results.")]
ProjectOption = Annotated[
    Path | None, typer.Option("--project", help="Folder with CLAIM.md, manifests and node-scripts (default: found).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
JunitOption = Annotated[
    Path | None, typer.Option("--junit", help="Also write the claims as tests (JUnit XML): falsified fails.")
]

RESULTS = Path("results")
DEFAULT_OPTIONS = {"quick": False, "reps": 3, "order": "random"}


def given(flags: Mapping[str, bool]) -> str:
    """Those flags that were given, for an error that names no other: ``--node and --keep``; "" for none."""
    return " and ".join(flag for flag, is_given in flags.items() if is_given)


def require_file_name(flag: str, target: Path | None, example: str) -> None:
    """UsageError when a flag that takes a file to be written names a folder; to be asked before anything else."""
    if target is not None and target.is_dir():
        raise UsageError(f"{flag} {target}: that is a folder; name a file, such as {target / example}")


def cache_folder() -> Path:
    """The user's cache, or LAB_CACHE."""
    given = os.environ.get("LAB_CACHE")
    return Path(given) if given else Path(platformdirs.user_cache_dir("node-lab"))


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


def provider(name: str, nodes: NodeOptions | None = None, say: Callable[[str], None] = console.progress) -> Provider:
    """A provider on the user's cache, with tokens from the environment."""
    setup = Setup(cache=cache_folder(), progress=say, nodes=nodes or NodeOptions(), environ=os.environ)
    return PROVIDERS[name](setup)


def usual_provider() -> str:
    """Where nodes are made unless a flag says so: in the cloud when there is a token, else here."""
    return "digitalocean" if token_of(os.environ) else "qemu"


def usable_providers() -> list[Provider]:
    """Those whose nodes can be listed here: all, but for the cloud without a token."""
    return [provider(name) for name in PROVIDERS if name != "digitalocean" or token_of(os.environ)]


def make_tools(config: RunConfig) -> Tools:
    """Provider, distribution, store and the project's files for a run."""
    say = console.timed_progress()
    scripts = project.node_scripts(config.project)
    sources = artifacts_sources(config.artifacts, download=config.download, build=config.build)
    return Tools(
        provider=provider(config.provider, config.nodes, say),
        distro=DISTROS[config.distro](
            DistroSetup(sources=sources, scripts=scripts, progress=say, own_images=config.own_images)
        ),
        store=Store(config.results),
        manifests=Manifests.load(config.project / "manifests"),
        scripts=scripts,
        claims=claim_history.read(config.project / "CLAIM.md"),
        progress=say,
    )


def today_stamps(folder: Path, options: dict[str, Any], distro: str, site: Site) -> dict[str, Stamp]:
    """The stamp of every stage as the project stands now, for one distribution on nodes of one kind."""
    instead = INSTEAD[distro](site)
    manifests = Manifests.load(folder / "manifests")
    scripts = project.node_scripts(folder)
    return {stage.name: judging.stamp(stage, manifests, scripts, options, instead) for stage in registry.STAGES}


def require_current(selection: comparability.Selection) -> None:
    """ResultsError when an observation was read by another version of its stage's parser than this lab has."""
    old = [
        f"{attempt.cell.name}/{attempt.stage}/{attempt.number:04d}"
        for attempt in selection.attempts
        if attempt.stage in registry.BY_NAME
        and attempt.verdict.get("judge_version") != registry.BY_NAME[attempt.stage].judge_version
    ]
    if old:
        raise ResultsError(f"read by another version of the lab: {', '.join(old)}; run `lab judge` first")
