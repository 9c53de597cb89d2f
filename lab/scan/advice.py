"""What mends a wrong class, and what does not. Pure."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from lab.cgroups import GUARANTEED
from lab.scan.producers import Producer
from lab.scan.records import COMPLETED_BLOCK, EMPTY_BLOCK, POSTED_CLASS, STORED_CLASS

_NO_STATUS = "delete the status of the manifest (its class is stored unread up to 1.36)"
_FIXED = 37
"""The minor version whose API server gives the right class."""

_PASSED_OVER = (
    "the static CPU and memory managers pass over every pod with pod-level values (gate PodLevelResourceManagers, off "
    "by default up to 1.37)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePod:
    """A pod of a cluster: its ``owners`` from the nearest to the top, and whether its stored class is wrong.

    ``static`` says that it stands for a static pod.
    """

    owners: tuple[str, ...]
    wrong: bool
    static: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the advice depends on.

    ``reason`` is that of the finding, ``path`` leads to the pod spec, ``right`` is the class that 1.37 gives. ``minor``
    is the version that runs today, None when it is not known. ``posted`` says that a manifest has a status with a
    class, which an API server up to 1.36 stores unread: nothing else in the manifest helps there before the status is
    gone. ``refused`` says that API servers refuse the block. ``pod`` is None for what is no live pod.
    """

    reason: str
    path: str
    right: str
    minor: int | None
    producer: Producer | None = None
    posted: bool = False
    refused: bool = False
    pod: LivePod | None = None

    @property
    def fixed_here(self) -> bool:
        """Whether an API server of today's version gives a new pod the right class."""
        return self.minor is not None and self.minor >= _FIXED


@functools.lru_cache(maxsize=1024)
def fixes(case: Case) -> tuple[str, ...]:
    """What mends it, the nearest fix first; each one is enough. Nothing where nothing is wrong."""
    if case.pod is not None:
        return _fixes_of_pod(case, case.pod)
    if case.fixed_here:
        upgrade = "on 1.37 or later only recreate the pods from before: a new one has the right class"
    else:
        upgrade = (
            "upgrade the API server to 1.37 or later (pods from before keep their class until they are recreated)"
        )
    if case.reason == POSTED_CLASS:
        return (_NO_STATUS, upgrade)
    if case.refused:
        return (f"remove the key, or all in it but cpu, memory and huge pages: no `resources` in {case.path}",)
    found = [case.producer.fix] if case.producer is not None and case.producer.fix else []
    found += _changes(case, f"no `resources` in {case.path} (in a template: render it only when it has content)")
    if case.posted:
        found = [f"{_NO_STATUS}, and {text}" for text in found]
    return (*found, upgrade)


@functools.lru_cache(maxsize=1024)
def no_help(case: Case) -> tuple[str, ...]:
    """What looks like a fix and is none."""
    if case.refused:
        return ("an upgrade: 1.37 refuses such a block too",)
    found = []
    if case.reason == EMPTY_BLOCK and not (case.pod and case.fixed_here):
        found.append("requests or limits on the containers: an empty block hides them")
        found.append("a LimitRange: it fills the containers and leaves the block empty")
        if case.right == GUARANTEED:
            found.append(f"real values at pod level where exclusive CPUs or pinned memory count: {_PASSED_OVER}")
    if case.pod is not None:
        found.append("a change to the spec of the running pod: the class is computed once, when a pod is created")
    if case.pod is None or not case.pod.static:
        found.append("a newer kubelet, or the gate on the kubelet alone: the API server computes and stores the class")
    if not case.fixed_here:
        found.append("an upgrade to 1.37 without recreating the pods: the stored class stays")
    return tuple(found)


def _changes(case: Case, removed: str) -> list[str]:
    """What to change in the block; ``removed`` says what removing the key comes to.

    A pod whose right class is Guaranteed by its containers is not told to set values: they would cost what the class
    is there for.
    """
    if case.reason == COMPLETED_BLOCK:
        cost = f" (without exclusive CPUs, as before: {_PASSED_OVER})" if case.right == GUARANTEED else ""
        return [
            "set both requests and limits for cpu and memory at pod level, so that no version has anything to complete"
            f"{cost}"
        ]
    remove = f"remove the key: {removed}"
    if case.right == GUARANTEED:
        return [remove]
    return [
        remove,
        "set it: real requests and limits for cpu and memory at pod level; the class then comes from them, and limits "
        "hold for the pod as a whole (requests alone may be affected again: only 1.37 completes them). It is no way to "
        f"exclusive CPUs: {_PASSED_OVER}",
    ]


def _fixes_of_pod(case: Case, pod: LivePod) -> tuple[str, ...]:
    """For a pod that runs: its spec cannot be mended, only what the next one is made from."""
    if pod.static:
        return (
            "remove the key from the static pod's file on its node: the kubelet then makes the pod anew",
            "upgrade that kubelet to 1.37 or later: it computes the class of a static pod itself",
        )
    recreate = "recreate the pod"
    if pod.owners:
        recreate += ": delete it, and its owner makes it anew"
    elif case.reason == STORED_CLASS and not case.fixed_here:
        recreate += ", without the status if it is made from an exported manifest"
    if case.reason == STORED_CLASS or case.fixed_here:
        return (recreate,) if pod.wrong else ()
    where = f"the template of {pod.owners[-1]}, or what writes it," if pod.owners else "the manifest that it comes from"
    first, *others = _changes(case, "no `resources` beside `containers`")
    found = [f"change {where} and recreate the pod: {first}"]
    found += [f"{text}; in the same place, and recreate the pod" for text in others]
    if case.producer is not None and case.producer.fix:
        found.insert(0, f"{case.producer.fix}; then recreate the pod")
    return (*found, "upgrade the API server to 1.37 or later and recreate the pod")
