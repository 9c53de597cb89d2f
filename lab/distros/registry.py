"""All distributions by name."""

from __future__ import annotations

from collections.abc import Callable

from lab.distros.contract import Distro
from lab.distros.upstream.distro import Upstream

DISTROS: dict[str, Callable[..., Distro]] = {"upstream": Upstream}
