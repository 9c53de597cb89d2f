"""Which host keys are trusted: those that the user's known_hosts files name, and one that a new node makes for itself.

The format of known_hosts is that of sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lab.host import Command, Deadline
from lab.model import NodeError
from lab.ssh import HostKeyMismatch, SshHost, parse_public_key

REVOKED, AUTHORITY = "@revoked", "@cert-authority"
SSH_FOLDER = "/etc/ssh"
RESTART_S = 60.0

ROTATE = r"""set -eu
fail() {
    echo "$1" >&2
    exit 1
}
host_keys() {
    sshd -T -C user=root,host=localhost,addr=127.0.0.1,laddr=127.0.0.1,lport=22 | sed -n 's/^[Hh]ost[Kk]ey //p'
}
# `restart` returns when the new sshd listens (the unit is Type=notify) and leaves sessions alone (KillMode=process);
# after `reload` the old one may still answer. With ssh.socket and Accept=yes each connection starts its own sshd.
restart() {
    for unit in ssh.service sshd.service; do
        case $(systemctl is-active "$unit" || true) in
        active | activating | reloading)
            systemctl restart "$unit"
            return
            ;;
        esac
    done
    systemctl is-active --quiet ssh.socket || systemctl is-active --quiet sshd.socket ||
        fail "neither ssh.service nor ssh.socket is active"
}
main() {
    PATH=$PATH:/usr/sbin:/sbin
    key=$1/ssh_host_ed25519_key
    new=$1/lab_host_key.new
    umask 077
    if [ "$2" = prepare ]; then
        if ! [ -s "$new" ] || ! [ -s "$new.pub" ]; then
            rm -f "$new" "$new.pub"
            ssh-keygen -q -t ed25519 -N "" -C lab-node -f "$new"
        fi
        cat "$new.pub"
        return
    fi
    if [ -s "$new" ]; then
        mv -f "$new" "$key"
    fi
    rm -f "$new.pub"
    ssh-keygen -y -f "$key" > "$key.pub"
    chmod 644 "$key.pub"
    [ "$(cut -d " " -f 1,2 "$key.pub")" = "$3" ] || fail "$key is not the key that was prepared"
    # Named, so that sshd uses no key of another type that is generated later.
    mkdir -p "$1/sshd_config.d"
    echo "HostKey $key" > "$1/sshd_config.d/00-lab-hostkey.conf"
    host_keys | grep -qxF "$key" || fail "sshd does not use $key"
    for other in "$1"/ssh_host_*_key; do
        [ "$other" = "$key" ] || rm -f "$other" "$other.pub"
    done
    host_keys | while read -r other; do
        [ "$other" = "$key" ] || rm -f "$other" "$other.pub"
    done
    sshd -t
    restart
}
main "$@" < /dev/null
"""
"""Two steps, ``prepare`` and ``switch KEY``; either may be cut off and run again. Nothing runs before the last line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One known key: its marker ("" for none), its type and its base64 text."""

    marker: str
    kind: str
    blob: str


def known_host_keys(address_host: str, port: int, files: Sequence[Path]) -> tuple[str, ...]:
    """Host keys (``type base64``) that OpenSSH known_hosts files hold for a host, in their order.

    Hashed names, patterns and ``[host]:port`` are understood, lines that OpenSSH would skip are skipped, revoked keys
    are left out, files that do not exist hold nothing. NodeError when nothing is left, with what to do.
    """
    name = address_host.lower() if port == 22 else f"[{address_host.lower()}]:{port}"
    lines = [line for path in files for line in _read(path, name)]
    revoked = {line.blob for line in lines if line.marker == REVOKED}
    plain = [line for line in lines if not line.marker]
    unrevoked = [line for line in plain if line.blob not in revoked]
    keys = [f"{line.kind} {line.blob}" for line in unrevoked if _is_usable(line)]
    if keys:
        return tuple(dict.fromkeys(keys))
    searched = ", ".join(str(path) for path in files)
    advice = _advice(address_host, port)
    if unrevoked:
        kinds = ", ".join(sorted({line.kind for line in unrevoked}))
        raise NodeError(f"the known keys of {name} are of types that cannot be used here ({kinds}); {advice}")
    if plain:
        raise NodeError(f"every known key of {name} is marked {REVOKED} in {searched}; the lab does not connect there")
    if any(line.marker == AUTHORITY for line in lines):
        raise NodeError(
            f"for {name} only certificate authorities ({AUTHORITY}) are known, and the lab pins plain host keys; "
            f"{advice}"
        )
    raise NodeError(f"no host key of {name} is known ({searched}); {advice}")


def _advice(host: str, port: int) -> str:
    place = host if port == 22 else f"-p {port} {host}"
    return (
        f"connect once with `ssh {place}` and compare the fingerprint that it shows with the one that the machine "
        "tells on its console (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), or add its keys with "
        f"`ssh-keyscan {place}` over a path that you trust"
    )


def _read(path: Path, name: str) -> Iterator[_Line]:
    """Lines of one file that are about ``name``."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise NodeError(f"cannot read {path}: {error.strerror}") from error
    for row in text.split("\n"):
        fields = re.split("[ \t]+", row.strip(" \t\r"))
        marker = fields.pop(0) if fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#") or marker not in ("", REVOKED, AUTHORITY):
            continue
        if _is_about(fields[0], name):
            yield _Line(marker=marker, kind=fields[1], blob=fields[2])


def _is_about(patterns: str, name: str) -> bool:
    """Whether the first field of a line names a host; a negated pattern that fits outweighs all others."""
    if patterns.startswith("|"):
        return _is_hash_of(patterns, name)
    found = False
    for pattern in patterns.lower().split(","):
        text = re.escape(pattern.removeprefix("!")).replace(r"\*", ".*").replace(r"\?", ".")
        if re.fullmatch(text, name):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _is_hash_of(field: str, name: str) -> bool:
    """``|1|salt|hash``: HMAC-SHA1 of the name with the salt as its key, both in base64."""
    parts = field.split("|")
    if len(parts) != 4 or parts[1] != "1":
        return False
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in parts[2:])
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)


def _is_usable(line: _Line) -> bool:
    """Whether the key can be read here, and is of the type that stands before it."""
    try:
        return parse_public_key(f"{line.kind} {line.blob}").get_name() == line.kind
    except NodeError:
        return False


def rotate_host_key(host: SshHost, *, folder: str = SSH_FOLDER) -> str:
    """Let a node of ours make a new ed25519 host key for itself, and pin that one; returns it (``type base64``).

    The first key came with the node's user data, which stays readable there. The private half of the new one never
    leaves the node; every other host key in ``folder`` and in sshd's configuration is deleted. At the end the host is
    connected, and the earlier keys were shown to be refused. NodeError otherwise; while it is not known which key the
    node shows, the earlier ones and the new one are pinned.
    """
    earlier = host.address.host_keys
    made = parse_public_key(_rotate(host, folder, "prepare"))
    new = f"{made.get_name()} {made.get_base64()}"
    # If the connection is lost in between, either may answer.
    host.pin((*earlier, new))
    _rotate(host, folder, "switch", new)
    host.pin((new,))
    host.close()
    host.wait_ready(Deadline.after(RESTART_S))
    for key in earlier:
        _prove_refused(host, key)
    return new


def _rotate(host: SshHost, *words: str) -> str:
    return host.run(Command(argv=("sh", "-s", "--", *words), stdin=ROTATE, timeout_s=RESTART_S, repeatable=True)).stdout


def _prove_refused(host: SshHost, key: str) -> None:
    """Whoever pins only ``key`` must be stopped; the connection asks for keys of its type first."""
    probe = SshHost(replace(host.address, host_keys=(key,)), host.name)
    try:
        probe.connect()
    except HostKeyMismatch:
        return
    finally:
        probe.close()
    raise NodeError(f"{host.name} still shows its first host key ({parse_public_key(key).fingerprint}) after rotation")
