"""The client of the DigitalOcean API when connections fail, when it is refused, and what it must never show."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import re
import socket
import ssl
import traceback
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lab.host import Deadline, wait_until
from lab.model import NodeError, UsageError
from lab.providers.digitalocean import client
from lab.providers.digitalocean.api import Api, ApiAmbiguous, ApiError, ApiRefused, ApiUnavailable
from tests.digitalocean_script import (
    BROKEN,
    BUSY,
    DROP,
    GONE,
    HANG,
    HTML,
    ORDER,
    PRIVATE_LINE,
    TOKEN,
    USER_DATA,
    Clock,
    Reply,
    Server,
    error,
    one_page,
    playing,
)


@pytest.fixture
def server():
    with playing() as made:
        yield made


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def api(server, clock):
    with contextlib.closing(
        Api(TOKEN, f"{server.origin}/v2/", sleep=clock.sleep, clock=clock, request_timeout_s=60)
    ) as made:
        yield made


# --- connections ------------------------------------------------------------------------------------------------------


def impatient(end_point: str, clock: Clock, **options: float) -> Api:
    return Api(TOKEN, end_point, **{"request_timeout_s": 0.2, "retry_s": 2, **options}, sleep=clock.sleep, clock=clock)


def wait_taken(server: Server, number: int) -> None:
    """Until the server has taken so many requests: a client that gives up may be quicker."""

    def taken() -> tuple[bool | None, str]:
        return (len(server.seen) >= number and not any(server.script.values())) or None, f"{len(server.seen)} taken"

    wait_until("the server to take the requests", taken, Deadline.after(60), interval_s=0.01)


def test_a_read_that_is_never_answered_ends(server, clock):
    server.expect("GET", "tags", HANG, HANG, HANG)

    with pytest.raises(ApiUnavailable, match=r"no answer within 0\.2 s\. Asked 3 times") as caught:
        impatient(f"{server.origin}/v2/", clock).tags()

    wait_taken(server, 3)
    assert caught.value.status is None
    assert clock.sleeps == [1, 1]


def test_a_create_that_is_never_answered_is_ambiguous_and_asked_once(server, clock):
    server.expect("POST", "tags", HANG)

    with pytest.raises(ApiAmbiguous, match="no answer within"):
        impatient(f"{server.origin}/v2/", clock).create_tag("lab:run")

    wait_taken(server, 1)
    assert (len(server.seen), clock.sleeps) == (1, [])


def test_a_refused_connection_is_asked_again_even_for_a_create(clock):
    server = Server(listening=False)
    server.expect("POST", "tags", Reply(status=201, body={"tag": {"name": "lab:run"}}))

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if len(clock.sleeps) == 2:
            server.listen()

    api = Api(TOKEN, f"{server.origin}/v2/", sleep=sleep, clock=clock)
    try:
        api.create_tag("lab:run")
    finally:
        server.close()
    assert (api.calls, len(server.seen), clock.sleeps) == (3, 1, [1, 2])


@pytest.mark.parametrize(
    "call", [lambda api: api.tags(), lambda api: api.create_tag("t"), lambda api: api.delete_key(5)]
)
def test_a_connection_refused_for_ever_changed_nothing(clock, call):
    server = Server(listening=False)
    try:
        with pytest.raises(ApiUnavailable, match=r"Connection refused\. Asked 3 times in 2 s\. Nothing was changed"):
            call(impatient(f"{server.origin}/v2/", clock))
    finally:
        server.close()


def test_a_connection_that_is_not_made_in_time_is_asked_again_even_for_a_create(clock):
    """A listener whose queue is full answers no further connection."""
    waiting = []
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        for _ in range(4):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(listener.getsockname())
        try:
            with pytest.raises(ApiUnavailable, match=r"no connection within 0\.2 s\. Asked 3 times"):
                impatient(f"http://127.0.0.1:{listener.getsockname()[1]}/v2/", clock).create_tag("t")
        finally:
            for item in waiting:
                item.close()


def test_a_name_that_does_not_resolve_is_asked_again_even_for_a_create(clock, monkeypatch):
    def unresolved(*args: object, **rest: object) -> object:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    clear_proxies(monkeypatch)

    with pytest.raises(ApiUnavailable, match=r"resolve 'api\.example'.*Asked 3 times"):
        impatient("https://api.example/v2/", clock).create_tag("t")


def self_signed(path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")]), datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1), [])
    certificate = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


def test_an_untrusted_certificate_ends_at_once_and_nothing_was_sent(clock, tmp_path):
    server = Server(listening=False)
    server.http.socket = self_signed(tmp_path / "pair.pem").wrap_socket(server.http.socket, server_side=True)
    server.http.handle_error = lambda request, address: None
    server.listen()
    try:
        api = impatient(server.origin.replace("http", "https") + "/v2/", clock, request_timeout_s=60)
        with pytest.raises(ApiUnavailable, match="SSLCertVerificationError"):
            api.create_tag("t")
    finally:
        server.close()
    assert (server.seen, clock.sleeps) == ([], [])


def clear_proxies(monkeypatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_the_environment_changes_neither_place_nor_token(server, api, tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("default login someone password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("DIGITALOCEAN_END_POINT", "http://127.0.0.1:9/v2/")
    monkeypatch.setenv("DIGITALOCEAN_ACCESS_TOKEN", "another-token")
    server.expect("GET", "tags", one_page("tags"))
    server.expect("POST", "tags", Reply(status=201, body={"tag": {"name": "t"}}))

    with contextlib.closing(Api(TOKEN, f"{server.origin}/v2/")) as made:
        made.tags()
        made.create_tag("t")

    assert {request.headers["authorization"] for request in server.seen} == {f"Bearer {TOKEN}"}


def test_a_create_never_goes_over_an_idle_connection(server, api):
    server.expect("GET", "tags", one_page("tags"), one_page("tags"))
    server.expect("POST", "tags", Reply(status=201, body={"tag": {"name": "t"}}))

    api.tags()
    api.create_tag("t")
    api.tags()

    first, create, last = (request.port for request in server.seen)
    assert first == last != create


def test_a_redirect_is_not_followed(server, api):
    server.expect("GET", "tags", Reply(status=301, body="", headers={"location": f"{server.origin}/v2/elsewhere"}))

    with pytest.raises(ApiUnavailable, match="status 301"):
        api.tags()

    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "end_point",
    [
        "http://127.0.0.1:1/v2", "http://127.0.0.1:1/", "http://api.digitalocean.com/v2/", "https:///v2/", "/v2/", "",
        "https://u:p@api.digitalocean.com/v2/", "https://api.digitalocean.com/v2/?a=1/v2/", "ftp://127.0.0.1/v2/",
        "https://api.digitalocean.com:x/v2/", "http://127.0.0.1.example/v2/", "https://h/v2/#/v2/",
    ],
)  # fmt: skip
def test_an_end_point_that_must_not_get_the_token_is_refused(end_point):
    with pytest.raises(UsageError, match="end point"):
        Api(TOKEN, end_point)


@pytest.mark.parametrize("end_point", ["http://localhost:1/v2/", "http://[::1]:1/v2/", "https://h.example/do/v2/"])
def test_an_end_point_of_loopback_or_with_https_is_taken(end_point):
    assert Api(TOKEN, end_point).calls == 0


@pytest.mark.parametrize("token", ["", " ", f"{TOKEN}\n", f"{TOKEN} x", f"{TOKEN}é"])
def test_a_token_that_fits_in_no_header_is_refused_and_not_shown(token):
    with pytest.raises(UsageError) as caught:
        Api(token)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_there_is_always_a_timeout(timeout_s):
    with pytest.raises(UsageError, match="timeout"):
        Api(TOKEN, request_timeout_s=timeout_s)


# --- what is told meanwhile -------------------------------------------------------------------------------------------


@pytest.fixture
def no_long_wait(monkeypatch):
    """No answer takes long enough to be told of, however long this machine stands still."""
    monkeypatch.setattr(client, "told_when_long", lambda text, say: contextlib.nullcontext())


@pytest.mark.usefixtures("no_long_wait")
def test_what_is_waited_for_is_told_at_the_first_failure_and_once(server, clock):
    moments = []
    api = Api(
        TOKEN, f"{server.origin}/v2/", sleep=clock.sleep, clock=clock,
        progress=lambda text: moments.append((clock.now, text)),
    )  # fmt: skip
    start = clock.now
    server.expect("GET", "tags", *[BROKEN] * 3, one_page("tags"))
    with contextlib.closing(api):
        assert api.tags() == []

    ((now, text),) = moments
    assert now == start
    assert re.fullmatch(r"DigitalOcean GET /v2/tags: status 500, .*; asking again for up to 90 s", text)


def test_an_answer_that_does_not_come_is_told_while_it_is_waited_for(server, clock, monkeypatch):
    waits = []

    @contextlib.contextmanager
    def told_when_long(text, say):
        waits.append(text)
        yield

    monkeypatch.setattr(client, "told_when_long", told_when_long)
    api = Api(TOKEN, f"{server.origin}/v2/", sleep=clock.sleep, clock=clock, progress=lambda text: None)
    server.expect("GET", "tags", BROKEN, BROKEN, one_page("tags"))
    with contextlib.closing(api):
        api.tags()

    host = server.origin.removeprefix("http://")
    assert waits == [f"waiting for {host} to answer GET /v2/tags (up to 20 s)"], "of repeats a line was printed before"


@pytest.mark.usefixtures("no_long_wait")
def test_a_request_that_is_not_repeated_tells_nothing(server, clock):
    said = []
    api = Api(TOKEN, f"{server.origin}/v2/", sleep=clock.sleep, clock=clock, progress=said.append)
    server.expect("GET", "tags", GONE)
    server.expect("POST", "tags", DROP)
    with contextlib.closing(api):
        for call in (api.tags, lambda: api.create_tag("t")):
            with pytest.raises(ApiError):
                call()
    assert said == []


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (error(401, "unauthorized", "Unable to authenticate you"),
         r"POST /v2/droplets: status 401, unauthorized, Unable to .* you \(request id r-9\)\. The token is wrong"),
        (error(403, "forbidden", "You are not authorized to perform this operation"), "scope droplet:create"),
        (error(403, "forbidden", "Your account is locked."), r"is locked \(request id r-9\)\. The account is locked"),
        (error(422, "unprocessable_entity", "Size is not available in this region."), "not available.*value of the"),
        (error(422, "unprocessable_entity", "creating this droplet will exceed your droplet limit"), "raise the acc"),
        (error(409, "conflict", "a name is taken"), r"conflict, a name is taken .*Nothing was changed"),
        (Reply(status=400, body={"error": "bad", "messages": ["no size", 7], "root_causes": []}), "400, bad; no size"),
        (Reply(status=400, body={}), r"status 400\. Nothing"),
        (Reply(status=403, body={"id": "forbidden"}), "status 403, forbidden"),
        (Reply(status=422, body={"id": ["x"], "message": {"a": 1}, "request_id": 3}), "status 422"),
        (Reply(status=400, body="[]"), r"not the API's JSON \(application/json, 2 bytes\)"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_to_do(server, api, clock, reply, text):
    server.expect("POST", "droplets", reply)

    with pytest.raises(ApiRefused, match=text) as caught:
        api.create_droplet(**ORDER)

    assert isinstance(caught.value, NodeError)
    assert caught.value.status == reply.status
    assert clock.sleeps == []


@pytest.mark.parametrize(
    ("call", "scope"),
    [
        (lambda api: api.account(), "account:read"), (lambda api: api.keys(), "ssh_key:read"),
        (lambda api: api.delete_key(5), "ssh_key:delete"), (lambda api: api.sizes(), "sizes:read"),
        (lambda api: api.regions(), "regions:read"), (lambda api: api.image_exists("x"), "image:read"),
        (lambda api: api.delete_firewall("x"), "firewall:delete"), (lambda api: api.create_tag("x"), "tag:create"),
    ],
)  # fmt: skip
def test_a_missing_scope_is_named(server, api, call, scope):
    forbidden = error(403, "forbidden", "You are not authorized to perform this operation")
    paths = ("account", "account/keys", "account/keys/5", "sizes", "regions", "images/x", "firewalls/x", "tags")
    for method in ("GET", "POST", "DELETE"):
        for path in paths:
            server.script[method, f"/v2/{path}"] = [forbidden]

    with pytest.raises(ApiRefused, match=f"scope {scope}:"):
        call(api)
    server.script.clear()


def test_the_hook_stands_around_each_request(server, clock):
    moments = []
    server.expect("GET", "droplets", BUSY, DROP, one_page("droplets"))

    with contextlib.closing(
        Api(TOKEN, f"{server.origin}/v2/", sleep=clock.sleep, clock=clock, hook=lambda *moment: moments.append(moment))
    ) as api:
        api.droplets("lab:run")

    assert moments == [("before", "GET", "/v2/droplets"), ("after", "GET", "/v2/droplets")] * 3


def test_a_crash_before_a_request_sends_nothing_and_one_after_it_comes_too_late(server, clock):
    class Crash(BaseException):
        pass

    def crash_at(moment: str):
        def hook(now: str, method: str, path: str) -> None:
            if now == moment:
                raise Crash

        return hook

    server.expect("POST", "tags", Reply(status=201, body={"tag": {"name": "t"}}))
    for moment, sent in (("before", 0), ("after", 1)):
        api = Api(TOKEN, f"{server.origin}/v2/", sleep=clock.sleep, clock=clock, hook=crash_at(moment))
        with pytest.raises(Crash):
            api.create_tag("t")
        assert len(server.seen) == sent


# --- secrets ----------------------------------------------------------------------------------------------------------


def everything_of(problem: BaseException | None) -> str:
    """All that a report of an exception may show, the exceptions behind it included."""
    texts = []
    while problem is not None:
        texts += [repr(problem), repr(vars(problem)), *traceback.format_exception(problem)]
        problem = problem.__cause__ or problem.__context__
    return "".join(texts)


ECHO = f"bad header: Bearer {TOKEN}\r\n in {USER_DATA}"


@pytest.mark.parametrize(
    "reply",
    [
        DROP, HTML, Reply(status=202, body=ECHO), Reply(status=422, body=ECHO), error(422, TOKEN, ECHO),
        error(500, "server_error", ECHO + "x" * 600), error(401, "unauthorized", "x" * 470 + ECHO),
        Reply(status=400, body={"message": "no", "request_id": TOKEN}), Reply(status=202, body={"droplet": {"i": 31}}),
        Reply(status=400, body="", headers={"content-type": TOKEN}),
    ],
)  # fmt: skip
def test_no_secret_in_exceptions_logs_or_reprs(server, api, caplog, capfd, reply):
    server.expect("POST", "droplets", reply)
    for name in ("", "digitalocean", "urllib3", "requests"):
        caplog.set_level(logging.DEBUG, logger=name)

    with pytest.raises(ApiError) as caught:
        api.create_droplet(**ORDER)

    out, err = capfd.readouterr()
    shown = [everything_of(caught.value), caplog.text, repr(api), repr(api._client), str(api._client), out, err]
    for secret in (TOKEN, TOKEN[:12], PRIVATE_LINE, PRIVATE_LINE[:16]):
        assert secret not in "".join(shown)
    assert f"Bearer {TOKEN}" == server.seen[0].headers["authorization"]


def test_no_secret_in_the_log_of_a_call_that_succeeds(server, api, caplog):
    server.expect("POST", "droplets", Reply(status=202, body={"droplet": {"id": 31}}))
    server.expect("GET", "droplets", one_page("droplets"))
    for name in ("", "digitalocean", "urllib3", "requests"):
        caplog.set_level(logging.DEBUG, logger=name)

    api.create_droplet(**ORDER)
    api.droplets("lab:run")

    assert "POST /v2/droplets" in caplog.text, "the log was not listened to"
    assert TOKEN not in caplog.text
    assert PRIVATE_LINE not in caplog.text


def test_the_text_of_an_error_is_one_short_printable_line(server, api):
    server.expect("GET", "account", error(400, "bad", "a\n\x1b[31mb\t" + "c" * 2000))

    with pytest.raises(ApiRefused) as caught:
        api.account()

    text = str(caught.value)
    assert text.isprintable()
    assert "a [31mb ccc" in text
    assert len(text) < 700
