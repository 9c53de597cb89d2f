"""kubectl's calls as argv, and the waits on what it answers."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.host import Deadline
from lab.kubectl import Kubectl, as_object, pod_state, wait_for_api
from lab.model import CommandError, NodeError, ParseError, TransportError, WaitTimeout
from tests.fakes import FakeClock, FakeHost, Reply, waits_on


@pytest.fixture
def clock(monkeypatch):
    made = FakeClock()
    waits_on(made, monkeypatch)
    return made


@pytest.fixture
def host(clock):
    return FakeHost("controller", clock)


@pytest.fixture
def kubectl(host):
    return Kubectl(host=host, argv=("k3s", "kubectl"), kubeconfig="/k/config")


def argv(*words, timeout="60"):
    return ("k3s", "kubectl", "--kubeconfig=/k/config", f"--request-timeout={timeout}s", *words)


def pod(name, phase="Running", ready=True, **status):
    containers = [] if ready is None else [{"name": "main", "ready": ready, "state": {"running": {}}}]
    return {"metadata": {"name": name}, "status": {"phase": phase, "containerStatuses": containers, **status}}


def pods(*items):
    return Reply(stdout=json.dumps({"items": list(items)}))


PODS = argv("get", "pods", "-n", "lab", "-o", "json")


class TestCalls:
    def test_get_is_json_and_may_be_repeated(self, kubectl, host):
        host.answer(argv("get", "node", "node", "-o", "json"), Reply(stdout='{"kind": "Node"}'))
        assert kubectl.get("node", "node") == {"kind": "Node"}
        assert kubectl.get_text("node", "node") == '{"kind": "Node"}'
        assert all(command.repeatable for command in host.commands)

    def test_nothing_is_asked_about_a_node_that_is_known_to_be_gone(self, kubectl, host, clock):
        begin_s = clock()

        def check():
            if clock() >= begin_s + 3:
                raise TransportError("node-1: the guest is gone")

        host.answer(PODS, pods(pod("be", "Pending", ready=None)))
        watching = dataclasses.replace(kubectl, check_node=check)
        with pytest.raises(TransportError, match="the guest is gone"):
            watching.wait_running("lab", ["be"], Deadline.after(600, clock))
        assert clock() == begin_s + 3
        with pytest.raises(TransportError):
            watching.raw("/metrics")
        assert watching.without_node().get("pods", "-n", "lab")["items"]

    def test_raw(self, kubectl, host):
        host.answer(argv("get", "--raw", "/metrics"), Reply(stdout="a 1\n"))
        assert kubectl.raw("/metrics") == "a 1\n"

    def test_apply_sends_the_manifest_on_standard_input(self, kubectl, host):
        host.answer(argv("apply", "--server-side", "--force-conflicts", "-f", "-"), Reply())
        kubectl.apply("kind: Pod\n")
        assert host.commands[0].stdin == "kind: Pod\n"
        assert host.commands[0].repeatable

    def test_create_is_never_repeated_but_a_dry_run_stores_nothing(self, kubectl, host):
        host.answer(argv("create", "-f", "-", "-o", "name"), Reply(stdout="pod/a\n"))
        host.answer(argv("create", "-f", "-", "--dry-run=server", "-o", "name"), Reply(stdout="pod/a\n"))
        assert kubectl.create("x").stdout == "pod/a\n"
        assert kubectl.create("x", dry_run=True).stdout == "pod/a\n"
        assert [command.repeatable for command in host.commands] == [False, True]

    def test_a_refusal_may_be_the_wanted_answer(self, kubectl, host):
        refusal = Reply(status=1, stderr="Error from server (Forbidden): exceeded quota")
        host.answer(argv("create", "-f", "-", "-o", "name"), refusal)
        assert kubectl.create("x", check=False).stderr == refusal.stderr
        with pytest.raises(CommandError, match="exceeded quota"):
            kubectl.create("x")

    def test_the_command_outlives_its_own_request(self, kubectl, host):
        host.answer(argv("get", "x", timeout="7.5"), Reply())
        kubectl.call("get", "x", timeout_s=7.5)
        assert host.commands[0].timeout_s > 7.5


class TestDelete:
    WORDS = ("-n", "lab", "--ignore-not-found", "--grace-period=1", "--wait=false")

    def test_nothing_to_delete_is_no_call(self, kubectl, host, clock):
        kubectl.delete("lab", [], deadline=Deadline.after(10, clock))
        assert host.commands == []

    def test_it_waits_until_the_api_has_forgotten_them(self, kubectl, host, clock):
        host.answer(argv("delete", "pod/a", "pod/b", *self.WORDS), Reply())
        host.answer(PODS, pods(pod("a"), pod("b"), pod("c")), pods(pod("b"), pod("c")), pods(pod("c")))
        kubectl.delete("lab", ["a", "b"], deadline=Deadline.after(10, clock))
        assert len(host.commands) == 4
        assert "--force" not in host.commands[0].argv
        assert host.commands[0].repeatable

    def test_the_timeout_names_those_that_stay(self, kubectl, host, clock):
        host.answer(argv("delete", "pod/a", "pod/b", *self.WORDS), Reply())
        host.answer(PODS, pods(pod("b"), pod("other")))
        with pytest.raises(WaitTimeout, match=r"pods to go: a, b; last seen: still there: b$"):
            kubectl.delete("lab", ["a", "b"], deadline=Deadline.after(10, clock))


class TestWaitRunning:
    def test_the_list_as_it_was_read(self, kubectl, host, clock):
        host.answer(
            PODS, pods(), pods(pod("a", "Pending", None), pod("b")), pods(pod("a", ready=False), pod("b")),
            pods(pod("a"), pod("b"), pod("c", "Failed")),
        )  # fmt: skip
        found = kubectl.wait_running("lab", ["a", "b"], Deadline.after(60, clock))
        assert [item["metadata"]["name"] for item in found["items"]] == ["a", "b", "c"]
        assert len(host.commands) == 4

    @pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
    def test_a_pod_that_ended_is_not_waited_for(self, kubectl, host, clock, phase):
        host.answer(PODS, pods(pod("a"), pod("b", phase, None, reason="Evicted")))
        with pytest.raises(NodeError, match=f"pods ended instead of running: .*b.*{phase}"):
            kubectl.wait_running("lab", ["a", "b"], Deadline.after(60, clock))
        assert len(host.commands) == 1

    def test_the_timeout_says_what_each_missing_pod_does(self, kubectl, host, clock):
        waiting = [{"ready": False, "state": {"waiting": {"reason": "ErrImageNeverPull"}}}]
        host.answer(PODS, pods(pod("a", "Pending", containerStatuses=waiting), pod("b")))
        with pytest.raises(WaitTimeout, match=r"last seen: a Pending ErrImageNeverPull, c absent$"):
            kubectl.wait_running("lab", ["a", "b", "c"], Deadline.after(5, clock))


class TestPodState:
    @pytest.mark.parametrize(
        ("item", "state"),
        [
            (None, "absent"),
            ({}, "unknown"),
            ({"status": {}}, "unknown"),
            (pod("a"), "Running"),
            (pod("a", ready=False), "not ready"),
            (pod("a", ready=None), "not ready"),
            (pod("a", "Pending", None), "Pending"),
            (pod("a", "Succeeded"), "Succeeded"),
            (pod("a", "Failed", reason="Evicted", message="long"), "Failed (Evicted)"),
            (pod("a", "Failed", message="long"), "Failed (long)"),
            (pod("a", "Failed"), "Failed (no reason)"),
            (pod("a", containerStatuses=[{"ready": True}, {"ready": False}]), "not ready"),
            (pod("a", containerStatuses=[{"ready": True}, {"ready": True}]), "Running"),
            (
                pod("a", containerStatuses=[{"ready": False, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]),
                "not ready CrashLoopBackOff",
            ),
            (pod("a", "Pending", containerStatuses=[{"state": {"waiting": {}}}]), "Pending"),
        ],
    )
    def test_states(self, item, state):
        assert pod_state(item) == state


class TestAsObject:
    @given(st.dictionaries(st.text(), st.integers()))
    def test_an_object_comes_back(self, value):
        assert as_object(json.dumps(value)) == value

    @pytest.mark.parametrize("text", ["", "[]", "null", "7", '"x"', "{", "Error from server", '{"a": 1} {}'])
    def test_anything_else_is_quoted(self, text):
        with pytest.raises(ParseError, match=r"not (a )?JSON") as caught:
            as_object(text)
        assert repr(text) in str(caught.value)


class TestWaitForApi:
    READY = argv("get", "--raw", "/readyz", timeout="5")

    def test_only_ok_is_ready(self, kubectl, host, clock):
        refused = Reply(status=1, stderr="The connection to the server 127.0.0.1:1 was refused")
        not_yet = Reply(status=1, stdout="[-]etcd failed\n", stderr="readyz check failed")
        host.answer(self.READY, refused, not_yet, Reply(stdout="okay"), Reply(seconds=60), Reply(stdout="ok\n"))
        wait_for_api(kubectl, Deadline.after(60, clock))
        assert len(host.commands) == 5

    def test_the_timeout_carries_the_last_answer(self, kubectl, host, clock):
        host.answer(self.READY, Reply(status=1, stdout="[-]etcd failed\n", stderr="readyz check failed"))
        with pytest.raises(WaitTimeout, match=r"/readyz\); last seen: \[-\]etcd failed\nreadyz check failed"):
            wait_for_api(kubectl, Deadline.after(3, clock))
