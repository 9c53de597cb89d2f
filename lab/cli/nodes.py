"""`lab nodes`, `ssh`, `logs`, `down` and `gc`: nodes that are there, and how they go."""

from __future__ import annotations

import json
import os
import time
from typing import Annotated

import typer

from lab.cli import shared
from lab.host import Command
from lab.model import LeftBehind, UsageError
from lab.providers.qemu import folders

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Id as `lab nodes` shows it.")]


def nodes(as_json: shared.JsonOption = False) -> None:
    """List local nodes with their owners and what becomes of them."""
    guests = shared.qemu_provider().guests()
    now = time.time()
    if as_json:
        shared.print_json(
            [
                {
                    "id": guest.id,
                    "owner_pid": guest.owner.pid,
                    "owner_alive": guest.owner.is_alive(),
                    "kept_until_s": guest.kept_until_s,
                }
                for guest in guests
            ]
        )
        return
    rows = [[guest.id, str(guest.owner.pid), _state(guest, now)] for guest in guests]
    shared.print_table("Nodes", ["node", "owner pid", "state"], rows)


def _state(guest: folders.Guest, now: float) -> str:
    if guest.is_expired(now):
        return "left over (lab gc removes it)"
    if guest.owner.is_alive():
        return "in use"
    return f"kept for {(guest.kept_until_s - now) / 3600:.1f} h more"


def ssh(
    node: NodeArgument,
    command: Annotated[list[str] | None, typer.Argument(help="Command to run; none opens a shell.")] = None,
) -> None:
    """Run a command on a node, or open a shell there with its pinned host key."""
    place = folders.find(shared.cache_folder(), node)
    try:
        facts = json.loads((place.folder / "node.json").read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"node {node} never finished booting; `lab down {node}` removes it") from error
    known = place.folder / "known_hosts"
    known.write_text(f"[127.0.0.1]:{facts['ssh_port']} {facts['host_key']}\n")
    argv = [
        "ssh", "-i", str(place.folder / "id_ed25519"), "-p", facts["ssh_port"], "-o", f"UserKnownHostsFile={known}",
        "-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes", "root@127.0.0.1", *(command or []),
    ]  # fmt: skip
    try:
        os.execvp("ssh", argv)
    except OSError as error:
        raise UsageError(f"cannot run ssh: {error.strerror}; install the OpenSSH client") from error


def logs(
    node: NodeArgument,
    unit: Annotated[str, typer.Option("--unit", help="systemd unit on the node.")] = "lab-kubelet",
    lines: Annotated[int, typer.Option("--lines", help="How many lines from the end.")] = 200,
) -> None:
    """Print the end of a unit's journal on a node (the kubelet's by default)."""
    provider = shared.qemu_provider()
    place = folders.find(shared.cache_folder(), node)
    found = provider.attach(node)
    argv = ("journalctl", "-u", unit, "-n", str(lines), "--no-pager", "-o", "short-precise")
    try:
        typer.echo(found.host.run(Command(argv=argv, timeout_s=60)).stdout, nl=False)
    finally:
        provider.keep(found, place.kept_until_s)


def down(
    node: Annotated[list[str] | None, typer.Argument(metavar="[NODE]…", help="Ids; none with --all.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every node that no running lab uses.")] = False,
) -> None:
    """Remove nodes: processes, control plane, disks."""
    provider = shared.qemu_provider()
    if everything == bool(node):
        raise UsageError("name nodes, or give --all")
    chosen = node or [guest.id for guest in provider.guests() if not guest.owner.is_alive()]
    for name in chosen:
        # All names first: a mistyped one must not be found when others are gone already.
        folders.find(shared.cache_folder(), name)
    stayed = []
    for name in dict.fromkeys(chosen):
        try:
            provider.down(name)
            shared.progress(f"removed {name}")
        except LeftBehind as error:
            stayed.append(str(error))
    if stayed:
        raise LeftBehind("\n".join(stayed))


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: shared.JsonOption = False,
) -> None:
    """Remove what dead runs left: guests, their control planes, their disks. Exit 6 when something will not go."""
    removed = shared.qemu_provider().collect_garbage(dry_run=dry_run)
    if as_json:
        shared.print_json({"dry_run": dry_run, "removed": removed})
        return
    word = "would remove" if dry_run else "removed"
    for name in removed:
        shared.progress(f"{word} {name}")
    if not removed:
        shared.progress("nothing is left over")
