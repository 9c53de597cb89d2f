"""What can be asked for: a kind (``kubernetes`` or ``etcd``) and a version."""

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

_ETCD_VERSION = re.compile(r"v3\.\d+\.\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One artifact. UsageError when kind or version is not one that the lab can install.

    Pod-level resources are on by default from Kubernetes 1.34, which is why older versions are refused.
    """

    kind: str
    version: str

    def __post_init__(self) -> None:
        if self.kind == "etcd":
            if _ETCD_VERSION.fullmatch(self.version) is None:
                raise UsageError(f"etcd version {self.version!r} is not of the form v3.6.16")
            return
        if self.kind != "kubernetes":
            raise UsageError(f"artifact kind {self.kind!r} is unknown: use kubernetes or etcd")
        if minor_of(self.version) < OLDEST_MINOR:
            raise UsageError(f"version {self.version} is too old; the oldest is v1.{OLDEST_MINOR}.0, name a later one")
        if "+" in self.version:
            raise UsageError(f"version {self.version} belongs to k3s, not to upstream: leave out the part from '+' on")

    @property
    def name(self) -> str:
        """Name of the cache entry: ``kubernetes-v1.36.3-linux-amd64``."""
        return f"{self.kind}-{self.version}-{ARCH}"

    @property
    def components(self) -> tuple[str, ...]:
        """Executables that the request must give, by name."""
        return ("etcd",) if self.kind == "etcd" else KUBERNETES_COMPONENTS

    @property
    def single_file(self) -> str:
        """Name of the one executable that holds all components: ``hyperkube`` or ``etcd``."""
        return "etcd" if self.kind == "etcd" else MULTI_CALL

    @property
    def single_file_components(self) -> dict[str, str]:
        """Component name to file name when one executable holds them all."""
        return dict.fromkeys(self.components, self.single_file)

    @property
    def separate_components(self) -> dict[str, str]:
        """Component name to file name when each component is a file of its own."""
        return {component: component for component in self.components}

    def __str__(self) -> str:
        return f"{self.kind} {self.version}"
