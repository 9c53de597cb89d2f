"""All providers by name, and how each is made from what the command line and the environment say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab.config import NodeOptions, token_of
from lab.providers.contract import Provider, Site
from lab.providers.digitalocean.provider import DigitalOceanProvider
from lab.providers.own_host.provider import OwnHostProvider
from lab.providers.qemu.provider import QemuProvider

END_POINT_VARIABLE = "LAB_DIGITALOCEAN_API"
ADDRESS_VARIABLE = "LAB_PUBLIC_ADDRESS_URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What providers are made of. ``environ`` is read for tokens and for end points only."""

    cache: Path
    progress: Callable[[str], None]
    nodes: NodeOptions = field(default_factory=NodeOptions)
    environ: Mapping[str, str] = field(default_factory=dict)


def _qemu(setup: Setup) -> Provider:
    return QemuProvider(setup.cache, setup.progress, ssh_port=setup.nodes.ssh_port)


def _digitalocean(setup: Setup) -> Provider:
    return DigitalOceanProvider(
        setup.cache,
        setup.progress,
        token=token_of(setup.environ),
        options=setup.nodes,
        end_point=setup.environ.get(END_POINT_VARIABLE) or None,
        address_url=setup.environ.get(ADDRESS_VARIABLE) or None,
    )


def _own_host(setup: Setup) -> Provider:
    return OwnHostProvider(setup.cache, setup.progress, options=setup.nodes)


SITES: dict[str, Site] = {
    "qemu": QemuProvider.site,
    "digitalocean": DigitalOceanProvider.site,
    "ssh": OwnHostProvider.site,
}
"""What the nodes of each are like; known without making a provider."""

PROVIDERS: dict[str, Callable[[Setup], Provider]] = {
    "qemu": _qemu,
    "digitalocean": _digitalocean,
    "ssh": _own_host,
}
