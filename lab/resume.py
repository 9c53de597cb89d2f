"""Going on with a run whose process died or lost its node: what its journal says, and whether it still holds.

The first event of a journal holds the run as it was asked for and what went in: stamps of the stages, CLAIM.md. Folders
are left out: results and project are given again, the cache only has to be the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from pathlib import Path
from typing import Any

from lab import attempts, judging, processes
from lab.atomic import folders_in, text_of
from lab.claim_history import ClaimFile
from lab.config import NodeOptions, RunConfig
from lab.journal import RECORD, RunJournal, read_events
from lab.model import JSON, Cell, LabError, NoSuchNode, ResultsError, Stamp, UsageError, sha256_text
from lab.providers import folders
from lab.providers.contract import Provider
from lab.run_records import Seal, seal_of
from lab.run_state import Tools
from lab.stages import registry
from lab.store import Store

FOLDERS = ("results", "project", "cache")
PATHS = ("artifacts",)
NODE_PATHS = ("identity", "known_hosts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What earlier processes of a run journaled. The journal is owned by this process."""

    journal: RunJournal
    events: Sequence[JSON]

    @property
    def sessions(self) -> int:
        """How many processes have worked on the run so far."""
        return len([event for event in self.events if event["kind"] in ("run", "resume")])

    @property
    def started(self) -> str:
        """When the first one began, ISO 8601."""
        return str(self.events[0]["time"])

    def config(self, *, results: Path, project: Path, cache: Path) -> RunConfig:
        """The run as it was asked for. UsageError when another lab or another cache folder was used."""
        first = self.events[0]
        if first["cache"] != _mark(cache):
            raise UsageError(
                f"run {self.journal.run_id} used another cache folder than {cache}, and its nodes are known there; "
                "set LAB_CACHE as it was then"
            )
        try:
            return config_from_json(first["config"], results=results, project=project, cache=cache)
        except (KeyError, TypeError, ValueError, ArithmeticError, LabError) as error:
            raise UsageError(
                f"run {self.journal.run_id} was begun by another version of the lab ({first.get('lab')}), whose "
                f"settings this one cannot read: {error}; start a new run"
            ) from error


def first_event(config: RunConfig, tools: Tools) -> JSON:
    """Facts of a run's first event: all that is needed to do it again, and to see whether that would be the same."""
    return {
        "cells": [cell.name for cell in config.cells],
        "stages": list(config.stages),
        "config": config_as_json(config),
        "cache": _mark(config.cache),
        "stamps": {name: dict(stamp.inputs) for name, stamp in _stamps(config, tools).items()},
        "claims": _claims(tools.claims),
        "owner": owner(),
        "sums": True,
    }


def owner() -> JSON:
    """This process, for people to find."""
    me = processes.myself()
    return {"pid": me.pid, "start_ticks": me.start_ticks}


def _mark(cache: Path) -> str:
    # Not its name: journals are published, and home folders stand in it.
    return sha256_text(str(cache.resolve()))[:16]


def _stamps(config: RunConfig, tools: Tools) -> dict[str, Stamp]:
    return {
        stage.name: attempts.stamp(stage, config, tools)
        for stage in registry.select(config.stages)
    }


def _claims(claims: ClaimFile) -> JSON:
    return {"sha256": sha256_text(claims.text), "state": claims.state}


def config_as_json(config: RunConfig) -> JSON:
    """A run's settings as plain data, without its folders."""
    data = {entry.name: getattr(config, entry.name) for entry in fields(config) if entry.name not in FOLDERS}
    nodes = {entry.name: _plain(getattr(config.nodes, entry.name)) for entry in fields(config.nodes)}
    plain = {name: _plain(value) for name, value in data.items() if name not in ("cells", "stages", "nodes")}
    return {**plain, "cells": [cell.as_json() for cell in config.cells], "stages": list(config.stages), "nodes": nodes}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path | Decimal) else value


def config_from_json(data: JSON, *, results: Path, project: Path, cache: Path) -> RunConfig:
    """Inverse of :func:`config_as_json`; TypeError, KeyError or ValueError for settings of another version."""
    nodes: JSON = {name: _path(value) if name in NODE_PATHS else value for name, value in data["nodes"].items()}
    values: JSON = {name: _path(value) if name in PATHS else value for name, value in data.items()}
    values |= {
        "cells": tuple(Cell.from_json(cell) for cell in data["cells"]),
        "stages": tuple(data["stages"]),
        "max_cost": None if data["max_cost"] is None else Decimal(data["max_cost"]),
        "nodes": NodeOptions(**nodes),
    }
    return RunConfig(**values, results=results, project=project, cache=cache)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def open_run(store: Store, run_id: str) -> Past:
    """Own a run that was begun. UsageError when there is none (with those that could be resumed), or it goes on."""
    folder = store.root / "_runs" / run_id
    others = f"those that can be resumed: {', '.join(resumable(store)) or 'none'}"
    if not folder.is_dir() or folder.parent != store.root / "_runs":
        raise UsageError(f"no run {run_id!r} in {store.root}; {others}")
    # Before the journal is opened, which would make one. Its first event stays what it is.
    events = read_events(folder)
    if not events or events[0]["kind"] != "run" or "config" not in events[0]:
        why = "had not begun when it ended" if not events else "was begun by a lab that did not note its settings"
        raise UsageError(f"run {run_id} {why}: start it anew; {others}")
    journal = store.open_run(run_id)
    journal.own()
    return Past(journal=journal, events=journal.events())


def resumable(store: Store) -> list[str]:
    """Names of the runs that were begun and are not known to have ended well, oldest first."""
    found = []
    for folder in folders_in(store.root / "_runs", but="."):
        events = read_events(folder)
        if events and "config" in events[0] and not _ended_well(folder):
            found.append(folder.name)
    return found


def _ended_well(folder: Path) -> bool:
    """Whether there is a record of the run, sealed if it is to be, and no cell in it has a problem."""
    try:
        if seal_of(folder) is Seal.UNFINISHED:
            return False
        return all(entry["problem"] is None for entry in json.loads(text_of(folder / RECORD))["cells"])
    except (OSError, ValueError, LookupError, TypeError, ResultsError):
        return False


def cells_to_do(past: Past, config: RunConfig, store: Store) -> tuple[Cell, ...]:
    """Cells of which not every stage has been sealed by this run. ResultsError when a stored attempt is damaged."""
    sealed = {
        (attempt.cell.name, attempt.stage)
        for cell in config.cells
        for attempt in store.attempts(smoke=config.quick, cell=cell)
        if attempt.run_id == past.journal.run_id
    }
    return tuple(cell for cell in config.cells if any((cell.name, name) not in sealed for name in config.stages))


def is_complete(past: Past, config: RunConfig, store: Store) -> bool:
    """Whether nothing at all is left to be done: results, record, nodes."""
    is_recorded = _ended_well(past.journal.folder)
    return is_recorded and not cells_to_do(past, config, store) and not left_nodes(past, is_shared=config.reuse_node)


def check_inputs(past: Past, config: RunConfig, tools: Tools) -> None:
    """ResultsError naming every input that has changed since the run began."""
    first = past.events[0]
    changed = []
    for name, stamp in _stamps(config, tools).items():
        before = Stamp(inputs=first["stamps"].get(name, {}))
        changed += [f"{name}: {each}" for each in before.difference(stamp)]
    claims = _claims(tools.claims)
    if claims["sha256"] != first["claims"]["sha256"]:
        changed.append("CLAIM.md")
    elif claims["state"] != first["claims"]["state"]:
        changed.append(f"CLAIM.md was {first['claims']['state']} in git and is {claims['state']}")
    if changed:
        raise ResultsError(
            f"run {past.journal.run_id} cannot go on, since its inputs have changed since it began: "
            f"{'; '.join(changed)}; put them back as they were, or start a new run"
        )


def left_nodes(past: Past, *, is_shared: bool) -> list[str]:
    """Ids of nodes that earlier processes made, or were about to make, and are not known to have removed or kept.

    ``is_shared``: one node was used for all cells, and "destroyed" only means that a cell had done with it.
    """
    made: dict[str, None] = {}
    for event in past.events:
        if event["kind"] == "create":
            made[event["node"]] = None
        elif event["kind"] == "kept" or (event["kind"] == "destroyed" and not is_shared):
            made.pop(event["node"], None)
    return list(made)


def remove_left_nodes(past: Past, provider: Provider, tools: Tools, *, cache: Path, is_shared: bool) -> None:
    """Remove what earlier processes left, and nothing that is not of this run.

    LeftBehind when something stays. A node that could not be asked for passes its error on and stays in the journal as
    one that may be there; UsageError when another live process uses it. Local guests of dead processes go all together,
    as with `lab gc`.
    """
    for node in left_nodes(past, is_shared=is_shared):
        try:
            _take_over(past, cache, node)
            provider.down(node)
        except NoSuchNode:
            # The provider's own list is the truth: there is no such node (any more).
            gone = f"{node} is gone already"
        else:
            gone = f"{node} is removed"
        tools.progress(gone)
        past.journal.event("destroyed", node=node)
    if provider.name == folders.LOCAL:
        for name in provider.collect_garbage(dry_run=False):
            tools.progress(f"{name} is removed")


def _take_over(past: Past, cache: Path, node: str) -> None:
    """Let nobody else begin to use a node that is about to be removed; UsageError when somebody does already."""
    try:
        found = folders.find(cache, node)
        of_it = {"pid": found.owner.pid, "start_ticks": found.owner.start_ticks}
        # Earlier processes of this run have ended, wherever they were: the journal could be had.
        folders.adopt(found, from_elsewhere=of_it in [event.get("owner") for event in past.events])
    except NoSuchNode:
        # A cloud may have it all the same.
        return


def spent_s(past: Past | None, now: float) -> list[float]:
    """Seconds that nodes of earlier processes lived: until they were removed, else until ``now`` (Unix time)."""
    began: dict[str, float] = {}
    lives = []
    for event in past.events if past is not None else ():
        if event["kind"] == "create":
            began[event["node"]] = judging.unix(event["time"])
        elif event["kind"] == "destroyed" and event["node"] in began:
            lives.append(judging.unix(event["time"]) - began.pop(event["node"]))
    return [*lives, *(now - start for start in began.values())]
