"""This machine's own public address, as services on the internet see it."""

from __future__ import annotations

import ipaddress

import requests

from lab.model import NodeError

SERVICES = ("https://api.ipify.org", "https://checkip.amazonaws.com", "https://ipv4.icanhazip.com")
TIMEOUT_S = 8.0


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
