"""What a machine was before the lab installed on it, and getting it back to that."""

from __future__ import annotations

from collections.abc import Mapping

from lab.host import Command, Completed, Host
from lab.model import NodeError, UsageError

BEFORE, REMOVE = "upstream_before.sh", "upstream_remove.sh"
BEFORE_S, REMOVE_S = 60.0, 600.0
REFUSED = "refused: "
RUN = ("sh", "-s")
"""How both programs are run: their text travels on stdin, since they come before and go after the lab's own folder."""


def remember(host: Host, scripts: Mapping[str, str]) -> None:
    """Write down on the machine what it is; what an earlier run left of its own is removed first.

    NodeError when something of another Kubernetes, or of somebody's own, stands where the lab would install.
    """
    done = _run(host, scripts, BEFORE, BEFORE_S)
    if done.stdout.strip() == "saved before":
        remove(host, scripts)
        done = _run(host, scripts, BEFORE, BEFORE_S)
    refused = [line.removeprefix(REFUSED) for line in done.stdout.splitlines() if line.startswith(REFUSED)]
    if refused:
        raise NodeError(
            f"{host.name}: {', '.join(refused)} {'is' if len(refused) == 1 else 'are'} there already and not of the "
            "lab's making; nothing was installed. Remove the Kubernetes that they belong to, or take another machine"
        )
    if done.exit_status != 0 or done.stdout.strip() != "saved":
        raise NodeError(f"{host.name}: {BEFORE} ended with {done.exit_status}: {_said(done)}")


def remove(host: Host, scripts: Mapping[str, str]) -> None:
    """Take off what was installed; NodeError names what would not go. Harmless when nothing was."""
    done = _run(host, scripts, REMOVE, REMOVE_S)
    if done.exit_status != 0 or done.stdout.strip().splitlines()[-1:] not in (["removed"], ["nothing installed"]):
        raise NodeError(f"{host.name}: not everything could be removed: {_said(done)}")


def _run(host: Host, scripts: Mapping[str, str], name: str, timeout_s: float) -> Completed:
    if name not in scripts:
        raise UsageError(f"the project's node-scripts hold no {name}; take the folder of this version of the lab")
    command = Command(argv=RUN, stdin=scripts[name], timeout_s=timeout_s, repeatable=True, check=False)
    return host.run(command)


def _said(done: Completed) -> str:
    return "; ".join((done.stdout + done.stderr).strip()[-1500:].splitlines()) or "nothing was said"
