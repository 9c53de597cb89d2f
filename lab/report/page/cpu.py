"""CPU windows as a strip plot with the ratio beside it, and as a table. Pure; observations of stage cpu."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lab import stats
from lab.model import Missing, UsageError
from lab.report import statistics
from lab.report.page.model import MISSING, Bar, Chart, Grid, GridCell, Panel, Part, Point, Series, Value, value_of
from lab.report.page.raw import RawFile
from lab.report.page.rows import Row

TARGET, NEIGHBOUR = "target-container", "neighbour-pod"
PLACES = {"cpu-ctl": -0.27, "cpu-emp": 0.0}
NEIGHBOUR_PLACE = 0.27
EQUAL = (0.8, 1.25)
"""What the claims call equal, set before any window was measured."""
PLACE_WORDS = ("first", "second")
ROUNDING = 5e-5 + 1e-9
"""Half of the last digit that the observation keeps of a number of cores."""

Window = Mapping[str, Any]


def cpu_parts(rows: Sequence[Row], key: str) -> list[Part]:
    """The chart, the statistics of each version, and every window that was run."""
    chart = _chart(rows, key)
    windows = _windows_grid(rows, f"{key}-windows")
    parts = [Part(picture=chart)] if any(panel.series for panel in chart.panels) else []
    parts.append(Part(heading="Medians, ratio and test", tables=(_ratio_grid(rows, f"{key}-ratios", windows.id),)))
    parts.append(Part(heading="Every window", tables=(windows,)))
    return parts


def _counted(row: Row) -> list[Window]:
    """The first window that counts of each slot, in the order in which they were run."""
    found = []
    for pair, pod in row.observation["slots"]:
        mine = [each for each in row.observation["windows"] if (each["pair"], each["pod"]) == (pair, pod)]
        found += [each for each in mine if not each["why_not"]][:1]
    return found


def _file(row: Row, window: Window) -> RawFile:
    return row.raw[f"window-{window['pair']}-{window['pod']}-{window['try']}.jsonl"]


def _cores(row: Row, window: Window, name: str) -> Value:
    """Cores of a cgroup with the two samples between which they were used; without them when they give another number.

    The observation's number is computed anew from those two lines.
    """
    cores = window["cores"].get(name)
    if cores is None:
        return MISSING
    file = _file(row, window)
    samples = [(number, record) for number, record in file.records if record.get("kind") == "sample"]
    refs = []
    if len(samples) >= 2:
        (first, begin), (last, end) = samples[0], samples[-1]
        try:
            used = (end["usage_usec"][name] - begin["usage_usec"][name]) / 1e6 / (end["mono"] - begin["mono"])
        except (KeyError, TypeError, ZeroDivisionError):
            used = math.nan
        if abs(used - cores) <= ROUNDING:
            refs = [
                row.cite_pair(file, number, name, record["usage_usec"][name])
                for number, record in ((first, begin), (last, end))
            ]
    return value_of(f"{cores:.3f}", *refs)


# --- chart ------------------------------------------------------------------------------------------------------------


def _chart(rows: Sequence[Row], key: str) -> Chart:
    series = [
        _series(rows, "cpu-ctl (control)", 0, lambda window: window["pod"] == "cpu-ctl", TARGET),
        _series(rows, "cpu-emp (empty block)", 1, lambda window: window["pod"] == "cpu-emp", TARGET),
        _series(rows, "neighbour in the same windows", 2, lambda window: True, NEIGHBOUR),
        _rejected(rows),
    ]
    shown = tuple(each for each in series if each.points)
    top = max((point.y for each in shown for point in each.points), default=1.0)
    bars = tuple(bar for index, row in enumerate(rows) if (bar := _bar(row, index)) is not None)
    panels = [
        Panel(title="cores received in a window", unit="cores", low=0.0, high=_above(top), series=shown)
    ]
    if bars:
        high = _above(max(EQUAL[1], *(bar.high for bar in bars)))
        panels.append(
            Panel(
                title="cpu-emp / cpu-ctl, ratio of medians with 95 % bootstrap interval",
                unit="ratio",
                low=0.0,
                high=high,
                bars=bars,
                band=(*EQUAL, f"equal: {EQUAL[0]}-{EQUAL[1]}"),
            )
        )
    return Chart(
        id=f"{key}-chart",
        title="CPU beside a busy neighbour",
        description=_description(rows),
        x_title="version",
        low=-0.5,
        high=len(rows) - 0.5,
        slots=tuple(row.label for row in rows),
        panels=tuple(panels),
    )


def _above(value: float) -> float:
    """The next quarter above a value."""
    return (math.floor(value * 4) + 1) / 4


def _series(rows: Sequence[Row], name: str, style: int, fits: Callable[[Window], bool], cgroup: str) -> Series:
    points = []
    for index, row in enumerate(rows):
        pairs = len({pair for pair, _ in row.observation["slots"]})
        for window in _counted(row):
            value = _cores(row, window, cgroup)
            if fits(window) and not value.is_missing:
                place = PLACES[window["pod"]] if cgroup == TARGET else NEIGHBOUR_PLACE
                beside = 0.0 if cgroup == TARGET else (-0.05 if window["pod"] == "cpu-ctl" else 0.07)
                points.append(
                    Point(
                        x=index + place + beside + _spread(window["pair"], pairs),
                        y=window["cores"][cgroup],
                        text=f"{row.label}, pair {window['pair']}, {_whose(window, cgroup)}: {value.text} cores",
                        refs=value.refs,
                    )
                )
    return Series(name=name, form="points", style=style, points=tuple(points))


def _whose(window: Window, cgroup: str) -> str:
    return str(window["pod"]) if cgroup == TARGET else f"neighbour beside {window['pod']}"


def _spread(pair: int, pairs: int) -> float:
    """Repetitions side by side, so that equal points stay apart."""
    return (pair - (pairs + 1) / 2) * min(0.05, 0.2 / max(pairs, 1))


def _rejected(rows: Sequence[Row]) -> Series:
    points = []
    for index, row in enumerate(rows):
        pairs = len({pair for pair, _ in row.observation["slots"]})
        for window in row.observation["windows"]:
            value = _cores(row, window, TARGET) if window["why_not"] else MISSING
            if not value.is_missing:
                points.append(
                    Point(
                        x=index + PLACES[window["pod"]] + _spread(window["pair"], pairs),
                        y=window["cores"][TARGET],
                        text=f"{row.label}, pair {window['pair']}, {window['pod']}: {value.text} cores, does not count",
                        refs=value.refs,
                    )
                )
    return Series(name="window that does not count", form="points", style=7, points=tuple(points))


def _interval(row: Row) -> tuple[float, float, float] | None:
    """Low end, ratio, high end; None unless each slot has a window that counts."""
    control, empty = row.view["control_all"], row.view["empty_all"]
    if control is None or empty is None:
        return None
    try:
        low, high = stats.ratio_interval(empty, control)
        return low, stats.ratio_of_medians(empty, control), high
    except (Missing, UsageError):
        return None


def _bar(row: Row, index: int) -> Bar | None:
    found = _interval(row)
    if found is None:
        return None
    low, ratio, high = found
    text = f"{row.label}: {ratio:.1%} ({low:.1%} to {high:.1%})"
    return Bar(x=float(index), low=low, centre=ratio, high=high, text=text)


def _description(rows: Sequence[Row]) -> str:
    said = []
    for row in rows:
        found = _interval(row)
        count, slots = len(_counted(row)), len(row.observation["slots"])
        ratio = "no ratio" if found is None else f"ratio {found[1]:.1%}, interval {found[0]:.1%} to {found[2]:.1%}"
        said.append(f"{row.label}: {count} of {slots} slots have a window that counts, {ratio}.")
    return "Cores of the control pod, the pod with an empty block and the neighbour in each window. " + " ".join(said)


# --- tables -----------------------------------------------------------------------------------------------------------


def _ratio_grid(rows: Sequence[Row], key: str, windows: str) -> Grid:
    return Grid(
        id=key,
        caption="Computed from the windows that count",
        columns=("version", "cpu-ctl", "cpu-emp", "cpu-emp / cpu-ctl", "test", "stability"),
        rows=tuple((Value(text=row.label), _ratio_cells(row, windows)) for row in rows),
    )


def _ratio_cells(row: Row, windows: str) -> tuple[GridCell, ...]:
    control, empty, found = row.view["control_all"], row.view["empty_all"], _interval(row)
    if control is None or empty is None:
        count = len(_counted(row))
        why = Value(text=f"{count} of {len(row.observation['slots'])} slots have a window that counts")
        return (*[GridCell(values=(MISSING,))] * 3, GridCell(values=(why,)), GridCell(values=(MISSING,)))
    ratio = [Value(text="no interval: the ratio is not defined")]
    if found is not None:
        low, centre, high = found
        ratio = [
            Value(text=f"{centre:.1%}", table=windows),
            Value(text=f"95 % interval {low:.1%} to {high:.1%}", table=windows),
        ]
    warnings = [
        Value(text=f"{pod} may be unstable: {reason}", table=windows)
        for pod, points in (("cpu-ctl", control), ("cpu-emp", empty))
        for reason in stats.instabilities(points)
    ]
    return (
        *(GridCell(values=(Value(text=statistics.spread(points), table=windows),)) for points in (control, empty)),
        GridCell(values=tuple(ratio)),
        GridCell(values=(Value(text=statistics.exact_test_line(empty, control)),)),
        GridCell(values=tuple(warnings) or (Value(text="no warning"),)),
    )


def _windows_grid(rows: Sequence[Row], key: str) -> Grid:
    columns = (
        "window", "cores", "neighbour (cores)", "system (cores)", "CPU busy", "steal", "vCPUs waited", "counts",
    )  # fmt: skip
    lines = []
    for row in rows:
        for window in row.observation["windows"]:
            heading = f"{row.label}, pair {window['pair']}, {window['pod']} ({PLACE_WORDS[window['position'] - 1]})"
            if window["try"] not in (None, 1):
                heading += f", try {window['try']}"
            lines.append((Value(text=heading), _window_cells(row, window)))
    return Grid(
        id=key,
        caption="All windows in the order of their pairs; cores are computed from the first and the last sample",
        columns=columns,
        rows=tuple(lines),
    )


def _window_cells(row: Row, window: Window) -> tuple[GridCell, ...]:
    why_not = window["why_not"]
    counts = Value(text="; ".join(why_not)) if why_not else Value(text="yes")
    values = [_cores(row, window, name) for name in (TARGET, NEIGHBOUR, "system")]
    values += [_of_stat(row, window, key) for key in ("busy", "steal")]
    wait = (window.get("controller") or {}).get("vcpu_wait")
    load = row.raw[f"controller-{window['pair']}-{window['pod']}-{window['try']}.json"]
    values.append(
        MISSING if wait is None else value_of(f"{wait:.1%}", row.evidence.cite(load, '"snapshots"', 1))
    )
    return (
        *(GridCell(values=(value,)) for value in values),
        GridCell(values=(counts,), tone="rejected" if why_not else ""),
    )


def _of_stat(row: Row, window: Window, key: str) -> Value:
    """A part of all CPU time, from the ``cpu`` line of /proc/stat at both ends."""
    part = window.get(key)
    if part is None:
        return MISSING
    file = _file(row, window)
    samples = [(number, record) for number, record in file.records if record.get("kind") == "sample"]
    ends = (samples[0], samples[-1]) if samples else ()
    return value_of(f"{part:.1%}", *(row.cite_pair(file, number, "stat", record["stat"]) for number, record in ends))
