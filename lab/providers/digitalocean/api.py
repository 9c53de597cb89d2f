"""The DigitalOcean API as the lab uses it: typed calls over :class:`~lab.providers.digitalocean.client.Client`.

Reads and deletes are repeated while the API is busy or away (``retry_s`` for each request). A create is repeated only
when it cannot have been done: see :mod:`lab.providers.digitalocean.client`. Every call may raise ApiError in one of its
kinds. One instance is for one thread.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import parse_qs, quote, urlsplit

from digitalocean.baseapi import DELETE, GET, POST

from lab.model import JSON, UsageError
from lab.providers.digitalocean.client import END_POINT, Client, Hook
from lab.providers.digitalocean.errors import (
    ApiAmbiguous,
    ApiBusy,
    ApiError,
    ApiNotFound,
    ApiRefused,
    ApiUnavailable,
)
from lab.providers.digitalocean.records import (
    Account,
    Droplet,
    FieldError,
    Firewall,
    Key,
    Size,
    Tag,
    need,
    objects,
)

__all__ = [
    "Account", "Api", "ApiAmbiguous", "ApiBusy", "ApiError", "ApiNotFound", "ApiRefused", "ApiUnavailable", "Droplet",
    "Firewall", "Hook", "Key", "Size", "Tag",
]  # fmt: skip

T = TypeVar("T")

_PAGE = re.compile(r"[0-9]{1,6}")
_EVERYWHERE = ["0.0.0.0/0", "::/0"]


class Api:
    """The calls of the lab. UsageError for a token that fits in no header, or an end point that must not get it.

    ``end_point`` ends in ``/v2/`` and is https, except on loopback. ``request_timeout_s`` bounds the connecting and
    each wait for bytes of one request; ``retry_s`` bounds the repeats of one request. ``hook`` is for tests of crashes.
    ``progress`` is told what is waited for while there is no answer (None: nobody is).
    """

    def __init__(
        self,
        token: str,
        end_point: str = END_POINT,
        *,
        request_timeout_s: float = 20,
        retry_s: float = 90,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        hook: Hook | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._client = Client(
            token,
            end_point,
            request_timeout_s=request_timeout_s,
            retry_s=retry_s,
            sleep=sleep,
            clock=clock,
            hook=hook,
            progress=progress,
        )

    @property
    def calls(self) -> int:
        """HTTP requests made so far, repeats included."""
        return self._client.calls

    def close(self) -> None:
        """End the idle connections; the next call opens new ones."""
        self._client.close()

    # --- account and catalogue ---------------------------------------------------------------------------------------

    def account(self) -> Account:
        """The account of the token: the cheapest proof that it works."""
        return self._read("account", "account", Account.from_json)

    def sizes(self) -> list[Size]:
        """All sizes of droplets with their prices."""
        return self._list("sizes", "sizes", Size.from_json)

    def regions(self) -> dict[str, bool]:
        """Region slug to whether new droplets can be made there."""
        pairs = self._list("regions", "regions", lambda item: (_slug(item), need(item, "available", bool, "region")))
        return dict(pairs)

    def image_exists(self, slug: str) -> bool:
        """Whether the token can see an image with this slug (or number)."""
        try:
            return self._read(f"images/{_segment(slug)}", "image", lambda image: True)
        except ApiNotFound:
            return False

    # --- droplets ----------------------------------------------------------------------------------------------------

    def droplets(self, tag: str | None = None) -> list[Droplet]:
        """All droplets, or all that carry the tag. A new droplet may be missing for a while."""
        return self._list("droplets", "droplets", Droplet.from_json, {} if tag is None else {"tag_name": tag})

    def droplet(self, id: int) -> Droplet:
        """One droplet; ApiNotFound once it is gone."""
        return self._read(f"droplets/{id}", "droplet", Droplet.from_json)

    def create_droplet(
        self,
        *,
        name: str,
        region: str,
        size: str,
        image: str,
        key_ids: Sequence[int],
        tags: Sequence[str],
        user_data: str,
    ) -> int:
        """Order one droplet and give its id. Accepted is not made: poll :meth:`droplet` until it is active."""
        body: JSON = {
            "name": name,
            "region": region,
            "size": size,
            "image": image,
            "ssh_keys": list(key_ids),
            "tags": list(tags),
            "user_data": user_data,
            # The agent of the web console would run in measured windows.
            "with_droplet_agent": False,
        }
        return self._create("droplets", body, "droplet", lambda item: need(item, "id", int, "droplet"))

    def delete_droplet(self, id: int) -> None:
        """Ask for its deletion; a droplet that is not there is done. Poll :meth:`droplet` until ApiNotFound.

        ApiBusy while another action on it is pending: nothing was done, ask again.
        """
        self._delete(f"droplets/{id}")

    # --- firewalls ---------------------------------------------------------------------------------------------------

    def firewalls(self) -> list[Firewall]:
        """All cloud firewalls of the account."""
        return self._list("firewalls", "firewalls", Firewall.from_json)

    def firewall(self, id: str) -> Firewall:
        """One cloud firewall; ApiNotFound when it is not there."""
        return self._read(f"firewalls/{_segment(id)}", "firewall", Firewall.from_json)

    def create_firewall(self, *, name: str, tag: str, ssh_port: int, allow_from: str) -> Firewall:
        """A firewall on an existing tag: TCP to ``ssh_port`` from ``allow_from`` (CIDR) in, everything out."""
        if not 1 <= ssh_port <= 65535:
            # "0" would open every port.
            raise UsageError(f"SSH port {ssh_port} is not in 1..65535")
        # Without outbound rules nothing leaves. icmp takes no ports: the API refuses "all" there.
        everywhere = {"destinations": {"addresses": _EVERYWHERE}}
        body: JSON = {
            "name": name,
            "tags": [tag],
            "inbound_rules": [{"protocol": "tcp", "ports": str(ssh_port), "sources": {"addresses": [allow_from]}}],
            "outbound_rules": [
                {"protocol": "tcp", "ports": "all", **everywhere},
                {"protocol": "udp", "ports": "all", **everywhere},
                {"protocol": "icmp", **everywhere},
            ],
        }
        return self._create("firewalls", body, "firewall", Firewall.from_json)

    def delete_firewall(self, id: str) -> None:
        """Delete it; one that is not there is done."""
        self._delete(f"firewalls/{_segment(id)}")

    # --- keys and tags -----------------------------------------------------------------------------------------------

    def keys(self) -> list[Key]:
        """All SSH keys of the account. The API allows 10 of these listings in 60 s; the eleventh waits."""
        return self._list("account/keys", "ssh_keys", Key.from_json)

    def create_key(self, name: str, public_key: str) -> Key:
        """Add a public key; ApiRefused when the account has it already, under whatever name."""
        return self._create("account/keys", {"name": name, "public_key": public_key}, "ssh_key", Key.from_json)

    def delete_key(self, id: int) -> None:
        """Delete it; one that is not there is done."""
        self._delete(f"account/keys/{id}")

    def tags(self) -> list[Tag]:
        """All tags of the account."""
        return self._list("tags", "tags", Tag.from_json)

    def create_tag(self, name: str) -> None:
        """Make a tag, so that a firewall can name it."""
        self._create("tags", {"name": name}, "tag", lambda item: need(item, "name", str, "tag"))

    def delete_tag(self, name: str) -> None:
        """Delete the tag, not what carries it; one that is not there is done."""
        self._delete(f"tags/{_segment(name)}")

    # --- the four kinds of request -----------------------------------------------------------------------------------

    def _read(self, path: str, key: str, build: Callable[[JSON], T]) -> T:
        data: JSON = self._client.get_data(path, GET)
        with self._fields(GET, path):
            return build(need(data, key, dict, "answer"))

    def _list(self, path: str, key: str, build: Callable[[JSON], T], only: JSON | None = None) -> list[T]:
        """All pages. With ``page`` in its parameters the library leaves the following of pages to us."""
        found: list[T] = []
        page = 1
        while True:
            data: JSON = self._client.get_data(path, GET, {**(only or {}), "page": page})
            with self._fields(GET, path):
                found += [build(item) for item in objects(need(data, key, list, "answer"), f"answer.{key}")]
                following = data["links"]["pages"].get("next")
                if not following:
                    return found
                page = self._next_page(following, page)

    def _next_page(self, link: object, page: int) -> int:
        """The number in the link to the next page, which must be on the same server and go on."""
        try:
            there, here = urlsplit(str(link)), urlsplit(self._client.end_point)
        except ValueError:
            raise FieldError("links.pages.next is not a URL") from None
        if (there.scheme, there.netloc.lower()) != (here.scheme, here.netloc.lower()):
            raise FieldError(
                f"links.pages.next points to another place than the end point {here.scheme}://{here.netloc}"
            )
        number = parse_qs(there.query).get("page", [""])[-1]
        if _PAGE.fullmatch(number) is None or int(number) <= page:
            raise FieldError(f"links.pages.next of page {page} does not name a later page")
        return int(number)

    def _create(self, path: str, body: JSON, key: str, build: Callable[[JSON], T]) -> T:
        data: JSON = self._client.get_data(path, POST, body)
        with self._fields(POST, path):
            return build(need(data, key, dict, "answer"))

    def _delete(self, path: str) -> None:
        try:
            self._client.exchange(DELETE, path, {})
        except ApiNotFound:
            return

    @contextmanager
    def _fields(self, method: str, path: str) -> Iterator[None]:
        """Turn a FieldError into an ApiError; of a create, which the API says it accepted, the effect is not known."""
        try:
            yield
        except FieldError as error:
            where = f"DigitalOcean {method} {urlsplit(self._client.end_point).path}{path}"
            if method == POST:
                raise ApiAmbiguous(f"{where}: accepted, but {error}. Look for it before asking again.") from None
            raise ApiError(f"{where}: {error}") from None


def _slug(region: JSON) -> str:
    return need(region, "slug", str, "region")


def _segment(value: str) -> str:
    """One segment of a path; never empty or dots, which would name the list or its parent instead."""
    if value in ("", ".", ".."):
        raise UsageError(f"{value!r} is not the name or id of anything at DigitalOcean")
    return quote(value, safe=":")
