"""An account in process with the calls of a plain client, for tests that need no socket."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection
from typing import Any

from .account import Account, Result
from .behaviour import PROMPT, Behaviour
from .limits import RateLimits
from .machines import Machines
from .wire import JSON

TOKEN = "token-of-the-test"
NO_LIMITS = RateLimits(per_hour=None, per_minute=None, key_listings_per_minute=None)
DROPLET: JSON = {"name": "lab-1", "size": "s-2vcpu-4gb", "region": "fra1", "image": "ubuntu-24-04-x64"}
SSH_FROM_ONE: JSON = {"protocol": "tcp", "ports": "22", "sources": {"addresses": ["203.0.113.9"]}}
ALL_OUT: list[JSON] = [{"protocol": "tcp", "ports": "all", "destinations": {"addresses": ["0.0.0.0/0", "::/0"]}}]


class Clock:
    """Unix seconds, moved by the test alone."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Api:
    """An account with the calls of a client; unknown requests fail the test unless it says that it expects them."""

    def __init__(
        self,
        behaviour: Behaviour = PROMPT,
        scopes: Collection[str] | None = None,
        limits: RateLimits = NO_LIMITS,
        machines: Machines | None = None,
        droplet_limit: int = 10,
    ) -> None:
        self.clock = Clock()
        self.account = Account(
            clock=self.clock, tokens={TOKEN: scopes}, behaviour=behaviour, limits=limits, machines=machines,
            droplet_limit=droplet_limit,
        )  # fmt: skip

    def whole(self, method: str, path: str, body: object = None, token: str | None = TOKEN, **query: object) -> Result:
        """Status, headers and body of one request; an unknown one is for the caller to look for."""
        texts = {name: str(value) for name, value in query.items()}
        return self.account.handle(method, f"/v2/{path}", texts, body, token)

    def call(self, method: str, path: str, body: object = None, **query: object) -> tuple[int, Any]:
        """Status and body."""
        status, _, answer = self.whole(method, path, body, TOKEN, **query)
        assert self.account.unexpected == []
        return status, answer

    def status(self, path: str) -> int:
        """Status of a GET."""
        return self.call("GET", path)[0]

    def get(self, path: str, **query: object) -> JSON:
        """Body of a GET that succeeds."""
        status, answer = self.call("GET", path, **query)
        assert status == 200, answer
        found: JSON = answer
        return found

    def post(self, path: str, body: JSON) -> JSON:
        """Body of a POST that succeeds."""
        status, answer = self.call("POST", path, body)
        assert status in (201, 202), answer
        made: JSON = answer
        return made

    def delete(self, path: str, **query: object) -> None:
        """A DELETE that is accepted."""
        assert self.call("DELETE", path, **query) == (204, None)

    def refused(self, path: str, body: JSON, method: str = "POST") -> tuple[int, str]:
        """Status and message of a request that fails in the documented form."""
        status, answer = self.call(method, path, body)
        assert set(answer) == {"id", "message", "request_id"}
        return status, answer["message"]

    def droplet(self, **changes: object) -> int:
        """Make a droplet; its number."""
        return int(self.post("droplets", {**DROPLET, **changes})["droplet"]["id"])

    def firewall(self, **changes: object) -> str:
        """Make a firewall for SSH from one address; its id."""
        body = {"name": "wall", "inbound_rules": [SSH_FROM_ONE], "outbound_rules": ALL_OUT, **changes}
        return str(self.post("firewalls", body)["firewall"]["id"])

    def listed(self, **query: object) -> list[int]:
        """Numbers of the droplets that a list shows."""
        return [droplet["id"] for droplet in self.get("droplets", **query)["droplets"]]


def public_key(seed: object, comment: str = "lab") -> str:
    """A public key of the right form, another one for each seed; nobody has its private half."""
    parts = (b"ssh-ed25519", hashlib.sha256(str(seed).encode()).digest())
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return f"ssh-ed25519 {base64.b64encode(blob).decode()} {comment}".strip()
