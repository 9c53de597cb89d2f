"""The DigitalOcean provider against the account in memory: order, checks, failures at every step, leftovers."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lab import processes
from lab.model import Interrupted, LabError, LeftBehind, NodeError, UsageError
from lab.providers import folders
from lab.providers.digitalocean import address
from lab.providers.digitalocean import provider as provider_module
from lab.providers.digitalocean.api import ApiAmbiguous, ApiRefused
from lab.providers.digitalocean.user_data import SSH_DROP_IN, cloud_config
from lab.secrets import Secrets
from lab.ssh_keys import make_key_pair
from tests.cloud_bench import HOUR_S, NAME, START_S, TOKEN, Cloud, Owner
from tests.cloud_processes import address_service
from tests.digitalocean_api import (
    ALL_SCOPES,
    Behaviour,
    CloseAfter,
    CloseBefore,
    Delay,
    Error,
    Hang,
    Reply,
    TooMany,
    bad_gateway,
)

MADE = ["tags", "firewalls", "keys", "droplets"]
CHECK_SCOPES = {
    "account:read", "sizes:read", "regions:read", "image:read", "droplet:read", "firewall:read", "ssh_key:read",
    "tag:read", "droplet:delete", "firewall:delete", "ssh_key:delete", "tag:delete",
}  # fmt: skip


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    # A droplet has no process here; to look for some takes most of the time. So does a registry with too many keys.
    monkeypatch.setattr(processes, "marked", lambda folder: [])
    monkeypatch.setattr(provider_module, "SECRETS", Secrets())


@pytest.fixture
def cloud(tmp_path):
    return Cloud(tmp_path)


# --- what a node is made of -------------------------------------------------------------------------------------------


def test_the_firewall_is_there_before_the_droplet(cloud):
    cloud.create()

    assert cloud.posts() == MADE
    assert cloud.holds() == {"tag": 1, "firewall": 1, "key": 1, "droplet": 1}


def test_everything_carries_the_name_and_the_tag_that_were_decided_before(cloud):
    cloud.create()
    tag, firewall, key, droplet = (call.body for call in cloud.wire.calls if call.method == "POST")

    assert tag == {"name": NAME.tag}
    assert (firewall["name"], firewall["tags"]) == (str(NAME), [NAME.tag])
    assert (key["name"], key["public_key"].split()[2:]) == (str(NAME), [NAME.tag])
    assert (droplet["name"], droplet["tags"]) == (str(NAME), [NAME.tag])
    assert droplet["ssh_keys"] == list(cloud.account.keys)
    assert {name: droplet[name] for name in ("size", "region", "image")} == {
        "size": "s-2vcpu-4gb", "region": "fra1", "image": "ubuntu-24-04-x64",
    }  # fmt: skip
    assert droplet["with_droplet_agent"] is False


@pytest.mark.parametrize("given", ["198.51.100.7", "198.51.100.7/32"])
def test_the_firewall_lets_in_ssh_from_one_address_only_and_everything_out(cloud, given):
    cloud.create(cloud.provider(allow_from=given, ssh_port=2022))
    (firewall,) = cloud.account.firewalls.values()

    assert firewall.inbound == [{"protocol": "tcp", "ports": "2022", "sources": {"addresses": ["198.51.100.7/32"]}}]
    assert [(rule["protocol"], rule["ports"]) for rule in firewall.outbound] == [
        ("tcp", "0"), ("udp", "0"), ("icmp", "0"),
    ]  # fmt: skip
    assert all(rule["destinations"] == {"addresses": ["0.0.0.0/0", "::/0"]} for rule in firewall.outbound)


def test_size_region_and_image_are_those_of_the_flags(cloud):
    node = cloud.create(cloud.provider(size="s-4vcpu-8gb", region="ams3", image="debian-13-x64"))
    (droplet,) = cloud.account.droplets.values()

    assert (droplet.size["slug"], droplet.region["slug"], droplet.image["slug"]) == (
        "s-4vcpu-8gb", "ams3", "debian-13-x64",
    )  # fmt: skip
    assert (node.facts["vcpus"], node.facts["memory_mib"]) == ("4", "8192")
    assert node.facts["droplet"] == str(droplet.id)


def test_an_image_may_be_ordered_by_its_number(cloud):
    cloud.create(cloud.provider(image="155133621"))

    assert cloud.holds()["droplet"] == 1


def test_waits_for_active_an_address_and_the_firewall_before_it_connects(tmp_path):
    slow = Behaviour(
        active_after=Delay(polls=3, seconds=40), addressed_after=Delay(polls=2, seconds=10),
        firewall_applied_after=Delay(polls=4, seconds=70),
    )  # fmt: skip
    cloud = Cloud(tmp_path, slow)
    node = cloud.create()

    # FakeAccess.connect looks at status, address and rules.
    assert cloud.clock() - START_S >= 70
    assert cloud.access.hosts == [node.host]


def test_the_node_comes_with_the_connection_that_was_proved_and_with_no_other(cloud):
    node = cloud.create()

    (host,) = cloud.access.hosts
    assert node.host is host
    assert (host.connects, host.closes) == (1, 0)
    stored, facts = folders.read_node(folders.find(cloud.cache, node.id, "digitalocean"))
    assert stored.address == host.address, "the key after the rotation is the one that is kept"
    assert facts == node.facts


def test_files_of_a_node_are_for_the_user_alone(cloud):
    node = cloud.create()

    assert node.folder.stat().st_mode & 0o077 == 0
    assert (node.folder / "id_ed25519").stat().st_mode & 0o777 == 0o600


def test_what_was_made_is_written_down_before_the_next_thing_is_ordered(cloud):
    noted = {}

    def note(number, method, target):
        if method == "POST":
            (path,) = cloud.cache.glob("nodes/*/cloud.json")
            noted[target.rstrip("/").rpartition("/")[2]] = json.loads(path.read_text())

    cloud.wire.plan = note
    cloud.create()

    assert noted["tags"] == {"name": str(NAME), "droplets": [], "keys": [], "firewalls": []}
    assert len(noted["keys"]["firewalls"]) == 1
    assert (len(noted["droplets"]["firewalls"]), len(noted["droplets"]["keys"])) == (1, 1)


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "ä", "a b", "a\n"])
def test_a_name_that_no_droplet_can_have_is_refused_before_anything_is_made(cloud, name):
    with pytest.raises(UsageError, match="no name for a droplet"):
        cloud.create(name=name)
    assert cloud.posts() == []
    assert cloud.folders() == []


def test_an_expiry_that_was_never_decided_is_refused(cloud):
    with pytest.raises(UsageError, match="no name"):
        cloud.create(hours=-START_S / HOUR_S)
    assert cloud.posts() == []


# --- what is asked before money is spent ------------------------------------------------------------------------------


def refused_early(cloud, error, match, **options):
    """Both check and create end in one clear error, with nothing ordered."""
    for action in (lambda provider: provider.check(1), cloud.create):
        with pytest.raises(error, match=match) as caught:
            action(cloud.provider(**options))
        assert "\n" not in str(caught.value)
        assert TOKEN not in str(caught.value)
    assert cloud.posts() == []
    assert cloud.folders() == []


def test_no_token(tmp_path):
    cloud = Cloud(tmp_path)
    provider = cloud.provider(api=cloud.api())
    provider._made_api, provider._token = None, ""

    with pytest.raises(UsageError, match="DIGITALOCEAN_TOKEN"):
        provider.check(1)


def test_bad_token(cloud):
    refused_early(cloud, ApiRefused, "token is wrong", token="dop_v1_of_somebody_else")


@pytest.mark.parametrize("scope", sorted(CHECK_SCOPES))
def test_a_scope_that_would_be_missed_too_late(tmp_path, scope):
    cloud = Cloud(tmp_path, tokens={TOKEN: ALL_SCOPES - {scope}})
    refused_early(cloud, NodeError, f"scope {scope}")


@pytest.mark.parametrize("scope", sorted(ALL_SCOPES - CHECK_SCOPES))
def test_no_droplet_is_paid_for_without_any_other_scope(tmp_path, scope):
    cloud = Cloud(tmp_path, tokens={TOKEN: ALL_SCOPES - {scope}})
    error = None
    try:
        node = cloud.create()
    except ApiRefused as refused:
        error = refused
    if error is not None:
        assert "needs the scope" in str(error)
        assert cloud.account.machines.started == []
        assert cloud.account.inventory().is_empty
        assert cloud.folders() == []
    else:
        assert scope in ("vpc:read", "firewall:update", "droplet:update", "tag:update")
        cloud.provider().destroy(node)


def test_the_scopes_of_the_readme_are_enough(tmp_path):
    from tests.guests import ROOT

    text = (ROOT / "README.md").read_text()
    scopes = {
        f"{kind}:{verb}"
        for part in text[text.index("The token needs these scopes") :].split("\n\n")[0].split("`")[1::2]
        for kind, _, verbs in [part.partition(":")]
        for verb in verbs.split(",")
    }
    assert "account:read" in scopes
    cloud = Cloud(tmp_path, tokens={TOKEN: scopes})
    node = cloud.create()
    cloud.provider().destroy(node)
    assert cloud.account.inventory().is_empty


def test_locked_account(cloud):
    cloud.account.status, cloud.account.status_message = "locked", "unpaid bill"
    refused_early(cloud, NodeError, "locked: unpaid bill")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"size": "s-3vcpu"}, "--size s-3vcpu: no such size; there are .*s-2vcpu-4gb"),
        ({"region": "mars1"}, "--region mars1: not available; there are .*fra1"),
        ({"region": "nyc2"}, "--region nyc2: not available"),
        ({"size": "s-1vcpu-512mb-10gb"}, "not to be had in fra1; try ams3, nyc1, sfo3"),
        ({"image": "debian-99-x64"}, "--image debian-99-x64: no such image"),
        ({"image": "../account"}, "--image ../account: no such image"),
        ({"allow_from": "198.51.100.0/24"}, "--allow-from 198.51.100.0/24: that would let in 256 addresses"),
    ],
)
def test_what_cannot_be_ordered(cloud, options, match):
    refused_early(cloud, UsageError, match, **options)


def test_a_size_that_is_sold_out(cloud):
    cloud.account.catalogue.sizes["s-2vcpu-4gb"]["available"] = False
    refused_early(cloud, UsageError, "not to be had at the moment")


def test_droplet_limit(tmp_path):
    cloud = Cloud(tmp_path, droplet_limit=2)
    owner = Owner(cloud.account)
    owner.droplet("web-1")
    cloud.provider().check(1)
    owner.droplet("web-2")
    cloud.account.handle("GET", "/v2/droplets", {}, None, TOKEN)
    refused_early(cloud, NodeError, "2 of 2 droplets: `lab gc`")


def test_no_public_address(cloud, monkeypatch):
    # Port 9: nobody answers.
    monkeypatch.setattr(address, "SERVICES", ("http://127.0.0.1:9/a", "http://127.0.0.1:9/b"))
    refused_early(cloud, NodeError, "public address could not be found out .*--allow-from ADDRESS", allow_from=None)


def test_an_address_is_read_as_it_was_sent(monkeypatch):
    monkeypatch.setattr(address, "TIMEOUT_S", 60.0)
    with address_service() as url:
        assert address.public_address(url) == "127.0.0.1"


def test_the_api_is_away(cloud):
    cloud.wire.plan = lambda number, method, target: CloseBefore()
    refused_early(cloud, NodeError, "ConnectionResetError.*Nothing was changed")


def test_no_nodes_ask_nothing(cloud):
    cloud.provider().check(0)

    assert cloud.wire.calls == []


def test_the_check_asks_once_however_many_nodes(cloud):
    provider = cloud.provider()
    provider.check(1)
    before = len(cloud.wire.calls)
    provider.check(2)
    provider.hourly_price()

    assert len(cloud.wire.calls) == before
    assert not [call for call in cloud.wire.calls if call.method == "DELETE" and call.status != 404]


def test_the_price_is_the_one_of_the_catalogue(cloud):
    assert cloud.provider().hourly_price() == Decimal("0.03571")
    assert cloud.provider(size="s-8vcpu-16gb").hourly_price() == Decimal("0.14286")


# --- failure at every step --------------------------------------------------------------------------------------------

LAGS = Behaviour(
    listed_after=Delay(seconds=20), unlisted_after=Delay(seconds=15), tag_listed_after=Delay(seconds=25),
    tag_unlisted_after=Delay(seconds=20), active_after=Delay(polls=3, seconds=30), gone_after=Delay(polls=2, seconds=8),
)  # fmt: skip

FAULTS = {
    "refused": lambda: Error(status=403, message="You are not authorized to perform this operation"),
    "invalid": lambda: Error(status=422, message="a value is wrong"),
    "internal error": lambda: Error(status=500),
    "html, not done": bad_gateway,
    "html, but done": lambda: bad_gateway(handled=True),
    "lost before": CloseBefore,
    "lost after": CloseAfter,
    "hangs, not done": lambda: Hang(handled=False),
    "hangs, but done": lambda: Hang(handled=True),
    "busy": TooMany,
    "busy for long": lambda: TooMany(retry_after_s=70),
    "other answer": lambda: Reply(status=200, body={"links": {}, "meta": {"total": 0}}),
    "other answer, but done": lambda: Reply(status=200, body={}, handled=True),
    "redirect": lambda: Reply(status=302, body=b"", headers={"location": "https://example.com/"}),
}


def undisturbed(tmp_path, behaviour):
    cloud = Cloud(tmp_path / "undisturbed", behaviour)
    cloud.create()
    return cloud.wire.calls


def created_or_not(cloud):
    """The node, or the error."""
    try:
        return cloud.create(), None
    except LabError as error:
        return None, error


@pytest.mark.parametrize("behaviour", [Behaviour(), LAGS], ids=["quick", "lags"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.e2e)])
def test_one_fault_at_any_request_leaves_nothing_or_a_whole_node(tmp_path, stride, fault, behaviour):
    outcomes = Counter()
    calls = list(enumerate(undisturbed(tmp_path, behaviour), start=1))
    if behaviour is LAGS:
        # Lists that lag make a difference from the first create on.
        calls = calls[[call.method for _, call in calls].index("POST") :]
    for at, call in calls[list(FAULTS).index(fault) % stride :: stride]:  # Together they miss no request.
        cloud = Cloud(tmp_path / str(at), behaviour)
        effect = FAULTS[fault]()
        cloud.wire.plan = lambda number, *_, at=at, effect=effect: effect if number == at else None
        where = f"{fault} at request {at}, {call}"
        node, error = created_or_not(cloud)
        if node is None:
            assert not isinstance(error, LeftBehind), f"{where}: {error}"
            assert cloud.account.inventory().is_empty, f"{where}: {error}"
            assert cloud.folders() == [], where
            outcomes["error"] += 1
        else:
            assert cloud.holds() == {"tag": 1, "firewall": 1, "key": 1, "droplet": 1}, where
            cloud.provider().destroy(node)
            outcomes["node"] += 1
        assert max(Counter(cloud.posts()).values(), default=0) <= 2, where
        assert len(cloud.account.machines.started) <= 1, where
        cloud.clock.advance(HOUR_S)
        assert cloud.account.inventory().is_empty, where
        assert cloud.account.inventory().fading == {}, where
    assert sum(outcomes.values()) >= 12 // stride
    print(f"{fault}: {dict(outcomes)}")


@pytest.mark.parametrize("fault", ["lost after", "html, but done", "hangs, but done", "other answer, but done"])
@pytest.mark.parametrize("what", MADE)
def test_a_create_whose_answer_is_lost_is_looked_for_and_never_repeated(tmp_path, fault, what):
    cloud = Cloud(tmp_path, LAGS)
    lost = [FAULTS[fault]()]
    cloud.wire.plan = lambda number, method, target: (
        lost.pop() if lost and method == "POST" and target.rstrip("/").endswith(what) else None
    )
    if what == "tags":
        with pytest.raises(ApiAmbiguous):
            cloud.create()
        assert cloud.account.inventory().is_empty
    else:
        cloud.create()
        assert cloud.holds() == {"tag": 1, "firewall": 1, "key": 1, "droplet": 1}
    assert lost == []
    assert cloud.posts().count(what) == 1


def test_a_create_that_was_lost_on_the_way_is_looked_for_once_and_given_up(cloud):
    cloud.wire.plan = lambda number, method, target: CloseBefore() if target == "/v2/droplets" else None
    before = cloud.clock()
    with pytest.raises(NodeError, match=r"it is not listed.*nothing is made twice"):
        cloud.create()

    assert cloud.clock() - before < 60, "what was looked for in vain is not looked for a second time"
    assert cloud.posts() == MADE
    assert cloud.account.inventory().is_empty


@pytest.mark.parametrize("seconds", [0, 20, 40])
def test_a_droplet_of_an_interrupted_request_is_found_when_it_shows_up(tmp_path, seconds):
    cloud = Cloud(tmp_path, Behaviour(tag_listed_after=Delay(seconds=seconds), listed_after=Delay(seconds=seconds)))

    def interrupt(number, method, target):
        if target == "/v2/droplets" and method == "POST":
            cloud.wire.on_change = stop

    def stop():
        cloud.wire.on_change = lambda: None
        raise Interrupted("stopped by SIGINT")

    cloud.wire.plan = interrupt
    with pytest.raises(Interrupted):
        cloud.create()

    assert len(cloud.account.machines.started) == 1
    assert cloud.account.inventory().is_empty
    assert cloud.folders() == []


def test_a_droplet_is_found_although_the_first_look_for_it_fails(tmp_path):
    cloud = Cloud(tmp_path, Behaviour(tag_listed_after=Delay(seconds=30)))
    faults = {"POST": [CloseAfter()], "GET": [Error(status=403, message="not now")]}

    def plan(number, method, target):
        looks = target == "/v2/droplets" if method == "POST" else target.startswith("/v2/droplets?tag_name=")
        return faults[method].pop() if looks and faults.get(method) else None

    cloud.wire.plan = plan
    with pytest.raises(NodeError, match="not now"):
        cloud.create()

    assert len(cloud.account.machines.started) == 1
    assert cloud.account.inventory().is_empty


def test_a_known_droplet_is_deleted_before_anything_is_listed(cloud):
    cloud.access.failures["connect"] = Interrupted("stopped by SIGTERM")
    with pytest.raises(Interrupted):
        cloud.create()
    last = max(number for number, call in enumerate(cloud.wire.calls) if call.path.startswith("/v2/firewalls/"))
    (number,) = cloud.account.machines.started
    first = next(
        call
        for call in cloud.wire.calls[[c.method for c in cloud.wire.calls].index("POST") :]
        if call.method == "DELETE"
    )

    assert last
    assert first.target == f"/v2/droplets/{number}"
    assert cloud.clock() == pytest.approx(START_S, abs=60)


@pytest.mark.parametrize("step", ["connect", "prove_closed", "virtualization"])
@pytest.mark.parametrize("error", [NodeError("no"), Interrupted("stopped"), KeyboardInterrupt(), OSError("disk full")])
def test_a_droplet_that_cannot_be_used_is_removed_and_its_connection_closed(cloud, step, error):
    cloud.access.failures[step] = error
    with pytest.raises(type(error)) as caught:
        cloud.create()

    assert caught.value is error
    assert cloud.account.inventory().is_empty
    assert cloud.folders() == []
    assert all(host.connects == host.closes for host in cloud.access.hosts)
    assert len(cloud.access.hosts) == (0 if step == "connect" else 1)


def test_a_firewall_that_fails_to_be_applied(cloud):
    cloud.account.failing_firewalls = 1
    with pytest.raises(NodeError, match=r"firewall .* could not be applied"):
        cloud.create()
    assert cloud.access.hosts == []
    assert cloud.account.inventory().is_empty


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(active_after=Delay(polls=10_000)), Behaviour(addressed_after=Delay(polls=10_000)),
        Behaviour(firewall_applied_after=Delay(polls=10_000)),
    ],
    ids=["never active", "never an address", "firewall never applied"],
)  # fmt: skip
def test_what_never_comes_is_given_up_in_time(tmp_path, behaviour):
    cloud = Cloud(tmp_path, behaviour)
    # A droplet that stays `new` refuses deletes; here it is the waiting that is looked at.
    cloud.account.behaviour = Behaviour(
        active_after=behaviour.active_after, addressed_after=behaviour.addressed_after,
        firewall_applied_after=behaviour.firewall_applied_after, delete_while_pending="taken",
    )  # fmt: skip
    with pytest.raises(NodeError, match="gave up waiting"):
        cloud.create()
    assert 400 <= cloud.clock() - START_S < 450
    assert cloud.account.inventory().is_empty


@pytest.mark.parametrize(
    "wrong",
    [{"size_slug": "s-1vcpu-1gb"}, {"region": {"slug": "nyc1"}}, {"image": {"slug": "debian-12-x64"}}],
    ids=["size", "region", "image"],
)
def test_another_machine_than_the_one_that_was_ordered(cloud, wrong, monkeypatch):
    shown = cloud.account.handle

    def handle(method, path, query, body, token):
        status, headers, answer = shown(method, path, query, body, token)
        if method == "GET" and answer and "droplet" in answer:
            answer["droplet"] |= wrong
        return status, headers, answer

    monkeypatch.setattr(cloud.account, "handle", handle)
    with pytest.raises(NodeError, match="ordered was"):
        cloud.create()
    assert cloud.access.hosts == []
    assert cloud.account.inventory().is_empty


def test_a_tag_that_could_not_even_be_made_leaves_nothing_to_remove(tmp_path):
    cloud = Cloud(tmp_path, tokens={TOKEN: ALL_SCOPES - {"tag:create"}})
    with pytest.raises(ApiRefused, match="tag:create"):
        cloud.create()
    posted = [call.method for call in cloud.wire.calls].index("POST")
    assert cloud.wire.calls[posted + 1 :] == []


# --- user data --------------------------------------------------------------------------------------------------------


def test_user_data_hold_the_pinned_key_and_no_other_secret(cloud):
    node = cloud.create()
    (droplet,) = cloud.account.droplets.values()
    data = yaml.safe_load(droplet.user_data)

    assert droplet.user_data.startswith("#cloud-config\n")
    assert len(droplet.user_data.encode()) < 4096
    private = data["ssh_keys"]["ed25519_private"]
    assert private.startswith("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    assert private.endswith("-----END OPENSSH PRIVATE KEY-----\n")
    assert droplet.user_data.count("PRIVATE KEY") == 2
    assert TOKEN not in droplet.user_data
    own = (node.folder / "id_ed25519").read_text()
    # The first line after the header is the same in every such key.
    assert not set(own.splitlines()[2:-1]) & set(map(str.strip, droplet.user_data.splitlines()))
    assert private not in own
    assert (data["ssh_pwauth"], data["disable_root"]) == (False, False)
    assert "write_files" not in data


@given(st.integers(1, 65535), st.text("abcdefghijklmnopqrstuvwxyz0123456789-_:", min_size=1, max_size=300))
def test_user_data_say_exactly_what_was_given(port, comment):
    private, public = make_key_pair(comment)
    text = cloud_config(host_private=private, host_public=public, ssh_port=port)
    data = yaml.safe_load(text)

    assert data["ssh_keys"] == {"ed25519_private": private, "ed25519_public": public.strip()}
    assert len(text.encode()) < 64 * 1024
    ports = [entry["content"] for entry in data.get("write_files", []) if entry["path"] == SSH_DROP_IN]
    assert ports == ([] if port == 22 else [f"Port 22\nPort {port}\n"])


def test_a_key_without_its_last_line_end_is_refused():
    private, public = make_key_pair("x")
    with pytest.raises(ValueError, match="line end"):
        cloud_config(host_private=private.rstrip("\n"), host_public=public, ssh_port=22)
