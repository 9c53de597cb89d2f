"""Versions as clusters and people write them. Pure."""

from __future__ import annotations

import re

from lab.model import UsageError

_VERSION = re.compile(r"v?1\.(\d{1,3})(?:\+|\.\d+.*|-.*)?", re.ASCII)


def minor_of_cluster(text: str) -> int:
    """36 for ``1.36``, ``v1.36.3``, ``1.36+`` and ``v1.36.3-gke.1100``; UsageError for anything else."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no Kubernetes version; give one such as 1.36 or v1.36.3")
    return int(match[1])
