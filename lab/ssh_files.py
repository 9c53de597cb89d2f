"""Files on their way to a node: the scripts that lay them down whole, and the sending itself by SFTP."""

from __future__ import annotations

from pathlib import Path

import paramiko

from lab.host import Deadline
from lab.model import NodeError, TransportError
from lab.ssh_channel import CHUNK, closing_at

# Each of these may be cut off and run again at any point, also while the first execution still goes on.
PREPARE = (
    'set -e; if [ -e "$1" ]; then sum=$(sha256sum < "$1"); '
    'if [ "${sum%% *}" = "$3" ]; then chmod "$2" "$1"; echo same; exit; fi; fi; mkdir -p "$(dirname "$1")"; echo other'
)
INSTALL = (
    'set -e; if [ -e "$1" ]; then part=$1; '
    'if [ "$5" = copy ]; then part="$2.$$.part"; trap \'rm -f "$part"\' EXIT; cp "$1" "$part"; fi; '
    'sum=$(sha256sum < "$part"); if [ "${sum%% *}" != "$4" ]; then echo "${sum%% *}"; exit; fi; '
    'chmod "$3" "$part"; mv -fT "$part" "$2" || true; fi; sum=$(sha256sum < "$2"); echo "${sum%% *}"'
)
WRITE = (
    'set -e; umask 077; part="$1.$$.part"; trap \'rm -f "$part"\' EXIT; mkdir -p "$(dirname "$1")"; cat > "$part"; '
    # A lost connection ends the input early, and looks like its end from here.
    '[ "$(wc -c < "$part")" -eq "$3" ] || { echo "the input is not whole" >&2; exit 1; }; '
    'chmod "$2" "$part"; mv -fT "$part" "$1"'
)

SFTP_FAILURE = "Failure"
"""How sftp-server(8) words SSH_FX_FAILURE, its answer to a write to a full disk. The connection is well then."""


def send(channel: paramiko.Channel, deadline: Deadline, node: str, source: Path, target: str) -> None:
    """Write a file by SFTP, whole from its start; WaitTimeout at the deadline, NodeError when the node refuses it."""
    what = f"{node}: sending {source.name}"
    try:
        with closing_at(deadline, channel, what):
            channel.invoke_subsystem("sftp")
            sftp = paramiko.SFTPClient(channel)
            with source.open("rb") as file, sftp.open(target, "wb") as remote:
                remote.set_pipelined(True)
                while chunk := file.read(CHUNK // 2):
                    remote.write(chunk)
                # paramiko neither waits for the last writes nor reports a connection that is lost when it closes a
                # file; an answer to this question comes after all of them.
                arrived, sent = remote.stat().st_size, file.tell()
    except (FileNotFoundError, PermissionError) as error:
        raise NodeError(f"{node}: cannot write {target}: {error.strerror}") from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        # paramiko raises an OSError with nothing but the server's words for every other status.
        if isinstance(error, OSError) and error.args == (SFTP_FAILURE,):
            raise NodeError(f"{node}: cannot write {target}: the node refused it; is its disk full?") from error
        raise TransportError(f"{what}: {error}") from error
    if arrived != sent:
        raise NodeError(f"{node}: cannot write {target}: {arrived} of {sent} bytes are there; is its disk full?")
