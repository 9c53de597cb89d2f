"""Which part of docs/errors.md explains an error, by its kind. Light: verbs that need nothing else start at once."""

from __future__ import annotations

from lab.model import Interrupted, LabError

DOCUMENT = "docs/errors.md"

TOPICS = {
    "UsageError": "bad-usage-or-input",
    "ResultsError": "stored-results",
    "NodeError": "node-or-this-machine",
    "TransportError": "connection",
    "CommandError": "command",
    "WaitTimeout": "deadline",
    "HostKeyMismatch": "host-key",
    "WrongHash": "wrong-sha256",
    "Unavailable": "no-binaries",
    "ApiError": "digitalocean",
    "Unreachable": "cluster",
    "LeftBehind": "left-behind",
    "Interrupted": "interrupted",
    "ParseError": "text-of-an-unexpected-form",
    "Missing": "not-measured",
}
"""Class to heading. By name, so that no provider is loaded to explain a flag; a test compares with the classes."""


def topic(error: LabError | Interrupted) -> str:
    """``docs/errors.md#stored-results``: the part for the nearest class of the error that has one."""
    names = (kind.__name__ for kind in type(error).__mro__)
    found = next((TOPICS[name] for name in names if name in TOPICS), None)
    return DOCUMENT if found is None else f"{DOCUMENT}#{found}"
