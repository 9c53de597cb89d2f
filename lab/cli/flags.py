"""The flags of `lab run` and `lab plan`, written once, and the checked record of a run that is made of them."""

from __future__ import annotations

import inspect
import math
import secrets
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, get_type_hints

import typer

from lab import presets, project
from lab.cli import shared
from lab.config import NodeOptions, RunConfig, make_cells, split_list
from lab.distros.registry import DISTROS
from lab.model import UsageError
from lab.providers import folders
from lab.providers.digitalocean.address import one_address
from lab.providers.registry import PROVIDERS
from lab.stages import registry
from lab.stages.contract import Stage

DEFAULTS = NodeOptions()
ORDER, REPS = "random", 3
"""Where neither a flag nor a preset says anything."""

DISTRO_OF = {"digitalocean": "k3s", "ssh": "k3s", "qemu": "upstream"}
"""What a provider's nodes get then: k3s, as on the article's droplets; a local guest has the control plane outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """One field per flag; typer reads names, types, defaults and help from here."""

    versions: Annotated[
        str | None, typer.Option("--versions", help="Kubernetes versions, comma-separated: v1.36.3,v1.37.2")
    ] = None
    preset: Annotated[
        str | None,
        typer.Option("--preset", help="A ready experiment (article); the flags that are given win over what it says."),
    ] = None
    stages: Annotated[
        str | None,
        typer.Option("--stages", help="Some of class, kernel, quota, cpu, eviction, eviction-priority (default: all)."),
    ] = None
    gate: Annotated[
        list[str] | None,
        typer.Option("--gate", help="NAME=false[@apiserver|@kubelet], for every version; repeatable."),
    ] = None
    gate_leg: Annotated[
        list[str] | None,
        typer.Option("--gate-leg", help="VERSION:NAME=false[,…]: one more column of the experiment; repeatable."),
    ] = None
    distro: Annotated[
        str | None,
        typer.Option("--distro", help=f"{', '.join(DISTROS)} (default: the preset's; else k3s, on qemu upstream)."),
    ] = None
    provider: Annotated[
        str | None,
        typer.Option("--provider", help="qemu, digitalocean or ssh (default: digitalocean with a token, else qemu)."),
    ] = None
    host: Annotated[
        str | None, typer.Option("--host", help="Your own machine, user@addr[:port]; means --provider ssh.")
    ] = None
    identity: Annotated[
        Path | None, typer.Option("--identity", help="Private key for --host (default: agent, usual files).")
    ] = None
    known_hosts: Annotated[
        Path | None, typer.Option("--known-hosts", help="File with the host key of --host (default: where ssh looks).")
    ] = None
    accept_kubernetes: Annotated[
        bool,
        typer.Option("--accept-kubernetes", help="Use --host although signs of Kubernetes are there (no folders)."),
    ] = False
    size: Annotated[str, typer.Option("--size", help="Droplet size.")] = DEFAULTS.size
    region: Annotated[str, typer.Option("--region", help="Region of the droplet.")] = DEFAULTS.region
    image: Annotated[str, typer.Option("--image", help="Image of the droplet.")] = DEFAULTS.image
    allow_from: Annotated[
        str | None,
        typer.Option("--allow-from", help="The one address that may reach a droplet's SSH (default: your public one)."),
    ] = None
    ssh_port: Annotated[
        int | None, typer.Option("--ssh-port", help="Port of a guest's or droplet's SSH (default: any free one; 22).")
    ] = None
    keep: Annotated[str, typer.Option("--keep", help="Keep the node afterwards: never, failed or always.")] = "never"
    node: Annotated[
        str | None, typer.Option("--node", help="Use this kept node, with its version and gates, not a new one.")
    ] = None
    reuse_node: Annotated[
        bool, typer.Option("--reuse-node", help="One node for all versions; it must be as before in between.")
    ] = False
    airgap_images: Annotated[
        bool, typer.Option("--airgap-images", help="Bring a k3s release's own images (some 200 MB).")
    ] = False
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of random orders (default: drawn, recorded).")] = None
    quick: Annotated[
        bool, typer.Option("--quick", help="Short windows, one repetition; stored as smoke, never counted.")
    ] = False
    reps: Annotated[
        int | None,
        typer.Option("--reps", help=f"Repetitions of the eviction case and pairs of CPU windows (default: {REPS})."),
    ] = None
    order: Annotated[
        str | None,
        typer.Option("--order", help=f"Order inside a CPU pair: random, or alternate as in the article ({ORDER})."),
    ] = None
    artifacts: Annotated[
        Path | None, typer.Option("--artifacts", help="Folder with binaries (also LAB_ARTIFACTS).", file_okay=False)
    ] = None
    download: Annotated[
        bool, typer.Option("--download/--no-download", help="Allow fetching official releases.")
    ] = True
    build: Annotated[
        bool, typer.Option("--build/--no-build", help="Allow building from the published Go modules.")
    ] = True
    max_minutes: Annotated[
        float | None, typer.Option("--max-minutes", help="Start no further version after this long.")
    ] = None
    max_cost: Annotated[
        str | None, typer.Option("--max-cost", help="Start nothing that would bring the bill above so many US dollars.")
    ] = None
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="RUN", help="Go on with a run that was killed or lost its node."),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done, as plan does.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and data only.")] = False
    results: shared.ResultsOption = shared.RESULTS
    project: shared.ProjectOption = None
    junit: shared.JunitOption = None
    as_json: shared.JsonOption = False


WITH_RESUME = ("resume", "quiet", "results", "project", "junit", "as_json")
"""Fields that may be given beside --resume; everything else is as it was when the run began."""


def check_resume(flags: Flags) -> None:
    """UsageError when a flag beside --resume would change the run."""
    others = [
        f"--{'no-' if entry.default is True else ''}{entry.name.replace('_', '-')}"
        for entry in fields(flags)
        if entry.name not in WITH_RESUME and getattr(flags, entry.name) != entry.default
    ]
    if others:
        raise UsageError(f"--resume takes everything from the run itself: leave out {', '.join(others)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What flags and preset come to, in the form of the flags."""

    versions: str
    gate_legs: tuple[str, ...]
    distro: str
    order: str
    reps: int


def configured(action: Callable[[Flags], None]) -> Callable[..., None]:
    """A command with the flags of a run; ``run`` and ``plan`` take the same ones."""

    def command(**given: object) -> None:
        action(Flags(**given))  # type: ignore[arg-type]

    hints = get_type_hints(Flags, include_extras=True)
    command.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        inspect.Parameter(
            entry.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if entry.default is MISSING else entry.default,
            annotation=hints[entry.name],
        )
        for entry in fields(Flags)
    ])
    command.__doc__ = inspect.getdoc(action)
    return command


def make_config(flags: Flags) -> RunConfig:
    """One checked record; UsageError names the flag that is wrong."""
    provider = _provider(flags)
    chosen = experiment_of(flags, provider)
    for flag, value, known in (
        (_distro_flag(flags), chosen.distro, tuple(DISTROS)),
        ("--provider", provider, tuple(PROVIDERS)),
        ("--keep", flags.keep, ("never", "failed", "always")),
        ("--order", chosen.order, ("random", "alternate")),
    ):
        if value not in known:
            raise UsageError(f"{flag} {value or repr(value)}: there is only {', '.join(known)}")
    _check_numbers(flags, chosen.reps)
    check_places(flags)
    stages = _stages(flags)
    cells = make_cells(chosen.distro, chosen.versions, tuple(flags.gate or ()), chosen.gate_legs)
    if flags.node is not None and len(cells) != 1:
        raise UsageError("--node takes one version, the one that runs on that node")
    others = shared.given({"--node": flags.node is not None, "--keep": flags.keep != "never"})
    if flags.reuse_node and others:
        raise UsageError(f"--reuse-node makes a node for all versions and removes it: leave out {others}")
    if flags.airgap_images and chosen.distro != "k3s":
        raise UsageError("--airgap-images is for --distro k3s")
    return RunConfig(
        cells=cells,
        stages=tuple(stage.name for stage in stages),
        provider=provider,
        distro=chosen.distro,
        results=flags.results,
        project=project.find(Path.cwd(), flags.project),
        cache=shared.cache_folder(),
        keep=flags.keep,
        seed=secrets.randbelow(2**31) if flags.seed is None else flags.seed,
        quick=flags.quick,
        reps=chosen.reps,
        order=chosen.order,
        node=flags.node,
        reuse_node=flags.reuse_node,
        own_images=flags.airgap_images,
        artifacts=flags.artifacts,
        download=flags.download,
        build=flags.build,
        max_minutes=flags.max_minutes,
        max_cost=_dollars(flags.max_cost),
        nodes=_node_options(flags, provider),
    )


def experiment_of(flags: Flags, provider: str) -> Experiment:
    """Each flag that is given, else what the preset says, else the default; UsageError when nothing gives versions.

    With ``--versions`` a preset's gate legs are kept for those versions alone.
    """
    if flags.versions is not None and not split_list(flags.versions):
        raise UsageError(f"--versions {flags.versions!r}: no version given; example: --versions v1.36.3,v1.37.2")
    if flags.preset is None:
        if flags.versions is None:
            raise UsageError("no version given: --versions v1.36.3,v1.37.2, or a ready experiment: --preset article")
        distro = DISTRO_OF.get(provider, "upstream")
        preset = presets.Preset(name="", distro=distro, versions=flags.versions, gate_legs=(), order=ORDER, reps=REPS)
    else:
        preset = presets.get(flags.preset)
    return Experiment(
        versions=preset.versions if flags.versions is None else flags.versions,
        gate_legs=preset.legs_for(flags.versions) if flags.gate_leg is None else tuple(flags.gate_leg),
        distro=preset.distro if flags.distro is None else flags.distro,
        order=preset.order if flags.order is None else flags.order,
        reps=preset.reps if flags.reps is None else flags.reps,
    )


def _distro_flag(flags: Flags) -> str:
    return "--distro" if flags.distro is not None or flags.preset is None else f"--preset {flags.preset} with --distro"


def _provider(flags: Flags) -> str:
    """The one named, or what the other flags and the token say."""
    if flags.host is not None:
        if flags.provider not in (None, "ssh"):
            raise UsageError(f"--host is for --provider ssh, not for {flags.provider}")
        return "ssh"
    if flags.provider == "ssh" and flags.node is None:
        raise UsageError("--provider ssh needs the machine: --host user@addr")
    kept = [place.provider for place in folders.read(shared.cache_folder()) if place.id == flags.node]
    if flags.provider is None and kept:
        return kept[0]
    return shared.usual_provider() if flags.provider is None else flags.provider


def _stages(flags: Flags) -> tuple[Stage, ...]:
    """All, or those that are named; a list without a name is an error and not a wish for all."""
    if flags.stages is None:
        return registry.STAGES
    names = split_list(flags.stages)
    if not names:
        raise UsageError(
            f"--stages {flags.stages!r} names no stage; there are: {', '.join(registry.BY_NAME)} (leave it out for all)"
        )
    return registry.select(names)


def check_places(flags: Flags) -> None:
    """UsageError when something is to be written where it cannot be: known now, and not after hours."""
    shared.require_file_name("--junit", flags.junit, "claims.xml")
    if flags.results.exists() and not flags.results.is_dir():
        raise UsageError(f"--results {flags.results}: that is a file; name a folder, a new one or one with results")


def _node_options(flags: Flags, provider: str) -> NodeOptions:
    for_host = {
        "--identity": flags.identity is not None,
        "--known-hosts": flags.known_hosts is not None,
        "--accept-kubernetes": flags.accept_kubernetes,
    }
    if provider != "ssh" and any(for_host.values()):
        raise UsageError(f"without --host there is no use for {shared.given(for_host)}: leave out, or give --host too")
    return NodeOptions(
        ssh_port=flags.ssh_port,
        host=flags.host,
        identity=flags.identity,
        known_hosts=flags.known_hosts,
        accept_kubernetes=flags.accept_kubernetes,
        size=flags.size,
        region=flags.region,
        image=flags.image,
        allow_from=None if flags.allow_from is None else one_address(flags.allow_from),
    )


def _dollars(text: str | None) -> Decimal | None:
    if text is None:
        return None
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite() or value <= 0:
        raise UsageError(f"--max-cost {text}: give US dollars above 0, such as 0.50")
    return value


def _check_numbers(flags: Flags, reps: int) -> None:
    if not 1 <= reps <= 50:
        raise UsageError(f"--reps {reps}: give 1 to 50")
    if flags.max_minutes is not None and not (math.isfinite(flags.max_minutes) and flags.max_minutes > 0):
        raise UsageError(f"--max-minutes {flags.max_minutes:g}: give a number above 0")
    if flags.ssh_port is not None and not 1 <= flags.ssh_port <= 65535:
        raise UsageError(f"--ssh-port {flags.ssh_port}: give 1 to 65535")
