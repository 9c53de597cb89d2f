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
from lab.model import LeftBehind, NodeError, NoSuchNode, UsageError
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


def disown(place):
    """Let the owner be a process that has ended."""
    path = place.folder / "owner.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": 2**22 + 1}))


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


class TestElsewhere:
    """Owners whose pid means nothing here: of another machine, or of another container on this one."""

    HOMES = (
        processes.Home(machine="another", pid_namespace=processes.home().pid_namespace),
        processes.Home(machine=processes.home().machine, pid_namespace=4242),
    )

    @pytest.fixture(params=[0, 1], ids=["machine", "container"])
    def made(self, tmp_path, monkeypatch, request):
        """A node whose owner is elsewhere, and there is no such process here."""
        with monkeypatch.context() as there:
            there.setattr(processes, "home", lambda: self.HOMES[request.param])
            there.setattr(processes, "myself", lambda: TestExpiry.DEAD)
            return folders.make(tmp_path, "n-r1", "r1", "qemu")

    def test_nothing_of_it_is_collected(self, tmp_path, made):
        assert folders.collect(tmp_path, "qemu", folders.remove, dry_run=False) == []
        (entry,) = folders.read(tmp_path, "qemu")
        assert entry.is_in_use(time.time() + 1e9)
        record = folders.record(entry)
        assert (record.in_use, record.is_expired) == (True, False)
        assert record.state == f"in use by process {TestExpiry.DEAD.pid} of another machine or container"

    def test_the_same_pid_here_is_somebody_else(self, tmp_path, made):
        path = made.folder / "owner.json"
        me = processes.myself()
        path.write_text(
            json.dumps(json.loads(path.read_text()) | {"pid": me.pid, "start_ticks": me.start_ticks})
        )
        with pytest.raises(UsageError, match="of another machine or container"):
            folders.adopt(made)

    def test_only_who_knows_that_it_has_ended_takes_it_over(self, tmp_path, made):
        with pytest.raises(UsageError, match=r"of another machine or container.*`lab down n-r1` removes the node"):
            folders.adopt(made)
        assert folders.adopt(made, from_elsewhere=True).home == processes.home()
        assert not folders.find(tmp_path, "n-r1").is_elsewhere

    def test_what_was_kept_there_can_be_used_here_until_its_time_is_over(self, tmp_path, made):
        kept = folders.keep(made, 1000.0)
        assert not kept.is_expired(999.0)
        assert kept.is_expired(1000.0)
        assert folders.adopt(kept).owner == processes.myself()
        assert not folders.find(tmp_path, "n-r1").is_given_up

    def test_what_was_taken_over_there_is_left_until_long_after_its_time(self, made):
        used = dataclasses.replace(made, kept_until_s=1000.0)
        assert not used.is_expired(1000.0 + folders.ELSEWHERE_S)
        assert used.is_expired(1001.0 + folders.ELSEWHERE_S)

    def test_a_half_made_folder(self, tmp_path, made):
        made.folder.rename(tmp_path / "nodes" / f".n-r1.{2**22 + 1}")
        assert folders.expired(tmp_path, "qemu") == []

    def test_a_folder_of_an_older_lab_is_judged_by_its_pid(self, tmp_path, made):
        path = made.folder / "owner.json"
        old = ("provider", "pid", "start_ticks", "run_id", "kept_until_s")
        path.write_text(json.dumps({name: json.loads(path.read_text())[name] for name in old}))
        (entry,) = folders.read(tmp_path)
        assert entry.home is None
        assert [entry.id for entry in folders.expired(tmp_path, "qemu")] == ["n-r1"]


class TestCollect:
    """`lab gc` beside a run that takes a node over at the same moment."""

    def test_a_node_that_was_taken_over_since_it_was_listed_stays(self, tmp_path, monkeypatch):
        place = folders.make(tmp_path, "n-r1", "r1", "qemu")
        disown(place)
        listed = folders.expired(tmp_path, "qemu")
        monkeypatch.setattr(folders, "expired", lambda cache, provider: listed)
        folders.adopt(place)
        ended = []
        assert folders.collect(tmp_path, "qemu", ended.append, dry_run=False) == []
        assert ended == []

    def test_nobody_takes_over_what_is_being_removed(self, tmp_path, monkeypatch):
        place = folders.make(tmp_path, "n-r1", "r1", "qemu")
        disown(place)
        monkeypatch.setattr(folders, "ADOPT_LOCK_S", 0.0)

        def end(entry):
            with pytest.raises(UsageError, match="n-r1 is being removed or taken over by another process"):
                folders.adopt(entry)
            folders.remove(entry)

        assert folders.collect(tmp_path, "qemu", end, dry_run=False) == ["n-r1"]
        with pytest.raises(NoSuchNode):
            folders.adopt(place)
        assert os.listdir(tmp_path / "nodes") == [], "to look for it does not make it anew"

    def test_what_another_gc_is_at_is_passed_over(self, tmp_path):
        place = folders.make(tmp_path, "n-r1", "r1", "qemu")
        disown(place)
        with folders._locked(place, 0.0):
            assert folders.collect(tmp_path, "qemu", folders.remove, dry_run=False) == []
        assert place.folder.exists()


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
            "", "{", "[]", "7", "null", "{}", '{"pid": 1}', b"\xff",
            '{"pid": null, "start_ticks": 1, "run_id": "r", "kept_until_s": 0}',
            '{"pid": 1, "start_ticks": 1, "run_id": "r", "kept_until_s": null}',
            '{"pid": [1], "start_ticks": 1, "run_id": "r", "kept_until_s": 0}',
        ],
    )  # fmt: skip
    def test_a_folder_whose_owner_cannot_be_read_is_told_and_left_alone(self, tmp_path, content):
        folder = tmp_path / "nodes" / "n-r1"
        folder.mkdir(parents=True)
        (folder / "owner.json").write_bytes(content if isinstance(content, bytes) else content.encode())
        late = folders.make(tmp_path, "late-r1", "r1", "qemu")
        disown(late)
        for provider in ("qemu", "ssh", None):
            with pytest.raises(NodeError, match=r"node n-r1: .*owner\.json cannot be read") as caught:
                folders.find(tmp_path, "n-r1", provider)
            assert str(folder) in str(caught.value)
        ended = []
        for dry_run in (True, False):
            with pytest.raises(LeftBehind, match=r"node n-r1: .*owner\.json cannot be read"):
                folders.collect(tmp_path, "qemu", ended.append, dry_run=dry_run)
        assert [entry.id for entry in ended] == ["late-r1"], "what can be removed is removed"
        assert folders.collect(tmp_path, "ssh", ended.append, dry_run=False) == []
        (entry,) = [entry for entry in folders.read(tmp_path) if entry.id == "n-r1"]
        record = folders.record(entry)
        assert (record.state, record.in_use, record.is_expired) == ("owner.json cannot be read", True, False)
        with pytest.raises(NodeError):
            folders.adopt(entry)

    def test_a_folder_that_may_not_be_looked_into_is_not_taken_for_empty(self, tmp_path, monkeypatch):
        folders.make(tmp_path, "n-r1", "r1", "ssh")
        read_text = Path.read_text

        def refuse(path, *arguments, **options):
            if path.name == "owner.json":
                raise PermissionError(13, "Permission denied")
            return read_text(path, *arguments, **options)

        monkeypatch.setattr(Path, "read_text", refuse)
        assert folders.expired(tmp_path, "qemu") == []
        with pytest.raises(NodeError, match="Permission denied"):
            folders.find(tmp_path, "n-r1", "ssh")
        monkeypatch.setattr(Path, "iterdir", lambda path: (_ for _ in ()).throw(PermissionError(13, "not for you")))
        with pytest.raises(NodeError, match=r"nodes in .* cannot be listed: .*not for you"):
            folders.find(tmp_path, "n-r1", "ssh")

    def test_a_folder_whose_removal_was_cut_off_belongs_to_nobody(self, tmp_path):
        folder = tmp_path / "nodes" / "n-r1"
        folder.mkdir(parents=True)
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

        monkeypatch.setattr(os, "replace", crash)
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

    def test_a_node_that_was_never_finished(self, tmp_path):
        place = folders.make(tmp_path, "n-r1", "r1", "qemu")
        with pytest.raises(folders.NotBegun, match="node n-r1 was never finished; `lab down n-r1`"):
            folders.read_node(place)

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"host": "h"}'])
    def test_what_cannot_be_read_is_not_taken_for_never_finished(self, tmp_path, text):
        place = folders.make(tmp_path, "n-r1", "r1", "qemu")
        (place.folder / "node.json").write_text(text)
        with pytest.raises(NodeError, match=r"node n-r1: .*node\.json cannot be read") as caught:
            folders.read_node(place)
        assert not isinstance(caught.value, folders.NotBegun)

    def test_owner_and_node_are_on_the_disk_before_anything_goes_on(self, tmp_path, monkeypatch):
        synced, renamed = [], []
        fsync, replace = os.fsync, os.replace
        monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
        monkeypatch.setattr(os, "replace", lambda old, new: (renamed.append((str(old), new.name)), replace(old, new)))
        place = folders.make(tmp_path, "n-r1", "r1", "qemu")
        folders.write_node(place.folder, self.address(None), {})
        assert [name for _, name in renamed] == ["owner.json", "node.json"]
        assert all(old in synced for old, _ in renamed)
        assert {str(place.folder.parent), str(place.folder)} <= set(synced)


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
