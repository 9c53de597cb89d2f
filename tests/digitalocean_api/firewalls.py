"""Firewalls: what they say, on which droplets it is in force already, and their endpoints."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .behaviour import Delay, Timer
from .droplets import iso_time
from .machines import InboundRule
from .rules import MOST_RULES, inbound_rules, shown_rules
from .tags import check_tag
from .wire import (
    JSON,
    NO_CONTENT,
    Answer,
    ApiError,
    Endpoint,
    Field,
    Request,
    check_items,
    missing,
    page_of,
    unprocessable,
)

if TYPE_CHECKING:
    from .account import Account

NAME_PATTERN = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9.\-]+")
MOST_NAME_LETTERS = 255
MOST_DROPLETS = 10
MOST_TAGS = 5


@dataclass(slots=True, kw_only=True)
class Firewall:
    """``in_force`` holds the rules that droplets really have; ``pending`` says which of them change (True: goes)."""

    id: str
    name: str
    created_s: float
    inbound: list[JSON]
    outbound: list[JSON]
    droplet_ids: list[int]
    tags: list[str]
    timer: Timer
    fails: bool = False
    has_settled: bool = False
    status: str = "waiting"
    pending: dict[int, bool] = field(default_factory=dict)
    in_force: dict[int, tuple[InboundRule, ...]] = field(default_factory=dict)

    def members(self, account: Account) -> list[int]:
        """Droplets that it is for: by number or by tag."""
        return [
            droplet.id
            for droplet in account.droplets.values()
            if not droplet.gone and (droplet.id in self.droplet_ids or not set(self.tags).isdisjoint(droplet.tags))
        ]

    def refresh(self, account: Account, now: float, delay: Delay) -> None:
        """Compare what is in force with what should be; a difference makes it wait again."""
        live = {droplet.id for droplet in account.droplets.values() if not droplet.gone}
        self.droplet_ids = [number for number in self.droplet_ids if number in live]
        self.in_force = {number: rules for number, rules in self.in_force.items() if number in live}
        rules, members = inbound_rules(self.inbound), self.members(account)
        changes = {number: False for number in members if self.in_force.get(number) != rules}
        changes |= {number: True for number in self.in_force if number not in members}
        if any(self.pending.get(number) != removing for number, removing in changes.items()):
            self.wait(now, delay)
        self.pending = {number: removing for number, removing in self.pending.items() if number in live} | changes

    def wait(self, now: float, delay: Delay) -> None:
        """Begin to settle."""
        self.status = "waiting"
        self.timer = Timer(delay=delay, since_s=now)

    def settle(self, account: Account, now: float) -> None:
        """Put the rules in force once the delay is over; a failing one never does."""
        if self.status != "waiting" or not self.timer.is_over(now):
            return
        if self.fails:
            self.status = "failed"
            return
        self.status, self.has_settled, self.pending = "succeeded", True, {}
        self.in_force = dict.fromkeys(self.members(account), inbound_rules(self.inbound))

    def shown(self, *, with_action: bool) -> JSON:
        """The API's object."""
        extra = {"action": "allow"} if with_action else {}
        return {
            "id": self.id,
            "name": self.name,
            "status": self.status,
            "created_at": iso_time(self.created_s),
            "pending_changes": [
                {"droplet_id": number, "removing": removing, "status": "waiting"}
                for number, removing in self.pending.items()
            ],
            "inbound_rules": [{**rule, **extra} for rule in self.inbound],
            "outbound_rules": [{**rule, **extra} for rule in self.outbound],
            "droplet_ids": list(self.droplet_ids),
            "tags": list(self.tags),
        }

    def poll(self, now: float) -> None:
        """Count one answer that showed it waiting."""
        if self.status == "waiting":
            self.timer.poll(now)


def _wanted(account: Account, request: Request) -> Firewall:
    firewall = account.firewalls.get(request.parts["firewall"])
    if firewall is None:
        raise missing()
    return firewall


def _shown(account: Account, firewall: Firewall) -> JSON:
    return firewall.shown(with_action=account.behaviour.rules_carry_action)


def _read_body(account: Account, request: Request, itself: Firewall | None = None) -> JSON:
    """The attributes of POST and PUT, checked; what is left out is empty."""
    body = request.body
    name, tags, droplet_ids = body["name"], body.get("tags", []), body.get("droplet_ids", [])
    check_items("body field 'tags'", tags, "text")
    check_items("body field 'droplet_ids'", droplet_ids, "integer")
    if not NAME_PATTERN.fullmatch(name) or len(name) > MOST_NAME_LETTERS:
        raise unprocessable("invalid firewall name")
    if any(firewall.name == name for firewall in account.firewalls.values() if firewall is not itself):
        raise ApiError(409, "duplicate name")
    inbound = shown_rules(body.get("inbound_rules", []), "sources", account.behaviour)
    outbound = shown_rules(body.get("outbound_rules", []), "destinations", account.behaviour)
    if not inbound and not outbound:
        raise unprocessable("You must specify at least one inbound or outbound rule")
    if len(inbound) + len(outbound) > MOST_RULES:
        raise unprocessable(f"a firewall may have at most {MOST_RULES} rules")
    if len(droplet_ids) > MOST_DROPLETS or len(tags) > MOST_TAGS:
        raise unprocessable(f"a firewall may have at most {MOST_DROPLETS} droplets and {MOST_TAGS} tags")
    for tag in tags:
        check_tag(tag)
        if tag not in account.tags:
            raise unprocessable(f"tag {tag} does not exist")
    for number in droplet_ids:
        if number not in account.droplets or account.droplets[number].gone:
            raise unprocessable(f"droplet {number} does not exist")
    return {"name": name, "inbound": inbound, "outbound": outbound, "droplet_ids": droplet_ids, "tags": tags}


def _list(account: Account, request: Request) -> Answer:
    shown = [_shown(account, firewall) for firewall in account.firewalls.values()]

    def poll_all() -> None:
        for firewall in account.firewalls.values():
            firewall.poll(request.now)

    return page_of(account.base_url, request, "firewalls", shown, on_last=[poll_all])


def _create(account: Account, request: Request) -> Answer:
    attributes, delay = _read_body(account, request), account.behaviour.firewall_applied_after
    firewall = Firewall(
        id=str(uuid.uuid5(uuid.NAMESPACE_OID, f"firewall {account.new_id('firewall')}")),
        created_s=request.now,
        timer=Timer(delay=delay, since_s=request.now),
        fails=account.failing_firewalls > 0,
        **attributes,
    )
    account.failing_firewalls = max(0, account.failing_firewalls - 1)
    account.firewalls[firewall.id] = firewall
    firewall.refresh(account, request.now, delay)
    return Answer(status=202, body={"firewall": _shown(account, firewall)})


def _get(account: Account, request: Request) -> Answer:
    firewall = _wanted(account, request)
    shown = _shown(account, firewall)
    firewall.poll(request.now)
    return Answer(status=200, body={"firewall": shown})


def _update(account: Account, request: Request) -> Answer:
    """PUT resets every attribute that is left out."""
    firewall = _wanted(account, request)
    for name, value in _read_body(account, request, firewall).items():
        setattr(firewall, name, value)
    delay = account.behaviour.firewall_applied_after
    firewall.wait(request.now, delay)
    firewall.refresh(account, request.now, delay)
    return Answer(status=200, body={"firewall": _shown(account, firewall)})


def _delete(account: Account, request: Request) -> Answer:
    """At once, for its droplets too."""
    del account.firewalls[_wanted(account, request).id]
    return NO_CONTENT


_FIELDS = {
    "name": Field(kind="text", required=True),
    "inbound_rules": Field(kind="list", nullable=True),
    "outbound_rules": Field(kind="list", nullable=True),
    "droplet_ids": Field(kind="list", nullable=True),
    "tags": Field(kind="list", nullable=True),
}

ENDPOINTS = (
    Endpoint(method="GET", path="firewalls", answer=_list, scopes=("firewall:read",), pages=True),
    Endpoint(method="POST", path="firewalls", answer=_create, scopes=("firewall:create",), fields=_FIELDS),
    Endpoint(method="GET", path="firewalls/{firewall}", answer=_get, scopes=("firewall:read",)),
    Endpoint(
        method="PUT", path="firewalls/{firewall}", answer=_update, scopes=("firewall:update",), fields=_FIELDS
    ),
    Endpoint(method="DELETE", path="firewalls/{firewall}", answer=_delete, scopes=("firewall:delete",)),
)  # fmt: skip
