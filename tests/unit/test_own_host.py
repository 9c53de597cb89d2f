"""The user's own host: taken only when it is fit and free, given back only when it is as it was."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path

import pytest

from lab import processes
from lab.config import NodeOptions
from lab.host import Deadline
from lab.model import Interrupted, LeftBehind, NodeError, NoSuchNode, TransportError, UsageError
from lab.providers import folders
from lab.providers.contract import NodeSpec
from lab.providers.own_host import lock
from lab.providers.own_host.lock import Holder
from lab.providers.own_host.provider import OwnHostProvider
from lab.providers.qemu.provider import QemuProvider
from lab.ssh_keys import make_key_pair
from tests.captures_helper import ROOT
from tests.fakes import FakeClock, Reply
from tests.own_host import CLEAN, KUBEPODS, NOW, OwnHost, print_of

NODE = "upstream-v1.36.3-r1"
PUBLIC = make_key_pair("own")[1].strip()
EXPIRES = NOW + 7200.0


@pytest.fixture
def world(tmp_path):
    """``make(host, **options)`` gives a provider of that host; ``make.told`` is its progress."""
    known = tmp_path / "known_hosts"
    known.write_text(f"192.0.2.7,[192.0.2.7]:2222 {PUBLIC}\n")
    (tmp_path / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    clock = FakeClock()

    def make(machine, /, cache="cache", **options):
        def connection(address, name, *, become):
            assert become is (address.user != "root")
            machine.address, machine.name = address, name
            return machine

        return OwnHostProvider(
            tmp_path / cache,
            make.told.append,
            options=NodeOptions(**{"host": "root@192.0.2.7", **options}),
            programs=ROOT / "node-scripts",
            known_hosts=(known,),
            machine_id=tmp_path / "machine-id",
            make_host=connection,
            sleep=clock.sleep,
            clock=clock,
            now=lambda: float(NOW),
        )

    make.told = []
    make.clock = clock
    make.nodes = tmp_path / "cache" / "nodes"
    return make


SPEC = NodeSpec(name="upstream-v1.36.3", run_id="r1", expires_s=EXPIRES)


def create(provider, spec=SPEC):
    return provider.create(spec, Deadline.after(400))


def abandon(world, node_id=NODE):
    """Let the node's owner be a process that has ended."""
    path = world.nodes / node_id / "owner.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": 2**22 + 1}))


class TestCheck:
    def test_a_known_host_needs_no_connection(self, world):
        host = OwnHost()
        world(host).check(4)
        assert (host.connects, host.commands) == (0, [])

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"host": None}, UsageError, "--provider ssh needs --host"),
            ({"host": "root@192.0.2.8"}, NodeError, "no host key of 192.0.2.8 is known"),
            ({"host": "root@192.0.2.7:2223"}, NodeError, "no host key"),
            ({"host": "root@192.0.2.7:2222", "ssh_port": 22}, UsageError, "name different ports"),
            ({"identity": Path("/nowhere/key")}, UsageError, "--identity /nowhere/key: No such file"),
            ({"known_hosts": Path("/nowhere/keys")}, UsageError, "--known-hosts /nowhere/keys: No .* host's key"),
            ({"identity": Path("/")}, UsageError, "--identity /: Is a directory"),
        ],
    )
    def test_what_is_missing_is_said_before_anything_is_done(self, world, options, error, message):
        host = OwnHost()
        with pytest.raises(error, match=message):
            world(host, **options).check(1)
        assert host.connects == 0

    def test_a_kept_node_needs_no_host(self, world):
        world(OwnHost(), host=None).check(0)

    def test_the_port_may_stand_in_either_place(self, world):
        for options in ({"host": "root@192.0.2.7:2222", "ssh_port": 2222}, {"ssh_port": 2222}):
            world(OwnHost(), **options).check(1)

    def test_it_costs_nothing_and_lasts(self, world):
        provider = world(OwnHost())
        assert provider.hourly_price() == 0
        assert (provider.site.reaches_controller, provider.site.has_runtime, provider.site.is_lasting) == (
            False, False, True,
        )  # fmt: skip


class TestCreate:
    def test_a_fit_host_is_locked_and_noted(self, world):
        host = OwnHost()
        node = create(world(host))
        assert (node.id, node.provider, node.controller_address) == (NODE, "ssh", None)
        assert node.facts == {
            "emulation": "kvm", "vcpus": "4", "memory_mib": "4096", "image": "Ubuntu 24.04.1 LTS", "swap_mib": "0",
            "host": "root@192.0.2.7",
        }  # fmt: skip
        holder = Holder.parse(host.lock_text)
        assert (holder.node_id, holder.run_id, holder.pid) == (NODE, "r1", os.getpid())
        assert (holder.folder, holder.expires_s) == (str(node.folder.resolve()), EXPIRES)
        assert (node.folder / "fingerprint-before.txt").read_text() == print_of(*CLEAN)
        data = json.loads((node.folder / "node.json").read_text())
        assert (data["user"], data["become"], data["facts"]) == ("root", False, node.facts)
        assert data["host_keys"] == [" ".join(PUBLIC.split()[:2])]
        # Nothing is written on the host but its lock.
        assert host.files == {}

    def test_another_user_becomes_root(self, world):
        host = OwnHost()
        node = create(world(host, host="admin@192.0.2.7:2222"))
        assert host.becomes == ["admin"]
        assert json.loads((node.folder / "node.json").read_text())["become"] is True

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"system": "Linux aarch64", "cpus": "1"}, "it is Linux aarch64.*; it has 1 CPUs"),
            ({"processes": "kubelet"}, "Kubernetes is on it: process kubelet"),
        ],
    )
    def test_an_unfit_host_is_let_go(self, world, changes, message):
        host = OwnHost(**changes)
        with pytest.raises(NodeError, match=message):
            create(world(host))
        assert host.lock_text is None
        assert host.closes == 1
        assert list(world.nodes.iterdir()) == []
        assert host.count("python3") == 0

    def test_kubernetes_is_accepted_when_told_and_said(self, world):
        create(world(OwnHost(processes="kubelet"), accept_kubernetes=True))
        assert any("accepted although Kubernetes is there: process kubelet" in line for line in world.told)

    def test_swap_is_said(self, world):
        create(world(OwnHost(memory="MemTotal 4005116\nSwapTotal 2097148")))
        assert any("2047 MiB of swap" in line for line in world.told)

    def test_a_host_in_use_is_left_as_it_is(self, world, tmp_path):
        host = OwnHost()
        create(world(host, cache="other"))
        taken, commands = host.lock_text, len(host.commands)
        with pytest.raises(NodeError, match=f"in use by process {os.getpid()} here"):
            create(world(host))
        assert host.lock_text == taken
        assert not any(command.argv[0] in ("python3", "rm", "timeout") for command in host.commands[commands:])
        assert list(world.nodes.iterdir()) == []

    def test_a_stale_lock_is_cleaned_up_after(self, world):
        host = OwnHost()
        host.lock_text = Holder(
            node_id="old", run_id="r0", controller="elsewhere", machine="x", pid=7, start_ticks=7, folder="/x",
            expires_s=NOW - 1.0,
        ).text  # fmt: skip
        create(world(host))
        assert host.removals == 1
        assert Holder.parse(host.lock_text).node_id == NODE
        assert any("node old of elsewhere was never given back" in line for line in world.told)

    def test_the_same_node_twice_takes_nothing_from_the_first(self, world):
        host = OwnHost()
        node = create(world(host))
        with pytest.raises(UsageError, match=f"{NODE} exists already"):
            create(world(host))
        assert host.lock_text is not None
        assert (node.folder / "fingerprint-before.txt").exists()

    @pytest.mark.parametrize("bad", ["", "no json\n", print_of(*CLEAN)[:-10]])
    def test_a_fingerprint_that_is_not_whole_is_no_beginning(self, world, bad):
        host = OwnHost()
        host.prints = [bad]
        with pytest.raises(NodeError, match="cannot be used"):
            create(world(host))
        assert host.lock_text is None
        assert list(world.nodes.iterdir()) == []

    def test_a_host_that_does_not_answer_leaves_no_folder(self, world):
        host = OwnHost()
        host.is_reachable = False
        with pytest.raises(TransportError):
            create(world(host))
        assert list(world.nodes.iterdir()) == []

    def test_a_lock_that_cannot_be_removed_any_more_is_told_and_found_again(self, world):
        host = OwnHost(prints=[CLEAN])

        def lose(command):
            host.is_reachable = False
            return host._print(command)

        host.answer(("python3", "-I", "-B", "-"), lose)
        host.prints = ["cut"]
        with pytest.raises(LeftBehind, match=r"/var/lib/node-lab.lock may still be on root@192.0.2.7") as caught:
            create(world(host))
        assert f"`lab down {NODE}`" in str(caught.value)
        host.is_reachable = True
        world(host, host=None).down(NODE)
        assert host.lock_text is None
        assert list(world.nodes.iterdir()) == []

    def test_a_run_without_an_expiry_locks_for_a_day(self, world):
        host = OwnHost()
        create(world(host), dataclasses.replace(SPEC, expires_s=0.0))
        assert Holder.parse(host.lock_text).expires_s == NOW + 86400.0


class TestGiveBack:
    def test_as_it_was_nothing_stays(self, world):
        host = OwnHost()
        provider = world(host)
        node = create(provider)
        provider.destroy(node)
        assert host.lock_text is None
        assert host.count("rm", "-rf") == 1
        assert host.removals == 0
        assert list(world.nodes.iterdir()) == []
        provider.destroy(node)

    def test_what_ends_a_little_later_is_waited_for(self, world):
        provider = world(OwnHost(prints=[CLEAN, (*CLEAN, KUBEPODS), (*CLEAN, KUBEPODS), CLEAN]))
        provider.destroy(create(provider))
        assert world.clock.sleeps == [5.0, 5.0]

    def test_every_difference_is_listed_and_the_evidence_stays(self, world):
        host = OwnHost(prints=[CLEAN, (*CLEAN[:1], KUBEPODS)])
        provider = world(host)
        node = create(provider)
        with pytest.raises(LeftBehind, match="is not as it was before \\(2 differences\\)") as caught:
            provider.destroy(node)
        text = str(caught.value)
        assert "cgroup /kubepods.slice: not there -> there" in text
        assert "file /etc/hosts: -rw-r--r-- 0:0 20 bytes -> not there" in text
        assert str(node.folder) in text
        assert NODE in text
        assert sum(world.clock.sleeps) == 30.0
        assert (node.folder / "fingerprint-before.txt").read_text() == print_of(*CLEAN)
        assert (node.folder / "fingerprint-after.txt").read_text() == print_of(CLEAN[0], KUBEPODS)
        # Nobody measures on such a host before its user has seen this.
        assert host.lock_text is not None
        [record] = provider.records()
        assert "changes are left" in record.state

    def test_told_differences_are_forgotten_by_down_and_told_again(self, world):
        host = OwnHost(prints=[CLEAN, (*CLEAN, KUBEPODS)])
        provider = world(host)
        node = create(provider)
        with pytest.raises(LeftBehind):
            provider.destroy(node)
        with pytest.raises(LeftBehind, match=r"is forgotten; on root@192\.0\.2\.7 1 differences stay") as caught:
            provider.down(node.id)
        assert "/kubepods.slice" in str(caught.value)
        assert host.lock_text is None
        assert list(world.nodes.iterdir()) == []

    def test_told_differences_that_are_gone_meanwhile(self, world):
        host = OwnHost(prints=[CLEAN, *[(*CLEAN, KUBEPODS)] * 7, CLEAN])
        provider = world(host)
        node = create(provider)
        with pytest.raises(LeftBehind):
            provider.destroy(node)
        provider.down(node.id)
        assert host.lock_text is None
        assert list(world.nodes.iterdir()) == []

    def test_a_project_folder_from_before_is_not_ours_to_remove(self, world):
        before = (*CLEAN, ("file", "/opt/lab", "drwxr-xr-x 0:0"))
        host = OwnHost(prints=[before])
        provider = world(host)
        provider.destroy(create(provider))
        assert host.count("rm") == 0

    def test_a_host_that_is_gone_leaves_its_folder_with_the_way_out(self, world):
        host = OwnHost()
        provider = world(host)
        node = create(provider)
        host.is_reachable = False
        with pytest.raises(LeftBehind, match="could not be given back: own: connection lost") as caught:
            provider.destroy(node)
        assert str(node.folder) in str(caught.value)
        assert (node.folder / "fingerprint-before.txt").exists()

    @pytest.mark.parametrize("damage", ["", "no json\n"])
    def test_a_damaged_first_fingerprint_proves_nothing(self, world, damage):
        provider = world(OwnHost())
        node = create(provider)
        (node.folder / "fingerprint-before.txt").write_text(damage)
        with pytest.raises(LeftBehind, match="could not be given back"):
            provider.destroy(node)
        assert node.folder.exists()

    def test_the_lock_of_a_later_run_stays(self, world):
        host = OwnHost()
        provider = world(host)
        node = create(provider)
        later = dataclasses.replace(Holder.parse(host.lock_text), node_id="later").text
        host.lock_text = later
        provider.destroy(node)
        assert host.lock_text == later


class TestKeptAndLost:
    def test_kept_listed_and_attached(self, world):
        host = OwnHost()
        provider = world(host)
        provider.keep(create(provider), EXPIRES - 10)
        abandon(world)
        later = world(host, host=None)
        [record] = later.records()
        assert (record.id, record.provider, record.in_use, record.is_expired) == (NODE, "ssh", False, False)
        assert "root@192.0.2.7" in record.state
        assert record.expires_s == EXPIRES - 10
        node = later.attach(NODE)
        assert node.facts["vcpus"] == "4"
        assert host.connects == 2
        assert later.records()[0].in_use
        later.destroy(node)
        assert host.lock_text is None

    def test_never_kept_beyond_the_expiry_of_its_lock(self, world):
        provider = world(OwnHost())
        provider.keep(create(provider), EXPIRES + 1e6)
        assert provider.records()[0].expires_s == EXPIRES

    def test_unknown_nodes(self, world):
        provider = world(OwnHost())
        for call in (provider.attach, provider.down):
            with pytest.raises(NoSuchNode, match="no node 'x'"):
                call("x")

    def test_a_node_of_another_provider_is_none_of_ours(self, world, tmp_path):
        folders.make(tmp_path / "cache", "guest", "r1", "qemu")
        provider = world(OwnHost())
        assert provider.records() == []
        with pytest.raises(NoSuchNode, match="no node 'guest'"):
            provider.down("guest")

    def test_down_removes_the_distribution_first(self, world):
        host = OwnHost()
        provider = world(host)
        create(provider)
        abandon(world)
        provider.down(NODE)
        order = [command.argv[0] for command in host.commands]
        removal = [command.argv[-1].endswith("upstream_remove.sh") for command in host.commands].index(True)
        assert order.index("rm") > removal
        assert host.removals == 1
        assert host.lock_text is None

    def test_a_removal_that_complains_is_told(self, world):
        host = OwnHost()
        host.remove_says = Reply(stdout="left: unit lab-kubelet is active\n", status=1)
        provider = world(host)
        create(provider)
        with pytest.raises(LeftBehind, match=r"upstream_remove\.sh: left: unit lab-kubelet is active"):
            provider.down(NODE)

    def test_down_of_a_node_that_a_living_process_uses(self, world):
        provider = world(OwnHost())
        create(provider)
        path = world.nodes / NODE / "owner.json"
        init = processes.identity(1)
        assert init is not None
        data = {**json.loads(path.read_text()), "pid": 1, "start_ticks": init.start_ticks}
        path.write_text(json.dumps(data))
        with pytest.raises(UsageError, match="in use by process 1"):
            provider.down(NODE)

    @pytest.mark.parametrize(
        "missing", [["node.json", "lock.json", "fingerprint-before.txt"], ["fingerprint-before.txt"]]
    )
    def test_a_create_that_was_killed_leaves_only_its_lock(self, world, missing):
        host = OwnHost()
        provider = world(host)
        node = create(provider)
        for name in missing:
            (node.folder / name).unlink()
        if "node.json" in missing:
            host.lock_text = None
        abandon(world)
        with pytest.raises(NodeError, match="was never finished"):
            provider.attach(NODE)
        abandon(world)
        assert provider.collect_garbage(dry_run=False) == [NODE]
        assert host.lock_text is None
        assert host.removals == 0
        assert list(world.nodes.iterdir()) == []


class TestUnreadable:
    """What cannot be read of a node must not pass for a node that was never begun."""

    @pytest.mark.parametrize("text", ["", "{", "{}"])
    def test_how_to_reach_it(self, world, text):
        host = OwnHost()
        provider = world(host)
        node = create(provider)
        commands = len(host.commands)
        (node.folder / "node.json").write_text(text)
        abandon(world)
        for give_back in (lambda: provider.collect_garbage(dry_run=False), lambda: provider.down(NODE)):
            with pytest.raises(LeftBehind, match=r"node\.json cannot be read .*\n.*was not given back") as caught:
                give_back()
            assert str(node.folder) in str(caught.value)
            abandon(world)
        assert len(host.commands) == commands
        assert host.lock_text is not None
        assert provider.records()[0].state.endswith("its host cannot be read")

    def test_its_lock(self, world):
        host = OwnHost()
        provider = world(host)
        node = create(provider)
        (node.folder / "lock.json").write_text("")
        abandon(world)
        with pytest.raises(LeftBehind, match=r"lock\.json is empty"):
            provider.down(NODE)
        assert node.folder.exists()

    def test_its_owner(self, world, tmp_path):
        host = OwnHost()
        provider = world(host)
        node = create(provider)
        (node.folder / "owner.json").write_text("")
        with pytest.raises(NodeError, match=r"owner\.json cannot be read"):
            provider.down(NODE)
        guests = QemuProvider(tmp_path / "cache", lambda text: None)
        with pytest.raises(LeftBehind, match=r"owner\.json cannot be read"):
            guests.collect_garbage(dry_run=False)
        assert host.lock_text is not None
        assert (node.folder / "fingerprint-before.txt").exists()


class TestGarbage:
    def test_only_of_dead_owners_whose_time_is_over(self, world):
        host = OwnHost()
        provider = world(host)
        node = create(provider)
        assert provider.collect_garbage(dry_run=False) == []
        provider.keep(node, EXPIRES)
        abandon(world)
        assert provider.collect_garbage(dry_run=False) == []
        assert host.lock_text is not None

    def test_dry_run_only_lists(self, world):
        host = OwnHost()
        provider = world(host)
        create(provider)
        abandon(world)
        commands = len(host.commands)
        assert provider.collect_garbage(dry_run=True) == [NODE]
        assert len(host.commands) == commands
        assert provider.collect_garbage(dry_run=False) == [NODE]
        assert host.removals == 1
        assert host.lock_text is None

    def test_it_never_forgets_what_stays(self, world):
        host = OwnHost(prints=[CLEAN, (*CLEAN, KUBEPODS)])
        provider = world(host)
        create(provider)
        for _ in range(2):
            abandon(world)
            with pytest.raises(LeftBehind, match=r"/kubepods\.slice"):
                provider.collect_garbage(dry_run=False)
        assert (world.nodes / NODE / "fingerprint-after.txt").exists()
        assert host.lock_text is not None

    def test_a_host_that_does_not_answer_is_told_and_kept(self, world):
        host = OwnHost()
        provider = world(host)
        create(provider)
        abandon(world)
        host.is_reachable = False
        with pytest.raises(LeftBehind, match="connection lost"):
            provider.collect_garbage(dry_run=False)
        assert (world.nodes / NODE).exists()


def test_a_signal_while_letting_go_waits_until_the_lock_is_gone(world):
    host = OwnHost(processes="kubelet")
    release = host._lock

    def interrupted(command):
        if command.argv[6] == lock.RELEASE:
            os.kill(os.getpid(), signal.SIGTERM)
        return release(command)

    host._when.insert(0, (lambda command: command.argv[:6] == lock.FLOCK, interrupted))
    with pytest.raises(Interrupted, match="SIGTERM"):
        create(world(host))
    assert host.lock_text is None
    assert list(world.nodes.iterdir()) == []
