"""Output of the node-side programs, pure: JSON objects, one a line, first "start" (program, version), last "end"."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from lab.model import ParseError

Record = dict[str, Any]


def records(text: str, program: str, version: int = 1) -> list[Record]:
    """All records of one program's output; ParseError when it is another program's, another version's, or cut."""
    found: list[Record] = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ParseError(f"{program}: a line is not JSON", line) from error
        if not isinstance(record, dict) or "kind" not in record:
            raise ParseError(f"{program}: a line is not a record", line)
        found.append(record)
    if not found or found[0]["kind"] != "start" or found[0].get("program") != program:
        raise ParseError(f"not the output of {program}", text)
    if found[0].get("version") != version:
        raise ParseError(f"{program}: format version {found[0].get('version')}, this lab reads {version}", text)
    if found[-1]["kind"] != "end":
        raise ParseError(f"{program}: the output is cut, its end is missing", text[-200:])
    return found


def of_kind(found: Iterable[Record], kind: str) -> list[Record]:
    """Records of one kind, in order."""
    return [record for record in found if record["kind"] == kind]
