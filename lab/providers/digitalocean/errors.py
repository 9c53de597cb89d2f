"""The errors of the DigitalOcean client, and the sentences in them: what was asked, what came back, what to do.

Nothing here does I/O. The API's two error shapes are those of ``digitalocean/openapi``,
``specification/shared/models/error.yml`` and ``error_with_root_causes.yml``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.model import NodeError

_SHOWN_TEXT = 500
_BUSY = (409, 422, 423)


class ApiError(NodeError):
    """A request to DigitalOcean failed; the text says what was asked, what came back and what to do.

    ``status`` is the HTTP status (None: no answer, or an answer that lacks a field), ``error_id`` the API's own id of
    the error (``""``: none given), ``request_id`` what DigitalOcean's support asks for (None: not given).
    """

    def __init__(
        self, text: str, *, status: int | None = None, error_id: str = "", request_id: str | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.error_id = error_id
        self.request_id = request_id


class ApiNotFound(ApiError):
    """The object is not there (404)."""


class ApiRefused(ApiError):
    """The API refused the request (a 4xx other than 404, 408 and 429), for good unless ApiBusy; nothing was done."""


class ApiBusy(ApiRefused):
    """A DELETE was refused for the moment (409, 422 or 423): another action on the object has not ended.

    A DELETE carries no value that could be wrong. While a droplet is being made or deleted the answer is 422, "Droplet
    already has a pending event." (hashicorp/packer#1814); the same request works once that action has ended.
    """


class ApiAmbiguous(ApiError):
    """A change was sent and whether it took effect is not known: look before asking again."""


class ApiUnavailable(ApiError):
    """The API kept failing until the time was up; nothing was changed by this request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is known of a request that went wrong: from the body of its answer, or in our words where there was none."""

    message: str
    error_id: str = ""
    request_id: str | None = None

    @classmethod
    def read(cls, body: bytes, headers: Mapping[str, str], secrets: Sequence[str]) -> Problem:
        """From any body: both error shapes of the API, and what a gateway in front of it may send. Never raises."""
        try:
            data = json.loads(body)
        except ValueError:
            data = None
        if not isinstance(data, dict):
            return cls.not_the_api(body, headers, secrets)
        reasons = data.get("messages")
        texts = [data.get("message"), data.get("error"), *(reasons if isinstance(reasons, list) else [])]
        error_id, request_id = data.get("id"), data.get("request_id")
        return cls(
            message=shown("; ".join(text for text in texts if isinstance(text, str)), secrets),
            error_id=shown(error_id, secrets) if isinstance(error_id, str) else "",
            request_id=shown(request_id, secrets) if isinstance(request_id, str) else None,
        )

    @classmethod
    def not_the_api(cls, body: bytes, headers: Mapping[str, str], secrets: Sequence[str]) -> Problem:
        """A body that cannot be the API's (a page of a gateway, a cut text), described, not quoted."""
        kind = headers.get("content-type", "").partition(";")[0] or "no content type"
        return cls(message=f"a body that is not the API's JSON ({shown(kind, secrets)}, {len(body)} bytes)")


def shown(text: str, secrets: Sequence[str]) -> str:
    """A foreign text made fit to show: the secrets masked, one line, printable, not endless."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    line = "".join(char for char in " ".join(text.split()) if char.isprintable())
    return line if len(line) <= _SHOWN_TEXT else line[:_SHOWN_TEXT] + "…"


# What a path below /v2/ needs beside its verb; regions and sizes have their scopes in the plural.
_SCOPES = {
    "account/keys": "ssh_key", "account": "account", "droplets": "droplet", "firewalls": "firewall", "images": "image",
    "regions": "regions", "sizes": "sizes", "tags": "tag",
}  # fmt: skip
_VERBS = {"GET": "read", "POST": "create", "DELETE": "delete"}


def scope_of(method: str, path: str) -> str:
    """The token scope of a request: ``droplet:create`` for POST below ``…/v2/droplets``."""
    below = path.rpartition("/v2/")[2]
    resource = next(name for prefix, name in _SCOPES.items() if below == prefix or below.startswith(f"{prefix}/"))
    return f"{resource}:{_VERBS[method]}"


def refusal(method: str, path: str, status: int, problem: Problem) -> ApiError:
    """The error for a 4xx that is not the limit of requests: ApiNotFound for 404, else ApiRefused, or its ApiBusy."""
    if status == 404:
        return ApiNotFound(asked(method, path, status, problem), **_facts(status, problem))
    if method == "DELETE" and status in _BUSY:
        advice = "Nothing was changed: something else is being done with it; ask again in a while."
        return ApiBusy(f"{asked(method, path, status, problem)}. {advice}", **_facts(status, problem))
    if status == 401:
        advice = "The token is wrong, expired or revoked: make one in the control panel (API, Tokens) and set it."
    elif status == 403 and "lock" in problem.message.lower():
        advice = "The account is locked: DigitalOcean's support or the control panel says why."
    elif status == 403:
        advice = (
            f"The token needs the scope {scope_of(method, path)}: add it in the control panel (API, Tokens). "
            "If it has that scope, the account may be locked."
        )
    elif status == 422 and "limit" in problem.message.lower():
        advice = "Nothing was changed: remove what is no longer used, or ask DigitalOcean to raise the account's limit."
    elif status == 422:
        advice = "Nothing was changed: a value of the request is not accepted; correct the one that the answer names."
    else:
        advice = "Nothing was changed."
    return ApiRefused(f"{asked(method, path, status, problem)}. {advice}", **_facts(status, problem))


def failure(
    kind: type[ApiError], method: str, path: str, status: int | None, problem: Problem, advice: str
) -> ApiError:
    """An error of a ``kind`` with its text; ``problem.message`` says what happened when there is no status."""
    return kind(f"{asked(method, path, status, problem)}. {advice}", **_facts(status, problem))


def asked(method: str, path: str, status: int | None, problem: Problem) -> str:
    """What was asked and what came back, in one sentence without its full stop."""
    answer = [f"status {status}" if status is not None else "", problem.error_id, problem.message.rstrip(". ")]
    request = f" (request id {problem.request_id})" if problem.request_id else ""
    return f"DigitalOcean {method} {path}: {', '.join(part for part in answer if part)}{request}"


def _facts(status: int | None, problem: Problem) -> dict[str, Any]:
    return {"status": status, "error_id": problem.error_id, "request_id": problem.request_id}
