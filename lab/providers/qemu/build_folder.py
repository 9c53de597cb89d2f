"""The folder in which a guest image is built, and how all that belongs to it goes.

To it belong the processes of its tools (marked as those of a node are), a second folder for their temporary files, and
what they mounted there. Whoever builds holds its lock; once that is free, `lab gc` or the next build removes it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from lab import interrupts, leftovers, processes
from lab.host import Command, LocalHost
from lab.leftovers import Leftover
from lab.model import LeftBehind

SUFFIX, LOCK_SUFFIX = ".part", ".lock"
SCRATCH = "scratch"
GRACE_S = 30.0
"""In which mmdebstrap, told to stop, deletes its tree: half a gigabyte."""
UNMOUNT_S = 30.0
DELETE_S = 300.0


@contextmanager
def made(target: Path) -> Iterator[Path]:
    """A new folder beside ``target``, to be renamed to it. When the block fails, nothing of it is left.

    ``scratch`` in it is a link to the folder for temporary files. That one is where the system has such folders: an
    image is built as other users (those of a user namespace, and apt's), and none of them can enter a home folder.
    """
    folder = target.with_name(f"{target.name}{SUFFIX}")
    try:
        remove(folder)
        folder.mkdir(parents=True)
        scratch = Path(tempfile.gettempdir()).resolve() / f"node-lab-image-{secrets.token_hex(8)}"
        # The link first: what is not there yet does no harm, what nobody knows of would stay.
        (folder / SCRATCH).symlink_to(scratch)
        scratch.mkdir()
        scratch.chmod(0o711)
        yield folder
    except BaseException:
        interrupts.surely("removing what was built of the guest image", partial(remove, folder))
        raise


def run(
    argv: Sequence[str], folder: Path, log: Path, *, env: Mapping[str, str], timeout_s: float
) -> int | None:
    """Exit status of a tool, whose output goes to the end of ``log``; None when it did not end in time.

    Nothing that it started goes on afterwards. When this is left by an exception, :func:`made` sees to that.
    """
    scratch = str((folder / SCRATCH).readlink())
    child = processes.start(argv, folder=folder, log=log, env={**env, "TMPDIR": scratch})
    with suppress(subprocess.TimeoutExpired):
        child.wait(timeout_s)
    status = child.poll()
    leftovers.end_processes(folder, grace_s=GRACE_S)
    return status


def finish(folder: Path, target: Path) -> None:
    """Give the folder its final name, without what was only of use while it was filled."""
    _delete((folder / SCRATCH).readlink())
    (folder / SCRATCH).unlink()
    shutil.rmtree(target, ignore_errors=True)
    folder.rename(target)


def remove(folder: Path) -> None:
    """End the tools, unmount what they mounted and delete both folders; harmless when nothing is there.

    LeftBehind when something will not go.
    """
    leftovers.end_processes(folder, grace_s=GRACE_S)
    if (folder / SCRATCH).is_symlink():
        _delete((folder / SCRATCH).readlink())
    _delete(folder)


def left(cache: Path) -> list[Leftover]:
    """Folders of this cache whose builders are dead."""
    found = [
        leftovers.unfinished(cache, folder, folder.with_suffix(LOCK_SUFFIX), remove)
        for folder in sorted((cache / "images").glob(f"*{SUFFIX}"))
    ]
    return [leftover for leftover in found if leftover is not None]


def _delete(folder: Path) -> None:
    for place in reversed(_mounts(folder)):
        LocalHost().run(Command(argv=("umount", place), timeout_s=UNMOUNT_S, check=False))
    mounted = _mounts(folder)
    if mounted:
        # Never deleted through: these are /dev, /proc and /sys of this machine.
        raise LeftBehind(f"{folder} was not deleted, since something is mounted there: {', '.join(mounted)}")
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists() and os.geteuid() != 0:
        # mmdebstrap's own way to what belongs to the users of a namespace.
        rm = ("rm", "-rf", "--one-file-system", *map(str, folder.iterdir()))
        LocalHost().run(Command(argv=("mmdebstrap", "--unshare-helper", *rm), timeout_s=DELETE_S, check=False))
    leftovers.delete(folder)


def _mounts(folder: Path) -> list[str]:
    """Mount points below a folder, each after those that it lies in."""
    below = f"{folder.resolve()}/"
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    points = [re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), line.split()[4]) for line in lines]
    return [point for point in points if point.startswith(below)]
