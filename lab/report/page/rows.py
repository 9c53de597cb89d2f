"""One attempt as the readers of the stages get it: label, observation, raw texts. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.model import ParseError
from lab.parse import pods
from lab.report.comparability import AttemptRecord
from lab.report.page.raw import Evidence, RawFile, RawFiles, Ref, pair_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``label`` is the cell's short name, ``key`` its name as part of an id; ``texts`` the summary's row by title."""

    attempt: AttemptRecord
    label: str
    key: str
    observation: Mapping[str, Any]
    view: Mapping[str, Any]
    texts: Mapping[str, str]
    raw: RawFiles
    evidence: Evidence

    @property
    def columns(self) -> tuple[str, ...]:
        """Titles of the summary's row: pods in their order, for stages of pods."""
        return tuple(self.texts)

    def cite_pod(self, file: str, namespace: str, name: str, *path: str | int) -> Ref | None:
        """Lines of a part of one pod in a stored pod list."""
        found = self.raw[file]
        items = found.document.get("items") if isinstance(found.document, dict) else None
        for index, item in enumerate(items or []):
            meta = item.get("metadata", {})
            if (meta.get("namespace"), meta.get("name")) == (namespace, name):
                return self.evidence.cite_json(found, ("items", index, *path))
        return None

    def cite_pair(self, file: RawFile, line: int, key: str, value: Any) -> Ref | None:
        """A line of a node program's output for a key and value in it."""
        return self.evidence.cite(file, pair_text(key, value), line)

    def container_id(self, file: str, name: str) -> str | None:
        """Id of a pod's first container by a stored pod list."""
        try:
            pod = pods.parse_pods(self.raw[file].text).get(name)
        except ParseError:
            return None
        return None if pod is None else pods.container_id(pod)


def slug(text: str) -> str:
    """A text as part of an id: letters, digits, dots and dashes."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")
