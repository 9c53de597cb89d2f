"""Kubelet log text to eviction-manager events.

Reads ``journalctl -o short-unix`` (time from the journal), other journal and syslog prefixes and bare klog
text (time from the klog header, which has no year), and klog's JSON format, with or without a journal
prefix. The messages are those of ``pkg/kubelet/eviction/eviction_manager.go`` and ``helpers.go`` beside it,
the text form that of ``k8s.io/klog/v2`` (``internal/serialize/keyvalues.go``, ``k8s_references.go``). Other
lines, logrus ones included, are skipped; an eviction-manager line that is not whole raises ParseError, so
that no order is ever read from a part.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from lab.model import Missing, ParseError, UsageError
from lab.quantity import memory_bytes

_PREFIX = "Eviction manager: "
# Message to (kind, keys without which the line is not whole).
_MESSAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    _PREFIX + "starting control loop": ("control_loop", ()),
    _PREFIX + "attempting to reclaim": ("reclaim", ("resourceName",)),
    _PREFIX + "must evict pod(s) to reclaim": ("must_evict", ("resourceName",)),
    _PREFIX + "pods ranked for eviction": ("ranked", ("pods",)),
    "Evicting pod": ("evicting", ("pod",)),
    _PREFIX + "pod is evicted successfully": ("evicted", ("pod",)),
    _PREFIX + "pod failed to evict": ("failed", ("pod",)),
    _PREFIX + "cannot evict a critical pod": ("critical_refused", ("pod",)),
    _PREFIX + "pods evicted, waiting for pod to be cleaned up": ("waiting_cleanup", ("pods",)),
    _PREFIX + "pods successfully cleaned up": ("cleaned_up", ("pods",)),
    _PREFIX + "timed out waiting for pods to be cleaned up": ("cleanup_timeout", ("pods",)),
    _PREFIX + "unable to evict any pods from the node": ("unable", ()),
    _PREFIX + "able to reduce resource pressure without evicting pods.": ("reduced", ("resourceName",)),
    _PREFIX + "threshold observed resource": ("observation", ("signal", "available")),
    _PREFIX.strip(): ("observation", ("signal", "available")),
    _PREFIX + "no resources are starved": ("none_starved", ()),
}
OTHER = "other"
KINDS = frozenset({kind for kind, _ in _MESSAGES.values()} | {OTHER})

_SOURCE_FILE = "eviction_manager.go"
_UNIT = r"(?:\S+ )?[^\s\[\]:]+(?:\[\d+\])?: "
_SHORT_UNIX = re.compile(r"(?P<time>\d{10}\.\d{6}) " + _UNIT)
_OTHER_PREFIX = re.compile(r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|\d{4}-\d\d-\d\dT\S+) " + _UNIT)
_HEADER = re.compile(
    r"[IWEF](?P<date>\d{4} \d\d:\d\d:\d\d\.\d{6})\s+\d+ (?P<file>[^\s:\]]+):\d+\](?: |$)(?P<rest>.*)", re.DOTALL
)
# What is left of an eviction-manager line that lost its head, or its tail inside the header.
_REMNANT = re.compile(r'eviction_manager\.go:\d+\] "|^"?Eviction manager:|^[IWEF]\d{4} [^\]]*\seviction_')
_AVAILABLE = re.compile(r"\bavailable: (?P<quantity>[0-9]+[A-Za-z]*)\.")
_KEY = re.compile(r'(?P<key>[^\s="\[\]{}]+)=')
# Old klog printed structures with %+v, so an unquoted value may hold spaces; it goes on until the next key.
_UNQUOTED = re.compile(r'\S+(?:\s+(?![^\s="\[\]{}]+=)\S+)*')
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4})|([abfnrtv\\\"']))"
)
_SIMPLE_ESCAPES = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))
_POD = re.compile(r"[a-z0-9][-a-z0-9.]*/[a-z0-9][-a-z0-9.]*", re.ASCII)
# JSON time stamps are milliseconds in current releases and seconds in the format's description.
_SMALLEST_MS = 1e11


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionEvent:
    """One line of the eviction manager.

    ``time_s``: seconds since the epoch. ``kind``: one of :data:`KINDS`. ``pods``: ``namespace/name``, in a
    ranking the next victim first. ``detail``: the line's other keys as text (``resourceName``, ``signal``,
    ``available``, ``capacity``, ``message``, ``err`` …), for kind ``other`` also ``msg``, the message
    itself.
    """

    time_s: float
    kind: str
    pods: tuple[str, ...]
    detail: Mapping[str, str]


def parse_events(text: str, *, year: int | None = None) -> tuple[EvictionEvent, ...]:
    """All eviction-manager events of a log, in its order.

    ``year``, in which the log begins, is needed for lines without a ``short-unix`` prefix and not in JSON;
    their time is read as UTC and a leap back of months as a new year. ParseError quotes a line that is not
    whole; UsageError when the year is needed and absent.
    """
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    clock = _HeaderClock(year)
    events = []
    position = 0
    while position < len(lines):
        journal_time, body = _without_prefix(lines[position])
        position += 1
        header = _HEADER.fullmatch(body)
        if body.startswith("{"):
            event = _json_event(body, journal_time)
            if event is not None:
                events.append(event)
        elif header is None:
            if _REMNANT.search(body):
                raise ParseError("eviction manager line without a whole klog header", body)
        elif _is_ours(header["file"], header["rest"]):
            rest, position = _with_continuation(header["rest"], lines, position)
            message, fields = split_structured(rest)
            time_s = clock.seconds(header["date"]) if journal_time is None else journal_time
            events.append(_event(time_s, message, fields, body))
    return tuple(events)


def kubelet_available_bytes(event: EvictionEvent) -> int:
    """The kubelet's own figure of what is available, in bytes.

    From an observation of a signal counted in bytes, or the message of an eviction. Missing when the event
    carries no such figure; ParseError when it is no quantity.
    """
    signal = event.detail.get("signal", "")
    if event.kind == "observation" and signal.endswith(".available") and signal != "pid.available":
        return memory_bytes(event.detail["available"])
    match = _AVAILABLE.search(event.detail.get("message", "")) if event.kind == "evicting" else None
    if match is None:
        raise Missing(f"the {event.kind} event carries no available amount in bytes")
    return memory_bytes(match["quantity"])


def split_structured(text: str) -> tuple[str, dict[str, str]]:
    """Message and key-value pairs of a klog line after its header.

    Quoted values are unquoted, multi-line values joined by newlines; lists and structures stay as they are
    written. Text that does not start with a quotation mark is an unstructured message without pairs.
    ParseError when a quotation, list or multi-line value does not end, or a key has no value or comes
    twice.
    """
    if not text.startswith('"'):
        if not text.strip():
            raise ParseError("klog line without a message", text)
        return text.strip(), {}
    message, position = _quoted(text, 0)
    fields: dict[str, str] = {}
    while text[position:].strip():
        if not text[position].isspace():
            raise ParseError("klog value followed by other text", text)
        position += len(text[position:]) - len(text[position:].lstrip())
        key = _KEY.match(text, position)
        if key is None:
            raise ParseError("klog key without a value", text)
        if key["key"] in fields:
            raise ParseError(f"klog key {key['key']} twice in a line", text)
        fields[key["key"]], position = _value(text, key.end())
    return message, fields


def parse_pods(value: str) -> tuple[str, ...]:
    """Pods of a list as klog writes it: ``["ns/a","ns/b"]``, older ``[ns/a ns/b]``; none for ``[]``.

    ParseError for anything else, a name that is no ``namespace/name``, or a pod that comes twice.
    """
    if not (value.startswith("[") and value.endswith("]")):
        raise ParseError("not a klog list of pods", value)
    if value.startswith('["'):
        try:
            items = json.loads(value)
        except ValueError as error:
            raise ParseError("not a klog list of pods", value) from error
    else:
        items = value[1:-1].split()
    return _pod_names(items, value)


class _HeaderClock:
    """Klog header times to seconds; keeps the year as the log goes on."""

    def __init__(self, year: int | None) -> None:
        self._year = year
        self._last: datetime | None = None

    def seconds(self, date: str) -> float:
        """Seconds since the epoch of ``MMDD hh:mm:ss.ffffff``."""
        if self._year is None:
            raise UsageError(
                "klog lines carry no year: give the year in which the log begins, "
                "or export the journal with -o short-unix"
            )
        time = self._read(date)
        if self._last is not None and self._last - time > timedelta(days=180):
            self._year += 1
            time = self._read(date)
        self._last = time
        return time.timestamp()

    def _read(self, date: str) -> datetime:
        try:
            return datetime.strptime(f"{self._year:04d}{date}", "%Y%m%d %H:%M:%S.%f").replace(tzinfo=UTC)
        except ValueError as error:
            raise ParseError("klog header with an impossible time", date) from error


def _without_prefix(line: str) -> tuple[float | None, str]:
    """Journal time, if the line has one that is absolute, and the line as the process wrote it."""
    match = _SHORT_UNIX.match(line)
    if match is not None:
        return float(match["time"]), line[match.end() :]
    match = _OTHER_PREFIX.match(line)
    return None, line if match is None else line[match.end() :]


def _is_ours(file: str, rest: str) -> bool:
    return file.rpartition("/")[2] == _SOURCE_FILE or rest.removeprefix('"').casefold().startswith("eviction manager")


def _with_continuation(rest: str, lines: Sequence[str], position: int) -> tuple[str, int]:
    """The text with the lines of a multi-line value, and the position after them."""
    while rest.endswith("=<"):
        start = rest
        while True:
            if position == len(lines):
                raise ParseError("klog value that does not end", start)
            body = _without_prefix(lines[position])[1]
            if _HEADER.fullmatch(body):
                raise ParseError("klog value that does not end", start)
            rest += "\n" + body
            position += 1
            if body.startswith(" >"):
                break
    return rest, position


def _json_event(body: str, journal_time: float | None) -> EvictionEvent | None:
    """Event of a line in klog's JSON format, None when another component wrote it."""
    try:
        record = json.loads(body)
    except (ValueError, RecursionError) as error:
        if _SOURCE_FILE in body or _PREFIX.strip() in body:
            raise ParseError("eviction manager line that is not whole JSON", body) from error
        return None
    caller, message = str(record.get("caller", "")), record.get("msg")
    if not isinstance(message, str) or not _is_ours(caller.partition(":")[0], message):
        return None
    stamp = record.get("ts") if journal_time is None else journal_time
    if isinstance(stamp, bool) or not isinstance(stamp, int | float):
        raise ParseError("eviction manager line without a time", body)
    fields = {key: value for key, value in record.items() if key not in ("ts", "caller", "msg", "v")}
    return _event(stamp / 1000 if stamp > _SMALLEST_MS else float(stamp), message, fields, body)


def _event(time_s: float, message: str, fields: Mapping[str, Any], line: str) -> EvictionEvent:
    """Event of a message and its fields: text values from klog text, any JSON value from klog JSON."""
    kind, needed = _MESSAGES.get(message, (OTHER, ()))
    absent = [key for key in needed if fields.get(key) in (None, "")]
    if absent:
        raise ParseError(f"eviction manager line without {', '.join(absent)}", line)
    detail = {} if kind != OTHER else {"msg": message}
    pods: tuple[str, ...] = ()
    for key, value in fields.items():
        if key in needed and key in ("pod", "pods"):
            items = [value] if key == "pod" else value
            pods = parse_pods(items) if isinstance(items, str) else _pod_names(items, line)
        else:
            detail[key] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if kind == "ranked" and not pods:
        raise ParseError("eviction manager line that ranks no pod", line)
    return EvictionEvent(time_s=time_s, kind=kind, pods=pods, detail=detail)


def _pod_names(items: object, shown: str) -> tuple[str, ...]:
    """``namespace/name`` of each item, which is that text or an object with both."""
    if not isinstance(items, list):
        raise ParseError("not a list of pods", shown)
    names = []
    for item in items:
        name = f"{item.get('namespace')}/{item.get('name')}" if isinstance(item, dict) else item
        if not isinstance(name, str) or _POD.fullmatch(name) is None:
            raise ParseError("not a pod as namespace/name", shown)
        names.append(name)
    if len(set(names)) != len(names):
        raise ParseError("a pod twice in one list", shown)
    return tuple(names)


def _value(text: str, start: int) -> tuple[str, int]:
    """Value that starts at ``start``, and the position after it."""
    if text.startswith('"', start):
        return _quoted(text, start)
    if text.startswith(("[", "{"), start):
        end = _bracketed(text, start)
        return text[start:end], end
    if text.startswith("<\n", start):
        end = text.find("\n >", start)
        if end < 0:
            raise ParseError("klog value that does not end", text)
        return "\n".join(line.removeprefix("\t") for line in text[start + 2 : end].split("\n")), end + 3
    unquoted = _UNQUOTED.match(text, start)
    return (unquoted[0], unquoted.end()) if unquoted else ("", start)


def _quoted(text: str, start: int) -> tuple[str, int]:
    """Go-quoted string that starts at ``start``, unquoted, and the position after it."""
    position = start + 1
    while position < len(text) and text[position] != '"':
        position += 2 if text[position] == "\\" else 1
    if position >= len(text):
        raise ParseError("klog string that does not end", text)
    raw = text[start + 1 : position]
    if "\\" in _ESCAPE.sub("", raw):
        raise ParseError("klog string with an unknown escape", text)
    return _ESCAPE.sub(_unescape, raw), position + 1


def _unescape(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    if digits is not None:
        return chr(int(digits, 16))
    return _SIMPLE_ESCAPES.get(match[4], match[4])


def _bracketed(text: str, start: int) -> int:
    """Position after the list or structure that starts at ``start``; brackets in strings do not count."""
    closing = {"[": "]", "{": "}"}
    expected: list[str] = []
    position = start
    while position < len(text):
        character = text[position]
        if character == '"':
            position = _quoted(text, position)[1]
            continue
        if character in closing:
            expected.append(closing[character])
        elif character in "]}" and character != expected.pop():
            raise ParseError("klog list with brackets that do not match", text)
        position += 1
        if not expected:
            return position
    raise ParseError("klog list that does not end", text)
