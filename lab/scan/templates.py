"""Helm templates that may render an empty pod-level block. Pure, by lines: a template is no YAML until it is rendered.

Looked for is a key ``resources`` beside ``containers`` (the same indentation in the same block) in a pod spec: under a
``spec`` of something called a template, in a document of kind Pod, or in a named template, which has no kind. Its
value is nothing but values that may be empty (``toYaml``, ``toJson``), and that no ``with`` or ``if`` on these values
guards. A template can hide the pattern from this reading (``include`` of a named template); rendering it and scanning
the output leaves nothing hidden.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lab.scan.findings import Finding
from lab.scan.records import TEMPLATE

MAX_CHARACTERS = 1 << 20
MAX_LINE = 1 << 12
_ACTION = re.compile(r"\{\{(?P<text>[^{}]*)\}\}")
_KEY = re.compile(r"(?P<indent> *)resources:(?P<rest>[ \t].*|)")
_RENDERS = re.compile(r"\bto(?:Raw)?(?:Yaml|YamlPretty|Json)\b")
_VALUE = re.compile(r"\$?(?:\.[A-Za-z_]\w*)+|\$\w*|(?<![\w)])\.(?!\w)")
_GUARDS = ("with", "if")
# That something is set, or equals something, does not say that it has content: `{}` is not nil.
_NO_WORDS = r"(?:or|not|ne|eq|lt|le|empty|hasKey|kindIs|typeIs)\b"
_NO_GUARD = re.compile(rf"\(*{_NO_WORDS}")
_NO_GUARD_INSIDE = re.compile(rf"\({_NO_WORDS}[^()]*\)")
_NOT_EMPTY = re.compile(r"\bnot \(?empty ([^()]*)\)?")
_INDENTED = re.compile(r"\bn?indent (\d{1,3})\b")
_BLOCK_KEY = re.compile(r"(?P<before> *(?:- +)*)(?P<key>[\w.-]+):(?:\s|$)(?P<rest>.*)")
_OPENS = ("with", "if", "range", "define", "block")


@dataclass(frozen=True, slots=True)
class _Frame:
    """An open control action. ``expression`` is empty where the branch lets anything through (``else``)."""

    word: str
    expression: str

    def guards(self, value: str) -> bool:
        """Whether what is inside is rendered only when ``value`` has content."""
        if self.word not in _GUARDS or not self.expression:
            return False
        if self.word == "with" and value == ".":
            return True
        wanted = value.removeprefix("$")
        expression = _NOT_EMPTY.sub(r"\1", self.expression)
        if _NO_GUARD.match(expression):
            return False
        mentioned = {text.removeprefix("$") for text in _VALUE.findall(_NO_GUARD_INSIDE.sub("", expression))}
        return bool(wanted) and value != "." and wanted in mentioned

    def rebinds_dot(self) -> bool:
        """Whether ``.`` means another thing inside than outside."""
        return self.word in ("with", "range", "define", "block")


def template_findings(text: str, file: str) -> list[Finding]:
    """A finding per pod-level ``resources`` that may be rendered empty.

    Read are the first 1 MiB, which is the size of a whole release; lines of more than 4 KiB are passed over.
    """
    whole = _uncommented(text[:MAX_CHARACTERS]).split("\n")
    lines = [line.rstrip("\r") if len(line) <= MAX_LINE else "" for line in whole]
    frames: list[_Frame] = []
    found = []
    beside = _PodLevel(lines)
    for number, line in enumerate(lines):
        match = _KEY.fullmatch(line)
        if match and beside.holds(number, len(match["indent"])):
            values = _unsafe_values(lines, number, match, frames)
            if values is not None:
                found.append(_finding(file, number + 1, values))
        _advance(frames, line)
    return found


def _uncommented(text: str) -> str:
    """The text without ``/* … */``, its lines where they were; what is not closed stays."""
    pieces, at = [], 0
    while (start := text.find("/*", at)) >= 0 and (stop := text.find("*/", start + 2)) >= 0:
        pieces += [text[at:start], "\n" * text.count("\n", start, stop)]
        at = stop + 2
    return "".join([*pieces, text[at:]])


def _finding(file: str, line: int, values: str) -> Finding:
    return Finding(
        file=file,
        line=line,
        path="resources",
        affected=None,
        reason=TEMPLATE,
        note=f"{values} may be empty, and the key is then rendered with an empty block",
        classes={},
        fixes=("render the key only when it has content: {{- with VALUE }} before it, {{- end }} after it",),
    )


def _advance(frames: list[_Frame], line: str) -> None:
    """Open and close control actions as a line does."""
    for match in _ACTION.finditer(line):
        word, _, rest = match["text"].strip(" \t-").partition(" ")
        if word in _OPENS:
            frames.append(_Frame(word, rest.strip()))
        elif word == "end" and frames:
            frames.pop()
        elif word == "else" and frames:
            again, _, expression = rest.strip().partition(" ")
            frames[-1] = _Frame(again or frames[-1].word, expression.strip())


def _indent(line: str) -> int | None:
    """Indentation of a line of YAML; None for blank lines, comments and lines that are template actions alone."""
    bare = line.lstrip(" ")
    if not bare.strip() or bare.startswith("#") or (bare.startswith("{{") and not _ACTION.sub("", bare).strip()):
        return None
    return len(line) - len(bare)


class _PodLevel:
    """Which places of a text have a key ``containers`` beside them, in what may be a pod spec.

    Built in one pass: a block at an indentation ends where a line is indented less, or a document begins. A block
    belongs to the keys above it, of which the nearest two count.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._blocks: list[dict[int, int]] = []
        self._with_containers: set[int] = set()
        self._above: dict[int, tuple[str, ...]] = {}
        self._document: dict[int, int] = {}
        self._kinds: dict[int, set[str]] = {}
        open_blocks: dict[int, int] = {}
        keys: dict[int, str] = {}
        last = document = 0
        for line in lines:
            own = _indent(line)
            if own is not None:
                if line.startswith("---"):
                    open_blocks, keys, document = {}, {}, document + 1
                open_blocks = {indent: block for indent, block in open_blocks.items() if indent <= own}
                match = _BLOCK_KEY.match(line)
                at = len(match["before"]) if match else own
                # The dash of a list may stand as far left as the key that the list is of.
                keys = {indent: key for indent, key in keys.items() if indent < own or (indent == own and own < at)}
                for indent in {own, at} - open_blocks.keys():
                    last += 1
                    open_blocks[indent] = last
                    self._above[last] = tuple(keys[each] for each in sorted(keys))[-2:]
                    self._document[last] = document
                if match:
                    keys[at] = match["key"]
                    if match["key"] == "kind":
                        self._kinds.setdefault(document, set()).add(match["rest"].strip(" \"'"))
                    elif match["key"] == "containers" and own == at:
                        self._with_containers.add(open_blocks[own])
            self._blocks.append(open_blocks)

    def holds(self, number: int, indent: int) -> bool:
        """Whether the line's block at ``indent`` has the key, and may be a pod spec."""
        block = self._blocks[number].get(indent)
        if block is None or block not in self._with_containers:
            return False
        *above, parent = ("", *self._above[block])
        kinds = self._kinds.get(self._document[block], set())
        if parent == "spec" and ("template" in above[-1].lower() or "Pod" in kinds):
            return True
        return not kinds and parent in ("", "spec") and above[-1:] in ([], [""])


def _unsafe_values(lines: Sequence[str], number: int, match: re.Match[str], around: Sequence[_Frame]) -> str | None:
    """The values that an unguarded block consists of; None when it is guarded, or has content of its own."""
    frames = list(around)
    rest = match["rest"].split(" #")[0].strip()
    if rest == "{}":
        return "`{}`"
    values: list[str] = []
    for line in [rest, *_block(lines, number + 1, len(match["indent"]))]:
        for action in _ACTION.finditer(line):
            value = _rendered(action["text"].strip(" \t-"))
            if value is None:
                continue
            if _guarded(value, frames):
                return None
            values.append(value)
        _advance(frames, line)
        key, colon, content = _ACTION.sub("", line).strip().partition(":")
        if key and not (colon and key in ("requests", "limits") and not content.strip(" {}")):
            return None
    return ", ".join(values) or None


def _block(lines: Sequence[str], start: int, indent: int) -> list[str]:
    """Lines that belong to a key at ``indent``: what is indented further, template actions included."""
    found: list[str] = []
    for line in lines[start:]:
        if line.strip() and len(line) - len(line.lstrip(" ")) <= indent and not _may_belong(line, indent):
            break
        found.append("" if line.lstrip(" ").startswith("#") else line)
    return found


def _may_belong(line: str, indent: int) -> bool:
    """Whether a line that is indented no further is nothing but actions: control, or what they indent further."""
    if not line.lstrip(" ").startswith("{{") or _ACTION.sub("", line).strip():
        return False
    depths = [int(depth) for depth in _INDENTED.findall(line)]
    if depths:
        return depths[-1] > indent
    return all(_rendered(text.strip(" \t-")) is None for text in _ACTION.findall(line))


def _rendered(action: str) -> str | None:
    """The value that an action renders as YAML; None for any other action."""
    if action.split(" ")[0] in (*_OPENS, "else", "end") or not _RENDERS.search(action):
        return None
    values = [str(value) for value in _VALUE.findall(action)]
    return max(values, key=len) if values else "a value"


def _guarded(value: str, frames: Sequence[_Frame]) -> bool:
    """Whether an open ``with`` or ``if`` lets the action through only when ``value`` has content."""
    for frame in reversed(frames):
        if frame.guards(value):
            return True
        if value == "." and frame.rebinds_dot():
            return False
    return False
