"""The model of a page to its text: one HTML file that needs nothing else. Pure but for its own template and style."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from markupsafe import Markup, escape

from lab.report.html import printable, templates
from lab.report.page import svg
from lab.report.page.model import Chart, Grid, Page, Tree
from lab.report.page.raw import Excerpt

FOLDER = Path(__file__).resolve().parent
TONES = {
    "HELD": "✓", "MISSED": "~", "FALSIFIED": "✗", "UNKNOWN": "?",
    "BestEffort": "○", "Burstable": "◐", "Guaranteed": "●", "differs": "≠", "unknown": "?",
    "admitted": "✓", "refused": "✗",
    "evicted": "▼", "ranked": "≡", "reclaim": "", "failed": "!", "critical_refused": "∎", "rejected": "×",
}  # fmt: skip
"""What a cell may be, with a sign that can be read without its colour."""
LONGEST, AROUND = 4000, 300
"""Characters of an excerpt that is shown whole, and on each side of what is cited in a longer one."""


def page_text(page: Page, mask: Callable[[str], str]) -> str:
    """The page as HTML in UTF-8, ending with one newline. ``mask`` hides secrets in every text before it is escaped."""
    environment = templates(FOLDER, mask)
    environment.tests["grid"] = lambda value: isinstance(value, Grid)
    environment.tests["tree"] = lambda value: isinstance(value, Tree)
    environment.tests["chart"] = lambda value: isinstance(value, Chart)
    environment.filters["marked"] = lambda excerpt: marked(excerpt, mask)
    environment.filters["draw"] = lambda chart: Markup(printable(mask(str(svg.draw(chart)))))
    style = Markup((FOLDER / "style.css").read_text(encoding="utf-8"))
    text = environment.get_template("page.html.j2").render(page=page, tones=TONES, style=style)
    return mask(text).rstrip("\n") + "\n"


def marked(excerpt: Excerpt, mask: Callable[[str], str]) -> Markup:
    """An excerpt with the fragments for which it is cited marked, unless that is all of it.

    Of one longer than LONGEST only what stands around the fragments is shown, with a mark for what is left out. A text
    with a secret in it is shown whole, masked and without marks: nothing of a secret can be cut out of its mask.
    """
    text = excerpt.text
    if mask(text) != text:
        return _plain(mask(text))
    cited = bytearray(len(text))
    shown = bytearray(len(text)) if len(text) > LONGEST else bytearray(b"\x01" * len(text))
    for fragment in excerpt.fragments:
        start = text.find(fragment)
        while start >= 0:
            end = start + len(fragment)
            cited[start:end] = b"\x01" * (end - start)
            near = slice(max(0, start - AROUND), min(len(text), end + AROUND))
            shown[near] = b"\x01" * (near.stop - near.start)
            start = text.find(fragment, end)
    if all(cited):
        return _plain(text)
    parts, begin = [], 0
    for end in range(1, len(text) + 1):
        if end == len(text) or (cited[end], shown[end]) != (cited[begin], shown[begin]):
            parts.append(_piece(text[begin:end], bool(cited[begin]), bool(shown[begin])))
            begin = end
    return Markup("").join(parts)


def _piece(text: str, is_cited: bool, is_shown: bool) -> Markup:
    if not is_shown:
        return Markup('<span class="missing">… {} characters …</span>').format(f"{len(text):,}")
    return Markup("<mark>{}</mark>").format(_plain(text)) if is_cited else _plain(text)


def _plain(text: str) -> Markup:
    """Text between tags, where quotation marks may stand as they are: JSON is full of them."""
    return Markup(str(escape(printable(text))).replace("&#34;", '"').replace("&#39;", "'"))
