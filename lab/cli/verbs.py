"""The verbs of `lab` by name, each loaded only when it is asked for: a scan must not wait for what a run needs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import typer
import typer.core
import typer.main


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """Where a verb is, and the first line of its help."""

    module: str
    function: str
    help: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def load(self, name: str) -> Any:
        """The command of typer's; its module is imported now."""
        alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        function = getattr(importlib.import_module(self.module), self.function)
        alone.command(name, context_settings=dict(self.settings))(function)
        return typer.main.get_command(alone)


VERBS: dict[str, Verb] = {
    "doctor": Verb(
        module="lab.cli.doctor",
        function="doctor",
        help="Check what a local run needs; each line comes with its fix. Exit 5 when something must be fixed.",
    ),
    "plan": Verb(
        module="lab.cli.run",
        function="show_plan",
        help="Show what `lab run` with the same flags would do: cells, stages, minutes, files. Touches nothing.",
    ),
    "run": Verb(
        module="lab.cli.run",
        function="run",
        help="Measure: node, Kubernetes, stages, results, summary; then remove the node.",
    ),
    "summary": Verb(
        module="lab.cli.summary",
        function="summary",
        help="Write results/summary.md from stored results alone.",
    ),
    "judge": Verb(
        module="lab.cli.summary",
        function="judge",
        help="Judge all stored raw texts again with today's code and CLAIM.md; report every verdict that changes.",
    ),
    "verify": Verb(
        module="lab.cli.summary",
        function="verify",
        help="Check every stored attempt against its checksums and its stamp. Exit 4 when one is damaged.",
    ),
    "diff": Verb(
        module="lab.cli.diff",
        function="diff",
        help="Compare two runs, cells or versions, or one against the article: inputs first, then results.",
    ),
    "scan": Verb(
        module="lab.cli.scan",
        function="scan",
        help="Find pods and templates that get another QoS class on 1.34-1.36 than on 1.37.",
    ),
    "fetch": Verb(
        module="lab.cli.doctor",
        function="fetch",
        help="Put verified binaries and the guest image into the cache, so that later runs need no network.",
    ),
    "nodes": Verb(
        module="lab.cli.nodes",
        function="nodes",
        help="List nodes, local ones and those in the cloud, and what becomes of them.",
    ),
    "ssh": Verb(
        module="lab.cli.nodes",
        function="ssh",
        help="Run a command on a node, or open a shell there with its pinned host key.",
        settings={"ignore_unknown_options": True},
    ),
    "logs": Verb(
        module="lab.cli.nodes",
        function="logs",
        help="Print the end of a unit's journal on a node (the kubelet's by default).",
    ),
    "down": Verb(
        module="lab.cli.nodes",
        function="down",
        help="Remove nodes: droplets with their firewalls and keys, guests with their disks and control planes.",
    ),
    "gc": Verb(
        module="lab.cli.nodes",
        function="gc",
        help="Remove what dead runs left: guests of dead processes, and what is ours in the cloud and has expired.",
    ),
}
"""In the order of a person's work."""


class Verbs(typer.core.TyperGroup):
    """The group of all verbs. A list of them is written without loading any."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names in order."""
        del ctx
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One verb; None when there is none of that name."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        if self._listing:
            return typer.core.TyperCommand(cmd_name, help=verb.help)
        return verb.load(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Help of the group."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False
