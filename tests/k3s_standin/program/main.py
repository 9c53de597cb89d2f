"""Entry point: k3s, or ctr when it is called by that name. What only a server needs is imported there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import NoReturn

from .layout import BIN, MARK, Refused
from .words import Call, parse

REFUSED = 64
"""Exit status for a command line that the lab is not known to use; EX_USAGE of sysexits.h."""


def main(path: str, words: list[str]) -> int:
    """One call of the program that lies at ``path``; the exit status."""
    name = os.path.basename(path)
    try:
        return _act(parse(name, words), path)
    except Refused as error:
        sys.stderr.write(f"{name} ({MARK}): {error}\n")
        return REFUSED


def _act(call: Call, path: str) -> int:
    if call.kind in ("ctr", "kubectl") and os.path.isdir(BIN):
        return _tool(call, path)
    from .staging import Release

    release = Release.read(path)
    if call.kind == "version":
        sys.stdout.write(f"k3s version {release.tag} ({MARK})\ngo version unknown\n")
        return 0
    if call.kind == "server":
        from .server import serve

        return serve(release)
    release.stage()
    return _tool(call, path)


def _tool(call: Call, path: str) -> int:
    """kubectl or ctr in the place of this process, but for the one answer that has to be changed."""
    argv = [f"{BIN}/{call.kind}", *call.words]
    if not call.asks_version:
        _become(argv)
    from .staging import Release

    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    sys.stdout.write(renamed(done.stdout, Release.read(path).tag) if done.returncode == 0 else done.stdout)
    return done.returncode


def _become(argv: list[str]) -> NoReturn:
    os.execv(argv[0], argv)


def renamed(answer: str, tag: str) -> str:
    """The API server's ``/version`` with the release's own suffix, which a server of k3s has built in.

    The server here is Kubernetes' own. Its number stays as it says it: Refused when that is not the release's.
    """
    found = json.loads(answer)
    number, _, suffix = tag.partition("+")
    if found["gitVersion"] != number:
        raise Refused(f"the API server says {found['gitVersion']}, the release is {tag}")
    return json.dumps(found | {"gitVersion": f"{number}+{suffix}"}, indent=2)
