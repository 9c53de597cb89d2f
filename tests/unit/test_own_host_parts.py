"""What the provider of the user's own host is made of: the address, the probe of the host, the lock."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from lab import processes
from lab.config import NodeOptions
from lab.host import Command, LocalHost
from lab.model import NodeError, ParseError, UsageError
from lab.providers.own_host import lock, preflight
from lab.providers.own_host.address import parse_target, resolve, shown
from lab.providers.own_host.lock import Holder
from lab.providers.own_host.provider import RUN_REMOVE
from lab.ssh_keys import make_key_pair
from tests.captures_helper import ROOT
from tests.own_host import probe

PUBLIC = make_key_pair("own")[1].strip()


class TestAddress:
    @pytest.mark.parametrize(
        ("text", "parts"),
        [
            ("root@192.0.2.7", ("root", "192.0.2.7", None)),
            ("admin@node.example:2222", ("admin", "node.example", 2222)),
            ("node-1", (None, "node-1", None)),
            ("node_1:1", (None, "node_1", 1)),
            ("me@corp@no", None),
            ("r@[2001:db8::7]:65535", ("r", "2001:db8::7", 65535)),
            ("[fe80::1%eth0]", (None, "fe80::1%eth0", None)),
        ],
    )
    def test_well_formed(self, text, parts):
        if parts is None:
            with pytest.raises(UsageError):
                parse_target(text)
            return
        found = parse_target(text)
        assert (found.user, found.host, found.port) == parts

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "is no host name"),
            ("root@", "is no host name"),
            ("@host", "'' is no user name"),
            ("-oProxyCommand=x@host", "is no user name"),
            ("root@-oProxyCommand", "is no host name"),
            ("root@a b", "is no host name"),
            ("root@host:", "'' is no port"),
            ("root@host:0", "'0' is no port"),
            ("root@host:65536", "'65536' is no port"),
            ("root@host:+22", "is no port"),
            ("root@host:²", "is no port"),
            ("root@::1", "an IPv6 address stands in brackets"),
            ("root@[::1]x", "an IPv6 address stands in brackets"),
            ("root@[host]", "'host' is no IPv6 address"),
            ("root@[::1]:", "'' is no port"),
            ("ssh://root@host", "is no user name"),
        ],
    )
    def test_malformed(self, text, message):
        with pytest.raises(UsageError, match=message) as caught:
            parse_target(text)
        assert "examples: root@192.0.2.7" in str(caught.value)

    def test_shown_as_it_could_be_given_again(self, tmp_path):
        (tmp_path / "known").write_text(f"[2001:db8::7]:2222,2001:db8::7 {PUBLIC}\n")
        for text in ("root@[2001:db8::7]:2222", "root@[2001:db8::7]"):
            assert shown(resolve(NodeOptions(host=text), (tmp_path / "known",))) == text


class TestPreflight:
    def test_a_fit_host_and_its_facts(self):
        found = preflight.parse(probe())
        assert preflight.problems(found, accept_kubernetes=False) == []
        assert preflight.facts(found) == {
            "emulation": "kvm", "vcpus": "4", "memory_mib": "4096", "image": "Ubuntu 24.04.1 LTS", "swap_mib": "0",
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"system": "Linux aarch64"}, "it is Linux aarch64; the binaries that are measured are for Linux x86_64"),
            ({"system": ""}, "of unknown kind"),
            ({"init": "runit"}, "PID 1 is runit"),
            ({"booted": ""}, "PID 1 is unknown"),
            ({"cgroup": "tmpfs"}, "is tmpfs, not cgroup2fs"),
            ({"cgroup": ""}, "is unknown, not cgroup2fs"),
            ({"controllers": "cpuset cpu io pids"}, "no cgroup controller for memory"),
            ({"controllers": ""}, "no cgroup controller for cpu, memory"),
            ({"python": ""}, "python3 is missing"),
            ({"python": "3.8"}, "python3 is 3.8; 3.9 or later"),
            ({"cpus": "1"}, "it has 1 CPUs; at least 2"),
            ({"cpus": ""}, "an unknown number of CPUs"),
            ({"memory": "MemTotal 3670015\nSwapTotal 0"}, "it has 3583 MiB of memory; at least 3584"),
            ({"memory": ""}, "an unknown number of MiB"),
            ({"virtualization": ""}, "systemd-detect-virt says nothing"),
            ({"paths": "/opt/lab"}, "/opt/lab is there already"),
        ],
    )
    def test_each_thing_that_is_not_fit_is_named_once(self, changes, message):
        for accept in (False, True):
            [said] = preflight.problems(preflight.parse(probe(**changes)), accept_kubernetes=accept)
            assert message in said

    @pytest.mark.parametrize("changes", [{"memory": "MemTotal 3670016\nSwapTotal 0"}, {"cpus": "2"}, {"python": "3.9"}])
    def test_the_least_is_enough(self, changes):
        assert preflight.problems(preflight.parse(probe(**changes)), accept_kubernetes=False) == []

    @pytest.mark.parametrize(
        ("changes", "sign"),
        [
            ({"processes": "systemd\nkubelet"}, "process kubelet"),
            ({"processes": "k3s-server"}, "process k3s-server"),
            ({"processes": "kube-controller"}, "process kube-controller"),
            ({"units": "k3s.service enabled enabled"}, "unit k3s.service"),
            ({"units": "snap.microk8s.daemon-kubelite.service enabled enabled"}, "unit snap.microk8s.daemon-kubelite"),
            ({"units": "lab-kubelet.service static -"}, "unit lab-kubelet.service"),
            ({"paths": "/etc/kubernetes\n/var/lib/kubelet"}, "/etc/kubernetes, /var/lib/kubelet"),
            ({"tcp": "   0: 00000000000000000000000000000000:280A 0:0 0A 0"}, "port 10250 (kubelet)"),
            ({"tcp": "   0: 00000000:192B 00000000:0000 0A 0"}, "port 6443 (API server)"),
        ],
    )
    def test_signs_of_kubernetes(self, changes, sign):
        found = preflight.parse(probe(**changes))
        [said] = preflight.problems(found, accept_kubernetes=False)
        assert sign in said
        assert "--accept-kubernetes" in said
        assert preflight.problems(found, accept_kubernetes=True) == []

    @pytest.mark.parametrize(
        "text", ["", "== end\n", probe().replace("== end\n", ""), probe().replace("== tcp\n", ""), "x\n" + probe()]
    )
    def test_a_probe_that_is_not_whole(self, text):
        with pytest.raises(ParseError):
            preflight.parse(text)

    @pytest.mark.parametrize(
        ("kib", "mib"),
        [(4005116, 4096), (8131000, 8192), (16373000, 16384), (65800000, 65536), (3670016, 3584), (1, 1)],
    )
    def test_memory_as_it_is_sold(self, kib, mib):
        assert preflight.parse(probe(memory=f"MemTotal {kib}\nSwapTotal 0")).memory_class_mib == mib

    def test_the_probe_runs_here_and_is_understood(self):
        found = preflight.parse(LocalHost().run(Command(argv=("sh", "-c", preflight.SCRIPT), timeout_s=120)).stdout)
        assert found.system is not None
        assert found.system.startswith("Linux ")
        assert found.cpus == os.cpu_count()
        assert found.memory_kib is not None
        assert found.memory_kib > 0


class TestLockScripts:
    """The scripts of the lock, run for real by this machine's sh and flock on a folder of the test."""

    @pytest.fixture
    def place(self, tmp_path, monkeypatch):
        monkeypatch.setattr(lock, "PLACE", str(tmp_path / "node-lab.lock"))
        monkeypatch.setattr(lock, "FLOCK", ("flock", "-w", "20", str(tmp_path), "sh", "-c"))
        (tmp_path / "machine-id").write_text("abc\n")
        return tmp_path

    def holder(self, place, node_id="n", expires_s=0.0, **changes):
        (place / node_id).mkdir(exist_ok=True)
        made = lock.make(
            node_id=node_id,
            run_id="r 'quoted' \"é\"",
            folder=place / node_id,
            expires_s=expires_s,
            machine_id=place / "machine-id",
        )
        return dataclasses.replace(made, **changes)

    def files(self, place):
        return sorted(path.name for path in place.iterdir() if path.is_file() and path.name != "machine-id")

    def test_taken_taken_again_and_released(self, place):
        mine = self.holder(place)
        assert lock.take(LocalHost(), mine) is None
        assert (place / "node-lab.lock").read_text() == mine.text + "\n"
        assert Holder.parse(mine.text) == mine
        # The same try after a lost connection finds its own lock.
        assert lock.take(LocalHost(), mine) is None
        lock.release(LocalHost(), mine.text)
        lock.release(LocalHost(), mine.text)
        assert self.files(place) == []

    def test_of_another_living_holder(self, place):
        other = self.holder(place, "other")
        lock.take(LocalHost(), other)
        mine = self.holder(place, "mine")
        with pytest.raises(NodeError, match=f"in use by process {os.getpid()} here"):
            lock.take(LocalHost(), mine)
        lock.release(LocalHost(), mine.text)
        assert (place / "node-lab.lock").read_text() == other.text + "\n"

    def test_a_stale_one_is_replaced(self, place):
        other = self.holder(place, "other", pid=2**22 + 1)
        (place / "other").rmdir()
        lock.take(LocalHost(), other)
        mine = self.holder(place, "mine")
        assert lock.take(LocalHost(), mine) == other
        assert (place / "node-lab.lock").read_text() == mine.text + "\n"

    @pytest.mark.parametrize("text", ["", "hello", "[]", "7", '{"node_id": "x"}'])
    def test_a_lock_of_somebody_else_is_left_alone(self, place, text):
        (place / "node-lab.lock").write_text(text)
        with pytest.raises(NodeError, match="is not one of this lab"):
            lock.take(LocalHost(), self.holder(place))
        assert (place / "node-lab.lock").read_text() == text

    def test_many_at_once_one_wins(self, place):
        script = "import sys; from lab.host import *; print(LocalHost().run(Command(argv=tuple(sys.argv[1:]))).stdout)"
        tries = [
            subprocess.Popen(
                [sys.executable, "-c", script, *lock.FLOCK, lock.TAKE, "sh", lock.PLACE, f"holder {number}", ""],
                stdout=subprocess.PIPE, text=True, cwd=ROOT,
            )
            for number in range(3)
        ]  # fmt: skip
        said = {process.communicate()[0].strip().splitlines()[-1] for process in tries}
        assert said == {(place / "node-lab.lock").read_text().strip()}


@pytest.mark.parametrize(("installed", "says"), [(True, "the host's"), (False, "the controller's")])
def test_the_removal_that_came_with_the_installation_goes_first(tmp_path, installed, says):
    program = tmp_path / "upstream_remove.sh"
    if installed:
        program.write_text("echo \"the host's\"\n")
    argv = ("sh", "-c", RUN_REMOVE, "sh", str(program))
    done = LocalHost().run(Command(argv=argv, stdin="echo \"the controller's\"; exit 3\n", check=False))
    assert done.stdout == f"{says}\n"
    assert done.exit_status == (0 if installed else 3)


class TestStaleness:
    MINE = Holder(
        node_id="a", run_id="r", controller="c", machine="m", pid=1, start_ticks=1, folder="/", expires_s=0.0
    )

    def other(self, tmp_path, **changes):
        gone = {"pid": 2**22 + 1, "folder": str(tmp_path / "gone"), "expires_s": 100.0}
        return dataclasses.replace(self.MINE, **{**gone, **changes})

    def test_here_the_process_and_the_folder_decide_not_the_expiry(self, tmp_path):
        me = processes.myself()
        assert lock.why_held(self.other(tmp_path), self.MINE, 0.0) == ""
        living = self.other(tmp_path, pid=me.pid, start_ticks=me.start_ticks)
        assert "in use by process" in lock.why_held(living, self.MINE, 1e12)
        used_again = self.other(tmp_path, pid=me.pid, start_ticks=me.start_ticks - 1)
        assert lock.why_held(used_again, self.MINE, 0.0) == ""
        kept = self.other(tmp_path, folder=str(tmp_path))
        assert "`lab down a`" in lock.why_held(kept, self.MINE, 1e12)

    @pytest.mark.parametrize(("now_s", "held"), [(99.9, True), (100.0, False)])
    @pytest.mark.parametrize("machines", [("m", "x"), ("", ""), ("", "m")])
    def test_from_elsewhere_the_expiry_decides(self, tmp_path, now_s, held, machines):
        mine, theirs = machines
        other = self.other(tmp_path, machine=theirs)
        reason = lock.why_held(other, dataclasses.replace(self.MINE, machine=mine), now_s)
        assert ("until 1970-01-01T00:01:40Z" in reason) is held
        assert bool(reason) is held
