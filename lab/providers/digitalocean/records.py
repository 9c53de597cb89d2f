"""What the DigitalOcean API answers: frozen records, read field by field.

Field names and shapes follow ``digitalocean/openapi``, ``specification/resources/*/models``. A field that a record
needs and that is not there is a :class:`FieldError` that names it, never a default; fields that no record knows are
ignored. ``null`` where the API documents a list is the empty list. Nothing here does I/O.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

from lab.model import JSON

T = TypeVar("T")
Rule = tuple[str, str, tuple[str, ...]]
"""One inbound rule: protocol, ports as the API writes them (``"0"`` is all), source addresses."""

# A token without one of these scopes gets the object all the same, with the field left out.
_HIDDEN_WITHOUT = {"account.droplet_limit": "droplet:read", "droplet.tags": "tag:read", "firewall.tags": "tag:read"}


class FieldError(ValueError):
    """An answer lacks a needed field, or the field has another type; the text names the field, not its value."""


def need(data: JSON, name: str, kind: type[T], of: str) -> T:
    """``data[name]`` when it is a ``kind`` (``bool`` is no ``int``); FieldError names it as ``of.name``."""
    if name not in data:
        scope = _HIDDEN_WITHOUT.get(f"{of}.{name}")
        hint = f" (the API leaves it out for a token without the scope {scope})" if scope else ""
        raise FieldError(f"{of}.{name} is missing{hint}")
    value = data[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise FieldError(f"{of}.{name} is of type {type(value).__name__}, not {kind.__name__}")
    return value


def objects(values: list[Any], of: str) -> list[JSON]:
    """The values, each of which must be a JSON object."""
    for value in values:
        if not isinstance(value, dict):
            raise FieldError(f"{of} holds a {type(value).__name__}, not objects only")
    return values


def _items(data: JSON, name: str, of: str) -> list[Any]:
    return [] if name in data and data[name] is None else need(data, name, list, of)


def _texts(data: JSON, name: str, of: str) -> tuple[str, ...]:
    values = _items(data, name, of)
    if not all(isinstance(value, str) for value in values):
        raise FieldError(f"{of}.{name} holds something else than texts")
    return tuple(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """``status`` is active, warning or locked; ``droplet_limit`` counts all droplets of the account or team."""

    droplet_limit: int
    status: str
    status_message: str

    @classmethod
    def from_json(cls, data: JSON) -> Account:
        """From the ``account`` object."""
        return cls(
            droplet_limit=need(data, "droplet_limit", int, "account"),
            status=need(data, "status", str, "account"),
            status_message=need(data, "status_message", str, "account"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One size of droplet; ``price_hourly`` in US dollars, ``regions`` the slugs where it is sold."""

    slug: str
    vcpus: int
    memory_mib: int
    price_hourly: Decimal
    regions: tuple[str, ...]
    available: bool

    @classmethod
    def from_json(cls, data: JSON) -> Size:
        """From one object of ``sizes``."""
        return cls(
            slug=need(data, "slug", str, "size"),
            vcpus=need(data, "vcpus", int, "size"),
            memory_mib=need(data, "memory", int, "size"),
            price_hourly=_price(data),
            regions=_texts(data, "regions", "size"),
            available=need(data, "available", bool, "size"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Droplet:
    """One droplet. ``status`` is new, active, off or archive; ``public_ip`` its IPv4 address, None before it has one.

    ``image`` is the image's slug, None for an image without one (a snapshot) or a token that may not see images.
    ``created_at`` is ISO 8601, as sent.
    """

    id: int
    name: str
    status: str
    public_ip: str | None
    tags: tuple[str, ...]
    size: str
    region: str
    image: str | None
    vcpus: int
    memory_mib: int
    created_at: str

    @classmethod
    def from_json(cls, data: JSON) -> Droplet:
        """From a ``droplet`` object."""
        networks = need(data, "networks", dict, "droplet")
        entries = objects(_items(networks, "v4", "droplet.networks") if "v4" in networks else [], "droplet.networks.v4")
        # By type, never by place: the private entry often comes first.
        public = [entry for entry in entries if need(entry, "type", str, "droplet.networks.v4") == "public"]
        image = data.get("image") or {}
        slug = image.get("slug") if isinstance(image, dict) else None
        if slug is not None and not isinstance(slug, str):
            raise FieldError("droplet.image.slug is no text")
        return cls(
            id=need(data, "id", int, "droplet"),
            name=need(data, "name", str, "droplet"),
            status=need(data, "status", str, "droplet"),
            public_ip=need(public[0], "ip_address", str, "droplet.networks.v4") if public else None,
            tags=_texts(data, "tags", "droplet"),
            size=need(data, "size_slug", str, "droplet"),
            region=need(need(data, "region", dict, "droplet"), "slug", str, "droplet.region"),
            image=slug,
            vcpus=need(data, "vcpus", int, "droplet"),
            memory_mib=need(data, "memory", int, "droplet"),
            created_at=need(data, "created_at", str, "droplet"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Firewall:
    """One cloud firewall. It holds only when ``status`` is ``succeeded`` and ``pending`` (changes to come) is 0."""

    id: str
    name: str
    status: str
    pending: int
    tags: tuple[str, ...]
    inbound: tuple[Rule, ...]

    @classmethod
    def from_json(cls, data: JSON) -> Firewall:
        """From a ``firewall`` object."""
        rules = objects(_items(data, "inbound_rules", "firewall"), "firewall.inbound_rules")
        return cls(
            id=need(data, "id", str, "firewall"),
            name=need(data, "name", str, "firewall"),
            status=need(data, "status", str, "firewall"),
            pending=len(_items(data, "pending_changes", "firewall")),
            tags=_texts(data, "tags", "firewall"),
            inbound=tuple(_rule(rule) for rule in rules),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One SSH public key of the account; names need not be unique."""

    id: int
    name: str
    public_key: str

    @classmethod
    def from_json(cls, data: JSON) -> Key:
        """From an ``ssh_key`` object."""
        return cls(
            id=need(data, "id", int, "ssh_key"),
            name=need(data, "name", str, "ssh_key"),
            public_key=need(data, "public_key", str, "ssh_key"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """One tag; ``resources`` is how many objects of any kind carry it."""

    name: str
    resources: int

    @classmethod
    def from_json(cls, data: JSON) -> Tag:
        """From one object of ``tags``."""
        return cls(
            name=need(data, "name", str, "tag"),
            resources=need(need(data, "resources", dict, "tag"), "count", int, "tag.resources"),
        )


def _price(data: JSON) -> Decimal:
    value = need(data, "price_hourly", object, "size")
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise FieldError("size.price_hourly is not a price")
    # The shortest text of a float is what stood in the answer; the Decimal of the float itself is not.
    return Decimal(str(value))


def _rule(data: JSON) -> Rule:
    """A source may be a tag or a load balancer, and icmp has no ports: both may be left out of a rule."""
    sources = need(data, "sources", dict, "firewall.inbound_rules")
    ports = need(data, "ports", str, "firewall.inbound_rules") if data.get("ports") is not None else ""
    addresses = _texts(sources, "addresses", "firewall.inbound_rules.sources") if "addresses" in sources else ()
    return need(data, "protocol", str, "firewall.inbound_rules"), ports, addresses
