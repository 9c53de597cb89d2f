"""Where the user's own host is, from what the command line says: ``user@addr[:port]``, a key file, known_hosts."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.config import NodeOptions
from lab.model import UsageError
from lab.ssh_connect import Address
from lab.ssh_trust import known_host_keys

EXAMPLE = "root@192.0.2.7, admin@node.example:2222 or root@[2001:db8::7]:2222"
USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?")
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_.])?")
ADDRESS_6 = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9._-]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One host as it was given; ``user`` and ``port`` None when they were left out."""

    user: str | None
    host: str
    port: int | None


def parse_target(text: str) -> Target:
    """``[user@]addr[:port]``; an IPv6 address stands in brackets. UsageError says what is wrong."""
    wrong = f"--host {text!r}"
    user, at, place = text.rpartition("@")
    if at and not USER.fullmatch(user):
        raise UsageError(f"{wrong}: {user!r} is no user name (examples: {EXAMPLE})")
    bracketed = re.fullmatch(r"\[([^\[\]]*)\](?::(.*))?", place)
    if bracketed:
        host, port = bracketed[1], bracketed[2]
        if not ADDRESS_6.fullmatch(host):
            raise UsageError(f"{wrong}: {host!r} is no IPv6 address (examples: {EXAMPLE})")
    elif place.count(":") > 1:
        raise UsageError(f"{wrong}: an IPv6 address stands in brackets (examples: {EXAMPLE})")
    else:
        host, colon, rest = place.partition(":")
        port = rest if colon else None
        if not NAME.fullmatch(host):
            raise UsageError(f"{wrong}: {host!r} is no host name or address (examples: {EXAMPLE})")
    return Target(user=user or None, host=host, port=None if port is None else _port(port, wrong))


def _port(text: str, wrong: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise UsageError(f"{wrong}: {text!r} is no port from 1 to 65535 (examples: {EXAMPLE})")
    return int(text)


def shown(address: Address) -> str:
    """``user@addr[:port]`` for messages."""
    place = f"[{address.host}]" if ":" in address.host else address.host
    return f"{address.user}@{place}" if address.port == 22 else f"{address.user}@{place}:{address.port}"


def known_hosts_files() -> tuple[Path, ...]:
    """Where ssh(1) looks for host keys; the home folder is that of the account, as it is for ssh."""
    return Path(_account().pw_dir) / ".ssh" / "known_hosts", Path("/etc/ssh/ssh_known_hosts")


def _account() -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError as error:
        raise UsageError(f"user number {os.getuid()} has no account here; give --host user@addr") from error


def resolve(options: NodeOptions, known_hosts: Sequence[Path] | None = None) -> Address:
    """The address with its known host keys.

    UsageError for what was given wrongly, NodeError when no key of the host is known; nothing is sent anywhere.
    """
    if not options.host:
        raise UsageError(f"--provider ssh needs --host user@addr[:port] (examples: {EXAMPLE})")
    target = parse_target(options.host)
    if target.port is not None and options.ssh_port not in (None, target.port):
        raise UsageError(f"--host {options.host!r} and --ssh-port {options.ssh_port} name different ports; give one")
    port = target.port or options.ssh_port or 22
    identity = None if options.identity is None else _readable("--identity", options.identity)
    user = target.user or _account().pw_name
    files = known_hosts_files() if known_hosts is None else known_hosts
    if options.known_hosts is not None:
        files = (_readable("--known-hosts", options.known_hosts),)
    keys = known_host_keys(target.host, port, files)
    return Address(host=target.host, port=port, user=user, host_keys=keys, identity=identity)


READABLE = {
    "--identity": "give a private key that the host accepts, or leave the flag out: ssh-agent and the default keys",
    "--known-hosts": "give a file with the host's key, or leave the flag out to look where ssh does",
}


def _readable(flag: str, path: Path) -> Path:
    """A file of the user's under a name that holds from any working directory; UsageError when it cannot be read."""
    try:
        place = path.expanduser().resolve()
        with place.open("rb"):
            return place
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{flag} {path}: {reason}; {READABLE[flag]}") from error
