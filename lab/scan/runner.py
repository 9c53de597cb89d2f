"""Configuration of GitLab Runner: whether its job pods go out with an empty pod-level block. Pure.

The runner's version stands nowhere in its configuration, so the answer is never more than possible.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from lab.scan.findings import Finding
from lab.scan.producers import RUNNER_FIRST, RUNNER_FIXED, RUNNER_KEYS, Producer, runner_fix
from lab.scan.records import RUNNER, RUNNER_VALUES, Item, ReadError
from lab.scan.workloads import kind_of

MAX_CHARACTERS = 1 << 20
RUNNERS = "[[runners]]"
"""What begins the configuration of a runner, on a line of its own."""

_HEADING = re.compile(r'\[\[\s*(?:runners|"runners")\s*\]\]\s*(?:#.*)?')
_WHERE = re.compile(r" \(at (?:line (?P<line>\d+), column \d+|end of document)\)$")

_CONTAINER_KEYS = tuple(
    f"{part}{resource}_{amount}"
    for part in ("", "helper_", "service_")
    for resource in ("cpu", "memory")
    for amount in ("request", "limit")
)
_OVERWRITES = tuple(f"{key}_overwrite_max_allowed" for key in _CONTAINER_KEYS)
_LIMIT_KEYS = tuple(key for key in (*_CONTAINER_KEYS, *_OVERWRITES) if "_limit" in key)


def runner_findings(text: str, file: str, first_line: int = 1, *, by_lines: bool = True) -> list[Finding]:
    """A finding per ``[[runners]]`` with the Kubernetes executor; ReadError for text that is no TOML.

    ``first_line`` is the line of the text's first line in its file. Without ``by_lines`` the lines of the text are no
    lines of the file, and ``first_line`` is all that is known.
    """
    if len(text) > MAX_CHARACTERS:
        raise ReadError(first_line, "a runner configuration of more than 1 MiB")
    try:
        runners = tomllib.loads(text).get("runners")
    except (ValueError, RecursionError) as error:
        line, said = _place_of(str(error), text)
        raise ReadError(first_line + (line - 1) * by_lines, f"not TOML: {said}") from None
    entries = [entry for entry in runners if isinstance(entry, dict)] if isinstance(runners, list) else []
    lines = [number for number, line in enumerate(text.split("\n"), first_line) if _HEADING.fullmatch(line.strip())]
    if len(lines) != len(entries) or not by_lines:
        lines = [first_line] * len(entries)
    return [
        _finding(entry, entry["kubernetes"], file, line)
        for entry, line in zip(entries, lines, strict=True)
        if entry.get("executor", "kubernetes") == "kubernetes" and isinstance(entry.get("kubernetes"), dict)
    ]


def embedded_findings(item: Item) -> list[Finding]:
    """Findings of the runner configurations in a ConfigMap, as the runner's chart lays them down; errors as above."""
    value, place = item.value, item.place
    data = value.get("data") if isinstance(value, dict) and kind_of(value, item.kind) == "ConfigMap" else None
    found = []
    for key, text in data.items() if isinstance(data, dict) else ():
        if key.endswith(".toml") and isinstance(text, str) and RUNNERS in text:
            path = ("data", key)
            first = place.line_of_text(path)
            line = place.line_of(path) if first is None else first
            found += runner_findings(text, item.file, line, by_lines=first is not None)
    return found


def _place_of(error: str, text: str) -> tuple[int, str]:
    """Line within the text, from 1, and the rest of what tomllib says."""
    match = _WHERE.search(error)
    if match is None:
        return 1, error
    if match["line"] is None:
        return text.rstrip().count("\n") + 1, error[: match.start()]
    return int(match["line"]), error[: match.start()]


def _finding(runner: Mapping[str, Any], kubernetes: Mapping[str, Any], file: str, line: int) -> Finding:
    own = [key for key in RUNNER_KEYS if kubernetes.get(key)]
    asked = any(kubernetes.get(key) for key in (*_CONTAINER_KEYS, *_OVERWRITES))
    completed = bool(own) and not all(kubernetes.get(key) for key in RUNNER_KEYS[2:])
    completed = completed and any(kubernetes.get(key) for key in _LIMIT_KEYS)
    if completed:
        note = (
            f"{', '.join(own)} set without both limits: 1.37 completes such a block where every container has limits, "
            "1.34-1.36 do not, so the class may differ"
        )
    elif own:
        note = f"{', '.join(own)} set: the class comes from these values, and limits hold for the job pod as a whole"
    elif asked:
        note = f"affected if the runner is {RUNNER_FIRST} or later and below {RUNNER_FIXED}, whose block is empty then"
    else:
        note = "no resources for the job containers: BestEffort anyway, unless a LimitRange gives them some"
    possible = completed or (asked and not own)
    return Finding(
        file=file,
        line=line,
        kind="GitLab Runner",
        name=str(runner.get("name") or "(without a name)"),
        path="runners.kubernetes",
        affected=None if possible else False,
        reason=RUNNER_VALUES if own else RUNNER,
        note=note,
        classes={},
        producer=Producer("GitLab Runner", "", runner_fix()),
        fixes=(runner_fix(),) if possible else (),
    )
