"""Stage kernel on real captures: every number read, the formulas beside it, and which damage is noticed."""

from __future__ import annotations

import json

import pytest

from lab.model import CommandError
from lab.stages import kernel
from lab.stages.qos_class import PODS
from tests.captures_helper import (
    Bench,
    Mutant,
    Raw,
    Record,
    applicable,
    check_mutant,
    check_shown,
    cut,
    edit_json,
    edit_records,
    edit_text,
    exchange_words,
    load,
    mutant_cases,
    node_object,
    nothing_shows_the_cell,
    observation_of,
    outcomes,
    versions,
    without,
)
from tests.fakes import Reply

STAGE = "kernel"
TWINS = ("kernel-empty-block", "kernel-fixed")
LIMITS = "kernel-container-limits-stay"
FORMULAS = "kernel-formulas"
ALL = (*TWINS, LIMITS, FORMULAS)
NONE, HALF, FIFTH = "max 100000", "50000 100000", "20000 100000"
MIB_256, MIB_512 = "268435456", "536870912"
BEST_EFFORT_SLICE = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod"
BURSTABLE_SLICE = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"


def files(weight: int, cpu_max: str, memory_max: str, swap_max: str = "max") -> dict[str, object]:
    return {
        "cpu_weight": weight,
        "cpu_max": cpu_max,
        "memory_max": memory_max,
        "memory_min": "0",
        "memory_low": "0",
        "memory_high": "max",
        "memory_swap_max": swap_max,
    }


def pod(kind: str, path: str, levels: dict[str, tuple[int, str, str]], adjust: int, score: int) -> dict[str, object]:
    """What the node said; the expected part says the same, since every claim held. Containers have no swap."""
    expected = {
        level: dict(zip(("cpu_weight", "cpu_max", "memory_max"), values, strict=True))
        for level, values in levels.items()
    }
    return {
        "class": kind,
        "pod": files(*levels["pod"]),
        "container": files(*levels["container"], swap_max="0"),
        "path": path,
        "oom_score_adj_all": [adjust],
        "oom_score_adj": adjust,
        "oom_score": score,
        "expected": {"class": kind, **expected, "oom_score_adj": adjust},
    }


def levels(pod_values: tuple[int, str, str], container: tuple[int, str, str]) -> dict[str, tuple[int, str, str]]:
    return {"pod": pod_values, "container": container}


NOTHING = (1, NONE, "max")


def test_every_field_of_the_v1_34_4_capture():
    observation = observation_of(STAGE, "v1.34.4", load("v1.34.4", STAGE))

    assert observation["pods"] == {
        "be": pod(
            "BestEffort", f"{BEST_EFFORT_SLICE}b7dfea2e_b52c_4359_856c_ca53468091fd.slice",
            levels(NOTHING, NOTHING), 1000, 1332,
        ),
        "ctl-burstable": pod(
            "Burstable", f"{BURSTABLE_SLICE}fa5449b1_07e3_43f5_825f_d2c0a6efeb03.slice",
            levels((4, HALF, MIB_512), (17, HALF, MIB_512)), 935, 1289,
        ),
        "emp-burstable": pod(
            "BestEffort", f"{BEST_EFFORT_SLICE}9df5bf29_199e_4fb2_a1e5_62f901d0d7b0.slice",
            levels(NOTHING, (17, HALF, MIB_512)), 1000, 1332,
        ),
        "ctl-guaranteed": pod(
            "Guaranteed", "/kubepods.slice/kubepods-pod0f02f4ae_23e2_49bd_a573_7a44a5a734f8.slice",
            levels((8, FIFTH, MIB_256), (29, FIFTH, MIB_256)), -997, 3,
        ),
        "emp-guaranteed": pod(
            "BestEffort", f"{BEST_EFFORT_SLICE}0c09e168_db21_48ef_8ced_e19e12085cde.slice",
            levels(NOTHING, (29, FIFTH, MIB_256)), 1000, 1332,
        ),
        "plr-burstable": pod(
            "Burstable", f"{BURSTABLE_SLICE}20f7eb5b_3ac4_4034_bffc_a5449de19a80.slice",
            levels((4, HALF, MIB_512), (59, HALF, MIB_512)), 935, 1289,
        ),
    }  # fmt: skip
    assert observation["parents"] == {
        "kubepods.slice": files(79, NONE, "4108140544"),
        "kubepods-besteffort.slice": files(1, NONE, "max"),
        "kubepods-burstable.slice": files(12, NONE, "max"),
    }
    assert {name: value for name, value in observation.items() if name not in ("pods", "parents")} == {
        # All CPUs for kubepods; 100m each of ctl-burstable, plr-burstable and the critical pod for the Burstable ones.
        "parents_expected": {
            "kubepods.slice": 79,
            "kubepods-besteffort.slice": 1,
            "kubepods-burstable.slice": 12,
        },
        "capacity_bytes": 4011856 * 1024,
        "pod_formula": "linear (kubelet)",
        "container_formula": "log-quadratic (runc 1.3.6)",
    }


@pytest.mark.parametrize("version", versions(STAGE))
def test_every_claim_for_the_version_held(version):
    made = applicable(STAGE, version)

    assert FORMULAS in made
    assert outcomes(STAGE, version, load(version, STAGE)) == dict.fromkeys(made, "HELD")


@pytest.mark.parametrize("version", versions(STAGE))
def test_no_number_of_a_capture_is_unexplained(version):
    observation = observation_of(STAGE, version, load(version, STAGE))

    assert kernel.mismatches(observation) == []
    assert not [note for note in kernel.notes(observation) if note.startswith("not explained")]


def test_row_and_notes_show_read_values_and_what_no_formula_explains():
    raw = load("v1.34.4", STAGE)
    set_file("ctl-burstable", "pod", "cpu.weight", "17")(raw)
    set_file("be", "pod", "memory.max", None)(raw)
    observation = observation_of(STAGE, "v1.34.4", raw)

    assert kernel.row(observation)["ctl-burstable"] == "weight 17/17, cpu 0.5, mem 512Mi, adj 935 (score 1289)"
    assert kernel.row(observation)["be"] == "weight 1/1, cpu max, mem -, adj 1000 (score 1332)"
    assert kernel.notes(observation) == [
        "weight pod/container: pods and slices linear (kubelet), containers log-quadratic (runc 1.3.6)",
        "slice weights: kubepods-besteffort.slice 1, kubepods-burstable.slice 12, kubepods.slice 79",
        "not explained: ctl-burstable pod cpu_weight: 17, formula gives 4",
    ]


def test_notes_show_protection_and_slice_weights_that_are_unusual():
    raw = load("v1.34.4", STAGE)
    set_file("plr-burstable", "container", "memory.min", "268435456")(raw)
    edit_records(raw, "cgroups.jsonl", lambda record: set_parent(record, "kubepods-burstable.slice", "13"))
    observation = observation_of(STAGE, "v1.34.4", raw)

    assert [note for note in kernel.notes(observation) if note.startswith("not explained")] == [
        "not explained: plr-burstable container memory_min: 268435456, usual is 0",
        "not explained: kubepods-burstable.slice cpu_weight: 13, formula gives 12",
    ]


# --- mutants ----------------------------------------------------------------------------------------------------------


def own_container(record: Record) -> bool:
    """Whether a level is not the sandbox's, whose container has no swap limit of its own."""
    return record.get("level") == "container" and record["files"]["memory.swap.max"] == "0"


def at(record: Record, name: str, level: str) -> bool:
    found = own_container(record) if level == "container" else record.get("level") == level
    return found and record["pod"] == name


def set_file(name: str, level: str, file: str, value: str | None):
    def edit(record: Record) -> Record:
        if at(record, name, level):
            record["files"][file] = value
        return record

    return lambda raw: edit_records(raw, "cgroups.jsonl", edit)


def exchange_formulas(raw: Raw) -> None:
    """The log-quadratic number in the pod's level and the linear one in its container's."""
    found: dict[str, str] = {}
    edit_records(
        raw,
        "cgroups.jsonl",
        lambda record: found.update({record["level"]: record["files"]["cpu.weight"]}) or record
        if at(record, "ctl-burstable", "pod") or at(record, "ctl-burstable", "container")
        else record,
    )
    set_file("ctl-burstable", "pod", "cpu.weight", found["container"])(raw)
    set_file("ctl-burstable", "container", "cpu.weight", found["pod"])(raw)


def set_parent(record: Record, name: str, weight: str) -> Record:
    if record.get("level") == "parent" and record["path"].endswith(f"/{name}"):
        record["files"]["cpu.weight"] = weight
    return record


def drop_level(name: str, level: str):
    return lambda raw: edit_records(raw, "cgroups.jsonl", lambda record: None if at(record, name, level) else record)


def set_process(name: str, field: str, value: str | None):
    def edit(record: Record) -> Record:
        if record["kind"] == "process" and record["pod"] == name and record["oom_score_adj"] != "-998":
            record[field] = value
        return record

    return lambda raw: edit_records(raw, "cgroups.jsonl", edit)


def drop_processes(name: str):
    def edit(record: Record) -> Record | None:
        return None if record["kind"] == "process" and record["pod"] == name else record

    return lambda raw: edit_records(raw, "cgroups.jsonl", edit)


def second_process(name: str, adjust: str):
    """One more process of the pod's own container, with another value."""

    def change(raw: Raw) -> None:
        lines = []
        for line in raw["cgroups.jsonl"].splitlines():
            record = json.loads(line)
            lines.append(line)
            if record["kind"] == "process" and record["pod"] == name and record["oom_score_adj"] != "-998":
                lines.append(json.dumps({**record, "pid": 99999, "oom_score_adj": adjust}))
        raw["cgroups.jsonl"] = "\n".join(lines) + "\n"

    return change


def exchange(one: str, other: str, *names: str):
    def change(raw: Raw) -> None:
        for name in names:
            exchange_words(raw, name, {one: other, other: one})

    return change


def other_container(raw: Raw) -> None:
    """The API server names another container of the pod be than the one whose cgroup was read."""

    def edit(data: Record) -> None:
        for item in data["items"]:
            if item["metadata"]["name"] == "be":
                item["status"]["containerStatuses"][0]["containerID"] = "containerd://" + "0" * 64

    edit_json(raw, "pods.json", edit)


def replaced(name: str, old: str, new: str):
    return lambda raw: edit_text(raw, name, old, new)


def unknown(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "UNKNOWN")


def falsified(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "FALSIFIED")


MUTANTS = [
    Mutant(name="weights of the wrong formulas", change=exchange_formulas,
           verdicts=falsified(FORMULAS, "kernel-fixed")),
    Mutant(name="empty block with a weight", change=set_file("emp-burstable", "pod", "cpu.weight", "5"),
           verdicts=falsified(*TWINS, FORMULAS)),
    Mutant(name="empty block with another CPU limit", change=set_file("emp-guaranteed", "pod", "cpu.max", "1 100000"),
           verdicts=falsified(*TWINS, FORMULAS)),
    Mutant(name="empty block with another memory limit", change=set_file("emp-burstable", "pod", "memory.max", "4096"),
           verdicts=falsified(*TWINS, FORMULAS)),
    Mutant(name="container of an empty block without its limit",
           change=set_file("emp-burstable", "container", "memory.max", "max"), verdicts=falsified(LIMITS, FORMULAS)),
    Mutant(name="container weight of one more", change=set_file("plr-burstable", "container", "cpu.weight", "60"),
           verdicts=falsified(FORMULAS)),
    Mutant(name="oom_score_adj of emp edited", change=set_process("emp-guaranteed", "oom_score_adj", "934"),
           verdicts=falsified(*TWINS, FORMULAS)),
    Mutant(name="oom_score_adj of plr edited", change=set_process("plr-burstable", "oom_score_adj", "934"),
           verdicts=falsified(FORMULAS)),
    Mutant(name="oom_score_adj not read", change=set_process("emp-burstable", "oom_score_adj", None),
           verdicts=unknown(*TWINS, FORMULAS)),
    Mutant(name="processes that differ", change=second_process("emp-burstable", "0"),
           verdicts=unknown(*TWINS, FORMULAS)),
    Mutant(name="no process of emp", change=drop_processes("emp-burstable"), verdicts=unknown(*TWINS, FORMULAS)),
    Mutant(name="no process of be", change=drop_processes("be"), verdicts=unknown(FORMULAS)),
    Mutant(name="pod weight not read", change=set_file("emp-guaranteed", "pod", "cpu.weight", None),
           verdicts=unknown(*TWINS, FORMULAS)),
    Mutant(name="container limit not read", change=set_file("ctl-guaranteed", "container", "memory.max", None),
           verdicts=unknown(LIMITS, FORMULAS)),
    Mutant(name="weight that is no number", change=set_file("be", "pod", "cpu.weight", "many"),
           verdicts=unknown(*ALL)),
    Mutant(name="container level missing", change=drop_level("emp-guaranteed", "container"),
           verdicts=unknown(LIMITS, FORMULAS)),
    Mutant(name="pod level missing", change=drop_level("emp-burstable", "pod"), verdicts=unknown(*TWINS, FORMULAS)),
    Mutant(name="another container than the API server's", change=other_container, verdicts=unknown(FORMULAS)),
    Mutant(name="emp missing in the pod list",
           change=lambda raw: edit_json(raw, "pods.json", lambda data: data.update(
               items=[item for item in data["items"] if item["metadata"]["name"] != "emp-burstable"])),
           verdicts=unknown(*ALL)),
    Mutant(name="emp and ctl of another class exchanged in both views",
           change=exchange("emp-burstable", "ctl-guaranteed", "pods.json", "cgroups.jsonl"),
           verdicts=falsified(*TWINS, LIMITS)),
    Mutant(name="be and emp exchanged by the cgroup reader alone",
           change=exchange("be", "emp-burstable", "cgroups.jsonl"),
           verdicts=unknown("kernel-empty-block", LIMITS, FORMULAS), only_where="kernel-empty-block"),
    Mutant(name="older runc", change=replaced("node-facts.txt", "runc version 1.3.6", "runc version 1.3.1"),
           verdicts=falsified(FORMULAS)),
    Mutant(name="runc that says no version", change=replaced("node-facts.txt", "runc version", "runc"),
           verdicts=unknown(*ALL)),
    Mutant(name="runc that failed", change=replaced("node-facts.txt", "libseccomp: 2.6.1", "(exit 1)"),
           verdicts=unknown(*ALL)),
    Mutant(name="node of twice the memory", change=replaced("node-facts.txt", "\n4011856\n", "\n8023712\n"),
           verdicts=falsified(FORMULAS)),
    Mutant(name="gate PodLevelResources off on the API server",
           change=replaced("gates-apiserver.txt", 'Resources",stage="BETA"} 1', 'Resources",stage="BETA"} 0'),
           verdicts=unknown(*ALL)),
    Mutant(name="cgroup records cut", change=cut("cgroups.jsonl", 0.7), verdicts=unknown(*ALL)),
    Mutant(name="cgroup records of the future", change=replaced("cgroups.jsonl", '"version": 1', '"version": 2'),
           verdicts=unknown(*ALL)),
    *(Mutant(name=f"{name} missing", change=without(name), verdicts=unknown(*ALL))
      for name in ("pods.json", "cgroups.jsonl")),
    *nothing_shows_the_cell(ALL, "kernel-fixed"),
]  # fmt: skip


@pytest.mark.parametrize(("version", "mutant"), mutant_cases(STAGE, MUTANTS))
def test_mutant_is_noticed(version, mutant):
    check_mutant(STAGE, version, mutant)


@pytest.mark.parametrize("name", PODS)
@pytest.mark.parametrize("level", ["pod", "container"])
@pytest.mark.parametrize(("file", "other"), [("cpu.weight", "77"), ("cpu.max", "77000 100000"), ("memory.max", "77")])
def test_mutant_of_any_compared_value_falsifies_the_formulas_or_leaves_them_unknown(name, level, file, other):
    version = "v1.34.4"
    raw = load(version, STAGE)

    for value, outcome in ((other, "FALSIFIED"), (None, "UNKNOWN")):
        changed = dict(raw)
        set_file(name, level, file, value)(changed)

        assert outcomes(STAGE, version, changed)[FORMULAS] == outcome
        check_shown(STAGE, version, changed)


@pytest.mark.parametrize("text", ["", "77", "50000 0", "50000 100000 7"])
def test_mutant_of_cpu_max_that_has_another_form_is_still_shown(text):
    raw = load("v1.34.4", STAGE)
    set_file("be", "pod", "cpu.max", text)(raw)

    assert outcomes(STAGE, "v1.34.4", raw)[FORMULAS] == "FALSIFIED"
    check_shown(STAGE, "v1.34.4", raw)


# --- collect ----------------------------------------------------------------------------------------------------------


def test_collect_saves_what_the_node_said_even_when_nothing_can_read_it(tmp_path):
    bench = Bench(tmp_path, {})
    bench.programs["pod_cgroups.py"] = [Reply(stdout="not one record\n")]

    kernel.collect(bench.context)

    assert list(bench.saved) == ["pods.json", "node.json", "cgroups.jsonl"]
    assert bench.saved["cgroups.jsonl"] == "not one record\n"
    assert json.loads(bench.saved["node.json"]) == node_object()


def test_collect_keeps_what_it_saved_when_the_program_fails(tmp_path):
    bench = Bench(tmp_path, {})
    bench.programs["pod_cgroups.py"] = [CommandError("exit 1")]

    with pytest.raises(CommandError):
        kernel.collect(bench.context)

    assert list(bench.saved) == ["pods.json", "node.json"]


def test_collect_takes_the_pods_that_run_already(tmp_path):
    bench = Bench(tmp_path, {})
    bench.programs["pod_cgroups.py"] = [Reply(stdout="x"), Reply(stdout="y")]
    kernel.collect(bench.context)
    bench.saved.clear()
    bench.steps.clear()

    kernel.collect(bench.context)

    assert [step for step in bench.steps if step.startswith(("start", "delete"))] == []
