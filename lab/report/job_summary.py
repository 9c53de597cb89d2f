"""The verdicts as GitHub shows them: Markdown for a job's summary, and annotations for its log. Pure.

Claim texts and reasons may quote what a node printed, so every character that Markdown or HTML reads is written as an
entity, and an annotation is one line of the form of a workflow command
(docs.github.com, "Workflow commands for GitHub Actions").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from lab.model import Outcome
from lab.report.comparability import MUST_AGREE, Selection, attempt_order, verdicts_of
from lab.report.tables import labels, markdown, one_line, verdict_frame

LIMIT_BYTES = 1 << 20
"""What GitHub takes of one step; above it the step's whole summary is dropped."""
MOST_ANNOTATIONS = 10
"""Of each level and step; GitHub shows no more."""
TITLE = "## node lab"
CUT = "The rest is left out, since GitHub takes 1 MiB of one step; `summary.md` in the results folder has it all."

_MARKS = re.compile(r"(?<!\w)_|_(?!\w)|[\\`*{}\[\]<>#&@!|~]")


def escape(text: str) -> str:
    """Text on one line that Markdown and HTML show as it is."""
    return _MARKS.sub(lambda match: f"&#{ord(match[0])};", one_line(text))


def render(selection: Selection, claims: Mapping[str, str], room_bytes: int = LIMIT_BYTES) -> str:
    """The verdict tables and every verdict that is not HELD, in at most ``room_bytes`` of UTF-8; empty if not even
    the first lines have room. ``claims`` maps ids to titles in the order of their rows.
    """
    blocks = [f"{TITLE}\n\n{_counts(selection)}", *_tables(selection, claims)]
    remarks = _remarks(selection)
    if remarks:
        blocks += ["Not held:", *remarks]
    return _fitting(blocks, room_bytes)


def _counts(selection: Selection) -> str:
    found = Counter(verdict.outcome for attempt in selection.attempts for verdict in verdicts_of(attempt))
    if not found:
        return "No claim was judged."
    return ", ".join(f"{found[outcome]} {outcome.value}" for outcome in Outcome if found[outcome])


def _tables(selection: Selection, claims: Mapping[str, str]) -> list[str]:
    blocks = []
    for key in selection.environments():
        facts = dict(key)
        names = [*(name for name in MUST_AGREE if name in facts), *(name for name in facts if name not in MUST_AGREE)]
        blocks.append(f"Environment: {', '.join(f'{escape(name)} {escape(facts[name])}' for name in names)}")
        frame = verdict_frame(selection, key, claims)
        frame.columns = [escape(str(title)) for title in frame.columns]
        blocks.append(markdown(frame.map(lambda value: escape(str(value)))))
    return blocks


def _remarks(selection: Selection) -> list[str]:
    label = labels(selection)
    return [
        f"- {escape(label[attempt.cell.name])}: {escape(verdict.claim)} {verdict.outcome.value}: "
        f"{escape(verdict.reason)}"
        for attempt in sorted(selection.attempts, key=attempt_order)
        for verdict in verdicts_of(attempt)
        if verdict.outcome is not Outcome.HELD
    ]


def _fitting(blocks: Sequence[str], room_bytes: int) -> str:
    """Whole blocks as long as there is room, then a line that says so."""
    parts = [f"{block}\n" if block.startswith("- ") else f"{block}\n\n" for block in blocks]
    if sum(len(part.encode()) for part in parts) <= room_bytes:
        return "".join(parts)
    last = f"\n{CUT}\n\n"
    room = room_bytes - len(last.encode())
    kept = ""
    for part in parts:
        room -= len(part.encode())
        if room < 0:
            break
        kept += part
    return kept + last if kept else ""


def log_lines(selection: Selection) -> list[str]:
    """``::error`` for each FALSIFIED, ``::warning`` for each UNKNOWN: the first ten of each."""
    label = labels(selection)
    found = []
    for outcome, command in ((Outcome.FALSIFIED, "error"), (Outcome.UNKNOWN, "warning")):
        mine = [
            (label[attempt.cell.name], verdict)
            for attempt in sorted(selection.attempts, key=attempt_order)
            for verdict in verdicts_of(attempt)
            if verdict.outcome is outcome
        ]
        found += [
            f"::{command} title={_property(f'{verdict.claim} {outcome.value}')}::"
            f"{_message(f'{cell}: {one_line(verdict.reason)}')}"
            for cell, verdict in mine[:MOST_ANNOTATIONS]
        ]
    return found


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(one_line(text)).replace(":", "%3A").replace(",", "%2C")
