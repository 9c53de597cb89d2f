"""SSH keys of the account and their endpoints."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .wire import JSON, NO_CONTENT, Answer, Endpoint, Field, Request, missing, page_of, unprocessable

if TYPE_CHECKING:
    from .account import Account

KEY_KINDS = frozenset({
    "ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key; ``blob`` is what the base64 text of the public key holds."""

    id: int
    name: str
    public_key: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """MD5 in the colon form: sixteen pairs."""
        return hashlib.md5(self.blob, usedforsecurity=False).digest().hex(":")

    def shown(self) -> JSON:
        """The API's object."""
        return {"id": self.id, "fingerprint": self.fingerprint, "public_key": self.public_key, "name": self.name}


def blob_of(public_key: str) -> bytes:
    """The key itself, without kind and comment; 422 when the text is no public key."""
    words = public_key.split()
    try:
        blob = base64.b64decode(words[1], validate=True) if len(words) > 1 else b""
    except binascii.Error:
        blob = b""
    length = int.from_bytes(blob[:4], "big")
    if not words or words[0] not in KEY_KINDS or blob[4 : 4 + length] != words[0].encode():
        raise unprocessable("Key invalid, key should be of the format `type key [comment]`")
    return blob


def find_key(account: Account, name: str) -> Key | None:
    """The key with this number or fingerprint."""
    return next((key for key in account.keys.values() if name in (str(key.id), key.fingerprint)), None)


def _wanted(account: Account, request: Request) -> Key:
    key = find_key(account, request.parts["key"])
    if key is None:
        raise missing()
    return key


def _list(account: Account, request: Request) -> Answer:
    return page_of(account.base_url, request, "ssh_keys", [key.shown() for key in account.keys.values()])


def _create(account: Account, request: Request) -> Answer:
    name, public_key = request.body["name"], request.body["public_key"]
    if not name:
        raise unprocessable("Name can't be blank")
    blob = blob_of(public_key)
    # The comment is no part of the key: another comment is still the same key.
    if any(key.blob == blob for key in account.keys.values()):
        raise unprocessable("SSH Key is already in use on your account")
    key = Key(id=account.new_id("key"), name=name, public_key=public_key, blob=blob)
    account.keys[key.id] = key
    return Answer(status=201, body={"ssh_key": key.shown()})


def _get(account: Account, request: Request) -> Answer:
    return Answer(status=200, body={"ssh_key": _wanted(account, request).shown()})


def _delete(account: Account, request: Request) -> Answer:
    del account.keys[_wanted(account, request).id]
    return NO_CONTENT


LIST_KEYS = Endpoint(method="GET", path="account/keys", answer=_list, scopes=("ssh_key:read",), pages=True)

ENDPOINTS = (
    LIST_KEYS,
    Endpoint(
        method="POST", path="account/keys", answer=_create, scopes=("ssh_key:create",),
        fields={"name": Field(kind="text", required=True), "public_key": Field(kind="text", required=True)},
    ),
    Endpoint(method="GET", path="account/keys/{key}", answer=_get, scopes=("ssh_key:read",)),
    Endpoint(method="DELETE", path="account/keys/{key}", answer=_delete, scopes=("ssh_key:delete",)),
)  # fmt: skip
