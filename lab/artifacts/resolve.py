"""One request to verified executables: the first source that has it wins, a wrong hash stops everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lab.artifacts.cache import Binaries, Entry, Progress, Staged
from lab.artifacts.files import Unavailable
from lab.artifacts.request import ARCH, Request
from lab.artifacts.sources import Sources, from_build, from_download, from_folder
from lab.model import NodeError

Step = Callable[[Request, Sources, Path, Progress], Staged]

STEPS: tuple[tuple[str, Step], ...] = (
    ("artifacts folder", from_folder),
    ("download", from_download),
    ("build", from_build),
)


def resolve(request: Request, sources: Sources, progress: Progress) -> Binaries:
    """Verified executables for ``request``: cache, artifacts folder, download, then build.

    Safe for several runs at once. A source that cannot give the artifact is passed over; when all are, one
    NodeError lists each with its reason. A file with a wrong hash is a WrongHash (exit code 5) that names the
    file and both hashes, and no further source is tried.
    """
    entry = Entry(cache=sources.cache, request=request)
    try:
        with entry.locked(progress, sources.lock_timeout_s):
            cached = entry.load(sources.releases)
            if cached is not None:
                unread = "" if sources.folder is None else f"; {sources.folder} was not consulted"
                progress(f"{request}: from the cache, first from {cached.first_origin}{unread}")
                return cached
            reasons = [f"cache: {entry.folder} does not exist"]
            for title, step in STEPS:
                with entry.staging() as staging:
                    try:
                        staged = step(request, sources, staging / "files", progress)
                    except Unavailable as error:
                        reasons.append(f"{title}: {error}")
                        continue
                    return entry.commit(staging, _pinned(request, sources, staged))
    except OSError as error:
        raise NodeError(f"{request}: {error}") from error
    raise NodeError(
        f"{request} could not be had from any source:\n"
        + "\n".join(f"  - {reason}" for reason in reasons)
        + f"\nGive a folder that holds {request.single_file}-{request.version}-{ARCH} with --artifacts, "
        "make the release reachable (LAB_KUBERNETES_MIRROR, LAB_ETCD_MIRROR), or let the lab build it"
    )


def resolve_upstream(version: str, sources: Sources, progress: Progress) -> Binaries:
    """All that one upstream version needs: its five components, and the etcd that releases.toml names.

    The record's ``kind`` is ``upstream``; an origin in which the two differ names both.
    """
    cluster = resolve(Request(kind="kubernetes", version=version), sources, progress)
    store = resolve(Request(kind="etcd", version=sources.releases.etcd), sources, progress)
    return Binaries(
        kind="upstream",
        version=version,
        components={**cluster.components, **store.components},
        sha256={**cluster.sha256, **store.sha256},
        origin=_both(cluster.origin, store.origin),
        first_origin=_both(cluster.first_origin, store.first_origin),
        detail=f"kubernetes {cluster.version}: {cluster.detail}. etcd {store.version}: {store.detail}",
    )


def describe_origin(binaries: Binaries) -> str:
    """One line for a record: where the files came from now, and first."""
    first = "" if binaries.origin == binaries.first_origin else f" (first: {binaries.first_origin})"
    return f"{binaries.origin}{first}: {binaries.detail}"


def _both(cluster: str, store: str) -> str:
    return cluster if cluster == store else f"kubernetes {cluster}, etcd {store}"


def _pinned(request: Request, sources: Sources, staged: Staged) -> Staged:
    """Check the pins, and say in the detail how far the files are pinned."""
    pinned = sources.releases.check(request, staged.sha256, staged.pin_origin, staged.places)
    if staged.pin_origin is None:
        return staged
    return replace(staged, detail=f"{staged.detail}; {'pinned' if pinned else 'not pinned'}")
