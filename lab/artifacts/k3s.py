"""The sources of k3s: the files of a release, from a folder or by download. Nobody can build a release's own bytes.

A file is compared with the list that its release brings, and with the pin in releases.toml when there is one: a list
that changed together with its files would agree with itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lab.artifacts.cache import Progress, Staged
from lab.artifacts.download import check_base_url, fetch_file, fetch_listed_sha256
from lab.artifacts.files import Unavailable, WrongHash, check_sum, copy_file, parse_sums, read_sums
from lab.artifacts.request import K3S_FILES, Request
from lab.artifacts.sources import Sources, given_folder
from lab.model import NodeError

SUMS = "sha256sum-amd64.txt"
"""The release's own list of what its files for amd64 hash to."""

PIN_ORIGIN = "official"


def k3s_from_folder(request: Request, sources: Sources, files: Path, progress: Progress) -> Staged:
    """From ``DIR/<release>/`` with the file names of the release, checked by the release's list beside it.

    Without that list by the folder's SHA256SUMS, if it has one.
    """
    del progress
    folder = given_folder(sources)
    name = request.components[0]
    source = folder / request.brought_as
    if not source.is_file():
        raise Unavailable(f"{folder} has no {request.brought_as}")
    listed, listed_name = source.parent / SUMS, name
    if listed.is_file():
        sums: dict[str, str] | None = parse_sums(_read(listed), str(listed))
    else:
        listed, listed_name, sums = folder / "SHA256SUMS", request.brought_as, read_sums(folder)
    actual = copy_file(source, files / name)
    check_sum(source, listed_name, actual, sums, str(listed))
    detail = str(source) if sums is None else f"{source}, checked against {listed.name}"
    return _staged(request, actual, "artifacts", str(source), detail)


def k3s_from_download(request: Request, sources: Sources, files: Path, progress: Progress) -> Staged:
    """From the official release or a mirror with the same layout.

    A list that contradicts the pin is a WrongHash with both hashes, before anything large is fetched.
    """
    if not sources.download:
        raise Unavailable("downloads are switched off")
    name = request.components[0]
    base = f"{check_base_url(sources.k3s_mirror)}/{request.version}"
    sums_url, url = f"{base}/{SUMS}", f"{base}/{name}"
    expected = fetch_listed_sha256(sums_url, name, sources.limits)
    pin = sources.releases.find(request, name, PIN_ORIGIN)
    if pin is not None and pin.sha256 != expected:
        authority = f"the {PIN_ORIGIN} pin for {request} in releases.toml"
        raise WrongHash(f"{url} by {SUMS}", pin.sha256, expected, authority)
    progress(f"{request}: downloading {name}")
    fetch_file(url, files / name, expected, sums_url, sources.limits, progress)
    (files / name).chmod(0o755)
    return _staged(request, expected, "download", url, url)


def _staged(request: Request, sha256: str, origin: str, place: str, detail: str) -> Staged:
    name = request.components[0]
    return Staged(
        components=request.separate_components,
        sha256={name: sha256},
        places={name: place},
        origin=origin,
        pin_origin=PIN_ORIGIN,
        detail=detail,
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NodeError(f"{path}: cannot be read: {error}") from error


K3S_STEPS: Mapping[str, tuple[tuple[str, Callable[[Request, Sources, Path, Progress], Staged]], ...]] = dict.fromkeys(
    K3S_FILES, (("artifacts folder", k3s_from_folder), ("download", k3s_from_download))
)
"""What to try for each kind, in this order."""
