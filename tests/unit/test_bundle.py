"""The bundle of a failure: what is there, what is missing and why, one deadline, no secret."""

from __future__ import annotations

import dataclasses
import secrets

import pytest

from lab.distros import bundle
from lab.distros.bundle import CLUSTER, INDEX, NODE, Bundle
from lab.host import Command, Deadline, LocalHost
from lab.kubectl import Kubectl
from lab.model import Cell, TransportError
from lab.providers.contract import NodeSpec
from lab.secrets import SECRETS
from tests.fakes import FakeClock, FakeDistro, FakeProvider, Reply, kubectl_words

ITEMS = {"kubelet.log": ("journalctl", "-u", "lab-kubelet")}


@pytest.fixture
def node(tmp_path):
    return FakeProvider(root=tmp_path / "nodes").create(NodeSpec(name="n", run_id="r"), Deadline.after(60))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "bundle"


@pytest.fixture
def cluster(node):
    distro = FakeDistro()
    distro.controller.answer_when(
        lambda command: bool(kubectl_words(command)), lambda command: Reply(stdout=" ".join(kubectl_words(command)))
    )
    return distro.install(node, Cell(distro="upstream", version="v1.36.3"), Deadline.after(60))


def index(folder):
    lines = (folder / INDEX).read_text().splitlines()
    return {line.partition(" ")[0]: line.partition(" ")[2].strip() for line in lines}


def test_everything_is_there(node, cluster, folder):
    node.host.answer_when(lambda command: True, lambda command: Reply(stdout=command.shown()))
    (node.folder / "console.log").write_bytes(b"\xff kernel panic\n")
    (node.folder / "etcd.log").write_text("etcd says\n")
    bundle.save(folder, cluster, node, ITEMS, {"etcd.log": node.folder / "etcd.log"})
    found = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(found) == {*ITEMS, *NODE, *CLUSTER, "console.log", "etcd.log", INDEX}
    assert found["kubelet.log"] == "journalctl -u lab-kubelet"
    assert found["pods.json"] == "get pods -A -o json"
    assert "kernel panic" in found["console.log"]
    assert index(folder)["kubelet.log"] == "25 bytes"
    assert "missing" not in found[INDEX]


def test_what_is_missing_has_its_reason(node, folder):
    node.host.answer(ITEMS["kubelet.log"], Reply(status=1, stderr="No journal files\nwere found.\n"))
    node.host.answer(NODE["cloud-init.log"], Reply(stdout="half a log", status=3, stderr="read error"))
    node.host.answer_when(lambda command: command.argv[0] == "sh", Reply(seconds=999))
    node.host.answer_when(lambda command: True, Reply(stdout="x"))
    bundle.save(folder, None, node, ITEMS, {"etcd.log": node.folder / "nothing"})
    found = index(folder)
    assert found["kubelet.log"] == "missing: exit 1: No journal files were found."
    assert found["cgroups.txt"].startswith("missing: ")
    assert "no end within 30 s" in found["cgroups.txt"]
    assert found["console.log"] == "missing: nodes of provider fake have none that could be read from here"
    assert found["etcd.log"] == "missing: No such file or directory"
    assert found["pods.json"] == "missing: the installation did not come to its end"
    assert found["cloud-init.log"] == "is what was printed before exit 3: read error"
    assert (folder / "cloud-init.log").read_text() == "half a log"


def test_a_lost_node_is_asked_once(node, cluster, folder):
    node.host.answer_when(lambda command: True, TransportError("node n: the guest is gone"))
    bundle.save(folder, cluster, node, ITEMS, {})
    asked = [command for command in node.host.commands if command.argv[0] != "date"]
    assert len(asked) == 1
    found = index(folder)
    assert found["kubelet.log"] == "missing: node n: the guest is gone"
    assert found["kernel.log"] == "missing: not asked for, since the connection is lost: node n: the guest is gone"
    assert found["pods.json"] == "19 bytes", "the API server on the controller still answers"


def test_an_api_server_elsewhere_is_asked_about_a_node_that_is_gone(node, cluster, folder):
    def gone():
        raise TransportError("the guest is gone")

    node.host.answer_when(lambda command: True, TransportError("gone"))
    watching = dataclasses.replace(cluster, kubectl=dataclasses.replace(cluster.kubectl, check_node=gone))
    bundle.save(folder, watching, node, ITEMS, {})
    assert index(folder)["pods.json"] == "19 bytes"


def test_an_api_server_on_a_lost_node_is_not_asked(node, cluster, folder):
    node.host.answer_when(lambda command: True, TransportError("gone"))
    there = dataclasses.replace(cluster, kubectl=Kubectl(host=node.host, argv=("kubectl",), kubeconfig="/k"))
    bundle.save(folder, there, node, ITEMS, {})
    assert len(node.host.commands) == 1
    assert "connection is lost" in index(folder)["pods.json"]


def test_one_deadline_for_all(node, folder):
    clock = FakeClock()
    node.host.clock = clock
    node.host.answer_when(lambda command: True, lambda command: Reply(stdout="x", seconds=command.timeout_s))
    made = Bundle(folder, Deadline.after(70, clock))
    for name in ("a", "b", "c", "d"):
        made.command(name, node, ("cat", name))
    assert [command.timeout_s for command in node.host.commands] == [30, 30, 10]
    assert index(folder)["d"] == "missing: not asked for: the time for all items is over"


def test_a_lost_connection_is_not_sought_for_long(node, folder, monkeypatch):
    asked = []
    seek = type(node.host).seeking_at_most

    def seeking(self, limit_s):
        asked.append(limit_s)
        return seek(self, limit_s)

    monkeypatch.setattr(type(node.host), "seeking_at_most", seeking)
    node.host.answer_when(lambda command: True, Reply(stdout="x"))
    Bundle(folder, Deadline.after(5, FakeClock())).command("a", node, ("true",))
    Bundle(folder).command("b", node, ("true",))
    assert asked == [5, bundle.SEEK_S]


def test_no_secret_in_any_file(node, cluster, folder):
    secret = secrets.token_hex(16)
    SECRETS.add(secret)
    node.host.answer_when(lambda command: command.argv[0] == "sh", Reply(status=1, stderr=f"refused {secret}"))
    node.host.answer_when(lambda command: True, Reply(stdout=f"token {secret}"))
    (node.folder / "console.log").write_text(secret)
    bundle.save(folder, cluster, node, ITEMS, {})
    for path in folder.iterdir():
        assert secret not in path.read_text(), path
    assert (folder / "kubelet.log").read_text() == "token ***"


def test_only_the_end_of_a_large_file(node, folder):
    (node.folder / "console.log").write_bytes(b"a" * bundle.LAST_BYTES + b"the end")
    Bundle(folder).file("console.log", node.folder / "console.log")
    text = (folder / "console.log").read_text()
    assert len(text) == bundle.LAST_BYTES
    assert text.endswith("the end")


def test_the_dump_of_cgroups_is_a_program_that_runs(tmp_path):
    """On this machine there may be no pods: then it prints nothing, and ends well where there are cgroups."""
    pod = tmp_path / "kubepods.slice" / "kubepods-pod1.slice"
    pod.mkdir(parents=True)
    (pod / "cpu.weight").write_text("59\n")
    (pod / "memory.max").write_text("max\n")
    script = bundle.CGROUPS.replace("/sys/fs/cgroup", str(tmp_path))
    done = LocalHost().run(Command(argv=("sh", "-c", script)))
    assert done.stdout == f"== {pod}/cpu.weight\n59\n== {pod}/memory.max\nmax\n"

