"""Files on their way to a node: the scripts that lay them down whole, and the sending itself by SFTP.

All files of one call go together: one preparation, one SFTP session, one step that verifies and moves them all.
"""

from __future__ import annotations

import hashlib
import posixpath
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import paramiko

from lab.host import Deadline
from lab.model import NodeError, TransportError
from lab.ssh_channel import CHUNK, closing_at

# Each of these may be cut off and run again at any point, also while the first execution still goes on.
PREPARE = (
    # Words: mode, then target and sha256 of each file. It prints the places (from 0) of those that are there.
    'set -e; mode=$1; place=0; shift; while [ "$#" -gt 0 ]; do sum=; if [ -e "$1" ]; then sum=$(sha256sum < "$1"); fi; '
    'if [ "${sum%% *}" = "$2" ]; then chmod "$mode" "$1"; echo "$place"; else mkdir -p "$(dirname "$1")"; fi; '
    "place=$((place + 1)); shift 2; done"
)
INSTALL = (
    # Words: how, mode; arrival, target and sha256 of each file; --, then folders to remove when all are in place. It
    # prints the sha256 of what arrived, and ends at the first that is wrong.
    'set -e; how=$1 mode=$2; shift 2; while [ "$1" != -- ]; do part=$1; '
    'if [ "$how" = copy ] && [ -e "$1" ]; then part="$2.$$.part"; trap \'rm -f "$part"\' EXIT; '
    'cp "$1" "$part" || [ ! -e "$1" ]; fi; '
    # Nothing to hash: an earlier execution has moved it.
    'if sum=$(sha256sum < "$part"); then if [ "${sum%% *}" != "$3" ]; then echo "${sum%% *}"; exit; fi; '
    'chmod "$mode" "$part" && mv -fT "$part" "$2" || true; fi; '
    'sum=$(sha256sum < "$2"); echo "${sum%% *}"; [ "${sum%% *}" = "$3" ] || exit 0; '
    # With copies the disk then has to hold one of all files twice at a time.
    'rm -f "$1"; shift 3; done; shift; rm -rf "$@"'
)
WRITE = (
    'set -e; umask 077; part="$1.$$.part"; trap \'rm -f "$part"\' EXIT; mkdir -p "$(dirname "$1")"; cat > "$part"; '
    # A lost connection ends the input early, and looks like its end from here.
    '[ "$(wc -c < "$part")" -eq "$3" ] || { echo "the input is not whole" >&2; exit 1; }; '
    'chmod "$2" "$part"; mv -fT "$part" "$1"'
)

SHARED = "/var/tmp"
"""Where any user may have a folder: for a login user who is not root."""

SFTP_FAILURE = "Failure"
"""How sftp-server(8) words SSH_FX_FAILURE, its answer to a write to a full disk. The connection is well then."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """One file: here, there, and what it hashes to."""

    source: Path
    target: str
    sha256: str


def parcels_of(files: Mapping[str, Path]) -> list[Parcel]:
    """Files by target, hashed now; OSError when one cannot be read."""
    found = []
    for target, source in files.items():
        with source.open("rb") as file:
            found.append(Parcel(source, target, hashlib.file_digest(file, "sha256").hexdigest()))
    return found


class Shipment:
    """Files on their way: each arrives in a new private folder, beside its target or in ``shared``.

    ``folders`` are all that were or may have been made on the node so far.
    """

    def __init__(self, parcels: Sequence[Parcel], *, shared: str | None) -> None:
        self.parcels = parcels
        self.folders: list[str] = []
        self._shared = shared
        self._arrived: dict[str, str] = {}

    def __str__(self) -> str:
        return ", ".join(parcel.source.name for parcel in self.parcels)

    def send(self, channel: paramiko.Channel, deadline: Deadline, node: str) -> None:
        """Send what has not arrived yet in one SFTP session, each file whole from its start.

        May be called again after a TransportError. WaitTimeout at the deadline, NodeError when the node refuses a file.
        """
        # Each try has folders of its own: what a lost connection still held may be written late.
        name = f"lab-put-{secrets.token_hex(16)}"
        place, what = f"a folder {name}", f"{node}: sending {self}"
        try:
            with closing_at(deadline, channel, what):
                channel.invoke_subsystem("sftp")
                sftp = paramiko.SFTPClient(channel)
                made = set()
                for number, parcel in enumerate(self.parcels, start=1):
                    if parcel.target in self._arrived:
                        continue
                    folder = self._folder(parcel, name)
                    place = f"{folder}/{number}"
                    if folder not in made:
                        made.add(folder)
                        self.folders.append(folder)
                        sftp.mkdir(folder, 0o700)
                    _send_one(sftp, node, parcel.source, place)
                    self._arrived[parcel.target] = place
        except (FileNotFoundError, PermissionError) as error:
            raise NodeError(f"{node}: cannot write {place}: {error.strerror}") from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            # paramiko raises an OSError with nothing but the server's words for every other status.
            if isinstance(error, OSError) and error.args == (SFTP_FAILURE,):
                raise NodeError(f"{node}: cannot write {place}: the node refused it; is its disk full?") from error
            raise TransportError(f"{what}: {error}") from error

    def _folder(self, parcel: Parcel, name: str) -> str:
        if self._shared is not None:
            return f"{self._shared}/{name}"
        return posixpath.join(posixpath.dirname(parcel.target), f".{name}")

    def words(self, mode: str) -> tuple[str, ...]:
        """What INSTALL is told once all files have arrived."""
        how = "move" if self._shared is None else "copy"
        files = ((self._arrived[parcel.target], parcel.target, parcel.sha256) for parcel in self.parcels)
        return (how, mode, *(word for file in files for word in file), "--", *self.folders)

    def check(self, node: str, arrived: Sequence[str]) -> None:
        """NodeError when the node's hashes are not those of the files, in their order."""
        for number, parcel in enumerate(self.parcels):
            found = arrived[number] if number < len(arrived) else "nothing"
            if found != parcel.sha256:
                raise NodeError(f"{node}: {parcel.source.name} arrived as {found}, sent as {parcel.sha256}")


def _send_one(sftp: paramiko.SFTPClient, node: str, source: Path, place: str) -> None:
    with source.open("rb") as file, sftp.open(place, "wb") as remote:
        remote.set_pipelined(True)
        while chunk := file.read(CHUNK // 2):
            remote.write(chunk)
        # paramiko neither waits for the last writes nor reports a connection that is lost when it closes a file; an
        # answer to this question comes after all of them.
        arrived, sent = remote.stat().st_size, file.tell()
    if arrived != sent:
        raise NodeError(f"{node}: cannot write {place}: {arrived} of {sent} bytes are there; is its disk full?")
