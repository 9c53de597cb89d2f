"""releases.toml: versions known by default and the sha256 that a file of a given origin must have."""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lab.artifacts.files import WrongHash
from lab.artifacts.request import ARCH, Request
from lab.model import UsageError, k3s_release

ORIGINS = ("module-build", "official")
DEFAULT_PATH = Path(__file__).resolve().parent.parent / "releases.toml"

_SHA256 = re.compile("[0-9a-f]{64}")
_WORD = re.compile("[A-Za-z0-9][A-Za-z0-9.+_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """The sha256 (lower-case hex) of one executable of one origin. UsageError when a field is malformed."""

    kind: str
    version: str
    component: str
    arch: str
    sha256: str
    origin: str

    def __post_init__(self) -> None:
        for name in ("kind", "version", "component", "arch"):
            value = getattr(self, name)
            if not isinstance(value, str) or _WORD.fullmatch(value) is None:
                raise UsageError(f"pin: {name} {value!r} is not a plain word")
        if self.origin not in ORIGINS:
            raise UsageError(f"pin: origin {self.origin!r} is none of {', '.join(ORIGINS)}")
        if not isinstance(self.sha256, str) or _SHA256.fullmatch(self.sha256) is None:
            raise UsageError(f"pin: sha256 {self.sha256!r} is not 64 lower-case hexadecimal digits")

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What the hash belongs to; at most one pin for each."""
        return (self.kind, self.version, self.component, self.arch, self.origin)

    def as_toml(self) -> str:
        """One ``[[pin]]`` table, ended by a line end."""
        lines = [f'{item.name} = "{getattr(self, item.name)}"' for item in fields(self)]
        return "\n".join(["[[pin]]", *lines, ""])


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """releases.toml as read: default Kubernetes versions, the etcd version, all pins.

    ``containerd`` and ``runc`` are what the lab brings to a node that has none; None when the file names none.
    ``k3s`` are the default releases of k3s.
    """

    known: tuple[str, ...]
    etcd: str
    pins: tuple[Pin, ...]
    containerd: str | None = None
    runc: str | None = None
    k3s: tuple[str, ...] = ()

    def find(self, request: Request, component: str, origin: str) -> Pin | None:
        """The pin of one file of ``request``, or None when there is none."""
        key = (request.kind, request.version, component, ARCH, origin)
        return next((pin for pin in self.pins if pin.key == key), None)

    def check(self, request: Request, hashes: Mapping[str, str], origin: str | None, places: Mapping[str, str]) -> bool:
        """Compare file name to sha256 with the pins of ``origin``; True when every file has one.

        Raises WrongHash for the first difference, naming the file's entry in ``places``. ``origin`` None (a
        build of the user's own) has no pins.
        """
        if origin is None:
            return False
        pinned = 0
        for component, actual in hashes.items():
            pin = self.find(request, component, origin)
            if pin is None:
                continue
            pinned += 1
            if pin.sha256 != actual:
                authority = f"the {origin} pin for {request} in releases.toml"
                raise WrongHash(places[component], pin.sha256, actual, authority)
        return pinned == len(hashes)


def load_releases(path: Path | None = None) -> Releases:
    """Read a releases.toml (the packaged one by default). UsageError names the file and what is wrong."""
    path = DEFAULT_PATH if path is None else path
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as releases: {error}") from error
    return _from_data(data, path)


def _from_data(data: Mapping[str, Any], path: Path) -> Releases:
    upstream = data.get("upstream")
    if not isinstance(upstream, dict) or not isinstance(upstream.get("known"), list):
        raise UsageError(f"{path}: needs a table [upstream] with the list 'known' and the text 'etcd'")
    known = tuple(Request(kind="kubernetes", version=str(version)).version for version in upstream["known"])
    etcd = Request(kind="etcd", version=str(upstream.get("etcd"))).version
    runtime = _runtime(data.get("runtime", {}), path)
    expected = {item.name for item in fields(Pin)}
    pins: dict[tuple[str, str, str, str, str], Pin] = {}
    for table in data.get("pin", []):
        if not isinstance(table, dict) or set(table) != expected:
            wanted = ", ".join(sorted(expected))
            raise UsageError(f"{path}: a [[pin]] needs exactly {wanted}; found {table!r}")
        try:
            pin = Pin(**table)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error
        if pin.key in pins:
            raise UsageError(f"{path}: two pins for {' '.join(pin.key)}")
        pins[pin.key] = pin
    return Releases(known=known, etcd=etcd, pins=tuple(pins.values()), k3s=_k3s(data.get("k3s", {}), path), **runtime)


def _runtime(table: object, path: Path) -> dict[str, str]:
    """The versions in the table [runtime], by kind."""
    if not isinstance(table, dict) or not set(table) <= {"containerd", "runc"}:
        raise UsageError(f"{path}: the table [runtime] takes the texts 'containerd' and 'runc'; found {table!r}")
    return {kind: Request(kind=kind, version=str(version)).version for kind, version in table.items()}


def _k3s(table: object, path: Path) -> tuple[str, ...]:
    """The releases in the table [k3s]."""
    known = table.get("known", []) if isinstance(table, dict) and set(table) <= {"known"} else None
    if not isinstance(known, list):
        raise UsageError(f"{path}: the table [k3s] takes the list 'known'; found {table!r}")
    return tuple(Request(kind="k3s", version=k3s_release(str(version))).version for version in known)


def add_pin(path: Path, pin: Pin) -> bool:
    """Add one pin to a releases.toml; False when it is there already.

    A different hash for the same file is a UsageError that shows both: a release that changes after it was
    published is never taken silently. The file is replaced whole.
    """
    for known in load_releases(path).pins:
        if known.key == pin.key:
            if known.sha256 == pin.sha256:
                return False
            raise UsageError(
                f"{path}: the pin for {' '.join(pin.key)} is sha256 {known.sha256}, "
                f"the new file has {pin.sha256}. A published release must not change: find out which is "
                "right, then edit the file by hand"
            )
    text = path.read_text(encoding="utf-8")
    separator = "\n" if text.endswith("\n") else "\n\n"
    _replace_text(path, text + separator + pin.as_toml())
    return True


def pins_for(request: Request, hashes: Mapping[str, str], origin: str) -> list[Pin]:
    """Pins to add for the files of a request: file name to sha256, all of one origin."""
    return [
        Pin(
            kind=request.kind,
            version=request.version,
            component=component,
            arch=ARCH,
            sha256=sha256,
            origin=origin,
        )
        for component, sha256 in sorted(hashes.items())
    ]


def _replace_text(path: Path, text: str) -> None:
    mode = path.stat().st_mode & 0o777
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
