"""Stage eviction-priority: the eviction stage with one more pod, of a lower priority.

Where no capture of it exists, the only damage that can be tried on the eviction stage's is what takes something away.
"""

from __future__ import annotations

import dataclasses
import json

import pytest

from lab.model import Cell
from lab.ranking import RankedPod, check_sizes, consistent, kubelet_source, priority_first
from lab.stages import eviction
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
    load,
    mutant_cases,
    nothing_shows_the_cell,
    outcomes,
    versions,
    without,
)
from tests.fakes import Reply

STAGE = "eviction-priority"
CLAIM = "priority-between"
PODS = ("be", "low", "ctl", "gua-ctl", "emp", "gua-emp")
OPTIONS = {"quick": False, "reps": 3, "order": "random"}


def planned(version: str) -> Raw:
    """The eviction stage's capture under a plan that asks for the pod of low priority too."""
    raw = load(version, "eviction")
    edit_json(raw, "plan.json", lambda plan: plan.update(cases=list(eviction.PRIORITY)))
    return raw


def hog_without_end(raw: Raw) -> None:
    edit_records(raw, "1-hog.jsonl", lambda record: None if record["kind"] == "end" else record)


def low_missing(raw: Raw) -> None:
    def edit(data: Record) -> None:
        data["items"] = [item for item in data["items"] if item["metadata"]["name"] != "evict-low"]

    edit_json(raw, "1-pods-before.json", edit)


def eviction_of_low_missing(raw: Raw) -> None:
    lines = raw["1-kubelet.log"].splitlines(keepends=True)
    wanted = 'pod is evicted successfully" pod="lab/evict-low"'
    raw["1-kubelet.log"] = "".join(line for line in lines if wanted not in line)


UNKNOWN = {CLAIM: "UNKNOWN"}
MUTANTS = [
    Mutant(name="low missing in the pod list", change=low_missing, verdicts=UNKNOWN),
    Mutant(name="eviction of low missing", change=eviction_of_low_missing, verdicts=UNKNOWN),
    Mutant(name="hog without its end", change=hog_without_end, verdicts=UNKNOWN),
    Mutant(name="log cut", change=cut("1-kubelet.log"), verdicts=UNKNOWN),
    *(
        Mutant(name=f"{name} missing", change=without(name), verdicts=UNKNOWN)
        for name in ("plan.json", "1-working-sets.jsonl", "1-pods-before.json", "1-hog.jsonl", "1-kubelet.log")
    ),
    *nothing_shows_the_cell([CLAIM]),
]


@pytest.mark.parametrize("version", versions(STAGE))
def test_every_claim_for_the_version_held(version):
    assert outcomes(STAGE, version, load(version, STAGE)) == {CLAIM: "HELD"}


@pytest.mark.parametrize(("version", "mutant"), mutant_cases(STAGE, MUTANTS))
def test_mutant_is_noticed(version, mutant):
    check_mutant(STAGE, version, mutant)


@pytest.mark.parametrize("version", versions("eviction"))
def test_the_claim_is_made_for_every_version(version):
    assert applicable(STAGE, version) == [CLAIM]


@pytest.mark.parametrize("version", versions("eviction"))
def test_mutant_without_any_text_is_unknown(version):
    assert outcomes(STAGE, version, {}) == UNKNOWN


@pytest.mark.parametrize("version", versions("eviction"))
def test_mutant_in_which_the_pod_of_low_priority_is_absent_is_unknown(version):
    assert outcomes(STAGE, version, planned(version)) == UNKNOWN


@pytest.mark.parametrize("version", versions("eviction"))
@pytest.mark.parametrize("name", ["1-working-sets.jsonl", "1-pods-before.json", "1-hog.jsonl", "1-kubelet.log"])
def test_mutant_without_one_of_the_texts_is_unknown(version, name):
    raw = planned(version)
    del raw[name]

    assert outcomes(STAGE, version, raw) == UNKNOWN


@pytest.mark.parametrize("version", versions("eviction"))
def test_mutant_of_the_order_without_low_never_holds(version):
    assert outcomes(STAGE, version, load(version, "eviction")) == {CLAIM: "FALSIFIED"}


def test_a_cell_with_gates_has_the_claim_too():
    cell = Cell.from_json({"distro": "upstream", "version": "v1.37.2", "gates": ["PodLevelResources=false"]})

    assert applicable(STAGE, cell.label.replace(" ", "+")) == [CLAIM]


# --- what is planned --------------------------------------------------------------------------------------------------


def ranked(**priorities: int) -> list[RankedPod]:
    """The pods as their manifests make them: request 256 MiB but for be, sizes of the cases, overhead included."""
    mib = {"be": 50, "ctl": 200, "gua-ctl": 150, "emp": 100, "gua-emp": 50, "low": 25}
    classes = {"be": "BestEffort", "emp": "BestEffort", "gua-emp": "BestEffort", "gua-ctl": "Guaranteed"}
    return [
        RankedPod(
            name=name,
            qos=classes.get(name, "Burstable"),
            memory_request_bytes=0 if name == "be" else 256 << 20,
            usage_bytes=(mib[name] + eviction.OVERHEAD_MIB) << 20,
            priority=priorities.get(name, 0),
        )
        for name in PODS
    ]


def test_the_claimed_order_is_the_kubelets_and_no_rivals():
    pods = ranked(low=-100)

    check_sizes(pods, 2 << 20)
    assert consistent(PODS, kubelet_source(pods))
    assert not consistent(PODS, priority_first(pods))


def test_without_its_priority_the_pod_would_go_last():
    order = [name for group in kubelet_source(ranked()) for name in group]

    assert order == ["be", "ctl", "gua-ctl", "emp", "gua-emp", "low"]


def test_the_manifest_of_low_has_the_class_that_the_stage_makes(tmp_path):
    manifests = Bench(tmp_path, {}).context.manifests

    assert "priorityClassName: lab-low\n" in manifests.render("evict-low")
    assert "value: -100\n" in f"{manifests.render('priority-low')}\n"
    assert f"bs={25 << 20} " in manifests.render("evict-low")


def test_it_differs_from_the_eviction_stage_in_its_pods_alone():
    stage, base = eviction.PRIORITY_STAGE, eviction.STAGE
    same = ("version", "judge_version", "scripts", "parse", "view", "row", "notes")

    assert {field.name: getattr(stage, field.name) for field in dataclasses.fields(stage) if field.name in same} == {
        name: getattr(base, name) for name in same
    }
    assert set(stage.cases) - set(base.cases) == {"evict-low", "priority-low"}
    assert stage.params(OPTIONS) == {**base.params(OPTIONS), "repetitions": 1}


def test_collect_makes_the_class_before_the_pod_that_names_it(tmp_path, monkeypatch):
    raw = load("v1.34.4", "eviction")
    bench = Bench(tmp_path, eviction.PRIORITY_STAGE.params(OPTIONS))
    bench.programs = {
        "working_set.py": [Reply(stdout=raw["1-working-sets.jsonl"])],
        "hog.py": [Reply(stdout=raw["1-hog.jsonl"])],
    }
    bench.journals = {"lab-kubelet": raw["1-kubelet.log"], "kernel": raw["1-kernel.log"]}
    monkeypatch.setattr(eviction.reading, "ranked_pods", lambda sets, pods: ranked(low=-100))

    eviction.PRIORITY_STAGE.collect(bench.context)

    assert bench.steps.index("apply PriorityClass") < bench.steps.index("start evict-low")
    assert json.loads(bench.saved["plan.json"])["cases"] == list(eviction.PRIORITY)
    assert f"evict-low=uid-of-evict-low:{26 << 20}" in bench.arguments["working_set.py"][0]
    assert "evict-low=uid-of-evict-low" in bench.arguments["hog.py"][0]
