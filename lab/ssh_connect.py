"""Opening one SSH connection to a node whose host keys are pinned, on a socket that finds a dead peer."""

from __future__ import annotations

import base64
import logging
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko
from paramiko.pkey import UnknownKeyType

from lab.model import NodeError, TransportError, UsageError

# paramiko logs every refused attempt of a booting node with a traceback; its errors reach us as exceptions.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)

AGENT_S = 15.0
USER_TIMEOUT_S = 30
KEEPALIVE_S = 10
SOCKET_OPTIONS = (
    ("SOL_SOCKET", "SO_KEEPALIVE", 1),
    ("IPPROTO_TCP", "TCP_KEEPIDLE", KEEPALIVE_S),
    ("IPPROTO_TCP", "TCP_KEEPINTVL", 5),
    ("IPPROTO_TCP", "TCP_KEEPCNT", 4),
    ("IPPROTO_TCP", "TCP_USER_TIMEOUT", USER_TIMEOUT_S * 1000),
)
"""paramiko's keepalive asks for no reply, so it finds no dead peer by itself; unanswered bytes end the connection."""



@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a node answers, and the only host keys that are accepted there (OpenSSH public key lines).

    ``identity`` None means the user's own agent and default key files.
    """

    host: str
    port: int
    user: str
    host_keys: tuple[str, ...]
    identity: Path | None

    @property
    def known_as(self) -> str:
        """How known_hosts files name this place (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT)."""
        return self.host if self.port == 22 else f"[{self.host}]:{self.port}"


class HostKeyMismatch(NodeError):
    """The node showed another key than the pinned ones. Never retried."""


class AuthenticationRefused(TransportError):
    """The node answered and would not let us in. Tried again only while it boots."""


def parse_public_key(text: str) -> paramiko.PKey:
    """``ssh-ed25519 AAAA… [comment]`` to a key; NodeError when it is not one."""
    fields = text.split()
    if len(fields) < 2:
        raise NodeError(f"not an OpenSSH public key: {text[:60]!r}")
    try:
        return paramiko.PKey.from_type_string(fields[0], base64.b64decode(fields[1], validate=True))
    except (ValueError, OverflowError, paramiko.SSHException, UnknownKeyType) as error:
        raise NodeError(f"not an OpenSSH public key: {text[:60]!r}: {error}") from error


class _Pinned(paramiko.MissingHostKeyPolicy):
    """Accepts the pinned keys, several of one type included (paramiko's own store keeps one of each type)."""

    def __init__(self, node: str, keys: tuple[paramiko.PKey, ...]) -> None:
        self._node = node
        self._keys = keys

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Called before any login, with the key that the node has proved to hold."""
        del client
        if key.asbytes() not in [known.asbytes() for known in self._keys]:
            pinned = ", ".join(known.fingerprint for known in self._keys) or "none"
            raise HostKeyMismatch(
                f"{self._node} at {hostname} shows another host key ({key.get_name()} {key.fingerprint}) than the "
                f"pinned one ({pinned}); this may be another machine or someone in between. Nothing was sent. "
                "Find out which; never accept the new key unseen."
            )

    def transport(self, sock: Any, /, **options: Any) -> paramiko.Transport:
        """A transport that asks for keys of the pinned types before any other."""
        transport = paramiko.Transport(sock, **options)
        security = transport.get_security_options()
        names = {"rsa-sha2-256" if key.get_name() == "ssh-rsa" else key.get_name() for key in self._keys}
        names |= {"rsa-sha2-512"} if "rsa-sha2-256" in names else set()
        security.key_types = sorted(security.key_types, key=lambda name: name not in names)
        return transport


class _Agent(paramiko.Agent):
    """Leaves no connection open when the agent says something strange, or goes away before it has answered."""

    def _connect(self, conn: socket.socket) -> None:
        try:
            super()._connect(conn)  # type: ignore[misc]
        except BaseException:
            conn.close()
            raise


class _Client(paramiko.SSHClient):
    """With an agent of its own choice: left to itself it asks the user's without a deadline."""

    _agent: paramiko.Agent | None

    def use(self, agent: paramiko.Agent) -> None:
        """Ask this agent for keys and signatures, and close it at the end."""
        self._agent = agent


def open_client(address: Address, node: str, timeout_s: float, handshake_s: float) -> paramiko.SSHClient:
    """A logged-in connection. TCP and the node's first line may take ``timeout_s`` each, what follows ``handshake_s``.

    HostKeyMismatch before any login, AuthenticationRefused, UsageError for a private key that cannot be used,
    TransportError for anything else.
    """
    pinned = _Pinned(node, tuple(parse_public_key(text) for text in address.host_keys))
    identity = None if address.identity is None else _read_identity(address.identity)
    client = _Client()
    client.set_missing_host_key_policy(pinned)
    where = f"{node} at {address.known_as}"
    try:
        if identity is None:
            client.use(_ask_agent())
        client.connect(
            address.host,
            sock=_open_socket(address, timeout_s),
            port=address.port,
            username=address.user,
            pkey=identity,
            allow_agent=identity is None,
            look_for_keys=identity is None,
            timeout=handshake_s,
            banner_timeout=timeout_s,
            auth_timeout=handshake_s,
            channel_timeout=handshake_s,
            transport_factory=pinned.transport,
        )
        transport = client.get_transport()
        if transport is None:
            raise TransportError(f"{where}: closed at once")
        transport.set_keepalive(KEEPALIVE_S)
    except (paramiko.SSHException, OSError, EOFError) as error:
        kind = AuthenticationRefused if _is_refusal(error, client) else TransportError
        client.close()
        raise kind(f"{where}: {type(error).__name__}: {error}") from error
    except BaseException:
        client.close()
        raise
    return client


def _ask_agent() -> paramiko.Agent:
    """The user's agent, which has told its keys, or none; TransportError when it does not answer."""
    answers: list[paramiko.Agent | Exception] = []

    def ask() -> None:
        try:
            answers.append(_Agent())
        except Exception as error:
            answers.append(error)

    asking = threading.Thread(target=ask, name="ssh-agent", daemon=True)
    asking.start()
    asking.join(AGENT_S)
    if not answers:
        raise TransportError(
            f"the ssh-agent behind SSH_AUTH_SOCK was asked for its keys and did not answer within {AGENT_S:g} s (a "
            "forwarded one whose link is dead?); unset SSH_AUTH_SOCK, or name a key with --identity"
        )
    (answer,) = answers
    if isinstance(answer, Exception):
        raise TransportError(f"the ssh-agent cannot be used: {type(answer).__name__}: {answer}") from answer
    return answer


def _open_socket(address: Address, timeout_s: float) -> socket.socket:
    """A TCP connection whose dead peer is found; options that this system does not know are left out."""
    sock = socket.create_connection((address.host, address.port), timeout_s)
    for level, name, value in SOCKET_OPTIONS:
        if hasattr(socket, name):
            sock.setsockopt(getattr(socket, level), getattr(socket, name), value)
    return sock


def _read_identity(path: Path) -> paramiko.PKey:
    try:
        return paramiko.PKey.from_path(path)
    except (OSError, ValueError, TypeError, paramiko.SSHException, UnknownKeyType) as error:
        reason = error.strerror if isinstance(error, OSError) else "it has a passphrase, or another form than OpenSSH's"
        raise UsageError(
            f"cannot use the private key {path}: {reason}; a key with a passphrase belongs in ssh-agent, "
            "which is asked when no key file is given"
        ) from error


def _is_refusal(error: Exception, client: paramiko.SSHClient) -> bool:
    """Whether the node said no. paramiko raises the same for a login that a lost or slow connection cut short."""
    transport = client.get_transport()
    answered = transport is not None and transport.is_active() and "timeout" not in str(error)
    return isinstance(error, paramiko.AuthenticationException) and answered
