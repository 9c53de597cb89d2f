"""The lifecycle of a run: order, failures, signals, what is stored and what is removed."""

from __future__ import annotations

import dataclasses
import errno
import json
import signal
import time

import pytest

from lab import experiment, interrupts
from lab.model import (
    Cell,
    CommandError,
    Interrupted,
    LeftBehind,
    Missing,
    NodeError,
    Outcome,
    TransportError,
)
from lab.stages import qos_class
from tests.captures_helper import load
from tests.fakes import FakeHost, Reply, kubectl_words, said_by
from tests.projects import ROOT, commit_claims, fake_stage, make_bench, say

pytestmark = pytest.mark.usefixtures("signals")

PLAIN = Cell(distro="upstream", version="v1.36.3")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def raises(error, *, after="1"):
    """A collect that saves one text (or none) and then fails."""

    def collect(context):
        if after:
            context.save("number.txt", after)
        raise error

    return collect


def run(bench, *versions, **changes):
    """One run under the program's own handling of signals."""
    with interrupts.raising():
        return experiment.run(bench.config(*versions, **changes), bench.tools())


def interrupted(bench, *versions, **changes):
    with pytest.raises(Interrupted) as caught:
        run(bench, *versions, **changes)
    return str(caught.value)


# --- the ordinary way


def test_order_of_calls_and_what_is_stored(bench):
    bench.use_stages(fake_stage("fake"), fake_stage("other", collect=say("5")))
    first, second = run(bench, "v1.36.3", "v1.37.2")
    folder = bench.results / "upstream-v1.36.3"
    run_id = bench.record()["run"].lower()
    one, two = f"upstream-v1.36.3-{run_id}-1", f"upstream-v1.37.2-{run_id}-2"
    assert [step for step in bench.steps.calls if step[0] != "distro.files"] == [
        ("provider.create", one),
        ("distro.install", "upstream-v1.36.3"),
        ("provider.destroy", one),
        ("provider.create", two),
        ("distro.install", "upstream-v1.37.2"),
        ("provider.destroy", two),
    ]
    assert bench.steps.names()[:2] == ["distro.files"] * 2, "binaries are there before the first node"
    assert bench.provider.alive == {}
    assert first.attempts == [folder / "fake/0001", folder / "other/0001"]
    assert [(verdict.claim, verdict.outcome) for verdict in second.verdicts] == [("number-one", Outcome.HELD)]
    attempt = bench.store.attempts(stage="fake")[0]
    assert attempt.countable
    assert attempt.extra == {"seed": 7, "node": one}
    assert attempt.raw() == {**said_by(PLAIN), "number.txt": "1"}
    assert attempt.environment.must_agree["provider"] == "fake"
    assert {name.partition("/")[0] for name in attempt.stamp.inputs} == {
        "stage", "collect_version", "manifest", "script", "param",
    }  # fmt: skip
    assert bench.distro.saved == [], "no logs of a run that went well"


def test_journal_and_run_record(bench):
    bench.steps.during("provider.create", lambda: bench.clock.advance(90))
    run(bench, keep="never")
    events = bench.journal()
    assert [event["kind"] for event in events] == ["run", "create", "collected", "sealed", "destroyed", "cell"]
    assert events[1]["node"] == events[4]["node"] == bench.provider.specs[0].name + "-" + bench.provider.specs[0].run_id
    assert events[3] == {"kind": "sealed", "attempt": "upstream-v1.36.3/fake/0001", "problem": ""}
    assert (events[5]["cell"], events[5]["missing"]) == ("upstream-v1.36.3", [])
    record = bench.record()
    assert (record["format"], record["seed"], record["provider"], record["distro"]) == (1, 7, "fake", "upstream")
    assert record["options"] == {"quick": False, "reps": 3, "order": "random"}
    assert record["started"] == "2027-01-15T08:00:00.000+00:00"
    assert record["finished"] == "2027-01-15T08:01:30.000+00:00"
    (cell,) = record["cells"]
    assert set(cell.pop("phases_s")) == {"boot", "install", "ready", "other", "removal"}
    assert cell == {
        "cell": {"distro": "upstream", "version": "v1.36.3", "gates": []},
        "outcomes": {"number-one": "HELD"},
        "problem": None,
        "kept": None,
    }


def test_a_second_run_is_a_new_attempt(bench):
    run(bench)
    before = (bench.results / "upstream-v1.36.3/fake/0001/SHA256SUMS").read_bytes()
    run(bench)
    assert [attempt.number for attempt in bench.store.attempts()] == [1, 2]
    assert (bench.results / "upstream-v1.36.3/fake/0001/SHA256SUMS").read_bytes() == before


def test_a_real_stage_from_the_kubelets_own_texts(bench):
    """Stage class end to end on hosts that replay what a node of v1.34.4 said."""
    bench.use_stages(qos_class.STAGE)
    commit_claims(bench.project, (ROOT / "CLAIM.md").read_text().split("## Kernel numbers")[0])
    raw = load("v1.34.4", "class")
    pods = json.loads(raw["pods.json"])["items"]
    applied = []

    def kubectl(command):
        verb, *words = kubectl_words(command)
        if verb == "apply":
            applied.append(command.stdin)
            return Reply()
        assert verb == "get"
        if words[0] == "node":
            conditions = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}]
            return Reply(stdout=json.dumps({"spec": {}, "status": {"conditions": conditions}}))
        if "-A" in words:
            return Reply(stdout=raw["pods.json"])
        namespace = words[words.index("-n") + 1]
        made = [pod for pod in pods if pod["metadata"]["namespace"] == namespace and namespace in "".join(applied)]
        return Reply(stdout=json.dumps({"items": made}))

    def node(command):
        uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}
        if command.argv[0] == "date":
            return Reply(stdout=f"{time.time():.9f}\n")
        assert command.argv[:2] == ("python3", "/opt/lab/node-scripts/pod_cgroups.py")
        assert set(command.argv[2:]) == {f"{name}={uid}" for name, uid in uids.items() if name != "critical"}
        return Reply(stdout=raw["cgroups.jsonl"])

    def host(name):
        made = FakeHost(name)
        made.answer_when(lambda command: True, node)
        return made

    bench.provider.make_host = host
    bench.distro.controller.answer_when(lambda command: bool(kubectl_words(command)), kubectl)
    bench.distro.facts_texts = {
        name: text for name, text in raw.items() if name not in ("pods.json", "cgroups.jsonl")
    }
    (result,) = run(bench, "v1.34.4")
    assert result.problem is None
    assert {verdict.claim: verdict.outcome.value for verdict in result.verdicts} == {
        "class-empty-block": "HELD",
        "class-controls": "HELD",
        "class-views-agree": "HELD",
    }
    assert bench.store.attempts()[0].raw() == raw
    assert any("kube-system" in text for text in applied)


# --- a stage that fails


def test_a_failed_stage_is_sealed_as_unknown_and_the_next_one_runs(bench):
    error = CommandError("node-1: exit 3: kubectl get pods\nstderr: no such kind")
    bench.use_stages(fake_stage("fake", collect=raises(error, after="")), fake_stage("other"))
    ended = bench.run()
    assert ended.code == 3
    fake, other = bench.store.attempts()
    assert fake.raw()["problem.txt"] == f"{error}\n"
    assert fake.verdict["problem"].startswith(str(error))
    assert [entry["outcome"] for entry in fake.verdict["verdicts"]] == ["UNKNOWN"]
    assert "no such kind" in fake.verdict["verdicts"][0]["reason"]
    assert (other.stage, other.observation) == ("other", {"number": 1})
    assert [folder.name for folder in bench.distro.saved] == ["upstream-v1.36.3"]
    assert bench.distro.saved[0].is_relative_to(bench.root / "cache" / "logs")
    assert f"logs are in {bench.distro.saved[0]}" in ended.err
    assert "stage fake failed: node-1: exit 3" in ended.err
    assert bench.steps.names()[-2:] == ["distro.save_logs", "provider.destroy"]
    assert bench.provider.alive == {}


def test_a_failed_stage_is_not_all_well_even_when_its_claims_could_be_judged(bench):
    bench.use_stages(fake_stage(collect=raises(NodeError("the last fetch failed"))))
    ended = bench.run()
    assert [entry["outcome"] for entry in bench.store.attempts()[0].verdict["verdicts"]] == ["HELD"]
    assert ended.code == 3


@pytest.mark.parametrize("error", [KeyError("items"), TypeError("x"), AttributeError("y"), OSError(5, "bad")])
def test_an_answer_of_an_unforeseen_form_fails_the_stage_alone(bench, error):
    bench.use_stages(fake_stage("fake", collect=raises(error, after="")), fake_stage("other"))
    assert bench.run().code == 3
    fake, other = bench.store.attempts()
    assert fake.raw()["problem.txt"].startswith(type(error).__name__)
    assert other.verdict["problem"] == ""


@pytest.mark.parametrize("part", ["parse", "view"])
@pytest.mark.parametrize("error", [TypeError("odd"), AttributeError("odd"), RecursionError("odd"), KeyError("odd")])
def test_a_reader_that_breaks_still_seals_what_the_node_said(bench, part, error):
    def broken(_):
        raise error

    bench.use_stages(fake_stage(**{part: broken}))
    (result,) = run(bench)
    (attempt,) = bench.store.attempts()
    assert attempt.raw()["number.txt"] == "1"
    assert attempt.observation == (None if part == "parse" else {"number": 1})
    assert f"the fake stage's texts could not be read: {type(error).__name__}" in attempt.verdict["problem"]
    assert [verdict.outcome for verdict in result.verdicts] == [Outcome.UNKNOWN]


def test_a_lost_connection_ends_the_cell_and_not_the_run(bench):
    lost = TransportError("node-1: connection lost in: cat x")
    bench.use_stages(fake_stage("fake", collect=raises(lost, after="1")), fake_stage("other"))
    ended = bench.run(versions="v1.36.3,v1.37.2")
    assert ended.code == 5
    assert bench.store.attempts() == [], "nobody measured to the end"
    assert len(bench.partials()) == 2, "no further stage on a lost node"
    assert all(texts["number.txt"] == "1" for texts in bench.partials())
    assert bench.steps.names().count("provider.destroy") == 2
    assert [event["text"] for event in bench.journal() if event["kind"] == "problem"] == [str(lost)] * 2
    assert ended.err.count("error: node-1: connection lost in: cat x") == 2
    (run_id,) = [path.name for path in bench.results.glob("_runs/*")]
    assert f"next: lab run --resume {run_id} --results {bench.results}" in ended.err


# --- a node that fails


def test_a_failed_installation(bench):
    bench.steps.fail("distro.install", NodeError("kubelet: unit lab-kubelet is failed"), call=1)
    ended = bench.run(versions="v1.36.3,v1.37.2")
    assert ended.code == 5
    assert ended.error.startswith("kubelet: unit lab-kubelet is failed")
    assert bench.steps.names()[2:] == [
        "distro.files", "provider.create", "distro.install", "distro.save_logs", "provider.destroy",
        "distro.files", "provider.create", "distro.install", "provider.destroy",
    ]  # fmt: skip
    assert [attempt.cell.version for attempt in bench.store.attempts()] == ["v1.37.2"]
    assert [cell["problem"] for cell in bench.record()["cells"]] == ["kubelet: unit lab-kubelet is failed", None]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NodeError("the guest never answered; console: panic"), 5),
        (NodeError("port 22 is taken; give another one with --ssh-port"), 5),
        (LeftBehind("node x: processes 4242 would not end"), 6),
        (OSError(errno.ENOSPC, "No space left on device", "/cache/nodes/seed.tar"), 5),
    ],
)
def test_a_node_that_cannot_be_made(bench, error, code):
    bench.steps.fail("provider.create", error)
    ended = bench.run()
    assert ended.code == code
    assert str(error) in ended.error
    assert bench.steps.names() == ["distro.files", "distro.files", "provider.create"]
    assert bench.store.attempts() == []
    assert bench.record()["cells"][0]["problem"] is not None


@pytest.mark.parametrize("error", [NodeError("no journal"), OSError(errno.ENOSPC, "No space left on device")])
def test_logs_that_cannot_be_saved_do_not_keep_the_node(bench, error):
    bench.steps.fail("distro.install", NodeError("kubelet failed"))
    bench.steps.fail("distro.save_logs", error)
    ended = bench.run()
    assert ended.code == 5
    assert ended.error == "kubelet failed"
    assert f"the logs could not be saved: {error}" in ended.err
    assert bench.provider.alive == {}


# --- keeping


@pytest.mark.parametrize(
    ("keep", "fails", "stays"),
    [
        ("never", False, False),
        ("never", True, False),
        ("failed", False, False),
        ("failed", True, True),
        ("always", False, True),
        ("always", True, True),
    ],
)
def test_keep(bench, keep, fails, stays):
    bench.use_stages(fake_stage(collect=raises(NodeError("x"))) if fails else fake_stage())
    (result,) = run(bench, keep=keep)
    assert list(bench.provider.alive) == ([result.kept] if stays else [])
    assert (result.kept is not None) is stays
    assert bench.journal()[-2]["kind"] == ("kept" if stays else "destroyed")
    if stays:
        assert bench.provider.kept == {result.kept: bench.clock.now + 8 * 3600}
        assert bench.record()["cells"][0]["kept"] == result.kept


def test_keep_says_how_to_reach_and_remove_the_node(bench):
    ended = bench.run("--keep", "always")
    assert ended.code == 0
    (node,) = bench.provider.alive
    assert f"kept: {node}  (lab ssh {node}; lab down {node})" in ended.err


def test_a_kept_node_is_used_again_and_stays(bench):
    (first,) = run(bench, keep="always")
    (again,) = run(bench, node=first.kept)
    assert again.kept == first.kept
    assert bench.steps.names().count("provider.create") == 1
    assert [attempt.number for attempt in bench.store.attempts()] == [1, 2]


def test_a_kept_node_stays_when_its_next_run_is_interrupted(bench):
    (first,) = run(bench, keep="always")
    bench.use_stages(fake_stage(collect=lambda context: signal.raise_signal(signal.SIGINT)))
    interrupted(bench, node=first.kept)
    assert list(bench.provider.alive) == [first.kept]
    assert "provider.destroy" not in bench.steps.names()


def test_another_version_on_a_kept_node_is_refused_and_the_node_stays(bench):
    (first,) = run(bench, keep="always")
    ended = bench.run("--node", first.kept, versions="v1.37.2")
    assert ended.code == 2
    assert "not upstream-v1.37.2" in ended.error
    assert len(list(bench.results.glob("_runs/*"))) == 1, "nothing of the second run is stored"
    assert list(bench.provider.alive) == [first.kept]


def test_a_node_that_cannot_be_marked_as_kept_is_reported(bench):
    bench.steps.fail("provider.keep", OSError(errno.ENOSPC, "No space left on device"))
    ended = bench.run("--keep", "always", leaves=1)
    (node,) = bench.provider.alive
    assert ended.code == 6
    assert f"node {node}: [Errno 28] No space left on device" in ended.error
    assert node in bench.record()["cells"][0]["problem"]
    assert bench.journal()[-2]["kind"] == "left-behind"


# --- what will not go


@pytest.mark.parametrize(
    "error", [LeftBehind("node {}: processes 4242 would not end"), NodeError("the API gave 500"), OSError("refused")]
)
def test_what_is_left_behind_is_named_and_ends_the_run(bench, error):
    if isinstance(error, LeftBehind):
        error = LeftBehind(str(error).format("n-1"))
    bench.steps.fail("provider.destroy", error)
    one, two = run(bench, "v1.36.3", "v1.37.2")
    (node,) = bench.provider.alive
    assert isinstance(one.problem, LeftBehind)
    assert one.problem.exit_code == 6
    assert node in str(one.problem)
    assert str(error) in str(one.problem)
    assert "lab gc" in str(one.problem)
    assert isinstance(two.problem, Missing)
    assert "upstream-v1.37.2 was not started: what upstream-v1.36.3 left behind may still run" in str(two.problem)
    assert bench.steps.names().count("provider.create") == 1
    assert bench.journal()[-2] == {"kind": "left-behind", "node": node, "text": str(one.problem)}
    assert [attempt.stage for attempt in bench.store.attempts()] == ["fake"], "what was measured stays"


def test_left_behind_outweighs_all_other_errors_and_hides_none(bench):
    bench.steps.fail("distro.install", NodeError("kubelet failed"))
    bench.provider.leave_behind()
    ended = bench.run(leaves=1)
    assert ended.code == 6
    assert "processes 4242 would not end" in ended.error
    assert "before that: kubelet failed" in ended.error


# --- signals


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("phase", ["provider.create", "distro.install", "collect", "provider.destroy"])
def test_a_signal_in_any_phase_removes_the_node(bench, phase, number):
    def collect(context):
        context.save("number.txt", "1")
        if phase == "collect":
            signal.raise_signal(number)
        context.save("after.txt", "x")

    bench.use_stages(fake_stage("fake", collect=collect), fake_stage("other"))
    if phase != "collect":
        bench.steps.during(phase, lambda: signal.raise_signal(number))
    ended = bench.run(versions="v1.36.3,v1.37.2")
    assert ended.code == 130
    assert ended.error == f"stopped by {number.name}"
    assert bench.provider.alive == {}
    assert bench.steps.names().count("provider.create") == 1, "the next version is not begun"
    assert bench.steps.names().count("provider.destroy") == (0 if phase == "provider.create" else 1)
    assert [cell["problem"] for cell in bench.record()["cells"]] == [f"stopped by {number.name}"]
    if phase == "collect":
        assert bench.store.attempts() == []
        assert bench.partials() == [{**said_by(PLAIN), "number.txt": "1"}]
        assert {"kind": "unfinished", "attempt": "upstream-v1.36.3/fake/.0001.partial"} in bench.journal()
    else:
        assert bench.partials() == []
    assert ("still removing node" in ended.err) is (phase == "provider.destroy")


def test_an_interrupted_run_leaves_the_results_in_order(bench):
    bench.use_stages(fake_stage("fake"), fake_stage("other", collect=lambda _: signal.raise_signal(signal.SIGTERM)))
    assert bench.run().code == 130
    assert bench.lab("verify", "--results", str(bench.results)).code == 0
    bench.use_stages(fake_stage("fake"), fake_stage("other"))
    ended = bench.run()
    assert ended.code == 0
    assert [(attempt.stage, attempt.number) for attempt in bench.store.attempts()] == [
        ("fake", 1),
        ("fake", 2),
        ("other", 2),
    ]


def test_impatience_does_not_stop_the_removal(bench):
    bench.use_stages(fake_stage(collect=lambda context: signal.raise_signal(signal.SIGINT)))

    def again():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)

    bench.steps.during("provider.destroy", again)
    ended = bench.run()
    assert ended.code == 130
    assert ended.error == "stopped by SIGINT"
    assert ended.err.count("still removing node upstream-v1.36.3-") == 3
    assert bench.provider.alive == {}
    assert bench.journal()[-2]["kind"] == "destroyed"


def test_a_signal_while_logs_are_saved_removes_the_node(bench):
    bench.steps.fail("distro.install", NodeError("kubelet failed"))
    bench.steps.during("distro.save_logs", lambda: signal.raise_signal(signal.SIGTERM))
    assert bench.run("--keep", "failed").code == 130
    assert bench.provider.alive == {}
    assert bench.provider.kept == {}


def test_a_signal_while_texts_are_read_is_no_fault_of_the_texts(bench):
    bench.use_stages(fake_stage("fake", parse=lambda _: signal.raise_signal(signal.SIGINT) or {}), fake_stage("other"))
    assert interrupted(bench) == "stopped by SIGINT"
    assert bench.store.attempts() == []
    assert bench.partials() == [{**said_by(PLAIN), "number.txt": "1"}]


def test_a_node_left_behind_by_an_interrupted_run_is_named(bench):
    bench.use_stages(fake_stage(collect=lambda context: signal.raise_signal(signal.SIGINT)))
    bench.provider.leave_behind("n-1")
    # What may still cost money outweighs that somebody wanted to stop: exit 6, not 130.
    with pytest.raises(LeftBehind, match="processes 4242"):
        run(bench)
    (node,) = bench.provider.alive
    (line,) = [line for line in bench.said if line.startswith("left behind: ")]
    assert node in line
    assert "processes 4242" in line
    assert node in bench.record()["cells"][0]["problem"]


@pytest.mark.parametrize("keep", ["never", "failed", "always"])
def test_only_always_keeps_an_interrupted_node(bench, keep):
    bench.use_stages(fake_stage(collect=lambda context: signal.raise_signal(signal.SIGINT)))
    interrupted(bench, keep=keep)
    assert len(bench.provider.alive) == (1 if keep == "always" else 0)


def test_a_signal_that_is_ignored_stays_ignored(bench):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        bench.use_stages(fake_stage(collect=lambda c: (signal.raise_signal(signal.SIGHUP), c.save("number.txt", "1"))))
        bench.steps.during("provider.destroy", lambda: signal.raise_signal(signal.SIGHUP))
        ended = bench.run()
    finally:
        previous = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGHUP, previous)
    assert ended.code == 0
    assert "still removing" not in ended.err


# --- limits and refusals


def test_max_minutes_starts_no_further_version(bench):
    bench.steps.during("provider.create", lambda: bench.clock.advance(61))
    one, two, three = run(bench, "v1.35.4", "v1.36.3", "v1.37.2", max_minutes=2.0)
    assert one.problem is None
    assert two.problem is None
    assert isinstance(three.problem, Missing)
    assert str(three.problem) == "upstream-v1.37.2 was not started: --max-minutes 2 is over"
    assert three.problem.exit_code == 3
    assert len(bench.provider.specs) == 2


def test_uncommitted_claims_are_refused_before_any_node_is_made(bench):
    with (bench.project / "CLAIM.md").open("a") as file:
        file.write("one more word\n")
    ended = bench.run()
    assert ended.code == 2
    assert "has uncommitted changes" in ended.error
    assert "--quick" in ended.error
    assert bench.steps.calls == []
    assert not bench.results.exists()


def test_quick_runs_with_uncommitted_claims_and_never_counts(bench):
    with (bench.project / "CLAIM.md").open("a") as file:
        file.write("one more word\n")
    ended = bench.run("--quick")
    assert ended.code == 0
    assert bench.store.attempts() == []
    (attempt,) = bench.store.attempts(smoke=True)
    assert attempt.path == bench.results / "_smoke/upstream-v1.36.3/fake/0001"
    assert not attempt.countable
    assert not (bench.results / "summary.md").exists()


def test_without_git_results_are_stored_and_do_not_count(tmp_path, monkeypatch, capfd):
    bench = make_bench(tmp_path, monkeypatch, capfd, in_git=False)
    ended = bench.run()
    assert "stage fake will not count: CLAIM.md is not in a git work tree" in ended.err
    (attempt,) = bench.store.attempts()
    assert not attempt.countable
    assert attempt.uncountable_reasons
    summary = (bench.results / "summary.md").read_text()
    assert "uncountable: CLAIM.md is not in a git work tree" in summary
    assert bench.lab("summary", "--results", str(bench.results)).code == 3, "nothing was counted, so nothing is known"


def test_a_claim_without_an_answer_for_a_cell_is_found_before_its_node_is_made(bench):
    text = (bench.project / "CLAIM.md").read_text().replace("minor >= 34", "gate('PodLevelResources', True)")
    commit_claims(bench.project, text)
    ended = bench.run("--gate", "PodLevelResources=false@kubelet")
    assert ended.code == 2
    assert "CLAIM.md line 4: when of claim number-one" in ended.error
    assert "the claim must name a component" in ended.error
    assert bench.steps.calls == []


def test_binaries_that_are_missing_are_found_before_the_first_node_is_made(bench):
    bench.steps.fail("distro.files", NodeError("kubernetes v1.37.2 could not be had"), call=2)
    ended = bench.run(versions="v1.36.3,v1.37.2")
    assert ended.code == 5
    assert ended.error == "kubernetes v1.37.2 could not be had"
    assert bench.steps.names() == ["distro.files"] * 2
    assert not bench.results.exists()


class TestLastingNode:
    """A machine that stays: what was installed is taken off, then the provider looks whether that is true."""

    @pytest.fixture
    def lasting(self, bench):
        bench.provider.site = dataclasses.replace(bench.provider.site, is_lasting=True)
        return bench

    def test_the_distribution_goes_before_the_node_is_given_back(self, lasting):
        assert lasting.run().code == 0
        assert lasting.steps.names()[-2:] == ["distro.uninstall", "provider.destroy"]

    def test_a_removal_that_fails_does_not_keep_the_provider_from_looking(self, lasting):
        lasting.steps.fail("distro.uninstall", NodeError("kubelet would not stop"))
        ended = lasting.run()
        assert lasting.steps.names()[-1] == "provider.destroy"
        assert ended.code == 0, "the machine is as it was"
        assert "kubelet would not stop" in ended.err

    def test_both_reasons_are_named_when_something_stays(self, lasting):
        lasting.steps.fail("distro.uninstall", NodeError("kubelet would not stop"))
        lasting.provider.leave_behind()
        ended = lasting.run(leaves=1)
        assert ended.code == 6
        assert "kubelet would not stop" in ended.error
        assert "would not end" in ended.error

    def test_a_node_that_goes_away_needs_no_removal(self, bench):
        assert bench.run().code == 0
        assert "distro.uninstall" not in bench.steps.names()
