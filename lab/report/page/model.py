"""What a page and its pictures show, free of any form: values with their evidence, grids, trees and charts. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lab.report.page.raw import Excerpt, Ref

NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One shown value.

    ``refs`` are the raw lines that it was read or computed from; ``table`` is the id of the table on the page whose
    values it was computed from. ``note`` stands small beside it.
    """

    text: str
    refs: tuple[Ref, ...] = ()
    table: str = ""
    is_missing: bool = False
    note: str = ""


MISSING = Value(text=NOT_MEASURED, is_missing=True)


def value_of(text: object, *refs: Ref | None, note: str = "") -> Value:
    """A value with the evidence that was found; missing when there is no text. One lost line loses every link."""
    if text is None:
        return MISSING
    found = tuple(ref for ref in refs if ref is not None)
    return Value(text=str(text), refs=found if len(found) == len(refs) else (), note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCell:
    """One cell: values in lines; ``tone`` names what it is (a class, an outcome, an answer), for colour and symbol."""

    values: tuple[Value, ...]
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table: column titles (the first one is the row heading's), rows of a heading and its cells."""

    id: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, tuple[GridCell, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A value as read beside the one that a formula gives; ``expected`` None: no formula. Both as shown texts."""

    name: str
    read: Value
    expected: str | None
    formula: str = ""

    @property
    def is_explained(self) -> bool | None:
        """Whether both agree; None when either is not there."""
        return None if self.read.is_missing or self.expected is None else self.read.text == self.expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One cgroup: what it is, its path's last part, its readings, and the cgroups below it."""

    title: str
    path: Value
    readings: tuple[Reading, ...]
    children: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The cgroups of one cell."""

    id: str
    caption: str
    roots: tuple[Node, ...]
    legend: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point of a chart. ``text`` says what it is, for a pointer that rests on it."""

    x: float
    y: float
    text: str
    refs: tuple[Ref, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one kind. ``form``: ``line``, ``step`` or ``points``; ``style`` picks colour, dash and marker (0-7).

    ``label_at``: the name stands at the ``end`` or ``start`` of the line, else (empty) in the legend.
    """

    name: str
    form: str
    style: int
    points: tuple[Point, ...]
    label_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A vertical interval at ``x`` from ``low`` to ``high`` with its centre."""

    x: float
    low: float
    high: float
    centre: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A marked place: a level (horizontal) or a moment (vertical). ``row`` keeps labels of neighbours apart."""

    at: float
    label: str
    text: str
    refs: tuple[Ref, ...] = ()
    row: int = 0
    is_faint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot of a chart over the common x axis; ``low`` and ``high`` bound its y axis."""

    title: str
    unit: str
    low: float
    high: float
    series: tuple[Series, ...] = ()
    bars: tuple[Bar, ...] = ()
    levels: tuple[Line, ...] = ()
    band: tuple[float, float, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Panels over one x axis: of numbers from ``low`` to ``high``, or of ``slots``, named places from 0 on.

    ``faint_moments`` says what the moments without a label are.
    """

    id: str
    title: str
    description: str
    x_title: str
    low: float
    high: float
    panels: tuple[Panel, ...]
    slots: tuple[str, ...] = ()
    moments: tuple[Line, ...] = ()
    faint_moments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a stage's section: a heading (may be empty), sentences, a picture, tables that say the same."""

    heading: str = ""
    said: tuple[Value, ...] = ()
    picture: Grid | Tree | Chart | None = None
    tables: tuple[Grid, ...] = ()
    is_folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What stands on the page of the attempts of one stage and one environment; ``absent`` are cells without one."""

    environment: str
    parts: tuple[Part, ...]
    absent: tuple[str, ...]
    statistics: tuple[str, ...]
    remarks: tuple[str, ...]
    notes: tuple[str, ...]
    origin: tuple[str, ...]
    verdicts: Grid | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One stage. ``comparisons`` is empty when no attempt of it counts."""

    id: str
    title: str
    comparisons: tuple[Comparison, ...]
    lead: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything that the template shows. ``verdicts``: environment and its table."""

    verdicts: tuple[tuple[str, Grid], ...]
    sections: tuple[Section, ...]
    notes: str
    left_out: Grid | None
    excerpts: tuple[Excerpt, ...]

    def pictures(self) -> Iterator[Grid | Tree | Chart]:
        """Every picture, in the order of the page; the verdicts are the first."""
        for _, grid in self.verdicts:
            yield grid
        for section in self.sections:
            for comparison in section.comparisons:
                for part in comparison.parts:
                    if part.picture is not None:
                        yield part.picture
