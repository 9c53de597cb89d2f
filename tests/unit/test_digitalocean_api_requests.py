"""The local DigitalOcean API, in process: tokens, pages, request limits, unknown requests, and firewalls."""

from __future__ import annotations

import dataclasses
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.digitalocean_api import ALL_SCOPES, PROMPT, Behaviour, Delay, InboundRule, RateLimits
from tests.digitalocean_api.client import ALL_OUT, DROPLET, SSH_FROM_ONE, Api


@pytest.fixture
def api():
    return Api()


# --- tokens and scopes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "", "token-of-the-tes", "other"])
def test_a_bad_token_is_401(api, token):
    status, headers, body = api.whole("GET", "account", token=token)

    assert (status, body["id"]) == (401, "unauthorized")
    assert "ratelimit-limit" in headers


def test_a_missing_scope_is_403_and_nothing_is_made():
    for scope in ("droplet:create", "droplet:read", "regions:read", "sizes:read", "actions:read", "image:read"):
        api = Api(scopes=ALL_SCOPES - {scope})
        assert api.refused("droplets", DROPLET)[0] == 403, scope
        assert api.account.inventory().is_empty


def test_tagging_a_droplet_needs_a_scope_of_its_own():
    api = Api(scopes=ALL_SCOPES - {"tag:create"})
    api.droplet()

    assert api.refused("droplets", {**DROPLET, "tags": ["lab"]})[0] == 403
    assert api.account.inventory().tags == ()


def test_missing_read_scopes_hide_fields():
    def shown(scopes):
        api = Api(scopes=scopes)
        return api.get(f"droplets/{api.droplet(tags=['lab'])}")["droplet"]

    assert set(shown(ALL_SCOPES)) - set(shown(ALL_SCOPES - {"tag:read", "vpc:read"})) == {"tags", "vpc_uuid"}


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "account", "account:read"), ("GET", "account/keys", "ssh_key:read"),
        ("DELETE", "account/keys/5", "ssh_key:delete"), ("GET", "droplets", "droplet:read"),
        ("DELETE", "droplets/5", "droplet:delete"), ("GET", "firewalls", "firewall:read"),
        ("DELETE", "firewalls/5", "firewall:delete"), ("GET", "tags", "tag:read"), ("DELETE", "tags/a", "tag:delete"),
        ("GET", "sizes", "sizes:read"), ("GET", "regions", "regions:read"), ("GET", "images", "image:read"),
    ],
)  # fmt: skip
def test_every_request_has_its_scope(method, path, scope):
    assert Api(scopes=ALL_SCOPES - {scope}).call(method, path)[0] == 403
    assert Api(scopes={scope}).call(method, path)[0] in (200, 404)


# --- pages ------------------------------------------------------------------------------------------------------------


def sweep(api, path, key, **query):
    """All items by following the links, and the page sizes."""
    items, sizes, links = [], [], None
    while links is None or "next" in links:
        if links is not None:
            target = urlsplit(links["next"])
            assert f"{target.scheme}://{target.netloc}{target.path}" == f"https://api.digitalocean.com/v2/{path}"
            query = dict(parse_qsl(target.query))
        answer = api.get(path, **query)
        items += answer[key]
        sizes.append(len(answer[key]))
        links = answer["links"].get("pages", {})
        assert answer["meta"]["total"] >= len(items)
    assert answer["meta"]["total"] == len(items)
    return items, sizes


@given(count=st.integers(0, 45), per_page=st.none() | st.integers(1, 200), tagged=st.booleans())
def test_the_union_of_all_pages_is_the_account(count, per_page, tagged):
    api = Api(droplet_limit=100)
    made = [api.droplet(name=f"d-{number}", tags=["all"]) for number in range(count)]
    query = {"per_page": per_page} if per_page else {}

    items, sizes = sweep(api, "droplets", "droplets", **query, **({"tag_name": "all"} if tagged else {}))

    assert [item["id"] for item in items] == made
    assert all(size == (per_page or 20) for size in sizes[:-1])
    assert len(sizes) == max(1, -(-count // (per_page or 20)))


@given(polls=st.integers(0, 3), per_page=st.integers(1, 7))
def test_one_sweep_sees_one_state_of_the_list(polls, per_page):
    """Lag is counted by sweeps, so a droplet neither appears nor fades between two pages of the same one."""
    api = Api(dataclasses.replace(PROMPT, listed_after=Delay(polls=polls), active_after=Delay(polls=polls)))
    made = [api.droplet(name=f"d-{number}") for number in range(7)]

    seen = [sweep(api, "droplets", "droplets", per_page=per_page)[0] for _ in range(polls + 1)]

    assert [len(items) for items in seen] == [0] * polls + [len(made)]
    assert len({item["status"] for items in seen for item in items}) == 1


def test_links_of_the_first_a_middle_and_the_last_page():
    api = Api(droplet_limit=100)
    for number in range(5):
        api.droplet(name=f"d-{number}")

    links = [api.get("droplets", per_page=2, page=page)["links"]["pages"] for page in (1, 2, 3)]

    assert [set(one) for one in links] == [{"next", "last"}, {"first", "prev", "next", "last"}, {"first", "prev"}]
    assert links[0]["next"] == "https://api.digitalocean.com/v2/droplets?per_page=2&page=2"
    assert api.get("droplets")["links"] == {}
    assert api.get("droplets", page=9)["droplets"] == []


# --- request limits ---------------------------------------------------------------------------------------------------


def test_every_answer_carries_the_limit_headers():
    api = Api(limits=RateLimits())
    for status, (method, path, body) in {
        200: ("GET", "account", None), 201: ("POST", "tags", {"name": "a"}), 202: ("POST", "droplets", DROPLET),
        204: ("DELETE", "tags/a", {}), 404: ("GET", "tags/b", None), 422: ("POST", "tags", {"name": "a b"}),
    }.items():  # fmt: skip
        answered, headers, _ = api.whole(method, path, body)
        assert answered == status
        assert {"ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"} <= set(headers)
        assert headers["ratelimit-limit"] == "5000"
    assert headers["ratelimit-remaining"] == "4994"
    assert int(headers["ratelimit-reset"]) == api.clock.now + 3600


def test_listing_keys_is_refused_the_eleventh_time_in_a_minute():
    api = Api(limits=RateLimits())
    statuses = []
    for _ in range(11):
        statuses.append(api.status("account/keys"))
        api.clock.now += 5

    assert statuses == [200] * 10 + [429]
    assert api.status("account/keys/5") == 404
    assert api.status("droplets") == 200
    status, headers, body = api.whole("GET", "account/keys")
    assert (status, body["id"]) == (429, "too_many_requests")
    assert "retry-after" not in headers
    api.account.behaviour = dataclasses.replace(PROMPT, key_limit_tells_retry_after=True)
    assert api.whole("GET", "account/keys")[1]["retry-after"] == "5"
    api.clock.now += 5
    assert api.status("account/keys") == 200


def test_the_limit_by_the_minute_tells_when_to_come_back_and_that_by_the_hour_does_not():
    api = Api(limits=RateLimits(per_minute=3, per_hour=5))
    assert [api.status("tags") for _ in range(4)] == [200, 200, 200, 429]
    _, headers, _ = api.whole("GET", "tags")
    assert (headers["retry-after"], headers["ratelimit-remaining"]) == ("60", "0")

    api.clock.now += 60
    assert [api.status("tags") for _ in range(3)] == [200, 200, 429]
    _, headers, _ = api.whole("GET", "tags")
    assert "retry-after" not in headers
    assert headers["ratelimit-remaining"] == "0"
    api.clock.now = int(headers["ratelimit-reset"])
    assert api.status("tags") == 200


# --- what the model does not know -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "query", "body", "status", "reason"),
    [
        ("GET", "volumes", {}, None, 404, "unknown path"),
        ("GET", "droplets/1/kernels", {}, None, 404, "unknown path"),
        ("PATCH", "droplets", {}, None, 400, "unknown method"),
        ("DELETE", "firewalls", {}, None, 400, "unknown method"),
        ("GET", "droplets", {"tag": "a"}, None, 400, "unknown query parameter 'tag'"),
        ("GET", "account", {"page": "1"}, None, 400, "unknown query parameter 'page'"),
        ("GET", "droplets", {"tag_name": ""}, None, 400, "query parameter 'tag_name' is empty"),
        ("GET", "droplets", {"tag_name": "a", "name": "b"}, None, 400, "tag_name cannot be combined"),
        ("GET", "droplets", {"per_page": "201"}, None, 400, "out of range"),
        ("GET", "droplets", {"per_page": "0"}, None, 400, "out of range"),
        ("GET", "droplets", {"page": "x"}, None, 400, "out of range"),
        ("GET", "tags", {}, {"a": 1}, 400, "body that is not empty"),
        ("DELETE", "droplets", {}, {}, 400, "without tag_name"),
        ("DELETE", "droplets/5", {"tag_name": "a"}, {}, 400, "unknown query parameter"),
        ("POST", "droplets", {}, None, 400, "no JSON object"),
        ("POST", "droplets", {}, {**DROPLET, "nmae": "x"}, 400, "unknown body field 'nmae'"),
        ("POST", "droplets", {}, {**DROPLET, "tags": "a"}, 400, "'tags' must be of kind list"),
        ("POST", "droplets", {}, {**DROPLET, "name": None}, 400, "'name' must be of kind text"),
        ("POST", "droplets", {}, {**DROPLET, "ssh_keys": [True]}, 400, "must be of kind text or integer"),
        ("POST", "droplets", {"page": "1"}, DROPLET, 400, "unknown query parameter"),
        ("POST", "tags", {}, {"name": "a", "resources": []}, 400, "unknown body field 'resources'"),
    ],
)
def test_an_unknown_request_fails_loudly(api, method, path, query, body, status, reason):
    answered, _, answer = api.whole(method, path, body, **query)

    assert answered == status
    assert reason in answer["message"]
    [line] = api.account.unexpected
    assert line.startswith(f"{method} /v2/{path}: ")
    assert reason in line


def test_a_trailing_slash_and_an_empty_body_are_what_the_library_sends(api):
    number = api.droplet()

    assert api.status("droplets/") == 200
    assert api.get(f"droplets/{number}/", per_page=200)["droplet"]["id"] == number
    assert api.call("DELETE", f"droplets/{number}/", {})[0] == 204


# --- firewalls --------------------------------------------------------------------------------------------------------

SSH_RULE = InboundRule("tcp", "22", ("203.0.113.9",))


def tagged(api):
    api.post("tags", {"name": "lab"})
    return api.firewall(tags=["lab"])


def state(api, wall):
    firewall = api.get(f"firewalls/{wall}")["firewall"]
    return firewall["status"], [(one["droplet_id"], one["removing"]) for one in firewall["pending_changes"]]


def test_a_firewall_waits_with_pending_changes_then_succeeds():
    api = Api(dataclasses.replace(Behaviour(), active_after=Delay()))
    number = api.droplet(tags=["lab"])
    wall = api.firewall(tags=["lab"])

    assert api.account.machines.rules == {number: None}
    assert [state(api, wall) for _ in range(2)] == [("waiting", [(number, False)])] * 2
    assert state(api, wall) == ("succeeded", [])
    assert api.account.machines.rules == {number: [SSH_RULE]}


def test_a_droplet_of_a_settled_tag_firewall_is_never_open():
    api = Api(Behaviour())
    wall = tagged(api)
    for _ in range(3):
        state(api, wall)

    number = api.droplet(tags=["lab"])

    assert api.account.machines.rules == {number: [SSH_RULE]}
    assert state(api, wall) == ("waiting", [(number, False)])


@pytest.mark.parametrize("settled", [False, True])
def test_it_is_open_when_the_firewall_had_not_settled_or_covers_late(settled):
    api = Api(dataclasses.replace(Behaviour(), boot_is_firewalled=not settled))
    wall = tagged(api)
    for _ in range(3 if settled else 0):
        state(api, wall)

    number = api.droplet(tags=["lab"])

    assert api.account.machines.rules == {number: None}
    assert [state(api, wall)[0] for _ in range(3)] == ["waiting", "waiting", "succeeded"]
    assert api.account.machines.rules == {number: [SSH_RULE]}


def test_a_droplet_of_another_tag_is_open_and_one_by_number_is_not(api):
    tagged(api)
    api.get("firewalls")
    other = api.droplet(tags=["other"])
    assert api.account.machines.rules == {other: None}

    api.firewall(name="by-number", droplet_ids=[other], inbound_rules=[])

    assert api.account.machines.rules == {other: []}


def test_several_firewalls_add_up_and_an_empty_one_shuts_everything(api):
    number = api.droplet(tags=["lab"])
    api.firewall(name="shut", tags=["lab"], inbound_rules=None)
    assert api.account.machines.rules[number] == []

    wall = api.firewall(tags=["lab"])
    assert api.account.machines.rules[number] == [SSH_RULE]
    api.delete(f"firewalls/{wall}")
    assert api.account.machines.rules[number] == []


def test_deleting_the_tag_opens_the_droplet_and_so_does_deleting_the_firewall(api):
    numbers = [api.droplet(tags=[tag]) for tag in ("lab", "other")]
    first, second = api.firewall(name="first", tags=["lab"]), api.firewall(name="second", tags=["other"])
    assert [api.account.machines.rules[number] for number in numbers] == [[SSH_RULE], [SSH_RULE]]

    api.delete("tags/lab")
    api.delete(f"firewalls/{second}")

    assert api.get(f"firewalls/{first}")["firewall"]["tags"] == []
    assert [api.account.machines.rules[number] for number in numbers] == [None, None]
    assert api.call("DELETE", f"firewalls/{second}")[0] == 404
    assert api.status(f"firewalls/{second}") == 404


def test_leaving_a_firewall_is_a_pending_change_too():
    api = Api(dataclasses.replace(PROMPT, firewall_applied_after=Delay(polls=1)))
    number = api.droplet(tags=["lab"])
    wall = api.firewall(tags=["lab"])
    assert [state(api, wall)[0] for _ in range(2)] == ["waiting", "succeeded"]

    api.delete("tags/lab")

    assert api.account.machines.rules[number] == [SSH_RULE]
    assert state(api, wall) == ("waiting", [(number, True)])
    assert state(api, wall) == ("succeeded", [])
    assert api.account.machines.rules[number] is None


def test_a_failing_firewall_is_never_in_force(api):
    number = api.droplet(tags=["lab"])
    api.account.failing_firewalls = 1
    wall = api.firewall(tags=["lab"])

    assert state(api, wall) == ("failed", [(number, False)])
    assert api.account.machines.rules[number] is None
    assert state(api, api.firewall(name="second", tags=["lab"])) == ("succeeded", [])


def test_a_droplet_that_is_gone_leaves_no_pending_change():
    api = Api(dataclasses.replace(PROMPT, firewall_applied_after=Delay(polls=1)))
    number = api.droplet()
    api.listed()
    wall = api.firewall(droplet_ids=[number])
    api.delete(f"droplets/{number}")

    assert state(api, wall) == ("waiting", [])
    assert api.get(f"firewalls/{wall}")["firewall"]["droplet_ids"] == []


def test_all_ports_and_icmp_come_back_as_zero_and_empty_targets_are_left_out(api):
    sources = {"addresses": ["198.51.100.0/24", "::/0"], "tags": [], "droplet_ids": [], "load_balancer_uids": []}
    rules = [
        {"protocol": "tcp", "ports": "all", "sources": sources},
        {"protocol": "icmp", "sources": sources},
        {"protocol": "icmp", "ports": "", "sources": sources},
        {"protocol": "udp", "ports": "8000-9000", "sources": {}},
        {"protocol": "tcp", "ports": "65535", "action": "allow", "sources": sources},
    ]
    wall = api.firewall(inbound_rules=rules, droplet_ids=[api.droplet()])
    shown = api.get(f"firewalls/{wall}")["firewall"]["inbound_rules"]

    assert [rule["ports"] for rule in shown] == ["0", "0", "0", "8000-9000", "65535"]
    assert shown[0] == {"protocol": "tcp", "ports": "0", "sources": {"addresses": ["198.51.100.0/24", "::/0"]}}
    assert shown[3]["sources"] == {}
    [applied] = api.account.machines.rules.values()
    assert [rule[:2] for rule in applied] == [("tcp", "all"), ("icmp", "all"), ("icmp", "all"), ("tcp", "65535")]
    api.account.behaviour = dataclasses.replace(PROMPT, rules_carry_action=True)
    assert api.get(f"firewalls/{wall}")["firewall"]["inbound_rules"][0]["action"] == "allow"


POSITIVE = "You must specify a positive value for ports"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ports": "0"}, POSITIVE),
        ({"protocol": "icmp", "ports": "all"}, POSITIVE),
        ({"protocol": "icmp", "ports": "0"}, POSITIVE),
        ({"protocol": "icmp", "ports": "22"}, POSITIVE),
        ({"ports": "0-5"}, POSITIVE),
        ({"ports": ""}, "valid value"),
        ({"ports": None}, "valid value"),
        ({"ports": "65536"}, "valid value"),
        ({"ports": "9000-8000"}, "valid value"),
        ({"ports": "22,80"}, "valid value"),
        ({"protocol": "sctp"}, "valid protocol"),
        ({"sources": None}, "sources"),
        ({"sources": {"addresses": ["home"]}}, "invalid address"),
        ({"sources": {"addresses": ["203.0.113.9/33"]}}, "invalid address"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_with_422(api, changes, message):
    body = {"name": "wall", "inbound_rules": [{**SSH_FROM_ONE, **changes}], "outbound_rules": ALL_OUT}

    status, said = api.refused("firewalls", body)

    assert status == 422
    assert message in said
    assert api.account.inventory().is_empty


def test_empty_ports_for_icmp_may_be_refused_too(api):
    api.account.behaviour = dataclasses.replace(PROMPT, icmp_ports_may_be_empty=False)
    rule = {"protocol": "icmp", "ports": "", "sources": {"addresses": ["::/0"]}}

    assert api.refused("firewalls", {"name": "wall", "inbound_rules": [rule]}) == (422, POSITIVE)


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"tags": ["lab"]}, 422, "tag lab does not exist"),
        ({"droplet_ids": [5]}, 422, "droplet 5 does not exist"),
        ({"name": "a_b"}, 422, "invalid firewall name"),
        ({"name": "a"}, 422, "invalid firewall name"),
        ({"name": "-a"}, 422, "invalid firewall name"),
        ({"name": "taken"}, 409, "duplicate name"),
        ({"inbound_rules": [], "outbound_rules": None}, 422, "at least one"),
        ({"inbound_rules": [SSH_FROM_ONE] * 50}, 422, "at most 50 rules"),
        ({"tags": list("abcdef")}, 422, "at most 10 droplets and 5 tags"),
    ],
)
def test_a_firewall_that_cannot_be_is_refused(api, changes, status, message):
    api.firewall(name="taken")
    body = {"name": "wall", "inbound_rules": [SSH_FROM_ONE], "outbound_rules": ALL_OUT, **changes}

    answered, said = api.refused("firewalls", body)

    assert answered == status
    assert message in said
    assert list(api.account.inventory().firewalls.values()) == ["taken"]


def test_put_resets_what_is_left_out_and_refuses_the_zero_that_get_shows():
    api = Api(dataclasses.replace(PROMPT, firewall_applied_after=Delay(polls=1)))
    number = api.droplet(tags=["lab"])
    wall = api.firewall(tags=["lab"])
    shown = [api.get(f"firewalls/{wall}")["firewall"] for _ in range(2)][1]
    sent = {name: shown[name] for name in ("name", "inbound_rules", "outbound_rules", "tags")}
    assert api.refused(f"firewalls/{wall}", sent, method="PUT") == (422, POSITIVE)
    assert state(api, wall) == ("succeeded", [])

    status, answer = api.call("PUT", f"firewalls/{wall}", {"name": "wall", "inbound_rules": [SSH_FROM_ONE]})

    assert (status, answer["firewall"]["tags"], answer["firewall"]["outbound_rules"]) == (200, [], [])
    assert state(api, wall) == ("waiting", [(number, True)])
    assert state(api, wall) == ("succeeded", [])
    assert api.account.machines.rules[number] is None


def test_a_firewall_without_droplets_waits_too_after_every_change():
    api = Api(dataclasses.replace(PROMPT, firewall_applied_after=Delay(polls=1)))
    wall = tagged(api)
    assert [state(api, wall) for _ in range(2)] == [("waiting", []), ("succeeded", [])]

    api.call("PUT", f"firewalls/{wall}", {"name": "renamed", "inbound_rules": [SSH_FROM_ONE], "tags": ["lab"]})

    assert [state(api, wall) for _ in range(2)] == [("waiting", []), ("succeeded", [])]
    assert list(api.account.inventory().firewalls.values()) == ["renamed"]


def test_changed_rules_are_in_force_once_settled_and_the_old_ones_until_then():
    api = Api(dataclasses.replace(PROMPT, firewall_applied_after=Delay(polls=1)))
    number = api.droplet(tags=["lab"])
    wall = api.firewall(tags=["lab"])
    assert [state(api, wall)[0] for _ in range(2)] == ["waiting", "succeeded"]
    body = {"name": "wall", "inbound_rules": [{**SSH_FROM_ONE, "ports": "443"}], "tags": ["lab"]}

    api.call("PUT", f"firewalls/{wall}", body)

    assert api.account.machines.rules[number] == [SSH_RULE]
    assert [state(api, wall)[0] for _ in range(2)] == ["waiting", "succeeded"]
    assert api.account.machines.rules[number] == [InboundRule("tcp", "443", ("203.0.113.9",))]


@pytest.mark.parametrize(
    "rule",
    [
        {**SSH_FROM_ONE, "port": "22"},
        {**SSH_FROM_ONE, "action": "deny"},
        {**SSH_FROM_ONE, "ports": 22},
        {**SSH_FROM_ONE, "destinations": {}},
        {**SSH_FROM_ONE, "sources": {"address": []}},
        {**SSH_FROM_ONE, "sources": {"tags": ["lab"]}},
        {**SSH_FROM_ONE, "sources": ["203.0.113.9"]},
        "tcp:22",
    ],
)
def test_an_unknown_part_of_a_rule_fails_loudly(api, rule):
    status, _, _ = api.whole("POST", "firewalls", {"name": "wall", "inbound_rules": [rule]})

    assert status == 400
    assert len(api.account.unexpected) == 1
    assert api.account.inventory().is_empty
