"""Stage eviction on real captures: order, times and models as read, and which damage is noticed."""

from __future__ import annotations

import json
import re

import pytest

from lab.model import NodeError, ParseError, UsageError, WaitTimeout
from lab.stages import eviction
from lab.stages.contract import Observation
from tests.captures_helper import (
    Bench,
    Mutant,
    Raw,
    Record,
    applicable,
    check_mutant,
    edit_json,
    edit_records,
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

STAGE = "eviction"
ORDER, CLASS, KILL, CRITICAL = (
    "eviction-order",
    "eviction-not-by-class",
    "eviction-no-kernel-kill",
    "eviction-critical-last",
)
ALL = (ORDER, CLASS, KILL, CRITICAL)
PODS = ("be", "ctl", "gua-ctl", "emp", "gua-emp")
LOG, HOG, KERNEL = "1-kubelet.log", "1-hog.jsonl", "1-kernel.log"
QUICK = {"quick": True, "reps": 3, "order": "random"}


def test_every_field_of_the_v1_34_4_capture():
    """Times are seconds after the hog's "press" at 1796024529.989, sizes the last poll's bytes over 2^20."""
    assert observation_of(STAGE, "v1.34.4", load("v1.34.4", STAGE)) == {
        "repetitions": [
            {
                "repetition": 1,
                "order": list(PODS),
                "first_ranking": list(PODS),
                "models": ["kubelet_source"],
                "oom_kills": 0,
                "held": True,
                "held_text": "1008 MiB (median; 994-1147; target 1000)",
                "working_sets_mib": {"be": 51, "ctl": 201, "gua-ctl": 151, "emp": 101, "gua-emp": 51},
                # 1796024544.231831 reclaim; evicted at …548.737317, 554.497249, 560.960504, 566.226065, 572.158002
                "first_reclaim_s": 14.2,
                "first_eviction_s": 18.7,
                "last_eviction_s": 42.2,
                "evicted_s": [18.7, 24.5, 31.0, 36.2, 42.2],
                "gaps_s": [5.8, 6.5, 5.3, 5.9],
                "first_available_mib": 1334.9,
                "available_mib": [1334.9, 1326.9, 1343.0, 1310.7, 1327.6],
                "critical": {"ranked": ["kube-system/critical"], "refused": ["kube-system/critical"]},
                "critical_last": True,
                "critical_text": "ranked kube-system/critical; refused kube-system/critical",
                "slow_kills": [],
                "problems": [],
            }
        ]
    }


def test_times_and_figures_of_the_v1_34_4_capture_are_those_of_the_log():
    """The same, recomputed from the log by other means than the parser's."""
    log = load("v1.34.4", STAGE)[LOG]
    evicted = [float(line[:17]) for line in log.splitlines() if "pod is evicted successfully" in line]
    figures = re.findall(r'^([\d.]+) .*signal="memory.available" .*?available="(\d+)Ki"', log, re.MULTILINE)
    newest = [[int(kib) for time, kib in figures if float(time) < moment][-1] for moment in evicted]
    [entry] = observation_of(STAGE, "v1.34.4", load("v1.34.4", STAGE))["repetitions"]

    assert entry["evicted_s"] == [round(moment - 1796024529.989, 1) for moment in evicted]
    assert entry["available_mib"] == [round(kib / 1024, 1) for kib in newest]


@pytest.mark.parametrize("version", versions(STAGE))
def test_every_claim_for_the_version_held(version):
    made = applicable(STAGE, version)

    assert set(made) == set(ALL)
    assert outcomes(STAGE, version, load(version, STAGE)) == dict.fromkeys(made, "HELD")


def test_row_and_notes_of_the_v1_34_4_capture():
    observation = observation_of(STAGE, "v1.34.4", load("v1.34.4", STAGE))

    assert eviction.row(observation) == {
        "order": "be > ctl > gua-ctl > emp > gua-emp (1x)",
        "models that fit": "kubelet_source",
        "kernel OOM kills": "0",
        "first reclaim (s)": "14.2",
        "first eviction (s)": "18.7",
        "last eviction (s)": "42.2",
        "gaps (s)": "5.3-6.5",
        "kubelet's available at first eviction (MiB)": "1335",
    }
    said = "\n".join(eviction.notes(observation))
    for part in ("be 51, ctl 201", "gua-emp 42.2 s (1327.6 MiB)", "1008 MiB (median; 994-1147; target 1000)"):
        assert part in said


def test_row_and_notes_of_a_repetition_of_which_nothing_is_known():
    raw = {"plan.json": load("v1.34.4", STAGE)["plan.json"]}
    observation = observation_of(STAGE, "v1.34.4", raw)

    assert set(eviction.row(observation).values()) == {"? (1x)", "-"}
    assert "repetition 1: not collected: kernel.log" in eviction.notes(observation)
    assert set(outcomes(STAGE, "v1.34.4", raw).values()) == {"UNKNOWN"}


# --- several repetitions ----------------------------------------------------------------------------------------------


def entry(**changed: object) -> dict[str, object]:
    [known] = observation_of(STAGE, "v1.34.4", load("v1.34.4", STAGE))["repetitions"]
    return {**known, **changed}


def test_view_of_repetitions_keeps_what_fits_all_of_them_and_adds_kills():
    observation: Observation = {
        "repetitions": [
            entry(models=["kubelet_source", "usage_only"], oom_kills=1),
            entry(models=["kubelet_source", "priority_first"], oom_kills=2, critical_last=False),
        ]
    }
    view = eviction.view(observation)

    assert view["models"] == ["kubelet_source"]
    assert view["oom_kills"] == 3
    assert view["critical_last"] is False
    assert view["orders"] == [list(PODS), list(PODS)]


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("order", {"orders"}),
        ("models", {"models"}),
        ("oom_kills", {"oom_kills"}),
        ("critical_last", {"critical_last"}),
        ("first_ranking", {"rankings"}),
        ("held", {"held", "orders", "models"}),
    ],
)
def test_view_knows_nothing_that_one_repetition_lacks(field, names):
    view = eviction.view({"repetitions": [entry(), entry(**{field: None})]})

    assert {name for name, value in view.items() if value is None} == names


def test_view_has_no_order_when_the_hog_missed_its_target_once():
    view = eviction.view({"repetitions": [entry(), entry(held=False)]})

    assert (view["orders"], view["models"], view["oom_kills"]) == (None, None, 0)


def test_view_of_no_repetition_knows_nothing():
    assert set(eviction.view({"repetitions": []}).values()) == {None}


# --- mutants ----------------------------------------------------------------------------------------------------------


def class_order(raw: Raw) -> list[str]:
    """The pods by stored class, the most dispensable first."""
    items = json.loads(raw["1-pods-before.json"])["items"]
    kinds = {item["metadata"]["name"].removeprefix("evict-"): item["status"]["qosClass"] for item in items}
    return sorted(PODS, key=lambda name: ("BestEffort", "Burstable", "Guaranteed").index(kinds[name]))


def log_of_class_order(raw: Raw) -> None:
    """Rankings and evictions, in every repetition, as a kubelet would write them that goes by class."""
    renamed = dict(zip(PODS, class_order(raw), strict=True))
    for name in [name for name in raw if name.endswith("-kubelet.log")]:
        raw[name] = re.sub(r'"lab/evict-([a-z-]+)"', lambda match: f'"lab/evict-{renamed[match[1]]}"', raw[name])


def evictions_exchanged(raw: Raw) -> None:
    """The names in two "pod is evicted successfully" lines, and only there."""
    names = {"evict-ctl": "evict-emp", "evict-emp": "evict-ctl"}
    lines = raw[LOG].splitlines()
    for position, line in enumerate(lines):
        match = re.search(r'pod is evicted successfully" pod="lab/(evict-[a-z-]+)"', line)
        if match and match[1] in names:
            lines[position] = line.replace(f"lab/{match[1]}", f"lab/{names[match[1]]}")
    raw[LOG] = "\n".join(lines) + "\n"


def without_lines(name: str, *parts: str, count: int | None = None):
    """Leave out the lines that hold all parts: all of them, or only the first so many."""

    def change(raw: Raw) -> None:
        kept, left = [], count
        for line in raw[name].splitlines():
            if all(part in line for part in parts) and left != 0:
                left = None if left is None else left - 1
            else:
                kept.append(line)
        raw[name] = "\n".join(kept) + "\n"

    return change


def cut_after(part: str, characters: int | None = None):
    """The log ends with the first line that holds a text, or so many characters into that line's message."""

    def change(raw: Raw) -> None:
        start = raw[LOG].index(part)
        end = raw[LOG].index("\n", start) + 1 if characters is None else start + characters
        raw[LOG] = raw[LOG][:end]

    return change


def with_line(name: str, line: str):
    """One more line between the hog's two marks."""

    def change(raw: Raw) -> None:
        head, mark, tail = raw[name].partition("\n")
        raw[name] = f"{head}{mark}{line}\n{tail}"

    return change


def hog(kind: str, edit):
    def change(record: Record) -> Record | None:
        return edit(record) if record["kind"] == kind else record

    return lambda raw: edit_records(raw, HOG, change)


def put(**values: object):
    return lambda record: {**record, **values}


def last_sample(edit):
    def change(raw: Raw) -> None:
        last = max(json.loads(line)["t"] for line in raw[HOG].splitlines() if '"kind": "sample"' in line)
        hog("sample", lambda record: edit(record) if record["t"] == last else record)(raw)

    return change


def kills_in_pods(count: int):
    return last_sample(lambda record: {**record, "pod_events": record["pod_events"].replace(
        "oom_kill 0", f"oom_kill {count}")})  # fmt: skip


def without_pod(name: str, file: str):
    def edit(data: Record) -> None:
        data["items"] = [item for item in data["items"] if item["metadata"]["name"] != name]

    return lambda raw: edit_json(raw, file, edit)


def critical_first(raw: Raw) -> None:
    raw[LOG] = re.sub(r'pods=\["(lab/[a-z-]+)"(.*),"kube-system/critical"\]', r'pods=["kube-system/critical","\1"\2]',
                      raw[LOG])  # fmt: skip


def pod_is_not_critical(raw: Raw) -> None:
    def edit(data: Record) -> None:
        for item in data["items"]:
            if item["metadata"]["name"] == "critical":
                item["spec"]["priority"] = 1999999999

    edit_json(raw, "1-pods-before.json", edit)


def one_more_repetition(raw: Raw) -> None:
    edit_json(raw, "plan.json", lambda plan: plan.update(repetitions=plan["repetitions"] + 1))


def unknown(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "UNKNOWN")


def falsified(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "FALSIFIED")


OOM_LINE = "1796024550.000000 node kernel: Out of memory: Killed process 1234 (dd) total-vm:1kB, oom_score_adj:1000"
RANKED = '"Eviction manager: pods ranked for eviction"'
EVICTED = '"Eviction manager: pod is evicted successfully"'

MUTANTS = [
    Mutant(name="log of class order", change=log_of_class_order, verdicts=falsified(ORDER, CLASS)),
    Mutant(name="two evictions exchanged", change=evictions_exchanged, verdicts=unknown(ORDER, CLASS)),
    Mutant(name="ranking line truncated", change=cut_after(RANKED, 80), verdicts=unknown(*ALL)),
    Mutant(name="log cut inside its last ranking",
           change=lambda raw: raw.update({LOG: raw[LOG][: raw[LOG].rindex(RANKED) + 70]}), verdicts=unknown(*ALL)),
    Mutant(name="log cut before the last eviction",
           change=lambda raw: raw.update({LOG: raw[LOG][: raw[LOG].rindex("\n", 0, raw[LOG].rindex(EVICTED)) + 1]}),
           verdicts=unknown(ORDER, CLASS)),
    Mutant(name="log empty", change=lambda raw: raw.update({LOG: ""}), verdicts=unknown(ORDER, CLASS, CRITICAL)),
    Mutant(name="one eviction missing", change=without_lines(LOG, EVICTED, "evict-emp"),
           verdicts=unknown(ORDER, CLASS)),
    Mutant(name="an eviction twice",
           change=lambda raw: edit_text(raw, LOG, 'successfully" pod="lab/evict-gua-emp"',
                                        'successfully" pod="lab/evict-emp"'),
           verdicts=unknown(ORDER, CLASS)),
    Mutant(name="a ranking missing", change=without_lines(LOG, RANKED, '["lab/evict-gua-ctl"'),
           verdicts=unknown(ORDER, CLASS)),
    Mutant(name="no ranking at all", change=without_lines(LOG, RANKED), verdicts=unknown(ORDER, CLASS, CRITICAL)),
    Mutant(name="one pod missing in the pod list", change=without_pod("evict-emp", "1-pods-before.json"),
           verdicts=unknown(*ALL)),
    Mutant(name="pod without a class",
           change=lambda raw: edit_json(raw, "1-pods-before.json",
                                        lambda data: [item["status"].pop("qosClass") for item in data["items"]]),
           verdicts=unknown(*ALL)),
    Mutant(name="working sets without their last poll's figures",
           change=lambda raw: edit_records(raw, "1-working-sets.jsonl", lambda record: {**record, "summary": {
               "error": "status 500"}} if record["kind"] == "poll" else record), verdicts=unknown(*ALL)),
    Mutant(name="out of memory in the kernel log", change=with_line(KERNEL, OOM_LINE), verdicts=falsified(KILL)),
    Mutant(name="cgroup out of memory in the kernel log",
           change=with_line(KERNEL, "1796024550.0 node kernel: Memory cgroup out of memory: Killed process 7 (dd)"),
           verdicts=falsified(KILL)),
    Mutant(name="kernel log without the hog's marks", change=without_lines(KERNEL, "lab-hog"), verdicts=unknown(KILL)),
    Mutant(name="kernel log that ends early", change=without_lines(KERNEL, "release"), verdicts=unknown(KILL)),
    Mutant(name="kernel log that begins late", change=without_lines(KERNEL, "press"), verdicts=unknown(KILL)),
    Mutant(name="kill counter up", change=hog("release", put(oom_kill=1)), verdicts=falsified(KILL)),
    Mutant(name="kill counter not read", change=hog("press", put(oom_kill=None)), verdicts=unknown(KILL)),
    Mutant(name="kill counter of the pods up", change=kills_in_pods(2), verdicts=falsified(KILL)),
    Mutant(name="kill counter of the pods not read", change=last_sample(put(pod_events=None)), verdicts=unknown(KILL)),
    Mutant(name="hog without its end", change=hog("end", lambda record: None), verdicts=unknown(*ALL)),
    Mutant(name="hog without its press", change=hog("press", lambda record: None),
           verdicts=unknown(ORDER, CLASS, KILL)),
    Mutant(name="hog without its release", change=hog("release", lambda record: None),
           verdicts=unknown(ORDER, CLASS, KILL)),
    Mutant(name="hog far above its target", change=hog("sample", put(mem_available_kib=1500 * 1024)),
           verdicts=unknown(ORDER, CLASS)),
    Mutant(name="hog far below its target", change=hog("sample", put(mem_available_kib=800 * 1024)),
           verdicts=unknown(ORDER, CLASS)),
    Mutant(name="MemAvailable not read", change=hog("sample", put(mem_available_kib=None)),
           verdicts=unknown(ORDER, CLASS)),
    Mutant(name="hog without samples", change=hog("sample", lambda record: None), verdicts=unknown(ORDER, CLASS, KILL)),
    Mutant(name="critical pod ranked first", change=critical_first,
           verdicts=unknown(ORDER, CLASS) | falsified(CRITICAL)),
    Mutant(name="no critical pod", change=pod_is_not_critical, verdicts=unknown(CRITICAL)),
    Mutant(name="a repetition that was planned and not run", change=one_more_repetition, verdicts=unknown(*ALL)),
    *(Mutant(name=f"{name} missing", change=without(name), verdicts=unknown(*ALL))
      for name in ("plan.json", "1-working-sets.jsonl", "1-pods-before.json", HOG, LOG, KERNEL)),
    *nothing_shows_the_cell(ALL),
]  # fmt: skip


@pytest.mark.parametrize(("version", "mutant"), mutant_cases(STAGE, MUTANTS))
def test_mutant_is_noticed(version, mutant):
    check_mutant(STAGE, version, mutant)


@pytest.mark.parametrize("version", versions(STAGE))
def test_mutant_of_pressure_on_another_resource_is_noticed(version):
    raw = load(version, STAGE)
    edit_text(raw, LOG, 'resourceName="memory"', 'resourceName="ephemeral-storage"')

    assert outcomes(STAGE, version, raw)[ORDER] == "UNKNOWN"


@pytest.mark.parametrize("version", versions(STAGE))
def test_mutant_of_a_watcher_that_died_is_noticed(version):
    raw = load(version, STAGE)
    hog("release", put(watcher_status=9))(raw)
    hog("watch-end", lambda record: None)(raw)

    assert set(outcomes(STAGE, version, raw).values()) & {"UNKNOWN"}


@pytest.mark.parametrize("version", versions(STAGE))
def test_mutant_of_class_order_fits_the_class_model_alone(version):
    raw = load(version, STAGE)
    log_of_class_order(raw)
    for found in observation_of(STAGE, version, raw)["repetitions"]:
        assert found["models"] == ["class_tiers"]
        assert found["order"] == class_order(raw) != list(PODS)


def test_mutants_say_in_the_problems_what_is_wrong():
    said = {}
    for mutant in MUTANTS:
        raw = load("v1.34.4", STAGE)
        mutant.change(raw)
        if mutant.name in ("two evictions exchanged", "out of memory in the kernel log", "hog far above its target"):
            said[mutant.name] = observation_of(STAGE, "v1.34.4", raw)["repetitions"][0]["problems"]

    assert said == {
        "two evictions exchanged": [
            "emp was evicted, but the ranking before named ctl as next",
            "ctl was evicted, but the ranking before named emp as next",
        ],
        "out of memory in the kernel log": [f"kernel log: {OOM_LINE}"],
        "hog far above its target": [
            "the hog did not hold its target: 1500 MiB (median; 1500-1500; target 1000)",
        ],
    }


# --- collect ----------------------------------------------------------------------------------------------------------


def evict_bench(tmp_path, **scripted: str) -> Bench:
    """A bench whose node says what the capture's node said; pods get the capture's class by their manifest."""
    raw = load("v1.34.4", STAGE)
    bench = Bench(tmp_path, eviction.params(QUICK))
    bench.programs["working_set.py"] = [Reply(stdout=scripted.get("sets", raw["1-working-sets.jsonl"]))]
    bench.programs["hog.py"] = [Reply(stdout=scripted.get("hog", raw[HOG]))]
    bench.journals = {"lab-kubelet": raw[LOG], "kernel": raw[KERNEL]}
    return bench


SAVED = [
    "plan.json",
    "1-node-recovered.json",
    "1-probe.json",
    "1-working-sets.jsonl",
    "1-pods-before.json",
    "1-node-before.json",
]
SAVED_AFTER = ["1-hog.jsonl", LOG, KERNEL, "1-pods-after.json", "1-node-after.json", "1-events.json"]


def test_collect_saves_everything_in_order_and_each_text_before_it_is_read(tmp_path, monkeypatch):
    bench = evict_bench(tmp_path)
    real = eviction.reading.ranked_pods

    def ranked_pods(sets: str, pods: str):
        assert (sets, pods) == (bench.saved["1-working-sets.jsonl"], bench.saved["1-pods-before.json"])
        bench.steps.append("read")
        return real(sets, pods)

    monkeypatch.setattr(eviction.reading, "ranked_pods", ranked_pods)
    monkeypatch.setattr(eviction.ranking, "check_sizes", lambda pods, tolerance: bench.steps.append("sizes"))

    eviction.STAGE.collect(bench.context)

    assert list(bench.saved) == [*SAVED, *SAVED_AFTER]
    assert bench.steps.index("read") < bench.steps.index("sizes") < bench.steps.index("run hog.py")
    assert bench.saved[LOG] == load("v1.34.4", STAGE)[LOG]
    assert json.loads(bench.saved["plan.json"])["cases"] == list(eviction.ARTICLE)


def test_collect_waits_for_working_sets_before_it_presses_and_names_every_pod(tmp_path, monkeypatch):
    bench = evict_bench(tmp_path)
    monkeypatch.setattr(eviction.ranking, "check_sizes", lambda pods, tolerance: None)

    eviction.STAGE.collect(bench.context)

    [sets], [pressed] = bench.arguments["working_set.py"], bench.arguments["hog.py"]
    sizes = {"be": 51, "ctl": 201, "gua-ctl": 151, "emp": 101, "gua-emp": 51}
    for name, mib in sizes.items():
        assert f"evict-{name}=uid-of-evict-{name}:{mib << 20}" in sets
        assert f"evict-{name}=uid-of-evict-{name}" in pressed
    assert {"target_mib=1000", "floor_mib=500", "url=https://127.0.0.1:10250", "folder=/etc/lab"} <= set(pressed)
    assert "tolerance=6291456" in sets


def test_collect_does_not_press_pods_that_do_not_hold_their_memory(tmp_path):
    bench = evict_bench(tmp_path)
    bench.programs["working_set.py"] = [Reply(stdout="what it saw\n", stderr="and why", status=1)]

    with pytest.raises(WaitTimeout, match="pods do not hold their memory after 180 s"):
        eviction.STAGE.collect(bench.context)

    assert bench.saved["1-working-sets.jsonl"] == "what it saw\n"
    assert bench.saved["1-working-sets.jsonl.stderr"] == "and why"
    assert "run hog.py" not in bench.steps


def test_collect_keeps_texts_that_it_cannot_read(tmp_path):
    bench = evict_bench(tmp_path, sets="not one record\n")

    with pytest.raises(ParseError):
        eviction.STAGE.collect(bench.context)

    assert list(bench.saved) == SAVED
    assert bench.saved["1-working-sets.jsonl"] == "not one record\n"


def test_collect_does_not_press_when_the_sizes_cannot_tell_the_models_apart(tmp_path):
    raw = load("v1.34.4", STAGE)
    edit_records(
        raw,
        "1-working-sets.jsonl",
        lambda record: json.loads(json.dumps(record).replace("105955328", "158502912")),
    )
    bench = evict_bench(tmp_path, sets=raw["1-working-sets.jsonl"])

    with pytest.raises(UsageError, match="emp"):
        eviction.STAGE.collect(bench.context)

    assert list(bench.saved) == SAVED
    assert "run hog.py" not in bench.steps


@pytest.mark.parametrize(
    "answer",
    [Reply(stdout="half", status=1, stderr="Traceback"), Reply(stdout="half", seconds=10_000.0)],
    ids=["failed", "without an end"],
)
def test_collect_fetches_the_logs_whatever_became_of_the_hog(tmp_path, monkeypatch, answer):
    bench = evict_bench(tmp_path)
    bench.programs["hog.py"] = [answer]
    monkeypatch.setattr(eviction.ranking, "check_sizes", lambda pods, tolerance: None)

    eviction.STAGE.collect(bench.context)

    assert bench.saved[HOG] == "half"
    assert [name for name in bench.saved if name not in SAVED and not name.endswith(".stderr")] == SAVED_AFTER
    assert any(text.startswith("repetition 1: ") for text in bench.said)


def test_collect_proves_before_each_repetition_that_a_new_pod_can_start(tmp_path, monkeypatch):
    bench = evict_bench(tmp_path)
    raw = load("v1.34.4", STAGE)
    bench.context.params = {**eviction.params(QUICK), "repetitions": 2}
    bench.programs["working_set.py"] *= 2
    bench.programs["hog.py"] = [Reply(stdout=raw[HOG])] * 2
    monkeypatch.setattr(eviction.ranking, "check_sizes", lambda pods, tolerance: None)

    eviction.STAGE.collect(bench.context)

    pods = [step for step in bench.steps if step.startswith(("start", "delete"))]
    started = [f"start {name}" for name in eviction.ARTICLE]
    between = [f"delete {name}" for name in eviction.ARTICLE]
    round_of_probe = ["start probe", "delete probe"]
    assert pods == ["start critical", *round_of_probe, *started, *between, *round_of_probe, *started]


def test_collect_stops_when_no_new_pod_can_start(tmp_path, monkeypatch):
    bench = evict_bench(tmp_path)

    def add_pod(ctx: object, case: str, *, timeout_s: float) -> None:
        raise NodeError(f"{case} did not run within {timeout_s} s")

    monkeypatch.setattr(type(bench.context), "add_pod", add_pod)

    with pytest.raises(NodeError, match="before repetition 1 no new pod could start: probe"):
        eviction.STAGE.collect(bench.context)

    assert list(bench.saved) == ["plan.json", "1-node-recovered.json"]


def test_parameters_are_those_of_the_design():
    full = eviction.params({**QUICK, "quick": False})

    assert (full["threshold"], full["pressure_transition_s"], full["target_mib"]) == ("2Gi", 30, 1000)
    assert (full["repetitions"], eviction.params(QUICK)["repetitions"]) == (3, 1)
    assert eviction.budget_s({**QUICK, "quick": False}) > 2 * eviction.budget_s(QUICK)
