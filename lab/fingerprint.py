"""Is a machine as it was? The output of node-scripts/fingerprint.py, parsed and compared. Pure.

What any machine changes by itself is left out by :data:`IGNORED`, each rule with its reason. Modules are shown and not
compared: they stay loaded after their last user, cannot be unloaded safely while anybody else may have begun to use
them, and change nothing for whoever does not use them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lab.model import ParseError
from lab.parse.lines import records

PROGRAM, VERSION = "fingerprint", 1

Value = str | tuple[str, ...]
Key = tuple[str, str]

WORDS = {
    "unit": "unit", "unit-file": "unit file", "mount": "mount", "swap": "swap area", "cgroup": "cgroup",
    "interface": "network interface", "firewall": "firewall", "sysctl": "kernel parameter", "user": "user",
    "group": "group", "process": "processes named", "file": "file",
}  # fmt: skip
"""Kinds that are compared, and how a person reads them."""

LISTS = ("mount", "firewall")
TREES = ("cgroup", "file")
"""Kinds whose names are paths: of a new or a missing folder the folder alone is told."""

_LOGIN = r"user@\d+\.service|user-runtime-dir@\d+\.service|user-\d+\.slice|session-[^/]+\.scope|sshd?@[^/]+\.service"
_ON_DEMAND = (
    r"(?:systemd-(?:hostnamed|timedated|localed|machined|importd|portabled|userdbd|bsod|coredump@.*|nsresourced)|udisks2|snapd"
    r"|packagekit|fwupd|polkit|upower|accounts-daemon|colord|geoclue|rtkit-daemon|systemd-logind-varlink@.*)\.service"
)

IGNORED: tuple[tuple[tuple[str, ...], str, str], ...] = (
    # Kinds, pattern of the whole name, reason.
    (("unit", "unit-file"), _LOGIN, "logins come and go, the lab's own among them"),
    (("unit", "unit-file"), r"run-[^/]+\.scope", "scopes of systemd-run end with the program that was called"),
    (("unit",), _ON_DEMAND, "started by D-Bus or a socket for whoever asks, ends when idle"),
    (("unit",), r"system-[^/]+\.slice", "made by systemd with the first instance of a template unit"),
    (("unit",), r".*\.(?:device|swap|mount|automount)", "devices come with hardware; mounts and swap are compared"),
    (("unit", "unit-file"), r"(?:docker|libpod)-[^/]+\.scope", "containers of the user's own, with new ids each time"),
    (("mount",), r"/run/(?:user|credentials|snapd|docker)(?:/.*)?", "of logins, of services that start, of snapd"),
    (("mount",), r"/proc/sys/fs/binfmt_misc", "an automount: there from its first use on"),
    (("mount",), r"/snap/.*", "snapd refreshes by itself"),
    (("mount",), r"/var/lib/(?:docker|containers/storage)(?:/.*)?", "containers of the user's own"),
    (("cgroup",), r"/(?:user\.slice|init\.scope|machine\.slice/.*)(?:/.*)?", "logins, PID 1, the user's own machines"),
    (("cgroup",), r"/system\.slice/.*\.(?:mount|swap|socket|automount)", "follow their units, only while they act"),
    (("cgroup",), r"/system\.slice/system-[^/]+\.slice", "as for units"),
    (("cgroup",), r"(?:/.*)?/(?:docker|libpod)-[^/]+\.scope(?:/.*)?", "containers of the user's own"),
    (("cgroup",), r"/docker/.*", "containers of the user's own"),
    (("file",), r"/etc/(?:resolv\.conf|adjtime|ld\.so\.cache|\.pwd\.lock)", "DHCP, the clock, caches"),
    (("file",), r"/etc/(?:lvm/(?:archive|backup|cache)|cups/subscriptions\.conf).*", "written by their services"),
    (("file",), r"/root/\.(?:bash_history|lesshst|viminfo|wget-hsts|cache|python_history).*", "written by any login"),
    (("file",), r"/run/.*\.(?:pid|lock)", "written by any service that starts"),
    (("file",), r"/run/(?:utmp|motd\.dynamic.*|reboot-required.*|user|initctl|agetty\.reload)", "logins, upgrades"),
    (("file",), r"/run/(?:credentials|log|blkid|udev|cloud-init|needrestart|sudo)", "made on demand by the system"),
)  # fmt: skip
"""No size is taken below /var/lib and /run at all, and little depth: apt, dpkg, systemd's timers and random seed, DHCP
leases, chrony, snapd and every database write there. /var/log is looked at for folders only, since logs rotate."""

BUILT_IN_TABLES = {"filter", "nat", "mangle", "raw", "security"}
"""Once used, these stay until their module goes (legacy) or the table is deleted (nft); empty, they let all pass."""

_IDLE_CHAIN = re.compile(r"chain \S+ \{\s*type [^\n{}]*policy accept;\s*\}")
_STATE = (
    (re.compile(r"counter packets \d+ bytes \d+"), "counter"),
    (re.compile(r"\bused \d+ \w+"), "used"),
    (re.compile(r" expires [0-9a-z]+"), ""),
)
"""What changes in a ruleset of nft without anybody changing a rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """``entries``: (kind, name) to a text, or to texts in order. ``modules`` are shown alone."""

    entries: Mapping[Key, Value]
    modules: tuple[str, ...]


def parse(text: str) -> Fingerprint:
    """Output of the program; ParseError when it is cut, of another version, or says something twice."""
    entries: dict[Key, Value] = {}
    modules: list[str] = []
    raw = _raw(text)
    for (kind, name), value in raw.items():
        if kind == "module":
            modules.append(name)
        elif kind == "firewall":
            for table, rules in _tables(name, value):
                entries[kind, table] = rules
        elif not is_ignored(kind, name) and not (kind == "cgroup" and _unit_settles(raw, name)):
            state = _unit_state(value) if kind == "unit" and isinstance(value, str) else value
            if state is not None and not (kind == "unit-file" and state == "transient"):
                entries[kind, name] = state
    return Fingerprint(entries=entries, modules=tuple(modules))


def is_ignored(kind: str, name: str) -> bool:
    """Whether a rule of :data:`IGNORED` leaves it out; a cgroup also when its unit is left out."""
    if any(kind in kinds and re.fullmatch(pattern, name, re.DOTALL) for kinds, pattern, _ in IGNORED):
        return True
    return kind == "cgroup" and any(is_ignored("unit", part) for part in name.split("/") if part.endswith(".service"))


def _raw(text: str) -> dict[Key, Value]:
    """Lines as they are, by kind and name."""
    found: dict[Key, Value] = {}
    for record in records(text, PROGRAM, VERSION)[1:-1]:
        kind, name, value = record["kind"], record.get("name"), record.get("value")
        if kind not in WORDS and kind != "module":
            raise ParseError("fingerprint: a kind that is not known", str(kind))
        if isinstance(value, list) and kind in LISTS and all(isinstance(line, str) for line in value):
            value = tuple(value)
        elif not isinstance(value, str) or kind in LISTS:
            raise ParseError(f"fingerprint: the value of a {kind}", str(record))
        if not isinstance(name, str):
            raise ParseError(f"fingerprint: a {kind} without a name", str(record))
        if (kind, name) in found:
            raise ParseError(f"fingerprint: a {kind} stands there twice", name)
        found[kind, name] = value
    return found


def _unit_state(value: str) -> str | None:
    """``active`` or ``failed``; None for a unit that does nothing, or is on its way (a job that a timer started)."""
    words = value.split()
    if len(words) != 3:
        raise ParseError("fingerprint: the state of a unit is not `load active sub`", value)
    return {"active": "active", "reloading": "active", "refreshing": "active", "failed": "failed"}.get(words[1])


def _unit_settles(raw: Mapping[Key, Value], path: str) -> bool:
    """Whether a cgroup belongs to a unit that is just starting or stopping: a timer's job, not something left."""
    states = [str(raw.get(("unit", part), "")).split() for part in path.split("/") if part]
    return any(len(words) == 3 and words[1] in ("activating", "deactivating") for words in states)


def _tables(tool: str, value: Value) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What one tool printed, table by table: no comments, no counters, no built-in table without an effect."""
    lines = [value] if isinstance(value, str) else list(value)
    if lines and re.match(r"\((?:exit \d+|not installed)\)", lines[0]):
        yield tool, tuple(lines)
        return
    split = _nft_tables if tool == "nft" else _saved_tables
    found: dict[str, list[str]] = {}
    for table, rules in split(lines):
        if table in found:
            raise ParseError(f"fingerprint: {tool} shows a table twice", table)
        found[table] = rules
    for table, rules in found.items():
        yield f"{tool} {table}", tuple(rules)


def _saved_tables(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """iptables-save(8): ``*table``, ``:CHAIN POLICY [packets:bytes]``, rules, ``COMMIT``."""
    table: str | None = None
    rules: list[str] = []
    for line in lines:
        text = re.sub(r"^\[\d+:\d+\] ", "", line.strip())
        if not text or text.startswith("#"):
            continue
        if text.startswith("*"):
            table, rules = text[1:], []
        elif table is None:
            raise ParseError("fingerprint: a rule outside of any table", line)
        elif text == "COMMIT":
            if table not in BUILT_IN_TABLES or any(not re.fullmatch(r":\S+ ACCEPT", rule) for rule in rules):
                yield table, rules
            table = None
        else:
            rules.append(re.sub(r" \[\d+:\d+\]$", "", text) if text.startswith(":") else text)
    if table is not None:
        raise ParseError("fingerprint: a table without its COMMIT", table)


def _nft_tables(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """``nft list ruleset``: blocks ``table FAMILY NAME {`` … ``}`` at the left edge."""
    table: str | None = None
    rules: list[str] = []
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        opened = re.match(r"table (\S+ \S+) \{", line)
        if table is None and opened:
            table, rules = opened[1], []
        elif table is None:
            raise ParseError("fingerprint: nft shows something outside of any table", line)
        elif line.startswith("}"):
            is_idle = not _IDLE_CHAIN.sub("", "\n".join(rules)).strip()
            if not (is_idle and table.split()[1] in BUILT_IN_TABLES):
                yield table, rules
            table = None
        else:
            for pattern, plain in _STATE:
                line = pattern.sub(plain, line)
            rules.append(line.strip())
    if table is not None:
        raise ParseError("fingerprint: a table of nft without its end", table)


def compare(before: Fingerprint, after: Fingerprint) -> tuple[str, ...]:
    """Differences in words, sorted by kind and name; none when the machine is as it was.

    A kernel parameter that was not there before came with a module, and stays as that does: it is no difference.
    """
    changed = {
        key: (before.entries.get(key), after.entries.get(key))
        for key in sorted(before.entries.keys() | after.entries.keys())
        if before.entries.get(key) != after.entries.get(key)
        and not (key[0] == "sysctl" and key not in before.entries)
    }
    found: list[str] = []
    for key, (old, new) in changed.items():
        if not _is_told_by_parent(key, changed):
            found += _told(key, old, new)
    return tuple(found)


def _is_told_by_parent(key: Key, changed: Mapping[Key, tuple[Value | None, Value | None]]) -> bool:
    """Whether a folder above came or went in the same way."""
    kind, name = key
    missing = [value is None for value in changed[key]]
    if kind not in TREES or not any(missing):
        return False
    parents = [(kind, name[:at]) for at, letter in enumerate(name) if letter == "/" and at]
    return any(parent in changed and [value is None for value in changed[parent]] == missing for parent in parents)


def _told(key: Key, old: Value | None, new: Value | None) -> Iterator[str]:
    """One line for a value, one for each line of a list that came, went or moved."""
    what = f"{WORDS[key[0]]} {key[1]}"
    if isinstance(old, tuple) and isinstance(new, tuple):
        yield from (f"{what}: {text}" for text in _lines_changed(old, new))
    else:
        yield f"{what}: {_shown(old)} -> {_shown(new)}"


def _lines_changed(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, start, end, new_start, new_end in matcher.get_opcodes():
        if tag != "equal":
            yield from (f"gone: {line}" for line in old[start:end])
            yield from (f"new: {line}" for line in new[new_start:new_end])


def _shown(value: Value | None) -> str:
    if value is None:
        return "not there"
    if isinstance(value, tuple):
        return "; ".join(value) or "there, empty"
    return value or "there"
