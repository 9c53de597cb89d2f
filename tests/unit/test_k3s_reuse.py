"""A node that is used for several versions: taken off, compared, and not used again when anything differs."""

from __future__ import annotations

import json

import pytest

from lab.distros import reuse
from lab.distros.reuse import SETTLE_PAUSE_S, SETTLE_S, CleanSlate, SharedNode
from lab.host import Deadline
from lab.model import NodeError, ParseError, TransportError, UsageError
from lab.providers.contract import Node, NodeSpec, Provider, Site
from tests.fakes import FakeClock, FakeHost, FakeProvider, Reply

SCRIPTS = {"fingerprint.py": "the program"}
PROBE = ("python3", "-I", "-B", "-")


def text_of(*entries):
    rows = [{"kind": "start", "program": "fingerprint", "version": 1}]
    rows += [{"kind": kind, "name": name, "value": value} for kind, name, value in entries]
    return "".join(json.dumps(row) + "\n" for row in [*rows, {"kind": "end"}])


HOSTS = ("file", "/etc/hosts", "-rw-r--r-- 0:0 20 bytes")
LINK = ("interface", "flannel.1", "type 1 vxlan virtual")
UNIT = ("unit", "k3s.service", "loaded active running")


class Taken:
    """A distribution of which only the removal is asked for."""

    name = "k3s"

    def __init__(self, error=None):
        self.nodes = []
        self.error = error

    def uninstall(self, node):
        self.nodes.append(node.id)
        if self.error is not None:
            raise self.error


class Bench:
    """A node whose fingerprints come one after the other."""

    def __init__(self, tmp_path, *fingerprints):
        self.clock = FakeClock()
        self.host = FakeHost("n-1", self.clock)
        self.host.answer(PROBE, *(Reply(stdout=text) for text in fingerprints))
        self.said = []
        site = Site(reaches_controller=False, has_runtime=False, is_lasting=False)
        node = Node(
            id="n-1", provider="digitalocean", site=site, folder=tmp_path, host=self.host, facts={},
            controller_address=None,
        )  # fmt: skip
        taken = CleanSlate.take(node, SCRIPTS)
        self.slate = CleanSlate(
            node=node, before=taken.before, scripts=SCRIPTS, sleep=self.clock.sleep, clock=self.clock
        )


def test_a_node_that_is_as_before_may_be_used_again(tmp_path):
    bench = Bench(tmp_path, text_of(HOSTS), text_of(HOSTS))
    distro = Taken()
    bench.slate.restore(distro, bench.said.append)
    assert distro.nodes == ["n-1"]
    assert bench.said == ["n-1: k3s is off; all 1 things noted are as before"]
    # The program comes on standard input and leaves no file, so that it is no difference itself.
    assert [(command.argv, command.stdin) for command in bench.host.commands] == [(PROBE, "the program")] * 2


def test_what_ends_a_little_later_is_waited_for(tmp_path):
    bench = Bench(tmp_path, text_of(HOSTS), text_of(HOSTS, UNIT), text_of(HOSTS, UNIT), text_of(HOSTS))
    bench.slate.restore(Taken(), bench.said.append)
    assert bench.clock.sleeps == [SETTLE_PAUSE_S] * 2


def test_every_difference_is_named_and_the_node_not_used_again(tmp_path):
    number = int(SETTLE_S / SETTLE_PAUSE_S) + 1
    bench = Bench(tmp_path, text_of(HOSTS), *[text_of(LINK)] * number)
    with pytest.raises(NodeError) as caught:
        bench.slate.restore(Taken(), bench.said.append)
    text = str(caught.value)
    assert "after the removal of k3s it is not as it was before (2 differences)" in text
    assert "network interface flannel.1: not there -> type 1 vxlan virtual" in text
    assert "file /etc/hosts" in text
    assert bench.said == []
    assert sum(bench.clock.sleeps) == SETTLE_S


def test_a_removal_that_failed_is_not_compared(tmp_path):
    bench = Bench(tmp_path, text_of(HOSTS), text_of(HOSTS))
    with pytest.raises(NodeError, match="left: process 7"):
        bench.slate.restore(Taken(NodeError("left: process 7")), bench.said.append)
    assert len(bench.host.commands) == 1


def test_a_fingerprint_that_was_cut_is_no_proof(tmp_path):
    bench = Bench(tmp_path, text_of(HOSTS), text_of(HOSTS).removesuffix('{"kind": "end"}\n'))
    with pytest.raises(ParseError, match="end is missing"):
        bench.slate.restore(Taken(), bench.said.append)


def test_a_project_without_the_program_is_told(tmp_path):
    bench = Bench(tmp_path, text_of(HOSTS), text_of(HOSTS))
    with pytest.raises(UsageError, match=r"hold no fingerprint\.py"):
        CleanSlate.take(bench.slate.node, {})


class SharedBench:
    """A provider of one node whose fingerprints come one after the other, and the distribution of the run."""

    def __init__(self, tmp_path, monkeypatch, *fingerprints, error=None):
        # Whether a difference goes by itself is for the tests of CleanSlate.
        monkeypatch.setattr(reuse, "SETTLE_S", 0.0)
        answers = [Reply(stdout=text) for text in fingerprints]

        def host(name):
            made = FakeHost(name)
            made.answer(PROBE, *answers)
            return made

        self.inner = FakeProvider(root=tmp_path, make_host=host)
        self.distro = Taken(error)
        self.shared = SharedNode(self.inner, self.distro, SCRIPTS, lambda text: None, cells=3, now=lambda: 1000.0)

    def create(self, number=1):
        spec = NodeSpec(name="k3s", run_id=f"r-{number}", expires_s=1600.0, files={"/opt/lab/bin/k3s": "x"})
        return self.shared.create(spec, Deadline.after(60))


class TestSharedNode:
    def test_every_cell_gets_the_same_node_cleaned(self, tmp_path, monkeypatch):
        bench = SharedBench(tmp_path, monkeypatch, *[text_of(HOSTS)] * 3)
        first = bench.create(1)
        for number in (2, 3):
            bench.shared.destroy(first)
            assert bench.create(number) is first
        assert bench.distro.nodes == [first.id] * 2
        assert [step for step, _ in bench.inner.steps.calls] == ["provider.create"]
        # It lives as long as all three need, and nothing is laid onto it that a removal would miss.
        [spec] = bench.inner.specs
        assert (spec.expires_s, dict(spec.files)) == (1000.0 + 3 * 600.0, {})

    def test_it_goes_in_the_end_once(self, tmp_path, monkeypatch):
        bench = SharedBench(tmp_path, monkeypatch, text_of(HOSTS))
        bench.create()
        bench.shared.close()
        bench.shared.close()
        assert bench.inner.alive == {}
        assert bench.inner.steps.names() == ["provider.create", "provider.destroy"]

    def test_without_a_node_there_is_nothing_to_close(self, tmp_path, monkeypatch):
        bench = SharedBench(tmp_path, monkeypatch, text_of(HOSTS))
        bench.shared.close()
        assert bench.inner.steps.names() == []

    def test_a_difference_ends_it_for_all_further_cells(self, tmp_path, monkeypatch):
        bench = SharedBench(tmp_path, monkeypatch, text_of(HOSTS), text_of(HOSTS, LINK))
        bench.create(1)
        for number in (2, 3):
            with pytest.raises(NodeError, match=r"interface flannel\.1"):
                bench.create(number)
        assert len(bench.distro.nodes) == 1
        bench.shared.close()
        assert bench.inner.alive == {}

    def test_a_removal_that_failed_ends_it_too(self, tmp_path, monkeypatch):
        bench = SharedBench(tmp_path, monkeypatch, text_of(HOSTS), text_of(HOSTS), error=NodeError("left: process 7"))
        bench.create(1)
        for number in (2, 3):
            with pytest.raises(NodeError, match="left: process 7"):
                bench.create(number)

    def test_a_node_that_cannot_be_looked_at_is_not_left(self, tmp_path, monkeypatch):
        bench = SharedBench(tmp_path, monkeypatch, "nothing")
        with pytest.raises(ParseError):
            bench.create()
        assert bench.inner.alive == {}

    def test_a_lost_link_is_told_as_what_it_is(self, tmp_path, monkeypatch):
        bench = SharedBench(tmp_path, monkeypatch, text_of(HOSTS), text_of(HOSTS), error=TransportError("link lost"))
        bench.create(1)
        with pytest.raises(NodeError, match="link lost"):
            bench.create(2)

    def test_it_cannot_be_kept(self, tmp_path, monkeypatch):
        bench = SharedBench(tmp_path, monkeypatch, text_of(HOSTS))
        with pytest.raises(UsageError, match="cannot be kept"):
            bench.shared.keep(bench.create(), 0.0)

    def test_it_is_a_provider(self, tmp_path, monkeypatch):
        bench = SharedBench(tmp_path, monkeypatch, text_of(HOSTS))
        provider: Provider = bench.shared
        assert (provider.name, provider.site, provider.hourly_price()) == ("fake", bench.inner.site, 0)
        assert provider.records() == []
