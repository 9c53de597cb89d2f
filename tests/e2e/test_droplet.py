"""The cloud's own path, end to end: the local API in front of real guests with real cloud-init and real firewalls."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.parse.cpu_window import MAX_FROZEN
from lab.providers.digitalocean import names
from lab.store import Store
from tests.cloud_guests import GuestMachines, artifacts_folder
from tests.digitalocean_api import Account, LocalDigitalOcean
from tests.digitalocean_api.server import TOKEN
from tests.excuses import complaints
from tests.guests import Lab

pytestmark = [pytest.mark.guest, pytest.mark.e2e]

SSH_PORT = 2222


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[GuestMachines]:
    """Guests behind the account's droplets."""
    made = GuestMachines(tmp_path / "machines", ssh_port=SSH_PORT)
    yield made
    made.close()


@pytest.fixture
def cloud(machines: GuestMachines) -> Iterator[LocalDigitalOcean]:
    """The account; a request that it does not know fails the test."""
    account = Account(clock=time.time, tokens={TOKEN: None}, machines=machines)
    with LocalDigitalOcean(account) as server:
        yield server
        assert server.unexpected == []


def run_words(lab: Lab, *words: str) -> tuple[str, ...]:
    return lab.run_words(
        "v1.36.3", "--provider", "digitalocean", "--distro", "upstream", "--ssh-port", str(SSH_PORT),
        "--allow-from", "127.0.0.1", "--max-cost", "1", *words,
    )  # fmt: skip


def test_a_run_on_a_droplet_leaves_results_and_an_empty_account(
    tmp_path: Path, artifacts: Path, cloud: LocalDigitalOcean, machines: GuestMachines
) -> None:
    lab = Lab(results=tmp_path / "results", artifacts=artifacts_folder(tmp_path / "artifacts", artifacts))
    env = {"LAB_DIGITALOCEAN_API": cloud.url, "DIGITALOCEAN_TOKEN": TOKEN}
    done = lab.call(*run_words(lab, "--json"), timeout_s=3000, env=env)

    assert cloud.account.inventory().is_empty, cloud.account.inventory()
    assert done.stdout, done.stderr
    (cell,) = json.loads(done.stdout)
    assert cell["problem"] is None, done.stderr
    outcomes = {verdict["claim"]: verdict["outcome"] for verdict in cell["verdicts"]}
    store = Store(lab.results)
    attempts = store.attempts(smoke=True)
    assert complaints(outcomes, attempts) == [], done.stderr
    assert {"class-empty-block", "cpu-starved", "eviction-order"} <= set(outcomes)
    assert done.returncode == (3 if "UNKNOWN" in outcomes.values() else 0), done.stderr
    assert TOKEN not in done.stdout + done.stderr

    # What the account was asked for, in the order that never leaves a droplet open.
    posts = [(call.path.strip("/"), call.body) for call in cloud.requests if call.method == "POST"]
    assert [path for path, _ in posts] == ["v2/tags", "v2/firewalls", "v2/account/keys", "v2/droplets"]
    (inbound,) = posts[1][1]["inbound_rules"]
    assert (inbound["protocol"], inbound["ports"]) == ("tcp", str(SSH_PORT))
    assert inbound["sources"]["addresses"] == ["127.0.0.1/32"]
    name = names.parse(posts[3][1]["name"])
    assert name is not None
    assert posts[3][1]["tags"] == [name.tag]
    assert name.expires_s > time.time()

    # The host key that was handed over was used once: the node itself does not have it any more.
    (given,) = [seen["user_data"] for seen in machines.seen.values()]
    assert set(yaml.safe_load(given)["ssh_keys"]) == {"ed25519_private", "ed25519_public"}
    assert store.verify() == []
    environments = [attempt.environment.must_agree for attempt in attempts]
    assert {(seen["provider"], seen["control_plane"], seen["emulation"]) for seen in environments} == {
        ("digitalocean", "node", "tcg")
    }
    # The control plane stood still in every window, by the counters of its own slice.
    (cpu,) = [attempt.observation or {} for attempt in attempts if attempt.stage == "cpu"]
    assert all(0 <= window["frozen_plane_cores"] <= MAX_FROZEN for window in cpu["windows"]), cpu["windows"]
