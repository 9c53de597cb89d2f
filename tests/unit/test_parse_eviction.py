"""One repetition of the eviction stage from its texts: order, times, what the hog held, kills, critical pods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.model import Missing, ParseError
from lab.parse import eviction
from lab.parse.eviction import parse_repetition, ranked_pods

MIB = 1 << 20
CASES = ("evict-a", "evict-b")
START = 1_700_000_000.0


def line(after_s: float, message: str, level: str = "I") -> str:
    """A line of the kubelet's log as ``journalctl -o short-unix`` gives it, so many seconds after the hog's start."""
    header = f"{level}1130 07:42:24.231559     454 eviction_manager.go:376]"
    return f"{START + after_s:.6f} node kubelet[454]: {header} {message}"


def reclaim(after_s: float) -> str:
    return line(after_s, '"Eviction manager: attempting to reclaim" resourceName="memory"')


def observed(after_s: float, available: str) -> str:
    return line(
        after_s,
        f'"Eviction manager: threshold observed resource" signal="memory.available" resourceName="memory" '
        f'available="{available}" capacity="4011856Ki"',
    )


def ranking(after_s: float, *pods: str) -> str:
    return line(after_s, f'"Eviction manager: pods ranked for eviction" pods={json.dumps(pods)}')


def evicted(after_s: float, pod: str) -> str:
    return line(after_s, f'"Eviction manager: pod is evicted successfully" pod="{pod}"')


A, B, CRITICAL = "lab/evict-a", "lab/evict-b", "kube-system/critical"
LOG = [
    observed(3.0, "2000Ki"),
    observed(9.0, "1048576Ki"),
    reclaim(10.0),
    ranking(10.1, A, B, CRITICAL),
    evicted(12.04, A),
    observed(14.0, "2097152Ki"),
    reclaim(15.0),
    ranking(15.1, B, CRITICAL),
    evicted(20.06, B),
]


def pod(name: str, kind: str, request: str | None, namespace: str = "lab", **spec: Any) -> dict[str, Any]:
    resources = {"requests": {"memory": request}} if request else {}
    return {
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"containers": [{"name": "main", "resources": resources}], **spec},
        "status": {"qosClass": kind},
    }


PODS = [
    pod("evict-a", "BestEffort", None, priority=-100),
    pod("evict-b", "Burstable", "256Mi"),
    pod("probe", "BestEffort", None),
    pod("critical", "Burstable", "70Mi", "kube-system", priority=2_000_000_000),
]


def program(name: str, *records: dict[str, Any], **start: Any) -> str:
    lines = [{"kind": "start", "program": name, "version": 2, **start}, *records]
    return "".join(json.dumps(record) + "\n" for record in lines)


def poll(**sizes: int) -> dict[str, Any]:
    pods = {f"lab/evict-{name}": size for name, size in sizes.items()}
    return {"kind": "poll", "summary": {"pods": {**pods, "lab/probe": 1}}}


SETS = program("working-set", poll(a=1, b=1), poll(a=50 * MIB, b=200 * MIB + MIB // 2), {"kind": "end", "ok": True})


def hog(
    available_mib: list[float | None],
    *,
    first_s: float = 0.0,
    kills: tuple[int | None, int | None] = (3, 3),
    pod_kills: list[int | None] | None = None,
    end: dict[str, Any] | None = None,
) -> str:
    """A hog's output with one sample a second; MemAvailable in MiB."""
    counts = pod_kills or [0] * len(available_mib)
    samples = [
        {
            "kind": "sample",
            "t": START + first_s + number,
            "mem_available_kib": None if mib is None else round(mib * 1024),
            "pod_events": None if count is None else f"low 0\noom 7\noom_kill {count}\noom_group_kill 9",
        }
        for number, (mib, count) in enumerate(zip(available_mib, counts, strict=True))
    ]
    return program(
        "hog",
        {"kind": "press", "t": START, "oom_kill": kills[0]},
        *samples,
        {"kind": "watch-end", "samples": len(samples)},
        {"kind": "release", "t": START + 99, "oom_kill": kills[1], "floor_hits": 0, "watcher_status": 0},
        end or {"kind": "end", "ok": True, "reason": ""},
        options={"target_mib": "1000"},
    )


KERNEL = ["1.0 node unknown: lab-hog press", "2.0 node unknown: lab-hog release"]


def repetition(number: int = 1, cases: tuple[str, ...] = CASES, **changed: Any) -> dict[str, Any]:
    """Parse a repetition that is whole but for what is changed (``log``, ``kernel``: lines; the others: text)."""
    texts = {
        "working-sets.jsonl": changed.get("sets", SETS),
        "pods-before.json": json.dumps({"items": changed.get("pods", PODS)}),
        "hog.jsonl": changed.get("hog", hog([1000.0] * 30)),
        "kubelet.log": "\n".join(changed.get("log", LOG)) + "\n",
        "kernel.log": "\n".join(changed.get("kernel", KERNEL)) + "\n",
    }
    return parse_repetition({f"{number}-{name}": text for name, text in texts.items()}, number, cases)


def test_a_whole_repetition():
    assert repetition() == {
        "order": ["a", "b"],
        "first_ranking": ["a", "b"],
        "models": ["class_tiers", "kubelet_source", "priority_first"],
        "oom_kills": 0,
        "held": True,
        "held_text": "1000 MiB (median; 1000-1000; target 1000)",
        "working_sets_mib": {"a": 50, "b": 200},
        "first_reclaim_s": 10.0,
        "first_eviction_s": 12.0,
        "last_eviction_s": 20.1,
        "evicted_s": [12.0, 20.1],
        "gaps_s": [8.0],
        "first_available_mib": 1024.0,
        "available_mib": [1024.0, 2048.0],
        "critical": {"ranked": [CRITICAL], "refused": []},
        "critical_last": True,
        "critical_text": f"ranked {CRITICAL}",
        "slow_kills": [],
        "problems": [],
    }


def test_only_the_repetitions_own_texts_are_read():
    assert repetition(2)["order"] == ["a", "b"]
    found = parse_repetition({"2-hog.jsonl": "x", "1-kubelet.log": "y"}, 1, CASES)
    assert found["problems"] == [
        f"not collected: {name}" for name in ("working-sets.jsonl", "pods-before.json", "hog.jsonl", "kernel.log")
    ]
    assert {name for name, value in found.items() if value is not None} == {"held_text", "critical_text", "problems"}


# --- pods -------------------------------------------------------------------------------------------------------------


def test_ranked_pods_are_those_of_the_stage_with_the_last_polls_sizes():
    found = ranked_pods(SETS, json.dumps({"items": PODS}))

    assert [(p.name, p.qos, p.memory_request_bytes, p.usage_bytes, p.priority) for p in found] == [
        ("a", "BestEffort", 0, 50 * MIB, -100),
        ("b", "Burstable", 256 * MIB, 200 * MIB + MIB // 2, 0),
    ]


@pytest.mark.parametrize(
    ("sets", "error"),
    [
        ("", ParseError),
        (program("working-set", poll(a=1, b=1)), ParseError),
        (program("working-set", {"kind": "end", "ok": True}), IndexError),
        (program("working-set", poll(a=1), {"kind": "end", "ok": True}), KeyError),
    ],
    ids=["empty", "cut", "no poll", "a pod without a size"],
)
def test_sizes_that_are_not_there_are_an_error(sets, error):
    with pytest.raises(error):
        ranked_pods(sets, json.dumps({"items": PODS}))


def test_a_pod_without_a_class_is_an_error():
    with pytest.raises(KeyError):
        ranked_pods(SETS, json.dumps({"items": [{**PODS[0], "status": {}}]}))


def test_pods_that_are_not_those_of_the_order_are_an_error():
    sets = program("working-set", poll(a=50 * MIB, c=200 * MIB), {"kind": "end", "ok": True})

    with pytest.raises(Missing, match="not in the model: \\['b'\\]"):
        repetition(pods=[PODS[0], pod("evict-c", "Burstable", "256Mi"), PODS[3]], sets=sets)


# --- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "log",
    [
        [],
        LOG[:4],
        LOG[:-1],
        [*LOG, ranking(30.0, B), evicted(31.0, B)],
        [*LOG, ranking(30.0, "lab/evict-c"), evicted(31.0, "lab/evict-c")],
    ],
    ids=["nothing", "ranked only", "one is left", "one twice", "one that was not asked for"],
)
def test_an_order_that_is_not_of_exactly_the_pods_is_none(log):
    found = repetition(log=log)

    assert (found["order"], found["models"]) == (None, None)
    assert any(text.startswith("the log shows evictions of") for text in found["problems"])


def test_an_eviction_against_the_ranking_before_it_makes_the_order_none():
    found = repetition(log=[ranking(1.0, A, B), evicted(2.0, B), ranking(3.0, A), evicted(4.0, A)])

    assert (found["order"], found["models"]) == (None, None)
    assert found["problems"] == ["b was evicted, but the ranking before named a as next"]
    assert found["first_ranking"] == ["a", "b"]


def test_an_eviction_without_any_ranking_makes_the_order_none():
    found = repetition(log=[evicted(2.0, A), evicted(4.0, B)])

    assert found["order"] is None
    assert found["problems"][0] == "a was evicted, but the ranking before named None as next"


def test_two_evictions_after_one_ranking_make_the_order_none():
    assert repetition(log=[ranking(1.0, A, B), evicted(2.0, A), evicted(3.0, B)])["order"] is None


def test_a_critical_pod_at_the_head_is_not_a_victim_of_ours():
    log = [ranking(1.0, CRITICAL, A, B), evicted(2.0, A), ranking(3.0, B), evicted(4.0, B)]

    assert repetition(log=log)["order"] is None


def test_other_pods_evictions_are_not_part_of_the_order():
    found = repetition(log=[evicted(1.0, "lab/probe"), evicted(2.0, "other/evict-a"), *LOG])

    assert found["order"] == ["a", "b"]
    assert found["first_eviction_s"] == 12.0


def test_a_first_ranking_that_lacks_a_pod_is_none():
    found = repetition(log=[ranking(1.0, A), evicted(2.0, A), ranking(3.0, B), evicted(4.0, B)])

    assert (found["order"], found["first_ranking"]) == (["a", "b"], None)


def test_the_order_the_other_way_round_fits_the_model_that_says_so():
    log = [ranking(1.0, B, A), evicted(2.0, B), ranking(3.0, A), evicted(4.0, A)]

    assert repetition(log=log)["models"] == ["usage_only"]


# --- times and figures ------------------------------------------------------------------------------------------------


def test_without_the_hogs_start_there_are_gaps_and_no_times_from_it():
    text = "".join(part for part in hog([1000.0] * 30).splitlines(keepends=True) if '"press"' not in part)
    found = repetition(hog=text)

    assert (found["first_reclaim_s"], found["first_eviction_s"], found["evicted_s"]) == (None, None, [None, None])
    assert found["gaps_s"] == [8.0]
    assert (found["held"], found["held_text"]) == (None, "not known")


def test_without_evictions_no_time_is_known():
    found = repetition(log=[reclaim(10.0)])

    assert found["first_reclaim_s"] == 10.0
    for name in ("first_eviction_s", "last_eviction_s", "evicted_s", "gaps_s", "available_mib"):
        assert found[name] is None


def test_an_eviction_before_any_observation_has_no_figure():
    found = repetition(log=LOG[2:])

    assert (found["first_available_mib"], found["available_mib"]) == (None, [None, 2048.0])


def test_observations_of_other_signals_are_not_its_figure():
    other = observed(11.0, "1Ki").replace("memory.available", "nodefs.available")

    assert repetition(log=[*LOG[:4], other, *LOG[4:]])["first_available_mib"] == 1024.0


# --- what the hog held ------------------------------------------------------------------------------------------------

# Samples at 0.5 to 11.5 s; the first eviction is at 12.04 s.
FAR_BEFORE = (3000.0,) * 12


@pytest.mark.parametrize(
    ("mib", "held"),
    [(1000, True), (1100, True), (1101, False), (900, True), (899, False)],
)
def test_the_median_after_the_first_eviction_must_be_near_the_target(mib, held):
    found = repetition(hog=hog([*FAR_BEFORE, *[float(mib)] * 9], first_s=0.5))

    assert found["held"] is held
    assert found["held_text"].startswith(f"{mib} MiB (median; {mib}-{mib};")
    assert bool(found["problems"]) is not held


def test_single_samples_far_off_do_not_matter():
    found = repetition(hog=hog([*FAR_BEFORE, 1000.0, 1400.0, 1010.0, 700.0, 990.0], first_s=0.5))

    assert (found["held"], found["held_text"]) == (True, "1000 MiB (median; 700-1400; target 1000)")


@pytest.mark.parametrize("values", [[1000.0] * 12, [1000.0] * 12 + [None] * 5], ids=["too early", "not read"])
def test_without_a_sample_after_the_first_eviction_it_is_not_known(values):
    found = repetition(hog=hog(values))

    assert (found["held"], found["held_text"]) == (None, "not known")


def test_a_hog_that_did_not_end_well_is_named():
    found = repetition(hog=hog([1000.0] * 30, end={"kind": "end", "ok": False, "reason": "pods were left"}))

    assert found["problems"] == ["hog: pods were left"]


# --- kills ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kills", "pod_kills", "extra", "count"),
    [
        ((3, 3), [0, 0, 0], None, 0),
        ((3, 4), [0, 0, 0], None, 1),
        ((3, 3), [2, 3, 5], None, 3),
        ((0, 2), [0, 1, 1], None, 2),
        ((3, 3), [0, 0, 0], "1.5 node kernel: dd invoked oom-killer: gfp_mask=0x0", 1),
        ((3, 3), [0, 0, 0], "1.5 node kernel: oom-kill:constraint=CONSTRAINT_MEMCG", 1),
        ((3, 3), [0, 0, 0], "1.5 node kernel: Memory cgroup out of memory: Killed process 1 (dd)", 1),
        ((3, 3), [0, 0, 0], "1.5 node kernel: oom_reaper: started", 0),
        ((5, 3), [0, 0, 0], None, 0),
    ],
)
def test_kills_are_the_largest_of_three_counts(kills, pod_kills, extra, count):
    kernel = [KERNEL[0], *([extra] if extra else []), KERNEL[1]]

    assert repetition(hog=hog([1000.0] * 3, first_s=13.0, kills=kills, pod_kills=pod_kills), kernel=kernel)[
        "oom_kills"
    ] == count  # fmt: skip


@pytest.mark.parametrize(
    ("kills", "pod_kills"),
    [((None, 3), [0, 0]), ((3, None), [0, 0]), ((3, 3), [None, 0]), ((3, 3), [0, None]), ((3, 3), [0])],
)
def test_counters_not_read_at_both_ends_leave_kills_unknown(kills, pod_kills):
    found = repetition(hog=hog([1000.0] * len(pod_kills), first_s=13.0, kills=kills, pod_kills=pod_kills))

    assert found["oom_kills"] is None
    assert "the kill counters were not read at both ends of the window" in found["problems"]


@pytest.mark.parametrize(
    "kernel",
    [[], KERNEL[:1], KERNEL[1:], KERNEL[::-1]],
    ids=["empty", "no release", "no press", "release before press"],
)
def test_a_kernel_log_that_does_not_cover_the_window_leaves_kills_unknown(kernel):
    found = repetition(kernel=kernel)

    assert found["oom_kills"] is None
    assert found["problems"] == ["the kernel log does not cover the whole window"]


# --- critical pods ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rankings", "last"),
    [
        ([(A, B, CRITICAL)], True),
        ([(CRITICAL,)], True),
        ([(A, CRITICAL, B)], False),
        ([(A, B, CRITICAL), (CRITICAL, B)], False),
        ([(A, B), (B, CRITICAL)], True),
        ([(A, B)], None),
        ([], None),
    ],
)
def test_critical_pods_last_in_every_ranking_that_names_one(rankings, last):
    assert repetition(log=[ranking(float(at), *pods) for at, pods in enumerate(rankings)])["critical_last"] is last


def test_a_pod_is_critical_by_its_priority_and_not_by_its_name():
    just_below = pod("critical", "Burstable", "70Mi", "kube-system", priority=1_999_999_999)

    assert repetition(pods=[*PODS[:3], just_below])["critical_last"] is None


def test_refused_critical_pods_are_named():
    refused = line(22.0, f'"Eviction manager: cannot evict a critical pod" pod="{CRITICAL}"', "E")
    found = repetition(log=[*LOG, refused])

    assert found["critical"] == {"ranked": [CRITICAL], "refused": [CRITICAL]}
    assert found["critical_text"] == f"ranked {CRITICAL}; refused {CRITICAL}"
    assert repetition(log=[])["critical_text"] == "none ranked, none refused"


def test_the_parts_are_the_names_under_which_the_stage_saves():
    assert eviction.PARTS == (
        "working-sets.jsonl",
        "pods-before.json",
        "hog.jsonl",
        "kubelet.log",
        "kernel.log",
    )
