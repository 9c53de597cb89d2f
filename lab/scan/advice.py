"""What mends a wrong class, and what does not. Pure."""

from __future__ import annotations

import functools

from lab.scan.producers import Producer
from lab.scan.records import EMPTY_BLOCK, POSTED_CLASS, STORED_CLASS

_NO_STATUS = "delete the status of the manifest (its class is stored unread up to 1.36)"


@functools.lru_cache(maxsize=1024)
def fixes(*, reason: str, path: str, producer: Producer | None, live: bool, posted: bool) -> tuple[str, ...]:
    """What mends it, the nearest fix first; each one is enough.

    ``reason`` is that of the finding. ``posted`` says that a manifest has a status with a class, which an API server up
    to 1.36 stores unread: nothing else in the manifest helps there before the status is gone.
    """
    later = "and recreate the pod" if live else "(pods from before keep their class until they are recreated)"
    upgrade = f"upgrade the API server to 1.37 or later {later}"
    if reason == STORED_CLASS:
        return ("recreate the pod, without the status if it is made from an exported manifest",)
    if reason == POSTED_CLASS:
        return (_NO_STATUS, upgrade)
    found = [producer.fix] if producer is not None and producer.fix else []
    if reason == EMPTY_BLOCK:
        found.append(f"remove the key: no `resources` in {path} (in a template: render it only when it has content)")
        found.append(
            "set it: real requests and limits for cpu and memory at pod level; the class then comes from them, and "
            "limits hold for the pod as a whole (requests alone may be affected again: only 1.37 completes them)"
        )
    else:
        found.append(
            "set both requests and limits for cpu and memory at pod level, so that no version has anything to complete"
        )
    if posted:
        found = [f"{_NO_STATUS}, and {text}" for text in found]
    return (*found, upgrade)


@functools.lru_cache(maxsize=2)
def no_help(*, empty: bool) -> tuple[str, ...]:
    """What looks like a fix and is none."""
    found = []
    if empty:
        found.append("requests or limits on the containers: an empty block hides them")
        found.append("a LimitRange: it fills the containers and leaves the block empty")
    found.append("a newer kubelet, or the gate on the kubelet alone: the API server computes and stores the class")
    found.append("an upgrade to 1.37 without recreating the pods: the stored class stays")
    return tuple(found)
