"""The places an artifact can come from. Each fills a staging folder or raises Unavailable with its reason."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lab.artifacts.cache import Progress, Staged
from lab.artifacts.download import Limits, check_base_url, fetch_file, fetch_listed_sha256, fetch_sha256
from lab.artifacts.files import (
    Unavailable,
    WrongHash,
    check_sum,
    copy_file,
    copy_stream,
    read_sums,
    sha256_file,
    unpack_xz,
)
from lab.artifacts.pins import Releases
from lab.artifacts.request import ARCH, Request
from lab.model import NodeError, UsageError

KUBERNETES_MIRROR = "https://dl.k8s.io/release"
ETCD_MIRROR = "https://github.com/etcd-io/etcd/releases/download"
CONTAINERD_MIRROR = "https://github.com/containerd/containerd/releases/download"
RUNC_MIRROR = "https://github.com/opencontainers/runc/releases/download"
K3S_MIRROR = "https://github.com/k3s-io/k3s/releases/download"


class Builder(Protocol):
    """Builds the executables of a request."""

    def __call__(self, request: Request, output: Path, progress: Progress) -> str:
        """Return how it was built, in a few words; NodeError when it cannot be built.

        ``output`` is the file to write; for a request without a single file, the folder that takes its components.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where to look, in this order: ``cache``, ``folder``, download (when ``download``), ``builder``.

    ``lock_timeout_s`` is how long to wait for another run that is preparing the same artifact. ``busybox`` is this
    machine's own, taken when a folder holds none: there is no official release of it to download.
    """

    cache: Path
    releases: Releases
    folder: Path | None = None
    download: bool = True
    builder: Builder | None = None
    kubernetes_mirror: str = KUBERNETES_MIRROR
    etcd_mirror: str = ETCD_MIRROR
    containerd_mirror: str = CONTAINERD_MIRROR
    runc_mirror: str = RUNC_MIRROR
    k3s_mirror: str = K3S_MIRROR
    busybox: Path = Path("/bin/busybox")
    limits: Limits = field(default_factory=Limits)
    lock_timeout_s: float = 3600.0

    def __post_init__(self) -> None:
        if self.folder is not None and not self.folder.is_dir():
            raise UsageError(f"--artifacts {self.folder}: no such folder; name the one that holds the binaries")
        mirrors = (self.kubernetes_mirror, self.etcd_mirror, self.containerd_mirror, self.runc_mirror, self.k3s_mirror)
        for mirror in mirrors:
            check_base_url(mirror)

    @classmethod
    def from_environment(
        cls,
        environ: Mapping[str, str],
        *,
        cache: Path,
        releases: Releases,
        folder: Path | None = None,
        download: bool = True,
        builder: Builder | None = None,
    ) -> Sources:
        """Defaults from LAB_ARTIFACTS, LAB_{KUBERNETES,ETCD,CONTAINERD,RUNC,K3S}_MIRROR; a given ``folder`` wins."""
        if folder is None and environ.get("LAB_ARTIFACTS"):
            folder = Path(environ["LAB_ARTIFACTS"])
            if not folder.is_dir():
                raise UsageError(f"LAB_ARTIFACTS={folder}: no such folder; name the one that holds the binaries")
        return cls(
            cache=cache,
            releases=releases,
            folder=folder,
            download=download,
            builder=builder,
            kubernetes_mirror=environ.get("LAB_KUBERNETES_MIRROR") or KUBERNETES_MIRROR,
            etcd_mirror=environ.get("LAB_ETCD_MIRROR") or ETCD_MIRROR,
            containerd_mirror=environ.get("LAB_CONTAINERD_MIRROR") or CONTAINERD_MIRROR,
            runc_mirror=environ.get("LAB_RUNC_MIRROR") or RUNC_MIRROR,
            k3s_mirror=environ.get("LAB_K3S_MIRROR") or K3S_MIRROR,
        )


def from_folder(request: Request, sources: Sources, files: Path, progress: Progress) -> Staged:
    """From ``--artifacts DIR``: one executable (plain or .xz), or the official ones in ``DIR/<version>/``."""
    folder = given_folder(sources)
    sums = read_sums(folder)
    authority = f"{folder / 'SHA256SUMS'}"
    name, single = request.brought_as, request.single_file or request.kind
    plain, packed = folder / name, folder / f"{name}.xz"
    target = files / single
    if plain.is_file() or packed.is_file():
        if plain.is_file():
            source, actual = str(plain), copy_file(plain, target)
        else:
            check_sum(packed, packed.name, sha256_file(packed), sums, authority)
            progress(f"{request}: unpacking {packed.name}")
            source, actual = f"{packed} (unpacked)", unpack_xz(packed, target)
        check_sum(source, name, actual, sums, authority)
        return Staged(
            components=dict.fromkeys(request.components, single),
            sha256={single: actual},
            places={single: source},
            origin="artifacts",
            pin_origin="module-build",
            detail=f"{source}{'' if sums is None else ', checked against its SHA256SUMS'}",
        )
    separate = folder / request.version
    missing = [item for item in request.components if not (separate / item).is_file()]
    if missing:
        raise Unavailable(f"{folder} has neither {name}, nor {name}.xz, nor {request.version}/{missing[0]}")
    return copy_separate(request, separate, files, sums)


def given_folder(sources: Sources) -> Path:
    """The folder of --artifacts; Unavailable without one."""
    if sources.folder is None:
        raise Unavailable("no folder given (--artifacts DIR or LAB_ARTIFACTS)")
    return sources.folder


def copy_separate(request: Request, separate: Path, files: Path, sums: dict[str, str] | None) -> Staged:
    """Components that are a file each in a folder within that of --artifacts; SHA256SUMS stands beside that folder."""
    hashes: dict[str, str] = {}
    for item in request.components:
        hashes[item] = copy_file(separate / item, files / item)
        authority = f"{separate.parent / 'SHA256SUMS'}"
        check_sum(separate / item, f"{separate.name}/{item}", hashes[item], sums, authority)
    return Staged(
        components=request.separate_components,
        sha256=hashes,
        places={item: str(separate / item) for item in request.components},
        origin="artifacts",
        pin_origin="official",
        detail=f"{separate}{'' if sums is None else ', checked against SHA256SUMS'}",
    )


def from_download(request: Request, sources: Sources, files: Path, progress: Progress) -> Staged:
    """From the official release, or a mirror of it with the same layout."""
    if not sources.download:
        raise Unavailable("downloads are switched off")
    if request.kind == "etcd":
        return _download_etcd(request, sources, files, progress)
    base = f"{check_base_url(sources.kubernetes_mirror)}/{request.version}/bin/{ARCH.replace('-', '/')}"
    hashes: dict[str, str] = {}
    for component in request.components:
        url = f"{base}/{component}"
        pin = sources.releases.find(request, component, "official")
        if pin is not None:
            expected, authority = pin.sha256, "the official pin in releases.toml"
        else:
            expected, authority = fetch_sha256(f"{url}.sha256", sources.limits), f"{url}.sha256"
        progress(f"{request}: downloading {component}")
        fetch_file(url, files / component, expected, authority, sources.limits, progress)
        (files / component).chmod(0o755)
        hashes[component] = expected
    return Staged(
        components=request.separate_components,
        sha256=hashes,
        places={component: f"{base}/{component}" for component in request.components},
        origin="download",
        pin_origin="official",
        detail=base,
    )


def _download_etcd(request: Request, sources: Sources, files: Path, progress: Progress) -> Staged:
    base = f"{check_base_url(sources.etcd_mirror)}/{request.version}"
    name = f"etcd-{request.version}-{ARCH}"
    sums_url = f"{base}/SHA256SUMS"
    archive = files / f"{name}.tar.gz"
    expected = fetch_listed_sha256(sums_url, archive.name, sources.limits)
    progress(f"{request}: downloading {archive.name}")
    url = f"{base}/{archive.name}"
    fetch_file(url, archive, expected, sums_url, sources.limits, progress)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            member = tar.extractfile(f"{name}/etcd")
            if member is None:
                raise NodeError(f"{url}: {name}/etcd is not a file")
            actual = copy_stream(member, files / "etcd")
    except (KeyError, tarfile.TarError, EOFError) as error:
        raise NodeError(f"{url}: no {name}/etcd could be unpacked: {error}") from error
    archive.unlink()
    return Staged(
        components=request.separate_components,
        sha256={"etcd": actual},
        places={"etcd": url},
        origin="download",
        pin_origin="official",
        detail=url,
    )


def from_build(request: Request, sources: Sources, files: Path, progress: Progress) -> Staged:
    """Built on this machine from the published Go modules."""
    if sources.builder is None:
        raise Unavailable("building is switched off")
    single = request.single_file
    components = request.separate_components if single is None else dict.fromkeys(request.components, single)
    try:
        detail = sources.builder(request, files if single is None else files / single, progress)
    except WrongHash:
        raise
    except NodeError as error:
        raise Unavailable(str(error)) from error
    hashes: dict[str, str] = {}
    for name in dict.fromkeys(components.values()):
        target = files / name
        if not target.is_file():
            raise NodeError(f"building {request}: the build ended without writing {name}")
        target.chmod(0o755)
        hashes[name] = sha256_file(target)
    return Staged(
        components=components,
        sha256=hashes,
        places={},
        origin="build",
        pin_origin=None,
        detail=detail,
    )
