"""The verbs of `lab` by name, each loaded only when it is asked for: a scan must not wait for what a run needs."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import typer
import typer.core
import typer.main

from lab.cli import console


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """Where a verb is, the first line of its help, and the heading under which `lab --help` lists it."""

    module: str
    function: str
    help: str
    group: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def load(self, name: str) -> Any:
        """The command of typer's; its module is imported now."""
        alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        function = getattr(importlib.import_module(self.module), self.function)
        alone.command(name, context_settings=dict(self.settings), rich_help_panel=self.group)(function)
        return typer.main.get_command(alone)


SET_UP, MEASURE, READ, SCAN, NODES = "Set up", "Measure", "Read results", "Scan manifests", "Look after nodes"

VERBS: dict[str, Verb] = {
    "demo": Verb(
        module="lab.cli.demo",
        function="demo",
        help="Show what the lab makes of the stored results, in a folder of its own; no node and no token needed.",
        group=SET_UP,
    ),
    "doctor": Verb(
        module="lab.cli.doctor",
        function="doctor",
        help="Check what a run needs here and in the cloud; each line with its fix. Exit 5 when something is missing.",
        group=SET_UP,
    ),
    "fetch": Verb(
        module="lab.cli.fetch",
        function="fetch",
        help="Put verified binaries and the guest image into the cache, so that later runs need no network.",
        group=SET_UP,
    ),
    "plan": Verb(
        module="lab.cli.run",
        function="show_plan",
        help="Show what `lab run` with the same flags would do: cells, stages, minutes, cost, files. Touches nothing.",
        group=MEASURE,
    ),
    "run": Verb(
        module="lab.cli.run",
        function="run",
        help="Measure: node, Kubernetes, stages, results, summary; then remove the node.",
        group=MEASURE,
    ),
    "summary": Verb(
        module="lab.cli.summary",
        function="summary",
        help="Write results/summary.md from stored results alone.",
        group=READ,
    ),
    "diff": Verb(
        module="lab.cli.diff",
        function="diff",
        help="Compare two runs, cells or versions, or one against the article: inputs first, then results.",
        group=READ,
    ),
    "judge": Verb(
        module="lab.cli.summary",
        function="judge",
        help="Judge all stored raw texts again with today's code and CLAIM.md; report every verdict that changes.",
        group=READ,
    ),
    "verify": Verb(
        module="lab.cli.summary",
        function="verify",
        help="Check every stored attempt and run against its checksums. Exit 4 when one is damaged.",
        group=READ,
    ),
    "scan": Verb(
        module="lab.cli.scan",
        function="scan",
        help="Find pods and templates that get another QoS class on 1.34-1.36 than on 1.37.",
        group=SCAN,
    ),
    "nodes": Verb(
        module="lab.cli.nodes",
        function="nodes",
        help="List nodes, local ones and those in the cloud, and what becomes of them.",
        group=NODES,
    ),
    "ssh": Verb(
        module="lab.cli.nodes",
        function="ssh",
        help="Run a command on a node, or open a shell there with its pinned host key.",
        group=NODES,
        settings={"ignore_unknown_options": True},
    ),
    "logs": Verb(
        module="lab.cli.nodes",
        function="logs",
        help="Print the end of a unit's journal on a node (the kubelet's by default).",
        group=NODES,
    ),
    "down": Verb(
        module="lab.cli.nodes",
        function="down",
        help="Remove nodes: droplets with their firewalls and keys, guests with their disks and control planes.",
        group=NODES,
    ),
    "gc": Verb(
        module="lab.cli.nodes",
        function="gc",
        help="Remove what dead runs left: guests of dead processes, and what is ours in the cloud and has expired.",
        group=NODES,
    ),
}
"""In the order of a person's work, each group in one piece."""


class Verbs(typer.core.TyperGroup):
    """The group of all verbs. A list of them is written without loading any."""

    _listing = False

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run the program; whoever reads its output may stop before its end."""
        with console.patient_output():
            return super().main(*args, **settings)

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
            return typer.core.TyperCommand(cmd_name, help=verb.help, rich_help_panel=verb.group)
        return verb.load(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Help of the group."""
        with self._only_listing():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Names of verbs, and options of the program, that begin so; a person waits at every key."""
        with self._only_listing():
            return super().shell_complete(ctx, incomplete)

    @contextlib.contextmanager
    def _only_listing(self) -> Iterator[None]:
        self._listing = True
        try:
            yield
        finally:
            self._listing = False
