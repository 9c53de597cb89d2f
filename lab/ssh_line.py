"""A remote command as a line for a person's own shell: OpenSSH's client, the pinned host key, all of it quoted. Pure.

What a command is given on standard input or in its environment may be a credential, and is left out.
"""

from __future__ import annotations

import shlex

from lab.host import Command
from lab.ssh_connect import Address


def paste_ready(address: Address, command: Command, *, become: bool) -> str:
    """``ssh … user@host 'command'``: trusts the pinned host key alone, and needs no file but the private key's."""
    argv = ["ssh", "-p", str(address.port)]
    if address.identity is not None:
        argv += ["-i", str(address.identity), "-o", "IdentitiesOnly=yes"]
    if address.host_keys:
        # ssh_config(5): the command prints lines of known_hosts; a percent sign in it is written twice.
        entry = f"/bin/echo {address.known_as} {address.host_keys[0].strip()}".replace("%", "%%")
        argv += ["-o", f"KnownHostsCommand={entry}", "-o", "UserKnownHostsFile=/dev/null"]
        argv += ["-o", "StrictHostKeyChecking=yes"]
    argv += [f"{address.user}@{address.host}", remote_line(command, become=become)]
    return shlex.join(argv)


def remote_line(command: Command, *, become: bool) -> str:
    """The command as the login shell of the node is given it, without the watchman that ends it at its deadline."""
    return shlex.join([*(["sudo", "-n", "--"] if become else []), *command.argv])


def described(address: Address, command: Command, *, become: bool) -> str:
    """The line, after it what it lacks: how much was sent on standard input, which variables were set."""
    lacks = [f"{len(command.stdin)} characters of input"] if command.stdin else []
    lacks += [f"the values of {', '.join(command.env)}"] if command.env else []
    line = paste_ready(address, command, become=become)
    return f"{line}  # not shown: {'; '.join(lacks)}" if lacks else line
