"""The pictures of the page as PNG and SVG for papers, drawn by matplotlib from the same model.

Deterministic: no date, no version of the drawing program, fixed ids. Colours are of Okabe and Ito's palette, which
colour-blind readers can tell apart; markers, dashes, signs and labels tell the same in grey.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lab.report.html import printable
from lab.report.page.model import Chart, Grid, GridCell, Node, Panel, Series, Tree
from lab.report.page.render import TONES
from lab.report.page.svg import ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMS = ("png", "svg")
# Any: the type of the settings names each one there is, by version.
SETTINGS: Any = {
    "font.family": ["DejaVu Sans"], "font.size": 9, "svg.hashsalt": "node-lab", "svg.fonttype": "path",
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10, "axes.titlelocation": "left",
    "text.parse_math": False,
}  # fmt: skip
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#AA4499", "#8C6D00", "#000000", "#56B4E9", "#666666")
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (1, 2)), (0, (10, 3)), "-", "-")
MARKERS = ("o", "D", "^", "s", "v", "P", "X", "x")
TONE_COLOURS = {
    "HELD": "#dcefe0", "MISSED": "#fbeac0", "FALSIFIED": "#f3c1bb", "UNKNOWN": "#fbeac0",
    "BestEffort": "#fbeac0", "Burstable": "#cfe2f5", "Guaranteed": "#dcefe0", "differs": "#f3c1bb",
    "unknown": "#fbeac0", "admitted": "#dcefe0", "refused": "#fbeac0",
}  # fmt: skip
DPI = 200
PANEL_INCHES, WIDTH_INCHES = 2.3, 7.6
LETTERS_A_CELL = 24
LINE_INCHES = 0.17

Picture = Grid | Tree | Chart


def draw(picture: Picture, form: str, mask: Callable[[str], str]) -> bytes:
    """A picture as the bytes of a ``png`` or ``svg`` file; ``mask`` hides secrets in every text of it."""
    import matplotlib as mpl

    def said(text: str) -> str:
        return printable(mask(text))

    with mpl.rc_context(SETTINGS):
        if isinstance(picture, Chart):
            figure = _chart(picture, said)
        elif isinstance(picture, Tree):
            figure = _tree(picture, said)
        else:
            figure = _grid(picture, said)
        buffer = io.BytesIO()
        metadata = {"Date": None, "Creator": "node lab"} if form == "svg" else {"Software": None}
        figure.savefig(buffer, format=form, dpi=DPI, metadata=metadata, bbox_inches="tight", facecolor="white")
    return buffer.getvalue()


def _figure(width: float, height: float) -> Figure:
    """A figure of this size (inches) that draws without a window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


# --- charts -----------------------------------------------------------------------------------------------------------


def _chart(chart: Chart, said: Callable[[str], str]) -> Figure:
    count = len(chart.panels)
    figure = _figure(WIDTH_INCHES, 0.9 + PANEL_INCHES * count)
    axes = list(figure.subplots(count, 1, sharex=True, squeeze=False, gridspec_kw={"hspace": 0.32})[:, 0])
    for panel, area in zip(chart.panels, axes, strict=True):
        _panel(area, panel, said)
    area = axes[-1]
    area.set_xlim(chart.low, chart.high)
    if chart.slots:
        area.set_xticks(range(len(chart.slots)), ["\n".join(textwrap.wrap(said(slot), 22)) for slot in chart.slots])
    else:
        area.set_xticks(ticks(chart.low, chart.high, 10))
        area.set_xlabel(said(chart.x_title))
    _moments(axes, chart, said)
    handles = [handle for area in axes for handle in area.get_legend_handles_labels()[0]]
    if handles:
        figure.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=2, frameon=False)
    figure.suptitle(said(chart.title), x=0.125, y=1.0, ha="left", fontweight="bold")
    return figure


def _panel(area: Axes, panel: Panel, said: Callable[[str], str]) -> None:
    area.set_ylim(panel.low, panel.high)
    area.set_yticks(ticks(panel.low, panel.high))
    area.set_ylabel(said(panel.unit))
    area.set_title(said(panel.title), pad=20 if panel.levels and any(series.points for series in panel.series) else 6)
    area.grid(axis="y", color="#dddddd", linewidth=0.6)
    area.set_axisbelow(True)
    if panel.band is not None:
        low, high, label = panel.band
        area.axhspan(low, high, color="#eeeeee", zorder=0)
        area.annotate(said(label), (1.01, (low + high) / 2), xycoords=("axes fraction", "data"), va="center")
    for level in panel.levels:
        area.axhline(level.at, color="#555555", linestyle=(0, (1, 3)), linewidth=1.2)
        area.annotate(said(level.label), (1.01, level.at), xycoords=("axes fraction", "data"), va="center")
    for series in panel.series:
        _series(area, series, said)
    for bar in panel.bars:
        arms = [[bar.centre - bar.low], [bar.high - bar.centre]]
        area.errorbar(bar.x, bar.centre, yerr=arms, fmt="o", color="#000000", capsize=5)
        area.annotate(
            f"{bar.centre:.1%}", (bar.x, bar.high), xytext=(0, 4), textcoords="offset points", ha="center", va="bottom"
        )


def _series(area: Axes, series: Series, said: Callable[[str], str]) -> None:
    horizontal = [point.x for point in series.points]
    vertical = [point.y for point in series.points]
    colour, marker = COLOURS[series.style], MARKERS[series.style]
    name = said(series.name)
    label = f"_{name}" if series.label_at else name
    if series.form == "points":
        inside = "white" if series.style == 1 else colour
        area.plot(horizontal, vertical, linestyle="none", marker=marker, color=colour, markerfacecolor=inside,
                  markersize=6, label=label)  # fmt: skip
        return
    area.plot(horizontal, vertical, color=colour, linestyle=DASHES[series.style], linewidth=1.6, label=label,
              drawstyle="steps-post" if series.form == "step" else "default",
              marker=marker if series.form == "step" else None, markersize=5)  # fmt: skip
    if series.label_at:
        end = -1 if series.label_at == "end" else 0
        offset = (4, 0) if end else (2, 3)
        area.annotate(name, (horizontal[end], vertical[end]), xytext=offset, textcoords="offset points", color=colour,
                      va="center" if end else "bottom")  # fmt: skip


def _moments(axes: Sequence[Axes], chart: Chart, said: Callable[[str], str]) -> None:
    name = said(chart.faint_moments)
    for moment in chart.moments:
        if not moment.label:
            axes[-1].plot([moment.at], [0.02], marker="v", color="#555555", markersize=4, clip_on=False,
                          transform=axes[-1].get_xaxis_transform(), linestyle="none", label=name)  # fmt: skip
            name = "_the same"
            continue
        for area in axes:
            area.axvline(moment.at, color="#555555", linestyle=(0, (4, 2)), linewidth=0.9)
        axes[0].annotate(
            said(moment.label), (moment.at, 1.0), xycoords=("data", "axes fraction"), ha="center", fontsize=8,
            xytext=(0, 2 + 10 * moment.row), textcoords="offset points", fontweight="bold",
        )  # fmt: skip


# --- tables and trees -------------------------------------------------------------------------------------------------


def _cell_lines(cell: GridCell, said: Callable[[str], str]) -> list[str]:
    sign = TONES.get(cell.tone, "")
    lines = []
    for index, value in enumerate(cell.values):
        text = said(f"{sign} {value.text}" if sign and index == 0 else value.text)
        lines += textwrap.wrap(text, LETTERS_A_CELL) or [""]
    return lines


def _grid(grid: Grid, said: Callable[[str], str]) -> Figure:
    """The table with coloured cells, each row as high as its longest cell."""
    titles = [textwrap.wrap(said(title), LETTERS_A_CELL) or [""] for title in grid.columns]
    rows = [[("#f2f2f2", title) for title in titles]]
    for heading, cells in grid.rows:
        row = [("#f2f2f2", textwrap.wrap(said(heading.text), LETTERS_A_CELL) or [""])]
        rows.append(row + [(TONE_COLOURS.get(cell.tone, "white"), _cell_lines(cell, said)) for cell in cells])
    widths = [
        0.2 + 0.075 * max(len(line) for row in rows for line in row[column][1]) for column in range(len(titles))
    ]
    heights = [0.12 + LINE_INCHES * max(len(lines) for _, lines in row) for row in rows]
    figure = _figure(sum(widths), sum(heights) + 0.35)
    area = _blank(figure, sum(widths), sum(heights) + 0.35)
    area.text(0, 0.2, said(grid.caption), va="bottom", fontweight="bold")
    top = 0.35
    for row, height in zip(rows, heights, strict=True):
        left = 0.0
        for (colour, lines), width in zip(row, widths, strict=True):
            _box(area, left, top, width, height, colour)
            area.text(left + 0.08, top + 0.08, "\n".join(lines), va="top", linespacing=1.25)
            left += width
        top += height
    return figure


def _blank(figure: Figure, width: float, height: float) -> Axes:
    """An area whose unit is the inch, from the upper left corner down, without axes."""
    area = figure.add_axes((0, 0, 1, 1))
    area.set_xlim(0, width)
    area.set_ylim(height, 0)
    area.axis("off")
    return area


def _box(area: Axes, left: float, top: float, width: float, height: float, colour: str) -> None:
    from matplotlib.patches import Rectangle

    area.add_patch(Rectangle((left, top), width, height, facecolor=colour, edgecolor="#888888", linewidth=0.7))


def _tree(tree: Tree, said: Callable[[str], str]) -> Figure:
    """Each cgroup as a box, indented below the one that it sits in."""
    nodes = [(depth, node) for root in tree.roots for depth, node in _depths(root, 0)]
    height = 0.52
    width = max(0.3 + depth * 0.35 + 0.062 * len(_readings_text(node)) for depth, node in nodes) if nodes else 4.0
    total = 0.35 + len(nodes) * height + LINE_INCHES * len(tree.legend) + 0.1
    figure = _figure(width, total)
    area = _blank(figure, width, total)
    area.text(0, 0.2, said(tree.caption), va="bottom", fontweight="bold")
    for index, (depth, node) in enumerate(nodes):
        left, top = depth * 0.35, 0.35 + index * height
        wrong = any(reading.is_explained is False for reading in node.readings)
        _box(area, left, top, width - left, height - 0.06, TONE_COLOURS["differs"] if wrong else "#f5f5f5")
        area.text(left + 0.08, top + 0.05, said(node.title), va="top", fontweight="bold")
        area.text(left + 0.08, top + 0.24, said(_readings_text(node)), va="top", fontsize=8)
    below = 0.35 + len(nodes) * height + 0.08
    area.text(0, below, said("\n".join(tree.legend)), va="top", fontsize=7.5, color="#333333", linespacing=1.35)
    return figure


def _depths(node: Node, depth: int) -> list[tuple[int, Node]]:
    return [(depth, node), *(found for child in node.children for found in _depths(child, depth + 1))]


def _readings_text(node: Node) -> str:
    parts = []
    for reading in node.readings:
        text = f"{reading.name} {reading.read.text}"
        if reading.is_explained is not None:
            text += " (= expected)" if reading.is_explained else f" (expected {reading.expected})"
        parts.append(text)
    return "   ".join(parts)
