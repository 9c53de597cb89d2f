"""What every HTML file of the lab has in common: templates that escape, mask and hold only what HTML may. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    """Text with a replacement mark for what HTML may not hold: control characters, and bytes that were no UTF-8."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def templates(folder: Path, mask: Callable[[str], str]) -> jinja2.Environment:
    """Strict templates of a folder. ``mask`` hides secrets in every text before it is escaped."""

    def finalize(value: Any) -> Any:
        return printable(mask(value)) if type(value) is str else value

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
