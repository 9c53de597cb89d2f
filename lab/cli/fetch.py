"""`lab fetch`: the binaries of a run, ahead of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

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
    resolve_runtime,
    resolve_upstream,
    runtime_requests,
)
from lab.artifacts.pins import DEFAULT_PATH
from lab.cli import console, shared
from lab.config import make_cells
from lab.model import UsageError
from lab.providers.qemu import image


def fetch(
    versions: Annotated[str, typer.Argument(help="Versions, comma-separated; `known` for those in releases.toml.")],
    artifacts: Annotated[Path | None, typer.Option("--artifacts", help="Folder to take them from.")] = None,
    download: Annotated[bool, typer.Option("--download/--no-download", help="Allow official releases.")] = True,
    build: Annotated[bool, typer.Option("--build/--no-build", help="Allow building from Go modules.")] = True,
    pin: Annotated[bool, typer.Option("--pin", help="Write the sha256 of official files to releases.toml.")] = False,
    distro: Annotated[str, typer.Option("--distro", help="upstream or k3s.")] = "upstream",
    airgap_images: Annotated[bool, typer.Option("--airgap-images", help="Also a k3s release's own images.")] = False,
    runtime: Annotated[
        bool, typer.Option("--runtime", help="Also what upstream needs on droplets and own hosts: containerd, runc.")
    ] = False,
) -> None:
    """Put verified binaries and the guest image into the cache, so that later runs need no network.

    With --pin the hashes of downloaded official files are written down, those of containerd and runc among them, which
    are then fetched too; a pin that would change is an error.
    """
    if distro not in ("upstream", "k3s"):
        raise UsageError(f"--distro {distro}: there is only upstream, k3s")
    if runtime and distro == "k3s":
        raise UsageError("--runtime is for --distro upstream: k3s brings a runtime of its own")
    if airgap_images and distro != "k3s":
        raise UsageError("--airgap-images is for --distro k3s")
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
    # Pins are for downloads alone.
    if runtime or (pin and download and distro == "upstream"):
        console.progress(f"runtime: {describe_origin(resolve_runtime(sources, console.progress))}")
        if pin:
            _pin(runtime_requests(sources), sources)
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
