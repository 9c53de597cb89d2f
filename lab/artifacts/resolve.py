"""One request to verified executables: the first source that has it wins, a wrong hash stops everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from lab.artifacts.cache import Binaries, Entry, Progress, Staged
from lab.artifacts.files import Unavailable
from lab.artifacts.k3s import K3S_STEPS
from lab.artifacts.request import BUSYBOX_VERSION, K3S_FILES, Request
from lab.artifacts.runtime import (
    BUSYBOX_PACKAGE,
    busybox_from_folder,
    busybox_from_machine,
    containerd_from_download,
    containerd_from_folder,
    runc_from_download,
    runc_from_folder,
    runtime_requests,
)
from lab.artifacts.sources import Sources, from_build, from_download, from_folder
from lab.model import NodeError, k3s_release

Step = Callable[[Request, Sources, Path, Progress], Staged]

STEPS: tuple[tuple[str, Step], ...] = (
    ("artifacts folder", from_folder),
    ("download", from_download),
    ("build", from_build),
)
KIND_STEPS: Mapping[str, tuple[tuple[str, Step], ...]] = {
    "containerd": (
        ("artifacts folder", containerd_from_folder),
        ("download", containerd_from_download),
        ("build", from_build),
    ),
    "runc": (
        ("artifacts folder", runc_from_folder),
        ("download", runc_from_download),
        ("build", from_build),
    ),
    "busybox": (
        ("artifacts folder", busybox_from_folder),
        ("this machine", busybox_from_machine),
    ),
    **K3S_STEPS,
}


def resolve(request: Request, sources: Sources, progress: Progress) -> Binaries:
    """Verified executables for ``request``: cache, artifacts folder, download, then build.

    Safe for several runs at once. A source that cannot give the artifact is passed over; when all are, one
    Unavailable lists each with its reason. A file with a wrong hash is a WrongHash (exit code 5) that names the
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
            for title, step in KIND_STEPS.get(request.kind, STEPS):
                with entry.staging() as staging:
                    try:
                        staged = step(request, sources, staging / "files", progress)
                    except Unavailable as error:
                        reasons.append(f"{title}: {error}")
                        continue
                    return entry.commit(staging, _pinned(request, sources, staged))
    except OSError as error:
        raise NodeError(
            f"{request}: {error}; the cache must be a folder that you can write: mend it, or name another by LAB_CACHE"
        ) from error
    raise Unavailable(
        f"{request} could not be had from any source:\n"
        + "\n".join(f"  - {reason}" for reason in reasons)
        + f"\nGive a folder that holds {request.brought_as} with --artifacts, {_other_ways(request)}"
    )


def _other_ways(request: Request) -> str:
    if request.kind == "busybox":
        return f"or install the package {BUSYBOX_PACKAGE} on this machine"
    if request.kind in K3S_FILES:
        return "or make the release reachable (LAB_K3S_MIRROR)"
    return f"make the release reachable (LAB_{request.kind.upper()}_MIRROR), or let the lab build it"


def resolve_upstream(version: str, sources: Sources, progress: Progress) -> Binaries:
    """All that one upstream version needs: its five components, and the etcd that releases.toml names.

    The record's ``kind`` is ``upstream``; an origin in which the two differ names both.
    """
    cluster = resolve(Request(kind="kubernetes", version=version), sources, progress)
    store = resolve(Request(kind="etcd", version=sources.releases.etcd), sources, progress)
    return _joined("upstream", version, (cluster, store))


def resolve_runtime(sources: Sources, progress: Progress) -> Binaries:
    """What a node without a container runtime needs: containerd with its shim and ctr, runc, a static busybox.

    The record's ``kind`` is ``runtime``, its version names containerd and runc.
    """
    parts = tuple(resolve(request, sources, progress) for request in runtime_requests(sources))
    versions = ", ".join(f"{part.kind} {part.version}" for part in parts if part.kind != "busybox")
    return _joined("runtime", versions, parts)


def resolve_k3s(version: str, sources: Sources, progress: Progress) -> Binaries:
    """What a node needs for one k3s version (``+k3s1`` when it names none): the program, and a static busybox.

    The record's ``kind`` is ``k3s``, its version the release.
    """
    release = k3s_release(version)
    program = resolve(Request(kind="k3s", version=release), sources, progress)
    busybox = resolve(Request(kind="busybox", version=BUSYBOX_VERSION), sources, progress)
    return _joined("k3s", release, (program, busybox))


def resolve_k3s_images(version: str, sources: Sources, progress: Progress) -> Binaries:
    """The archive of images that belongs to a k3s version, for nodes that are to run those."""
    return resolve(Request(kind="k3s-images", version=k3s_release(version)), sources, progress)


def _joined(kind: str, version: str, parts: tuple[Binaries, ...]) -> Binaries:
    """Several requests as one record."""
    return Binaries(
        kind=kind,
        version=version,
        components={name: path for part in parts for name, path in part.components.items()},
        sha256={name: digest for part in parts for name, digest in part.sha256.items()},
        origin=_origins({part.kind: part.origin for part in parts}),
        first_origin=_origins({part.kind: part.first_origin for part in parts}),
        detail=". ".join(f"{part.kind} {part.version}: {part.detail}" for part in parts),
    )


def describe_origin(binaries: Binaries) -> str:
    """One line for a record: where the files came from now, and first."""
    first = "" if binaries.origin == binaries.first_origin else f" (first: {binaries.first_origin})"
    return f"{binaries.origin}{first}: {binaries.detail}"


def _origins(by_kind: Mapping[str, str]) -> str:
    """One word when all came from the same place, else each kind with its own."""
    if len(set(by_kind.values())) == 1:
        return next(iter(by_kind.values()))
    return ", ".join(f"{kind} {origin}" for kind, origin in by_kind.items())


def _pinned(request: Request, sources: Sources, staged: Staged) -> Staged:
    """Check the pins, and say in the detail how far the files are pinned."""
    pinned = sources.releases.check(request, staged.sha256, staged.pin_origin, staged.places)
    if staged.pin_origin is None:
        return staged
    return replace(staged, detail=f"{staged.detail}; {'pinned' if pinned else 'not pinned'}")
