"""The node's half of an upstream cluster: its files, its start, and what it says when it fails."""

from __future__ import annotations

import configparser
import os
import tomllib

import pytest
import yaml

from lab.distros.contract import EVICTION_THRESHOLD, PRESSURE_TRANSITION_S
from lab.distros.upstream import node, runtime
from lab.host import Command, Deadline, LocalHost
from lab.model import Cell, CommandError, Gate, NodeError, TransportError, WaitTimeout
from tests.fakes import FakeClock, FakeHost, Reply, waits_on


def cell(*gates):
    return Cell(distro="upstream", version="v1.37.2", gates=tuple(Gate.parse(text) for text in gates))


def config(*gates):
    return yaml.safe_load(node.kubelet_config(cell(*gates), runtime.PRESENT))


@pytest.fixture
def clock(monkeypatch):
    made = FakeClock()
    waits_on(made, monkeypatch)
    return made


@pytest.fixture
def host(clock):
    return FakeHost("n-1", clock)


class TestKubeletConfig:
    @pytest.mark.parametrize(
        ("gates", "expected"),
        [
            ([], None),
            (["A=false"], {"A": False}),
            (["A=true", "B=false"], {"A": True, "B": False}),
            (["A=false@kubelet"], {"A": False}),
            (["A=false@apiserver"], None),
            (["A=false@apiserver", "B=true@kubelet", "C=true"], {"B": True, "C": True}),
            (["A=true@apiserver", "A=false@kubelet"], {"A": False}),
        ],
    )
    def test_only_the_gates_that_the_kubelet_is_told(self, gates, expected):
        assert config(*gates).get("featureGates") == expected

    def test_gates_change_nothing_else(self):
        plain, gated = config(), config("A=false")
        assert gated.pop("featureGates") == {"A": False}
        assert gated == plain

    def test_eviction_is_at_the_threshold_and_only_for_memory(self):
        found = config()
        assert found["evictionHard"] == {"memory.available": EVICTION_THRESHOLD}
        assert found["evictionPressureTransitionPeriod"] == f"{PRESSURE_TRANSITION_S}s"

    def test_nobody_reaches_it_without_a_certificate(self):
        found = config()
        assert found["authentication"]["anonymous"] == {"enabled": False}
        assert found["authentication"]["x509"]["clientCAFile"] == "/etc/lab/ca.crt"
        assert found["authorization"] == {"mode": "Webhook"}

    def test_the_driver_is_the_runtimes(self):
        assert config()["cgroupDriver"] == "systemd"
        for text in (runtime.IMAGE_CONFIG, runtime.BROUGHT_CONFIG):
            found = tomllib.loads(text)["plugins"]["io.containerd.cri.v1.runtime"]
            assert found["containerd"]["runtimes"]["runc"]["options"]["SystemdCgroup"] is True

    def test_it_names_its_kind(self):
        assert (config()["apiVersion"], config()["kind"]) == ("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration")


class TestTexts:
    CREDENTIALS = ("ca.crt", "kubelet.crt", "kubelet.key", "kubelet.kubeconfig", "reader.crt", "reader.key")

    @pytest.fixture
    def texts(self):
        return self.texts_of(runtime.PRESENT)

    def texts_of(self, chosen):
        return node.texts(cell("A=false@kubelet"), {name: f"text of {name}" for name in self.CREDENTIALS}, chosen)

    def test_an_image_with_a_runtime_gets_these_files_and_no_other(self, texts):
        assert set(texts) == {
            *(f"/etc/lab/{name}" for name in self.CREDENTIALS), "/etc/lab/kubelet.yaml",
            "/etc/cni/net.d/10-lab.conflist", "/etc/containerd/config.toml",
            "/etc/systemd/system/lab-kubelet.service",
        }  # fmt: skip
        assert "After=containerd.service\n" in texts["/etc/systemd/system/lab-kubelet.service"][0]
        found = yaml.safe_load(texts["/etc/lab/kubelet.yaml"][0])
        assert found["containerRuntimeEndpoint"] == "unix:///run/containerd/containerd.sock"
        assert not {"makeIPTablesUtilChains", "podLogsDir", "volumePluginDir"} & set(found)

    def test_a_runtime_that_is_brought_leaves_the_owners_alone(self):
        texts = self.texts_of(runtime.BROUGHT)
        assert all(path.startswith(("/etc/lab/", "/etc/systemd/system/lab-")) for path in texts)
        assert "After=lab-containerd.service\n" in texts["/etc/systemd/system/lab-kubelet.service"][0]
        found = yaml.safe_load(texts["/etc/lab/kubelet.yaml"][0])
        assert found["containerRuntimeEndpoint"] == "unix:///run/lab/containerd/containerd.sock"
        assert found["makeIPTablesUtilChains"] is False
        for key in ("podLogsDir", "volumePluginDir"):
            assert found[key].startswith("/var/lib/lab/")

    def test_credentials_are_for_root_only(self, texts):
        for name in self.CREDENTIALS:
            assert texts[f"/etc/lab/{name}"] == (f"text of {name}", 0o600)

    def test_the_configuration_names_files_that_are_there(self, texts):
        found = yaml.safe_load(texts["/etc/lab/kubelet.yaml"][0])
        for path in (
            found["authentication"]["x509"]["clientCAFile"], found["tlsCertFile"], found["tlsPrivateKeyFile"]
        ):  # fmt: skip
            assert path in texts

    def test_the_unit_starts_the_kubelet_with_files_that_are_there(self, texts):
        unit = configparser.ConfigParser(interpolation=None)
        unit.optionxform = str
        unit.read_string(texts["/etc/systemd/system/lab-kubelet.service"][0])
        words = unit["Service"]["ExecStart"].split()
        assert words[0] == "/opt/lab/bin/kubelet"
        flags = dict(word.split("=", 1) for word in words[1:])
        assert flags["--config"] in texts
        assert flags["--kubeconfig"] in texts
        assert flags["--hostname-override"] == "node"
        assert int(flags["--v"]) >= 3
        assert unit["Service"]["Restart"] == "no"

    def test_a_network_plugin_is_found(self, texts):
        found = yaml.safe_load(texts["/etc/cni/net.d/10-lab.conflist"][0])
        assert found["plugins"] == [{"type": "loopback"}]

    def test_all_paths_are_absolute(self, texts):
        assert all(path.startswith("/") for path in texts)


class TestStart:
    @pytest.fixture
    def script(self, host, clock):
        """The script that is run on the node."""
        host.answer_when(lambda command: command.argv[:2] == ("sh", "-c"), Reply())
        node.start(host, {"/etc/lab/x": ("text", 0o600)}, runtime.PRESENT, Deadline.after(60, clock))
        return host.commands[-1].argv[2]

    @pytest.fixture
    def tools(self, tmp_path):
        """Stand-ins of the node's programs that write down how they were called; gives the means to run a script."""
        log = tmp_path / "calls"
        for name in ("systemctl", "python3", "journalctl"):
            tool = tmp_path / name
            fail = f'[ -z "$FAIL" ] || case "{name} $*" in "$FAIL"*) exit 1;; esac'
            say = "echo 'last line of the journal'" if name == "journalctl" else ":"
            tool.write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n{say}\n{fail}\n')
            tool.chmod(0o755)

        def run(script, fail=""):
            env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "FAIL": fail}
            done = LocalHost().run(Command(argv=("sh", "-c", script), env=env, check=False))
            return done, log.read_text().splitlines()

        return run

    def test_files_come_first(self, host, script):
        assert host.text("/etc/lab/x") == "text"
        assert len(host.commands) == 2

    def test_the_runtime_the_image_and_then_the_kubelet(self, script, tools):
        done, calls = tools(script)
        assert done.exit_status == 0
        assert calls == [
            "systemctl daemon-reload",
            "systemctl restart containerd",
            "python3 /opt/lab/node-scripts/oci_image.py",
            "systemctl start lab-kubelet",
        ]

    @pytest.mark.parametrize("step", ["systemctl restart", "python3 /opt", "systemctl start"])
    def test_a_failed_step_ends_it_and_shows_the_journal(self, script, tools, step):
        done, calls = tools(script, step)
        assert done.exit_status == 1
        assert "last line of the journal" in done.stderr
        assert calls[-2].startswith(step)
        assert calls[-1].startswith("journalctl -u containerd -u lab-kubelet")

    def test_a_runtime_that_is_brought_is_started_with_its_own_image_program(self, host, clock, tools):
        host.answer_when(lambda command: command.argv[:2] == ("sh", "-c"), Reply())
        node.start(host, {}, runtime.BROUGHT, Deadline.after(60, clock))
        assert host.commands[-1].repeatable
        done, calls = tools(host.commands[-1].argv[2])
        assert done.exit_status == 0
        assert calls == [
            "systemctl daemon-reload",
            "systemctl start lab-containerd",
            "python3 /opt/lab/node-scripts/busybox_image.py /opt/lab/bin/busybox /opt/lab/bin/ctr "
            "/run/lab/containerd/containerd.sock",
            "systemctl start lab-kubelet",
        ]

    def test_it_has_a_deadline_of_its_own_within_the_one_given(self, host, clock):
        host.answer_when(lambda command: command.argv[:2] == ("sh", "-c"), Reply())
        for seconds, expected in ((60, 60), (1000, 300), (0, 1)):
            node.start(host, {}, runtime.PRESENT, Deadline.after(seconds, clock))
            assert host.commands[-1].timeout_s == expected
            assert not host.commands[-1].repeatable


IS_ACTIVE = ("systemctl", "is-active", "lab-kubelet")


def journal(command):
    return command.argv[:3] == ("journalctl", "-u", "lab-kubelet")


def curl(command):
    return command.argv[0] == "curl"


class TestCheckUnit:
    @pytest.mark.parametrize("state", ["active", "activating"])
    def test_a_running_unit_is_fine(self, host, state):
        host.answer(IS_ACTIVE, Reply(stdout=f"{state}\n", status=0 if state == "active" else 3))
        node.check_unit(host)

    @pytest.mark.parametrize("state", ["failed", "inactive", "deactivating", ""])
    def test_any_other_state_shows_the_journal(self, host, state):
        host.answer(IS_ACTIVE, Reply(stdout=f"{state}\n", status=3))
        host.answer_when(journal, Reply(stdout="unknown flag: --x\n"))
        with pytest.raises(NodeError, match=rf"unit is {state}; its last lines:\nunknown flag: --x"):
            node.check_unit(host)


class TestGet:
    def test_the_path_with_the_readers_certificate(self, host):
        host.answer_when(curl, Reply(stdout="metrics"))
        assert node.get(host, "/metrics") == "metrics"
        words = host.commands[0].argv
        assert words[-1] == "https://127.0.0.1:10250/metrics"
        for flag, name in (("--cacert", "ca.crt"), ("--cert", "reader.crt"), ("--key", "reader.key")):
            assert words[words.index(flag) + 1] == f"/etc/lab/{name}"
        assert "--fail" in words
        assert "--insecure" not in words
        assert host.commands[0].repeatable

    def test_a_refusal_is_an_error(self, host):
        host.answer_when(curl, Reply(status=22, stderr="curl: (22) The requested URL returned error: 403"))
        with pytest.raises(CommandError, match="403"):
            node.get(host, "/metrics")


class TestWaitUnitAnswers:
    REFUSED = Reply(status=7, stderr="curl: (7) Failed to connect")

    def prepare(self, host, *answers):
        replies = iter(answers)

        def answer(command):
            reply = next(replies, answers[-1])
            if isinstance(reply, Exception):
                raise reply
            return reply

        host.answer_when(curl, answer)
        host.answer_when(journal, Reply(stdout="panic: x\n"))

    def test_until_it_says_ok(self, host, clock):
        self.prepare(host, self.REFUSED, self.REFUSED, Reply(stdout="[-]syncloop failed"), Reply(stdout="ok\n"))
        host.answer(IS_ACTIVE, Reply(stdout="active\n"))
        node.wait_unit_answers(host, Deadline.after(60, clock))
        assert sum(curl(command) for command in host.commands) == 4

    def test_a_kubelet_that_ended_is_not_waited_for(self, host, clock):
        self.prepare(host, self.REFUSED)
        host.answer(IS_ACTIVE, Reply(stdout="active\n"), Reply(stdout="failed\n", status=3))
        with pytest.raises(NodeError, match=r"unit is failed; its last lines:\npanic: x"):
            node.wait_unit_answers(host, Deadline.after(600, clock))
        assert sum(curl(command) for command in host.commands) == 2

    def test_the_deadline_carries_the_last_answer(self, host, clock):
        self.prepare(host, self.REFUSED)
        host.answer(IS_ACTIVE, Reply(stdout="active\n"))
        with pytest.raises(WaitTimeout, match=r"(?s)kubelet's /healthz; last seen: .*Failed to connect"):
            node.wait_unit_answers(host, Deadline.after(3, clock))

    def test_a_lost_node_is_not_taken_for_a_kubelet_that_starts(self, host, clock):
        self.prepare(host, TransportError("n-1: connection lost"))
        host.answer(IS_ACTIVE, TransportError("n-1: connection lost"))
        with pytest.raises(TransportError):
            node.wait_unit_answers(host, Deadline.after(60, clock))
