"""Folders of guests, with real owners and real children."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab import processes
from lab.host import Deadline, wait_until
from lab.model import LeftBehind, NodeError, UsageError
from lab.processes import Identity
from lab.providers import folders
from lab.ssh import Address

OWNER = """
import sys, time
from pathlib import Path
from lab import processes
from lab.providers import folders

cache, kept_s = Path(sys.argv[1]), float(sys.argv[2])
guest = folders.make(cache, "node-run1", "run1", "qemu")
child = processes.start(["sleep", "1000"], folder=guest.folder, log=guest.folder / "qemu.log")
if kept_s:
    guest = folders.keep(guest, time.time() + kept_s)
print(child.pid, flush=True)
time.sleep(1000)
"""


@pytest.fixture
def owner(tmp_path):
    """Start a process that makes a guest with a child in it; gives (Popen, identity of the child)."""
    started = []

    def go(kept_s=0.0):
        process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(tmp_path), str(kept_s)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        child = processes.identity(int(process.stdout.readline()))
        return process, child

    yield go
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
    for folder in folders.nodes_folder(tmp_path).glob("*"):
        assert not processes.end_marked(folder)


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def is_gone(process):
    return wait_until("the end", lambda: (not process.is_alive() or None, "alive"), Deadline.after(20), interval_s=0.01)


class TestMake:
    def test_a_folder_with_its_owner_for_nobody_else(self, tmp_path):
        guest = folders.make(tmp_path, "upstream-v1.36.3-r1", "r1", "qemu")
        assert guest.id == "upstream-v1.36.3-r1"
        assert guest.folder == tmp_path / "nodes" / "upstream-v1.36.3-r1"
        assert guest.folder.stat().st_mode & 0o777 == 0o700
        assert guest.owner == processes.myself()
        assert folders.read(tmp_path) == [guest]
        assert folders.find(tmp_path, guest.id) == guest
        assert not guest.is_expired(time.time() + 1e9)
        assert folders.expired(tmp_path, "qemu") == []

    def test_the_same_node_twice_is_refused_and_leaves_the_first_alone(self, tmp_path):
        guest = folders.make(tmp_path, "n-r1", "r1", "qemu")
        (guest.folder / "disk.qcow2").write_text("data")
        with pytest.raises(UsageError, match="node n-r1 exists already; `lab down n-r1`"):
            folders.make(tmp_path, "n-r1", "r1", "qemu")
        assert (guest.folder / "disk.qcow2").read_text() == "data"
        assert os.listdir(tmp_path / "nodes") == ["n-r1"]

    def test_an_unknown_node_names_those_that_exist(self, tmp_path):
        with pytest.raises(UsageError, match="no node 'x'; there are: none"):
            folders.find(tmp_path, "x")
        folders.make(tmp_path, "n-r1", "r1", "qemu")
        folders.make(tmp_path, "m-r2", "r2", "qemu")
        with pytest.raises(UsageError, match="no node 'x'; there are: m-r2, n-r1"):
            folders.find(tmp_path, "x")

    def test_a_cache_without_any_node(self, tmp_path):
        assert folders.read(tmp_path) == []
        assert folders.expired(tmp_path / "never made", "qemu") == []


class TestExpiry:
    DEAD = Identity(pid=2**22 + 1, start_ticks=1)

    def entry(self, folder, owner, until_s):
        return folders.NodeFolder(
            id="n", provider="qemu", folder=folder, run_id="r", owner=owner, kept_until_s=until_s
        )

    @pytest.mark.parametrize(("until_s", "now_s", "expired"), [(0, 1000, True), (1000, 999, False), (1000, 1000, True)])
    def test_a_dead_owner(self, tmp_path, until_s, now_s, expired):
        guest = self.entry(tmp_path, self.DEAD, until_s)
        assert guest.is_expired(now_s) is expired

    def test_a_living_owner_never_expires_even_when_kept_time_is_over(self, tmp_path):
        guest = self.entry(tmp_path, processes.myself(), 1.0)
        assert not guest.is_expired(1e12)

    def test_an_owner_whose_pid_was_used_again_is_dead(self, tmp_path):
        guest = folders.make(tmp_path, "n-r1", "r1", "qemu")
        me = processes.myself()
        data = json.loads((guest.folder / "owner.json").read_text())
        (guest.folder / "owner.json").write_text(json.dumps({**data, "start_ticks": me.start_ticks - 100}))
        assert [entry.id for entry in folders.expired(tmp_path, "qemu")] == ["n-r1"]


class TestKeepAndAdopt:
    def test_keep_is_written_down(self, tmp_path):
        guest = folders.make(tmp_path, "n-r1", "r1", "qemu")
        kept = folders.keep(guest, 12345.5)
        assert kept.kept_until_s == 12345.5
        assert kept.owner == guest.owner
        assert folders.find(tmp_path, "n-r1") == kept

    def test_a_kept_guest_outlives_its_owner_and_can_be_adopted(self, tmp_path, owner):
        process, child = owner(kept_s=3600)
        kill(process)
        assert folders.expired(tmp_path, "qemu") == []
        assert child.is_alive()
        guest = folders.adopt(folders.find(tmp_path, "node-run1"))
        assert guest.owner == processes.myself()
        assert guest.kept_until_s > time.time()
        assert folders.find(tmp_path, "node-run1") == guest
        folders.remove(guest)
        assert is_gone(child)

    def test_a_kept_guest_expires_once_its_time_is_over(self, tmp_path, owner):
        process, child = owner(kept_s=-3600)
        kill(process)
        (guest,) = folders.expired(tmp_path, "qemu")
        folders.remove(guest)
        assert is_gone(child)

    def test_a_guest_in_use_is_not_adopted(self, tmp_path, owner):
        process, _ = owner(kept_s=3600)
        with pytest.raises(UsageError, match=f"node-run1 is in use by process {process.pid}"):
            folders.adopt(folders.find(tmp_path, "node-run1"))

    def test_adopting_ones_own_guest_changes_nothing(self, tmp_path):
        guest = folders.make(tmp_path, "n-r1", "r1", "qemu")
        assert folders.adopt(guest) == guest


class TestRemove:
    def test_processes_end_before_the_folder_goes(self, tmp_path):
        guest = folders.make(tmp_path, "n-r1", "r1", "qemu")
        child = processes.start(["sleep", "1000"], folder=guest.folder, log=guest.folder / "log")
        (guest.folder / "deep").mkdir()
        (guest.folder / "deep" / "file").write_text("x")
        folders.remove(guest)
        assert processes.identity(child.pid) is None
        child.wait()
        assert not guest.folder.exists()
        folders.remove(guest)

    def test_a_stubborn_process_is_named_and_the_folder_stays(self, tmp_path, monkeypatch):
        guest = folders.make(tmp_path, "n-r1", "r1", "qemu")
        monkeypatch.setattr(processes, "end_marked", lambda folder, grace_s: [Identity(pid=4242, start_ticks=1)])
        with pytest.raises(LeftBehind, match="node n-r1: processes 4242 would not end") as caught:
            folders.remove(guest)
        assert str(guest.folder) in str(caught.value)
        assert guest.folder.exists()

    def test_a_folder_that_cannot_be_deleted_is_named(self, tmp_path, monkeypatch):
        guest = folders.make(tmp_path, "n-r1", "r1", "qemu")
        monkeypatch.setattr(folders.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(LeftBehind, match="could not be deleted"):
            folders.remove(guest)


class TestAfterACrash:
    def test_a_killed_owner_leaves_a_guest_that_is_found_and_removed(self, tmp_path, owner):
        process, child = owner()
        assert folders.expired(tmp_path, "qemu") == []
        kill(process)
        assert child.is_alive()
        (guest,) = folders.expired(tmp_path, "qemu")
        assert (guest.id, guest.run_id) == ("node-run1", "run1")
        folders.remove(guest)
        assert is_gone(child)
        assert not guest.folder.exists()
        assert folders.expired(tmp_path, "qemu") == []

    @pytest.mark.parametrize(
        "content",
        [
            None, "", "{", "[]", "7", "null", "{}", '{"pid": 1}',
            '{"pid": null, "start_ticks": 1, "run_id": "r", "kept_until_s": 0}',
            '{"pid": 1, "start_ticks": 1, "run_id": "r", "kept_until_s": null}',
            '{"pid": [1], "start_ticks": 1, "run_id": "r", "kept_until_s": 0}',
        ],
    )  # fmt: skip
    def test_a_folder_without_a_readable_owner_belongs_to_nobody(self, tmp_path, content):
        folder = tmp_path / "nodes" / "n-r1"
        folder.mkdir(parents=True)
        if content is not None:
            (folder / "owner.json").write_text(content)
        (guest,) = folders.expired(tmp_path, "qemu")
        assert (guest.id, guest.folder) == ("n-r1", folder)
        folders.remove(guest)
        assert folders.read(tmp_path) == []

    def test_a_half_made_folder_of_a_dead_process_is_left_over_once(self, tmp_path):
        half = tmp_path / "nodes" / f".n-r1.{2**22 + 1}"
        half.mkdir(parents=True)
        assert folders.read(tmp_path) == []
        (guest,) = folders.expired(tmp_path, "qemu")
        folders.remove(guest)
        assert os.listdir(tmp_path / "nodes") == []

    def test_a_half_made_folder_of_a_living_process_is_left_alone(self, tmp_path):
        half = tmp_path / "nodes" / f".n-r1.{os.getpid()}"
        half.mkdir(parents=True)
        assert folders.read(tmp_path) == []
        assert folders.expired(tmp_path, "qemu") == []

    def test_a_half_made_folder_with_a_name_nobody_gives(self, tmp_path):
        (tmp_path / "nodes" / ".strange").mkdir(parents=True)
        assert [guest.id for guest in folders.expired(tmp_path, "qemu")] == [".strange"]

    def test_a_stray_file_is_no_guest(self, tmp_path):
        (tmp_path / "nodes").mkdir()
        (tmp_path / "nodes" / "README").write_text("x")
        assert folders.read(tmp_path) == []
        assert folders.expired(tmp_path, "qemu") == []

    def test_an_owner_record_is_whole_or_the_one_before(self, tmp_path, monkeypatch):
        guest = folders.make(tmp_path, "n-r1", "r1", "qemu")

        def crash(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(type(tmp_path), "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            folders.keep(guest, 99.0)
        monkeypatch.undo()
        assert folders.find(tmp_path, "n-r1") == guest


class TestNodeFile:
    """node.json: what a later process needs to reach the node."""

    KEYS = ("ssh-ed25519 AAAA one", "ecdsa-sha2-nistp256 BBBB two\n")

    def address(self, identity):
        return Address(host="::1", port=2222, user="me", host_keys=self.KEYS, identity=identity)

    @pytest.mark.parametrize("identity", [None, Path("/keys/id")])
    def test_it_gives_back_what_was_written(self, tmp_path, identity):
        place = folders.make(tmp_path, "n-r1", "r1", "ssh")
        folders.write_node(place.folder, self.address(identity), {"emulation": "none"}, become=True)
        host, facts = folders.read_node(place)
        assert host.address == dataclasses.replace(
            self.address(identity), host_keys=("ssh-ed25519 AAAA one", "ecdsa-sha2-nistp256 BBBB two")
        )
        assert host.name == "n-r1"
        assert facts == {"emulation": "none"}

    @pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"host": "h"}'])
    def test_a_node_that_was_never_finished(self, tmp_path, text):
        place = folders.make(tmp_path, "n-r1", "r1", "qemu")
        if text is not None:
            (place.folder / "node.json").write_text(text)
        with pytest.raises(NodeError, match="node n-r1 was never finished; `lab down n-r1`"):
            folders.read_node(place)


class TestProviders:
    def test_each_sees_its_own(self, tmp_path):
        folders.make(tmp_path, "a-r1", "r1", "qemu")
        folders.make(tmp_path, "b-r1", "r1", "digitalocean")
        assert [entry.id for entry in folders.read(tmp_path)] == ["a-r1", "b-r1"]
        assert [entry.id for entry in folders.read(tmp_path, "digitalocean")] == ["b-r1"]
        with pytest.raises(UsageError, match="no node 'a-r1'; there are: b-r1"):
            folders.find(tmp_path, "a-r1", "digitalocean")

    def test_a_cloud_node_of_a_dead_owner_is_no_local_leftover(self, tmp_path):
        place = folders.make(tmp_path, "b-r1", "r1", "digitalocean")
        data = json.loads((place.folder / "owner.json").read_text())
        (place.folder / "owner.json").write_text(json.dumps({**data, "pid": 2**22 + 1}))
        assert folders.expired(tmp_path, "qemu") == []
        assert [entry.id for entry in folders.expired(tmp_path, "digitalocean")] == ["b-r1"]

    def test_records_say_what_becomes_of_a_node(self, tmp_path):
        mine = folders.make(tmp_path, "a-r1", "r1", "qemu")
        dead = dataclasses.replace(mine, owner=TestExpiry.DEAD)
        kept = dataclasses.replace(dead, kept_until_s=time.time() + 7200)
        records = [folders.record(entry) for entry in (mine, dead, kept)]
        states = [(record.in_use, record.is_expired, record.expires_s) for record in records]
        assert states == [(True, False, None), (False, True, None), (False, False, kept.kept_until_s)]
        assert folders.record(kept).state == "kept for 2.0 h more"
