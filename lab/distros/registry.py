"""All distributions by name, and how each is made from where binaries come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lab.artifacts import Sources, resolve_k3s, resolve_k3s_images, resolve_runtime, resolve_upstream
from lab.distros.contract import Distro, Instead
from lab.distros.k3s import settings
from lab.distros.k3s.distro import K3s
from lab.distros.upstream import runtime
from lab.distros.upstream.distro import Upstream
from lab.providers.contract import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What distributions are made of. ``scripts`` are the node programs, by file name.

    ``own_images``: bring a k3s release's archive of images, and leave the image of sandboxes to k3s.
    """

    sources: Sources
    scripts: Mapping[str, str]
    progress: Callable[[str], None]
    own_images: bool = False


def make_upstream(setup: Setup) -> Distro:
    """Upstream Kubernetes, with a container runtime for nodes that bring none."""
    return Upstream(
        resolve=lambda version: resolve_upstream(version, setup.sources, setup.progress),
        resolve_runtime=lambda: resolve_runtime(setup.sources, setup.progress),
        scripts=setup.scripts,
        progress=setup.progress,
    )


def make_k3s(setup: Setup) -> Distro:
    """k3s: one process, with its own runtime inside."""
    return K3s(
        resolve=lambda version: resolve_k3s(version, setup.sources, setup.progress),
        # Some 200 MB that nothing needs, unless a release refuses the lab's own image.
        resolve_images=(lambda version: resolve_k3s_images(version, setup.sources, setup.progress))
        if setup.own_images
        else None,
        scripts=setup.scripts,
        progress=setup.progress,
    )


INSTEAD: Mapping[str, Callable[[Site], Instead]] = {
    "upstream": runtime.instead,
    "k3s": lambda site: settings.INSTEAD,
}
"""By distribution: the node programs that take the place of those that stages name, on nodes of a kind."""

DISTROS: dict[str, Callable[[Setup], Distro]] = {"upstream": make_upstream, "k3s": make_k3s}
