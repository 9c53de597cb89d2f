"""Names and tags in the cloud: whose a resource is and when it expires is written on it, and decided before it is made.

Pure. A name is ``nlab-<node id>-x<Unix seconds>``; its tag says the same in the letters that tags allow. Nothing that
does not carry both, each in exactly this form, is ever removed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

PREFIX = "nlab-"
TAG_PREFIX = "node-lab:"

_NAME = re.compile(r"nlab-([a-z0-9][a-z0-9.-]*[a-z0-9])-x([1-9][0-9]{9})")
_TAG = re.compile(r"node-lab:nlab-[a-z0-9][a-z0-9_-]*[a-z0-9]-x([1-9][0-9]{9})")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CloudName:
    """One node's name in the cloud. ``expires_s`` is in whole Unix seconds."""

    node_id: str
    expires_s: int

    def __str__(self) -> str:
        return f"{PREFIX}{self.node_id}-x{self.expires_s}"

    @property
    def expiry(self) -> str:
        """The expiry for people, in UTC."""
        return f"{datetime.fromtimestamp(self.expires_s, UTC):%Y-%m-%dT%H:%M:%SZ}"

    @property
    def tag(self) -> str:
        """The tag of the droplet and the firewall, and the comment of the key."""
        return f"{TAG_PREFIX}{str(self).replace('.', '_')}"


def parse(text: str) -> CloudName | None:
    """The name, or None for one that is not ours."""
    match = _NAME.fullmatch(text)
    return None if match is None else CloudName(node_id=match[1], expires_s=int(match[2]))


def expiry_of_tag(text: str) -> int | None:
    """Unix seconds at which a tag of ours expires; None for another tag."""
    match = _TAG.fullmatch(text)
    return None if match is None else int(match[1])
