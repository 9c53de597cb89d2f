"""Upstream clusters without a node: gates, versions, facts, and a control plane of stand-in programs."""

from __future__ import annotations

import json
import os

import pytest
import yaml

from lab import processes
from lab.artifacts import Binaries
from lab.distros.upstream import components, control_plane, distro
from lab.distros.upstream import node as kubelet_node
from lab.distros.upstream.distro import Upstream, check_gates, node_conditions
from lab.host import Deadline, wait_until
from lab.model import Cell, Gate, NodeError, ParseError, TransportError, UsageError
from lab.parse.node_facts import feature_gates, parse_node_facts
from lab.providers.contract import NodeSpec
from tests.captures_helper import configz_for, load
from tests.fakes import FAKE_SITE, FakeHost, FakeProvider, Inside, Reply

KUBELET = "https://127.0.0.1:10250"
FACTS = """\
lab node-facts 1
== kernel
7.2.12+deb14-cloud-amd64
== cpu-model
AMD EPYC
== cpus
2
== memory-kib
4011856
== swap-kib
0
== cgroup-type
cgroup2fs
== psi
yes
== containerd
containerd github.com/containerd/containerd/v2 2.1.9+unknown
== runc
runc version 1.3.6+ds1
== kubelet
Kubernetes v1.37.2
== kubelet-sha256
9e89e7925f2f7ff059ae82abc2750b4e3745007e31c8d153ec2a27882394a7c2  /opt/lab/bin/kubelet
== end
"""


def cell(*gates, version="v1.37.2"):
    return Cell(distro="upstream", version=version, gates=tuple(Gate.parse(text) for text in gates))


class TestGatesFlag:
    @pytest.mark.parametrize(
        ("gates", "component", "expected"),
        [
            ([], "apiserver", []),
            (["A=false"], "apiserver", ["--feature-gates=A=false"]),
            (["A=false", "B=true"], "kubelet", ["--feature-gates=A=false,B=true"]),
            (["A=false@kubelet"], "apiserver", []),
            (["A=false@kubelet", "B=true@apiserver"], "apiserver", ["--feature-gates=B=true"]),
        ],
    )
    def test_each_component_is_told_its_own(self, gates, component, expected):
        assert components.gates_flag(cell(*gates), component) == expected


class TestNodeConditions:
    def test_types_and_states(self):
        conditions = [
            {"type": "Ready", "status": "True", "reason": "x"},
            {"type": "MemoryPressure", "status": "Unknown"},
        ]
        found = node_conditions(json.dumps({"status": {"conditions": conditions}}))
        assert found == {"Ready": "True", "MemoryPressure": "Unknown"}

    @pytest.mark.parametrize("text", ["{}", '{"status": {}}', '{"status": {"conditions": []}}'])
    def test_a_node_that_has_said_nothing_yet(self, text):
        assert node_conditions(text) == {}

    def test_no_node(self):
        with pytest.raises(ParseError, match="not JSON"):
            node_conditions("Error from server (NotFound)")


@pytest.fixture
def binaries(tmp_path):
    """Stand-ins of the components: each says what ``programs[name]`` holds, a shell script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    names = ("etcd", "kubectl", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubelet")

    def make(**programs):
        for name in names:
            script = programs.get(name.replace("-", "_"), "exec sleep 1000")
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        return Binaries(
            kind="upstream", version="v1.37.2", components={name: folder / name for name in names},
            sha256=dict.fromkeys(names, "0" * 64), origin="cache", first_origin="build", detail="x",
        )  # fmt: skip

    return make


HELP = "echo '  --feature-gates strings   A=true|false (ALPHA - default=false)'; echo '  B=true|false (BETA)'"
SERVER = f'[ "$1" != --help ] || {{ {HELP}; exit; }}; exec sleep 1000'


class TestCheckGates:
    def test_gates_that_both_know(self, binaries):
        check_gates(cell("A=true", "B=false"), binaries(kube_apiserver=HELP, kubelet=HELP))

    @pytest.mark.parametrize("gate", ["C=true", "C=true@apiserver", "C=true@kubelet"])
    def test_a_gate_that_a_component_does_not_know(self, binaries, gate):
        with pytest.raises(UsageError, match=f"^gate {gate}: .* of v1.37.2 does not know C; nothing was started"):
            check_gates(cell(gate), binaries(kube_apiserver=HELP, kubelet=HELP))

    def test_only_the_component_that_is_told_must_know_it(self, binaries):
        other = "echo 'Z=true|false'"
        check_gates(cell("A=true@kubelet"), binaries(kube_apiserver=other, kubelet=HELP))
        with pytest.raises(UsageError, match="kube-apiserver"):
            check_gates(cell("A=true"), binaries(kube_apiserver=other, kubelet=HELP))

    def test_without_gates_nothing_is_asked(self, binaries):
        check_gates(cell(), binaries(kube_apiserver="exit 1", kubelet="exit 1"))

    def test_a_help_without_any_gate_settles_nothing(self, binaries):
        check_gates(cell("A=true"), binaries(kube_apiserver=":", kubelet=":"))

    def test_files_names_the_kubelet_and_refuses_an_unknown_gate(self, binaries):
        made = binaries(kube_apiserver=HELP, kubelet=HELP)
        asked = []
        upstream = Upstream(resolve=lambda v: asked.append(v) or made, scripts={}, progress=print)
        assert upstream.files(cell(), FAKE_SITE) == {"/opt/lab/bin/kubelet": made.components["kubelet"].resolve()}
        with pytest.raises(UsageError, match="does not know C"):
            upstream.files(cell("C=true"), FAKE_SITE)
        assert asked == ["v1.37.2"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A node's folder; every process that is started for it is ended."""
    folder = tmp_path / "node"
    folder.mkdir()
    children = {}
    real = processes.start

    def start(argv, *, folder, **settings):
        child = real(argv, folder=folder, **settings)
        children[child] = folder
        return child

    monkeypatch.setattr(processes, "start", start)
    yield folder
    for child, marked in children.items():
        assert processes.end_marked(marked) == []
        child.wait()


def start_plane(binaries, place, asked=None, seconds=60.0):
    return control_plane.start(
        binaries=binaries, cell=asked or cell("A=false@apiserver", "B=true@kubelet"), folder=place / "control-plane",
        node_folder=place, addresses=("10.0.2.2",), deadline=Deadline.after(seconds),
    )  # fmt: skip


class TestControlPlane:
    def test_four_components_run_and_can_be_found_again(self, binaries, place):
        plane, credentials = start_plane(binaries(kubectl="echo ok"), place)
        assert list(plane.components) == ["etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager"]
        marked = processes.marked(place)
        assert all(process in marked for process in plane.components.values())
        again = control_plane.attach(place / "control-plane")
        assert (again.components, again.api_port, again.folder) == (plane.components, plane.api_port, plane.folder)
        assert (again.kubectl.argv, again.kubectl.kubeconfig) == (plane.kubectl.argv, plane.kubectl.kubeconfig)
        assert set(credentials) == {
            "ca.crt", "kubelet.crt", "kubelet.key", "kubelet.kubeconfig", "reader.crt", "reader.key"
        }  # fmt: skip
        server = yaml.safe_load(credentials["kubelet.kubeconfig"])["clusters"][0]["cluster"]["server"]
        assert server == f"https://10.0.2.2:{plane.api_port}"

    def test_only_the_api_server_gets_its_gates_and_all_listen_on_loopback(self, binaries, place):
        plane, _ = start_plane(binaries(kubectl="echo ok"), place)
        marked = processes.marked(place)
        assert all(process in marked for process in plane.components.values())
        layout = components.Layout(
            programs={name: str(path) for name, path in binaries().components.items()},
            pki=place, config=place, data=place,
            ports={"etcd": 1, "peer": 2, "api": 3, "scheduler": 4, "manager": 5},
        )  # fmt: skip
        argv = components.api_server(layout, cell("A=false@apiserver", "B=true@kubelet"))
        assert "--feature-gates=A=false" in argv
        assert "--bind-address=127.0.0.1" in argv
        assert "--authorization-mode=Node,RBAC" in argv
        assert "--anonymous-auth=false" in argv
        for argv_of in (components.scheduler, components.manager):
            words = argv_of(layout)
            assert "--bind-address=127.0.0.1" in words
            assert not any(word.startswith("--feature-gates") for word in words)
        for word in components.etcd(layout):
            assert "://" not in word or "https://127.0.0.1:" in word

    def test_no_key_stands_on_a_command_line_or_is_readable_by_others(self, binaries, place):
        start_plane(binaries(kubectl="echo ok"), place)
        folder = place / "control-plane"
        assert folder.stat().st_mode & 0o777 == 0o700
        for path in [*folder.glob("*.kubeconfig"), *(folder / "pki").iterdir()]:
            assert path.stat().st_mode & 0o777 == 0o600
        for process in processes.marked(place):
            with open(f"/proc/{process.pid}/cmdline") as file:
                assert "PRIVATE KEY" not in file.read()

    def test_a_component_that_ends_is_named_with_its_last_lines(self, binaries, place):
        script = "seq 1 20; echo 'bind: address already in use' >&2; exit 1"
        with pytest.raises(NodeError, match=r"etcd has ended; its last lines:\n14\n") as caught:
            start_plane(binaries(etcd=script, kubectl="exit 1"), place)
        assert str(caught.value).endswith("bind: address already in use")

    def test_a_gate_that_only_the_api_server_refuses_is_bad_input(self, binaries, place):
        script = "echo 'Error: invalid argument: unrecognized feature gate: A' >&2; exit 1"
        with pytest.raises(UsageError, match=r"v1\.37\.2 does not know a gate of: A=false@apiserver, B=true@kubelet"):
            start_plane(binaries(kube_apiserver=script, kubectl="exit 1"), place)

    def test_an_api_server_that_never_gets_ready(self, binaries, place):
        with pytest.raises(NodeError, match=r"\(/readyz\); last seen: \[-\]etcd failed"):
            start_plane(binaries(kubectl="echo '[-]etcd failed'; exit 1"), place, seconds=1.0)

    def test_attach_without_a_control_plane(self, binaries, place):
        with pytest.raises(NodeError, match="no control plane was left running"):
            control_plane.attach(place / "control-plane")

    def test_attach_to_one_that_has_ended(self, binaries, place):
        start_plane(binaries(kubectl="echo ok", kube_scheduler="echo last words; exec sleep 1000"), place)
        assert processes.end_marked(place) == []
        with pytest.raises(NodeError, match="has ended; its last lines"):
            control_plane.attach(place / "control-plane")

    def test_cpu_time_of_each_component(self, binaries, place):
        busy = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo done; exec sleep 1000"
        plane, _ = start_plane(binaries(kubectl="echo ok", kube_scheduler=busy), place)
        log = place / "control-plane" / "kube-scheduler.log"
        wait_until("the scheduler", lambda: ("done" in log.read_text() or None, log.read_text()), Deadline.after(60))
        used = plane.cpu_seconds()
        assert set(used) == set(plane.components)
        assert used["kube-scheduler"] > 0

    def test_the_time_of_another_process_with_that_pid_is_not_counted(self, binaries, place):
        plane, _ = start_plane(binaries(kubectl="echo ok"), place)
        old = plane.components["etcd"]
        plane.components["etcd"] = processes.Identity(pid=old.pid, start_ticks=old.start_ticks - 1)
        plane.components["kube-scheduler"] = processes.Identity(pid=2**22 + 1, start_ticks=1)
        assert set(plane.cpu_seconds()) == {"kube-apiserver", "kube-controller-manager"}


class TestEnvironment:
    @pytest.fixture
    def node(self, tmp_path):
        provider = FakeProvider(root=tmp_path / "nodes")
        return provider.create(NodeSpec(name="n", run_id="r", memory_mib=3000), Deadline.after(60))

    def test_what_cells_must_agree_on(self, node, binaries):
        config = {"cgroupDriver": "cgroupfs"}
        must_agree, shown = distro._environment(node, parse_node_facts(FACTS), [binaries()], config, "controller")
        assert must_agree == {
            "provider": "fake", "emulation": "none", "cgroup_mode": "v2", "cgroup_driver": "cgroupfs", "vcpus": "2",
            "memory_class": "3000 MiB", "control_plane": "controller",
        }  # fmt: skip
        assert shown["runc"] == "1.3.6"
        assert shown["kubelet"] == "v1.37.2"
        assert shown["artifact_origin"] == "build"

    def test_what_is_not_known_is_absent_and_not_empty(self, node, binaries):
        must_agree, shown = distro._environment(node, parse_node_facts(FACTS), [binaries()], {}, "node")
        assert not {"image", "runtime_origin"} & set(shown)
        assert must_agree["control_plane"] == "node"
        assert must_agree["cgroup_driver"] == "not reported"


class TestSaveLogs:
    @pytest.fixture
    def upstream(self):
        return Upstream(resolve=lambda version: pytest.fail("not needed"), scripts={}, progress=print)

    @pytest.fixture
    def node(self, tmp_path):
        node = FakeProvider(root=tmp_path / "nodes").create(NodeSpec(name="n", run_id="r"), Deadline.after(60))
        (node.folder / "control-plane").mkdir()
        (node.folder / "control-plane" / "etcd.log").write_text("etcd says\n")
        (node.folder / "control-plane" / "admin.kubeconfig").write_text("a secret\n")
        return node

    def test_logs_of_both_sides_and_nothing_secret(self, upstream, node, tmp_path):
        node.host.answer_when(lambda command: True, lambda command: Reply(stdout=" ".join(command.argv)))
        upstream.save_logs(None, node, tmp_path / "logs" / "cell")
        found = {path.name: path.read_text() for path in (tmp_path / "logs" / "cell").iterdir()}
        assert found["etcd.log"] == "etcd says\n"
        assert found["kubelet.log"] == "journalctl -u lab-kubelet -o short-unix --no-pager"
        assert found["containerd.log"] == "journalctl -u containerd -o short-unix --no-pager"
        assert "control-plane.log" not in found, "that is on this machine"
        assert "a secret" not in "".join(found.values())

    @pytest.mark.parametrize("answer", [TransportError("gone"), Reply(status=1, stderr="none"), Reply(seconds=999)])
    def test_a_node_that_is_gone_does_not_hide_the_first_error(self, upstream, node, tmp_path, answer):
        node.host.answer_when(lambda command: True, answer)
        upstream.save_logs(None, node, tmp_path / "logs")
        assert sorted(os.listdir(tmp_path / "logs")) == ["etcd.log", "index.txt"]
        assert "kubelet.log                  missing: " in (tmp_path / "logs" / "index.txt").read_text()


class TestInstall:
    """A whole installation: stand-in components on the controller, a fake host as the node."""

    VERSION = json.dumps({"gitVersion": "v1.37.2"})
    NODE = json.dumps(
        {"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "MemoryPressure", "status": "False"}]}}
    )

    @pytest.fixture
    def node(self, tmp_path, place):
        host = FakeHost("n-r")
        host.answer(("sh", "/opt/lab/node-scripts/node_facts.sh"), Reply(stdout=FACTS))
        host.answer_when(lambda command: "systemctl daemon-reload" in " ".join(command.argv), Reply())
        answers = {
            "/healthz": "ok", "/metrics": 'kubernetes_feature_enabled{name="A",stage="BETA"} 0\n',
        }  # fmt: skip

        def get(command):
            path = command.argv[-1].removeprefix(KUBELET)
            if path == "/configz":
                return Reply(stdout=configz_for(host.text("/etc/lab/kubelet.yaml")))
            return Reply(stdout=answers[path])

        host.answer_when(lambda command: command.argv[0] == "curl", get)
        provider = FakeProvider(root=place, make_host=lambda _: host)
        return provider.create(NodeSpec(name="n", run_id="r"), Deadline.after(60))

    def kubectl(self, gate="0"):
        return f"""
case "$*" in
  */readyz) echo ok;;
  */version) echo '{self.VERSION}';;
  */metrics) echo 'kubernetes_feature_enabled{{name="A",stage="BETA"}} {gate}';;
  *"get node node -o json") echo '{self.NODE}';;
esac
"""

    def upstream(self, binaries):
        return Upstream(resolve=lambda version: binaries, scripts={"node_facts.sh": "facts"}, progress=print)

    def test_from_nothing_to_a_cluster_and_back_to_it(self, binaries, node):
        made = binaries(kubectl=self.kubectl(), kube_apiserver=SERVER, kubelet=HELP)
        upstream = self.upstream(made)
        ready = Inside(node.host)
        cluster = upstream.install(node, cell("A=false"), Deadline.after(60), ready)
        # For the API server, which is on this machine, and then for the kubelet and its node.
        assert (ready.times, [command.argv[-1] for command in ready.commands]) == (2, [f"{KUBELET}/healthz"])
        assert node.host.files["/opt/lab/bin/kubelet"][1] == 0o755
        assert node.host.files["/opt/lab/node-scripts/node_facts.sh"] == (b"facts", 0o755)
        assert yaml.safe_load(node.host.text("/etc/lab/kubelet.yaml"))["featureGates"] == {"A": False}
        assert cluster.cell == cell("A=false")
        assert cluster.kubelet_unit == kubelet_node.KUBELET_UNIT
        assert cluster.shown["kubelet"] == "v1.37.2"
        assert cluster.facts_texts["node-facts.txt"] == FACTS
        assert feature_gates(cluster.facts_texts["gates-kubelet.txt"]) == {"A": False}
        assert set(cluster.own_cpu_s()) == {"etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager"}
        again = upstream.attach(node, cell("A=false"))
        assert (again.shown, again.must_agree) == (cluster.shown, cluster.must_agree)
        # The API server would go on to answer for a node that is gone.
        node.host.lost = TransportError("n-r: the guest is gone")
        for one in (cluster, again):
            with pytest.raises(TransportError, match="the guest is gone"):
                one.kubectl.raw("/version")
            assert one.kubectl.without_node().raw("/version").strip() == self.VERSION

    def test_a_gate_that_did_not_take_effect_is_no_cluster(self, binaries, node):
        made = binaries(kubectl=self.kubectl(gate="1"), kube_apiserver=SERVER, kubelet=HELP)
        with pytest.raises(NodeError, match="A=false was set on the apiserver, but its metrics say true"):
            self.upstream(made).install(node, cell("A=false"), Deadline.after(60))

    def test_a_kubelet_that_runs_with_other_settings_is_no_cluster(self, binaries, node, monkeypatch):
        get, plain = kubelet_node.get, load("v1.37.2", "class")["configz.json"]
        monkeypatch.setattr(kubelet_node, "get", lambda host, path: plain if path == "/configz" else get(host, path))
        made = binaries(kubectl=self.kubectl(), kube_apiserver=SERVER, kubelet=HELP)
        said = r"n-r: the kubelet runs with other settings .*: featureGates is \{\}, not \{'A': False\}$"
        with pytest.raises(NodeError, match=said):
            self.upstream(made).install(node, cell("A=false"), Deadline.after(60))

    @pytest.mark.parametrize(("was", "asked"), [(["A=false"], []), (["A=false"], ["A=false@kubelet"])])
    def test_other_gates_on_a_kept_node(self, binaries, node, was, asked):
        """The metrics are the same for both: A is off, as it is by default or as it was told."""
        upstream = self.upstream(binaries(kubectl=self.kubectl(), kube_apiserver=SERVER, kubelet=HELP))
        upstream.install(node, cell(*was), Deadline.after(60))
        with pytest.raises(UsageError, match=r"with the gate A=false; asked for was .* give --gate A=false"):
            upstream.attach(node, cell(*asked))
        upstream.attach(node, cell(*was))

    def test_another_version_on_a_kept_node(self, binaries, node):
        made = binaries(kubectl=self.kubectl(), kube_apiserver=SERVER, kubelet=HELP)
        upstream = self.upstream(made)
        upstream.install(node, cell(), Deadline.after(60))
        with pytest.raises(UsageError, match=r"runs v1\.37\.2, not v1\.36\.3"):
            upstream.attach(node, cell(version="v1.36.3"))

    def test_a_provider_whose_nodes_cannot_reach_the_controller(self, binaries, tmp_path):
        provider = FakeProvider(root=tmp_path / "nodes", controller_address=None)
        node = provider.create(NodeSpec(name="n", run_id="r"), Deadline.after(60))
        with pytest.raises(UsageError, match="nodes of provider fake cannot reach"):
            self.upstream(binaries()).install(node, cell(), Deadline.after(60))


def test_the_readers_rights_are_to_read_the_kubelet_and_nothing_else():
    role, binding = yaml.safe_load_all(distro.READER_RBAC)
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get"}
    assert all(resource.startswith("nodes/") for rule in role["rules"] for resource in rule["resources"])
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "lab-reader"}]
