"""What is left of a failure: the bundle that is fetched before the node goes, and the report at the end of the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.attempts import Work
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


def report(result: CellResult, results: Path) -> str:
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
    lines += [f"  next: {command}" for command in next_commands(result, results)]
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


def next_commands(result: CellResult, results: Path) -> list[str]:
    """Commands to type after a failure, the most useful first."""
    where = "" if results == DEFAULT_RESULTS else f" --results {results}"
    commands = [f"lab ssh {result.kept}", f"lab logs {result.kept}"] if result.kept else []
    if result.missing:
        commands.append(f"lab run --resume {result.run_id}{where}")
    else:
        again = ",".join(dict.fromkeys(failure.stage for failure in result.failures if failure.stage))
        stages = f" --stages {again}" if again else ""
        node = f" --node {result.kept}" if result.kept else " --keep failed"
        commands.append(f"lab run {_cell_flags(result.cell)}{stages}{node}{where}")
    return commands


def _cell_flags(cell: Cell) -> str:
    words = [f"--versions {cell.version}", f"--distro {cell.distro}", *(f"--gate {gate}" for gate in cell.gates)]
    return " ".join(words)
