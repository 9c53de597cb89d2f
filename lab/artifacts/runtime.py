"""The sources of a container runtime: containerd and runc as released, busybox from a folder or from this machine.

Loose files of these kinds come from a distribution's packages as often as from a release, so no pin is held against
them; an official archive is held to the official pins.
"""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

from lab.artifacts.cache import Progress, Staged
from lab.artifacts.download import check_base_url, fetch_file, fetch_listed_sha256, fetch_sha256
from lab.artifacts.files import (
    Unavailable,
    check_sum,
    copy_file,
    copy_stream,
    read_sums,
    sha256_file,
    static_elf_problem,
)
from lab.artifacts.request import ARCH, BUSYBOX_VERSION, Request
from lab.artifacts.sources import Sources, copy_separate, from_folder, given_folder
from lab.model import NodeError

BUSYBOX_PACKAGE = "busybox-static"


def archive_name(request: Request) -> str:
    """What containerd's project calls its archive: the version without its letter."""
    return f"containerd-{request.version.removeprefix('v')}-{ARCH}.tar.gz"


def containerd_from_folder(request: Request, sources: Sources, files: Path, progress: Progress) -> Staged:
    """An archive as released (also with the letter v in its name), else a folder of plain files.

    That folder is ``containerd-vX.Y.Z-linux-amd64`` or ``vX.Y.Z``.
    """
    folder = given_folder(sources)
    sums = read_sums(folder)
    for name in (request.brought_as, archive_name(request)):
        archive = folder / name
        if archive.is_file():
            check_sum(archive, name, sha256_file(archive), sums, f"{folder / 'SHA256SUMS'}")
            progress(f"{request}: unpacking {name}")
            return _unpacked(request, archive, files, origin="artifacts", place=str(archive))
    for name in (request.name, request.version):
        if all((folder / name / item).is_file() for item in request.components):
            return replace(copy_separate(request, folder / name, files, sums), pin_origin=None)
    raise Unavailable(
        f"{folder} has neither {request.brought_as}, nor {archive_name(request)}, nor a folder {request.name} with "
        f"{', '.join(request.components)}"
    )


def _unpacked(request: Request, archive: Path, files: Path, *, origin: str, place: str) -> Staged:
    """The three programs out of ``bin/`` of a released archive; NodeError when one is not there."""
    hashes: dict[str, str] = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                folder, _, name = member.name.removeprefix("./").rpartition("/")
                content = tar.extractfile(member)
                if folder == "bin" and name in request.components and name not in hashes and content is not None:
                    hashes[name] = copy_stream(content, files / name)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise NodeError(f"{place}: not a whole .tar.gz file: {error}") from error
    missing = [name for name in request.components if name not in hashes]
    if missing:
        raise NodeError(f"{place}: holds no bin/{missing[0]}")
    return Staged(
        components=request.separate_components,
        sha256=hashes,
        places=dict.fromkeys(request.components, place),
        origin=origin,
        pin_origin="official",
        detail=place,
    )


def containerd_from_download(request: Request, sources: Sources, files: Path, progress: Progress) -> Staged:
    """The official archive, checked against the .sha256sum beside it."""
    url = f"{_release(sources.containerd_mirror, request, sources)}/{archive_name(request)}"
    expected = fetch_sha256(f"{url}.sha256sum", sources.limits)
    archive = files / archive_name(request)
    progress(f"{request}: downloading {archive.name}")
    fetch_file(url, archive, expected, f"{url}.sha256sum", sources.limits, progress)
    staged = _unpacked(request, archive, files, origin="download", place=url)
    archive.unlink()
    return staged


def runc_from_folder(request: Request, sources: Sources, files: Path, progress: Progress) -> Staged:
    """``runc-vX-linux-amd64`` (plain or .xz), or ``vX/runc``."""
    return replace(from_folder(request, sources, files, progress), pin_origin=None)


def runc_from_download(request: Request, sources: Sources, files: Path, progress: Progress) -> Staged:
    """The official static binary, checked against the release's runc.sha256sum."""
    base = _release(sources.runc_mirror, request, sources)
    name, sums_url = f"runc.{ARCH.rpartition('-')[2]}", f"{base}/runc.sha256sum"
    expected = fetch_listed_sha256(sums_url, name, sources.limits)
    progress(f"{request}: downloading {name}")
    fetch_file(f"{base}/{name}", files / "runc", expected, sums_url, sources.limits, progress)
    (files / "runc").chmod(0o755)
    return Staged(
        components=request.separate_components,
        sha256={"runc": expected},
        places={"runc": f"{base}/{name}"},
        origin="download",
        pin_origin="official",
        detail=f"{base}/{name}",
    )


def _release(mirror: str, request: Request, sources: Sources) -> str:
    if not sources.download:
        raise Unavailable("downloads are switched off")
    return f"{check_base_url(mirror)}/{request.version}"


def busybox_from_folder(request: Request, sources: Sources, files: Path, progress: Progress) -> Staged:
    """The one file ``busybox`` or ``busybox-*`` in the folder.

    NodeError when there are several, or when it is not static.
    """
    del progress
    folder = given_folder(sources)
    found = sorted(path for path in folder.glob("busybox*") if path.is_file() and _is_busybox(path.name))
    if not found:
        raise Unavailable(f"{folder} has no file busybox-*")
    if len(found) > 1:
        raise NodeError(f"{folder} has several: {', '.join(path.name for path in found)}; leave one")
    problem = static_elf_problem(found[0])
    if problem:
        raise NodeError(f"{found[0]} is not a static executable for {ARCH}: {problem}")
    staged = _busybox(request, found[0], files, "artifacts")
    check_sum(found[0], found[0].name, staged.sha256["busybox"], read_sums(folder), f"{folder / 'SHA256SUMS'}")
    return staged


def _is_busybox(name: str) -> bool:
    return name == "busybox" or name.startswith("busybox-")


def busybox_from_machine(request: Request, sources: Sources, files: Path, progress: Progress) -> Staged:
    """This machine's own, when it is a static executable; Unavailable names the package otherwise."""
    fix = f"install the package {BUSYBOX_PACKAGE} on this machine"
    if not sources.busybox.is_file():
        raise Unavailable(f"{sources.busybox} does not exist: {fix}")
    problem = static_elf_problem(sources.busybox)
    if problem:
        raise Unavailable(f"{sources.busybox} is not a static executable for {ARCH} ({problem}): {fix}")
    progress(f"{request}: taking {sources.busybox}")
    return _busybox(request, sources.busybox, files, "machine")


def _busybox(request: Request, source: Path, files: Path, origin: str) -> Staged:
    return Staged(
        components=request.separate_components,
        sha256={"busybox": copy_file(source, files / "busybox")},
        places={"busybox": str(source)},
        origin=origin,
        pin_origin=None,
        detail=str(source),
    )


def runtime_requests(sources: Sources) -> tuple[Request, ...]:
    """What a node without a runtime needs; NodeError when releases.toml does not name the versions."""
    releases = sources.releases
    if releases.containerd is None or releases.runc is None:
        raise NodeError("releases.toml names no versions of containerd and runc: add them to its table [runtime]")
    return (
        Request(kind="containerd", version=releases.containerd),
        Request(kind="runc", version=releases.runc),
        Request(kind="busybox", version=BUSYBOX_VERSION),
    )
