"""Nodes that an earlier process of a resumed run left: gone only when that is known, never while somebody uses them."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from lab import experiment, processes, resume
from lab.config import NodeOptions
from lab.journal import read_events
from lab.model import NodeError, NoSuchNode, UsageError
from lab.providers import folders
from lab.providers.digitalocean.inventory import Holdings, write_note
from lab.providers.digitalocean.names import CloudName
from lab.providers.digitalocean.provider import DigitalOceanProvider

pytestmark = pytest.mark.usefixtures("signals")

RUN = "20261201T000000Z-abcd"
NODE = f"upstream-v1.36.3-{RUN.lower()}-1"


@pytest.fixture
def config(bench, monkeypatch):
    """A run that was killed while it made its node."""
    for name in ("DIGITALOCEAN_TOKEN", "DIGITALOCEAN_ACCESS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    made = bench.config(provider="digitalocean")
    journal = bench.store.open_run(RUN)
    journal.own()
    journal.event("run", lab="x", **resume.first_event(made, bench.tools()))
    journal.event("create", node=NODE, cell=made.cells[0].name)
    journal.close()
    return made


def kinds(bench):
    return [event["kind"] for event in read_events(bench.store.root / "_runs" / RUN)]


def go_on(bench, config, provider):
    past = resume.open_run(bench.store, RUN)
    try:
        return experiment.run(config, replace(bench.tools(), provider=provider), past)
    finally:
        past.journal.close()


def a_droplet_of(config):
    place = folders.make(config.cache, NODE, "r", "digitalocean")
    write_note(place.folder, Holdings(name=CloudName(node_id=NODE, expires_s=4_000_000_000), droplets={4242}))
    return place


def test_without_a_token_a_droplet_is_not_taken_for_gone(bench, config):
    place = a_droplet_of(config)
    provider = DigitalOceanProvider(config.cache, bench.said.append, token="", options=NodeOptions())
    with pytest.raises(UsageError, match="no token for DigitalOcean"):
        go_on(bench, config, provider)
    assert kinds(bench) == ["run", "create"]
    assert bench.said == []
    past = resume.open_run(bench.store, RUN)
    assert resume.left_nodes(past, is_shared=False) == [NODE], "the next resume, with the token, removes it"
    past.journal.close()
    assert place.folder.exists()


def test_without_a_token_on_the_command_line(bench, config):
    a_droplet_of(config)
    ended = bench.lab("run", "--resume", RUN, "--results", str(bench.results))
    assert ended.code == 2
    assert "no token for DigitalOcean" in ended.error
    assert "gone" not in ended.err
    assert kinds(bench) == ["run", "create"]


@pytest.mark.parametrize(
    "error", [UsageError("--identity /k: Permission denied"), NodeError("no answer")], ids=["usage", "node"]
)
def test_a_provider_that_cannot_tell_leaves_the_node_in_the_journal(bench, config, monkeypatch, error):
    def fail(node):
        raise error

    monkeypatch.setattr(bench.provider, "down", fail)
    with pytest.raises(type(error), match=str(error)):
        go_on(bench, config, bench.provider)
    assert kinds(bench) == ["run", "create"]


def test_a_node_that_is_known_not_to_exist_is_gone(bench, config):
    with pytest.raises(NoSuchNode):
        bench.provider.down(NODE)
    (result,) = go_on(bench, config, bench.provider)
    assert result.problem is None
    assert f"{NODE} is gone already" in bench.said
    assert kinds(bench)[:4] == ["run", "create", "destroyed", "resume"]


class TestInUse:
    @pytest.fixture
    def user(self):
        """Another live process."""
        process = subprocess.Popen(["sleep", "1000"])
        yield process
        process.kill()
        process.wait()

    def test_a_node_that_another_run_took_over_stays(self, bench, config, user, monkeypatch):
        with monkeypatch.context() as other:
            other.setattr(processes, "myself", lambda: processes.identity(user.pid))
            folders.make(config.cache, NODE, "r", "qemu")
        down = []
        monkeypatch.setattr(bench.provider, "down", down.append)
        with pytest.raises(UsageError, match=f"node {NODE} is in use by process {user.pid}"):
            go_on(bench, config, bench.provider)
        assert down == []
        assert kinds(bench) == ["run", "create"]
        user.kill()
        user.wait()
        (result,) = go_on(bench, config, bench.provider)
        assert result.problem is None
        assert down == [NODE]

    def test_a_node_that_is_removed_can_no_longer_be_taken_over(self, bench, config, monkeypatch):
        place = folders.make(config.cache, NODE, "r", "qemu")
        owners = []
        monkeypatch.setattr(bench.provider, "down", lambda node: owners.append(folders.find(config.cache, node).owner))
        folders._write_owner(place.folder, replace(place, owner=processes.Identity(pid=2**22 + 1, start_ticks=1)))
        go_on(bench, config, bench.provider)
        assert owners == [processes.myself()]

    @pytest.mark.parametrize("of_this_run", [True, False], ids=["of this run", "of another"])
    def test_an_owner_in_a_container_that_is_gone(self, bench, config, monkeypatch, of_this_run):
        begun = read_events(bench.store.root / "_runs" / RUN)[0]["owner"]
        pid = begun["pid"] if of_this_run else 4242
        with monkeypatch.context() as there:
            there.setattr(processes, "home", lambda: processes.Home(machine="another", pid_namespace=1))
            owner = processes.Identity(pid=pid, start_ticks=begun["start_ticks"])
            there.setattr(processes, "myself", lambda: owner)
            folders.make(config.cache, NODE, "r", "qemu")
        down = []
        monkeypatch.setattr(bench.provider, "down", down.append)
        if of_this_run:
            go_on(bench, config, bench.provider)
        else:
            with pytest.raises(UsageError, match=f"process 4242 of another machine or container.*`lab down {NODE}`"):
                go_on(bench, config, bench.provider)
        assert down == ([NODE] if of_this_run else [])
