"""Where the experiment's own files are: CLAIM.md, manifests/, node-scripts/."""

from __future__ import annotations

from pathlib import Path

from lab.model import UsageError

MARKS = ("CLAIM.md", "manifests/cases.toml", "node-scripts")


def find(start: Path, given: Path | None = None) -> Path:
    """The project folder: the one given, else ``start`` or a folder above it, else the source tree of this package."""
    candidates = [given] if given is not None else [start, *start.parents, Path(__file__).resolve().parent.parent]
    for folder in candidates:
        if all((folder / mark).exists() for mark in MARKS):
            return folder.resolve()
    raise UsageError(
        f"{given or start}: not a lab project (it needs {', '.join(MARKS)}); run inside one or give --project DIR"
    )


def node_scripts(project: Path) -> dict[str, str]:
    """Text of every node program by file name; UsageError names one that cannot be read as UTF-8."""
    scripts = {}
    for path in sorted((project / "node-scripts").iterdir()):
        if path.suffix in (".py", ".sh"):
            try:
                scripts[path.name] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise UsageError(f"{path} is not UTF-8 text: {error}") from error
    return scripts
