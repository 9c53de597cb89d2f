"""SIGKILL to a real `lab run --provider digitalocean`, then `--resume`, against the local API over HTTP."""

from __future__ import annotations

import signal

import pytest

from lab.providers.digitalocean.api import Api
from lab.providers.digitalocean.names import CloudName
from lab.ssh_keys import make_key_pair
from tests.cloud_processes import new_account, office
from tests.digitalocean_api import Hang
from tests.guests import wait_for

TOKEN = "dop_v1_c04be2d86531f7a9"
ENOUGH_S = 120.0


@pytest.fixture
def working(tmp_path):
    with office(tmp_path, TOKEN, new_account(TOKEN)) as made:
        yield made


def names(working):
    return sorted(droplet.name for droplet in Api(TOKEN, working.api.url).droplets())


def another_runs_droplet(working):
    """A droplet of another run of the lab, with its tag and an expiry in the future."""
    api = Api(TOKEN, working.api.url)
    name = CloudName(node_id="upstream-v1.36.3-20260101t000000z-abcd-1", expires_s=4_000_000_000)
    api.create_tag(name.tag)
    _, public = make_key_pair(name.tag)
    key = api.create_key(str(name), public.strip()).id
    api.create_droplet(
        name=str(name), region="fra1", size="s-2vcpu-4gb", image="ubuntu-24-04-x64", key_ids=[key], tags=[name.tag],
        user_data="",
    )  # fmt: skip
    return str(name)


def killed(working, process, what, reached):
    wait_for(what, lambda: process.poll() is not None or reached(), ENOUGH_S)
    assert process.poll() is None, working.errors()
    process.kill()
    assert process.wait(timeout=ENOUGH_S) == -signal.SIGKILL
    (run,) = [path.name for path in working.results.glob("_runs/*")]
    return run


@pytest.mark.parametrize("moment", ["waiting for the node", "the order under way"])
def test_what_a_killed_run_left_goes_and_nothing_else(working, moment):
    other = another_runs_droplet(working)
    if moment == "waiting for the node":
        process = working.start(working.run_words())
        run = killed(working, process, "its droplet", lambda: len(names(working)) == 2)
    else:
        hang = Hang(handled=True)
        working.api.faults.add("POST", "/v2/droplets$", hang)
        process = working.start(working.run_words())
        run = killed(working, process, "its order", hang.arrived.is_set)
        hang.release()
        wait_for("the droplet that nobody waits for", lambda: len(names(working)) == 2, ENOUGH_S)
    (left,) = set(names(working)) - {other}
    assert f"{run.lower()}-1-x" in left

    # There is still no node behind the address, so the resumed run fails, too: what matters is what becomes of both.
    working.boot_s = 2.0
    process = working.start(["run", "--resume", run, "--results", str(working.results)])
    assert process.wait(timeout=ENOUGH_S) == 5, working.errors()
    text = working.errors()
    assert "Traceback" not in text
    posts = [call for call in working.api.requests if call.method == "POST"]
    orders = [call.body["name"] for call in posts if call.path == "/v2/droplets"]
    assert len(orders) == 3
    assert f"{run.lower()}-1r2-x" in orders[2]
    gone = f"{left.removeprefix('nlab-').rpartition('-x')[0]} is removed"
    assert text.index(gone) < text.index("is being made, expires", text.index(gone)), "the old one goes first"
    assert names(working) == [other], "the droplet of another run stays"
    assert f"next: lab run --resume {run}" in text
    assert list((working.cache / "nodes").glob("*")) == []
