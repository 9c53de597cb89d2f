"""What stands behind a droplet: the protocol for real guests, and the default that is nothing but addresses."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Any, NamedTuple, Protocol

TEST_NETWORKS = ("192.0.2.0", "198.51.100.0", "203.0.113.0")


class InboundRule(NamedTuple):
    """Traffic that a firewall lets in. ``ports`` is ``22``, ``8000-9000`` or ``all``; addresses or CIDR ranges."""

    protocol: str
    ports: str
    addresses: tuple[str, ...]


class Machines(Protocol):
    """The account calls these while it holds its lock: they must return at once and must not call the account.

    For each droplet: ``apply`` with the rules in force, then ``start``, then ``apply`` whenever they change, then
    ``stop`` once, when its deletion is accepted (or when the account is closed). So the rules are there before the
    machine is, and it is never open for a moment that the API does not have.
    """

    def start(self, droplet: Mapping[str, Any], user_data: str, public_keys: list[str]) -> None:
        """Begin to boot. ``droplet`` is the API's object: ``id``, ``name``, ``memory`` (MB), ``vcpus``, ``disk`` (GB),
        ``size_slug``, ``image``, ``region``, ``tags``. ``user_data`` is what the client sent, byte for byte ("" when it
        sent none). ``public_keys`` are the texts of its ``ssh_keys``, in that order.
        """

    def stop(self, droplet_id: int) -> None:
        """End the machine."""

    def address(self, droplet_id: int) -> str | None:
        """Its public IPv4 address, once known. A droplet stays ``new`` until then."""

    def apply(self, droplet_id: int, inbound_rules: list[InboundRule] | None) -> None:
        """The inbound rules in force: None is no firewall, so everything is open; a list lets in only what it names."""


class NoMachines:
    """No machine at all: documentation addresses, the lowest free one first, so that addresses come back as on a cloud.

    ``rules`` holds what was applied last, ``started`` the ids in order, ``stopped`` likewise.
    """

    def __init__(self) -> None:
        self.addresses: dict[int, str] = {}
        self.rules: dict[int, list[InboundRule] | None] = {}
        self.started: list[int] = []
        self.stopped: list[int] = []

    def start(self, droplet: Mapping[str, Any], user_data: str, public_keys: list[str]) -> None:
        """Give it an address."""
        taken = set(self.addresses.values())
        every = (str(IPv4Address(network) + last) for network in TEST_NETWORKS for last in range(1, 255))
        self.addresses[droplet["id"]] = next(address for address in every if address not in taken)
        self.started.append(droplet["id"])

    def stop(self, droplet_id: int) -> None:
        """Free the address."""
        del self.addresses[droplet_id]
        self.stopped.append(droplet_id)

    def address(self, droplet_id: int) -> str | None:
        """There from the start."""
        return self.addresses.get(droplet_id)

    def apply(self, droplet_id: int, inbound_rules: list[InboundRule] | None) -> None:
        """Keep them for the test to look at."""
        self.rules[droplet_id] = inbound_rules
