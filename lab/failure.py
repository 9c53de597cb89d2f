"""What is left of a failure: the bundle that is fetched before the node goes, and the report at the end of the run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from lab.attempts import Work
from lab.config import RunConfig
from lab.distros.bundle import INDEX, Bundle
from lab.distros.contract import Cluster
from lab.model import Cell, Interrupted, LabError
from lab.providers.contract import Node
from lab.run_state import CellResult
from lab.stages.contract import Stage

DEFAULT_RESULTS = Path("results")


def save(work: Work, cluster: Cluster | None, node: Node, stages: Sequence[Stage], session: int) -> None:
    """What helps to explain a failure, as far as it can be had; only a signal passes through."""
    tools, result = work.tools, work.result
    name = work.cell.name if session == 1 else f"{work.cell.name}.{session}"
    folder = work.config.cache / "logs" / work.run_id / name
    try:
        _save_manifests(work, stages, Bundle(folder))
        tools.distro.save_logs(cluster, node, folder)
        tools.progress(f"{work.cell.name}: logs are in {folder}")
    except Interrupted as error:
        result.problem = error
        raise
    except (LabError, OSError) as error:
        tools.progress(f"{work.cell.name}: the logs could not be saved: {error}")
    result.logs = folder if folder.is_dir() else None


def _save_manifests(work: Work, stages: Sequence[Stage], bundle: Bundle) -> None:
    """The manifests that the stages apply, as they are sent."""
    for stage in stages:
        for case in stage.cases:
            changed = f"{stage.name}-" if stage.changes else ""
            name = f"manifests/{changed}{case}.yaml"
            if not (bundle.folder / name).exists():
                bundle.text(name, work.tools.manifests.render(case, **stage.changes))


def report(result: CellResult, config: RunConfig) -> str:
    """What failed, where and in which phase, where its bundle is, what to type next; "" for a cell without fault."""
    if not result.failures:
        return ""
    where = "no node was made" if result.node is None else f"node {result.node}"
    state = "" if result.node is None else " (kept)" if result.kept else " (removed)"
    lines = [f"what failed in {result.cell.name}: {where}{state}"]
    for failure in result.failures:
        words = [f"{what} {name}" for what, name in (("stage", failure.stage), ("phase", failure.phase)) if name]
        lines.append(f"  {', '.join(words) or 'before the first phase'}: {_first_lines(failure.text)}")
    if result.logs is not None:
        lines.append(f"  logs: {result.logs}{_lacking(result.logs)}")
    lines += [f"  next: {command}" for command in next_commands(result, config)]
    return "\n".join(lines)


def _first_lines(text: str) -> str:
    first, *more = text.strip().splitlines() or ["no reason given"]
    return first if not more else f"{first} (and more, see there)"


def _lacking(folder: Path) -> str:
    """How many items of a bundle are missing, and where it says why."""
    try:
        count = (folder / INDEX).read_text(encoding="utf-8").count(" missing: ")
    except OSError:
        return ""
    return f" ({count} items are missing, {INDEX} says why)" if count else ""


def next_commands(result: CellResult, config: RunConfig) -> list[str]:
    """Commands to type after a failure, the most useful first; a stage is run again as it was asked for."""
    where = [] if config.results == DEFAULT_RESULTS else ["--results", str(config.results)]
    commands = [f"lab ssh {result.kept}", f"lab logs {result.kept}"] if result.kept else []
    if result.missing:
        commands.append(shlex.join(["lab", "run", "--resume", result.run_id, *where]))
    else:
        again = ",".join(dict.fromkeys(failure.stage for failure in result.failures if failure.stage))
        stages = ["--stages", again] if again else []
        node = ["--node", result.kept] if result.kept else [*_node_flags(config), "--keep", "failed"]
        sampling = ["--quick"] if config.quick else []
        sampling += ["--order", config.order, "--reps", str(config.reps)]
        commands.append(shlex.join(["lab", "run", *_cell_flags(result.cell), *stages, *sampling, *node, *where]))
    return commands


def _cell_flags(cell: Cell) -> list[str]:
    gates = [word for gate in cell.gates for word in ("--gate", str(gate))]
    return ["--versions", cell.version, "--distro", cell.distro, *gates]


def _node_flags(config: RunConfig) -> list[str]:
    """What kind of node, and where its binaries come from, as far as it was said."""
    words = [] if config.nodes.host is not None else ["--provider", config.provider]
    for entry in fields(config.nodes):
        value = getattr(config.nodes, entry.name)
        if value != entry.default:
            flag = f"--{entry.name.replace('_', '-')}"
            words += [flag] if value is True else [flag, str(value)]
    words += [] if config.artifacts is None else ["--artifacts", str(config.artifacts)]
    named = {"--no-download": not config.download, "--no-build": not config.build, "--airgap-images": config.own_images}
    return words + [flag for flag, is_set in named.items() if is_set]
