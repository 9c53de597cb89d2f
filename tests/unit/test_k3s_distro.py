"""k3s without a node: its texts, its gates, an installation in few round trips, and what is read back."""

from __future__ import annotations

import json

import pytest
import yaml

from lab import article
from lab.artifacts import Binaries
from lab.distros import kept
from lab.distros.gates import with_dependents
from lab.distros.k3s import known_gates, settings
from lab.distros.k3s.distro import K3s
from lab.distros.k3s.gates import check_gates
from lab.distros.k3s.node import STEPS_S
from lab.distros.registry import DISTROS, Setup
from lab.host import Deadline
from lab.model import Cell, Gate, NodeError, ParseError, TransportError, UsageError
from lab.parse.kubelet_log import parse_events
from lab.providers.contract import Node, Site
from tests.artifacts_bench import quiet, sources
from tests.fakes import FakeHost, Inside, Reply

DROPLET = Site(reaches_controller=False, has_runtime=False, is_lasting=False)
FIX = "PodLevelResourcesFixKubeletQOSClass"
SCRIPTS = {
    name: f"program {name}" for name in ("k3s_before.sh", "k3s_remove.sh", "k3s_start.sh", "k3s_facts.sh", "hog.py")
}


def cell(*gates, version="v1.37.1"):
    return Cell(distro="k3s", version=version, gates=tuple(Gate.parse(text) for text in gates))


def config(**changes):
    found = {
        "cgroupDriver": "systemd",
        "evictionHard": {"imagefs.available": "5%", "memory.available": "2Gi", "nodefs.available": "5%"},
        "evictionPressureTransitionPeriod": "30s",
    }
    return found | changes


def facts(*, release="v1.37.1+k3s1", api=None, kubelet=None, gate="1", configz=None, **texts):
    """What k3s_facts.sh gives: the forms of its tools, written for this test."""
    lines = f'kubernetes_feature_enabled{{name="{FIX}",stage="BETA"}} {gate}\n'
    parts = {
        "kernel": "6.8.0-88-generic",
        "cpu-model": "DO-Regular",
        "cpus": "2",
        "memory-kib": "4009980",
        "swap-kib": "0",
        "cgroup-type": "cgroup2fs",
        "psi": "yes",
        "containerd": "containerd github.com/k3s-io/containerd/v2 v2.3.4-k3s1 0123abc",
        "runc": "runc version 1.4.2\ncommit: v1.4.2-0-g0123abc",
        "kubelet": f"Kubernetes {release if kubelet is None else kubelet}",
        "kubelet-sha256": f"{'0' * 64}  /opt/lab/bin/k3s",
        "k3s": f"k3s version {release} (0123abcd)\ngo version go1.26.8",
        "k3s-unit": "ActiveState=active\nNRestarts=0",
        "configz": json.dumps({"kubeletconfig": config() if configz is None else configz}),
        "api-version": json.dumps({"gitVersion": release if api is None else api}),
        "gates-apiserver": lines,
        "gates-kubelet": lines,
    } | texts
    return "lab node-facts 1\n" + "".join(f"== {name}\n{text}\n" for name, text in parts.items()) + "== end\n"


class Bench:
    """A node whose programs answer well unless a test changes that; files are those of a folder."""

    def __init__(self, tmp_path, *, images=False):
        self.host = FakeHost("n-1")
        self.folder = tmp_path
        self.asked = []
        self.node = Node(
            id="k3s-1", provider="digitalocean", site=DROPLET, folder=tmp_path / "node", host=self.host,
            facts={"emulation": "kvm", "memory_mib": "4096", "image": "ubuntu-24-04-x64"}, controller_address=None,
        )  # fmt: skip
        self.said = []
        self.distro = K3s(
            resolve=lambda version: self.made("k3s", version, "k3s", "busybox"),
            scripts=SCRIPTS,
            progress=self.said.append,
            resolve_images=(lambda version: self.made("k3s-images", version, "images.tar.zst")) if images else None,
        )
        self.programs = {
            "k3s_before.sh": Reply(stdout="saved\n"),
            "k3s_remove.sh": Reply(stdout="removed\n"),
            "k3s_start.sh": Reply(stdout="unit: active after 1 start, 20 s\nreadyz: ok, 1 s\nready\n"),
            "k3s_facts.sh": Reply(stdout=facts()),
        }
        self.host.answer_when(lambda command: self.program(command) is not None, self.reply)

    def made(self, kind, version, *names):
        self.asked.append((kind, version))
        for name in names:
            (self.folder / name).write_text(f"{name} of {version}")
        return Binaries(
            kind=kind, version=version, components={name: self.folder / name for name in names},
            sha256={name: name[0] * 64 for name in names}, origin="cache", first_origin="download", detail="",
        )  # fmt: skip

    def program(self, command):
        """Which of the node's programs a command runs."""
        if command.argv == ("sh", "-s"):
            return command.stdin.removeprefix("program ")
        path = command.argv[1] if command.argv[0] == "sh" else ""
        return path.removeprefix("/opt/lab/node-scripts/") if path.startswith("/opt/lab/node-scripts/") else None

    def reply(self, command):
        answer = self.programs[self.program(command)]
        return answer.pop(0) if isinstance(answer, list) else answer

    def install(self, *gates, version="v1.37.1", seconds=900.0):
        return self.distro.install(self.node, cell(*gates, version=version), Deadline.after(seconds, self.host.clock))


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


class TestGates:
    def test_the_table_says_what_is_known_of_the_ones_that_matter(self):
        found = {name: (min(minors), max(minors)) for name, minors in known_gates.KNOWN.items()}
        assert found["PodLevelResources"] == (34, 37)
        assert found[FIX] == found["PodLevelResourcesFixDefaulting"] == (37, 37)
        assert found["InPlacePodLevelResourcesVerticalScaling"] == (35, 37)
        assert found["PodLevelResourceManagers"] == (36, 37)
        assert len(found) > 200
        assert all(34 <= first <= last <= 37 for first, last in found.values())

    @pytest.mark.parametrize("text", [f"{FIX}=false", "PodLevelResources=false", "MemoryQoS=true"])
    def test_known_ones_pass(self, text):
        check_gates(with_dependents(cell(text)))

    def test_one_component_only_is_refused_with_the_reason_and_the_way_out(self):
        for component in ("apiserver", "kubelet"):
            with pytest.raises(UsageError, match="one process") as caught:
                check_gates(cell(f"{FIX}=false@{component}"))
            assert f"leave out @{component}" in str(caught.value)
            assert "--distro upstream" in str(caught.value)

    @pytest.mark.parametrize(
        ("version", "text", "said"),
        [
            ("v1.36.5", f"{FIX}=false", "does not know it (only 1.37 does)"),
            ("v1.34.12", "PodLevelResourceManagers=false", "only 1.36 to 1.37 do"),
            ("v1.37.1", "NoSuchGate=true", "nor does any version from 1.34 to 1.37"),
            ("v1.38.0", "PodLevelResources=false", "only those of 1.34 to 1.37"),
            ("v1.33.9", "PodLevelResources=false", "only those of 1.34 to 1.37"),
        ],
    )
    def test_what_a_version_does_not_know_is_refused(self, version, text, said):
        with pytest.raises(UsageError) as caught:
            check_gates(cell(text, version=version))
        assert said in str(caught.value)
        assert "nothing was started" in str(caught.value)

    def test_nothing_is_fetched_for_a_gate_that_is_refused(self, bench):
        with pytest.raises(UsageError):
            bench.distro.files(cell(f"{FIX}=false", version="v1.36.5"), DROPLET)
        assert bench.asked == []


class TestTexts:
    def test_configuration(self):
        found = yaml.safe_load(settings.config(cell(), own_images=False))
        assert found == {
            "bind-address": "127.0.0.1",
            "disable": ["coredns", "local-storage", "metrics-server", "servicelb", "traefik"],
            "node-name": "node",
            "pause-image": "lab.local/busybox:1",
            "v": 3,
            "write-kubeconfig-mode": "0600",
        }

    def test_own_images_bring_a_sandbox_image(self):
        assert "pause-image" not in yaml.safe_load(settings.config(cell(), own_images=True))

    def test_gates_go_to_both_components(self):
        told = with_dependents(cell("PodLevelResources=false", version="v1.36.5"))
        [argument] = yaml.safe_load(settings.config(told, own_images=False))["kube-apiserver-arg"]
        dropped = yaml.safe_load(settings.drop_in(told))["featureGates"]
        name, _, value = argument.partition("=")
        assert name == "feature-gates"
        assert dict(pair.split("=") for pair in value.split(",")) == dict.fromkeys(dropped, "false")
        assert set(dropped) == {
            "PodLevelResources", "InPlacePodLevelResourcesVerticalScaling", "PodLevelResourceManagers",
        }  # fmt: skip
        assert not any(dropped.values())

    def test_the_drop_in_adds_to_k3ss_own_settings(self):
        found = yaml.safe_load(settings.drop_in(cell()))
        assert found["evictionHard"] == {"memory.available": "2Gi"}
        assert found["evictionPressureTransitionPeriod"] == "30s"
        assert found["address"] == "127.0.0.1"
        # k3s itself decides these two, by how it was started and by its -v.
        assert not {"cgroupDriver", "logging"} & set(found)
        assert "featureGates" not in found

    def test_the_unit_is_started_by_systemd_ends_its_start_and_never_restarts(self):
        lines = settings.UNIT_TEXT.splitlines()
        for line in ("Type=notify", "KillMode=process", "Delegate=yes", "Restart=no", "LogRateLimitIntervalSec=0"):
            assert line in lines
        assert "TimeoutStartSec=300" in lines
        # No argument that systemd could read otherwise.
        assert [line for line in lines if line.startswith("ExecStart=")] == ["ExecStart=/opt/lab/bin/k3s server"]


class TestInstall:
    def test_few_round_trips_and_every_byte_once(self, bench):
        bench.install()
        assert [bench.program(command) or "files" for command in bench.host.commands] == [
            "k3s_before.sh", "files", "k3s_start.sh", "k3s_facts.sh",
        ]  # fmt: skip
        # tests/contract/test_host_contract.py holds the fake's count of channels to that of SshHost.
        assert bench.host.channels == 7
        assert bench.host.transfers == ["/opt/lab/bin/k3s", "/opt/lab/bin/busybox"]
        assert {path: mode for path, (_, mode) in bench.host.files.items() if "node-scripts" not in path} == {
            "/opt/lab/bin/k3s": 0o755,
            "/opt/lab/bin/busybox": 0o755,
            "/etc/rancher/k3s/config.yaml": 0o600,
            "/var/lib/rancher/k3s/agent/etc/kubelet.conf.d/50-lab.conf": 0o600,
            "/etc/systemd/system/k3s.service": 0o644,
        }
        assert bench.host.text("/opt/lab/node-scripts/hog.py") == "program hog.py"

    def test_its_start_alone_is_waiting(self, bench):
        ready = Inside(bench.host)
        bench.distro.install(bench.node, cell(), Deadline.after(900, bench.host.clock), ready)
        assert [bench.program(command) for command in ready.commands] == ["k3s_start.sh"]

    def test_everything_can_be_run_again_after_a_lost_link(self, bench):
        bench.install()
        assert all(command.repeatable for command in bench.host.commands)

    def test_the_cluster(self, bench):
        found = bench.install()
        assert found.kubectl.argv == ("/opt/lab/bin/k3s", "kubectl", "--cache-dir=/run/lab/kubectl")
        assert found.kubectl.kubeconfig == "/etc/rancher/k3s/k3s.yaml"
        assert (found.kubelet_unit, found.kubelet_url) == ("k3s", "https://127.0.0.1:10250")
        assert found.credentials_folder == "/opt/lab/credentials"
        assert found.must_agree == {
            "provider": "digitalocean",
            "emulation": "kvm",
            "cgroup_mode": "v2",
            "cgroup_driver": "systemd",
            "vcpus": "2",
            "memory_class": "4096 MiB",
            "control_plane": "in the k3s process",
        }
        stated = article.load().cells[0].stages["class"].environment
        assert stated.must_agree.items() <= found.must_agree.items()
        assert stated.shown.items() <= found.shown.items()
        assert found.shown["runc"] == "1.4.2"
        assert found.shown["containerd"] == "2.3.4-k3s1"
        assert found.shown["k3s"] == "v1.37.1+k3s1 (0123abcd)"
        assert found.shown["kubelet"] == "v1.37.1+k3s1"
        assert found.own_cpu_s() == {}
        with found.frozen():
            pass
        assert set(found.facts_texts) == {
            "node-facts.txt", "configz.json", "apiserver-version.json", "binaries.json", "gates-apiserver.txt",
            "gates-kubelet.txt", "k3s-start.txt",
        }  # fmt: skip
        assert json.loads(found.facts_texts["binaries.json"]) == {"k3s": "k" * 64, "busybox": "b" * 64}

    def test_images_are_brought_when_they_are_wanted(self, tmp_path):
        bench = Bench(tmp_path, images=True)
        bench.install()
        assert "/opt/lab/images/images.tar.zst" in bench.host.transfers
        assert bench.host.channels == 7
        assert "pause-image" not in bench.host.text("/etc/rancher/k3s/config.yaml")

    def test_a_version_is_resolved_once(self, bench):
        bench.distro.files(cell(), DROPLET)
        bench.install()
        assert bench.asked == [("k3s", "v1.37.1")]

    def test_a_gate_leg(self, bench):
        bench.programs["k3s_facts.sh"] = Reply(stdout=facts(gate="0", configz=config(featureGates={FIX: False})))
        found = bench.install(f"{FIX}=false")
        assert found.cell.name == f"k3s-v1.37.1+{FIX}=false"
        assert f'name="{FIX}"' in found.facts_texts["gates-kubelet.txt"]

    def test_a_gate_that_the_kubelet_was_not_told_is_an_error(self, bench):
        bench.programs["k3s_facts.sh"] = Reply(stdout=facts(gate="0"))
        with pytest.raises(NodeError, match=rf"featureGates is {{}}, not {{'{FIX}': False}}"):
            bench.install(f"{FIX}=false")

    def test_a_gate_that_did_not_take_is_an_error(self, bench):
        with pytest.raises(NodeError, match=f"gate {FIX}=false was set on the apiserver, but its metrics say true"):
            bench.install(f"{FIX}=false")

    def test_the_release_may_be_named(self, bench):
        bench.programs["k3s_facts.sh"] = Reply(stdout=facts(release="v1.37.1+k3s2"))
        assert bench.install(version="v1.37.1+k3s2").shown["kubelet"] == "v1.37.1+k3s2"

    @pytest.mark.parametrize(
        ("said", "message"),
        [
            ({"release": "v1.37.1+k3s2"}, r"the API server says that it is v1\.37\.1\+k3s2"),
            ({"api": "v1.36.5+k3s1"}, "the API server says"),
            ({"kubelet": "v1.36.5+k3s1"}, "the kubelet says"),
            ({"configz": config(cgroupDriver="cgroupfs")}, "cgroupDriver is 'cgroupfs', not 'systemd'"),
            ({"configz": config(evictionHard={"nodefs.available": "5%"})}, "memory.available is None"),
            ({"configz": config(evictionPressureTransitionPeriod="5m0s")}, "'5m0s', not '30s'"),
            ({"gates-kubelet": "(exit 1)"}, "the metrics of the kubelet list no gate"),
        ],
    )
    def test_what_runs_must_be_what_was_asked_for(self, bench, said, message):
        bench.programs["k3s_facts.sh"] = Reply(stdout=facts(**said))
        with pytest.raises(NodeError, match=message):
            bench.install()

    @pytest.mark.parametrize(
        "said",
        [
            {"runc": "sh: 1: runc: not found\n(exit 127)"},
            {"configz": "curl: (22) The requested URL returned error: 401\n(exit 22)"},
            {"api-version": ""},
            {"configz": "{}"},
        ],
    )
    def test_what_was_not_said_is_never_assumed(self, bench, said):
        text = facts(**{name: value for name, value in said.items() if name != "configz"})
        if "configz" in said:
            text = text.replace(json.dumps({"kubeletconfig": config()}), said["configz"])
        bench.programs["k3s_facts.sh"] = Reply(stdout=text)
        with pytest.raises(ParseError):
            bench.install()

    def test_a_start_that_fails_tells_the_step_and_the_journal(self, bench):
        text = "failed: unit: k3s ended 3 times while it started; last seen: ActiveState=failed\nlevel=fatal msg=x\n"
        bench.programs["k3s_start.sh"] = Reply(stdout=text, status=1)
        with pytest.raises(NodeError) as caught:
            bench.install()
        assert text.strip() in str(caught.value)

    def test_a_start_that_was_cut_is_no_start(self, bench):
        bench.programs["k3s_start.sh"] = Reply(stdout="unit: active after 1 start, 20 s\n")
        with pytest.raises(NodeError, match="is not ready"):
            bench.install()

    @pytest.mark.parametrize(("seconds", "total"), [(2000.0, sum(STEPS_S)), (500.0, 500), (0.0, 1)])
    def test_the_start_is_bounded(self, bench, seconds, total):
        bench.install(seconds=seconds)
        [command] = [entry for entry in bench.host.commands if bench.program(entry) == "k3s_start.sh"]
        assert command.argv[2:] == (str(total), *(str(limit) for limit in STEPS_S), "node", "lab")
        assert total < command.timeout_s <= total + 60

    def test_what_an_earlier_run_left_is_taken_off_first(self, bench):
        bench.programs["k3s_before.sh"] = [Reply(stdout="saved before\n"), Reply(stdout="saved\n")]
        bench.install()
        names = [bench.program(command) for command in bench.host.commands]
        assert names[:3] == ["k3s_before.sh", "k3s_remove.sh", "k3s_before.sh"]

    def test_a_machine_with_kubernetes_is_refused_before_anything_is_written(self, bench):
        bench.programs["k3s_before.sh"] = Reply(stdout="refused: /var/lib/kubelet\n", status=3)
        with pytest.raises(NodeError, match=r"/var/lib/kubelet is there already .* nothing was installed"):
            bench.install()
        assert bench.host.files == {}


class TestAttachLogsUninstall:
    VERSION = ("/opt/lab/bin/k3s", "kubectl", "--cache-dir=/run/lab/kubectl", "--kubeconfig=/etc/rancher/k3s/k3s.yaml",
               "--request-timeout=60s", "get", "--raw", "/version")  # fmt: skip

    def test_attach_reads_everything_back(self, bench):
        kept.remember(bench.node, cell())
        bench.host.answer(self.VERSION, Reply(stdout='{"gitVersion": "v1.37.1+k3s1"}'))
        found = bench.distro.attach(bench.node, cell())
        assert found.shown["kubelet"] == "v1.37.1+k3s1"
        assert "/opt/lab/node-scripts/hog.py" in bench.host.files
        assert bench.host.transfers == []

    @pytest.mark.parametrize(("was", "asked"), [(["MemoryQoS=false"], []), ([], ["MemoryQoS=false"])])
    def test_attach_to_a_node_with_other_gates_is_refused_before_anything_is_asked(self, bench, was, asked):
        gates = {"featureGates": {"MemoryQoS": False}} if was else {}
        bench.programs["k3s_facts.sh"] = Reply(stdout=facts(configz=config(**gates), **{
            f"gates-{component}": 'kubernetes_feature_enabled{name="MemoryQoS",stage="BETA"} 0'
            for component in ("apiserver", "kubelet")
        }))  # fmt: skip
        bench.install(*was)
        commands = len(bench.host.commands)
        with pytest.raises(UsageError, match=r"runs v1\.37\.1 with .*MemoryQoS=false"):
            bench.distro.attach(bench.node, cell(*asked))
        assert len(bench.host.commands) == commands

    def test_attach_to_another_version_is_refused(self, bench):
        kept.remember(bench.node, cell())
        bench.host.answer(self.VERSION, Reply(stdout='{"gitVersion": "v1.36.5+k3s1"}'))
        with pytest.raises(UsageError, match=r"runs v1\.36\.5\+k3s1, not v1\.37\.1\+k3s1"):
            bench.distro.attach(bench.node, cell())

    def test_logs_are_saved_as_far_as_they_can_be_had(self, bench, tmp_path):
        bench.host.answer_when(lambda command: command.argv[0] == "journalctl", Reply(stdout="klog lines\n"))
        bench.host.answer_when(lambda command: command.argv[0] == "tail", Reply(stderr="tail: no file\n", status=1))
        bench.host.answer_when(lambda command: command.argv[0] == "cat", TransportError("gone"))
        bench.distro.save_logs(None, bench.node, tmp_path / "logs")
        assert (tmp_path / "logs" / "k3s.log").read_text() == "klog lines\n"
        lines = (tmp_path / "logs" / "index.txt").read_text().splitlines()
        missing = {line.split()[0]: line.partition("missing: ")[2] for line in lines if "missing: " in line}
        assert missing["containerd.log"] == "exit 1: tail: no file"
        assert missing["containerd-config.toml"] == "gone"
        assert missing["kernel.log"].startswith("not asked for, since the connection is lost")

    def test_uninstall_names_what_is_left(self, bench):
        bench.programs["k3s_remove.sh"] = Reply(stdout="left: mounted: /run/k3s/x\nleft: process 7\n", status=1)
        with pytest.raises(NodeError, match="left: mounted: /run/k3s/x; left: process 7"):
            bench.distro.uninstall(bench.node)

    def test_uninstall(self, bench):
        bench.distro.uninstall(bench.node)
        assert [bench.program(command) for command in bench.host.commands] == ["k3s_remove.sh"]


class TestRegistry:
    def made(self, tmp_path, **options):
        return DISTROS["k3s"](Setup(sources=sources(tmp_path), scripts=SCRIPTS, progress=quiet, **options))

    def test_it_is_there_and_asks_for_the_release(self, tmp_path):
        found = self.made(tmp_path)
        assert found.name == "k3s"
        with pytest.raises(NodeError, match=r"k3s v1\.37\.1\+k3s1 could not be had"):
            found.files(cell(), DROPLET)

    def test_images_are_asked_for_only_when_they_are_wanted(self, tmp_path):
        with pytest.raises(NodeError, match=r"k3s-images v1\.37\.1\+k3s1 could not be had"):
            self.made(tmp_path, own_images=True).files(cell(), DROPLET)


LOG = """\
1764488300.000001 node k3s[812]: time="2025-11-30T07:38:20Z" level=info msg="Running kubelet --config-dir=/var/lib/rancher/k3s/agent/etc/kubelet.conf.d --eviction-hard=x"
1764488300.100000 node k3s[812]: I1130 07:38:20.100000     812 eviction_manager.go:194] "Eviction manager: starting control loop"
1764488300.200000 node k3s[812]: time="2025-11-30T07:38:20Z" level=warning msg="Eviction manager is mentioned by somebody else"
1764488461.123456 node k3s[812]: I1130 07:41:01.123456     812 eviction_manager.go:410] "Eviction manager: pods ranked for eviction" pods=["lab/be","lab/ctl"]
1764488461.200000 node k3s[812]: I1130 07:41:01.200000     812 httplog.go:134] "HTTP" verb="GET" URI="/readyz" latency="1ms" userAgent="k3s" srcIP="127.0.0.1:50000" resp=200
1764488463.500000 node k3s[812]: I1130 07:41:03.500000     812 eviction_manager.go:635] "Eviction manager: pod is evicted successfully" pod="lab/be"
1764488464.000000 node k3s[812]: {"level":"info","msg":"a line of another component in JSON"}
"""  # noqa: E501
"""Written for this test after the forms of mission-anchors 4.1 and of logrus; nobody captured it from a node."""


def test_the_units_journal_is_read_whatever_else_writes_to_it():
    events = parse_events(LOG)
    assert [event.kind for event in events if event.kind in ("ranked", "evicted")] == ["ranked", "evicted"]
    assert events[1].pods == ("lab/be", "lab/ctl")
    assert len(events) == 3
