"""Stage quota on real captures: every answer, what it means, and which damage is noticed."""

from __future__ import annotations

import json

import pytest

from lab.model import TransportError
from lab.stages import quota
from lab.stages.qos_class import PODS
from tests.captures_helper import (
    Bench,
    Mutant,
    Raw,
    Record,
    applicable,
    check_mutant,
    cut,
    edit_json,
    edit_text,
    load,
    mutant_cases,
    nothing_shows_the_cell,
    observation_of,
    outcomes,
    versions,
    without,
)
from tests.fakes import Reply

STAGE = "quota"
EMPTY = ("quota-empty-block", "quota-fixed")
CONTROLS = "quota-controls"
ALL = (*EMPTY, CONTROLS)
KINDS = ("dry_run", "create")


def refused(name: str) -> dict[str, object]:
    message = (
        f'Error from server (Forbidden): error when creating "STDIN": pods "{name}" is forbidden: '
        "exceeded quota: no-besteffort, requested: pods=1, used: pods=0, limited: pods=0"
    )
    return {
        "stored": False,
        "dry_run": "refused",
        "dry_run_message": message,
        "create": "refused",
        "create_message": message,
    }


def admitted(name: str) -> dict[str, object]:
    message = f"pod/{name}"
    return {
        "stored": True,
        "dry_run": "admitted",
        "dry_run_message": message,
        "create": "admitted",
        "create_message": message,
    }


def test_every_field_of_the_v1_34_4_capture():
    assert observation_of(STAGE, "v1.34.4", load("v1.34.4", STAGE)) == {
        "pods": {
            "be": refused("be"),
            "ctl-burstable": admitted("ctl-burstable"),
            "emp-burstable": refused("emp-burstable"),
            "ctl-guaranteed": admitted("ctl-guaranteed"),
            "emp-guaranteed": refused("emp-guaranteed"),
            "plr-burstable": admitted("plr-burstable"),
        }
    }


@pytest.mark.parametrize("version", versions(STAGE))
def test_every_claim_for_the_version_held(version):
    made = applicable(STAGE, version)

    assert CONTROLS in made
    assert outcomes(STAGE, version, load(version, STAGE)) == dict.fromkeys(made, "HELD")


def test_row_and_notes_of_the_v1_34_4_capture():
    observation = observation_of(STAGE, "v1.34.4", load("v1.34.4", STAGE))

    assert quota.row(observation) == {
        "be": "refused",
        "ctl-burstable": "admitted",
        "emp-burstable": "refused",
        "ctl-guaranteed": "admitted",
        "emp-guaranteed": "refused",
        "plr-burstable": "admitted",
    }
    assert [note.partition(":")[0] for note in quota.notes(observation)] == ["be", "emp-burstable", "emp-guaranteed"]
    assert quota.notes(observation)[0] == f"be: {refused('be')['create_message']}"


def test_row_shows_answers_that_differ_and_that_are_absent():
    raw = load("v1.34.4", STAGE)
    copy_answer("ctl-burstable", "be", "create")(raw)
    without("answer-emp-burstable-dry_run.json", "answer-emp-burstable-create.json")(raw)
    row = quota.row(observation_of(STAGE, "v1.34.4", raw))

    assert row["be"] == "admitted (dry run refused)"
    assert row["emp-burstable"] == "?"


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        (None, (None, "not asked")),
        ({"exit": 0, "stdout": "pod/x\n", "stderr": ""}, ("admitted", "pod/x")),
        ({"exit": 0, "stdout": "pod/x\n", "stderr": "Warning: deprecated\n"}, ("admitted", "pod/x")),
        ({"exit": 1, "stdout": "", "stderr": "Unable to\n connect"}, (None, "Unable to connect")),
        ({"exit": 1, "stdout": "", "stderr": ""}, (None, "")),
        (
            {"exit": 1, "stdout": "", "stderr": "exceeded quota: no-besteffort, requested: pods=1, limited: pods=5"},
            (None, "exceeded quota: no-besteffort, requested: pods=1, limited: pods=5"),
        ),
    ],
)  # fmt: skip
def test_only_this_quotas_refusal_is_a_refusal(said, meaning):
    assert quota.answer(said) == meaning


# --- mutants ----------------------------------------------------------------------------------------------------------


def answer_file(name: str, kind: str) -> str:
    return f"answer-{name}-{kind}.json"


def copy_answer(source: str, target: str, *kinds: str):
    def change(raw: Raw) -> None:
        for kind in kinds:
            raw[answer_file(target, kind)] = raw[answer_file(source, kind)]

    return change


def exchange_answers(one: str, other: str):
    def change(raw: Raw) -> None:
        for kind in KINDS:
            first, second = answer_file(one, kind), answer_file(other, kind)
            raw[first], raw[second] = raw[second], raw[first]

    return change


def exchange_everywhere(one: str, other: str):
    """Answers and stored pods: as if the manifests had been mixed up."""

    def change(raw: Raw) -> None:
        exchange_answers(one, other)(raw)

        def edit(data: Record) -> None:
            for item in data["items"]:
                name = item["metadata"]["name"]
                item["metadata"]["name"] = {one: other, other: one}.get(name, name)

        edit_json(raw, "pods-after.json", edit)

    return change


def set_answer(name: str, **said: object):
    def change(raw: Raw) -> None:
        for kind in KINDS:
            edit_json(raw, answer_file(name, kind), lambda data: data.update(said))

    return change


def refuse_by(text: str):
    def change(raw: Raw) -> None:
        for kind in KINDS:
            edit_text(raw, answer_file("be", kind), "no-besteffort", text)

    return change


def store(name: str):
    def edit(data: Record) -> None:
        data["items"].append({"metadata": {"name": name, "namespace": "lab-quota"}})

    return lambda raw: edit_json(raw, "pods-after.json", edit)


def unstore(name: str):
    def edit(data: Record) -> None:
        data["items"] = [item for item in data["items"] if item["metadata"]["name"] != name]

    return lambda raw: edit_json(raw, "pods-after.json", edit)


QUOTAS = ("quota.json", "quota-after.json")


def rescope(name: str):
    return lambda raw: edit_text(raw, name, '"BestEffort"', '"NotBestEffort"')


def unfill(name: str):
    return lambda raw: edit_json(raw, name, lambda data: data.pop("status"))


def unknown(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "UNKNOWN")


def falsified(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "FALSIFIED")


MUTANTS = [
    Mutant(name="answers of be and ctl exchanged", change=exchange_answers("be", "ctl-burstable"),
           verdicts=unknown(CONTROLS)),
    Mutant(name="answers of emp and ctl exchanged", change=exchange_answers("emp-burstable", "ctl-burstable"),
           verdicts=unknown("quota-empty-block", CONTROLS), only_where="quota-empty-block"),
    Mutant(name="answers of emp and be exchanged", change=exchange_answers("emp-burstable", "be"),
           verdicts=unknown("quota-fixed", CONTROLS), only_where="quota-fixed"),
    Mutant(name="manifests of emp and ctl mixed up", change=exchange_everywhere("emp-guaranteed", "ctl-guaranteed"),
           verdicts=falsified("quota-empty-block", CONTROLS), only_where="quota-empty-block"),
    Mutant(name="manifests of be and ctl mixed up", change=exchange_everywhere("be", "ctl-guaranteed"),
           verdicts=falsified(CONTROLS)),
    Mutant(name="manifests of emp and be mixed up", change=exchange_everywhere("emp-burstable", "be"),
           verdicts=falsified("quota-fixed", CONTROLS), only_where="quota-fixed"),
    Mutant(name="answers of emp missing",
           change=without(*(answer_file("emp-burstable", kind) for kind in KINDS)), verdicts=unknown(*EMPTY)),
    *(Mutant(name=f"{kind} answer of emp missing", change=without(answer_file("emp-guaranteed", kind)),
             verdicts=unknown(*EMPTY)) for kind in KINDS),
    Mutant(name="refused by another quota", change=refuse_by("only-besteffort"), verdicts=unknown(CONTROLS)),
    Mutant(name="refused for another reason", change=set_answer("be", stderr="Error from server: etcdserver: timeout"),
           verdicts=unknown(CONTROLS)),
    Mutant(name="dry run admits what creation refuses", change=copy_answer("ctl-burstable", "be", "dry_run"),
           verdicts=unknown(CONTROLS)),
    Mutant(name="creation admits what dry run refuses", change=copy_answer("ctl-burstable", "be", "create"),
           verdicts=unknown(CONTROLS)),
    Mutant(name="refused pod stored", change=store("be"), verdicts=unknown(CONTROLS)),
    Mutant(name="refused emp stored", change=store("emp-burstable"), verdicts=unknown("quota-empty-block"),
           only_where="quota-empty-block"),
    Mutant(name="admitted pod not stored", change=unstore("ctl-guaranteed"), verdicts=unknown(CONTROLS)),
    Mutant(name="exit 0 with the text of a refusal", change=set_answer("be", exit=0), verdicts=unknown(CONTROLS)),
    Mutant(name="exit 1 without a text", change=set_answer("ctl-burstable", exit=1), verdicts=unknown(CONTROLS)),
    Mutant(name="an answer cut", change=cut(answer_file("be", "create")), verdicts=unknown(*ALL)),
    Mutant(name="an answer without its exit status",
           change=lambda raw: edit_json(raw, answer_file("be", "create"), lambda data: data.pop("exit")),
           verdicts=unknown(*ALL)),
    Mutant(name="stored pods cut", change=cut("pods-after.json"), verdicts=unknown(*ALL)),
    Mutant(name="stored pods missing", change=without("pods-after.json"), verdicts=unknown(*ALL)),
    *(Mutant(name=f"{name} missing", change=without(name), verdicts=unknown(*ALL)) for name in QUOTAS),
    *(Mutant(name=f"{name} of another scope", change=rescope(name), verdicts=unknown(*ALL)) for name in QUOTAS),
    *(Mutant(name=f"{name} not filled", change=unfill(name), verdicts=unknown(*ALL)) for name in QUOTAS),
    *nothing_shows_the_cell(ALL, "quota-fixed"),
]  # fmt: skip


@pytest.mark.parametrize(("version", "mutant"), mutant_cases(STAGE, MUTANTS))
def test_mutant_is_noticed(version, mutant):
    check_mutant(STAGE, version, mutant)


@pytest.mark.parametrize("version", versions(STAGE))
def test_mutant_refused_by_a_quota_whose_name_begins_alike(version):
    raw = load(version, STAGE)
    refuse_by("no-besteffort-elsewhere")(raw)

    assert outcomes(STAGE, version, raw)[CONTROLS] == "UNKNOWN"


@pytest.mark.parametrize("status", [124, 137, 255])
def test_mutant_of_a_kubectl_that_was_ended_with_the_text_of_a_refusal(status):
    raw = load("v1.34.4", STAGE)
    set_answer("be", exit=status)(raw)

    assert outcomes(STAGE, "v1.34.4", raw)[CONTROLS] == "UNKNOWN"


# --- collect ----------------------------------------------------------------------------------------------------------


def bench_with_answers(tmp_path) -> Bench:
    bench = Bench(tmp_path, {})
    for name in PODS:
        bench.creates[name] = Reply(stdout=f"pod/{name}\n")
    bench.creates["be"] = Reply(status=1, stderr="no words that anybody knows\n")
    return bench


def test_collect_saves_every_answer_whatever_it_says(tmp_path):
    bench = bench_with_answers(tmp_path)

    quota.collect(bench.context)

    answers = [answer_file(name, kind) for name in PODS for kind in KINDS]
    assert list(bench.saved) == ["quota.json", *answers, "quota-after.json", "pods-after.json"]
    said = {"exit": 1, "stdout": "", "stderr": "no words that anybody knows\n"}
    assert json.loads(bench.saved["answer-be-create.json"]) == said
    stored = [item["metadata"]["name"] for item in json.loads(bench.saved["pods-after.json"])["items"]]
    assert stored == [name for name in PODS if name != "be"]


def test_collect_asks_by_dry_run_before_it_creates_and_leaves_no_pod(tmp_path):
    bench = bench_with_answers(tmp_path)

    quota.collect(bench.context)

    steps = [step for step in bench.steps if not step.startswith("save")]
    assert steps[:4] == ["apply Namespace", "apply ResourceQuota", "create be (dry run)", "create be"]
    assert bench.pods == {}


def test_collect_starts_from_a_namespace_without_pods(tmp_path):
    bench = bench_with_answers(tmp_path)
    bench.pods["lab-quota", "left-over"] = {"metadata": {"name": "left-over", "namespace": "lab-quota"}, "spec": {}}

    quota.collect(bench.context)

    assert "left-over" not in bench.saved["pods-after.json"]
    assert bench.steps.index("delete left-over") < bench.steps.index("create be (dry run)")


def test_collect_keeps_what_it_saved_when_the_connection_is_lost(tmp_path, monkeypatch):
    bench = bench_with_answers(tmp_path)
    real = bench.controller.run

    def run(command):
        if "create" in command.argv and "name: ctl-burstable" in command.stdin:
            raise TransportError("lost")
        return real(command)

    monkeypatch.setattr(bench.controller, "run", run)

    with pytest.raises(TransportError):
        quota.collect(bench.context)

    assert list(bench.saved) == ["quota.json", "answer-be-dry_run.json", "answer-be-create.json"]


def test_pods_of_this_stage_name_a_scheduler_that_does_not_exist(tmp_path):
    bench = Bench(tmp_path, {})

    for name in PODS:
        manifest = bench.context.manifests.render(name, **quota.CHANGES)
        assert "schedulerName: nobody" in manifest
        assert "namespace: lab-quota" in manifest
