"""What is found out about one pod spec: its class per version, what it loses, and what mends it. Pure.

*Affected* means that 1.34-1.36 give the spec another class than 1.37 does (:func:`lab.qos.affected`). Only a spec with
a pod-level block can be, so a spec without one gives no finding; a block without consequence gives one that is not
affected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.model import JSON
from lab.qos import Behaviour, behaviour_of, classify, is_pod_level_resources_set
from lab.scan import advice
from lab.scan.producers import Producer, producer_of
from lab.scan.records import Item
from lab.scan.workloads import PodSite, kind_of, pod_sites

LimitRanges = Sequence[Mapping[str, Any]]

VERSIONS = (Behaviour.BEFORE_1_34, Behaviour.EMPTY_BLOCK_SHADOWS, Behaviour.FIXED, Behaviour.FIX_OFF)
"""The behaviours that a finding names, by their labels."""

EMPTY_BLOCK = "empty pod-level block"
COMPLETED_BLOCK = "pod-level block that 1.37 completes"
NO_EFFECT = "pod-level block without effect on the class"
TEMPLATE = "template that may render an empty pod-level block"
RUNNER = "GitLab Runner configuration without pod-level values"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One pod spec, template or runner configuration.

    ``affected``: True, False, or None where it is possible and cannot be decided from the input (``reason`` says what
    was seen, ``note`` what decides it). ``classes`` has a class per behaviour label, empty where there is no pod spec.
    ``today`` is the class of the version that was asked about, None without one. ``stored`` is the class that a live
    pod has, and ``stored_wrong`` whether that is another than 1.37 gives; both None for what is no live pod. ``line``
    is None for live objects. ``owners`` leads from the nearest owner to the top.
    """

    file: str
    line: int | None
    api_version: str | None = None
    kind: str | None = None
    namespace: str | None = None
    name: str | None = None
    path: str = ""
    affected: bool | None
    reason: str
    note: str = ""
    classes: Mapping[str, str]
    today: str | None = None
    stored: str | None = None
    stored_wrong: bool | None = None
    owners: tuple[str, ...] = ()
    producer: Producer | None = None
    loses: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()
    no_help: tuple[str, ...] = ()
    source: str | None = None

    @property
    def title(self) -> str:
        """``Deployment namespace/name``, with what of it is known; the file's line where nothing is."""
        name = "/".join(part for part in (self.namespace, self.name) if part)
        return " ".join(part for part in (self.kind, name) if part) or self.where

    @property
    def where(self) -> str:
        """``file:line``."""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def as_json(self) -> JSON:
        """Plain form for ``--json``."""
        return {
            "file": self.file,
            "line": self.line,
            "source": self.source,
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "path": self.path,
            "affected": {True: "yes", False: "no", None: "possible"}[self.affected],
            "reason": self.reason,
            "note": self.note,
            "classes": dict(self.classes),
            "today": self.today,
            "stored": self.stored,
            "stored_wrong": self.stored_wrong,
            "owners": list(self.owners),
            "producer": self.producer.as_json() if self.producer else None,
            "loses": list(self.loses),
            "fixes": list(self.fixes),
            "does_not_help": list(self.no_help),
        }


def findings_of(item: Item, *, minor: int | None = None, limit_ranges: LimitRanges = ()) -> list[Finding]:
    """Findings of one object.

    ``minor`` is the version that runs today (36 for 1.36), None when it is not known. ``limit_ranges`` are those of the
    object's namespace; a live pod has had them applied already and is judged without. ParseError for a pod spec with a
    block that cannot be classified, TooManyNodes for an object that is too large to search.
    """
    return [
        _finding(item, site, minor, limit_ranges)
        for site in pod_sites(item.value, item.kind)
        if site.spec.get("resources") is not None
    ]


def dotted(path: Sequence[str | int]) -> str:
    """``spec.template.spec`` or ``spec.groups[0].template.spec``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def owner_of(value: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The controlling entry of an object's ownerReferences, else the first; None without owners."""
    references = _mapping(value, "metadata").get("ownerReferences")
    owners = [entry for entry in references if isinstance(entry, Mapping)] if isinstance(references, list) else []
    return next((entry for entry in owners if entry.get("controller") is True), owners[0] if owners else None)


def _finding(item: Item, site: PodSite, minor: int | None, limit_ranges: LimitRanges) -> Finding:
    value = item.value
    kind = kind_of(value, item.kind)
    stored = _text(_mapping(value, "status").get("qosClass")) if kind == "Pod" and site.path == ("spec",) else None
    # A pod that was admitted carries what LimitRanges added.
    ranges = () if stored is not None else limit_ranges
    classes = {behaviour.label: classify(site.spec, behaviour, ranges) for behaviour in VERSIONS}
    wrong, right = classes[Behaviour.EMPTY_BLOCK_SHADOWS.label], classes[Behaviour.FIXED.label]
    empty = not is_pod_level_resources_set(site.spec["resources"])
    affected, note = _verdict(site, wrong != right, empty)
    producer = producer_of(value, site, item.source)
    metadata = _mapping(value, "metadata")
    path = dotted(site.path)
    owner = owner_of(value)
    told = affected is not False
    return Finding(
        file=item.file,
        line=item.place.line_of((*site.path, "resources")) or None,
        api_version=_text(value.get("apiVersion")),
        kind=kind,
        namespace=_text(metadata.get("namespace")),
        name=_text(metadata.get("name")) or _text(metadata.get("generateName")),
        path=path,
        affected=affected,
        reason=EMPTY_BLOCK if empty else COMPLETED_BLOCK if affected else NO_EFFECT,
        note=note,
        classes=classes,
        today=None if minor is None else classify(site.spec, behaviour_of(minor, {}), ranges),
        stored=stored,
        stored_wrong=None if stored is None else stored != right,
        owners=() if owner is None else (f"{owner.get('kind')}/{owner.get('name')}",),
        producer=producer,
        loses=advice.losses(site.spec, wrong, right, ranges) if affected else (),
        fixes=advice.fixes(empty=empty, path=path, producer=producer, live=stored is not None) if told else (),
        no_help=advice.no_help(empty=empty) if told else (),
        source=item.source,
    )


def _verdict(site: PodSite, differs: bool, empty: bool) -> tuple[bool | None, str]:
    """Whether a site is affected, None for possibly, and what there is to say about it."""
    if differs:
        return True, "" if site.built_in else "a template of a custom resource: its operator may change the pod"
    if not empty:
        return False, ""
    if not site.spec.get("containers"):
        return None, "a partial object: whether it is affected depends on the containers it is laid over"
    return False, "BestEffort anyway; container requests, those of a LimitRange included, would make it affected"


def _mapping(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _text(value: Any) -> str | None:
    return None if value is None or isinstance(value, dict | list) else str(value)
