"""Random secrets, the whole command line at its highest verbosity, calls that fail in every way: no secret comes out.

What is searched: both output streams, results, cache and logs, and the arguments of every process of this machine. The
private keys are those that the program really made: read from the request for the droplet and from the node's folder.
"""

from __future__ import annotations

import random
import string
import threading
from pathlib import Path

import pytest
import yaml

from lab.secrets import forms
from tests.cloud_processes import new_account, office
from tests.digitalocean_api import Account, Behaviour, CloseAfter, CloseBefore, Error, NoMachines, bad_gateway
from tests.digitalocean_api.limits import RateLimits

RNG = random.SystemRandom()
ENOUGH_S = 300.0
PUNCTUATION = "\"'\\%$`&<>{}[]()!*?;:,.|~^=+/@#-_"


def random_token() -> str:
    """Anything that a header can hold, and always something that quoting, JSON or a URL would change."""
    letters = RNG.choices(string.ascii_letters + string.digits + PUNCTUATION, k=40)
    return "dop_v1_" + "".join(letters) + "\"'\\%~" + "".join(RNG.choices(string.hexdigits, k=16))


class Watch:
    """Private keys below a cache, and the arguments of all processes until the block ends."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.keys: set[str] = set()
        self.arguments: set[bytes] = set()

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def read_keys(self) -> None:
        """Called while a create waits for its answer: the node's folder is there then, however short its life."""
        self.keys |= {_text(path).decode() for path in self._cache.glob("nodes/*/id_ed25519")}

    def _look(self) -> None:
        while not self._ended.wait(0.05):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                self.arguments.add(_text(path))


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


class Quoting(Account):
    """Refuses droplets and quotes the whole request, as a gateway in front of the API might."""

    def handle(self, method, path, query, body, token):  # type: ignore[no-untyped-def]
        if method == "POST" and path == "/v2/droplets":
            return self.failure(422, f"rejected: {token} {body['user_data']} {body}", token)
        return super().handle(method, path, query, body, token)


def fault(kind: str, api) -> None:  # type: ignore[no-untyped-def]
    """Let requests go wrong from now on; those of the check and of the clean-up mostly go well."""
    account = api.account
    match kind:
        case "none" | "quoted":
            return
        case "401":
            account.tokens.clear()
        case "403":
            api.faults.add("POST", "/v2/droplets", Error(status=403), times=100)
        case "500":
            api.faults.add("POST", "/v2/account/keys", Error(status=500), times=100)
            api.faults.add("DELETE", "/v2/tags/node-lab:nlab", Error(status=500), times=100)
        case "html 502":
            api.faults.add("POST", "/v2/droplets", bad_gateway(handled=True), times=100)
            api.faults.add("GET", "/v2/droplets", bad_gateway(), nth=2)
        case "lost":
            api.faults.add("POST", "/v2/droplets", CloseAfter(), times=100)
            api.faults.add("DELETE", "/v2/droplets/4", CloseBefore(), times=3)
        case "left behind":
            api.faults.add("DELETE", "/v2/droplets/4", Error(status=403), times=1000)
        case "firewall failed":
            account.failing_firewalls = 100
        case _:
            raise AssertionError(kind)


def needles(secrets: set[str]) -> set[bytes]:
    """All forms of the secrets; of a private key each of its lines, without header and footer."""
    found: set[str] = set()
    for secret in secrets:
        lines = [line for line in secret.splitlines() if not line.startswith("-----")]
        for line in [secret, *lines]:
            found |= forms(line)
        # A part of a key is a secret as well.
        found |= {line[start : start + 24] for line in lines if len(lines) > 1 for start in (0, 20, 40)}
    return {text.encode() for text in found if len(text) >= 16}


KINDS = ["none", "401", "403", "500", "html 502", "lost", "left behind", "firewall failed", "quoted"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_secret_in_any_byte_that_the_program_leaves(tmp_path, monkeypatch, kind):
    token = random_token()
    account = new_account(token, Behaviour())
    if kind == "quoted":
        limits = RateLimits(key_listings_per_minute=None)
        account = Quoting(clock=account.clock, tokens={token: None}, machines=NoMachines(), limits=limits)
    watch, handle = Watch(tmp_path / "cache"), account.handle

    def handle_and_look(method: str, *request: object) -> object:
        if method == "POST":
            watch.read_keys()
        return handle(method, *request)

    monkeypatch.setattr(account, "handle", handle_and_look)
    with office(tmp_path, token, account) as working:
        working.boot_s, working.settle_s, working.retry_s = 2.0, 3.0, 1.0
        fault(kind, working.api)
        plan = working.run_words()
        plan[0] = "plan"
        calls = [
            ["-v", "doctor"], ["-v", *plan], ["-v", *working.run_words()], ["-v", "nodes", "--json"],
            ["-v", "gc", "--dry-run"], ["-v", "gc"], ["-v", "down", "--all"], ["-v", "down", "no-such-node"],
        ]  # fmt: skip
        with watch:
            process = working.start(*calls)
            process.wait(timeout=ENOUGH_S)
        orders = [call.body for call in working.api.requests if (call.method, call.path) == ("POST", "/v2/droplets")]
        host_keys = {yaml.safe_load(body["user_data"])["ssh_keys"]["ed25519_private"] for body in orders}

    text = working.errors()
    assert "Traceback" not in text
    assert text.count("exit ") >= len(calls), text
    if kind not in ("401", "500"):
        assert len(host_keys) == 1
    if kind != "401":
        assert len({key for key in watch.keys if key}) == 1
    secrets = {token, *host_keys, *watch.keys} - {""}
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "id_ed25519"]
    assert {working.stdout, working.stderr} <= set(files)
    assert len(text) > 500
    searched = {str(path): path.read_bytes() for path in files}
    searched |= {f"arguments {number}": text for number, text in enumerate(watch.arguments)}
    for needle in needles(secrets):
        for where, found in searched.items():
            assert needle not in found, f"{needle!r} in {where}: {found[:500]!r}"


def test_the_search_finds_what_it_looks_for(tmp_path):
    """A token and a line of a key, written in a few of the ways in which programs write things."""
    token, key = random_token(), f"-----BEGIN\n{'A' * 30}{'b' * 40}\n{'c' * 70}\n-----END\n"
    found = needles({token, key})
    for leak in (repr({"Authorization": f"Bearer {token}"}), f"x {'c' * 30} y", key, key.replace("\n", "\\n")):
        assert any(needle in leak.encode() for needle in found), leak
    assert not any(needle in b"a harmless text -----BEGIN OPENSSH PRIVATE KEY-----" for needle in found)
