"""Class matrix and quota answers. Pure; the observations are those of the stages class and quota."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lab.report.page.model import MISSING, Grid, GridCell, Part, Value, value_of
from lab.report.page.rows import Row

NAMESPACE = "lab"
WAYS = {"create": "created for real", "dry_run": "server-side dry run"}


def class_parts(rows: Sequence[Row], key: str) -> list[Part]:
    """Versions by pods: class by status, by cgroup path, and the block as stored."""
    grid = Grid(
        id=f"{key}-matrix",
        caption="Per version and pod: status.qosClass, the cgroup that the pod sits in, the pod-level block as stored",
        columns=("version", *_columns(rows)),
        rows=tuple(
            (Value(text=row.label), tuple(_class_cell(row, name) for name in _columns(rows))) for row in rows
        ),
    )
    return [Part(picture=grid)]


def _columns(rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for row in rows for name in row.columns))


def _class_cell(row: Row, name: str) -> GridCell:
    pod = row.observation["pods"].get(name)
    if pod is None:
        return GridCell(values=(MISSING,))
    status, by_path = pod["status_class"], pod["cgroup_class"]
    shown = value_of(status, row.cite_pod("pods.json", NAMESPACE, name, "status", "qosClass"))
    values = [shown, _path_value(row, name, pod), _stored_value(row, name, pod["stored"])]
    if status is not None and pod["expected_class"] not in (None, status):
        values.append(Value(text=f"the classifier says {pod['expected_class']}"))
    tone = "unknown"
    if None not in (status, by_path):
        tone = status if status == by_path else "differs"
    return GridCell(values=tuple(values), tone=tone)


def _path_value(row: Row, name: str, pod: Mapping[str, Any]) -> Value:
    path = pod["cgroup_path"]
    if path is None:
        return Value(text="no cgroup path", is_missing=True)
    file = row.raw["cgroups.jsonl"]
    lines = [
        number
        for number, record in file.records
        if (record.get("level"), record.get("pod"), record.get("path")) == ("pod", name, path)
    ]
    ref = row.cite_pair(file, lines[0], "path", path) if lines else None
    return value_of(f"in {path.split('/')[-2]}", ref)


def _stored_value(row: Row, name: str, stored: str | None) -> Value:
    """The block in words, linked to its lines; an absent block has no line."""
    if stored is None:
        return Value(text="block not read", is_missing=True)
    if stored == "absent":
        return Value(text="no block")
    ref = row.cite_pod("pods.json", NAMESPACE, name, "spec", "resources")
    return value_of(f"block {_block_text(stored)}", ref)


def _block_text(stored: str) -> str:
    block = json.loads(stored)
    parts = [
        f"{kind} {', '.join(f'{resource} {amount}' for resource, amount in sorted(amounts.items()))}"
        for kind, amounts in sorted(block.items(), reverse=True)
        if isinstance(amounts, dict)
    ]
    return "; ".join(parts) if block and len(parts) == len(block) else stored


# --- quota ------------------------------------------------------------------------------------------------------------


def quota_parts(rows: Sequence[Row], key: str) -> list[Part]:
    """Versions by pods: what the server answered, and its words."""
    columns = _columns(rows)
    grid = Grid(
        id=f"{key}-answers",
        caption="Per version and pod: the answer to real creation, and to the dry run where it differs",
        columns=("version", *columns),
        rows=tuple((Value(text=row.label), tuple(_answer_cell(row, name) for name in columns)) for row in rows),
    )
    words = Grid(
        id=f"{key}-words",
        caption="The server's own words",
        columns=("version and pod", *WAYS.values()),
        rows=tuple(
            (
                Value(text=f"{row.label}: {name}"),
                tuple(GridCell(values=(_message(row, name, way),)) for way in WAYS),
            )
            for row in rows
            for name in columns
            if name in row.observation["pods"]
        ),
    )
    return [Part(picture=grid), Part(heading="The server's words", tables=(words,), is_folded=True)]


def _answer_cell(row: Row, name: str) -> GridCell:
    pod = row.observation["pods"].get(name)
    if pod is None:
        return GridCell(values=(MISSING,))
    values = [_answer(row, name, "create")]
    if pod["dry_run"] != pod["create"]:
        values.append(_answer(row, name, "dry_run", "dry run: "))
    agreed = row.view["pods"][name]["answer"]
    if agreed is None:
        values.append(Value(text="answers and what is stored do not agree"))
    return GridCell(values=tuple(values), tone=agreed or "unknown")


def _answer(row: Row, name: str, way: str, lead: str = "") -> Value:
    answer = row.observation["pods"][name][way]
    if answer is None:
        return Value(text=f"{lead}no answer", is_missing=True)
    file = row.raw[f"answer-{name}-{way}.json"]
    said = file.document if isinstance(file.document, dict) else {}
    return value_of(f"{lead}{answer}", row.cite_pair(file, 1, "exit", said.get("exit")))


def _message(row: Row, name: str, way: str) -> Value:
    message = row.observation["pods"][name][f"{way}_message"]
    file = row.raw[f"answer-{name}-{way}.json"]
    said = file.document if isinstance(file.document, dict) else {}
    stream = "stdout" if said.get("exit") == 0 else "stderr"
    return value_of(message, row.cite_pair(file, 1, stream, said.get(stream)))
