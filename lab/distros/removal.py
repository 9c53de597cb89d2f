"""What a machine was before the lab installed on it, and getting it back to that: two programs for the node.

The first writes down what the machine is and refuses one that has what the lab would have to mix with; the second takes
off what was installed and restores what was written down. Both can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lab.host import Command, Completed, Host
from lab.model import NodeError, UsageError

BEFORE_S, REMOVE_S = 60.0, 600.0
REFUSED = "refused: "
RUN = ("sh", "-s")
"""How both are run: their text travels on stdin, since they come before and go after the lab's own folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """The two programs of a distribution, by their names in ``node-scripts``."""

    before: str
    remove: str

    def remember(self, host: Host, scripts: Mapping[str, str]) -> None:
        """Write down on the machine what it is; what an earlier run left of its own is removed first.

        NodeError when something of another Kubernetes, or of somebody's own, stands where the lab would install.
        """
        done = _run(host, scripts, self.before, BEFORE_S)
        if done.stdout.strip() == "saved before":
            self.take_off(host, scripts)
            done = _run(host, scripts, self.before, BEFORE_S)
        refused = [line.removeprefix(REFUSED) for line in done.stdout.splitlines() if line.startswith(REFUSED)]
        if refused:
            verb = "is" if len(refused) == 1 else "are"
            raise NodeError(
                f"{host.name}: {', '.join(refused)} {verb} there already and not of the lab's making; nothing was "
                "installed. Remove the Kubernetes that they belong to, or take another machine"
            )
        if done.exit_status != 0 or done.stdout.strip() != "saved":
            raise NodeError(f"{host.name}: {self.before} ended with {done.exit_status}: {_said(done)}")

    def take_off(self, host: Host, scripts: Mapping[str, str]) -> None:
        """Take off what was installed; NodeError names what would not go. Harmless when nothing was."""
        done = _run(host, scripts, self.remove, REMOVE_S)
        if done.exit_status != 0 or done.stdout.strip().splitlines()[-1:] not in (["removed"], ["nothing installed"]):
            raise NodeError(f"{host.name}: not everything could be removed: {_said(done)}")


def _run(host: Host, scripts: Mapping[str, str], name: str, timeout_s: float) -> Completed:
    if name not in scripts:
        raise UsageError(f"the project's node-scripts hold no {name}; take the folder of this version of the lab")
    command = Command(argv=RUN, stdin=scripts[name], timeout_s=timeout_s, repeatable=True, check=False)
    return host.run(command)


def _said(done: Completed) -> str:
    return "; ".join((done.stdout + done.stderr).strip()[-1500:].splitlines()) or "nothing was said"
