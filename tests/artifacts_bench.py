"""What the tests of artifacts share: one small release, its pins and sources, and builders that need no Go."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.artifacts import Builder, Limits, Pin, Releases, Request, Sources, add_pin, load_releases

VERSION = "v1.36.9"
KUBERNETES = Request(kind="kubernetes", version=VERSION)
ETCD = Request(kind="etcd", version="v3.6.99")
BODY = b"#!/bin/sh\necho Kubernetes\n" * 50
ENOUGH = Limits(connect_s=20.0, read_s=20.0, whole_s=60.0)
"""Only a transfer that is stuck reaches them."""

SHORT = Limits(connect_s=20.0, read_s=0.3, whole_s=60.0)
"""For a transfer that must be given up; a stalled machine reaches them in a good one, too."""


def sha(content: bytes) -> str:
    """Sha256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def releases(tmp_path: Path, *pins: Pin) -> Releases:
    """The release file of a test's folder, made when it is not there, with these pins added to it."""
    path = tmp_path / "releases.toml"
    if not path.exists():
        path.write_text(f'[upstream]\nknown = ["{VERSION}"]\netcd = "{ETCD.version}"\n')
    for item in pins:
        add_pin(path, item)
    return load_releases(path)


def sources(tmp_path: Path, *pins: Pin, **rest: Any) -> Sources:
    """A cache below the test's folder and nothing else, unless ``rest`` names more."""
    options = {"download": False, "limits": ENOUGH, "lock_timeout_s": 60.0} | rest
    return Sources(cache=tmp_path / "cache", releases=releases(tmp_path, *pins), **options)


def quiet(_: str) -> None:
    """Take a progress line and drop it."""


def left_in(tmp_path: Path) -> list[str]:
    """Names in the cache, locks left out."""
    return sorted(p.name for p in (tmp_path / "cache" / "artifacts").iterdir() if not p.name.endswith(".lock"))


def built(content: bytes = BODY) -> Builder:
    """A builder whose result is ``content``."""

    def builder(request, output, progress):
        output.write_bytes(content)
        return "built here"

    return builder


def must_not_build(request: Request, output: Path, progress: Callable[[str], None]) -> str:
    """A builder that fails the test which comes to it."""
    pytest.fail("a wrong hash must not lead to another source")
