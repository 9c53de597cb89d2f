"""The client of the DigitalOcean API against a scripted server: calls, pages and what is repeated.

The real library speaks real HTTP; nothing of it is replaced.
"""

from __future__ import annotations

import contextlib
import dataclasses
from decimal import Decimal
from urllib.parse import urlsplit

import pytest
from digitalocean.baseapi import BaseAPI

from lab.model import UsageError
from lab.providers.digitalocean.api import (
    Account,
    Api,
    ApiAmbiguous,
    ApiError,
    ApiNotFound,
    ApiUnavailable,
    Droplet,
    Firewall,
    Key,
    Size,
    Tag,
)
from tests.digitalocean_script import (
    BROKEN,
    BUSY,
    DROP,
    DROPLET,
    FIREWALL,
    GONE,
    HTML,
    KEY,
    ORDER,
    SIZE,
    TOKEN,
    USER_DATA,
    Clock,
    Reply,
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


# --- records and requests ---------------------------------------------------------------------------------------------


def test_the_library_still_has_the_method_that_is_overridden():
    assert callable(vars(BaseAPI)["_BaseAPI__perform_request"])


def test_account_sizes_and_regions(server, api):
    account = {"droplet_limit": 25, "email": "a@b.example", "status": "active", "status_message": "", "team": {}}
    server.expect("GET", "account", Reply(body={"account": account}))
    server.expect("GET", "sizes", one_page("sizes", SIZE))
    regions = [{"slug": "fra1", "available": True, "sizes": []}, {"slug": "nyc2", "available": False, "sizes": []}]
    server.expect("GET", "regions", one_page("regions", *regions))

    assert api.account() == Account(droplet_limit=25, status="active", status_message="")
    assert api.sizes() == [
        Size(slug="s-2vcpu-4gb", vcpus=2, memory_mib=4096, price_hourly=Decimal("0.03571"), regions=("fra1",),
             available=True)
    ]  # fmt: skip
    assert api.regions() == {"fra1": True, "nyc2": False}
    assert api.calls == 3
    assert {request.headers["authorization"] for request in server.seen} == {f"Bearer {TOKEN}"}


def test_an_image_is_there_or_not(server, api):
    server.expect("GET", "images/ubuntu-24-04-x64", Reply(body={"image": {"id": 7, "slug": "ubuntu-24-04-x64"}}))
    server.expect("GET", "images/no%2Fsuch", GONE)

    assert api.image_exists("ubuntu-24-04-x64")
    assert not api.image_exists("no/such")


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_would_mean_the_whole_list_is_refused(api, name):
    for call in (api.image_exists, api.delete_firewall, api.delete_tag):
        with pytest.raises(UsageError):
            call(name)
    assert api.calls == 0


def test_a_droplet_has_the_public_address_though_the_private_one_comes_first(server, api):
    server.expect("GET", "droplets/31", Reply(body={"droplet": DROPLET}))

    assert api.droplet(31) == Droplet(
        id=31, name="lab-a", status="active", public_ip="203.0.113.9", tags=("lab", "lab:run"), size="s-2vcpu-4gb",
        region="fra1", image="ubuntu-24-04-x64", vcpus=2, memory_mib=4096, created_at="2026-11-30T10:00:00Z",
    )  # fmt: skip


def test_a_droplet_is_ordered_as_asked(server, api):
    answer = {"droplet": {"id": 31, "status": "new"}, "links": {"actions": [{"id": 1, "rel": "create"}]}}
    server.expect("POST", "droplets", Reply(status=202, body=answer))

    assert api.create_droplet(**ORDER) == 31
    assert server.seen[0].body == {
        "name": "lab-a", "region": "fra1", "size": "s-2vcpu-4gb", "image": "ubuntu-24-04-x64", "ssh_keys": [5],
        "tags": ["lab", "lab:run"], "user_data": USER_DATA, "with_droplet_agent": False,
    }  # fmt: skip


def test_a_firewall_lets_one_port_in_and_everything_out(server, api):
    server.expect("POST", "firewalls", Reply(status=202, body={"firewall": FIREWALL}))

    made = api.create_firewall(name="lab-a", tag="lab:run", ssh_port=2222, allow_from="198.51.100.7/32")

    assert made == Firewall(
        id="bb4b2611-3d72", name="lab-a", status="waiting", pending=1, tags=("lab:run",),
        inbound=(("tcp", "22", ("198.51.100.7/32",)),),
    )  # fmt: skip
    out = {"addresses": ["0.0.0.0/0", "::/0"]}
    assert server.seen[0].body == {
        "name": "lab-a",
        "tags": ["lab:run"],
        "inbound_rules": [{"protocol": "tcp", "ports": "2222", "sources": {"addresses": ["198.51.100.7/32"]}}],
        "outbound_rules": [
            {"protocol": "tcp", "ports": "all", "destinations": out},
            {"protocol": "udp", "ports": "all", "destinations": out},
            {"protocol": "icmp", "destinations": out},
        ],
    }


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_firewall_on_no_port_or_on_all_is_not_asked_for(api, port):
    with pytest.raises(UsageError, match=str(port)):
        api.create_firewall(name="n", tag="t", ssh_port=port, allow_from="198.51.100.7/32")


def test_keys_and_tags(server, api):
    tag = {"name": "lab:run", "resources": {"count": 2, "droplets": {"count": 1}}}
    server.expect("GET", "account/keys", one_page("ssh_keys", KEY))
    server.expect("POST", "account/keys", Reply(status=201, body={"ssh_key": KEY}))
    server.expect("GET", "tags", one_page("tags", tag))
    server.expect("POST", "tags", Reply(status=201, body={"tag": tag}))
    key = Key(id=5, name="lab-a", public_key="ssh-ed25519 AAAA lab")

    assert api.keys() == [key]
    assert api.create_key("lab-a", "ssh-ed25519 AAAA lab") == key
    assert api.tags() == [Tag(name="lab:run", resources=2)]
    api.create_tag("lab:run")
    assert [request.body for request in server.seen if request.method == "POST"] == [
        {"name": "lab-a", "public_key": "ssh-ed25519 AAAA lab"},
        {"name": "lab:run"},
    ]


def test_every_delete_takes_both_done_and_gone(server, api):
    for path in ("droplets/31", "firewalls/bb4b", "account/keys/5", "tags/lab:run"):
        server.expect("DELETE", path, Reply(status=204), GONE)

    for _ in range(2):
        api.delete_droplet(31)
        api.delete_firewall("bb4b")
        api.delete_key(5)
        api.delete_tag("lab:run")

    assert api.calls == 8


def test_a_missing_object_is_its_own_error(server, api):
    server.expect("GET", "droplets/31", GONE)

    with pytest.raises(ApiNotFound, match=r"GET /v2/droplets/31: status 404, not_found, The resource") as caught:
        api.droplet(31)

    assert (caught.value.status, caught.value.error_id, api.calls) == (404, "not_found", 1)


@pytest.mark.parametrize("name", ["status", "tags"])
def test_a_missing_field_is_named(server, api, name):
    server.expect("GET", "droplets", one_page("droplets", {key: DROPLET[key] for key in DROPLET if key != name}))

    with pytest.raises(ApiError, match=rf"GET /v2/droplets: droplet\.{name} is missing") as caught:
        api.droplets()

    assert type(caught.value) is ApiError


# --- pages ------------------------------------------------------------------------------------------------------------


def droplet(number: int) -> dict[str, object]:
    return {**DROPLET, "id": number}


def test_all_pages_are_read_with_the_tag(server, api):
    server.expect(
        "GET", "droplets",
        *server.pages("droplets", "droplets", [droplet(1), droplet(2)], [droplet(3)], [droplet(4)]),
    )  # fmt: skip

    assert [found.id for found in api.droplets("lab:run")] == [1, 2, 3, 4]
    assert [request.query for request in server.seen] == [
        {"tag_name": ["lab:run"], "page": [str(number)], "per_page": ["200"]} for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("links", [..., {}, None, {"pages": {}}, {"pages": None}])
def test_no_links_mean_one_page(server, api, links):
    body = {"droplets": [droplet(1)], "links": links}
    server.expect("GET", "droplets", Reply(body={name: part for name, part in body.items() if part is not ...}))

    assert [found.id for found in api.droplets()] == [1]


def test_a_busy_second_page_is_asked_again(server, api, clock):
    first, second = server.pages("account/keys", "ssh_keys", [KEY], [{**KEY, "id": 6}])
    server.expect("GET", "account/keys", first, BUSY, BUSY, second)

    found = api.keys()

    assert [key.id for key in found] == [5, 6]
    assert clock.sleeps == [1, 2]


def test_a_second_page_that_never_comes_is_no_short_list(server, api, clock):
    first, _ = server.pages("droplets", "droplets", [droplet(1)], [droplet(2)])
    server.expect("GET", "droplets", first, *[BROKEN] * 8)

    with pytest.raises(ApiUnavailable, match=r"GET /v2/droplets: status 500, server_error, .*Asked 8 times") as caught:
        api.droplets()

    assert (caught.value.status, caught.value.error_id, caught.value.request_id) == (500, "server_error", "r-1")
    assert clock.sleeps == [1, 2, 4, 8, 16, 30, 29]


@pytest.mark.parametrize("body", [{"droplets": None}, {"links": {}}, {"droplets": {}}, {"droplets": [[]]}])
def test_a_second_page_without_its_list_is_an_error(server, api, body):
    first, _ = server.pages("droplets", "droplets", [droplet(1)], [])
    server.expect("GET", "droplets", first, Reply(body=body))

    with pytest.raises(ApiError, match=r"answer\.droplets"):
        api.droplets()


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        ("http://203.0.113.1/v2/droplets?page=2", "another place"),
        ("https://{host}/v2/droplets?page=2", "another place"),
        ("http://{host}/v2/droplets?page=1", "later page"),
        ("http://{host}/v2/droplets", "later page"),
        ("http://{host}/v2/droplets?page=-2", "later page"),
        ("http://[", "not a URL"),
        (7, "another place"),
    ],
)
def test_a_link_to_another_place_or_back_is_an_error(server, api, link, reason):
    following = link.format(host=urlsplit(server.origin).netloc) if isinstance(link, str) else link
    server.expect("GET", "droplets", Reply(body={"droplets": [], "links": {"pages": {"next": following}}}))

    with pytest.raises(ApiError, match=reason):
        api.droplets()


# --- repeats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [BUSY, BROKEN, HTML, DROP, Reply(status=503, body=""), Reply(status=408, body={})])
def test_a_read_and_a_delete_survive_a_passing_fault(server, api, clock, fault):
    server.expect("GET", "tags", fault, one_page("tags"))
    server.expect("DELETE", "droplets/31", fault, Reply(status=204))

    assert api.tags() == []
    api.delete_droplet(31)
    assert (api.calls, clock.sleeps) == (4, [1, 1])


@pytest.mark.parametrize("fault", [Reply(body="<html>"), Reply(body=[]), Reply(status=204), Reply(body={"links": [1]})])
def test_a_read_is_repeated_after_a_garbled_answer(server, api, fault):
    server.expect("GET", "tags", fault, one_page("tags"))

    assert api.tags() == []


def test_a_read_is_repeated_after_an_answer_that_is_cut_short(server, api):
    server.expect("GET", "tags", dataclasses.replace(one_page("tags"), fault="cut"), one_page("tags"))

    assert api.tags() == []


def test_the_api_says_how_long_to_wait(server, api, clock):
    burst = dataclasses.replace(BUSY, headers={"retry-after": "42", "ratelimit-reset": "1"})
    now = dataclasses.replace(BUSY, headers={"retry-after": "0"})
    strange = dataclasses.replace(BUSY, headers={"retry-after": "soon"})
    server.expect("GET", "tags", burst, now, strange, one_page("tags"))

    api.tags()

    assert clock.sleeps == [42, 1, 4]


def test_a_wait_beyond_the_time_allowed_is_not_begun(server, api, clock):
    server.expect("GET", "tags", dataclasses.replace(BUSY, headers={"retry-after": "91"}))

    with pytest.raises(ApiUnavailable, match=r"status 429, too_many_requests, .*asks to wait 91 s"):
        api.tags()
    assert clock.sleeps == []


def test_without_time_for_repeats_one_request_is_made(server, clock):
    api = Api(TOKEN, f"{server.origin}/v2/", retry_s=0, sleep=clock.sleep, clock=clock)
    server.expect("GET", "tags", HTML)

    with pytest.raises(ApiUnavailable, match=r"status 502, a body that is not the API's JSON \(text/html, \d+ bytes\)"):
        api.tags()
    api.close()


def test_a_delete_whose_effect_stays_unknown_says_so(server, api):
    server.expect("DELETE", "droplets/31", DROP, *[BUSY] * 7)

    with pytest.raises(ApiAmbiguous, match="DELETE /v2/droplets/31: status 429"):
        api.delete_droplet(31)


def test_a_delete_that_was_never_taken_up_is_not_ambiguous(server, api):
    server.expect("DELETE", "droplets/31", *[BUSY] * 8)

    with pytest.raises(ApiUnavailable):
        api.delete_droplet(31)


def test_a_lost_delete_is_asked_again_and_finds_nothing(server, api):
    server.expect("DELETE", "droplets/31", DROP, GONE)

    api.delete_droplet(31)


@pytest.mark.parametrize(
    "fault",
    [DROP, BROKEN, HTML, Reply(status=408, body={}), Reply(status=202, body="<html>"), Reply(status=202, body={}),
     Reply(status=202, body={"droplet": {}}), Reply(status=202, body=""), Reply(status=204),
     Reply(status=202, body={"droplet": {"id": 31}}, fault="cut"),
     Reply(status=303, headers={"location": "/v2/droplets/31"})],
)  # fmt: skip
def test_a_create_whose_effect_is_unknown_is_asked_once(server, api, clock, fault):
    server.expect("POST", "droplets", fault)

    with pytest.raises(ApiAmbiguous, match=r"POST /v2/droplets: .*[Ll]ook for it"):
        api.create_droplet(**ORDER)

    assert (len(server.seen), api.calls, clock.sleeps) == (1, 1, [])


def test_a_create_waits_while_the_api_is_busy(server, api, clock):
    server.expect("POST", "droplets", BUSY, BUSY, Reply(status=202, body={"droplet": {"id": 31}}))

    assert api.create_droplet(**ORDER) == 31
    assert clock.sleeps == [1, 2]


def test_a_create_that_the_api_never_took_is_not_ambiguous(server, api):
    server.expect("POST", "tags", *[BUSY] * 8)

    with pytest.raises(ApiUnavailable, match="Nothing was changed"):
        api.create_tag("lab:run")
