"""The whole account in memory. :meth:`Account.handle` is the one way in; the HTTP server calls nothing else.

No socket, no sleep, no clock but the one that is given: the same calls at the same moments give the same answers.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from . import catalogue, droplet_endpoints, firewalls, keys, tags
from .behaviour import Behaviour
from .catalogue import Catalogue
from .droplets import Action, Droplet, settle_droplet
from .firewalls import Firewall
from .keys import Key
from .limits import RateLimiter, RateLimits
from .machines import InboundRule, Machines, NoMachines
from .rules import inbound_rules
from .wire import (
    JSON,
    Answer,
    ApiError,
    Endpoint,
    Request,
    UnexpectedRequest,
    check_body,
    check_query,
    demand_scope,
    detached,
    error_body,
)

FIRST_IDS = {"droplet": 482_000_001, "action": 2_310_000_001, "key": 44_000_001, "firewall": 1}
STATUSES = ("active", "warning", "locked")
Result = tuple[int, dict[str, str], JSON | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What an account holds, for a test to look at: ids with names, in the order of their making.

    ``droplets`` are those whose deletion has not been accepted: they cost money. ``fading`` are deleted, not yet gone.
    """

    droplets: Mapping[int, str]
    fading: Mapping[int, str]
    firewalls: Mapping[str, str]
    keys: Mapping[int, str]
    tags: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is left; fading droplets are on their way and do not count."""
        return not (self.droplets or self.firewalls or self.keys or self.tags)


class Account:
    """One account. ``tokens`` maps each token to its scopes (``droplet:create`` ...); None stands for all scopes.

    A test may change ``status``, ``droplet_limit``, ``behaviour``, ``catalogue``, ``failing_creates`` and
    ``failing_firewalls`` (how many of the next ones end in an error) at any time. ``unexpected`` holds one line for
    each request that the model does not know; it never quotes a token or a value of a body.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        tokens: Mapping[str, Collection[str] | None],
        behaviour: Behaviour | None = None,
        limits: RateLimits | None = None,
        machines: Machines | None = None,
        droplet_limit: int = 10,
        base_url: str = "https://api.digitalocean.com/v2/",
    ) -> None:
        self.clock = clock
        self.tokens = {token: None if scopes is None else frozenset(scopes) for token, scopes in tokens.items()}
        self.behaviour = behaviour or Behaviour()
        self.machines: Machines = machines if machines is not None else NoMachines()
        self.droplet_limit = droplet_limit
        self.base_url = base_url
        self.status = "active"
        self.status_message = ""
        self.email = "owner@example.com"
        self.uuid = str(uuid.uuid5(uuid.NAMESPACE_OID, "account"))
        self.catalogue = Catalogue()
        self.failing_creates = 0
        self.failing_firewalls = 0
        self.unexpected: list[str] = []
        self.droplets: dict[int, Droplet] = {}
        self.actions: dict[int, Action] = {}
        self.firewalls: dict[str, Firewall] = {}
        self.keys: dict[int, Key] = {}
        self.tags: dict[str, str | None] = {}  # to the address of what was tagged last
        self.running: set[int] = set()  # droplets whose machine was started and not stopped
        self._limiter = RateLimiter(limits or RateLimits())
        self._made: Counter[str] = Counter()
        self._lock = threading.RLock()

    # --- the way in ---------------------------------------------------------------------------------------------------

    def handle(
        self, method: str, path: str, query: Mapping[str, str], body: object, token: str | None
    ) -> tuple[int, dict[str, str], JSON | None]:
        """Answer one request: status, headers, and the body (None: an answer without one, as 204).

        ``path`` begins with /v2/ and is still percent-encoded; ``query`` is decoded; ``body`` is the parsed JSON, None
        when there was none. Raises only what the machines raise.
        """
        with self._lock:
            now = self.clock()
            self._settle(now)
            try:
                answer = self._answer(method, path, query, body, token, now)
            except UnexpectedRequest as error:
                return self.refuse(method, path, str(error), token, error.status)
            except ApiError as error:
                return self._error(error.status, error.message, error.headers, token, now)
            self._settle(now)
            return self._finish(answer, token, now)

    def refuse(self, method: str, path: str, reason: str, token: str | None, status: int = 400) -> Result:
        """Record a request that the model does not know, and answer it with an error."""
        with self._lock:
            self.unexpected.append(f"{method} {path}: {reason}")
            return self._error(status, reason, {}, token, self.clock())

    def too_many(self, token: str | None, retry_after_s: int | None) -> Result:
        """429 as the API sends it; without ``retry-after`` when None."""
        with self._lock:
            refusal = RateLimiter.refusal(retry_after_s)
            return self._error(refusal.status, refusal.message, refusal.headers, token, self.clock())

    def failure(self, status: int, message: str, token: str | None) -> Result:
        """An error of the documented form that has nothing to do with the request."""
        with self._lock:
            return self._error(status, message, {}, token, self.clock())

    def close(self) -> None:
        """Stop every machine that still runs."""
        with self._lock:
            for droplet_id in sorted(self.running):
                self.machines.stop(droplet_id)
            self.running.clear()

    # --- for tests ----------------------------------------------------------------------------------------------------

    def inventory(self) -> Inventory:
        """What is there now."""
        with self._lock:
            self._settle(self.clock())
            there = [droplet for droplet in self.droplets.values() if not droplet.gone]
            return Inventory(
                droplets={droplet.id: droplet.name for droplet in there if droplet.destroy_action is None},
                fading={droplet.id: droplet.name for droplet in there if droplet.destroy_action is not None},
                firewalls={firewall.id: firewall.name for firewall in self.firewalls.values()},
                keys={key.id: key.name for key in self.keys.values()},
                tags=tuple(self.tags),
            )

    # --- for the endpoints --------------------------------------------------------------------------------------------

    def new_id(self, kind: str) -> int:
        """The next number of a kind of object."""
        self._made[kind] += 1
        return FIRST_IDS[kind] + self._made[kind] - 1

    def refresh_firewalls(self, now: float, booting: int | None = None) -> None:
        """After droplets or tags changed. A settled firewall covers a droplet that boots from its first moment."""
        for firewall in self.firewalls.values():
            firewall.refresh(self, now, self.behaviour.firewall_applied_after)
            covers = booting in firewall.members(self) and firewall.has_settled and not firewall.fails
            if booting is not None and covers and self.behaviour.boot_is_firewalled:
                firewall.in_force[booting] = inbound_rules(firewall.inbound)

    def rules_in_force(self, droplet_id: int) -> list[InboundRule] | None:
        """The rules of all firewalls that are in force for a droplet; None when there is no firewall."""
        held = [wall.in_force[droplet_id] for wall in self.firewalls.values() if droplet_id in wall.in_force]
        return [rule for rules in held for rule in rules] if held else None

    # --- inside -------------------------------------------------------------------------------------------------------

    def _answer(
        self, method: str, path: str, query: Mapping[str, str], body: object, token: str | None, now: float
    ) -> Answer:
        endpoint, parts = _find(method, path)
        if token is None or token not in self.tokens:
            raise ApiError(401, "Unable to authenticate you")
        self._limiter.admit(
            token, now, lists_keys=endpoint is keys.LIST_KEYS,
            key_limit_tells_retry_after=self.behaviour.key_limit_tells_retry_after,
        )  # fmt: skip
        check_query(endpoint, query)
        refuses = self.behaviour.locked_refuses_everything or method in ("POST", "PUT")
        if self.status == "locked" and refuses:
            raise ApiError(403, "Your account is locked. Please contact support.")
        scopes = self.tokens[token]
        for scope in endpoint.scopes:
            demand_scope(scopes, scope)
        checked = check_body(endpoint, body)
        request = Request(path=path, parts=parts, query=query, body=checked, scopes=scopes, now=now)
        return endpoint.answer(self, request)

    def _settle(self, now: float) -> None:
        """Move everything on, and tell the machines about rules that have changed."""
        for droplet in list(self.droplets.values()):
            was_gone = droplet.gone
            settle_droplet(self, droplet, now)
            if droplet.gone and not was_gone:
                self.refresh_firewalls(now)
            if droplet.gone and not droplet.listed.is_listed(now) and not droplet.tag_listed.is_listed(now):
                del self.droplets[droplet.id]
        for firewall in self.firewalls.values():
            firewall.settle(self, now)
        for droplet in self.droplets.values():
            if droplet.id in self.running and droplet.rules != (rules := self.rules_in_force(droplet.id)):
                droplet.rules = rules
                self.machines.apply(droplet.id, None if rules is None else list(rules))

    def _finish(self, answer: Answer, token: str | None, now: float) -> Result:
        self._made["request"] += 1
        request_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"request {self._made['request']}"))
        headers = {**self._limiter.headers(token or "", now), "x-request-id": request_id, **answer.headers}
        if answer.body is None:
            return answer.status, headers, None
        headers["content-type"] = "application/json; charset=utf-8"
        body = detached(answer.body)
        if answer.status >= 400:
            body = error_body(answer.status, body["message"], request_id)
        return answer.status, headers, body

    def _error(self, status: int, message: str, headers: Mapping[str, str], token: str | None, now: float) -> Result:
        return self._finish(Answer(status=status, body={"message": message}, headers=headers), token, now)

    def shown(self) -> JSON:
        """The API's object of the account itself."""
        shown: dict[str, Any] = {
            "droplet_limit": self.droplet_limit,
            "floating_ip_limit": 3,
            "email": self.email,
            "name": "Owner",
            "uuid": self.uuid,
            "email_verified": True,
            "status": self.status,
            "status_message": self.status_message,
            "team": {"uuid": self.uuid, "name": "My Team"},
        }
        return shown


def _get_account(account: Account, request: Request) -> Answer:
    return Answer(status=200, body={"account": account.shown()})


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(method="GET", path="account", answer=_get_account, scopes=("account:read",)),
    *keys.ENDPOINTS,
    *droplet_endpoints.ENDPOINTS,
    *firewalls.ENDPOINTS,
    *tags.ENDPOINTS,
    *catalogue.ENDPOINTS,
)
ALL_SCOPES = frozenset(scope for endpoint in ENDPOINTS for scope in endpoint.scopes) | {"vpc:read"}


def _find(method: str, path: str) -> tuple[Endpoint, dict[str, str]]:
    """The endpoint of a request and the parts of its path; UnexpectedRequest where there is none."""
    found = [(endpoint, match) for endpoint in ENDPOINTS if (match := endpoint.pattern.fullmatch(path)) is not None]
    if not found:
        raise UnexpectedRequest("unknown path", 404)
    for endpoint, match in found:
        if endpoint.method == method:
            return endpoint, {name: unquote(value) for name, value in match.groupdict().items()}
    raise UnexpectedRequest("unknown method")
