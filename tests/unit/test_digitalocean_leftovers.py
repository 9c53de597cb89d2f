"""What stays of droplets, and how it goes: keep, attach, records, down and collect_garbage on the account in memory."""

from __future__ import annotations

import dataclasses
import json

import pytest

from lab import processes
from lab.model import Interrupted, LeftBehind, NodeError, UsageError
from lab.providers import folders
from lab.providers.digitalocean import inventory, names
from lab.providers.digitalocean import provider as provider_module
from lab.providers.digitalocean.inventory import Holdings
from lab.providers.digitalocean.names import CloudName
from lab.secrets import Secrets
from tests.cloud_bench import HOUR_S, NAME, START_S, TOKEN, Cloud, Owner
from tests.digitalocean_api import Behaviour, CloseBefore, Delay, Error, RateLimits, Reply, bad_gateway
from tests.ssh_server import SshServer

UNDELETABLE = [Error(status=500), Error(status=403, message="no"), CloseBefore(), bad_gateway()]


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    # A droplet has no process here; to look for some takes most of the time. So does a registry with too many keys.
    monkeypatch.setattr(processes, "marked", lambda folder: [])
    monkeypatch.setattr(provider_module, "SECRETS", Secrets())


@pytest.fixture
def cloud(tmp_path):
    return Cloud(tmp_path)


def abandon(cloud, node_id):
    """Let the owner of a node be dead."""
    path = cloud.cache / "nodes" / node_id / "owner.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": 1, "start_ticks": -1}))


# --- when something stays ---------------------------------------------------------------------------------------------


def failing_deletes(cloud, part, effect=None):
    cloud.wire.plan = lambda number, method, target: (
        effect or Error(status=500) if method == "DELETE" and part in target and "/0" not in target else None
    )


@pytest.mark.parametrize("effect", UNDELETABLE, ids=["500", "403", "no answer", "502 in html"])
def test_a_droplet_that_will_not_go_is_named_and_stays_behind_its_firewall(cloud, effect):
    node = cloud.create()
    (number,) = cloud.account.droplets
    failing_deletes(cloud, "/droplets/482", effect)
    with pytest.raises(LeftBehind) as caught:
        cloud.provider().destroy(node)

    text = str(caught.value)
    assert f"droplet {number}" in text
    assert node.id in text
    assert NAME.tag in text
    (firewall,) = cloud.account.firewalls
    assert firewall in text
    assert cloud.holds() == {"droplet": 1, "firewall": 1, "tag": 1}
    assert cloud.folders() == [node.id], "what is known of it stays, for a second try"

    cloud.wire.plan = lambda *_: None
    cloud.provider().down(node.id)
    assert cloud.account.inventory().is_empty
    assert cloud.folders() == []


@pytest.mark.parametrize(
    ("part", "kind"), [("/account/keys/44", "key"), ("/firewalls/8", "firewall"), ("/tags/node-lab:nlab", "tag")]
)
def test_anything_that_will_not_go_is_named(cloud, part, kind):
    node = cloud.create()
    failing_deletes(cloud, part)
    with pytest.raises(LeftBehind, match=rf"{kind} "):
        cloud.provider().destroy(node)
    assert cloud.holds() in ({kind: 1}, {kind: 1, "tag": 1})
    assert cloud.account.inventory().droplets == {}


def test_a_failed_create_that_leaves_something_tells_both(cloud):
    cloud.account.failing_firewalls = 1
    failing_deletes(cloud, "/droplets/482")
    with pytest.raises(LeftBehind, match=r"droplet 482000001(?s:.*)before that: firewall .* could not be applied"):
        cloud.create()
    assert cloud.folders() == ["upstream-v1.36.3-r1"]


def test_a_droplet_that_never_goes_is_given_up_and_named(tmp_path):
    cloud = Cloud(tmp_path, Behaviour(gone_after=Delay(polls=10_000)))
    node = cloud.create()
    with pytest.raises(LeftBehind, match=r"droplet 482000001.*still there after 300 s.*status active.*pending event"):
        cloud.provider().destroy(node)
    assert 300 <= cloud.clock() - START_S < 330
    assert cloud.holds() == {"firewall": 1, "tag": 1}, "what fades must not be open"


# --- when a deletion is refused for the moment ------------------------------------------------------------------------

BUSY = {
    "pending": Error(status=422, message="Droplet already has a pending event."),
    "conflict": Error(status=409, message="another change is being made"),
    "locked": Reply(status=423, body={"id": "locked", "message": "The resource is locked."}),
}


@pytest.mark.parametrize("answer", BUSY)
@pytest.mark.parametrize("part", ["/droplets/482", "/account/keys/44", "/firewalls/", "/tags/node-lab:nlab-up"])
def test_a_delete_that_is_refused_for_the_moment_is_sent_again(cloud, part, answer):
    node = cloud.create()
    refused = []

    def plan(number, method, target):
        if method == "DELETE" and part in target and len(refused) < 3:
            refused.append(target)
            return BUSY[answer]
        return None

    cloud.wire.plan = plan
    cloud.provider().destroy(node)
    assert len(refused) == 3
    assert cloud.account.inventory().is_empty
    assert cloud.folders() == []


def test_what_is_refused_for_ever_is_named_with_the_last_answer(cloud):
    node = cloud.create()
    failing_deletes(cloud, "/droplets/482", BUSY["pending"])
    text = r"still there after 300 s.*status active.*DELETE.*422, unprocessable_entity, Droplet already has a pending"
    with pytest.raises(LeftBehind, match=text):
        cloud.provider().destroy(node)
    assert 300 <= cloud.clock() - START_S < 330
    assert len([line for line in cloud.said if "cannot be deleted yet" in line]) == 1


@pytest.mark.parametrize(("part", "kind"), [("/account/keys/44", "key"), ("/firewalls/8", "firewall")])
def test_a_refusal_of_what_has_no_actions_is_given_up_sooner(cloud, part, kind):
    node = cloud.create()
    failing_deletes(cloud, part, BUSY["conflict"])
    with pytest.raises(LeftBehind, match=rf"{kind} .*status 409"):
        cloud.provider().destroy(node)
    assert cloud.clock() - START_S < 90


def test_gc_asks_again_for_a_lone_tag(cloud):
    tag = CloudName(node_id="a-1", expires_s=int(START_S - HOUR_S)).tag
    Owner(cloud.account).tag(tag)
    refusals = [BUSY["conflict"]]
    cloud.wire.plan = lambda number, method, target: refusals.pop() if method == "DELETE" and refusals else None

    assert cloud.provider().collect_garbage(dry_run=False) == [f"tag {tag}"]
    assert cloud.account.inventory().is_empty


@pytest.mark.parametrize("behaviour", ["refused", "ignored"])
def test_an_interrupt_while_the_droplet_is_being_made_leaves_nothing(tmp_path, behaviour):
    cloud = Cloud(tmp_path, Behaviour(active_after=Delay(polls=8, seconds=100), delete_while_pending=behaviour))

    def interrupt():
        if cloud.wire.calls[-1].method == "GET" and cloud.wire.calls[-1].path.startswith("/v2/droplets/"):
            cloud.wire.on_change = lambda: None
            raise Interrupted("stopped by SIGINT")

    cloud.wire.on_change = interrupt
    with pytest.raises(Interrupted):
        cloud.create()

    deletes = [call for call in cloud.wire.calls if call.method == "DELETE" and "/droplets/482" in call.target]
    assert {call.status for call in deletes[:8]} == ({422} if behaviour == "refused" else {204})
    assert len(deletes) > 8
    assert cloud.account.inventory().is_empty
    assert cloud.account.inventory().fading == {}


def test_a_tag_that_a_stranger_put_on_his_droplet_is_not_taken_away(cloud):
    node = cloud.create()
    stranger = Owner(cloud.account).droplet("web-1", NAME.tag)
    for _ in range(3):
        cloud.account.handle("GET", "/v2/droplets", {"tag_name": NAME.tag}, None, TOKEN)
    with pytest.raises(LeftBehind, match="carried by web-1, which is not ours"):
        cloud.provider().destroy(node)

    assert cloud.account.droplets[stranger].tags == [NAME.tag]
    assert cloud.holds() == {"droplet": 1, "tag": 1}


# --- keep and attach --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked_h", "given_h"), [(1, 1), (2, 2), (8, 2)])
def test_a_node_is_kept_but_never_beyond_the_expiry_in_its_name(cloud, asked_h, given_h):
    node = cloud.create()
    cloud.provider().keep(node, START_S + asked_h * HOUR_S)

    assert folders.find(cloud.cache, node.id).kept_until_s == START_S + given_h * HOUR_S
    assert all(host.connects == host.closes for host in cloud.access.hosts)
    assert cloud.holds() == {"droplet": 1, "firewall": 1, "key": 1, "tag": 1}


def test_attach_connects_with_the_stored_key_and_owns_the_node(cloud, tmp_path):
    node = cloud.create()
    cloud.provider().keep(node, START_S + HOUR_S)
    abandon(cloud, node.id)
    server = SshServer(tmp_path / "server").start()
    try:
        folders.write_node(node.folder, server.address(), node.facts)
        again = cloud.provider().attach(node.id)
        again.host.close()
    finally:
        server.stop()

    assert server.connections == 1
    assert again.id == node.id
    assert again.facts["droplet"] == node.facts["droplet"]
    assert folders.find(cloud.cache, node.id).owner == processes.myself()


def test_attach_knows_its_own_nodes_only(cloud):
    folders.make(cloud.cache, "guest-1", "r1", "qemu")
    for name in ("guest-1", "nothing"):
        with pytest.raises(UsageError, match="no node"):
            cloud.provider().attach(name)


def test_a_node_that_was_never_finished_cannot_be_attached(cloud):
    place = folders.make(cloud.cache, "half-1", "r1", "digitalocean")
    with pytest.raises(NodeError, match="never finished"):
        cloud.provider().attach(place.id)


# --- records ----------------------------------------------------------------------------------------------------------


def test_records_show_the_account_and_not_only_this_machine(cloud):
    node = cloud.create()
    elsewhere = CloudName(node_id="k3s-v1.34.12-r9", expires_s=int(START_S + HOUR_S))
    over = CloudName(node_id="k3s-v1.34.12-r0", expires_s=int(START_S - 1))
    owner = Owner(cloud.account)
    owner.lab(str(elsewhere), elsewhere.tag)
    owner.key(str(over), over.tag)
    owner.droplet("web-1", "web")
    cloud.provider().records()
    shown = {record.id: record for record in cloud.provider().records()}

    assert set(shown) == {node.id, elsewhere.node_id, over.node_id}
    assert (shown[node.id].in_use, shown[node.id].is_expired) == (True, False)
    assert shown[node.id].expires_s == NAME.expires_s
    assert "active 192.0.2." in shown[node.id].state
    assert (shown[elsewhere.node_id].in_use, shown[elsewhere.node_id].is_expired) == (True, False)
    assert (shown[over.node_id].in_use, shown[over.node_id].is_expired) == (False, True)
    assert "no droplet, expired (lab gc removes it)" in shown[over.node_id].state


def test_a_node_of_a_dead_run_is_not_in_use(cloud):
    node = cloud.create()
    abandon(cloud, node.id)
    (record,) = cloud.provider().records()

    assert (record.in_use, record.is_expired) == (False, False)


def test_a_folder_that_the_account_knows_nothing_of_is_shown(cloud):
    folders.make(cloud.cache, "half-1", "r1", "digitalocean")
    folders.make(cloud.cache, "guest-1", "r1", "qemu")

    assert [record.id for record in cloud.provider().records()] == ["half-1"]


# --- down -------------------------------------------------------------------------------------------------------------


def test_down_removes_a_node_of_another_machine(cloud, tmp_path):
    node = cloud.create()
    other = Cloud(tmp_path / "other machine")
    other.account, other.wire.account, other.clock = cloud.account, cloud.account, cloud.clock
    other.provider().down(node.id)

    assert cloud.account.inventory().is_empty


def test_down_finds_by_its_note_what_no_list_shows_yet(tmp_path):
    never = Delay(polls=10_000)
    cloud = Cloud(tmp_path, Behaviour(listed_after=never, tag_listed_after=never))
    node = cloud.create()
    cloud.provider().down(node.id)

    assert cloud.account.inventory().is_empty
    assert cloud.folders() == []


@pytest.mark.parametrize("note", ["", "{", "[]", '{"name": "web-1"}', '{"name": "nlab-a-x1"}', None])
def test_a_note_that_is_damaged_does_not_stop_down(cloud, note):
    node = cloud.create()
    if note is None:
        (node.folder / "cloud.json").unlink()
    else:
        (node.folder / "cloud.json").write_text(note)
    cloud.provider().records()
    cloud.provider().down(node.id)

    assert cloud.account.inventory().is_empty
    assert cloud.folders() == []


def test_down_of_nothing(cloud):
    with pytest.raises(UsageError, match="no node 'nothing' in the account"):
        cloud.provider().down("nothing")


def test_down_of_one_leaves_the_other(cloud):
    one = cloud.create()
    cloud.create(run_id="r10")
    cloud.provider().down(one.id)

    assert cloud.holds() == {"droplet": 1, "firewall": 1, "key": 1, "tag": 1}
    assert cloud.folders() == ["upstream-v1.36.3-r10"]


def test_destroy_of_what_is_gone_already_is_fine(cloud):
    node = cloud.create()
    cloud.provider().down(node.id)
    cloud.provider().destroy(node)

    assert all(host.connects == host.closes for host in cloud.access.hosts)


# --- collect_garbage --------------------------------------------------------------------------------------------------


def test_a_dead_run_is_removed_once_its_time_is_over_and_not_before(cloud):
    node = cloud.create()
    abandon(cloud, node.id)
    cloud.provider().records()
    assert cloud.provider().collect_garbage(dry_run=False) == []
    assert cloud.holds()["droplet"] == 1
    assert any("not touched" in text and node.id in text for text in cloud.said)

    cloud.clock.now = float(NAME.expires_s)
    (number,) = cloud.account.droplets
    would = cloud.provider().collect_garbage(dry_run=True)
    assert cloud.holds() == {"droplet": 1, "firewall": 1, "key": 1, "tag": 1}
    assert cloud.folders() == [node.id]
    did = cloud.provider().collect_garbage(dry_run=False)

    assert would == did
    assert f"droplet {number}" in did[0]
    assert cloud.account.inventory().is_empty
    assert cloud.folders() == [], "the key of what is gone is of no use to anybody"
    assert cloud.provider().collect_garbage(dry_run=False) == []


def test_the_limit_of_key_listings_does_not_stop_gc(tmp_path):
    cloud = Cloud(tmp_path, limits=RateLimits(key_listings_per_minute=10), droplet_limit=100)
    owner = Owner(cloud.account)
    for number in range(25):
        name = CloudName(node_id=f"a-{number:02}", expires_s=int(START_S - HOUR_S))
        owner.firewall(str(name), name.tag)
    assert len(cloud.provider().collect_garbage(dry_run=False)) == 25
    assert cloud.account.inventory().is_empty


def test_gc_goes_on_after_what_will_not_go_and_names_it(cloud):
    owner = Owner(cloud.account)
    all_names = [CloudName(node_id=f"a-{number}", expires_s=int(START_S - HOUR_S)) for number in range(3)]
    for name in all_names:
        owner.lab(str(name), name.tag)
    cloud.provider().records()
    stubborn = next(number for number, droplet in cloud.account.droplets.items() if droplet.name == str(all_names[1]))
    failing_deletes(cloud, f"/droplets/{stubborn}")
    with pytest.raises(LeftBehind, match=f"a-1 .droplet {stubborn}"):
        cloud.provider().collect_garbage(dry_run=False)

    assert cloud.account.inventory().droplets == {stubborn: str(all_names[1])}


def test_gc_does_not_lose_the_ids_when_the_tags_cannot_be_read(cloud):
    node = cloud.create()
    cloud.provider().records()
    cloud.clock.advance(3 * HOUR_S)
    (number,) = cloud.account.droplets
    listed = []

    def plan(call, method, target):
        if target.startswith("/v2/tags"):
            listed.append(call)
        fails = len(listed) > 1 or (method == "DELETE" and "/droplets/" in target)
        return Error(status=403, message="no") if fails else None

    cloud.wire.plan = plan
    with pytest.raises(LeftBehind, match=f"droplet {number}"):
        cloud.provider().collect_garbage(dry_run=False)
    assert cloud.folders() == [node.id]


def test_a_lone_tag_of_ours_goes_unless_somebody_uses_it(cloud):
    owner = Owner(cloud.account)
    tags = [CloudName(node_id=f"a-{number}", expires_s=int(START_S - HOUR_S)).tag for number in range(3)]
    owner.tag(tags[0])
    owner.droplet("web-1", tags[1])
    owner.firewall("web-1", tags[2])
    cloud.provider().collect_garbage(dry_run=False)

    assert cloud.account.inventory().tags == (tags[1], tags[2])
    assert next(iter(cloud.account.firewalls.values())).tags == [tags[2]]


@pytest.mark.parametrize("is_alive", [True, False])
def test_folders_of_dead_runs_go_with_what_they_tell_of(cloud, is_alive):
    place = folders.make(cloud.cache, "half-1", "r1", "digitalocean")
    if not is_alive:
        abandon(cloud, place.id)
    cloud.provider().collect_garbage(dry_run=True)
    assert cloud.folders() == ["half-1"]
    cloud.provider().collect_garbage(dry_run=False)
    assert cloud.folders() == (["half-1"] if is_alive else [])


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "nlab-a1-x1800000000\n", " nlab-a1-x1800000000", "nlab-a1-x180000000", "nlab-a1-x18000000000",
        "nlab-a1-x0800000000",
        "nlab-A1-x1800000000", "nlab--a-x1800000000", "nlab-a--x180000000", "nlab-x1800000000", "NLAB-a1-x1800000000",
        "nlab-a_1-x1800000000", "my-nlab-a1-x1800000000", "nlab-a1-x\u0661800000000", "nlab-a1-x+180000000", "",
    ],
)  # fmt: skip
def test_what_is_no_name_of_ours(text):
    assert names.parse(text) is None
    assert names.expiry_of_tag(f"node-lab:{text.replace('.', '_')}") is None or "_" in text


def test_a_name_and_its_tag_say_the_same():
    name = CloudName(node_id="upstream-v1.36.3-20261130t101112z-ab12-1", expires_s=1_800_000_000)

    assert names.parse(str(name)) == name
    assert name.tag == "node-lab:nlab-upstream-v1_36_3-20261130t101112z-ab12-1-x1800000000"
    assert names.expiry_of_tag(name.tag) == name.expires_s
    assert names.parse(str(dataclasses.replace(name, node_id="a-x1700000000"))).expires_s == name.expires_s


def test_what_was_written_down_is_read_again(tmp_path):
    known = Holdings(name=NAME, droplets={2, 1}, keys={3}, firewalls={"f-1"}, has_tag=True)
    inventory.write_note(tmp_path, known)

    assert inventory.read_note(tmp_path) == known
    assert known.shown() == f"upstream-v1.36.3-r1 (droplet 1, droplet 2, key 3, firewall f-1, tag {NAME.tag})"
