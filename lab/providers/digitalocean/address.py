"""The one address that may reach a droplet: the one that is given, or this machine's own as the internet sees it."""

from __future__ import annotations

import ipaddress

import requests

from lab.model import NodeError, UsageError

SERVICES = ("https://api.ipify.org", "https://checkip.amazonaws.com", "https://ipv4.icanhazip.com")
TIMEOUT_S = 8.0


def one_address(text: str) -> str:
    """The address of ``--allow-from``, given bare or as /32; UsageError for anything that lets in more than one."""
    fix = "give one IPv4 address, the one from which this machine reaches the internet, or leave it out"
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise UsageError(f"--allow-from {text}: {fix}: {error}") from error
    if network.num_addresses != 1:
        raise UsageError(f"--allow-from {text}: that would let in {network.num_addresses} addresses; {fix}")
    if network.network_address.is_unspecified:
        raise UsageError(f"--allow-from {text}: that is the address of no machine; {fix}")
    return str(network.network_address)


def public_address(url: str | None = None) -> str:
    """One IPv4 address as text; NodeError, with what to do, when no service tells it."""
    reasons = []
    for service in (url,) if url else SERVICES:
        try:
            answer = requests.get(service, timeout=TIMEOUT_S)
            answer.raise_for_status()
            # Not .text: without a charset in the header it guesses one, and takes a text this short for UTF-16.
            return str(ipaddress.IPv4Address(answer.content.decode("ascii").strip()))
        except (requests.RequestException, ValueError) as error:
            reasons.append(f"{service}: {type(error).__name__}")
    raise NodeError(
        "this machine's public address could not be found out "
        f"({'; '.join(reasons)}); say which address may reach the droplet: --allow-from ADDRESS"
    )
