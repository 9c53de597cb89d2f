"""Verified files for a run: Kubernetes, etcd, a container runtime and k3s, from cache, folder, download or build.

Start at :func:`resolve`. Every file is hashed on every use, so that a record can name exactly what ran.
"""

from __future__ import annotations

from lab.artifacts.cache import Binaries
from lab.artifacts.download import Limits
from lab.artifacts.files import Unavailable, WrongHash
from lab.artifacts.pins import Pin, Releases, add_pin, load_releases, pins_for
from lab.artifacts.request import K3S_FILES, KUBERNETES_COMPONENTS, Request
from lab.artifacts.resolve import (
    describe_origin,
    resolve,
    resolve_k3s,
    resolve_k3s_images,
    resolve_runtime,
    resolve_upstream,
)
from lab.artifacts.runtime import runtime_requests
from lab.artifacts.sources import Builder, Sources
from lab.model import k3s_release

__all__ = [
    "K3S_FILES",
    "KUBERNETES_COMPONENTS",
    "Binaries",
    "Builder",
    "Limits",
    "Pin",
    "Releases",
    "Request",
    "Sources",
    "Unavailable",
    "WrongHash",
    "add_pin",
    "describe_origin",
    "k3s_release",
    "load_releases",
    "pins_for",
    "resolve",
    "resolve_k3s",
    "resolve_k3s_images",
    "resolve_runtime",
    "resolve_upstream",
    "runtime_requests",
]
