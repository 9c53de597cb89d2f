"""Eviction timelines, one a repetition, and as tables. Pure; observations of the eviction stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.model import LabError, Missing, ParseError
from lab.parse.eviction import MIB, PREFIX, ranked_pods, settled
from lab.parse.kubelet_log import EvictionEvent, kubelet_available_bytes, parse_events
from lab.quantity import memory_bytes
from lab.report.page.model import MISSING, Chart, Grid, GridCell, Line, Panel, Part, Point, Series, Value, value_of
from lab.report.page.raw import RawFile, Ref
from lab.report.page.rows import Row

LABEL_ROWS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """An event of the kubelet's log: seconds after the hog's start, what it was, and its line where it was found.

    The line is only cited when it is shown.
    """

    at_s: float
    event: EvictionEvent
    row: Row
    log: RawFile
    line: int | None

    @property
    def ref(self) -> Ref | None:
        """Its line as evidence."""
        return None if self.line is None else self.row.evidence.cite(self.log, self.log.lines[self.line - 1], self.line)

    @property
    def refs(self) -> tuple[Ref, ...]:
        """The same for a chart."""
        ref = self.ref
        return () if ref is None else (ref,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """The raw side of one repetition. ``press`` is the hog's start (Unix seconds), ``requests`` bytes by pod."""

    row: Row
    number: int
    entry: Mapping[str, Any]
    press: float
    samples: tuple[tuple[int, Mapping[str, Any]], ...]
    happenings: tuple[Happening, ...]
    requests: Mapping[str, int]

    @property
    def hog(self) -> RawFile:
        """What the hog said."""
        return self.row.raw[f"{self.number}-hog.jsonl"]


def eviction_parts(rows: Sequence[Row], key: str) -> list[Part]:
    """A chart and two tables for each repetition, or why there is none; then what is to be said of the order."""
    parts = []
    for row in rows:
        for entry in row.observation["repetitions"]:
            heading = f"{row.label}, repetition {entry['repetition']}"
            found = _read(row, entry)
            if found is None:
                text = "; ".join(entry["problems"]) or "its raw texts cannot be shown"
                parts.append(Part(heading=heading, said=(Value(text=f"No timeline: {text}."),)))
                continue
            name = f"{key}-{row.key}-{entry['repetition']}"
            parts.append(
                Part(heading=heading, said=_said(entry, name), picture=_chart(found, name),
                     tables=(_events_grid(found, f"{name}-events"),))
            )  # fmt: skip
            samples = _samples_grid(found, f"{name}-samples")
            parts.append(Part(heading=f"{heading}: every sample", tables=(samples,), is_folded=True))
    return parts


def _said(entry: Mapping[str, Any], name: str) -> tuple[Value, ...]:
    order = Value(text="Order: " + " > ".join(entry["order"]) + ".", table=f"{name}-events") if entry["order"] else None
    held = Value(text=f"MemAvailable was held at {entry['held_text']}.", table=f"{name}-samples")
    problems = [Value(text=f"Problem: {problem}.") for problem in entry["problems"]]
    return (*([order] if order else [Value(text="No whole order was seen.")]), held, *problems)


# --- raw texts --------------------------------------------------------------------------------------------------------


def _read(row: Row, entry: Mapping[str, Any]) -> Repetition | None:
    """None when a text is missing or of another form: what can be said then stands in the entry's problems."""
    number = int(entry["repetition"])
    hog = row.raw[f"{number}-hog.jsonl"]
    pressed = [record for _, record in hog.records if record.get("kind") == "press"]
    samples = tuple((line, record) for line, record in hog.records if record.get("kind") == "sample")
    if not pressed or not samples:
        return None
    try:
        press = float(pressed[0]["t"])
        found = ranked_pods(row.raw[f"{number}-working-sets.jsonl"].text, row.raw[f"{number}-pods-before.json"].text)
        happenings = tuple(_happenings(row, row.raw[f"{number}-kubelet.log"], press))
    except (LabError, LookupError, TypeError, ValueError):
        return None
    return Repetition(
        row=row, number=number, entry=entry, press=press, samples=samples, happenings=happenings,
        requests={pod.name: pod.memory_request_bytes for pod in found},
    )  # fmt: skip


def _happenings(row: Row, log: RawFile, press: float) -> Iterator[Happening]:
    """The events as the stage reads them, each with its line: the one that gives this very event when read alone.

    A slow kill's eviction is the line that says that the pod is cleaned up.
    """
    alone = list(_line_events(log))
    for event in settled(parse_events(log.text))[0]:
        line = next((number for number, other in alone if _is_same(event, other)), None)
        yield Happening(at_s=round(event.time_s - press, 1), event=event, row=row, log=log, line=line)


def _line_events(log: RawFile) -> Iterator[tuple[int, EvictionEvent]]:
    for number, line in enumerate(log.lines, start=1):
        if "viction" in line or "Evicting" in line:
            try:
                yield from ((number, event) for event in parse_events(line))
            except ParseError:
                # A value over several lines, read whole elsewhere: its event is shown without a link.
                continue


def _is_same(event: EvictionEvent, line: EvictionEvent) -> bool:
    if event == line:
        return True
    cleaned = event.kind == "evicted" and line.kind == "cleaned_up"
    return cleaned and line.time_s == event.time_s and event.pods[0] in line.pods


def _short(pod: str) -> str:
    return pod.rpartition("/")[2].removeprefix(PREFIX)


def _available(event: EvictionEvent) -> int | None:
    """The kubelet's memory.available in bytes, when this event tells it."""
    if event.kind != "observation" or event.detail.get("signal") != "memory.available":
        return None
    try:
        return kubelet_available_bytes(event)
    except (Missing, ParseError):
        return None


def _threshold(found: Repetition) -> Line | None:
    for happening in found.happenings:
        detail = happening.event.detail
        if detail.get("signal") == "memory.available" and detail.get("quantity"):
            text = f"threshold {detail['quantity']}"
            return Line(at=memory_bytes(detail["quantity"]) / MIB, label=text, text=text, refs=happening.refs)
    return None


def _over_request(found: Repetition, sample: Mapping[str, Any], pod: str) -> float | None:
    """Working set minus request in MiB; None when the pod is gone, or its request not known."""
    seen = sample.get("pods", {}).get(f"{PREFIX}{pod}")
    if seen is None or pod not in found.requests or None in (seen.get("current"), seen.get("inactive_file")):
        return None
    return float(seen["current"] - seen["inactive_file"] - found.requests[pod]) / MIB


# --- chart ------------------------------------------------------------------------------------------------------------


def _chart(found: Repetition, key: str) -> Chart:
    kubelet = tuple(
        Point(x=each.at_s, y=size / MIB, refs=each.refs,
              text=f"{each.at_s:.1f} s: the kubelet's memory.available {size / MIB:.0f} MiB")
        for each in found.happenings if (size := _available(each.event)) is not None
    )  # fmt: skip
    memory = (
        Series(name="MemAvailable", form="line", style=0, points=_sampled(found, "mem_available_kib"), label_at="end"),
        Series(name="hog (RSS)", form="line", style=1, points=_sampled(found, "rss_kib"), label_at="end"),
        Series(name="kubelet's memory.available", form="step", style=2, points=kubelet),
    )
    usage = tuple(
        Series(name=pod, form="line", style=index, points=_usage_points(found, pod), label_at="start")
        for index, pod in enumerate(found.requests)
    )
    times = [sample["t"] - found.press for _, sample in found.samples] + [each.at_s for each in _marked(found)]
    threshold = _threshold(found)
    tops = [point.y for series in memory for point in series.points] + [threshold.at if threshold else 0.0]
    over = [point.y for series in usage for point in series.points] or [0.0]
    return Chart(
        id=f"{key}-chart",
        title=f"Eviction timeline: {found.row.label}, repetition {found.number}",
        description=_description(found),
        x_title="seconds after the hog's start",
        low=0.0,
        high=max(times) * 1.02,
        panels=(
            Panel(title="memory of the node", unit="MiB", low=0.0, high=max(tops) * 1.08,
                  series=tuple(series for series in memory if series.points),
                  levels=(threshold,) if threshold else ()),
            Panel(title="each pod's usage over its request", unit="MiB", low=min(0.0, *over) - 40,
                  high=max(0.0, *over) + 40, series=tuple(series for series in usage if series.points),
                  levels=(Line(at=0.0, label="request", text="usage equals the request", is_faint=True),)),
        ),
        moments=tuple(_moments(found)),
        faint_moments="the kubelet ranks the pods",
    )  # fmt: skip


def _marked(found: Repetition) -> list[Happening]:
    return [each for each in found.happenings if each.event.kind in ("ranked", "evicted")]


def _moments(found: Repetition) -> Iterator[Line]:
    """Rankings, faint, and evictions with the pod's name."""
    count = 0
    for each in _marked(found):
        refs = each.refs
        names = " > ".join(_short(pod) for pod in each.event.pods)
        if each.event.kind == "ranked":
            yield Line(at=each.at_s, label="", text=f"{each.at_s:.1f} s: ranked {names}", refs=refs, is_faint=True)
        else:
            text = f"{each.at_s:.1f} s: {names} evicted"
            yield Line(at=each.at_s, label=names, text=text, refs=refs, row=count % LABEL_ROWS)
            count += 1


def _sampled(found: Repetition, key: str) -> tuple[Point, ...]:
    return tuple(
        Point(x=sample["t"] - found.press, y=sample[key] / 1024, text="")
        for _, sample in found.samples
        if sample.get(key) is not None
    )


def _usage_points(found: Repetition, pod: str) -> tuple[Point, ...]:
    return tuple(
        Point(x=sample["t"] - found.press, y=over, text="")
        for _, sample in found.samples
        if (over := _over_request(found, sample, pod)) is not None
    )


def _description(found: Repetition) -> str:
    evicted = [each for each in found.happenings if each.event.kind == "evicted"]
    order = ", ".join(f"{_short(each.event.pods[0])} at {each.at_s:.1f} s" for each in evicted) or "none"
    return (
        "Above: MemAvailable, the hog's size and the kubelet's own figure of available memory over time. "
        f"Below: each pod's usage over its request. Evicted: {order}. The tables hold the same numbers."
    )


# --- tables -----------------------------------------------------------------------------------------------------------


def _events_grid(found: Repetition, key: str) -> Grid:
    lines = []
    newest: Happening | None = None
    for each in found.happenings:
        newest = newest if _available(each.event) is None else each
        if each.event.kind not in ("reclaim", "ranked", "evicted", "critical_refused", "failed"):
            continue
        size = None if newest is None else _available(newest.event)
        figure = MISSING if newest is None or size is None else value_of(f"{size / MIB:.1f}", newest.ref)
        names = " > ".join(_short(pod) for pod in each.event.pods)
        words = {"reclaim": "begins to reclaim", "ranked": "ranks", "evicted": "evicted",
                 "critical_refused": "refuses to evict (critical)", "failed": "failed to evict"}  # fmt: skip
        said = f"{words[each.event.kind]} {names or each.event.detail.get('resourceName', '')}".strip()
        cells = (GridCell(values=(value_of(said, each.ref),), tone=each.event.kind), GridCell(values=(figure,)))
        lines.append((value_of(f"{each.at_s:.1f}", each.ref), cells))
    return Grid(
        id=key,
        caption="The kubelet's log: time, and its newest own figure of available memory at that time",
        columns=("seconds after the hog's start", "the kubelet", "memory.available (MiB)"),
        rows=tuple(lines),
    )


def _samples_grid(found: Repetition, key: str) -> Grid:
    pods = list(found.requests)
    lines = []
    for number, sample in found.samples:
        time_ref = found.row.cite_pair(found.hog, number, "t", sample["t"])
        cells = [
            GridCell(values=(_kib(found, number, sample, name),)) for name in ("mem_available_kib", "rss_kib")
        ]
        for pod in pods:
            over = _over_request(found, sample, pod)
            name = f"{PREFIX}{pod}"
            ref = None if over is None else found.row.cite_pair(found.hog, number, name, sample["pods"][name])
            value = Value(text="gone", is_missing=True) if over is None else value_of(f"{over:.1f}", ref)
            cells.append(GridCell(values=(value,)))
        lines.append((value_of(f"{sample['t'] - found.press:.1f}", time_ref), tuple(cells)))
    return Grid(
        id=key,
        caption="The hog's samples in MiB; of each pod: working set less its request",
        columns=("seconds", "MemAvailable", "hog (RSS)", *pods),
        rows=tuple(lines),
    )


def _kib(found: Repetition, number: int, sample: Mapping[str, Any], name: str) -> Value:
    size = sample.get(name)
    if size is None:
        return MISSING
    return value_of(f"{size / 1024:.0f}", found.row.cite_pair(found.hog, number, name, size))
