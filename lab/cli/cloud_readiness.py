"""What `lab doctor` asks DigitalOcean: the token and its scopes, room in the account, the droplet, the own address.

Nothing is made. A scope to read is tried by reading, one to delete by deleting what cannot be there; one to create
cannot be tried, which is said.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from lab.cli import shared
from lab.cli.readiness import Check, Job
from lab.config import NodeOptions, token_of
from lab.model import LabError
from lab.providers.digitalocean.address import public_address
from lab.providers.digitalocean.api import Api
from lab.providers.digitalocean.client import END_POINT
from lab.providers.digitalocean.errors import ApiError, ApiRefused
from lab.providers.digitalocean.names import TAG_PREFIX
from lab.providers.registry import ADDRESS_VARIABLE, END_POINT_VARIABLE

TOKEN, LIMIT, DROPLET, ADDRESS = "DigitalOcean token", "droplet limit", "droplet", "public address"
REQUEST_S, RETRY_S = 10.0, 15.0
NOBODY = "00000000-0000-0000-0000-000000000000"
NOT_SET = "DIGITALOCEAN_TOKEN is not set: nodes are local guests, or your own host"


def cloud_jobs(provider: str) -> list[Job]:
    """The lines about the cloud: the account (without a token it is not asked), and this machine's address."""
    if provider != "digitalocean":
        state = NOT_SET if not token_of(os.environ) else f"not asked: --provider {provider}"
        return [Job(name=TOKEN, run=lambda: [Check(name=TOKEN, state=state)])]
    if not token_of(os.environ):
        fix = "make a token in the panel (API, scopes in README.md) and export DIGITALOCEAN_TOKEN"
        return [Job(name=TOKEN, run=lambda: [Check(name=TOKEN, state="DIGITALOCEAN_TOKEN is not set", fix=fix)])]
    return [Job(name=TOKEN, run=_account), Job(name=ADDRESS, run=lambda: [_address()])]


def _account() -> list[Check]:
    end_point = os.environ.get(END_POINT_VARIABLE) or END_POINT
    api = Api(token_of(os.environ), end_point, request_timeout_s=REQUEST_S, retry_s=RETRY_S)
    try:
        token = scopes(api)
        return [token] if token.fix else [token, room(api), droplet()]
    finally:
        api.close()


def scope_trials(api: Api, image: str) -> dict[str, Callable[[], object]]:
    """Each scope that can be tried without making anything, and the call that needs it."""
    return {
        "account:read": api.account,
        "sizes:read": api.sizes,
        "regions:read": api.regions,
        "image:read": partial(api.image_exists, image),
        "droplet:read": api.droplets,
        "firewall:read": api.firewalls,
        "ssh_key:read": api.keys,
        "tag:read": api.tags,
        "droplet:delete": partial(api.delete_droplet, 0),
        "firewall:delete": partial(api.delete_firewall, NOBODY),
        "ssh_key:delete": partial(api.delete_key, 0),
        "tag:delete": partial(api.delete_tag, f"{TAG_PREFIX}nobody"),
    }


def scopes(api: Api) -> Check:
    """Whether the token works, and which of its scopes are missing."""
    missing = []
    trials = scope_trials(api, NodeOptions().image)
    for scope, call in trials.items():
        try:
            call()
        except ApiRefused as error:
            if error.status == 403:
                missing.append(scope)
            elif error.status == 401:
                return Check(name=TOKEN, state="not usable", fix=str(error))
            # Any other refusal is of the object that is not there, not of the token.
        except ApiError as error:
            return Check(name=TOKEN, state="the API does not answer as expected", fix=str(error))
    if missing:
        fix = f"give the token these scopes too: {', '.join(missing)}"
        return Check(name=TOKEN, state=f"{len(missing)} of {len(trials)} scopes that were tried are missing", fix=fix)
    return Check(name=TOKEN, state=f"usable; {len(trials)} scopes tried; those to create cannot be tried")


def room(api: Api) -> Check:
    """Droplets there and droplets allowed."""
    account, there = api.account(), len(api.droplets())
    if account.status == "locked":
        return Check(name=LIMIT, state="the account is locked", fix=account.status_message or "ask DigitalOcean why")
    fix = "`lab gc` removes leftovers of the lab; or ask DigitalOcean for a higher limit"
    state = f"{there} of {account.droplet_limit} droplets in use"
    return Check(name=LIMIT, state=state, fix=fix if there >= account.droplet_limit else "")


def droplet() -> Check:
    """What a run would order: size, region, image and price."""
    # Some address: what this machine's is has a line of its own.
    options = NodeOptions(allow_from="192.0.2.1")
    what = f"{options.size} with {options.image} in {options.region}"
    try:
        cloud = shared.provider("digitalocean", options)
        cloud.check(1)
        return Check(name=DROPLET, state=f"{what}: ${cloud.hourly_price()} a node and hour")
    except LabError as error:
        return Check(name=DROPLET, state=f"{what} cannot be had", fix=str(error))


def _address() -> Check:
    try:
        found = public_address(os.environ.get(ADDRESS_VARIABLE) or None)
    except LabError as error:
        return Check(name=ADDRESS, state="not known", fix=str(error))
    return Check(name=ADDRESS, state=f"{found}: the one that may reach a droplet's SSH (--allow-from)")
