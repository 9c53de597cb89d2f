"""All providers by name."""

from __future__ import annotations

from collections.abc import Callable

from lab.providers.contract import Provider
from lab.providers.qemu.provider import QemuProvider

PROVIDERS: dict[str, Callable[..., Provider]] = {"qemu": QemuProvider}
