"""What is found out about one pod spec: its class per version, what it loses, and what mends it. Pure.

*Affected* means that 1.34-1.36 give the pod another class than 1.37 does: by its spec (:func:`lab.qos.affected`), which
needs a pod-level block, or by a ``status.qosClass`` that a manifest carries and an API server up to 1.36 stores unread
(:func:`lab.qos.stored_class`). A live pod is affected too when another class is stored than 1.37 computes. A spec
without a block and without such a class gives no finding; a block without consequence gives one that is not affected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.model import JSON
from lab.qos import Behaviour, classify, is_pod_level_resources_set, stored_class
from lab.qos_defaults import amounts, is_pod_level_resource
from lab.scan import advice
from lab.scan.losses import losses, standing_of
from lab.scan.producers import Producer, producer_of
from lab.scan.records import COMPLETED_BLOCK, EMPTY_BLOCK, NO_EFFECT, POSTED_CLASS, STORED_CLASS, Item
from lab.scan.workloads import PodSite, kind_of, pod_sites

LimitRanges = Sequence[Mapping[str, Any]]

VERSIONS = (Behaviour.BEFORE_1_34, Behaviour.EMPTY_BLOCK_SHADOWS, Behaviour.FIXED, Behaviour.FIX_OFF)
"""The behaviours that a finding names, by their labels."""

_POSTED = "the manifest has a status, whose class is stored unread up to 1.36"
_UNREAD = {Behaviour.BEFORE_1_34: 33, Behaviour.EMPTY_BLOCK_SHADOWS: 36}
"""Behaviours under which an API server stores a class that was posted, with a version of each."""


_CLAIMS = "claims"
_MIRROR = "kubernetes.io/config.mirror"
"""Annotation of the pod that stands for a static one in the API server."""


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


def findings_of(
    item: Item,
    *,
    minor: int | None = None,
    limit_ranges: LimitRanges = (),
    live: bool = False,
    owners: tuple[str, ...] | None = None,
) -> list[Finding]:
    """Findings of one object.

    ``minor`` is the version that runs today (36 for 1.36), None when it is not known. ``live`` says that the object
    comes from a cluster: the class in a pod's status is then the stored one, and else what a manifest would post.
    ``limit_ranges`` are those of the object's namespace; a live pod has had them applied already and is judged without.
    ``owners`` is the object's owner chain where more of it is known than the object says. ParseError for a pod spec
    with a block that cannot be classified, TooManyNodes for an object that is too large to search.
    """
    found = []
    for site in pod_sites(item.value, item.kind):
        status = _status_class(item, site)
        if site.spec.get("resources") is not None or status is not None:
            ranges = () if live and status is not None else limit_ranges
            found.append(_finding(item, site, minor, ranges, status, live, owners))
    return [finding for finding in found if finding is not None]


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


def _status_class(item: Item, site: PodSite) -> str | None:
    """``status.qosClass`` of a pod; None for anything else, and where it is empty."""
    whole = _kind(item, site) == "Pod" and site.holder.get("spec") is site.spec
    return (_text(_mapping(site.holder, "status").get("qosClass")) or None) if whole else None


def _kind(item: Item, site: PodSite) -> str | None:
    """Kind of the object that a spec belongs to."""
    return kind_of(site.holder, item.kind if site.holder is item.value else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """What a site comes to: see :class:`Finding`. ``wrong`` is the class of 1.34-1.36, or one that is stored."""

    classes: Mapping[str, str]
    wrong: str
    right: str
    affected: bool | None
    reason: str
    note: str
    refused: bool


def _finding(
    item: Item,
    site: PodSite,
    minor: int | None,
    ranges: LimitRanges,
    status: str | None,
    live: bool,
    owners: tuple[str, ...] | None,
) -> Finding | None:
    """The finding of a site; None for a pod without a block whose class is the right one."""
    value, kind = site.holder, _kind(item, site)
    stored, posted = (status, None) if live else (None, status)
    sent = {"spec": site.spec, "status": {"qosClass": posted}}
    verdict = _verdict(site, None if value is item.value else item.value, sent, stored, ranges)
    if site.spec.get("resources") is None and verdict.affected is not True:
        return None
    path, owner = dotted(site.path), owner_of(value)
    if owners is None:
        owners = () if owner is None else (f"{owner.get('kind')}/{owner.get('name')}",)
    wrong, right = verdict.wrong if stored is None else stored, verdict.right
    producer = producer_of(item.value, site, item.source)
    static = kind == "Pod" and _MIRROR in _mapping(site.metadata, "annotations")
    case = advice.Case(
        reason=verdict.reason,
        path=path,
        right=right,
        minor=minor,
        producer=producer,
        posted=posted is not None,
        refused=verdict.refused,
        pod=None if stored is None else advice.LivePod(owners=owners, wrong=stored != right, static=static),
    )
    told = verdict.affected is not False
    pods = told and not verdict.refused
    standing = standing_of(site.spec, mirror=static, daemon=kind == "DaemonSet")
    metadata = _mapping(value, "metadata")
    return Finding(
        file=item.file,
        line=item.place.line_of((*site.path, "resources")) or None,
        api_version=_text(value.get("apiVersion")),
        kind=kind,
        namespace=_text(metadata.get("namespace")),
        name=_text(metadata.get("name")) or _text(metadata.get("generateName")),
        path=path,
        affected=verdict.affected,
        reason=verdict.reason,
        note=verdict.note,
        classes=verdict.classes,
        today=None if minor is None else stored_class(sent, minor, {}, ranges),
        stored=stored,
        stored_wrong=None if stored is None else stored != right,
        owners=owners,
        producer=producer,
        loses=losses(site.spec, wrong, right, ranges, standing=standing) if pods and wrong != right else (),
        fixes=advice.fixes(case) if told else (),
        no_help=advice.no_help(case) if told else (),
        source=item.source,
    )


def _verdict(
    site: PodSite,
    outer: Mapping[str, Any] | None,
    sent: Mapping[str, Any],
    stored: str | None,
    ranges: LimitRanges,
) -> _Verdict:
    """Judge a site.

    ``outer`` is the object in which the site's own object stands, None for one by itself. ``sent`` is the pod that goes
    to the API server, ``stored`` the class of a live pod.
    """
    classes = {behaviour.label: classify(site.spec, behaviour, ranges) for behaviour in VERSIONS}
    computed = classes[Behaviour.EMPTY_BLOCK_SHADOWS.label]
    for behaviour, version in _UNREAD.items():
        classes[behaviour.label] = stored_class(sent, version, {}, ranges)
    wrong, right = classes[Behaviour.EMPTY_BLOCK_SHADOWS.label], classes[Behaviour.FIXED.label]
    block = site.spec.get("resources")
    refused = _refused_names(block)
    empty = block is not None and not is_pod_level_resources_set(block) and not set(refused) - {_CLAIMS}
    affected, note = _affected(site, outer, wrong != right, empty)
    reason = EMPTY_BLOCK if empty else COMPLETED_BLOCK if affected else NO_EFFECT
    if computed == right and wrong != right:
        reason = POSTED_CLASS
    elif computed != right and wrong == right:
        affected, note = False, f"{_POSTED}; without it the block would give {computed} there"
    elif stored is not None and wrong == right != stored:
        affected, note, reason, wrong = True, "", STORED_CLASS, stored
    elif affected and stored == right:
        note = f"the stored class is right; an API server 1.34-1.36 gives {wrong} to the pod that replaces this one"
    if refused:
        note = f"an API server 1.34 or later refuses this block: {', '.join(refused)} may not stand at pod level"
    return _Verdict(
        classes=classes, wrong=wrong, right=right, affected=affected, reason=reason, note=note, refused=bool(refused)
    )


def _refused_names(block: Mapping[str, Any] | None) -> tuple[str, ...]:
    """What of a block no API server takes that does not drop the block (``validatePodResources``).

    ``pkg/apis/core/validation/validation.go``, the same from 1.34 to 1.37: claims, an empty list too, and all resources
    but cpu, memory and huge pages.
    """
    if block is None:
        return ()
    names = [name for key in ("requests", "limits") for name in amounts(block, key) if not is_pod_level_resource(name)]
    return tuple(dict.fromkeys([*names, *([_CLAIMS] if block.get(_CLAIMS) is not None else [])]))


def _affected(
    site: PodSite, outer: Mapping[str, Any] | None, differs: bool, empty: bool
) -> tuple[bool | None, str]:
    """Whether a site is affected, None for possibly, and what there is to say about it."""
    if differs:
        if outer is not None:
            name = _text(_mapping(outer, "metadata").get("name"))
            whole = " ".join(part for part in (kind_of(outer), name) if part) or "another object"
            return True, f"inside {whole}: what makes the object of it may change the pod"
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
