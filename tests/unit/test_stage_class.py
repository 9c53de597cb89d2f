"""Stage class on real captures: what is read, what is concluded, and which damage to the texts is noticed."""

from __future__ import annotations

import json

import pytest

from lab.model import CommandError
from lab.stages import qos_class
from tests.captures_helper import (
    Bench,
    Mutant,
    Raw,
    Record,
    applicable,
    check_mutant,
    cut,
    edit_json,
    edit_records,
    edit_text,
    exchange_words,
    load,
    mutant_cases,
    nothing_shows_the_cell,
    observation_of,
    outcomes,
    verdict_record,
    versions,
    without,
)
from tests.fakes import Reply

STAGE = "class"
EMPTY = ("class-empty-block", "class-fixed")
ALL = (*EMPTY, "class-controls", "class-views-agree")
BEST_EFFORT_SLICE = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod"
BURSTABLE_SLICE = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
PLR_BLOCK = '{"limits": {"cpu": "500m", "memory": "512Mi"}, "requests": {"cpu": "100m", "memory": "256Mi"}}'


def pod(kind: str, path: str, stored: str = "absent") -> dict[str, str]:
    return {
        "stored": stored,
        "status_class": kind,
        "cgroup_class": kind,
        "cgroup_path": path,
        "expected_class": kind,
    }


def test_every_field_of_the_v1_34_4_capture():
    assert observation_of(STAGE, "v1.34.4", load("v1.34.4", STAGE)) == {
        "behaviour": "EMPTY_BLOCK_SHADOWS",
        "pods": {
            "be": pod("BestEffort", f"{BEST_EFFORT_SLICE}b7dfea2e_b52c_4359_856c_ca53468091fd.slice"),
            "ctl-burstable": pod("Burstable", f"{BURSTABLE_SLICE}fa5449b1_07e3_43f5_825f_d2c0a6efeb03.slice"),
            "emp-burstable": pod("BestEffort", f"{BEST_EFFORT_SLICE}9df5bf29_199e_4fb2_a1e5_62f901d0d7b0.slice", "{}"),
            "ctl-guaranteed": pod(
                "Guaranteed", "/kubepods.slice/kubepods-pod0f02f4ae_23e2_49bd_a573_7a44a5a734f8.slice"
            ),
            "emp-guaranteed": pod("BestEffort", f"{BEST_EFFORT_SLICE}0c09e168_db21_48ef_8ced_e19e12085cde.slice", "{}"),
            "plr-burstable": pod(
                "Burstable", f"{BURSTABLE_SLICE}20f7eb5b_3ac4_4034_bffc_a5449de19a80.slice", PLR_BLOCK
            ),
        },
    }


@pytest.mark.parametrize("version", versions(STAGE))
def test_every_claim_for_the_version_held(version):
    made = applicable(STAGE, version)

    assert "class-views-agree" in made
    assert outcomes(STAGE, version, load(version, STAGE)) == dict.fromkeys(made, "HELD")


@pytest.mark.parametrize("version", versions(STAGE))
def test_row_and_notes_of_a_capture_say_nothing_unusual(version):
    observation = observation_of(STAGE, version, load(version, STAGE))

    assert qos_class.row(observation) == {
        name: observation["pods"][name]["status_class"] for name in qos_class.PODS
    }
    assert qos_class.notes(observation) == ["pod-level block as stored: emp-burstable {}, emp-guaranteed {}"]


def test_row_and_notes_show_views_that_differ():
    raw = load("v1.34.4", STAGE)
    set_status("plr-burstable", "Guaranteed")(raw)
    drop_pod("be")(raw)
    observation = observation_of(STAGE, "v1.34.4", raw)

    assert qos_class.row(observation)["plr-burstable"] == "Guaranteed / cgroup Burstable"
    assert qos_class.row(observation)["be"] == "? / cgroup BestEffort"
    assert "plr-burstable: status says Guaranteed, the classifier Burstable" in qos_class.notes(observation)


def test_row_of_a_pod_that_nobody_saw_is_a_dash():
    raw = load("v1.34.4", STAGE)
    drop_pod("be")(raw)
    drop_levels("be")(raw)

    assert qos_class.row(observation_of(STAGE, "v1.34.4", raw))["be"] == "-"


# --- mutants ----------------------------------------------------------------------------------------------------------


def set_status(name: str, kind: str):
    def change(raw: Raw) -> None:
        def edit(data: Record) -> None:
            for item in data["items"]:
                if item["metadata"]["name"] == name:
                    item["status"]["qosClass"] = kind

        edit_json(raw, "pods.json", edit)

    return change


def no_status(raw: Raw) -> None:
    def edit(data: Record) -> None:
        for item in data["items"]:
            del item["status"]["qosClass"]

    edit_json(raw, "pods.json", edit)


def drop_pod(name: str):
    def change(raw: Raw) -> None:
        def edit(data: Record) -> None:
            data["items"] = [item for item in data["items"] if item["metadata"]["name"] != name]

        edit_json(raw, "pods.json", edit)

    return change


def drop_levels(name: str):
    return lambda raw: edit_records(
        raw, "cgroups.jsonl", lambda record: None if record.get("pod") == name else record
    )


def move_cgroup(name: str, path: str):
    def edit(record: Record) -> Record:
        if record.get("level") == "pod" and record["pod"] == name:
            record["path"] = path
        return record

    return lambda raw: edit_records(raw, "cgroups.jsonl", edit)


def exchange(one: str, other: str, *files: str):
    def change(raw: Raw) -> None:
        for name in files:
            exchange_words(raw, name, {one: other, other: one})

    return change


def unknown(*claims: str) -> dict[str, str]:
    return dict.fromkeys(claims, "UNKNOWN")


def falsified(*claims: str) -> dict[str, str]:
    return dict.fromkeys(claims, "FALSIFIED")


MUTANTS = [
    Mutant(
        name="emp and ctl of another class exchanged in both views",
        change=exchange("emp-burstable", "ctl-guaranteed", "pods.json", "cgroups.jsonl"),
        verdicts=falsified(*EMPTY, "class-controls"),
    ),
    Mutant(
        name="emp and ctl exchanged in both views",
        change=exchange("emp-burstable", "ctl-burstable", "pods.json", "cgroups.jsonl"),
        verdicts=falsified("class-empty-block", "class-controls"),
        only_where="class-empty-block",
    ),
    Mutant(
        name="be and ctl exchanged by the cgroup reader alone",
        change=exchange("be", "ctl-guaranteed", "cgroups.jsonl"),
        verdicts=falsified("class-views-agree"),
    ),
    Mutant(
        name="status class of emp edited",
        change=set_status("emp-guaranteed", "Other"),
        verdicts=falsified(*EMPTY, "class-views-agree"),
    ),
    Mutant(
        name="status class of be edited",
        change=set_status("be", "Burstable"),
        verdicts=falsified("class-controls", "class-views-agree"),
    ),
    Mutant(name="no status has a class", change=no_status, verdicts=unknown(*ALL)),
    Mutant(
        name="emp missing in the pod list",
        change=drop_pod("emp-burstable"),
        verdicts=unknown(*EMPTY, "class-views-agree"),
    ),
    Mutant(name="be missing in the pod list", change=drop_pod("be"), verdicts=unknown("class-controls", ALL[-1])),
    Mutant(
        name="pod in another namespace",
        change=lambda raw: edit_text(raw, "pods.json", '"namespace": "lab"', '"namespace": "default"'),
        verdicts=unknown(*ALL),
    ),
    Mutant(
        name="cgroup path of another class",
        change=move_cgroup("ctl-burstable", "/kubepods.slice/kubepods-podfa5449b1.slice"),
        verdicts=falsified("class-views-agree"),
    ),
    Mutant(
        name="cgroup path outside kubepods",
        change=move_cgroup("be", "/system.slice/kubelet.service"),
        verdicts=unknown("class-views-agree"),
    ),
    Mutant(
        name="cgroup of one pod not found", change=drop_levels("plr-burstable"), verdicts=unknown("class-views-agree")
    ),
    Mutant(name="cgroup records cut", change=cut("cgroups.jsonl"), verdicts=unknown(*ALL)),
    Mutant(
        name="cgroup records without their end",
        change=lambda raw: edit_records(
            raw, "cgroups.jsonl", lambda record: None if record["kind"] == "end" else record
        ),
        verdicts=unknown(*ALL),
    ),
    Mutant(
        name="output of another program",
        change=lambda raw: edit_text(raw, "cgroups.jsonl", "pod-cgroups", "cpu-window"),
        verdicts=unknown(*ALL),
    ),
    Mutant(name="pod list cut", change=cut("pods.json"), verdicts=unknown(*ALL)),
    *(
        Mutant(name=f"{name} missing", change=without(name), verdicts=unknown(*ALL))
        for name in ("pods.json", "cgroups.jsonl")
    ),
    *nothing_shows_the_cell(ALL, "class-fixed"),
]


@pytest.mark.parametrize(("version", "mutant"), mutant_cases(STAGE, MUTANTS))
def test_mutant_is_noticed(version, mutant):
    check_mutant(STAGE, version, mutant)


@pytest.mark.parametrize("version", versions(STAGE))
def test_mutant_of_the_gates_is_noticed(version):
    raw = load(version, STAGE)
    edit_text(raw, "gates-apiserver.txt", '"PodLevelResources",stage="BETA"} 1', '"PodLevelResources",stage="BETA"} 0')

    assert set(outcomes(STAGE, version, raw).values()) <= {"FALSIFIED", "UNKNOWN"}


def test_a_mutant_that_cannot_be_read_says_why():
    raw = load("v1.34.4", STAGE)
    cut("cgroups.jsonl")(raw)
    record = verdict_record(STAGE, "v1.34.4", raw)

    assert "pod-cgroups: a line is not JSON" in record["problem"]
    assert {entry["reason"] for entry in record["verdicts"]} == {record["problem"]}


# --- collect ----------------------------------------------------------------------------------------------------------


def test_collect_saves_what_the_node_said_even_when_nothing_can_read_it(tmp_path):
    bench = Bench(tmp_path, {})
    bench.programs["pod_cgroups.py"] = [Reply(stdout="not one record\n")]

    qos_class.collect(bench.context)

    assert bench.saved["cgroups.jsonl"] == "not one record\n"
    names = {item["metadata"]["name"] for item in json.loads(bench.saved["pods.json"])["items"]}
    assert names == {*qos_class.PODS, "critical"}
    assert bench.arguments["pod_cgroups.py"] == [tuple(f"{name}=uid-of-{name}" for name in qos_class.PODS)]


def test_collect_keeps_what_it_saved_when_the_program_fails(tmp_path):
    bench = Bench(tmp_path, {})
    bench.programs["pod_cgroups.py"] = [CommandError("exit 1")]

    with pytest.raises(CommandError):
        qos_class.collect(bench.context)

    assert list(bench.saved) == ["pods.json"]


def test_collect_replaces_a_pod_that_does_not_run_and_deletes_those_of_other_stages(tmp_path):
    bench = Bench(tmp_path, {})
    bench.programs["pod_cgroups.py"] = [Reply(stdout="x")]
    for name in ("cpu-emp", "be", "ctl-burstable"):
        bench.context.add_pod(name)
    bench.pods["lab", "be"]["status"] = {"phase": "Failed"}
    del bench.steps[:]

    qos_class.collect(bench.context)

    assert [step for step in bench.steps if step.startswith("delete")] == ["delete cpu-emp", "delete be"]
    assert "start be" in bench.steps
    assert "start ctl-burstable" not in bench.steps
