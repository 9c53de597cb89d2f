"""Firewall rules as they are sent and as they are shown: the two are not the same text."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from .behaviour import Behaviour
from .machines import InboundRule
from .wire import JSON, UnexpectedRequest, check_items, check_kind, unprocessable

PROTOCOLS = ("tcp", "udp", "icmp")
MOST_RULES = 50
_PORTS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_NOT_MODELLED = ("droplet_ids", "load_balancer_uids", "kubernetes_ids", "tags")


def _shown_ports(protocol: str, ports: str | None, behaviour: Behaviour) -> str:
    """The text that the API gives back: ``0`` stands for all ports and for icmp. Sending that ``0`` is an error."""
    if protocol == "icmp":
        if ports is None or (ports == "" and behaviour.icmp_ports_may_be_empty):
            return "0"
        raise unprocessable("You must specify a positive value for ports")
    if ports == "all":
        return "0"
    match = _PORTS.fullmatch(ports or "")
    if match is None:
        raise unprocessable("You must specify a valid value for ports")
    first, last = int(match[1]), int(match[2] or match[1])
    if first < 1:
        raise unprocessable("You must specify a positive value for ports")
    if not first <= last <= 65535:
        raise unprocessable("You must specify a valid value for ports")
    return ports or ""


def _shown_targets(where: str, targets: dict[str, Any]) -> JSON:
    """Sources or destinations without their empty lists."""
    for name, value in targets.items():
        if name not in ("addresses", *_NOT_MODELLED):
            raise UnexpectedRequest(f"{where}: unknown field {name!r}")
        if value is None:
            continue
        check_kind(f"{where}.{name}", value, "list")
        if value and name in _NOT_MODELLED:
            raise UnexpectedRequest(f"{where}.{name}: only addresses are modelled")
    addresses = targets.get("addresses") or []
    check_items(f"{where}.addresses", addresses, "text")
    for address in addresses:
        try:
            ipaddress.ip_network(address, strict=False)
        except ValueError as error:
            raise unprocessable("invalid address") from error
    return {"addresses": list(addresses)} if addresses else {}


def shown_rules(rules: list[Any], side: str, behaviour: Behaviour) -> list[JSON]:
    """Rules of a request (``side`` is ``sources`` or ``destinations``) in the form in which the API shows them.

    UnexpectedRequest for a field that is not documented, 422 for a value that the API refuses.
    """
    shown: list[JSON] = []
    for number, rule in enumerate(rules):
        where = f"{'inbound' if side == 'sources' else 'outbound'}_rules[{number}]"
        check_kind(where, rule, "object")
        for name in rule:
            if name not in ("protocol", "ports", "action", side):
                raise UnexpectedRequest(f"{where}: unknown field {name!r}")
        if rule.get("action", "allow") != "allow":
            raise UnexpectedRequest(f"{where}: only the action allow is modelled")
        for name, kind in (("protocol", "text"), ("ports", "text"), (side, "object")):
            if rule.get(name) is not None:
                check_kind(f"{where}.{name}", rule[name], kind)
        if rule.get("protocol") not in PROTOCOLS:
            raise unprocessable("You must specify a valid protocol: tcp, udp or icmp")
        if rule.get(side) is None:
            raise unprocessable(f"You must specify {side}")
        shown.append(
            {
                "protocol": rule["protocol"],
                "ports": _shown_ports(rule["protocol"], rule.get("ports"), behaviour),
                side: _shown_targets(f"{where}.{side}", rule[side]),
            }
        )
    return shown


def inbound_rules(shown: list[JSON]) -> tuple[InboundRule, ...]:
    """Shown rules as the machines take them; a rule without an address lets nothing in and is left out."""
    return tuple(
        InboundRule(rule["protocol"], "all" if rule["ports"] == "0" else rule["ports"], tuple(addresses))
        for rule in shown
        if (addresses := rule["sources"].get("addresses"))
    )
