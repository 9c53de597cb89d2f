"""The local DigitalOcean API over HTTP: faults on demand, and what the real python-digitalocean makes of it."""

from __future__ import annotations

import http.client
import json
import threading
from urllib.parse import urlsplit

import digitalocean
import pytest
import requests
from digitalocean.baseapi import JSONReadError

from tests.digitalocean_api import (
    PROMPT,
    Account,
    Behaviour,
    CloseAfter,
    CloseBefore,
    Error,
    Hang,
    LocalDigitalOcean,
    NoMachines,
    Reply,
    Slow,
    TooMany,
    bad_gateway,
)
from tests.digitalocean_api.client import ALL_OUT, DROPLET, NO_LIMITS, SSH_FROM_ONE, TOKEN, Clock, public_key

DROPLETS = r"^/v2/droplets/?($|\?)"
GIVE_UP_S = 60  # nothing here takes long; a hung test must end


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def api(clock):
    account = Account(clock=clock, tokens={TOKEN: None}, behaviour=Behaviour(), limits=NO_LIMITS, droplet_limit=500)
    with LocalDigitalOcean(account) as server:
        yield server
    assert server.unexpected == []
    assert server.faults.unused() == []


def ask(method, url, *, timeout=GIVE_UP_S, token=TOKEN, headers=None, **options):
    """Send one request on a connection of its own; raises what requests raises."""
    with requests.Session() as session:
        session.trust_env = False
        headers = {"Authorization": f"Bearer {token}", **(headers or {})}
        return session.request(method, url, timeout=timeout, headers=headers, **options)


@pytest.fixture
def send(api):
    return lambda method, path, **options: ask(method, api.url + path, **options)


@pytest.fixture
def library(api, monkeypatch):
    """python-digitalocean, pointed at the local API in the only way that reaches all its objects."""
    monkeypatch.setenv("DIGITALOCEAN_END_POINT", api.url)
    monkeypatch.setenv("DIGITALOCEAN_ACCESS_TOKEN", TOKEN)
    monkeypatch.setenv("PYTHON_DIGITALOCEAN_REQUEST_TIMEOUT_SEC", str(GIVE_UP_S))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return digitalocean


def fill(api, count):
    for number in range(count):
        status, _, _ = api.account.handle("POST", "/v2/droplets", {}, {**DROPLET, "name": f"d-{number}"}, TOKEN)
        assert status == 202


# --- HTTP -------------------------------------------------------------------------------------------------------------


def test_success_without_a_body_and_errors_with_one(send):
    assert send("POST", "tags", json={"name": "lab"}).status_code == 201
    gone = send("DELETE", "tags/lab", json={})
    assert (gone.status_code, gone.content) == (204, b"")
    missing = send("GET", "tags/lab")
    assert missing.status_code == 404
    assert set(missing.json()) == {"id", "message", "request_id"}
    assert "ratelimit-reset" in missing.headers
    assert send("GET", "account", token="other").status_code == 401
    assert send("GET", "account", headers={"Authorization": f"Basic {TOKEN}"}).status_code == 401


def test_requests_are_written_down_without_the_token(api, send, clock):
    clock.now = 1_800_000_007.5
    send("POST", "tags/", json={"name": "lab"})
    send("GET", "droplets/?tag_name=lab%3A1&per_page=200")

    first, second = api.requests
    assert (first.method, first.path, first.body, first.status) == ("POST", "/v2/tags/", {"name": "lab"}, 201)
    assert (second.query, second.time) == ({"tag_name": "lab:1", "per_page": "200"}, 1_800_000_007.5)
    assert TOKEN not in repr(api.requests)


def test_links_point_at_the_server_itself(api, send):
    api.account.behaviour = PROMPT
    fill(api, 3)

    first = send("GET", "droplets?per_page=2").json()

    next_page = first["links"]["pages"]["next"]
    assert next_page.startswith(api.url)
    assert [one["name"] for one in ask("GET", next_page).json()["droplets"]] == ["d-2"]


@pytest.mark.parametrize(
    ("method", "path", "options", "reason"),
    [
        ("POST", "tags", {"data": b"{", "headers": {"Content-Type": "application/json"}}, "the body is not JSON"),
        ("POST", "tags", {"data": {"name": "lab"}}, "content type is not application/json"),
        ("POST", "tags", {"data": iter([b"{}"])}, "chunked"),
        ("GET", "droplets?page=1&page=2", {}, "repeated"),
        ("GET", "volumes", {}, "unknown path"),
        ("OPTIONS", "tags", {}, "unknown method"),
        ("HEAD", "tags", {}, "unknown method"),
        ("TRACE", "tags", {}, "no request of a known method"),
    ],
)
def test_what_the_model_does_not_know_is_recorded(clock, method, path, options, reason):
    with LocalDigitalOcean(Account(clock=clock, tokens={TOKEN: None})) as server:
        status = ask(method, server.url + path, **options).status_code

    assert status in (400, 404, 501)
    [line] = server.unexpected
    assert reason in line


def test_a_broken_backend_is_an_error_of_the_model_not_of_the_client(clock):
    class Broken(NoMachines):
        def start(self, droplet, user_data, public_keys):
            raise RuntimeError("no room")

        def stop(self, droplet_id):
            self.stopped.append(droplet_id)

    account = Account(clock=clock, tokens={TOKEN: None}, machines=Broken(), behaviour=PROMPT)
    with LocalDigitalOcean(account) as server:
        status = ask("POST", server.url + "droplets", json=DROPLET).status_code

    assert status == 500
    assert server.unexpected == ["POST /v2/droplets: the local API failed: RuntimeError: no room"]


def test_leaving_ends_idle_connections_threads_and_machines(clock):
    account = Account(clock=clock, tokens={TOKEN: None}, behaviour=PROMPT)
    before = set(threading.enumerate())
    with LocalDigitalOcean(account) as server:
        idle = http.client.HTTPConnection("127.0.0.1", urlsplit(server.url).port, timeout=GIVE_UP_S)
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        idle.request("POST", "/v2/droplets", body=json.dumps(DROPLET), headers=headers)
        assert idle.getresponse().read()

    assert set(threading.enumerate()) <= before
    assert account.machines.stopped == account.machines.started
    assert len(account.machines.stopped) == 1
    idle.close()
    with pytest.raises(requests.ConnectionError):
        ask("GET", f"http://127.0.0.1:{idle.port}/v2/account")


# --- faults -----------------------------------------------------------------------------------------------------------


def test_an_accepted_create_whose_answer_is_lost(api, send):
    api.faults.add("POST", DROPLETS, CloseAfter())

    with pytest.raises(requests.ConnectionError):
        send("POST", "droplets", json={**DROPLET, "tags": ["run"]})

    assert list(api.account.inventory().droplets.values()) == ["lab-1"]
    assert (api.requests[0].status, api.requests[0].account_status) == (None, 202)
    found = [send("GET", "droplets?tag_name=run").json()["droplets"] for _ in range(2)]
    assert [len(droplets) for droplets in found] == [0, 1]


def test_a_connection_closed_before_anything_happened(api, send):
    api.faults.add("POST", DROPLETS, CloseBefore())

    with pytest.raises(requests.ConnectionError):
        send("POST", "droplets", json=DROPLET)

    assert api.account.inventory().is_empty
    assert (api.requests[0].status, api.requests[0].account_status) == (None, None)
    assert send("POST", "droplets", json=DROPLET).status_code == 202


@pytest.mark.parametrize("handled", [False, True])
def test_a_page_of_html_in_place_of_the_answer(api, send, handled):
    api.faults.add("POST", DROPLETS, bad_gateway(handled=handled))

    answer = send("POST", "droplets", json=DROPLET)

    assert answer.status_code == 502
    assert answer.headers["content-type"] == "text/html"
    assert "ratelimit-limit" not in answer.headers
    assert b"<html>" in answer.content
    assert api.account.inventory().is_empty is not handled


def test_errors_by_number_of_occurrence(api, send):
    api.faults.add("GET", r"^/v2/account", Error(status=500), nth=2, times=2)
    api.faults.add("GET", r"^/v2/account", Reply(status=503, body={"id": "unavailable"}), nth=4)

    answers = [send("GET", "account") for _ in range(5)]

    assert [answer.status_code for answer in answers] == [200, 500, 500, 503, 200]
    assert answers[1].json()["id"] == "server_error"
    assert "ratelimit-remaining" in answers[1].headers
    assert answers[3].json() == {"id": "unavailable"}


@pytest.mark.parametrize("seconds", [None, 7])
def test_429_with_and_without_retry_after_on_the_second_page(api, send, seconds):
    api.account.behaviour = PROMPT
    fill(api, 3)
    api.faults.add("GET", r"[?&]page=2(&|$)", TooMany(retry_after_s=seconds))

    first = send("GET", "droplets?per_page=2")
    second = send("GET", "droplets?per_page=2&page=2")

    assert (first.status_code, second.status_code) == (200, 429)
    assert second.headers.get("retry-after") == (None if seconds is None else "7")
    assert second.headers["ratelimit-remaining"] == "0"
    assert second.json()["id"] == "too_many_requests"


@pytest.mark.parametrize("handled", [False, True])
def test_a_withheld_answer(api, send, handled):
    hang = Hang(handled=handled)
    api.faults.add("POST", DROPLETS, hang)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(send("POST", "droplets", json=DROPLET)))
    thread.start()
    assert hang.arrived.wait(GIVE_UP_S)

    assert api.account.inventory().is_empty is not handled
    assert api.requests[0].status is None
    hang.release()
    thread.join()
    assert [answer.status_code for answer in answers] == [202]
    assert len(api.account.inventory().droplets) == 1


def test_closing_ends_a_withheld_answer(clock):
    hang, errors = Hang(handled=True), []
    with LocalDigitalOcean(Account(clock=clock, tokens={TOKEN: None})) as server:
        server.faults.add("GET", "/v2/account", hang)
        url = server.url + "account"

        def wait_for_it():
            try:
                ask("GET", url)
            except requests.ConnectionError as error:
                errors.append(error)

        thread = threading.Thread(target=wait_for_it)
        thread.start()
        assert hang.arrived.wait(GIVE_UP_S)
    thread.join()

    assert len(errors) == 1


def test_a_client_that_gives_up_waiting_breaks_nothing(api, send):
    hang = Hang(handled=True)
    api.faults.add("POST", DROPLETS, hang)
    with pytest.raises(requests.ReadTimeout):
        send("POST", "droplets", json=DROPLET, timeout=(GIVE_UP_S, 0.2))
    assert hang.arrived.wait(GIVE_UP_S)

    hang.release()

    assert send("GET", "account").status_code == 200
    assert len(api.account.inventory().droplets) == 1


def test_a_slow_answer_is_still_the_right_one(api, send):
    api.faults.add("GET", "/v2/account", Slow(seconds=0.05))

    assert send("GET", "account").json()["account"]["status"] == "active"


def test_a_fault_that_never_fired_is_told(api, send):
    api.faults.add("GET", "/v2/account", Error(status=500), nth=2)
    send("GET", "account")
    send("POST", "tags", json={"name": "lab"})

    assert api.faults.unused() == ["GET /v2/account: Error fired 0 of 1 times"]
    assert send("GET", "account").status_code == 500
    assert api.faults.unused() == []


@pytest.mark.parametrize("wrong", [{"nth": 0}, {"times": 0}])
def test_a_fault_that_cannot_fire_is_refused(api, wrong):
    with pytest.raises(ValueError, match="count from 1"):
        api.faults.add("GET", "/v2/account", CloseBefore(), **wrong)


# --- the real library -------------------------------------------------------------------------------------------------


def until(condition):
    """Ask again, as often as any of the delays here can need."""
    assert any(condition() for _ in range(10))


# The library calls jsonpickle in a way that a later jsonpickle will read differently.
@pytest.mark.filterwarnings("ignore:keys will default to True:DeprecationWarning")
def test_python_digitalocean_goes_through_the_whole_life_of_a_droplet(api, library):
    manager = library.Manager()
    assert manager.get_account().droplet_limit == 500
    assert {size.slug for size in manager.get_all_sizes()} >= {"s-2vcpu-4gb"}
    assert "fra1" in {region.slug for region in manager.get_all_regions()}
    assert "ubuntu-24-04-x64" in {image.slug for image in manager.get_distro_images()}
    library.Tag(name="lab").create()
    key = library.SSHKey(name="lab", public_key=public_key(1))
    key.create()
    rules = [library.InboundRule(protocol="tcp", ports="22", sources=library.Sources(addresses=["203.0.113.9"]))]
    out = [
        library.OutboundRule(protocol=protocol, ports=ports, destinations=library.Destinations(addresses=["::/0"]))
        for protocol, ports in (("tcp", "all"), ("udp", "all"), ("icmp", ""))
    ]
    wall = library.Firewall(name="lab-wall", inbound_rules=rules, outbound_rules=out, tags=["lab"])
    wall.create()
    droplet = library.Droplet(
        name="lab-1", region="fra1", image="ubuntu-24-04-x64", size_slug="s-2vcpu-4gb", ssh_keys=[key.id],
        tags=["lab"], user_data="#cloud-config\n",
    )  # fmt: skip
    droplet.create()

    assert droplet.load().status == "new"
    assert droplet.ip_address is None
    until(lambda: droplet.load().status == "active")
    until(lambda: wall.load().status == "succeeded" and wall.pending_changes == [])
    assert droplet.ip_address == "192.0.2.1"
    assert [action.status for action in droplet.get_actions()] == ["completed"]
    assert manager.get_all_firewalls()[0].outbound_rules[2].ports == "0"
    until(lambda: manager.get_all_droplets(tag_name="lab"))
    assert droplet.destroy() is True

    def is_gone():
        try:
            manager.get_droplet(droplet.id)
        except library.NotFoundError:
            return True
        return False

    until(is_gone)
    assert all(thing.destroy() is True for thing in (manager.get_all_sshkeys()[0], wall))
    assert library.Tag(name="lab").delete() is True
    assert api.account.inventory().is_empty
    assert any(call.path == "/v2/account/keys/" and call.query == {"per_page": "200"} for call in api.requests)


def test_python_digitalocean_follows_the_pages(api, library):
    api.account.behaviour = PROMPT
    fill(api, 201)

    assert len(library.Manager().get_all_droplets()) == 201
    assert [call.query.get("page") for call in api.requests] == [None, "2"]


def test_python_digitalocean_shows_the_faults_that_it_is_known_for(api, library):
    """A 429 on page 2 gives a silently short list; HTML gives JSONReadError; a duplicate key shows the API's text."""
    api.account.behaviour = PROMPT
    fill(api, 201)
    api.faults.add("GET", r"[?&]page=2(&|$)", TooMany())
    api.faults.add("GET", r"/v2/account/?($|\?)", bad_gateway())

    assert len(library.Manager().get_all_droplets()) == 200
    with pytest.raises(JSONReadError):
        library.Manager().get_account()
    library.SSHKey(name="lab", public_key=public_key(1)).create()
    with pytest.raises(digitalocean.DataReadError, match="SSH Key is already in use on your account"):
        library.SSHKey(name="lab", public_key=public_key(1)).create()


def test_python_digitalocean_deletes_by_tag(api, library):
    api.account.behaviour = PROMPT
    api.account.handle("POST", "/v2/droplets", {}, {**DROPLET, "tags": ["lab"]}, TOKEN)

    assert library.Manager().get_data("droplets?tag_name=lab", type="DELETE") is True
    assert api.account.inventory().droplets == {}


def test_a_firewall_of_the_library_reads_back_what_was_sent(api, library):
    api.account.handle(
        "POST", "/v2/firewalls", {}, {"name": "w1", "inbound_rules": [SSH_FROM_ONE], "outbound_rules": ALL_OUT}, TOKEN
    )

    [wall] = library.Manager().get_all_firewalls()

    assert [(rule.protocol, rule.ports, rule.sources.addresses) for rule in wall.inbound_rules] == [
        ("tcp", "22", ["203.0.113.9"])
    ]
    assert wall.outbound_rules[0].ports == "0"
