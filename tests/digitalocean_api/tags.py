"""Tags and their endpoints. A tag is case-stable: its first spelling is the one that counts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .wire import JSON, NO_CONTENT, Answer, Endpoint, Field, Request, missing, page_of, unprocessable

if TYPE_CHECKING:
    from .account import Account

TAG_PATTERN = re.compile(r"[A-Za-z0-9_:\-]{1,255}")
_OTHER_RESOURCES = ("images", "volumes", "volume_snapshots", "databases")


def check_tag(name: str) -> None:
    """422 unless the text can be a tag."""
    if not TAG_PATTERN.fullmatch(name):
        raise unprocessable("Tag names may contain only letters, numbers, colons, dashes and underscores (255 at most)")


def existing_tag(account: Account, name: str) -> str | None:
    """The tag in its first spelling, whatever the case of ``name``."""
    return next((tag for tag in account.tags if tag.lower() == name.lower()), None)


def make_tag(account: Account, name: str) -> str:
    """The tag in the spelling that counts, made if it is new; 422 when the text cannot be a tag."""
    check_tag(name)
    tag = existing_tag(account, name) or name
    account.tags.setdefault(tag, None)
    return tag


def shown_tag(account: Account, tag: str) -> JSON:
    """The API's object. Firewalls are no resources of a tag."""
    count = sum(tag in droplet.tags for droplet in account.droplets.values() if not droplet.gone)
    last = {"last_tagged_uri": account.tags[tag]} if account.tags[tag] and count else {}
    resources: JSON = {"count": count, **last, "droplets": {"count": count, **last}}
    resources |= {name: {"count": 0} for name in _OTHER_RESOURCES}
    return {"name": tag, "resources": resources}


def _wanted(account: Account, request: Request) -> str:
    if request.parts["tag"] not in account.tags:
        raise missing()
    return request.parts["tag"]


def _list(account: Account, request: Request) -> Answer:
    return page_of(account.base_url, request, "tags", [shown_tag(account, tag) for tag in account.tags])


def _create(account: Account, request: Request) -> Answer:
    name = request.body["name"]
    if existing_tag(account, name) is not None and account.behaviour.existing_tag_status == 422:
        raise unprocessable("Tag already exists")
    return Answer(status=201, body={"tag": shown_tag(account, make_tag(account, name))})


def _get(account: Account, request: Request) -> Answer:
    return Answer(status=200, body={"tag": shown_tag(account, _wanted(account, request))})


def _delete(account: Account, request: Request) -> Answer:
    """Deleting a tag takes it off everything that carries it; what carried it stays."""
    tag = _wanted(account, request)
    del account.tags[tag]
    for droplet in account.droplets.values():
        droplet.tags = [other for other in droplet.tags if other != tag]
    for firewall in account.firewalls.values():
        firewall.tags = [other for other in firewall.tags if other != tag]
    account.refresh_firewalls(request.now)
    return NO_CONTENT


ENDPOINTS = (
    Endpoint(method="GET", path="tags", answer=_list, scopes=("tag:read",), pages=True),
    Endpoint(
        method="POST", path="tags", answer=_create, scopes=("tag:create",),
        fields={"name": Field(kind="text", required=True)},
    ),
    Endpoint(method="GET", path="tags/{tag}", answer=_get, scopes=("tag:read",)),
    Endpoint(method="DELETE", path="tags/{tag}", answer=_delete, scopes=("tag:delete",)),
)  # fmt: skip
