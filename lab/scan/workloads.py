"""Pod specs inside objects of any kind. Pure.

The kinds of Kubernetes itself have theirs at a known path. In any other object a pod template is recognised by its
form: a mapping ``spec`` with a list ``containers`` of named containers, inside a mapping whose key speaks of a template
(``template``, ``podTemplate``, ``leaderTemplate`` …), or a whole Pod or workload inside the object. ``containers``
beside ``resources`` elsewhere means something else: in a ``Prometheus`` object ``spec.resources`` are those of one
container.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lab.scan.records import Path

_BUILT_IN: dict[str, Path] = {
    "Pod": (),
    "PodTemplate": ("template",),
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
_GROUPS = ("apps", "batch", "extensions")
MAX_STEPS = 500_000
"""Nodes of one object that are looked at: aliases can make a small text stand for many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSite:
    """A pod spec in an object. ``path`` leads to it, ``metadata`` is that of the pod or template.

    ``holder`` is the object that the spec belongs to: the innermost one, where an object stands inside another.
    ``built_in`` is False for a custom resource, whose operator may change the template before a pod comes of it, and
    for what stands inside another object.
    """

    path: Path
    spec: Mapping[str, Any]
    metadata: Mapping[str, Any]
    holder: Mapping[str, Any]
    built_in: bool


class TooManyNodes(Exception):
    """An object with more nodes than are looked at."""


def kind_of(value: Any, implied: str | None = None) -> str | None:
    """Kind of an object, else the one its list implies; None when there is none."""
    kind = value.get("kind") if isinstance(value, Mapping) else None
    return kind if isinstance(kind, str) and kind else implied


def pod_sites(value: Any, implied_kind: str | None = None) -> Iterator[PodSite]:
    """Every pod spec of an object; TooManyNodes when the object is too large to be searched."""
    if not isinstance(value, Mapping):
        return
    kind = kind_of(value, implied_kind)
    if kind in _BUILT_IN and _is_built_in(value, implied_kind):
        site = _site((), value, _BUILT_IN[str(kind)], value, built_in=True)
        if site is not None:
            yield site
        return
    yield from _search(value)


def _is_built_in(value: Mapping[str, Any], implied_kind: str | None) -> bool:
    """Whether the group is one of Kubernetes' own: ``Deployment`` of another group is another thing."""
    version = value.get("apiVersion")
    if version is None:
        return implied_kind is not None
    group, slash, _ = str(version).rpartition("/")
    return not slash or group in _GROUPS


def _site(
    prefix: Path, value: Mapping[str, Any], steps: Path, holder: Mapping[str, Any], *, built_in: bool
) -> PodSite | None:
    """The site at ``steps`` from ``value``, when there is a mapping ``spec``."""
    at: Any = value
    for step in steps:
        at = at.get(step) if isinstance(at, Mapping) else None
    spec = at.get("spec") if isinstance(at, Mapping) else None
    if not isinstance(spec, Mapping):
        return None
    metadata = at.get("metadata")
    return PodSite(
        path=(*prefix, *steps, "spec"),
        spec=spec,
        metadata=metadata if isinstance(metadata, Mapping) else {},
        holder=holder,
        built_in=built_in,
    )


def _search(value: Mapping[str, Any]) -> Iterator[PodSite]:
    """Sites of a custom resource, in the order of the text."""
    waiting: list[tuple[Path, Any, bool, Mapping[str, Any]]] = [((), value, False, value)]
    steps = 0
    while waiting:
        path, at, in_template, holder = waiting.pop()
        steps += 1
        if steps > MAX_STEPS:
            raise TooManyNodes
        if isinstance(at, Mapping):
            if isinstance(at.get("kind"), str) and isinstance(at.get("apiVersion"), str):
                holder = at
            site = _inner_site(path, at, in_template, holder)
            if site is not None:
                yield site
                continue
            for key in reversed(at):
                child = at[key]
                if isinstance(child, dict | list):
                    waiting.append(((*path, key), child, "template" in str(key).lower(), holder))
        else:
            # Elements of a list of templates are templates.
            waiting += [
                ((*path, index), child, in_template, holder)
                for index, child in reversed(list(enumerate(at)))
                if isinstance(child, dict | list)
            ]


def _inner_site(path: Path, at: Mapping[str, Any], in_template: bool, holder: Mapping[str, Any]) -> PodSite | None:
    """A template, or a whole object of a built-in kind, that stands at ``path``."""
    kind = kind_of(at)
    if path and kind in _BUILT_IN and _is_built_in(at, None):
        return _site(path, at, _BUILT_IN[str(kind)], at, built_in=False)
    if not in_template:
        return None
    site = _site(path, at, (), holder, built_in=False)
    return site if site is not None and _has_containers(site.spec) else None


def _has_containers(spec: Mapping[str, Any]) -> bool:
    containers = spec.get("containers")
    return (
        isinstance(containers, list)
        and bool(containers)
        and all(isinstance(item, Mapping) and isinstance(item.get("name"), str) for item in containers)
    )
