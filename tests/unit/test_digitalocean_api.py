"""The local DigitalOcean API, in process: droplets, tags, keys, the catalogue, and what stands behind a droplet."""

from __future__ import annotations

import base64
import dataclasses
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.digitalocean_api import PROMPT, Behaviour, Delay, InboundRule, NoMachines
from tests.digitalocean_api.client import DROPLET, Api, public_key


@pytest.fixture
def api():
    return Api()


# --- droplets ---------------------------------------------------------------------------------------------------------


def test_a_droplet_is_new_without_networks_then_active_with_the_private_one_first():
    api = Api(Behaviour())
    answer = api.post("droplets", DROPLET)
    number, [link] = answer["droplet"]["id"], answer["links"]["actions"]

    assert answer["droplet"]["status"] == "new"
    assert answer["droplet"]["locked"] is True
    assert answer["droplet"]["networks"] == {"v4": [], "v6": []}
    assert answer["droplet"]["next_backup_window"] is None
    assert link["rel"] == "create"
    assert link["href"].endswith(f"/v2/actions/{link['id']}")
    seen = [api.get(f"droplets/{number}")["droplet"] for _ in range(3)]
    assert [droplet["status"] for droplet in seen] == ["new", "new", "active"]
    assert [net["type"] for net in seen[2]["networks"]["v4"]] == ["private", "public"]
    assert seen[2]["networks"]["v4"][0]["gateway"] == "nil"
    assert seen[2]["networks"]["v4"][1]["ip_address"] == "192.0.2.1"
    assert seen[1]["networks"]["v4"] == []
    assert (seen[2]["vcpus"], seen[2]["memory"], seen[2]["size_slug"]) == (2, 4096, "s-2vcpu-4gb")
    assert (seen[2]["region"]["slug"], seen[2]["image"]["slug"]) == ("fra1", "ubuntu-24-04-x64")
    assert api.get(f"actions/{link['id']}")["action"]["status"] == "completed"


def test_polling_the_action_moves_the_droplet_too():
    api = Api(Behaviour())
    action = api.post("droplets", DROPLET)["links"]["actions"][0]["id"]

    seen = [api.get(f"actions/{action}")["action"] for _ in range(3)]

    assert [one["status"] for one in seen] == ["in-progress", "in-progress", "completed"]
    assert seen[0]["completed_at"] is None
    assert seen[2]["completed_at"] == "2027-01-15T08:00:00Z"
    assert seen[2]["type"] == "create"


def test_delays_in_seconds_need_no_polls():
    api = Api(dataclasses.replace(PROMPT, active_after=Delay(seconds=30), gone_after=Delay(seconds=5)))
    number = api.droplet()

    api.clock.now += 29
    assert api.get(f"droplets/{number}")["droplet"]["status"] == "new"
    api.clock.now += 1
    assert api.get(f"droplets/{number}")["droplet"]["status"] == "active"
    api.delete(f"droplets/{number}")
    api.clock.now += 4.9
    assert api.status(f"droplets/{number}") == 200
    api.clock.now += 0.1
    assert api.status(f"droplets/{number}") == 404


def test_active_without_an_address_yet():
    api = Api(dataclasses.replace(PROMPT, addressed_after=Delay(polls=1)))
    number = api.droplet()

    first, second = (api.get(f"droplets/{number}")["droplet"] for _ in range(2))

    assert (first["status"], first["networks"]["v4"]) == ("active", [])
    assert len(second["networks"]["v4"]) == 2


def test_a_create_may_end_in_an_error(api):
    api.account.failing_creates = 1
    answer = api.post("droplets", DROPLET)

    assert api.get(f"actions/{answer['links']['actions'][0]['id']}")["action"]["status"] == "errored"
    number = answer["droplet"]["id"]
    assert api.get(f"droplets/{number}")["droplet"]["status"] == "new"
    api.delete(f"droplets/{number}")
    assert api.status(f"droplets/{number}") == 404
    assert api.get(f"droplets/{api.droplet()}")["droplet"]["status"] == "active"


@pytest.mark.parametrize(
    ("behaviour", "answer"),
    [("ignored", (204, None)), ("refused", (422, "Droplet already has a pending event."))],
    ids=["204", "422"],
)
def test_delete_of_a_new_droplet_does_nothing_whatever_it_says(behaviour, answer):
    api = Api(dataclasses.replace(Behaviour(), delete_while_pending=behaviour))
    number = api.droplet()
    status, body = api.call("DELETE", f"droplets/{number}")

    assert (status, body and body["message"]) == answer
    assert [api.get(f"droplets/{number}")["droplet"]["status"] for _ in range(3)] == ["new", "new", "active"]
    assert api.account.inventory().droplets == {number: "lab-1"}
    assert api.account.machines.stopped == []


def test_delete_of_a_new_droplet_may_work_too():
    api = Api(dataclasses.replace(Behaviour(), delete_while_pending="taken", gone_after=Delay(polls=1)))
    number = api.droplet()

    api.delete(f"droplets/{number}")
    api.delete(f"droplets/{number}")

    assert [api.status(f"droplets/{number}") for _ in range(2)] == [200, 404]
    assert api.account.machines.stopped == [number]


def test_a_deleted_droplet_is_shown_for_some_polls_then_404_and_lists_lag_behind():
    api = Api(Behaviour())
    number = api.droplet(tags=["run"])
    while api.get(f"droplets/{number}")["droplet"]["status"] != "active" or not api.listed():
        pass
    while not api.listed(tag_name="run"):
        pass

    api.delete(f"droplets/{number}")
    assert api.call("DELETE", f"droplets/{number}")[0] == 422

    assert [api.status(f"droplets/{number}") for _ in range(4)] == [200, 200, 404, 404]
    assert api.call("DELETE", f"droplets/{number}")[0] == 404
    assert [api.listed() for _ in range(2)] == [[number], []]
    assert [api.listed(tag_name="run") for _ in range(2)] == [[number], []]
    assert api.account.machines.stopped == [number]
    assert api.account.inventory().fading == {}


def test_a_new_droplet_is_known_by_its_number_before_any_list_has_it():
    api = Api(dataclasses.replace(Behaviour(), tag_listed_after=Delay(polls=3)))
    number = api.droplet(tags=["run"])

    assert api.status(f"droplets/{number}") == 200
    assert [api.listed(tag_name="run") for _ in range(4)] == [[], [], [], [number]]
    assert [api.listed() for _ in range(2)] == [[], [number]]
    assert api.listed(name="LAB-1") == [number]
    assert api.listed(name="lab") == []


def test_lists_by_another_tag_and_of_gpus_do_not_show_it(api):
    api.droplet(tags=["run"])

    assert api.listed(tag_name="other") == []
    assert api.listed(type="gpus") == []
    assert len(api.listed(type="droplets")) == 1


def test_delete_by_tag_takes_all_that_carry_it_and_no_other(api):
    ours, other = [api.droplet(tags=["run"]), api.droplet(tags=["x", "run"])], api.droplet(tags=["x"])
    api.listed()

    api.delete("droplets", tag_name="run")

    assert list(api.account.inventory().droplets) == [other]
    assert sorted(api.account.machines.stopped) == ours
    api.delete("droplets", tag_name="never-made")
    api.account.behaviour = dataclasses.replace(PROMPT, delete_by_unknown_tag_status=404)
    assert api.call("DELETE", "droplets", tag_name="never-made")[0] == 404


def test_addresses_come_back(api):
    first = api.droplet()
    api.get(f"droplets/{first}")
    api.delete(f"droplets/{first}")

    second = api.get(f"droplets/{api.droplet()}")["droplet"]

    assert second["id"] != first
    assert second["networks"]["v4"][1]["ip_address"] == "192.0.2.1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": "s-2vcpu-4GB"}, "You specified an invalid size for Droplet creation."),
        ({"region": "fra9"}, "You specified an invalid region for Droplet creation."),
        ({"image": "ubuntu-24-04"}, "You specified an invalid image for Droplet creation."),
        ({"size": "s-1vcpu-512mb-10gb"}, "Size is not available in this region."),
        ({"region": "nyc2"}, "Region is not available"),
        ({"ssh_keys": [7, "8"]}, "7, 8 are invalid key identifiers for Droplet creation."),
        ({"name": "lab_1"}, "Only valid hostname characters are allowed. (a-z, A-Z, 0-9, . and -)"),
        ({"name": "lab-"}, "Only valid hostname characters are allowed. (a-z, A-Z, 0-9, . and -)"),
        ({"name": "l" * 256}, "Only valid hostname characters are allowed. (a-z, A-Z, 0-9, . and -)"),
        ({"user_data": "é" * 32769}, "user_data is too long (maximum is 64 KiB)"),
        ({"vpc_uuid": "5a4981aa-9653-4bd1-bef5-d6bff52042e4"}, "Failed to resolve VPC"),
    ],
)
def test_a_droplet_that_cannot_be_is_refused_with_422(api, changes, message):
    assert api.refused("droplets", {**DROPLET, **changes}) == (422, message)
    assert api.account.inventory().is_empty
    assert api.account.machines.started == []


def test_the_largest_droplet_requests_that_fit(api):
    api.droplet(name="l" * 255, user_data="u" * 65536, vpc_uuid=None, volumes=[], private_networking=False)

    assert api.account.inventory().droplets


def test_a_size_may_be_sold_out(api):
    api.account.catalogue.sizes["s-2vcpu-4gb"]["available"] = False

    assert api.refused("droplets", DROPLET) == (422, "Size is not available in this region.")


def test_without_a_region_it_may_land_anywhere(api):
    number = api.post("droplets", {k: v for k, v in DROPLET.items() if k != "region"})["droplet"]["id"]

    assert api.get(f"droplets/{number}")["droplet"]["region"]["slug"] == "ams3"


def test_a_missing_field_is_422(api):
    assert api.refused("droplets", {k: v for k, v in DROPLET.items() if k != "size"}) == (422, "size is missing")


def test_the_droplet_limit_counts_those_being_deleted():
    api = Api(dataclasses.replace(PROMPT, gone_after=Delay(polls=1)), droplet_limit=2)
    first, _ = api.droplet(), api.droplet()
    full = (422, "creating this/these droplet(s) will exceed your droplet limit")

    assert api.refused("droplets", DROPLET) == full
    api.delete(f"droplets/{first}")
    assert api.refused("droplets", DROPLET) == full
    api.get(f"droplets/{first}")
    assert api.status(f"droplets/{first}") == 404
    api.droplet()


def test_actions_of_a_droplet():
    api = Api(dataclasses.replace(PROMPT, gone_after=Delay(polls=1)))
    number = api.droplet()
    other = api.droplet()
    api.delete(f"droplets/{number}")

    create, destroy = api.get(f"droplets/{number}/actions")["actions"]

    assert [(action["type"], action["status"]) for action in (create, destroy)] == [
        ("create", "completed"), ("destroy", "in-progress"),
    ]  # fmt: skip
    assert api.status(f"droplets/{number}/actions") == 404
    assert api.get(f"actions/{destroy['id']}")["action"]["status"] == "completed"
    assert api.status(f"droplets/{other}/actions/{create['id']}") == 404
    assert api.status("actions/5") == 404


# --- tags, keys, catalogue, account -----------------------------------------------------------------------------------


def test_droplet_tags_are_made_when_new_and_counted(api):
    number = api.droplet(tags=["run:1", "lab"])
    droplets = {"count": 1, "last_tagged_uri": f"https://api.digitalocean.com/v2/droplets/{number}"}

    assert [tag["name"] for tag in api.get("tags")["tags"]] == ["run:1", "lab"]
    tag = api.get("tags/run:1")["tag"]
    assert tag["resources"]["droplets"] == droplets
    assert tag["resources"]["count"] == 1
    assert api.get("tags/run%3A1")["tag"] == tag
    api.delete(f"droplets/{number}")
    assert api.get("tags/lab")["tag"]["resources"]["count"] == 0


def test_tags_keep_their_first_spelling(api):
    assert api.post("tags", {"name": "Lab"})["tag"]["name"] == "Lab"
    number = api.droplet(tags=["lab", "LAB"])

    assert api.get(f"droplets/{number}")["droplet"]["tags"] == ["Lab"]
    assert api.status("tags/lab") == 404
    assert api.call("POST", "tags", {"name": "Lab"})[0] == 201
    api.account.behaviour = dataclasses.replace(PROMPT, existing_tag_status=422)
    assert api.refused("tags", {"name": "Lab"})[0] == 422


@pytest.mark.parametrize("name", ["a b", "a.b", "", "a" * 256, "é"])
def test_what_cannot_be_a_tag_is_refused(api, name):
    assert api.refused("tags", {"name": name})[0] == 422
    assert api.refused("droplets", {**DROPLET, "tags": [name]})[0] == 422
    assert api.account.inventory().is_empty


def test_deleting_a_tag_leaves_what_carried_it(api):
    number = api.droplet(tags=["lab"])

    api.delete("tags/lab")

    assert api.get(f"droplets/{number}")["droplet"]["tags"] == []
    assert api.call("DELETE", "tags/lab")[0] == 404


def test_a_key_is_known_by_number_and_by_md5_fingerprint(api):
    blob = base64.b64decode(public_key(1).split()[1])
    key = api.post("account/keys", {"name": "lab", "public_key": public_key(1)})["ssh_key"]

    assert key["fingerprint"].replace(":", "") == hashlib.md5(blob).hexdigest()
    assert key["fingerprint"].count(":") == 15
    assert api.get(f"account/keys/{key['fingerprint']}")["ssh_key"] == key
    assert api.get(f"account/keys/{key['id']}")["ssh_key"] == key
    api.droplet(ssh_keys=[key["fingerprint"]])
    api.delete(f"account/keys/{key['fingerprint']}")
    assert api.status(f"account/keys/{key['id']}") == 404
    assert api.call("DELETE", f"account/keys/{key['id']}")[0] == 404


def test_the_same_key_twice_is_refused_whatever_its_comment(api):
    api.post("account/keys", {"name": "lab", "public_key": public_key(1)})

    assert api.refused("account/keys", {"name": "b", "public_key": public_key(1, comment="")}) == (
        422, "SSH Key is already in use on your account",
    )  # fmt: skip
    api.post("account/keys", {"name": "lab", "public_key": public_key(2)})


@pytest.mark.parametrize(
    "text", ["", "ssh-ed25519", "ssh-ed25519 !!!", public_key(1)[12:], public_key(1).replace("ed25519", "rsa", 1)]
)
def test_what_is_no_public_key_is_refused(api, text):
    assert api.refused("account/keys", {"name": "lab", "public_key": text})[0] == 422


def test_the_catalogue_agrees_with_itself(api):
    sizes, regions = api.get("sizes")["sizes"], api.get("regions")["regions"]
    prices = {size["slug"]: size["price_hourly"] for size in sizes}

    assert prices["s-2vcpu-4gb"] == 0.03571
    assert "s-1vcpu-1gb" in prices
    for region in regions:
        assert region["sizes"] == [size["slug"] for size in sizes if region["slug"] in size["regions"]]
    images = {image["slug"]: image for image in api.get("images", type="distribution")["images"]}
    assert {"ubuntu-24-04-x64", "debian-13-x64"} <= set(images)
    number = images["debian-13-x64"]["id"]
    assert api.get(f"images/{number}") == api.get("images/debian-13-x64")
    assert api.get("images", type="application")["images"] == []
    assert api.status("images/debian-99-x64") == 404
    assert api.get(f"droplets/{api.droplet(image=number)}")["droplet"]["image"]["slug"] == "debian-13-x64"


def test_an_answer_is_no_way_into_the_account(api):
    api.get("sizes")["sizes"][0]["regions"].clear()

    assert api.get("sizes")["sizes"][0]["regions"]


def test_a_locked_account_says_so_and_makes_nothing(api):
    number = api.droplet()
    api.account.status = "locked"

    assert api.get("account")["account"]["status"] == "locked"
    assert api.refused("droplets", DROPLET)[0] == 403
    assert api.refused("tags", {"name": "lab"})[0] == 403
    api.delete(f"droplets/{number}")
    api.account.behaviour = dataclasses.replace(PROMPT, locked_refuses_everything=True)
    assert api.status("account") == 403


# --- machines ---------------------------------------------------------------------------------------------------------


class LateMachines(NoMachines):
    """Writes down every call; the address comes when the test says so."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.late = None

    def start(self, droplet, user_data, public_keys):
        self.calls.append(("start", droplet["memory"], droplet["vcpus"], user_data, public_keys))

    def stop(self, droplet_id):
        self.calls.append(("stop",))

    def address(self, droplet_id):
        return self.late

    def apply(self, droplet_id, inbound_rules):
        self.calls.append(("apply", inbound_rules))


def test_machines_get_user_data_keys_and_rules_and_give_the_address():
    machines = LateMachines()
    api = Api(machines=machines)
    keys = [api.post("account/keys", {"name": "k", "public_key": public_key(n)})["ssh_key"]["id"] for n in (1, 2)]
    api.post("tags", {"name": "lab"})
    wall = api.firewall(tags=["lab"])
    api.get(f"firewalls/{wall}")
    text = "#cloud-config\r\n\tü: |\n  x\n"

    number = api.droplet(tags=["lab"], user_data=text, ssh_keys=keys[::-1])

    rule = InboundRule("tcp", "22", ("203.0.113.9",))
    assert machines.calls == [("apply", [rule]), ("start", 4096, 2, text, [public_key(2), public_key(1)])]
    assert api.get(f"droplets/{number}")["droplet"]["status"] == "new"
    machines.late = "127.0.0.5"
    assert api.get(f"droplets/{number}")["droplet"]["networks"]["v4"][1]["ip_address"] == "127.0.0.5"
    api.delete(f"firewalls/{wall}")
    api.delete(f"droplets/{number}")
    assert machines.calls[2:] == [("apply", None), ("stop",)]


def test_closing_stops_the_machines_that_still_run_and_only_those():
    api = Api()
    first, second = api.droplet(), api.droplet()
    api.listed()
    api.delete(f"droplets/{first}")

    api.account.close()
    api.account.close()

    assert api.account.machines.stopped == [first, second]


# --- all together -----------------------------------------------------------------------------------------------------

DELAYS = st.builds(Delay, polls=st.integers(0, 3), seconds=st.sampled_from([0.0, 10.0]))
BEHAVIOURS = st.builds(
    Behaviour, active_after=DELAYS, gone_after=DELAYS, listed_after=DELAYS, unlisted_after=DELAYS,
    tag_listed_after=DELAYS, tag_unlisted_after=DELAYS,
    delete_while_pending=st.sampled_from(["refused", "ignored", "taken"]),
)  # fmt: skip
STEPS = st.lists(
    st.tuples(st.sampled_from(["create", "delete", "get", "list", "list by tag", "wait"]), st.integers(0, 5)),
    max_size=40,
)


@given(behaviour=BEHAVIOURS, steps=STEPS)
def test_no_droplet_is_lost_or_comes_back_whatever_the_order(behaviour, steps):
    api = Api(behaviour, droplet_limit=1000)
    made, gone = [], set()
    for step, which in steps:
        number = made[which % len(made)] if made else 5
        if step == "create":
            made.append(api.droplet(tags=["run"]))
        elif step == "delete":
            pending = number in api.account.droplets and api.account.droplets[number].is_pending
            taken = 422 if pending and behaviour.delete_while_pending == "refused" else 204
            assert api.call("DELETE", f"droplets/{number}")[0] == (404 if number in gone or not made else taken)
        elif step == "get":
            assert number not in gone or api.status(f"droplets/{number}") == 404
        elif step == "wait":
            api.clock.now += 5 * which
        else:
            listed = api.listed(**({"tag_name": "run"} if step == "list by tag" else {}))
            assert listed == sorted(set(listed) & set(made))
        inventory, machines = api.account.inventory(), api.account.machines
        gone |= set(made) - set(inventory.droplets) - set(inventory.fading)
        assert gone.isdisjoint({*inventory.droplets, *inventory.fading})
        assert set(inventory.droplets) == set(machines.started) - set(machines.stopped) == set(machines.addresses)

    for _ in range(8):  # more than any two delays together
        api.clock.now += 10
        for number in made:
            api.status(f"droplets/{number}")
        lists = [api.listed(), api.listed(tag_name="run")]
    for number in gone:
        assert api.status(f"droplets/{number}") == 404
    there = api.account.inventory()
    assert not there.fading
    assert lists == [list(there.droplets)] * 2
    assert all(api.get(f"droplets/{number}")["droplet"]["status"] == "active" for number in there.droplets)
