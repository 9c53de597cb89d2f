"""What reading gives: objects with their place, and problems with theirs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

Path = tuple[str | int, ...]

# What was seen at a pod spec, template or configuration.
EMPTY_BLOCK = "empty pod-level block"
COMPLETED_BLOCK = "pod-level block that 1.37 completes"
POSTED_CLASS = "class posted with the pod"
STORED_CLASS = "stored class that is not the pod's"
NO_EFFECT = "pod-level block without effect on the class"
TEMPLATE = "template that may render an empty pod-level block"
RUNNER = "GitLab Runner configuration without pod-level values"
RUNNER_VALUES = "GitLab Runner configuration with pod-level values"

MAX_OBJECT_BYTES = 4 << 20
"""An API server takes requests up to 3 MiB (``MaxRequestBodyBytes``, ``k8s.io/apiserver/pkg/server/config.go``), so no
object is larger; what is would only cost memory."""

MAX_DEPTH = 256
"""Objects of Kubernetes nest some dozens deep; libyaml's time grows with depth times length."""

MAX_COLLECTIONS = 400_000
"""Mappings and sequences of one object: what bounds its memory where each takes few bytes of text."""


class ReadError(Exception):
    """A document that cannot be read; ``line`` counts from 1 within the text that was given."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"line {line}: {text}")
        self.line = line
        self.text = text


class Place(Protocol):
    """Where an object stands in its input; lines count from 1."""

    def line(self) -> int:
        """Line on which the object begins."""

    def line_of(self, path: Path) -> int:
        """Line of the key or element that ``path`` leads to; the object's own when it is not known."""

    def line_of_text(self, path: Path) -> int | None:
        """Line of the first line of the text that ``path`` leads to, whose lines are lines of the input.

        None for a text that is written in another way, or when it is not known.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One object of an input.

    ``value`` is what the API server would be sent: dicts with text keys, lists, text, numbers, booleans and None.
    ``kind`` is the kind that its list implies (``Pod`` in a PodList, whose items name none), else None. ``source`` is
    the template that Helm names in a comment, else None.
    """

    value: Any
    file: str
    place: Place
    kind: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that could not be read; ``line`` is 0 where there is none to name.

    ``unread`` are the lines of a part that cannot be read and looks like an unrendered template (the first one, and
    the one after the last), else None.
    """

    file: str
    line: int
    text: str
    unread: tuple[int, int] | None = None

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPlace:
    """An object that begins at a known line, without more to say."""

    first: int

    def line(self) -> int:
        """The known line."""
        return self.first

    def line_of(self, path: Path) -> int:
        """The known line, whatever the path."""
        del path
        return self.first

    def line_of_text(self, path: Path) -> int | None:
        """Not known."""
        del path
        return None


def implied_kind(list_kind: Any) -> str | None:
    """Kind of the items of a list by the list's own kind: ``Pod`` for ``PodList``; None for ``List``."""
    if isinstance(list_kind, str) and list_kind.endswith("List") and list_kind != "List":
        return list_kind.removesuffix("List")
    return None


def is_list(kind: Any) -> bool:
    """Whether a kind is that of a list of objects."""
    return isinstance(kind, str) and kind.endswith("List")


def walk(value: Any, path: Path) -> Iterator[Any]:
    """``value`` and what each step of ``path`` leads to; ends early where there is nothing."""
    yield value
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return
        yield value
