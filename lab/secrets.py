"""Values that must never be shown, and the masking of every text that a person may see.

Marks on single calls are forgotten somewhere; so a secret is registered once, where it enters the program, and whatever
leaves the program goes through :meth:`Secrets.mask`.
"""

from __future__ import annotations

import base64
import bisect
import json
import logging
import re
import shlex
import threading
import urllib.parse
from collections.abc import Iterable

MASK = "***"
SHORTEST = 8
"""A shorter value stands in harmless texts by chance; masking it would only make them unreadable."""
SHORTEST_LINE = 16


class Secrets:
    """The values known so far, in all forms in which they might be shown. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forms: tuple[str, ...] = ()

    def add(self, value: str) -> None:
        """Mask ``value`` from now on; one of fewer than 8 characters is ignored.

        Of a value of several lines (a private key) each long line is masked as well, but not its PEM header and footer.
        """
        if len(value) < SHORTEST:
            return
        found = forms(value)
        if len(value.strip()) >= SHORTEST:
            found |= forms(value.strip())
        for line in value.split("\n") if "\n" in value else ():
            if len(line.strip()) >= SHORTEST_LINE and not line.startswith("-----"):
                found |= forms(line.strip())
        with self._lock:
            kept = list(self._forms)
            for form in found.difference(self._forms):
                bisect.insort(kept, form, key=_longest_first)
            self._forms = tuple(kept)

    def mask(self, text: str) -> str:
        """The text with ``***`` for every form of every secret, the longest first.

        Repeated until nothing is found: what remains left and right of a mask may form a value again. Each round makes
        the text shorter, so there is an end.
        """
        known = self._forms
        before = None
        while before != text:
            before = text
            for form in known:
                text = text.replace(form, MASK)
        return text

    def install(self, handlers: Iterable[logging.Handler]) -> None:
        """Let these handlers write masked records only. A handler that has the filter already keeps the one."""
        for handler in handlers:
            if not any(isinstance(each, MaskingFilter) and each.secrets is self for each in handler.filters):
                handler.addFilter(MaskingFilter(self))


def _longest_first(form: str) -> tuple[int, str]:
    return -len(form), form


def forms(value: str) -> set[str]:
    """How a value may look: as it is, in base64 (also amid other bytes), in JSON, a URL, a shell line, a repr."""
    data = value.encode(errors="surrogatepass")
    quoted = {urllib.parse.quote(data, safe=""), urllib.parse.quote(data), urllib.parse.quote_plus(data)}
    found = {
        value,
        *(json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)),
        *quoted,
        *(re.sub("%..", lambda match: match[0].lower(), text) for text in quoted),
        repr(value)[1:-1],
        shlex.quote(value).removeprefix("'").removesuffix("'"),
    }
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        found |= {encode(data).decode(), encode(data).decode().rstrip("=")}
        for before in range(3):
            # Of a longer base64 text only the characters in which no bit of a neighbouring byte stands are known.
            end = (before + len(data)) * 8 // 6
            found.add(encode(bytes(before) + data).decode()[(0, 2, 3)[before] : end])
    return {form for form in found if len(form) >= SHORTEST}


class MaskingFilter(logging.Filter):
    """Rewrites each record before a handler formats it: message with its arguments, exception, stack, extra texts."""

    def __init__(self, secrets: Secrets) -> None:
        super().__init__()
        self.secrets = secrets

    def filter(self, record: logging.LogRecord) -> bool:
        """Always true. The record is changed in place: its arguments and its exception are texts in it afterwards."""
        try:
            message = record.getMessage()
        except Exception:
            # An argument's own __str__ may raise anything, and logging would then print all of them as they are.
            message = f"{record.msg} (with arguments that do not fit)"
        record.msg, record.args = message, None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        record.exc_info = None
        for name, value in list(vars(record).items()):
            if isinstance(value, str):
                setattr(record, name, self.secrets.mask(value))
        return True


SECRETS = Secrets()
"""The registry of this process."""
