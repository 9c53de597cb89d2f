"""What can be asked for: a kind and a version.

Kinds: ``kubernetes``, ``etcd``, ``containerd``, ``runc``, ``busybox``, ``k3s``, ``k3s-images``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lab.model import UsageError, minor_of

ARCH = "linux-amd64"
OLDEST_MINOR = 34
KUBERNETES_COMPONENTS = (
    "kubelet",
    "kube-apiserver",
    "kube-scheduler",
    "kube-controller-manager",
    "kubectl",
)
MULTI_CALL = "hyperkube"
CONTAINERD_COMPONENTS = ("containerd", "containerd-shim-runc-v2", "ctr")
BUSYBOX_VERSION = "static"
"""Any busybox will do that needs no library: what is measured does not depend on its release."""
K3S_FILES = {"k3s": "k3s", "k3s-images": "k3s-airgap-images-amd64.tar.zst"}
"""What a k3s release calls the one file of each of its kinds for ARCH: the program, and the images that it brings."""

_K3S_VERSION = re.compile(r"v1\.\d+\.\d+\+k3s[1-9]\d*"), "v1.34.12+k3s1"

_VERSIONS = {
    "etcd": (re.compile(r"v3\.\d+\.\d+"), "v3.6.16"),
    # The lab's configuration of containerd is of version 3, which came with containerd 2.
    "containerd": (re.compile(r"v2\.\d+\.\d+"), "v2.1.9"),
    "runc": (re.compile(r"v1\.\d+\.\d+"), "v1.3.6"),
    "busybox": (re.compile(BUSYBOX_VERSION), BUSYBOX_VERSION),
    **dict.fromkeys(K3S_FILES, _K3S_VERSION),
}
"""Form of a version by kind, with an example; Kubernetes has rules of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One artifact. UsageError when kind or version is not one that the lab can install.

    Pod-level resources are on by default from Kubernetes 1.34, which is why older versions are refused.
    """

    kind: str
    version: str

    def __post_init__(self) -> None:
        if self.kind in _VERSIONS:
            form, example = _VERSIONS[self.kind]
            if form.fullmatch(self.version) is None:
                raise UsageError(f"{self.kind} version {self.version!r} is not of the form {example}")
            if self.kind in K3S_FILES:
                self._check_age()
            return
        if self.kind != "kubernetes":
            raise UsageError(f"artifact kind {self.kind!r} is unknown: use kubernetes, {', '.join(_VERSIONS)}")
        self._check_age()
        if "+" in self.version:
            raise UsageError(f"version {self.version} belongs to k3s, not to upstream: leave out the part from '+' on")

    def _check_age(self) -> None:
        if minor_of(self.version) < OLDEST_MINOR:
            raise UsageError(f"version {self.version} is too old; the oldest is v1.{OLDEST_MINOR}.0, name a later one")

    @property
    def name(self) -> str:
        """Name of the cache entry: ``kubernetes-v1.36.3-linux-amd64``."""
        return f"{self.kind}-{self.version}-{ARCH}"

    @property
    def components(self) -> tuple[str, ...]:
        """Executables that the request must give, by name."""
        if self.kind == "kubernetes":
            return KUBERNETES_COMPONENTS
        return CONTAINERD_COMPONENTS if self.kind == "containerd" else (K3S_FILES.get(self.kind, self.kind),)

    @property
    def single_file(self) -> str | None:
        """Name of the one executable that can hold all components (``hyperkube``, ``etcd``); None for containerd."""
        if self.kind == "containerd":
            return None
        return MULTI_CALL if self.kind == "kubernetes" else self.kind

    @property
    def brought_as(self) -> str:
        """What a folder given with --artifacts can hold of this request; the first of the names that are looked for."""
        if self.kind in K3S_FILES:
            return f"{self.version}/{K3S_FILES[self.kind]}"
        if self.single_file is None:
            return f"{self.name}.tar.gz"
        return f"{self.single_file}-{self.version}-{ARCH}"

    @property
    def separate_components(self) -> dict[str, str]:
        """Component name to file name when each component is a file of its own."""
        return {component: component for component in self.components}

    def __str__(self) -> str:
        return f"{self.kind} {self.version}"
