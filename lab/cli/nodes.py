"""`lab nodes`, `ssh`, `logs`, `down` and `gc`: nodes that are there, and how they go."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated

import typer

from lab.artifacts import cache as artifacts_cache
from lab.cli import console, shared
from lab.host import Command
from lab.leftovers import remove_all
from lab.model import EXIT_OK, LabError, NodeError, UsageError, heaviest_code
from lab.providers import folders
from lab.providers.contract import NodeRecord, Provider
from lab.secrets import SECRETS
from lab.ssh import SshHost

KUBELET_UNITS = ("lab-kubelet", "k3s")
"""Units whose journal holds a kubelet's log, by distribution; a node has one of them."""

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Id as `lab nodes` shows it.")]


def _listed() -> tuple[list[tuple[Provider, NodeRecord]], list[int]]:
    """Every node of every provider that can be asked, and an exit code for each that could not.

    A cloud's own list is the truth about what is there.
    """
    found, codes = [], [EXIT_OK]
    for provider in shared.usable_providers():
        try:
            found += [(provider, record) for record in provider.records()]
        except LabError as error:
            codes.append(console.fail(error))
    return found, codes


def _leave(codes: list[int]) -> None:
    code = heaviest_code(codes)
    if code != EXIT_OK:
        raise typer.Exit(code)


def nodes(as_json: shared.JsonOption = False) -> None:
    """List nodes, local ones and those in the cloud, and what becomes of them."""
    found, codes = _listed()
    records = [record for _, record in found]
    if as_json:
        console.print_json(
            [
                {
                    "id": record.id,
                    "provider": record.provider,
                    "state": record.state,
                    "in_use": record.in_use,
                    "left_over": record.is_expired,
                    "expires_s": record.expires_s,
                }
                for record in records
            ]
        )
    else:
        rows = [[record.id, record.provider, record.state] for record in records]
        console.print_table("Nodes", ["node", "provider", "state"], rows)
    _leave(codes)


def _reachable(node: str) -> tuple[folders.NodeFolder, SshHost]:
    """The folder that this machine keeps of a node, and its host; UsageError when it has none.

    Only the machine that made a droplet has its key; elsewhere it can be listed and removed, no more.
    """
    place = folders.find(shared.cache_folder(), node)
    try:
        host, _ = folders.read_node(place)
    except NodeError as error:
        raise UsageError(str(error)) from error
    return place, host


def ssh(
    node: NodeArgument,
    command: Annotated[list[str] | None, typer.Argument(help="Command to run; none opens a shell.")] = None,
) -> None:
    """Run a command on a node, or open a shell there with its pinned host key."""
    place, host = _reachable(node)
    address = host.address
    known = place.folder / "known_hosts"
    known.write_text("".join(f"{address.known_as} {key}\n" for key in address.host_keys))
    identity = [] if address.identity is None else ["-i", str(address.identity), "-o", "IdentitiesOnly=yes"]
    argv = [
        "ssh", *identity, "-p", str(address.port), "-o", f"UserKnownHostsFile={known}",
        "-o", "GlobalKnownHostsFile=/dev/null", "-o", "StrictHostKeyChecking=yes", "-o", "VerifyHostKeyDNS=no",
        "-o", "UpdateHostKeys=no", "-o", "ControlPath=none", f"{address.user}@{address.host}", *(command or []),
    ]  # fmt: skip
    try:
        os.execvp("ssh", argv)
    except OSError as error:
        raise UsageError(f"cannot run ssh: {error.strerror}; install the OpenSSH client") from error


def logs(
    node: NodeArgument,
    unit: Annotated[str | None, typer.Option("--unit", help="systemd unit (default: the kubelet's).")] = None,
    lines: Annotated[int, typer.Option("--lines", help="How many lines from the end.", min=1)] = 200,
) -> None:
    """Print the end of a unit's journal on a node (the kubelet's by default)."""
    if unit == "":
        raise UsageError("--unit '' names no unit; leave it out for the kubelet's")
    _, host = _reachable(node)
    units = [word for name in ((unit,) if unit else KUBELET_UNITS) for word in ("-u", name)]
    argv = ("journalctl", *units, "-n", str(lines), "--no-pager", "-o", "short-precise")
    try:
        typer.echo(SECRETS.mask(host.run(Command(argv=argv, timeout_s=60)).stdout), nl=False)
    finally:
        host.close()


def down(
    node: Annotated[list[str] | None, typer.Argument(metavar="[NODE]…", help="Ids; none with --all.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every node that no running lab uses.")] = False,
) -> None:
    """Remove nodes: droplets with their firewalls and keys, guests with their disks and control planes."""
    if everything == bool(node):
        raise UsageError("name nodes, or give --all")
    found, codes = _listed()
    listed = {record.id: (provider, record) for provider, record in found}
    chosen = node or [name for name, (_, record) in listed.items() if not record.in_use]
    for name in chosen:
        # All names first: a mistyped one must not be found when others are gone already.
        if name not in listed:
            raise UsageError(f"no node {name!r}; there are: {', '.join(listed) or 'none'} (see `lab nodes`)")
    for name in dict.fromkeys(chosen):
        try:
            listed[name][0].down(name)
            console.progress(f"removed {name}")
        except LabError as error:
            codes.append(console.fail(error))
    _leave(codes)


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: shared.JsonOption = False,
) -> None:
    """Remove what dead runs left: guests of dead processes, and what is ours in the cloud and has expired.

    Also what a killed lab left half done in the cache, with its processes: a guest image, a download, a build.

    Exit 6 when something will not go, 5 when a provider could not be asked.
    """
    removed: list[str] = []
    codes = [EXIT_OK]
    steps = [partial(provider.collect_garbage, dry_run=dry_run) for provider in shared.usable_providers()]
    steps.append(partial(remove_all, artifacts_cache.left(shared.cache_folder()), dry_run=dry_run))
    for step in steps:
        try:
            removed += step()
        except LabError as error:
            codes.append(console.fail(error))
    if as_json:
        codes.append(console.shown(lambda: console.print_json({"dry_run": dry_run, "removed": removed})))
    else:
        word = "would remove" if dry_run else "removed"
        for name in removed:
            console.progress(f"{word} {name}")
        if not removed and codes == [EXIT_OK]:
            console.progress("nothing is left over")
    _leave(codes)
