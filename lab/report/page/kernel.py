"""The tree of cgroups with what the kernel holds beside what the formulas give. Pure; observations of stage kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lab.report.page.model import MISSING, Node, Part, Reading, Tree, Value, value_of
from lab.report.page.raw import RawFile, Ref
from lab.report.page.rows import Row

FILE = "cgroups.jsonl"
READ = (("cpu.weight", "cpu_weight"), ("cpu.max", "cpu_max"), ("memory.max", "memory_max"))
MIB = 1 << 20
LINEAR = "linear: 1 + (shares - 2) × 9999 / 262142, rounded down; shares = millicores × 1024 / 1000"
LOG_QUADRATIC = "log-quadratic: 10^((l² + 125 l) / 612 - 7/34), rounded up; l = log2(shares)"
LIMITS = "cpu.max: microseconds of CPU in each period (100 ms); memory.max: bytes, in whole pages"
OOM = "oom_score_adj: Guaranteed -997, BestEffort 1000, Burstable 1000 - 1000 × request / node memory (3 to 999)"


def kernel_parts(rows: Sequence[Row], key: str) -> list[Part]:
    """One tree a version; all but the first are folded."""
    parts = []
    for index, row in enumerate(rows):
        tree = _tree(row, f"{key}-{row.key}")
        wrong = [reading for node in _all(tree.roots) for reading in node.readings if reading.is_explained is False]
        said = f"{len(wrong)} values differ from their formulas." if wrong else "No value differs from its formula."
        heading = f"{row.label}: {len(list(_all(tree.roots)))} cgroups"
        parts.append(
            Part(heading=heading, said=(Value(text=said),), picture=tree, is_folded=index > 0 and not wrong)
        )
    return parts


def _all(nodes: Sequence[Node]) -> list[Node]:
    return [found for node in nodes for found in (node, *_all(node.children))]


def _tree(row: Row, key: str) -> Tree:
    observation = row.observation
    parents = {name: _parent(row, name) for name in sorted(observation["parents"])}
    below: dict[str, list[Node]] = {name: [] for name in parents}
    homeless: list[Node] = []
    for name in row.columns:
        pod = observation["pods"].get(name)
        if pod is not None:
            home = None if pod["path"] is None else pod["path"].split("/")[-2]
            below.get(home or "", homeless).append(_pod(row, name, pod))
    tiers = [name for name in parents if name != "kubepods.slice"]
    nested = [_with(parents[name], below[name]) for name in tiers]
    roots = nested
    if "kubepods.slice" in parents:
        roots = [_with(parents["kubepods.slice"], [*below["kubepods.slice"], *nested])]
    container = str(observation["container_formula"])
    legend = [f"pods and slices {observation['pod_formula']}; containers {container}", LINEAR]
    if container.startswith("log-quadratic"):
        legend.append(LOG_QUADRATIC)
    return Tree(
        id=key, caption=f"cgroups of {row.label}", roots=(*roots, *homeless), legend=(*legend, LIMITS, OOM)
    )


def _with(node: Node, children: Sequence[Node]) -> Node:
    return Node(title=node.title, path=node.path, readings=node.readings, children=tuple(children))


def _parent(row: Row, name: str) -> Node:
    file = row.raw[FILE]
    line = _line(file, lambda record: record.get("level") == "parent" and _last(record) == name)
    files = row.observation["parents"][name]
    expected = row.observation["parents_expected"].get(name)
    wanted = {"cpu_weight": expected}
    readings = _readings(row, line, files, wanted, {"cpu_weight": str(row.observation["pod_formula"])})
    return Node(title=name, path=_path(row, line), readings=readings)


def _pod(row: Row, name: str, pod: Mapping[str, Any]) -> Node:
    file = row.raw[FILE]
    line = _line(
        file,
        lambda record: record.get("level") == "pod" and (record.get("pod"), record.get("path")) == (name, pod["path"]),
    )
    expected = pod["expected"] or {}
    formulas = {"cpu_weight": str(row.observation["pod_formula"])}
    readings = _readings(row, line, pod["pod"], expected.get("pod", {}), formulas)
    return Node(
        title=f"{name} ({pod['class'] or 'class not read'})",
        path=_path(row, line),
        readings=readings,
        children=(_container(row, name, pod),),
    )


def _container(row: Row, name: str, pod: Mapping[str, Any]) -> Node:
    file = row.raw[FILE]
    wanted = row.container_id("pods.json", name)

    def is_own(record: Mapping[str, Any], key: str) -> bool:
        return wanted is not None and record.get("pod") == name and wanted in str(record.get(key))

    line = _line(file, lambda record: record.get("level") == "container" and is_own(record, "path"))
    expected = pod["expected"] or {}
    formulas = {"cpu_weight": str(row.observation["container_formula"])}
    readings = [*_readings(row, line, pod["container"], expected.get("container", {}), formulas)]
    processes = [
        (number, record)
        for number, record in file.records
        if record.get("kind") == "process" and is_own(record, "cgroup")
    ]
    for title in ("oom_score_adj", "oom_score"):
        value = pod[title]
        lines = [number for number, record in processes if record.get(title) == str(value)]
        ref = row.cite_pair(file, lines[0], title, str(value)) if lines else None
        wanted_text = expected.get(title)
        readings.append(
            Reading(
                name=title,
                read=value_of(value, ref),
                expected=None if wanted_text is None else str(wanted_text),
                formula="the kubelet's, by class" if title == "oom_score_adj" else "",
            )
        )
    return Node(title="container", path=_path(row, line), readings=tuple(readings))


def _readings(
    row: Row, line: int | None, files: Mapping[str, Any], expected: Mapping[str, Any], formulas: Mapping[str, str]
) -> tuple[Reading, ...]:
    found = []
    for title, key in READ:
        wanted = expected.get(key)
        found.append(
            Reading(
                name=title,
                read=_read(row, line, title, files[key]),
                expected=None if wanted is None else str(wanted),
                formula=formulas.get(key, ""),
            )
        )
    return tuple(found)


def _read(row: Row, line: int | None, title: str, value: Any) -> Value:
    if value is None:
        return MISSING
    ref: Ref | None = None if line is None else row.cite_pair(row.raw[FILE], line, title, str(value))
    note = f"{int(value) / MIB:g} MiB" if title == "memory.max" and str(value).isdigit() else ""
    return value_of(value, ref, note=note)


def _path(row: Row, line: int | None) -> Value:
    """The last part of a cgroup's path."""
    if line is None:
        return Value(text="no such cgroup was read", is_missing=True)
    record = dict(row.raw[FILE].records)[line]
    return value_of(_last(record), row.cite_pair(row.raw[FILE], line, "path", record["path"]))


def _last(record: Mapping[str, Any]) -> str:
    return str(record.get("path", "")).rpartition("/")[2]


def _line(file: RawFile, fits: Callable[[Mapping[str, Any]], bool]) -> int | None:
    return next((number for number, record in file.records if fits(record)), None)
