"""The requests about droplets and actions."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from .behaviour import Timer
from .catalogue import vpc_of
from .droplets import Action, Droplet, delete_droplet, new_sightings, start_machine
from .keys import find_key
from .tags import check_tag, make_tag
from .wire import (
    MOST_USER_DATA_BYTES,
    NO_CONTENT,
    Answer,
    Endpoint,
    Field,
    Request,
    UnexpectedRequest,
    check_items,
    demand_scope,
    missing,
    page_of,
    unprocessable,
)

if TYPE_CHECKING:
    from .account import Account

NAME_PATTERN = re.compile(r"[a-zA-Z0-9]?[a-z0-9A-Z.\-]*[a-z0-9A-Z]")
MOST_NAME_LETTERS = 255
PENDING = "Droplet already has a pending event."


def _wanted(account: Account, request: Request) -> Droplet:
    """The droplet of the path; 404 once it is gone."""
    text = request.parts["droplet"]
    droplet = account.droplets.get(int(text)) if text.isdecimal() else None
    if droplet is None or droplet.gone:
        raise missing()
    return droplet


def _list(account: Account, request: Request) -> Answer:
    query, now = request.query, request.now
    if "tag_name" in query and ("name" in query or "type" in query):
        raise UnexpectedRequest("tag_name cannot be combined with name or type")
    if query.get("type") not in (None, "droplets", "gpus"):
        raise UnexpectedRequest(f"query parameter type={query['type']!r} is unknown")
    by_tag = "tag_name" in query
    candidates = [] if query.get("type") == "gpus" else list(account.droplets.values())
    if by_tag:
        candidates = [droplet for droplet in candidates if query["tag_name"] in droplet.tags]
    if "name" in query:
        candidates = [droplet for droplet in candidates if droplet.name.lower() == query["name"].lower()]
    sightings = [(droplet, droplet.sighting(by_tag=by_tag)) for droplet in candidates]
    listed = [droplet for droplet, sighting in sightings if sighting.is_listed(now)]
    # What is polled by the last page only: so the pages of one sweep agree about what is there.
    polls = [functools.partial(sighting.poll, now) for _, sighting in sightings]
    polls += [functools.partial(droplet.poll, now) for droplet in listed if not droplet.gone]
    shown = [droplet.shown_to(request) for droplet in listed]
    return page_of(account.base_url, request, "droplets", shown, on_last=polls)


def _get(account: Account, request: Request) -> Answer:
    droplet = _wanted(account, request)
    shown = droplet.shown_to(request)
    droplet.poll(request.now)
    return Answer(status=200, body={"droplet": shown})


def _public_keys(account: Account, names: list[object]) -> list[str]:
    """Texts of the keys that a create names by number or fingerprint."""
    check_items("body field 'ssh_keys'", names, "text or integer")
    keys = [(name, find_key(account, str(name))) for name in names]
    unknown = [str(name) for name, key in keys if key is None]
    if unknown:
        raise unprocessable(f"{', '.join(unknown)} are invalid key identifiers for Droplet creation.")
    return [key.public_key for _, key in keys if key is not None]


def _check_rest(account: Account, request: Request, region: str) -> None:
    """422 for what is not tied to the catalogue: name, user data, volumes, network, limit."""
    body = request.body
    if not NAME_PATTERN.fullmatch(body["name"]) or len(body["name"]) > MOST_NAME_LETTERS:
        raise unprocessable("Only valid hostname characters are allowed. (a-z, A-Z, 0-9, . and -)")
    if len(body.get("user_data", "").encode()) > MOST_USER_DATA_BYTES:
        raise unprocessable("user_data is too long (maximum is 64 KiB)")
    if body.get("volumes"):
        raise UnexpectedRequest("volumes are not modelled")
    if body.get("vpc_uuid", vpc_of(region)) != vpc_of(region):
        raise unprocessable("Failed to resolve VPC")
    if sum(not droplet.gone for droplet in account.droplets.values()) >= account.droplet_limit:
        raise unprocessable("creating this/these droplet(s) will exceed your droplet limit")


def _features(request: Request) -> list[str]:
    body = request.body
    wanted = {"backups": False, "ipv6": False, "monitoring": False, "with_droplet_agent": True}
    names = {"with_droplet_agent": "droplet_agent"}
    given = [names.get(name, name) for name, default in wanted.items() if body.get(name, default)]
    return [*given, "private_networking"]


def _create(account: Account, request: Request) -> Answer:
    body, now, behaviour = request.body, request.now, account.behaviour
    tags = body.get("tags", [])
    check_items("body field 'tags'", tags, "text")
    if tags:
        demand_scope(request.scopes, "tag:create")
    size, image, region = account.catalogue.choose(body["size"], str(body["image"]), body.get("region"))
    public_keys = _public_keys(account, body.get("ssh_keys", []))
    _check_rest(account, request, region)
    for tag in tags:
        check_tag(tag)
    droplet_id = account.new_id("droplet")
    shown_region = account.catalogue.region(region)
    action = Action(
        id=account.new_id("action"), type="create", droplet_id=droplet_id, region=shown_region, started_s=now,
        fails=account.failing_creates > 0,
    )  # fmt: skip
    account.failing_creates = max(0, account.failing_creates - 1)
    listed, tag_listed = new_sightings(behaviour, now)
    droplet = Droplet(
        id=droplet_id, name=body["name"], size=size, image=image, region=shown_region, features=_features(request),
        tags=list(dict.fromkeys(make_tag(account, tag) for tag in tags)), user_data=body.get("user_data", ""),
        public_keys=public_keys, public_networking=body.get("public_networking", True), created_s=now,
        create_action=action, activation=Timer(delay=behaviour.active_after, since_s=now), listed=listed,
        tag_listed=tag_listed,
    )  # fmt: skip
    account.actions[action.id] = action
    account.droplets[droplet_id] = droplet
    for tag in droplet.tags:
        account.tags[tag] = f"{account.base_url}droplets/{droplet_id}"
    account.refresh_firewalls(now, booting=droplet_id)
    start_machine(account, droplet)
    link = {"id": action.id, "rel": "create", "href": f"{account.base_url}actions/{action.id}"}
    return Answer(status=202, body={"droplet": droplet.shown_to(request), "links": {"actions": [link]}})


def _delete(account: Account, request: Request) -> Answer:
    droplet = _wanted(account, request)
    if droplet.is_pending and account.behaviour.delete_while_pending == "refused":
        raise unprocessable(PENDING)
    delete_droplet(account, droplet, request.now)
    return NO_CONTENT


def _delete_by_tag(account: Account, request: Request) -> Answer:
    tag = request.query.get("tag_name")
    if tag is None:
        raise UnexpectedRequest("DELETE of droplets without tag_name")
    if tag not in account.tags and account.behaviour.delete_by_unknown_tag_status == 404:
        raise missing()
    for droplet in account.droplets.values():
        if tag in droplet.tags and not droplet.gone:
            delete_droplet(account, droplet, request.now)
    return NO_CONTENT


def _list_actions(account: Account, request: Request) -> Answer:
    droplet = _wanted(account, request)
    actions = [action for action in (droplet.create_action, droplet.destroy_action) if action is not None]
    poll = functools.partial(droplet.poll, request.now)
    return page_of(account.base_url, request, "actions", [action.shown() for action in actions], on_last=[poll])


def _get_action(account: Account, request: Request) -> Answer:
    text = request.parts["action"]
    action = account.actions.get(int(text)) if text.isdecimal() else None
    if action is None or ("droplet" in request.parts and _wanted(account, request).id != action.droplet_id):
        raise missing()
    shown = action.shown()
    droplet = account.droplets.get(action.droplet_id)
    if droplet is not None and action.completed_s is None:
        droplet.poll(request.now)
    return Answer(status=200, body={"action": shown})


_CREATE_FIELDS = {
    "name": Field(kind="text", required=True),
    "size": Field(kind="text", required=True),
    "image": Field(kind="text or integer", required=True),
    "region": Field(kind="text", nullable=True),
    "ssh_keys": Field(kind="list", nullable=True),
    "backups": Field(kind="flag", nullable=True),
    "ipv6": Field(kind="flag", nullable=True),
    "monitoring": Field(kind="flag", nullable=True),
    "tags": Field(kind="list", nullable=True),
    "user_data": Field(kind="text", nullable=True),
    "private_networking": Field(kind="flag", nullable=True),
    "volumes": Field(kind="list", nullable=True),
    "vpc_uuid": Field(kind="text", nullable=True),
    "with_droplet_agent": Field(kind="flag"),
    "public_networking": Field(kind="flag"),
}
_CREATE_SCOPES = ("droplet:create", "droplet:read", "regions:read", "sizes:read", "actions:read", "image:read")

ENDPOINTS = (
    Endpoint(
        method="GET", path="droplets", answer=_list, scopes=("droplet:read",), pages=True,
        query=frozenset({"tag_name", "name", "type"}),
    ),
    Endpoint(method="POST", path="droplets", answer=_create, scopes=_CREATE_SCOPES, fields=_CREATE_FIELDS),
    Endpoint(
        method="DELETE", path="droplets", answer=_delete_by_tag, scopes=("droplet:delete",),
        query=frozenset({"tag_name"}),
    ),
    Endpoint(method="GET", path="droplets/{droplet}", answer=_get, scopes=("droplet:read",)),
    Endpoint(method="DELETE", path="droplets/{droplet}", answer=_delete, scopes=("droplet:delete",)),
    Endpoint(
        method="GET", path="droplets/{droplet}/actions", answer=_list_actions, scopes=("actions:read",), pages=True
    ),
    Endpoint(
        method="GET", path="droplets/{droplet}/actions/{action}", answer=_get_action, scopes=("actions:read",)
    ),
    Endpoint(method="GET", path="actions/{action}", answer=_get_action, scopes=("actions:read",)),
)  # fmt: skip
