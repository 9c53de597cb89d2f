"""Configuration of GitLab Runner: whether its job pods go out with an empty pod-level block. Pure.

The runner's version stands nowhere in its configuration, so the answer is never more than possible.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from lab.scan.findings import Finding
from lab.scan.producers import RUNNER_FIRST, RUNNER_FIXED, RUNNER_KEYS, Producer, runner_fix
from lab.scan.records import RUNNER, RUNNER_VALUES, Item, ReadError
from lab.scan.workloads import kind_of

MAX_CHARACTERS = 1 << 20
RUNNERS = "[[runners]]"
"""What begins the configuration of a runner, on a line of its own."""

_CONTAINER_KEYS = tuple(
    f"{part}{resource}_{amount}"
    for part in ("", "helper_", "service_")
    for resource in ("cpu", "memory")
    for amount in ("request", "limit")
)
_OVERWRITES = tuple(f"{key}_overwrite_max_allowed" for key in _CONTAINER_KEYS)
_LIMIT_KEYS = tuple(key for key in (*_CONTAINER_KEYS, *_OVERWRITES) if "_limit" in key)


def runner_findings(text: str, file: str, first_line: int = 1) -> list[Finding]:
    """A finding per ``[[runners]]`` with the Kubernetes executor; ReadError for text that is no TOML.

    ``first_line`` is the line of the text's first line in its file.
    """
    if len(text) > MAX_CHARACTERS:
        raise ReadError(first_line, "a runner configuration of more than 1 MiB")
    try:
        runners = tomllib.loads(text).get("runners")
    except (ValueError, RecursionError) as error:
        raise ReadError(first_line, f"not TOML: {error}") from None
    entries = [entry for entry in runners if isinstance(entry, dict)] if isinstance(runners, list) else []
    lines = [number for number, line in enumerate(text.split("\n"), first_line) if line.strip() == RUNNERS]
    if len(lines) != len(entries):
        lines = [first_line] * len(entries)
    return [
        _finding(entry, entry["kubernetes"], file, line)
        for entry, line in zip(entries, lines, strict=True)
        if entry.get("executor", "kubernetes") == "kubernetes" and isinstance(entry.get("kubernetes"), dict)
    ]


def embedded_configurations(item: Item) -> Iterator[str]:
    """Texts of runner configurations in a ConfigMap, as the runner's chart lays them down."""
    value = item.value
    data = value.get("data") if isinstance(value, dict) and kind_of(value, item.kind) == "ConfigMap" else None
    for key, text in data.items() if isinstance(data, dict) else ():
        if key.endswith(".toml") and isinstance(text, str) and RUNNERS in text:
            yield text


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
