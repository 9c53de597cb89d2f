"""A droplet's life: new, active, being deleted, gone; and what lists make of it meanwhile. Actions belong to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from .behaviour import AT_ONCE, Behaviour, Timer
from .catalogue import vpc_of
from .wire import JSON, Request, detached

if TYPE_CHECKING:
    from .account import Account
    from .machines import InboundRule


def iso_time(unix_s: float) -> str:
    """As the API writes moments: whole seconds, UTC, ``Z``."""
    return datetime.fromtimestamp(int(unix_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True, kw_only=True)
class Action:
    """What the API does to a droplet; ``fails`` lets it end as ``errored``."""

    id: int
    type: str
    droplet_id: int
    region: JSON
    started_s: float
    completed_s: float | None = None
    fails: bool = False

    @property
    def status(self) -> str:
        """``in-progress``, ``completed`` or ``errored``."""
        if self.completed_s is None:
            return "in-progress"
        return "errored" if self.fails else "completed"

    def shown(self) -> JSON:
        """The API's object."""
        return {
            "id": self.id,
            "status": self.status,
            "type": self.type,
            "started_at": iso_time(self.started_s),
            "completed_at": None if self.completed_s is None else iso_time(self.completed_s),
            "resource_id": self.droplet_id,
            "resource_type": "droplet",
            "region": self.region,
            "region_slug": self.region["slug"],
        }


@dataclass(slots=True, kw_only=True)
class Sighting:
    """Whether one kind of list knows the droplet already, and whether it still does."""

    appears: Timer
    vanishes: Timer | None = None

    def is_listed(self, now: float) -> bool:
        """What a list of this kind says now."""
        return self.appears.is_over(now) and not (self.vanishes is not None and self.vanishes.is_over(now))

    def poll(self, now: float) -> None:
        """Count one list of this kind."""
        (self.vanishes or self.appears).poll(now)


@dataclass(slots=True, kw_only=True)
class Droplet:
    """State of one droplet. ``gone`` means that GET answers 404; lists may show it a while longer."""

    id: int
    name: str
    size: JSON
    image: JSON
    region: JSON
    features: list[str]
    tags: list[str]
    user_data: str
    public_keys: list[str]
    public_networking: bool
    created_s: float
    create_action: Action
    activation: Timer
    listed: Sighting
    tag_listed: Sighting
    status: str = "new"
    address: str | None = None
    addressing: Timer = field(default_factory=lambda: Timer(delay=AT_ONCE, since_s=0.0))
    destroy_action: Action | None = None
    deletion: Timer | None = None
    gone: bool = False
    rules: list[InboundRule] | None = None  # as last given to the machine

    @property
    def is_pending(self) -> bool:
        """Whether an action on it has not ended: the API then refuses or ignores a DELETE."""
        return self.create_action.completed_s is None or self.destroy_action is not None

    def sighting(self, *, by_tag: bool) -> Sighting:
        """The one of its two kinds of lists."""
        return self.tag_listed if by_tag else self.listed

    def poll(self, now: float) -> None:
        """Count one answer that showed it."""
        if self.deletion is not None:
            self.deletion.poll(now)
        elif self.status == "new":
            self.activation.poll(now)
        else:
            self.addressing.poll(now)

    def networks(self, now: float) -> JSON:
        """Empty until the address is known; the private entry comes first, and its gateway is a word."""
        if self.status == "new" or not self.addressing.is_over(now):
            return {"v4": [], "v6": []}
        low = self.id % 65000 + 2
        private = {
            "ip_address": f"10.135.{low // 256}.{low % 256}", "netmask": "255.255.0.0", "gateway": "nil",
            "type": "private",
        }  # fmt: skip
        v4, v6 = [private], []
        if self.public_networking and self.address is not None:
            gateway = ".".join([*self.address.split(".")[:3], "1"])
            v4.append(
                {"ip_address": self.address, "netmask": "255.255.240.0", "gateway": gateway, "type": "public"}
            )  # fmt: skip
            if "ipv6" in self.features:
                v6 = [{"ip_address": f"2001:db8::{low:x}", "netmask": 64, "gateway": "2001:db8::1", "type": "public"}]
        return {"v4": v4, "v6": v6}

    def shown(self, now: float) -> JSON:
        """The API's object, every field of it."""
        return {
            "id": self.id,
            "name": self.name,
            "memory": self.size["memory"],
            "vcpus": self.size["vcpus"],
            "disk": self.size["disk"],
            "locked": self.is_pending,
            "status": self.status,
            "kernel": None,
            "created_at": iso_time(self.created_s),
            "features": self.features,
            "backup_ids": [],
            "next_backup_window": None,
            "snapshot_ids": [],
            "image": self.image,
            "volume_ids": [],
            "size": self.size,
            "size_slug": self.size["slug"],
            "networks": self.networks(now),
            "region": self.region,
            "tags": self.tags,
            "vpc_uuid": vpc_of(self.region["slug"]),
        }

    def shown_to(self, request: Request) -> JSON:
        """The same without the fields that the token may not read."""
        hidden = {"tags": "tag:read", "image": "image:read", "vpc_uuid": "vpc:read"}
        shown = self.shown(request.now)
        return {name: value for name, value in shown.items() if name not in hidden or request.may(hidden[name])}


def new_sightings(behaviour: Behaviour, now: float) -> tuple[Sighting, Sighting]:
    """For the full list, and for lists by tag."""
    return (
        Sighting(appears=Timer(delay=behaviour.listed_after, since_s=now)),
        Sighting(appears=Timer(delay=behaviour.tag_listed_after, since_s=now)),
    )


def settle_droplet(account: Account, droplet: Droplet, now: float) -> None:
    """Move a droplet on by the delays that are over."""
    if droplet.gone:
        return
    over_at = droplet.activation.over_at(now)
    if droplet.create_action.completed_s is None and over_at is not None:
        droplet.address = account.machines.address(droplet.id)
        if droplet.create_action.fails:
            droplet.create_action.completed_s = over_at
        elif droplet.address is not None:
            droplet.create_action.completed_s = over_at
            droplet.status = "active"
            droplet.addressing = Timer(delay=account.behaviour.addressed_after, since_s=over_at)
    over_at = droplet.deletion.over_at(now) if droplet.deletion is not None else None
    if over_at is not None and droplet.destroy_action is not None:
        droplet.gone = True
        droplet.destroy_action.completed_s = over_at
        droplet.listed.vanishes = Timer(delay=account.behaviour.unlisted_after, since_s=over_at)
        droplet.tag_listed.vanishes = Timer(delay=account.behaviour.tag_unlisted_after, since_s=over_at)


def delete_droplet(account: Account, droplet: Droplet, now: float) -> None:
    """What DELETE does to one droplet: nothing while an action on it runs; else the machine stops and it fades."""
    if droplet.destroy_action is not None:
        return
    if droplet.is_pending and account.behaviour.delete_while_pending != "taken":
        return
    droplet.destroy_action = Action(
        id=account.new_id("action"), type="destroy", droplet_id=droplet.id, region=droplet.region, started_s=now
    )
    account.actions[droplet.destroy_action.id] = droplet.destroy_action
    droplet.deletion = Timer(delay=account.behaviour.gone_after, since_s=now)
    account.machines.stop(droplet.id)
    account.running.discard(droplet.id)


def start_machine(account: Account, droplet: Droplet) -> None:
    """Rules first, so that the machine is never open for a moment that the API does not have."""
    droplet.rules = account.rules_in_force(droplet.id)
    account.machines.apply(droplet.id, None if droplet.rules is None else list(droplet.rules))
    shown = detached(droplet.shown(droplet.created_s))
    account.running.add(droplet.id)
    account.machines.start(shown, droplet.user_data, list(droplet.public_keys))
