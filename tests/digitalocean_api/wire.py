"""Requests and answers: the endpoint table's types, the checks of query and body, pages and error bodies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

if TYPE_CHECKING:
    from .account import Account

JSON = dict[str, Any]
DEFAULT_PER_PAGE = 20
MOST_PER_PAGE = 200
MOST_USER_DATA_BYTES = 64 * 1024

ERROR_IDS = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    409: "conflict",
    422: "unprocessable_entity",
    429: "too_many_requests",
    500: "server_error",
}


class ApiError(Exception):
    """An answer of the documented kind that is no success."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


class UnexpectedRequest(Exception):
    """A request that the model does not know. It is recorded, so that the test fails."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


def missing() -> ApiError:
    """404 with the API's text."""
    return ApiError(404, "The resource you were accessing could not be found.")


def unprocessable(message: str) -> ApiError:
    """422 with a text."""
    return ApiError(422, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that has passed the checks; ``scopes`` None means every scope."""

    path: str
    parts: Mapping[str, str]
    query: Mapping[str, str]
    body: JSON
    scopes: frozenset[str] | None
    now: float

    def may(self, scope: str) -> bool:
        """Whether the token has a scope."""
        return self.scopes is None or scope in self.scopes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Status, headers of its own, and the body (None: no body at all)."""

    status: int
    body: JSON | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


NO_CONTENT = Answer(status=204)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a request body; ``null`` is refused unless ``nullable``."""

    kind: str
    required: bool = False
    nullable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One documented request. ``path`` is what follows /v2/; ``{name}`` in it stands for one segment."""

    method: str
    path: str
    answer: Callable[[Account, Request], Answer]
    scopes: tuple[str, ...] = ()
    query: frozenset[str] = frozenset()
    pages: bool = False
    fields: Mapping[str, Field] = field(default_factory=dict)
    pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(self.path))
        object.__setattr__(self, "pattern", re.compile(f"/v2/{pattern}/?"))


_KINDS: Mapping[str, tuple[type, ...]] = {
    "text": (str,),
    "integer": (int,),
    "text or integer": (str, int),
    "flag": (bool,),
    "list": (list,),
    "object": (dict,),
}


def demand_scope(scopes: frozenset[str] | None, scope: str) -> None:
    """403 unless a token's scopes (None: every one) contain this one."""
    if scopes is not None and scope not in scopes:
        raise ApiError(403, "You are not authorized to perform this operation")


def check_kind(where: str, value: object, kind: str) -> None:
    """UnexpectedRequest unless a value of a body has its documented JSON type (true is no integer)."""
    allowed = _KINDS[kind]
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise UnexpectedRequest(f"{where} must be of kind {kind}, not {type(value).__name__}")


def check_items(where: str, values: Sequence[object], kind: str) -> None:
    """The same for every item of a list."""
    for number, value in enumerate(values):
        check_kind(f"{where}[{number}]", value, kind)


def check_query(endpoint: Endpoint, query: Mapping[str, str]) -> None:
    """UnexpectedRequest for a parameter that the endpoint does not document.

    ``per_page`` is let through on every GET, because python-digitalocean sends it with each.
    """
    allowed = set(endpoint.query)
    if endpoint.method == "GET":
        allowed.add("per_page")
    if endpoint.pages:
        allowed.add("page")
    for name, value in query.items():
        if name not in allowed:
            raise UnexpectedRequest(f"unknown query parameter {name!r}")
        if not value:
            raise UnexpectedRequest(f"query parameter {name!r} is empty")
    for name, most in (("per_page", MOST_PER_PAGE), ("page", None)):
        if name in query:
            text = query[name]
            if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1 or (most is not None and int(text) > most):
                raise UnexpectedRequest(f"query parameter {name}={text!r} is out of range")


def check_body(endpoint: Endpoint, body: object) -> JSON:
    """The body as a dictionary without its nulls.

    UnexpectedRequest for what the endpoint does not document; 422 where a required field is left out.
    """
    if endpoint.method in ("GET", "DELETE"):
        if body not in (None, {}):
            raise UnexpectedRequest(f"{endpoint.method} with a body that is not empty")
        return {}
    if not isinstance(body, dict):
        raise UnexpectedRequest("the body is no JSON object")
    given: JSON = {}
    for name, value in body.items():
        known = endpoint.fields.get(name)
        if known is None:
            raise UnexpectedRequest(f"unknown body field {name!r}")
        if value is None and known.nullable:
            continue
        check_kind(f"body field {name!r}", value, known.kind)
        given[name] = value
    for name, known in endpoint.fields.items():
        if known.required and name not in given:
            raise unprocessable(f"{name} is missing")
    return given


def page_of(
    base_url: str, request: Request, key: str, items: Sequence[JSON], *, on_last: Iterable[Callable[[], None]] = ()
) -> Answer:
    """One page of a list, with absolute links. ``on_last`` is called when this page is the last one."""
    per_page = int(request.query.get("per_page", DEFAULT_PER_PAGE))
    page = int(request.query.get("page", 1))
    last = max(1, -(-len(items) // per_page))
    targets: dict[str, int] = {}
    if page > 1:
        targets |= {"first": 1, "prev": min(page - 1, last)}
    if page < last:
        targets |= {"next": page + 1, "last": last}
    if page >= last:
        for call in on_last:
            call()
    path = request.path.rstrip("/").removeprefix("/v2/")
    links = {
        name: f"{base_url}{path}?{urlencode({**request.query, 'page': number})}" for name, number in targets.items()
    }
    body: JSON = {
        key: list(items[(page - 1) * per_page : page * per_page]),
        "links": {"pages": links} if links else {},
        "meta": {"total": len(items)},
    }
    return Answer(status=200, body=body)


def error_body(status: int, message: str, request_id: str) -> JSON:
    """The documented body of every error."""
    return {"id": ERROR_IDS[status], "message": message, "request_id": request_id}


def detached(value: JSON) -> JSON:
    """A copy that shares nothing with the account: what a client does to an answer changes no state."""
    copy: JSON = json.loads(json.dumps(value))
    return copy
