"""The page's colours by the rule of WCAG 2: text reads on every ground that it may stand on, in light and in dark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lab.report.page.render as render
from lab.report.page.render import TONES

STYLE = (Path(render.__file__).parent / "style.css").read_text()
LEAST = 4.5
GROUNDS = ("back", "panel", "good", "bad", "mid", "cool", "mark")


def palettes():
    """Variables of the light and of the dark scheme."""
    light, dark, *_ = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    read = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", block)) for block in (light, dark)]
    assert read[0].keys() == read[1].keys()
    return dict(zip(("light", "dark"), read, strict=True))


def luminance(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_measure_itself():
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#fff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_every_ground(scheme):
    colours = palettes()[scheme]
    poor = [
        f"{front} on {ground}: {ratio:.2f}"
        for ground in GROUNDS
        for front in ("text", "soft", "link")
        if (ratio := contrast(colours[front], colours[ground])) < LEAST
    ]
    assert poor == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_of_charts_and_their_names_can_be_read(scheme):
    colours = palettes()[scheme]
    styles = [name for name in colours if re.fullmatch(r"s\d", name)]
    assert len(styles) >= 6
    assert [name for name in styles if contrast(colours[name], colours["back"]) < LEAST] == []


def test_a_line_is_told_by_its_dashes_too():
    dashes = re.findall(r"\.line\.s(\d) \{ stroke-dasharray: ([\d ]+)", STYLE)
    assert len({dash for _, dash in dashes}) == len(dashes) == 5


def test_every_ground_has_a_sign_or_a_word():
    styled = set(re.findall(r"\.tone\.(\w+)", STYLE))
    assert styled <= TONES.keys()
