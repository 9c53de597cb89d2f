"""The DigitalOcean provider on the account in memory: real client and library above, no socket and no waiting below.

One clock is time for everybody: it moves only when the code under test sleeps, or a request is said to hang.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import requests
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict

from lab.config import NodeOptions
from lab.host import Deadline
from lab.model import NodeError
from lab.providers.contract import Node, NodeSpec
from lab.providers.digitalocean.access import Access
from lab.providers.digitalocean.api import Api
from lab.providers.digitalocean.names import CloudName
from lab.providers.digitalocean.provider import DigitalOceanProvider
from lab.ssh import Address
from tests.digitalocean_api import (
    Account,
    Behaviour,
    CloseAfter,
    CloseBefore,
    Effect,
    Error,
    Hang,
    Reply,
    TooMany,
)
from tests.digitalocean_api.client import ALL_OUT, DROPLET, NO_LIMITS, SSH_FROM_ONE, public_key
from tests.fakes import FakeClock, FakeHost

TOKEN = "dop_v1_5f0c2b9e7d314a68"
# Nothing listens there, should a request ever get past the adapter.
END_POINT = "http://127.0.0.1:9/v2/"
START_S = 1_800_000_000.0
HOUR_S = 3600.0
ALLOW_FROM = "203.0.113.77"
BOOT_S = 400.0
NAME = CloudName(node_id="upstream-v1.36.3-r1", expires_s=int(START_S + 2 * HOUR_S))
"""Name of the node that is made when a test says nothing else."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """One request and what the account answered; None when it never saw it."""

    method: str
    target: str
    body: Any
    status: int | None

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def __str__(self) -> str:
        return f"{self.method} {self.target}"


Plan = Callable[[int, str, str], Effect | None]
"""What goes wrong with a request: its number (from 1), its method and its path with the query."""


def nothing_wrong(number: int, method: str, target: str) -> Effect | None:
    return None


class Wire(BaseAdapter):
    """Carries requests to the account. ``on_change`` is called after each one that the account has handled."""

    def __init__(self, account: Account, clock: FakeClock) -> None:
        super().__init__()
        self.account = account
        self.clock = clock
        self.plan: Plan = nothing_wrong
        self.calls: list[Call] = []
        self.on_change: Callable[[], None] = lambda: None

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        parts = urlsplit(str(request.url))
        method, target = str(request.method), parts.path + (f"?{parts.query}" if parts.query else "")
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        assert kind == "Bearer"
        assert (parts.scheme, parts.netloc) == ("http", "127.0.0.1:9")
        effect = self.plan(len(self.calls) + 1, method, target)
        handled = (
            effect is None or isinstance(effect, CloseAfter) or (isinstance(effect, Reply | Hang) and effect.handled)
        )
        body = json.loads(request.body) if request.body else None
        result = None
        if handled:
            result = self.account.handle(method, parts.path, dict(parse_qsl(parts.query)), body, token)
            assert self.account.unexpected == []
        self.calls.append(Call(method=method, target=target, body=body, status=result[0] if result else None))
        self.on_change()
        match effect:
            case CloseBefore() | CloseAfter():
                raise requests.ConnectionError("Connection aborted.", ConnectionResetError(104, "reset by peer"))
            case Hang():
                self.clock.advance(float(timeout))
                raise requests.ReadTimeout("Read timed out.")
            case Reply(status=status, body=text, headers=headers):
                result = (status, dict(headers), text)
            case TooMany(retry_after_s=seconds):
                result = self.account.too_many(token, seconds)
            case Error(status=status, message=message):
                result = self.account.failure(status, message, token)
        assert result is not None
        return _response(request, result)

    def close(self) -> None:
        """Nothing is open."""


def _response(request: requests.PreparedRequest, result: tuple[int, dict[str, str], Any]) -> requests.Response:
    status, headers, body = result
    response = requests.Response()
    response.status_code = status
    response.headers = CaseInsensitiveDict(headers)
    response._content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    response.request = request
    response.url = str(request.url)
    return response


class DropletHost(FakeHost):
    """A connected host; the provider keeps its address."""

    def __init__(self, name: str, address: Address) -> None:
        super().__init__(name)
        self.address = address


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FakeAccess(Access):
    """Reaches droplets of the account in memory, and looks at the firewall that is in force there."""

    account: Account
    hosts: list[DropletHost] = dataclasses.field(default_factory=list)
    failures: dict[str, BaseException] = dataclasses.field(default_factory=dict)

    def connect(  # type: ignore[override]
        self, *, name: str, address: str, port: int, host_public: str, identity: Path, deadline: Deadline
    ) -> DropletHost:
        self._step("connect")
        assert deadline.remaining_s() > 0
        # Addresses are used again.
        there = [droplet for droplet in self.account.droplets.values() if droplet.destroy_action is None]
        (number,) = [droplet.id for droplet in there if droplet.address == address]
        droplet = self.account.droplets[number]
        assert droplet.status == "active"
        assert host_public.split()[1] in droplet.user_data
        rules = self.account.rules_in_force(number)
        assert rules is not None, "the droplet is open"
        assert [(rule.protocol, rule.ports) for rule in rules] == [("tcp", str(port))]
        assert identity.stat().st_mode & 0o077 == 0
        # As after the rotation: another key than the one that was injected.
        where = Address(
            host=address, port=port, user="root", host_keys=(public_key(number, "").strip(),), identity=identity
        )
        host = DropletHost(name, where)
        host.connect()
        self.hosts.append(host)
        return host

    def prove_closed(self, host: Any) -> None:
        assert host.connects > host.closes
        self._step("prove_closed")

    def virtualization(self, host: Any) -> str:
        assert host.connects > host.closes
        self._step("virtualization")
        return "kvm"

    def _step(self, name: str) -> None:
        if name in self.failures:
            raise self.failures[name]


class Cloud:
    """One account and its clock, and providers that work on it."""

    def __init__(self, cache: Path, behaviour: Behaviour | None = None, **account: Any) -> None:
        self.cache = cache
        self.clock = FakeClock(START_S)
        self.account = Account(
            clock=self.clock, behaviour=behaviour or Behaviour(), limits=account.pop("limits", NO_LIMITS),
            base_url=END_POINT, tokens=account.pop("tokens", {TOKEN: None}), **account,
        )  # fmt: skip
        self.wire = Wire(self.account, self.clock)
        self.access = FakeAccess(progress=lambda text: None, account=self.account)
        self.said: list[str] = []

    def api(self, token: str = TOKEN, **arguments: Any) -> Api:
        api = Api(token, END_POINT, sleep=self.clock.sleep, clock=self.clock, **arguments)
        client = api._client
        make = client._new_session

        def session() -> requests.Session:
            made = make()
            made.mount("http://", self.wire)
            return made

        client._new_session = session
        client._session = session()
        return api

    def provider(self, *, token: str = TOKEN, api: Api | None = None, **options: Any) -> DigitalOceanProvider:
        return DigitalOceanProvider(
            self.cache,
            self.said.append,
            token=token,
            options=NodeOptions(**({"allow_from": ALLOW_FROM} | options)),
            access=self.access,
            api=api or self.api(token),
            sleep=self.clock.sleep,
            clock=self.clock,
            now=self.clock,
        )

    def spec(self, name: str = "upstream-v1.36.3", run_id: str = "r1", *, hours: float = 2.0) -> NodeSpec:
        return NodeSpec(name=name, run_id=run_id, expires_s=self.clock() + hours * HOUR_S)

    def create(self, provider: DigitalOceanProvider | None = None, **spec: Any) -> Node:
        """A node within the time that a run gives it."""
        deadline = Deadline.after(BOOT_S, self.clock)
        return (provider or self.provider()).create(self.spec(**spec), deadline)

    def posts(self) -> list[str]:
        """Last words of the paths of all creates, in order."""
        return [call.path.rstrip("/").rpartition("/")[2] for call in self.wire.calls if call.method == "POST"]

    def holds(self) -> Counter[str]:
        """How many of each kind are there; droplets that are being deleted do not count."""
        found = self.account.inventory()
        kinds = {"droplet": found.droplets, "firewall": found.firewalls, "key": found.keys, "tag": found.tags}
        return Counter({kind: len(things) for kind, things in kinds.items() if things})

    def folders(self) -> list[str]:
        """Folders of nodes on this machine."""
        return sorted(path.name for path in (self.cache / "nodes").glob("*"))


class Owner:
    """Somebody who uses the account without a lab."""

    def __init__(self, account: Account, token: str = TOKEN) -> None:
        self.account = account
        self.token = token

    def post(self, path: str, body: dict[str, Any]) -> Any:
        status, _, answer = self.account.handle("POST", f"/v2/{path}", {}, body, self.token)
        if status not in (201, 202):
            raise NodeError(f"{path} {body}: {status} {answer}")
        return answer

    def tag(self, name: str) -> str:
        return str(self.post("tags", {"name": name})["tag"]["name"])

    def droplet(self, name: str, *tags: str) -> int:
        return int(self.post("droplets", {**DROPLET, "name": name, "tags": list(tags)})["droplet"]["id"])

    def firewall(self, name: str, *tags: str) -> str:
        for tag in tags:
            self.tag(tag)
        body = {"name": name, "tags": list(tags), "inbound_rules": [SSH_FROM_ONE], "outbound_rules": ALL_OUT}
        return str(self.post("firewalls", body)["firewall"]["id"])

    def key(self, name: str, comment: str, seed: object = None) -> int:
        text = public_key(seed if seed is not None else f"{name} {len(self.account.keys)}", comment)
        return int(self.post("account/keys", {"name": name, "public_key": text})["ssh_key"]["id"])

    def lab(self, name: str, tag: str) -> None:
        """All that a lab has under one name."""
        self.firewall(name, tag)
        self.key(name, tag)
        self.droplet(name, tag)
