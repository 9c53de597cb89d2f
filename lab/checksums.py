"""``SHA256SUMS`` of a stored attempt or run: what it says, and whether the files are still so."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from pathlib import Path

from lab.atomic import text_of
from lab.model import ResultsError

# History of the format: 1, the first.
FORMAT = 1

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  (\S+)\n")


def digests_of(folder: Path) -> dict[str, str]:
    """Relative name to sha256 of everything in a folder but its sums; what is no plain file says so instead."""
    # By scandir: a Path for each of the fifty thousand files of a thousand cells costs more than their sums.
    digests = {}
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        with os.scandir(folder / prefix) as entries:
            for entry in entries:
                name, is_folder = prefix + entry.name, entry.is_dir(follow_symlinks=False)
                if is_folder:
                    waiting.append(f"{name}/")
                if name == SUMS or (name == "raw" and is_folder):
                    continue
                digests[name] = "not that of a plain file"
                if entry.is_file(follow_symlinks=False):
                    with open(entry.path, "rb") as file:
                        digests[name] = hashlib.sha256(file.read()).hexdigest()
    return dict(sorted(digests.items(), key=lambda item: item[0].split("/")))


def sums_text(folder: Path) -> str:
    """What ``SHA256SUMS`` of a folder has to say, in the form of sha256sum(1)."""
    return "".join(f"{digest}  {name}\n" for name, digest in digests_of(folder).items())


def check(path: Path) -> None:
    """ResultsError naming every file of an attempt or run that is not as it was summed, or a format not this lab's."""
    # Format before sums: a later format may sum differently, and "damaged" would be the wrong word for it.
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        found = json.loads(text_of(path / "stamp.json"))["format"]
        if found != FORMAT:
            raise ResultsError(f"{path} has the format {found}, this lab reads {FORMAT}: use the lab that wrote it")
    text = text_of(path / SUMS)
    expected = {name: digest for digest, name in _LINE.findall(text)}
    if "".join(f"{digest}  {name}\n" for name, digest in expected.items()) != text:
        raise ResultsError(f"{path / SUMS} is not in the form of sha256sum; restore it from version control")
    actual = digests_of(path)
    problems = [
        f"{path / name}: sha256 is {actual.get(name, 'unknown, the file is missing')}, "
        f"{SUMS} says {expected.get(name, 'nothing of this file')}"
        for name in sorted({*expected, *actual})
        if actual.get(name) != expected.get(name)
    ]
    if problems:
        raise ResultsError("\n".join(problems))
