"""`lab nodes`, `ssh`, `logs`, `down` and `gc` on folders of guests with real processes in place of QEMU."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import time

import pytest

from lab import processes
from lab.model import NodeError
from lab.providers import folders
from lab.providers.digitalocean.api import Api
from tests.cloud_processes import closed_port
from tests.digitalocean_api import LocalDigitalOcean
from tests.ssh_server import SshServer

HOUR_S = 3600.0


@pytest.fixture
def bench(bench):
    # It is its folders that are looked at here.
    bench.use_local_provider()
    return bench


@pytest.fixture
def guests(bench):
    """Makes guests, each with a process that carries its mark, and ends those processes after the test."""
    made = Guests(bench.root / "cache")
    yield made
    made.end()


class Guests:
    def __init__(self, cache):
        self.cache = cache
        self.started = {}

    def make(self, name, *, owner="me", kept_for_s=0.0):
        """A guest of this process, or of a process that is dead."""
        guest = folders.make(self.cache, f"{name}-r1", "r1", "qemu")
        sleep = str(shutil.which("sleep"))
        self.started[guest.id] = processes.start([sleep, "1000"], folder=guest.folder, log=guest.folder / "qemu.log")
        path = guest.folder / "owner.json"
        data = json.loads(path.read_text())
        data["kept_until_s"] = time.time() + kept_for_s if kept_for_s else 0.0
        if owner == "dead":
            # No process started before the machine did.
            data |= {"pid": 1, "start_ticks": -1}
        path.write_text(json.dumps(data))
        return guest

    def runs(self, guest):
        return self.started[guest.id].poll() is None and guest.folder.exists()

    def is_gone(self, guest):
        return self.started[guest.id].wait(timeout=30) is not None and not guest.folder.exists()

    def end(self):
        for process in self.started.values():
            process.kill()
            process.wait(timeout=30)


# --- nodes


def test_no_nodes(bench):
    ended = bench.lab("nodes")
    assert ended.code == 0
    assert bench.lab("nodes", "--json").json() == []
    assert not (bench.root / "cache").exists(), "looking makes no folder"


def test_nodes_shows_what_becomes_of_each(bench, guests):
    guests.make("used")
    guests.make("kept", owner="dead", kept_for_s=5 * HOUR_S)
    guests.make("late", owner="dead")
    ended = bench.lab("nodes")
    assert ended.code == 0
    (used,) = [line for line in ended.out.splitlines() if "used-r1" in line]
    (kept,) = [line for line in ended.out.splitlines() if "kept-r1" in line]
    (late,) = [line for line in ended.out.splitlines() if "late-r1" in line]
    assert "in use" in used
    assert str(os.getpid()) in used
    assert "kept for 5.0 h more" in kept
    assert "left over (lab gc removes it)" in late
    listed = {entry["id"]: entry for entry in bench.lab("nodes", "--json").json()}
    facts = {name: (entry["provider"], entry["in_use"], entry["left_over"]) for name, entry in listed.items()}
    assert facts == {
        "used-r1": ("qemu", True, False),
        "kept-r1": ("qemu", False, False),
        "late-r1": ("qemu", False, True),
    }
    assert listed["used-r1"]["expires_s"] is None
    assert listed["kept-r1"]["expires_s"] > time.time()


# --- gc


def test_gc_removes_what_dead_runs_left_and_nothing_else(bench, guests):
    used, kept = guests.make("used"), guests.make("kept", owner="dead", kept_for_s=HOUR_S)
    late, cut = guests.make("late", owner="dead"), guests.make("cut")
    (cut.folder / "owner.json").unlink()
    dry = bench.lab("gc", "--dry-run")
    assert (dry.code, dry.out) == (0, "")
    assert dry.err == "would remove cut-r1\nwould remove late-r1\n"
    assert all(guests.runs(guest) for guest in (used, kept, late, cut))
    assert bench.lab("gc", "--dry-run", "--json").json() == {"dry_run": True, "removed": ["cut-r1", "late-r1"]}
    ended = bench.lab("gc")
    assert (ended.code, ended.err) == (0, "removed cut-r1\nremoved late-r1\n")
    assert guests.is_gone(late)
    assert guests.is_gone(cut)
    assert guests.runs(used)
    assert guests.runs(kept)
    assert bench.lab("gc").err == "nothing is left over\n"
    assert bench.lab("gc", "--json").json() == {"dry_run": False, "removed": []}


def test_gc_leaves_a_folder_alone_whose_owner_cannot_be_read(bench, guests):
    damaged, late = guests.make("damaged"), guests.make("late", owner="dead")
    (damaged.folder / "owner.json").write_text("")
    ended = bench.lab("gc")
    assert ended.code == 6
    assert f"node damaged-r1: {damaged.folder}/owner.json cannot be read" in ended.error
    assert guests.runs(damaged)
    assert guests.is_gone(late)
    assert "owner.json cannot be read" in bench.lab("nodes").out
    assert bench.lab("down", "damaged-r1").code == 5
    assert guests.runs(damaged)


def test_gc_names_what_will_not_go_and_removes_the_rest(bench, guests, monkeypatch):
    one, two = guests.make("one", owner="dead"), guests.make("two", owner="dead")
    stubborn(monkeypatch, one)
    ended = bench.lab("gc")
    assert ended.code == 6
    assert "node one-r1: processes 4242 would not end" in ended.error
    assert str(one.folder) in ended.error
    assert guests.is_gone(two)


def stubborn(monkeypatch, guest):
    """Let the processes of one guest survive every signal."""
    real = processes.end_marked

    def end_marked(folder, **settings):
        if folder == guest.folder:
            return [processes.Identity(pid=4242, start_ticks=1)]
        return real(folder, **settings)

    monkeypatch.setattr(processes, "end_marked", end_marked)


# --- down


def test_down_by_name(bench, guests):
    one, two = guests.make("one"), guests.make("two", owner="dead", kept_for_s=HOUR_S)
    ended = bench.lab("down", "two-r1")
    assert (ended.code, ended.out, ended.err) == (0, "", "removed two-r1\n")
    assert guests.is_gone(two)
    assert guests.runs(one)


def test_down_all_spares_what_a_running_lab_uses(bench, guests):
    used, kept = guests.make("used"), guests.make("kept", owner="dead", kept_for_s=HOUR_S)
    assert bench.lab("down", "--all").code == 0
    assert guests.is_gone(kept)
    assert guests.runs(used)
    assert bench.lab("down", "--all").code == 0, "nothing more to do is no error"


@pytest.mark.parametrize("words", [[], ["one-r1", "--all"]])
def test_down_wants_names_or_all(bench, guests, words):
    guest = guests.make("one", owner="dead")
    ended = bench.lab("down", *words)
    assert ended.code == 2
    assert ended.error == "name nodes, or give --all"
    assert guests.runs(guest)


def test_a_mistyped_name_is_found_before_anything_is_removed(bench, guests):
    guest = guests.make("one")
    ended = bench.lab("down", "one-r1", "tow-r1")
    assert ended.code == 2
    assert "no node 'tow-r1'; there are: one-r1" in ended.error
    assert guests.runs(guest)


def test_down_goes_on_past_a_node_that_will_not_go(bench, guests, monkeypatch):
    one, two = guests.make("one"), guests.make("two")
    stubborn(monkeypatch, one)
    ended = bench.lab("down", "one-r1", "two-r1", "one-r1")
    assert ended.code == 6
    assert ended.error.count("processes 4242 would not end") == 1
    assert guests.is_gone(two)


# --- ssh


@pytest.fixture
def booted(bench, guests, tmp_path):
    """A kept guest whose SSH port is that of a real server, and that server."""
    server = SshServer(tmp_path / "server").start()
    guest = guests.make("node", owner="dead", kept_for_s=HOUR_S)
    shutil.copyfile(server.identity, guest.folder / "id_ed25519")
    (guest.folder / "id_ed25519").chmod(0o600)
    address = dataclasses.replace(server.address(), identity=guest.folder / "id_ed25519")
    folders.write_node(guest.folder, address, {"pid": "1"})
    yield guest, server
    server.stop()


def programs(bench, monkeypatch, **scripts):
    """A PATH that holds these shell scripts and what the program itself needs."""
    folder = bench.root / "bin"
    folder.mkdir()
    for name in ("git", "timeout", "sh"):
        (folder / name).symlink_to(str(shutil.which(name)))
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


class Replaced(Exception):
    """Stands for the program that takes this one's place."""


def test_ssh_becomes_a_client_with_the_pinned_host_key(bench, booted, monkeypatch):
    guest, server = booted
    calls = []

    def execvp(name, argv):
        calls.append((name, argv))
        raise Replaced

    monkeypatch.setattr(os, "execvp", execvp)
    with pytest.raises(Replaced):
        bench.lab("ssh", "node-r1", "ls", "-l", "/")
    ((name, argv),) = calls
    assert name == argv[0] == "ssh"
    assert argv[-4:] == ["root@127.0.0.1", "ls", "-l", "/"]
    assert argv[argv.index("-p") + 1] == str(server.port)
    assert argv[argv.index("-i") + 1] == str(guest.folder / "id_ed25519")
    known = guest.folder / "known_hosts"
    assert {f"UserKnownHostsFile={known}", "StrictHostKeyChecking=yes", "IdentitiesOnly=yes"} <= set(argv)
    assert known.read_text() == f"[127.0.0.1]:{server.port} {server.host_key.strip()}\n"


def test_ssh_without_a_client(bench, booted, monkeypatch):
    programs(bench, monkeypatch)
    ended = bench.lab("ssh", "node-r1")
    assert ended.code == 2
    assert "cannot run ssh" in ended.error
    assert "install the OpenSSH client" in ended.error


@pytest.mark.parametrize("verb", ["ssh", "logs"])
def test_an_unknown_node(bench, guests, verb):
    ended = bench.lab(verb, "node-r1")
    assert ended.code == 2
    assert "no node 'node-r1'; there are: none (see `lab nodes`)" in ended.error
    guests.make("other")
    assert "there are: other-r1" in bench.lab(verb, "node-r1").error


@pytest.mark.parametrize("verb", ["ssh", "logs"])
def test_a_node_that_never_finished_booting(bench, guests, verb):
    guests.make("node", owner="dead", kept_for_s=HOUR_S)
    ended = bench.lab(verb, "node-r1")
    assert ended.code == 2
    assert "`lab down node-r1` removes it" in ended.error


# --- logs


def test_logs_of_a_kept_node(bench, booted, monkeypatch):
    guest, server = booted
    programs(bench, monkeypatch, journalctl='echo "journal of $*"')
    before = folders.find(bench.root / "cache", guest.id)
    ended = bench.lab("logs", "node-r1")
    # The kubelet's unit has another name in each distribution; a node has one of them.
    words = "-u lab-kubelet -u k3s -n 200 --no-pager -o short-precise"
    assert (ended.code, ended.out, ended.err) == (0, f"journal of {words}\n", "")
    other = bench.lab("logs", "node-r1", "--unit", "containerd", "--lines", "5").out
    assert other.startswith("journal of -u containerd -n 5 ")
    after = folders.find(bench.root / "cache", guest.id)
    assert after.kept_until_s == before.kept_until_s, "looking does not change how long a node is kept"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("words", "part"), [(("--unit", ""), "--unit '' names no unit"), (("--lines", "0"), "--lines")]
)
def test_flags_of_logs_are_looked_at_before_the_node_is(bench, words, part):
    ended = bench.lab("logs", "no-such-node", *words)
    assert ended.code == 2
    assert part in ended.err


def test_logs_of_a_unit_that_fails(bench, booted, monkeypatch):
    guest, _ = booted
    programs(bench, monkeypatch, journalctl="echo 'no such unit' >&2; exit 1")
    ended = bench.lab("logs", "node-r1", "--unit", "nothing")
    assert ended.code == 5
    assert ended.out == ""
    assert "no such unit" in ended.error
    assert folders.find(bench.root / "cache", guest.id).kept_until_s > time.time()


def test_logs_of_a_node_whose_machine_is_gone(bench, booted):
    guest, server = booted
    server.stop()
    ended = bench.lab("logs", "node-r1")
    assert ended.code == 5
    assert "node-r1 at [127.0.0.1]" in ended.error
    assert folders.find(bench.root / "cache", guest.id).kept_until_s > time.time()


def test_looking_into_a_node_that_another_lab_uses_takes_nothing_from_it(bench, booted, monkeypatch):
    guest, _ = booted
    programs(bench, monkeypatch, journalctl="echo a line")
    path = guest.folder / "owner.json"
    other = processes.identity(os.getppid())
    assert other is not None
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": other.pid, "start_ticks": other.start_ticks}))
    before = path.read_text()
    ended = bench.lab("logs", "node-r1")
    assert (ended.code, ended.out) == (0, "a line\n")
    assert path.read_text() == before


class TestSeveralProviders:
    """A cloud that cannot be asked must not keep anybody from local nodes."""

    @pytest.fixture
    def no_cloud(self, monkeypatch):
        monkeypatch.setenv("DIGITALOCEAN_TOKEN", "dop_v1_of_nobody_at_all")
        with LocalDigitalOcean() as server:
            monkeypatch.setenv("LAB_DIGITALOCEAN_API", server.url)
            yield

    def test_local_nodes_are_listed_and_the_other_error_is_told(self, bench, guests, no_cloud):
        guests.make("used")
        ended = bench.lab("nodes")
        assert ended.code == 5
        assert "used-r1" in ended.out
        assert "401" in ended.err
        assert "dop_v1_of_nobody_at_all" not in ended.err

    @pytest.mark.parametrize(
        "words", [["nodes"], ["gc"], ["gc", "--json"], ["plan", "--versions", "v1.36.3", "--provider", "digitalocean"]],
        ids=" ".join,
    )  # fmt: skip
    def test_why_it_takes_so_long_is_told_when_the_cloud_cannot_be_reached(self, bench, monkeypatch, words):
        told = []

        def sleep(seconds):
            # In the first pause of many, a second after the first failure.
            told.append(bench.capfd.readouterr())
            raise NodeError("enough")

        monkeypatch.setenv("DIGITALOCEAN_TOKEN", "dop_v1_of_nobody_at_all")
        monkeypatch.setitem(Api.__init__.__kwdefaults__, "sleep", sleep)
        with closed_port() as port:
            monkeypatch.setenv("LAB_DIGITALOCEAN_API", f"http://127.0.0.1:{port}/v2/")
            assert bench.lab(*words).code == 5
        ((out, err),) = told
        assert out == ""
        assert re.search(r"^DigitalOcean GET /v2/\w+: .*refused.*; asking again for up to \d+ s$", err, re.MULTILINE)

    def test_a_local_node_can_be_removed(self, bench, guests, no_cloud):
        guest = guests.make("late", owner="dead")
        ended = bench.lab("down", "late-r1")
        assert ended.code == 5
        assert guests.is_gone(guest)
        assert "removed late-r1" in ended.err
