"""What a process left when it died, and its removal; folders that are being filled, and the lock that tells of them.

Whoever fills such a folder holds its lock: the kernel frees it with the process, however that ends, so a folder whose
lock is free is nobody's, and no number is there that another process could get again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import filelock

from lab import processes
from lab.model import LabError, LeftBehind


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One thing: how a person knows it, and what removes it.

    ``remove`` says whether it was removed: not when somebody has taken it over. LeftBehind when it will not go.
    """

    id: str
    remove: Callable[[], bool]


def remove_all(leftovers: Iterable[Leftover], *, dry_run: bool, problems: Iterable[str] = ()) -> list[str]:
    """Remove each, or with ``dry_run`` nothing; the ids of what was (or would be) removed.

    LeftBehind, after all were tried, with ``problems`` and with what would not go.
    """
    removed, told = [], list(problems)
    for leftover in leftovers:
        try:
            if dry_run or leftover.remove():
                removed.append(leftover.id)
        except (LabError, OSError) as error:
            told.append(str(error))
    if told:
        raise LeftBehind("\n".join(told))
    return removed


def unfinished(cache: Path, folder: Path, lock: Path, remove: Callable[[Path], None]) -> Leftover | None:
    """A folder below ``cache`` that was being filled, for ``remove`` to take away; None while its lock is held."""

    def remove_it() -> bool:
        try:
            with filelock.FileLock(lock, timeout=0):
                remove(folder)
        except filelock.Timeout:
            # Somebody has begun to fill it anew since it was looked at, and will see to it.
            return False
        return True

    try:
        with filelock.FileLock(lock, timeout=0):
            return Leftover(id=str(folder.relative_to(cache)), remove=remove_it)
    except filelock.Timeout:
        return None


def end_processes(folder: Path, *, what: str = "", grace_s: float = 2.0) -> None:
    """End what was started for a folder (see :mod:`lab.processes`); LeftBehind names what would not end.

    ``what`` is how a person knows the folder.
    """
    stubborn = processes.end_marked(folder, grace_s=grace_s)
    if stubborn:
        pids = ", ".join(str(process.pid) for process in stubborn)
        raise LeftBehind(
            f"{what or folder}: processes {pids} would not end; folder {folder} is still there; "
            "`lab gc` tries again once this process has ended"
        )


def delete(folder: Path, *, what: str = "") -> None:
    """Delete a folder, which a person knows as ``what``; LeftBehind when it will not go."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise LeftBehind(f"{f'{what}: ' if what else ''}folder {folder} could not be deleted")
