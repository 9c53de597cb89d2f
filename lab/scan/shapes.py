"""The table of shapes and classes in docs/scan.md, from the classifier. Pure."""

from __future__ import annotations

from typing import Any

from lab.qos import Behaviour, classify

_SOME = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "500m", "memory": "512Mi"}}
_EQUAL = {"limits": {"cpu": "200m", "memory": "256Mi"}}
_ABSENT: Any = object()

_CONTAINERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("nothing", {}), ("requests below limits", _SOME), ("limits alone", _EQUAL),
)  # fmt: skip
_BLOCKS: tuple[tuple[str, Any], ...] = (
    ("no key", _ABSENT),
    ("`null`", None),
    ("`{}`", {}),
    ("`{requests: {}}`", {"requests": {}}),
    ("`{limits: {}}`", {"limits": {}}),
    ("`{requests: {}, limits: {}}`", {"requests": {}, "limits": {}}),
    ("`{claims: []}`", {"claims": []}),
    ("requests below limits", _SOME),
    ("limits alone", _EQUAL),
    ("requests alone", {"requests": _EQUAL["limits"]}),
)
_VERSIONS = (Behaviour.BEFORE_1_34, Behaviour.EMPTY_BLOCK_SHADOWS, Behaviour.FIXED, Behaviour.FIX_OFF)


def shapes() -> list[tuple[str, str, dict[str, Any]]]:
    """Every shape of the table: the block and the container's resources in words, and the pod spec."""
    found = []
    for block_text, block in _BLOCKS:
        for own_text, own in _CONTAINERS:
            spec: dict[str, Any] = {"containers": [{"name": "app", "image": "registry.example/app", "resources": own}]}
            if block is not _ABSENT:
                spec["resources"] = block
            found.append((block_text, own_text, spec))
    return found


def shape_table() -> str:
    """The table as Markdown; a class of 1.34-1.36 that differs from that of 1.37 is bold."""
    heads = ["pod-level block", "each container", *(version.label for version in _VERSIONS)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for block, own, spec in shapes():
        classes = {version: classify(spec, version) for version in _VERSIONS}
        shown = [
            f"**{found}**" if found != classes[Behaviour.FIXED] and version is not Behaviour.BEFORE_1_34 else found
            for version, found in classes.items()
        ]
        lines.append(f"| {block} | {own} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"
