"""YAML events to objects, one object of a list at a time. Pure.

Reads as ``sigs.k8s.io/yaml`` does (go-yaml v2, ``decode.go``): of a key that stands twice the last one holds, merge
keys act where they stand, and a document in which aliases stand for nearly everything is refused by the same formula.
What an alias leads to is shared, never copied.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from lab.scan import scalars
from lab.scan.records import MAX_COLLECTIONS, MAX_DEPTH, Path, ReadError, implied_kind, is_list, walk

GetEvent = Callable[[], Any]
LineOf = Callable[[int], int]
"""Line in the file of a line of the parsed text, which counts from 0."""

MERGE_KEY = "<<"
MARKED_KEYS = frozenset({"resources", "containers", "config.toml", "config.template.toml"})
"""Keys whose lines are kept."""

_TEXT = "text of "
"""With a marked key: the line on which its literal text begins."""

MAX_ANCHORED = 400_000

_UNSET: Any = object()
_ALIAS_FREE = 1000
_RATIO_LOW, _RATIO_HIGH = 400_000, 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlPlace:
    """Place of an object of a YAML document; lines of the marked keys by the identity of their mapping.

    ``value`` keeps the mappings alive as long as their identities are used. ``stop`` is the line on which what comes
    after the object begins, or the object's last.
    """

    first: int
    stop: int
    value: Any
    lines: dict[tuple[int, str], int]

    def line(self) -> int:
        """Line on which the object begins."""
        return self.first

    def line_of(self, path: Path) -> int:
        """Line of a marked key, else of the nearest marked key above it, else of the object."""
        found = self.first
        for container, step in zip(walk(self.value, path), path, strict=False):
            found = self.lines.get((id(container), str(step)), found)
        return found

    def line_of_text(self, path: Path) -> int | None:
        """Line of the first line of a marked key's text, where that is a literal block; else None."""
        steps = list(walk(self.value, path))
        return self.lines.get((id(steps[-2]), f"{_TEXT}{path[-1]}")) if 1 < len(steps) == len(path) + 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """One object: its value, its place in the text that was parsed, and the kind that its list implies."""

    value: Any
    place: YamlPlace
    kind: str | None


@dataclass(slots=True)
class _Document:
    """State of one document."""

    get: GetEvent
    line_of: LineOf
    anchors: dict[str, tuple[Any, int]] = field(default_factory=dict)
    end: Any = None
    decoded: int = 0
    aliased: int = 0
    kept: int = 0
    lines: dict[tuple[int, str], int] = field(default_factory=dict)


def objects(get: GetEvent, line_of: LineOf) -> Iterator[Composed]:
    """Objects of all documents of a parser; elements of a list one by one, so that a list of any length fits.

    ``get`` gives the next event (``CParser.get_event``), ``line_of`` the line in the file of a line of the parsed text.
    ReadError for what cannot be read; errors of the parser itself (``yaml.YAMLError``) pass through. Objects that came
    before an error stand.
    """
    get()
    while get().__class__ is not StreamEndEvent:
        document = _Document(get, line_of)
        event = get()
        if event.__class__ is MappingStartEvent:
            whole = yield from _envelope(document, event)
        else:
            whole = _composed(document, event)
        # A text that does not end where its value does is noticed here.
        if get().__class__ is DocumentEndEvent and whole is not None:
            yield whole


def _composed(document: _Document, event: Any, kind: str | None = None) -> Composed:
    document.lines = {}
    first = _line(document, event)
    value = _node(document, event)
    return Composed(value=value, place=_place(document, first, value, document.lines), kind=kind)


def _place(document: _Document, first: int, value: Any, lines: dict[tuple[int, str], int]) -> YamlPlace:
    """Place of an object that has just ended."""
    return YamlPlace(first=first, stop=_line(document, document.end), value=value, lines=lines)


def _envelope(document: _Document, start: Any) -> Generator[Composed, None, Composed | None]:
    """A document that is a mapping: gives the objects in its ``items``; returns itself, None for a list."""
    first = _line(document, start)
    own: dict[str, Any] = {}
    lines: dict[tuple[int, str], int] = {}
    waiting: list[Composed] = []
    kept: list[Any] | None = None
    while (event := document.get()).__class__ is not MappingEndEvent:
        document.lines = lines
        merging = event.__class__ is ScalarEvent and _is_merge(event)
        document.decoded += 1
        key_line = _line(document, event)
        key = MERGE_KEY if merging else _key(document, event)
        event = document.get()
        if key == "items" and event.__class__ is SequenceStartEvent and not event.anchor and not merging:
            waiting = yield from _items(document, own.get("kind"))
            own[key] = kept = [each.value for each in waiting]
        else:
            document.lines = lines
            _store(document, own, key, _node(document, event), merging, key_line)
    document.end = event
    if not is_list(own.get("kind")):
        return Composed(value=own, place=_place(document, first, own, lines), kind=None)
    items, kind = own.get("items"), implied_kind(own["kind"])
    if items is kept:
        # That it is a list was known only now: in sorted keys the kind comes after the items.
        yield from (replace(each, kind=kind) for each in waiting)
    elif isinstance(items, list):
        for each in items:
            yield Composed(value=each, place=_place(document, first, each, lines), kind=kind)
    elif items is not None:
        raise ReadError(first, "the items of a list are no sequence")
    return None


def _items(document: _Document, list_kind: Any) -> Generator[Composed, None, list[Composed]]:
    """Elements of the sequence at hand: gives those that are objects of their own, returns the others."""
    kind = implied_kind(list_kind)
    waiting: list[Composed] = []
    while (event := document.get()).__class__ is not SequenceEndEvent:
        found = _composed(document, event, kind)
        if isinstance(found.value, dict) and ("kind" in found.value or is_list(list_kind)):
            yield found
        else:
            waiting.append(found)
            if len(waiting) > MAX_COLLECTIONS:
                raise ReadError(found.place.first, "more items than an object can have")
    return waiting


def _key(document: _Document, event: Any) -> str:
    """Text of a key from its event."""
    line = _line(document, event)
    if event.__class__ is ScalarEvent:
        value = _scalar(document, event, as_key=True)
    elif event.__class__ is AliasEvent:
        value = _alias(document, event)
    else:
        raise ReadError(line, "a mapping or sequence as a key")
    if isinstance(value, dict | list):
        raise ReadError(line, "a mapping or sequence as a key")
    try:
        return scalars.key_text(value)
    except scalars.ScalarError as error:
        raise ReadError(line, str(error)) from None


def _node(document: _Document, event: Any) -> Any:
    """The value that begins with ``event``, without recursion."""
    get = document.get
    stack: list[tuple[Any, Any, bool, int, Any]] = []
    container: Any = None
    key: Any = _UNSET
    merging, key_line, collections = False, 0, 0
    anchor: tuple[str, tuple[Any, int]] | None = None
    while True:
        kind = event.__class__
        if kind is ScalarEvent:
            # What begins like no word or number of YAML is text, and so is nearly every key and value.
            text = event.value
            is_text = event.tag is None and event.anchor is None and text and text[0] not in scalars.HINTS
            document.decoded += 1
            if container.__class__ is dict and key is _UNSET:
                merging = text == MERGE_KEY and _is_merge(event)
                key = text if is_text else _key(document, event)
                key_line = event.start_mark.line
                event = get()
                continue
            value = text if is_text else _scalar(document, event)
        elif kind is MappingStartEvent or kind is SequenceStartEvent:
            if container.__class__ is dict and key is _UNSET:
                raise ReadError(_line(document, event), "a mapping or sequence as a key")
            collections += 1
            if len(stack) >= MAX_DEPTH or collections > MAX_COLLECTIONS:
                raise ReadError(_line(document, event), "nested too deeply, or too many mappings and sequences")
            document.decoded += 1
            stack.append((container, key, merging, key_line, anchor))
            anchor = _begin(document, event) if event.anchor else None
            container, key, merging = {} if kind is MappingStartEvent else [], _UNSET, False
            event = get()
            continue
        elif kind is AliasEvent:
            if container.__class__ is dict and key is _UNSET:
                key, merging, key_line = _key(document, event), False, event.start_mark.line
                event = get()
                continue
            value = _alias(document, event)
        else:
            value = container
            # An anchor of the same name inside has begun later, and holds.
            if anchor and document.anchors[anchor[0]] is anchor[1]:
                _keep(document, anchor[0], value, document.decoded - anchor[1][1] + 1, event)
            container, key, merging, key_line, anchor = stack.pop()
        if container is None:
            document.end = event
            return value
        if container.__class__ is list:
            container.append(value)
        else:
            if merging or key in MARKED_KEYS:
                _store(document, container, key, value, merging, document.line_of(key_line))
                _mark_text(document, container, key, event)
            else:
                container[key] = value
            key = _UNSET
        event = get()


def _store(document: _Document, mapping: dict[str, Any], key: str, value: Any, merging: bool, line: int) -> None:
    """Set a key, or all keys of what a merge key names; remembers the line of a marked key."""
    if not merging:
        mapping[key] = value
        if key in MARKED_KEYS:
            document.lines[id(mapping), key] = line
        return
    # Earlier mappings of a merged sequence win, so they are laid down last (``merge`` in go-yaml's decode.go).
    merged = reversed(value) if isinstance(value, list) else [value]
    for source in merged:
        if not isinstance(source, dict):
            raise ReadError(line, "a merge key needs a mapping or a sequence of mappings")
        mapping.update(source)
        for name in MARKED_KEYS & source.keys():
            document.lines[id(mapping), name] = line


def _mark_text(document: _Document, mapping: dict[str, Any], key: str, event: Any) -> None:
    """Remember where the literal text of a key begins: on the line after its ``|``. A later value takes its place."""
    if event.__class__ is ScalarEvent and event.style == "|":
        document.lines[id(mapping), _TEXT + key] = _line(document, event) + 1
    else:
        document.lines.pop((id(mapping), _TEXT + key), None)


def _is_merge(event: Any) -> bool:
    return bool(event.value == MERGE_KEY and (event.implicit[0] or event.tag == scalars.MERGE))


def _scalar(document: _Document, event: Any, *, as_key: bool = False) -> Any:
    """Value of a scalar; remembered when it has an anchor."""
    text = event.value
    try:
        if event.tag is not None:
            value = scalars.tagged(event.tag, text)
        else:
            value = scalars.plain(text) if event.implicit[0] else text
        if value.__class__ is float and not as_key:
            scalars.check_number(value)
    except scalars.ScalarError as error:
        raise ReadError(_line(document, event), str(error)) from None
    if event.anchor:
        _keep(document, event.anchor, value, 1, event)
    return value


def _begin(document: _Document, event: Any) -> tuple[str, tuple[Any, int]]:
    """Name what begins here, so that an alias to it from within is noticed."""
    begun = (_UNSET, document.decoded)
    document.anchors[event.anchor] = begun
    return event.anchor, begun


def _keep(document: _Document, name: str, value: Any, size: int, event: Any) -> None:
    """Remember what an anchor names; ReadError when a document would have the reader remember too much."""
    document.kept += size
    if document.kept > MAX_ANCHORED:
        raise ReadError(_line(document, event), "more anchored values than a document can need")
    document.anchors[name] = (value, size)


def _alias(document: _Document, event: Any) -> Any:
    """What an alias stands for; ReadError where go-yaml refuses it."""
    found = document.anchors.get(event.anchor)
    if found is None:
        raise ReadError(_line(document, event), f"unknown anchor {event.anchor[:40]!r}")
    value, size = found
    if value is _UNSET:
        raise ReadError(_line(document, event), f"anchor {event.anchor[:40]!r} contains itself")
    document.decoded += size
    document.aliased += size
    if document.decoded > _ALIAS_FREE and document.aliased / document.decoded > _allowed_ratio(document.decoded):
        raise ReadError(_line(document, event), "excessive aliasing")
    return value


def _allowed_ratio(decoded: int) -> float:
    """``allowedAliasRatio`` of go-yaml: 99 % up to 400,000 values, down to 10 % from 4,000,000."""
    if decoded <= _RATIO_LOW:
        return 0.99
    if decoded >= _RATIO_HIGH:
        return 0.10
    return 0.99 - 0.89 * (decoded - _RATIO_LOW) / (_RATIO_HIGH - _RATIO_LOW)


def _line(document: _Document, event: Any) -> int:
    return document.line_of(int(event.start_mark.line))
