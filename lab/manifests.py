"""Pod manifests from jinja2 templates and a table of cases. Pure but for reading its own two kinds of files once.

A rendered manifest is an input of a stage: its sha256 is part of the stage's stamp.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import yaml

from lab.model import UsageError

POD_DEFAULTS: dict[str, Any] = {
    "pod_resources": None,
    "requests": None,
    "limits": None,
    "priority_class": None,
    "busy": 0,
    "memory_mib": 0,
}


KNOWN = (*POD_DEFAULTS, "template", "namespace", "name", "scheduled", "value")
"""Every parameter that a case may have: a misspelt one must not be taken for its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """The cases and templates of one folder."""

    cases: Mapping[str, Mapping[str, Any]]
    environment: jinja2.Environment = field(repr=False)

    @classmethod
    def load(cls, folder: Path) -> Manifests:
        """Read ``cases.toml`` and the templates beside it; UsageError names the file that is wrong."""
        path = folder / "cases.toml"
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UsageError(f"{path}: {error}") from error
        defaults = {**POD_DEFAULTS, **data.get("defaults", {})}
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(folder),
            undefined=jinja2.StrictUndefined,
            trim_blocks=False,
            keep_trailing_newline=True,
            autoescape=False,
        )
        environment.filters["flow"] = _flow
        for name, case in {"defaults": data.get("defaults", {}), **data.get("cases", {})}.items():
            unknown = sorted(set(case) - set(KNOWN))
            if unknown:
                known = ", ".join(KNOWN)
                raise UsageError(f"{path}: {name}: unknown parameter {', '.join(unknown)}; known are {known}")
        cases = {name: {"name": name, **defaults, **case} for name, case in data.get("cases", {}).items()}
        return cls(cases=cases, environment=environment)

    def render(self, case: str, **changes: Any) -> str:
        """YAML of one case, with parameters changed; UsageError for an unknown case or a parameter left out."""
        if case not in self.cases:
            raise UsageError(f"no manifest case {case!r}; cases.toml has: {', '.join(sorted(self.cases))}")
        parameters = {**self.cases[case], **changes}
        parameters["command"] = pod_command(parameters["busy"], parameters["memory_mib"])
        try:
            text = self.environment.get_template(parameters["template"]).render(parameters)
            yaml.safe_load(text)
        except (jinja2.TemplateError, yaml.YAMLError) as error:
            raise UsageError(f"manifest case {case}: {error}") from error
        return text


def _flow(value: Any) -> str:
    """A value as YAML in flow form; UndefinedError for a parameter that nobody gave."""
    if isinstance(value, jinja2.Undefined):
        # Any use of a strict undefined raises the error that names the parameter.
        return str(value)
    return json.dumps(value, sort_keys=True)


def pod_command(busy: int, memory_mib: int) -> list[str]:
    """Command of the container: busy processes, or anonymous memory held by ``dd``, or nothing but sleep.

    ``dd`` reads one block of the wanted size into its own heap and then waits for ever, since nobody reads the pipe
    that it writes to. That memory is anonymous and touched, as a program's own would be, and filled by one system call.
    """
    if busy:
        return ["sh", "-c", "while :; do :; done & " * busy + "wait"]
    if memory_mib:
        return ["sh", "-c", f"dd if=/dev/zero bs={memory_mib << 20} count=1 | sleep 100000000"]
    return ["sleep", "100000000"]
