"""A chart as SVG. Pure.

Colours, dashes and fonts come from the page's style, so that a chart follows light, dark and print. Every text goes
through ``markupsafe``. Points with a raw line are links; they are left out of the tab order, because the tables beside
the chart hold the same links.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from lab.report.page.model import Bar, Chart, Line, Panel, Point, Series
from lab.report.page.raw import Ref

LEFT, RIGHT, BOTTOM = 58.0, 132.0, 56.0
HEIGHT, GAP = 190.0, 44.0
LEAST_WIDTH, SLOT_WIDTH = 760.0, 130.0
LINE_HEIGHT = 14.0
LETTER = 6.4
"""Width of a letter at the size of the chart's text, a little generous."""
NICE = (1.0, 2.0, 2.5, 5.0, 10.0)


class Frame:
    """Where a chart's values stand in the drawing."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.width = max(LEAST_WIDTH, LEFT + RIGHT + SLOT_WIDTH * len(chart.slots))
        # Names of moments stand above the plots.
        self.above = 50.0 if any(moment.label for moment in chart.moments) else 8.0
        self.height = self.above + len(chart.panels) * (HEIGHT + GAP) - GAP + BOTTOM + 24

    @property
    def right(self) -> float:
        """Right end of the plots."""
        return self.width - RIGHT

    def x(self, value: float) -> float:
        """A value of the x axis."""
        span = self.chart.high - self.chart.low or 1.0
        return LEFT + (value - self.chart.low) / span * (self.right - LEFT)

    def top(self, index: int) -> float:
        """Upper edge of a panel."""
        return self.above + 18 + index * (HEIGHT + GAP)

    def y(self, index: int, value: float) -> float:
        """A value of a panel's y axis."""
        panel = self.chart.panels[index]
        span = panel.high - panel.low or 1.0
        return self.top(index) + HEIGHT - (value - panel.low) / span * HEIGHT


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from ``low`` to ``high``, at most ``most`` steps apart."""
    rough = (high - low) / most
    if rough <= 0:
        return [low]
    scale = float(10 ** math.floor(math.log10(rough)))
    step = next(scale * nice for nice in NICE if scale * nice >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 10) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def draw(chart: Chart) -> Markup:
    """The whole ``svg`` element, with title and description."""
    frame = Frame(chart)
    parts: list[Markup] = []
    for index, panel in enumerate(chart.panels):
        parts += _axes(frame, index, panel)
        parts += _levels(frame, index, panel)
    parts += _moments(frame)
    for index, panel in enumerate(chart.panels):
        for series in panel.series:
            parts += _series(frame, index, series)
        parts += _bars(frame, index, panel.bars)
        parts += _end_labels(frame, index, panel)
    parts += _x_axis(frame)
    parts += _legend(frame)
    return Markup(
        '<svg id="{id}" class="chart" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        'aria-labelledby="{id}-t {id}-d" style="min-width:{least:.0f}px">'
        '<title id="{id}-t">{title}</title><desc id="{id}-d">{description}</desc>{body}</svg>'
    ).format(
        id=chart.id, width=frame.width, height=frame.height, least=frame.width * 0.84, title=chart.title,
        description=chart.description, body=Markup("\n").join(parts),
    )  # fmt: skip


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>').format(x, y, anchor, kind, text)


def _segment(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    form = Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>')
    return form.format(x1, y1, x2, y2, kind)


def _linked(body: Markup, text: str, refs: Sequence[Ref]) -> Markup:
    """A shape with its words for a pointer, and a link to its first raw line when there is one."""
    shape = Markup("<g><title>{}</title>{}</g>").format(text, body) if text else body
    return Markup('<a href="#{}" tabindex="-1">{}</a>').format(refs[0].anchor, shape) if refs else shape


# --- axes -------------------------------------------------------------------------------------------------------------


def _axes(frame: Frame, index: int, panel: Panel) -> Iterator[Markup]:
    top, bottom = frame.top(index), frame.top(index) + HEIGHT
    yield _text(LEFT, top - 8, f"{panel.title} ({panel.unit})", kind="head")
    for tick in ticks(panel.low, panel.high):
        y = frame.y(index, tick)
        yield _segment(LEFT, y, frame.right, y, "grid")
        yield _text(LEFT - 6, y + 4, f"{tick:g}", "end")
    yield _segment(LEFT, bottom, frame.right, bottom, "axis")
    if panel.band is not None:
        low, high, label = panel.band
        upper, lower = frame.y(index, min(high, panel.high)), frame.y(index, low)
        yield Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="band"/>').format(
            LEFT, upper, frame.right - LEFT, lower - upper
        )
        yield _text(frame.right + 6, (upper + lower) / 2 + 4, label)


def _x_axis(frame: Frame) -> Iterator[Markup]:
    chart = frame.chart
    bottom = frame.top(len(chart.panels) - 1) + HEIGHT
    if chart.slots:
        letters = max(8, int((frame.right - LEFT) / len(chart.slots) / LETTER))
        for index, slot in enumerate(chart.slots):
            for row, line in enumerate(textwrap.wrap(slot, letters) or [""]):
                yield _text(frame.x(index), bottom + 18 + row * LINE_HEIGHT, line, "middle")
    else:
        for tick in ticks(chart.low, chart.high, 10):
            yield _segment(frame.x(tick), bottom, frame.x(tick), bottom + 5, "axis")
            yield _text(frame.x(tick), bottom + 18, f"{tick:g}", "middle")
        yield _text((LEFT + frame.right) / 2, bottom + 38, chart.x_title, "middle")


def _levels(frame: Frame, index: int, panel: Panel) -> Iterator[Markup]:
    for level in panel.levels:
        y = frame.y(index, level.at)
        kind = "level faint" if level.is_faint else "level"
        yield _linked(_segment(LEFT, y, frame.right, y, kind), level.text, level.refs)
        yield _linked(_text(frame.right + 6, y + 4, level.label), "", level.refs)


def _moments(frame: Frame) -> Iterator[Markup]:
    top, bottom = frame.top(0), frame.top(len(frame.chart.panels) - 1) + HEIGHT
    for moment in frame.chart.moments:
        x = frame.x(moment.at)
        yield _linked(_moment(moment, x, top, bottom), moment.text, moment.refs)


def _moment(moment: Line, x: float, top: float, bottom: float) -> Markup:
    if not moment.label:
        return _segment(x, bottom - 9, x, bottom, "moment faint") + _tick(x, bottom)
    height = top - 22 - moment.row * LINE_HEIGHT
    return _segment(x, height + 3, x, bottom, "moment") + _text(x, height, moment.label, "middle", "strong")


def _tick(x: float, y: float) -> Markup:
    return Markup('<path d="M{0:.1f} {1:.1f}l-4 -7h8z" class="tick"/>').format(x, y)


# --- values -----------------------------------------------------------------------------------------------------------


def _series(frame: Frame, index: int, series: Series) -> Iterator[Markup]:
    places = [(frame.x(point.x), frame.y(index, point.y)) for point in series.points]
    if series.form != "points":
        yield Markup('<path d="{}" class="line s{}"/>').format(_path(places, series.form), series.style)
    for point, place in zip(series.points, places, strict=True):
        if series.form == "points" or point.refs:
            yield _linked(_marker(series.style, *place), point.text, point.refs)


def _path(places: Sequence[tuple[float, float]], form: str) -> str:
    words = []
    for number, (x, y) in enumerate(places):
        if number == 0:
            words.append(f"M{x:.1f} {y:.1f}")
        else:
            words.append(f"H{x:.1f}V{y:.1f}" if form == "step" else f"L{x:.1f} {y:.1f}")
    return "".join(words)


def _marker(style: int, x: float, y: float) -> Markup:
    """Shapes that differ without colour: disc, hollow diamond, triangle, square; a cross for what does not count."""
    shapes = {
        0: Markup('<circle cx="{0:.1f}" cy="{1:.1f}" r="4.5" class="mark s0"/>'),
        1: Markup('<path d="M{0:.1f} {1:.1f}m0 -6l5.5 6l-5.5 6l-5.5 -6z" class="mark hollow s1"/>'),
        2: Markup('<path d="M{0:.1f} {1:.1f}m0 -5l5 9h-10z" class="mark s2"/>'),
        7: Markup('<path d="M{0:.1f} {1:.1f}m-4 -4l8 8m0 -8l-8 8" class="mark cross s7"/>'),
    }
    square = Markup('<path d="M{0:.1f} {1:.1f}m-4 -4h8v8h-8z" class="mark s{2}"/>')
    return shapes.get(style, square).format(x, y, style)


def _bars(frame: Frame, index: int, bars: Sequence[Bar]) -> Iterator[Markup]:
    for bar in bars:
        x = frame.x(bar.x)
        low, centre, high = (frame.y(index, value) for value in (bar.low, bar.centre, bar.high))
        shape = _segment(x, low, x, high, "bar") + Markup("").join(
            _segment(x - 7, end, x + 7, end, "bar") for end in (low, high)
        )
        disc = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="4.5" class="mark s0"/>').format(x, centre)
        yield _linked(shape + disc, bar.text, ())
        yield _text(x, high - 9, f"{bar.centre:.1%}", "middle", "strong")


def _end_labels(frame: Frame, index: int, panel: Panel) -> Iterator[Markup]:
    """Names at the ends of lines; those at the right edge are moved apart."""
    edge: list[tuple[float, Series]] = []
    for series in panel.series:
        if not series.label_at or not series.points:
            continue
        if series.label_at == "start":
            first = series.points[0]
            place = frame.x(first.x) + 4, frame.y(index, first.y) - 5
            yield _text(*place, series.name, kind=f"name s{series.style}")
            continue
        last: Point = series.points[-1]
        x, y = frame.x(last.x), frame.y(index, last.y)
        if frame.right - x < 40:
            edge.append((y + 4, series))
        else:
            yield _text(x + 6, y + 4, series.name, kind=f"name s{series.style}")
    taken = [frame.y(index, level.at) + 4 for level in panel.levels]
    for y, series in sorted(edge, key=lambda item: item[0]):
        while any(abs(y - other) < LINE_HEIGHT for other in taken):
            y += 2
        taken.append(y)
        yield _text(frame.right + 6, y, series.name, kind=f"name s{series.style}")


def _legend(frame: Frame) -> Iterator[Markup]:
    """Series without a name at their end, below the plots."""
    x = LEFT
    y = frame.height - 8
    unnamed = [series for panel in frame.chart.panels for series in panel.series if not series.label_at]
    for series in unnamed:
        if series.form != "points":
            yield _segment(x - 8, y - 4, x + 8, y - 4, f"line s{series.style}")
        yield _marker(series.style, x, y - 4)
        yield _text(x + 12, y, series.name)
        x += 34 + LETTER * len(series.name)
    if any(not moment.label for moment in frame.chart.moments):
        yield _tick(x, y)
        yield _text(x + 12, y, frame.chart.faint_moments)
