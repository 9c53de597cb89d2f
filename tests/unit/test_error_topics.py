"""Each part of docs/errors.md is named by an error that really occurs: provoked here through the lab's own code."""

from __future__ import annotations

import re
import signal
import socket

import pytest
import yaml

from lab import interrupts, kubectl
from lab.artifacts import resolve_k3s, resolve_runtime, resolve_upstream
from lab.cli import console, scan
from lab.host import Command, LocalHost
from lab.model import Interrupted, LabError, NodeError
from lab.providers.digitalocean.api import Api
from lab.ssh import Address, SshHost
from lab.ssh_keys import make_key_pair
from tests.artifacts_bench import quiet, releases, sources
from tests.digitalocean_script import TOKEN, Clock
from tests.projects import ROOT, make_bench
from tests.ssh_server import SshServer

PARTS = re.findall(r"^## (.+)$", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
ANCHORS = [part.lower().replace(" ", "-") for part in PARTS]


@pytest.fixture
def bench(tmp_path, monkeypatch, capfd):
    return make_bench(tmp_path, monkeypatch, capfd)


@pytest.fixture
def closed_port():
    """A port that nobody listens at and nobody else gets."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def named(capfd):
    """The parts that the program names when ``act`` prints or raises its errors."""

    def run(act):
        capfd.readouterr()
        try:
            act()
        except (LabError, Interrupted) as error:
            console.fail(error)
        # A scan's problems are one line each, with their help at its end.
        return re.findall(r"help: docs/errors\.md#([a-z0-9-]+)$", capfd.readouterr().err, re.MULTILINE)

    return run


def ssh(tmp_path, port, host_key=None):
    private, public = make_key_pair("x")
    identity = tmp_path / "identity"
    identity.touch(mode=0o600)
    identity.write_text(private)
    return SshHost(
        Address(host="127.0.0.1", port=port, user="root", host_keys=(host_key or public,), identity=identity), "node"
    )


class Provoke:
    """One way to each part of the page, named after it."""

    def __init__(self, tmp_path, bench, port):
        self.tmp_path, self.bench, self.port = tmp_path, bench, port

    def bad_usage_or_input(self):
        console.explain(self.bench.lab("summary", "--results", "/nowhere").err)

    def stored_results(self):
        assert self.bench.run().code == 0
        next(self.bench.results.glob("*/*/0001/raw/*")).write_text("other")
        console.explain(self.bench.lab("verify", "--results", str(self.bench.results)).err)

    def node_or_this_machine(self):
        (self.tmp_path / "file").touch()
        LocalHost().put_text("text", str(self.tmp_path / "file" / "below"))

    def no_binaries(self):
        resolve_upstream("v1.36.99", sources(self.tmp_path), quiet)

    def wrong_sha256(self):
        folder = self.tmp_path / "given"
        folder.mkdir()
        (folder / "hyperkube-v1.36.9-linux-amd64").write_text("program")
        (folder / "SHA256SUMS").write_text(f"{'0' * 64}  hyperkube-v1.36.9-linux-amd64\n")
        resolve_upstream("v1.36.9", sources(self.tmp_path, folder=folder), quiet)

    def connection(self):
        ssh(self.tmp_path, self.port).connect()

    def host_key(self):
        server = SshServer(self.tmp_path / "server").start()
        try:
            ssh(self.tmp_path, server.port).connect()
        finally:
            server.stop()

    def command(self):
        LocalHost().run(Command(argv=("false",)))

    def deadline(self):
        LocalHost().run(Command(argv=("sleep", "60"), timeout_s=0.1))

    def digitalocean(self):
        clock = Clock()
        Api(
            TOKEN, f"http://127.0.0.1:{self.port}/v2/", sleep=clock.sleep, clock=clock, request_timeout_s=1, retry_s=2
        ).tags()

    def cluster(self):
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "lab", "users": [{"name": "u", "user": {}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
        }  # fmt: skip
        path = self.tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        self.bench.monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
        assert scan.run_alone(["--live"], name="lab scan") == 2

    def left_behind(self):
        self.bench.steps.fail("provider.destroy", NodeError("the API gave 500"))
        console.explain(self.bench.run(leaves=1).err)

    def interrupted(self):
        with interrupts.raising():
            signal.raise_signal(signal.SIGTERM)

    def text_of_an_unexpected_form(self):
        kubectl.as_object("<html>")

    def not_measured(self):
        self.bench.steps.fail("provider.destroy", NodeError("the API gave 500"))
        console.explain(self.bench.run(versions="v1.36.3,v1.37.2", leaves=1).err)


@pytest.mark.parametrize("anchor", ANCHORS)
def test_every_part_is_named_by_an_error_that_occurs(anchor, tmp_path, bench, closed_port, named):
    act = getattr(Provoke(tmp_path, bench, closed_port), anchor.replace("-", "_"))
    assert anchor in named(act)


@pytest.mark.parametrize("fetch", [lambda given: resolve_k3s("v1.36.99", given, quiet), None], ids=["k3s", "runtime"])
def test_other_binaries_that_cannot_be_had_name_the_same_part(fetch, tmp_path, named):
    releases(tmp_path)
    path = tmp_path / "releases.toml"
    path.write_text(path.read_text() + '[runtime]\ncontainerd = "v2.1.9"\nrunc = "v1.3.6"\n')
    given = sources(tmp_path)
    act = (lambda: resolve_runtime(given, quiet)) if fetch is None else (lambda: fetch(given))
    assert named(act) == ["no-binaries"]
