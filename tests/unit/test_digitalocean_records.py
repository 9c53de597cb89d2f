"""Objects of the DigitalOcean API as records: what is needed is named when it is missing, what is foreign is let be."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.providers.digitalocean.errors import Problem, scope_of, shown
from lab.providers.digitalocean.records import Account, Droplet, FieldError, Firewall, Key, Size, Tag

V4 = [
    {"ip_address": "10.1.0.2", "type": "private", "gateway": "nil"},
    {"ip_address": "203.0.113.9", "type": "public", "gateway": "203.0.113.1"},
    {"ip_address": "203.0.113.10", "type": "public", "gateway": "203.0.113.1"},
]
DROPLET = {
    "id": 31, "name": "lab-a", "status": "active", "memory": 4096, "vcpus": 2, "size_slug": "s-2vcpu-4gb",
    "tags": ["lab"], "region": {"slug": "fra1"}, "image": {"slug": "ubuntu-24-04-x64"}, "networks": {"v4": V4},
    "created_at": "2026-11-30T10:00:00Z",
}  # fmt: skip
SIZE = {"slug": "s", "memory": 1, "vcpus": 1, "price_hourly": 0.03571, "regions": ["fra1"], "available": True}
FIREWALL = {
    "id": "bb4b", "name": "lab-a", "status": "succeeded", "pending_changes": [], "tags": ["lab"],
    "inbound_rules": [{"protocol": "tcp", "ports": "22", "sources": {"addresses": ["198.51.100.7/32"]}}],
}  # fmt: skip
ACCOUNT = {"droplet_limit": 25, "status": "active", "status_message": " "}
KEY = {"id": 5, "name": "lab-a", "public_key": "ssh-ed25519 AAAA lab"}
TAG = {"name": "lab", "resources": {"count": 2}}
KINDS = [(Account, ACCOUNT), (Size, SIZE), (Droplet, DROPLET), (Firewall, FIREWALL), (Key, KEY), (Tag, TAG)]
HAVE_A_NONE = {"image"}


def without(data, name):
    return {key: value for key, value in data.items() if key != name}


@pytest.mark.parametrize(
    ("kind", "data", "name"),
    [(kind, data, name) for kind, data in KINDS for name in data if name not in HAVE_A_NONE],
)
def test_each_needed_field_is_named_when_it_is_missing(kind, data, name):
    assert kind.from_json(data)

    with pytest.raises(FieldError, match=rf"\.{name} is missing"):
        kind.from_json(without(data, name))


@pytest.mark.parametrize(
    ("kind", "data", "name"),
    [(kind, data, name) for kind, data in KINDS for name in data if name not in HAVE_A_NONE],
)
def test_each_needed_field_is_named_when_it_is_of_another_type(kind, data, name):
    class Other:
        """No JSON type at all."""

    with pytest.raises(FieldError, match=name):
        kind.from_json({**data, name: Other()})


@pytest.mark.parametrize(("kind", "data"), KINDS)
def test_fields_that_no_record_knows_are_ignored(kind, data):
    assert kind.from_json({**data, "new_in_2027": {"a": [1]}}) == kind.from_json(data)


@pytest.mark.parametrize(("name", "scope"), [("tags", "tag:read"), ("droplet_limit", "droplet:read")])
def test_a_field_that_a_scope_hides_names_the_scope(name, scope):
    kind, data = (Droplet, DROPLET) if name == "tags" else (Account, ACCOUNT)

    with pytest.raises(FieldError, match=scope):
        kind.from_json(without(data, name))


@pytest.mark.parametrize(
    ("change", "public_ip", "image"),
    [
        ({}, "203.0.113.9", "ubuntu-24-04-x64"),
        ({"networks": {"v4": [], "v6": []}}, None, "ubuntu-24-04-x64"),
        ({"networks": {}}, None, "ubuntu-24-04-x64"),
        ({"networks": {"v4": None}}, None, "ubuntu-24-04-x64"),
        ({"networks": {"v4": V4[:1]}, "image": {"slug": None}}, None, None),
        ({"image": None}, "203.0.113.9", None),
        ({"image": ...}, "203.0.113.9", None),
    ],
)
def test_a_droplet_may_lack_an_address_and_an_image_slug(change, public_ip, image):
    data = {name: value for name, value in {**DROPLET, **change}.items() if value is not ...}

    found = Droplet.from_json(data)

    assert (found.public_ip, found.image) == (public_ip, image)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"id": True}, r"droplet\.id is of type bool, not int"),
        ({"id": "31"}, r"droplet\.id is of type str"),
        ({"memory": 4096.5}, r"droplet\.memory is of type float"),
        ({"tags": [1]}, r"droplet\.tags"),
        ({"networks": {"v4": ["203.0.113.9"]}}, r"droplet\.networks\.v4"),
        ({"networks": {"v4": [{"ip_address": "203.0.113.9"}]}}, r"type is missing"),
        ({"networks": {"v4": [{"type": "public"}]}}, r"ip_address is missing"),
        ({"region": {}}, r"droplet\.region\.slug is missing"),
        ({"image": {"slug": 7}}, r"droplet\.image\.slug"),
    ],
)
def test_a_strange_field_of_a_droplet_is_named(change, named):
    with pytest.raises(FieldError, match=named):
        Droplet.from_json({**DROPLET, **change})


@pytest.mark.parametrize(("price", "read"), [(0.03571, "0.03571"), (0.1, "0.1"), (1, "1"), (0, "0")])
def test_a_price_is_what_stood_in_the_answer(price, read):
    assert Size.from_json({**SIZE, "price_hourly": price}).price_hourly == Decimal(read)


@pytest.mark.parametrize("price", ["0.03", None, -0.01, float("nan"), float("inf"), True])
def test_what_is_no_price_is_refused(price):
    with pytest.raises(FieldError, match=r"size\.price_hourly"):
        Size.from_json({**SIZE, "price_hourly": price})


@pytest.mark.parametrize(
    ("change", "pending", "tags", "inbound"),
    [
        ({"pending_changes": [{"droplet_id": 1}, {"droplet_id": 2}]},
         2, ("lab",), (("tcp", "22", ("198.51.100.7/32",)),)),
        ({"tags": None, "inbound_rules": None}, 0, (), ()),
        ({"inbound_rules": [{"protocol": "icmp", "sources": {"tags": ["web"]}}]}, 0, ("lab",), (("icmp", "", ()),)),
        ({"inbound_rules": [{"protocol": "tcp", "ports": "0", "sources": {"addresses": ["0.0.0.0/0", "::/0"]}}]},
         0, ("lab",), (("tcp", "0", ("0.0.0.0/0", "::/0")),)),
    ],
)  # fmt: skip
def test_firewalls_of_all_shapes_are_read(change, pending, tags, inbound):
    found = Firewall.from_json({**FIREWALL, **change})

    assert (found.pending, found.tags, found.inbound) == (pending, tags, inbound)


@pytest.mark.parametrize(
    "rule", [{}, {"protocol": "tcp", "ports": "22"}, {"protocol": "tcp", "ports": 22, "sources": {}}]
)
def test_a_rule_that_cannot_be_read_is_refused(rule):
    with pytest.raises(FieldError, match=r"firewall\.inbound_rules"):
        Firewall.from_json({**FIREWALL, "inbound_rules": [rule]})


@given(st.binary())
def test_any_body_of_an_error_is_read(body):
    assert Problem.read(body, {}, []).message


TEXTS = st.text(max_size=20)
JSON = st.none() | st.integers() | TEXTS | st.lists(st.integers() | TEXTS, max_size=3)


@given(st.dictionaries(st.sampled_from(["id", "message", "request_id", "error", "messages"]), JSON))
def test_any_json_of_an_error_gives_printable_texts(data):
    problem = Problem.read(json.dumps(data).encode(), {}, [])

    assert "".join([problem.message, problem.error_id, problem.request_id or ""]).isprintable()


@given(st.text(), st.text(alphabet="0123456789abcdef", min_size=8), st.text())
def test_a_secret_is_masked_wherever_it_stands(before, secret, after):
    assert secret not in shown(before + secret + after, [secret])


def test_the_longer_of_two_secrets_is_masked_first():
    assert shown("x secret-and-more y", ["secret", "secret-and-more"]) == "x *** y"


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/v2/account", "account:read"),
        ("POST", "/v2/account/keys", "ssh_key:create"),
        ("DELETE", "/v2/account/keys/5", "ssh_key:delete"),
        ("GET", "/do/v2/images/ubuntu-24-04-x64", "image:read"),
        ("GET", "/v2/sizes", "sizes:read"),
    ],
)
def test_a_request_needs_its_scope(method, path, scope):
    assert scope_of(method, path) == scope
