"""The node's programs that sample a window, press on memory and wait for working sets, with a clock that tests move."""

from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from lab.parse.lines import of_kind, records
from tests.captures_helper import load
from tests.node_programs import BURSTABLE, NO_PROCESS, UID, Clock

# --- cpu_window -------------------------------------------------------------------------------------------------------


def test_running_counts_the_processes_that_run_or_want_to(scripts, child):
    os.kill(child.pid, signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)

    assert scripts.cpu_window.running([os.getpid()]) == 1
    assert scripts.cpu_window.running([child.pid, NO_PROCESS]) == 0
    assert scripts.cpu_window.running([child.pid, os.getpid(), os.getpid()]) == 2
    assert scripts.cpu_window.running([]) == 0


@pytest.mark.parametrize(
    ("stat", "count"),
    [("7 (sh) R 1", 1), ("7 (sh) S 1", 0), ("7 (a) R b) S 1", 0), ("7 (a b) R 1", 1), (None, 0)],
)
def test_running_reads_the_state_behind_the_name_whatever_the_name_is(scripts, monkeypatch, stat, count):
    monkeypatch.setattr(scripts.cpu_window, "read", lambda path: stat)

    assert scripts.cpu_window.running([7]) == count


def test_folders_are_those_that_are_there_and_the_containers_own(scripts, tree):
    target, neighbour = tree(BURSTABLE), tree("kubepods.slice/kubepods-podbb.slice")
    container = tree(f"{BURSTABLE}/cri-containerd-id2.scope")
    tree(f"{BURSTABLE}/cri-containerd-id1.scope")
    system = tree("system.slice")
    found = scripts.cpu_window.folders(target, neighbour, "id2")

    assert found["target-container"] == container
    assert (found["target-pod"], found["neighbour-pod"], found["system"]) == (target, neighbour, system)
    assert {"user", "besteffort", "lab"} & set(found) == set()
    assert "target-container" not in scripts.cpu_window.folders(target, neighbour, "id3")


def test_pod_processes_counts_every_pod_of_the_node(scripts, tree):
    tree(f"{BURSTABLE}/cri-containerd-a.scope", cgroup_procs="1\n2")
    tree(f"{BURSTABLE}/cri-containerd-b.scope", cgroup_procs="3")
    tree("kubepods.slice/kubepods-podbb.slice")

    assert scripts.cpu_window.pod_processes() == {BURSTABLE.rpartition("/")[2]: 3, "kubepods-podbb.slice": 0}


def window_main(scripts: SimpleNamespace, monkeypatch: Any, *words: str) -> tuple[int, list[tuple[str, str]], Clock]:
    clock, sent = Clock(), []
    monkeypatch.setattr(scripts.cpu_window, "time", clock)
    monkeypatch.setattr(scripts.cpu_window, "send", lambda uid, name: sent.append((uid, name)))
    options = ["container=id2", "warmup_s=5", "window_s=20", "interval_s=1"]
    monkeypatch.setattr(sys, "argv", ["cpu_window.py", *words, *options])
    return scripts.cpu_window.main(), sent, clock


def test_a_window_has_its_samples_at_both_ends_and_runs_the_neighbour_meanwhile(scripts, tree, capsys, monkeypatch):
    tree(BURSTABLE, cpu_stat="usage_usec 5", cpu_weight="20")
    tree(f"{BURSTABLE}/cri-containerd-id2.scope", cpu_stat="usage_usec 4", cgroup_procs=os.getpid())
    tree("kubepods.slice/kubepods-podbb.slice", cpu_stat="usage_usec 3")
    code, sent, clock = window_main(scripts, monkeypatch, f"target={UID}", "neighbour=bb")

    found = records(capsys.readouterr().out, "cpu-window", 2)
    samples = of_kind(found, "sample")
    assert (code, clock.now) == (0, 75.0)
    assert [record["mono"] for record in samples] == [55.0 + number for number in range(21)]
    assert sent == [("bb", "CONT"), ("bb", "STOP")]
    assert samples[0]["usage_usec"]["target-container"] == 4
    assert samples[0]["usage_usec"]["kubepods"] is None
    assert samples[0]["running"] == {"target": 1, "neighbour": 0}
    assert of_kind(found, "before")[0]["weights"]["target-pod"] == "20"


def test_the_neighbour_is_stopped_even_when_sampling_fails(scripts, tree, capsys, monkeypatch):
    tree(BURSTABLE)
    tree("kubepods.slice/kubepods-podbb.slice")

    def fail(places: object, groups: object) -> None:
        raise OSError("no more")

    monkeypatch.setattr(scripts.cpu_window, "sample", fail)
    sent: list[tuple[str, str]] = []
    monkeypatch.setattr(scripts.cpu_window, "time", Clock())
    monkeypatch.setattr(scripts.cpu_window, "send", lambda uid, name: sent.append((uid, name)))
    options = ["container=id2", "warmup_s=5", "window_s=20", "interval_s=1"]
    monkeypatch.setattr(sys, "argv", ["cpu_window.py", f"target={UID}", "neighbour=bb", *options])

    with pytest.raises(OSError, match="no more"):
        scripts.cpu_window.main()

    assert sent == [("bb", "CONT"), ("bb", "STOP")]


def test_a_window_without_its_pods_says_so(scripts, tree, capsys, monkeypatch):
    tree(BURSTABLE)
    code, sent, _ = window_main(scripts, monkeypatch, f"target={UID}", "neighbour=not-there")

    assert (code, sent) == (1, [])
    assert records(capsys.readouterr().out, "cpu-window", 2)[-1]["ok"] is False


# --- hog --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hog(scripts, monkeypatch):
    monkeypatch.setattr(scripts.hog, "BLOCK_MIB", 1)
    return scripts.hog.Hog(target_mib=1000, floor_mib=500)


@pytest.mark.parametrize(
    ("available", "blocks"),
    [(1000, 0), (1001, 1), (1005, 5), (1008, 8), (1009, 8), (4000, 8), (999, 0), (0, 0)],
)
def test_the_hog_takes_what_is_above_its_target_but_no_more_than_eight_blocks(hog, available, blocks):
    hog.adjust(available)

    assert len(hog.blocks) == blocks
    assert {len(block) for block in hog.blocks} <= {1 << 20}
    assert all(block[0] == block[-1] == 1 for block in hog.blocks)


@pytest.mark.parametrize(
    ("available", "left"),
    [(1000, 8), (999, 7), (995, 3), (992, 0), (900, 0)],
)
def test_the_hog_gives_back_what_is_below_its_target(hog, available, left):
    hog.adjust(1008)
    hog.adjust(available)

    assert len(hog.blocks) == left


def test_the_hog_gives_back_eight_blocks_at_most_and_never_more_than_it_has(hog):
    for _ in range(2):
        hog.adjust(1008)
    hog.adjust(1004)

    left = []
    for _ in range(4):
        hog.adjust(700)
        left.append(len(hog.blocks))

    assert left == [12, 4, 0, 0]


def test_less_than_a_block_is_left_alone(scripts, monkeypatch):
    monkeypatch.setattr(scripts.hog, "BLOCK_MIB", 2)
    hog = scripts.hog.Hog(target_mib=1000, floor_mib=500)
    for available, blocks in ((1001, 0), (1002, 1), (1003, 2), (999, 2), (998, 1)):
        hog.adjust(available)
        assert len(hog.blocks) == blocks
    assert {len(block) for block in hog.blocks} == {2 << 20}


def test_the_hog_counts_how_often_it_was_below_its_floor(hog):
    for available in (501, 500, 499, 10, 1000):
        hog.adjust(available)

    assert hog.floor_hits == 2


def press(scripts: SimpleNamespace, monkeypatch: Any, places: dict[str, str], at: dict[float, str], **limits: float):
    """Press with a clock; ``at`` removes a pod's cgroup when the time has come. Returns the answer and the seconds."""
    clock = Clock()
    start = clock.now

    def sleep(seconds: float) -> None:
        clock.now = round(clock.now + seconds, 3)
        for moment, folder in list(at.items()):
            if clock.now - start >= moment:
                os.rmdir(folder)
                del at[moment]

    monkeypatch.setattr(scripts.hog, "time", SimpleNamespace(monotonic=clock.monotonic, sleep=sleep))
    monkeypatch.setattr(scripts.hog, "meminfo_kib", lambda key: {"MemAvailable": 1000 * 1024}[key])
    answer = scripts.hog.press(scripts.hog.Hog(1000, 500), places, limits["deadline_s"], limits["hold_s"])
    return answer, round(clock.now - start, 1)


def test_the_hog_presses_on_for_a_while_after_the_last_pod_went(scripts, tree, monkeypatch):
    places = {"a": tree("a"), "b": tree("b")}
    at = {3.0: places["a"], 5.0: places["b"]}

    assert press(scripts, monkeypatch, places, at, deadline_s=60.0, hold_s=2.0) == (True, 7.1)


def test_the_hog_gives_up_at_its_deadline(scripts, tree, monkeypatch):
    places = {"a": tree("a")}

    assert press(scripts, monkeypatch, places, {}, deadline_s=4.0, hold_s=2.0) == (False, 4.1)


def test_pods_that_went_just_before_the_deadline_count_as_gone(scripts, tree, monkeypatch):
    places = {"a": tree("a")}

    assert press(scripts, monkeypatch, places, {3.5: places["a"]}, deadline_s=4.0, hold_s=2.0) == (True, 4.1)


def test_the_hog_does_not_press_when_a_pod_has_no_cgroup(scripts, tree, capsys, monkeypatch):
    options = ["url=u", "folder=f", "target_mib=1", "floor_mib=1", "deadline_s=1", "hold_s=1"]
    monkeypatch.setattr(sys, "argv", ["hog.py", *options, f"evict-a={UID}"])

    assert scripts.hog.main() == 1

    found = records(capsys.readouterr().out, "hog", 2)
    assert (found[0]["missing"], found[-1]["ok"], found[-1]["reason"]) == (["evict-a"], False, "no cgroup of evict-a")


# --- working_set ------------------------------------------------------------------------------------------------------


def seen(size: int | None, time: str, name: str = "a") -> dict[str, Any]:
    return {"pods": {f"lab/{name}": size}, "times": {f"lab/{name}": time}}


ERROR = {"error": "status 500"}


def wait(scripts: SimpleNamespace, monkeypatch: Any, capsys: Any, answers: list[dict[str, Any]], *words: str):
    """Run the program over the answers given, one a second; the exit code, the polls taken and the last record."""
    clock, left = Clock(), list(answers)

    class FakeSummary:
        def __init__(self, url: str, folder: str) -> None:
            assert (url, folder) == ("https://127.0.0.1:10250", "/etc/lab")

        def read(self) -> dict[str, Any]:
            return left.pop(0)

    monkeypatch.setattr(scripts.working_set, "Summary", FakeSummary)
    monkeypatch.setattr(scripts.working_set, "pod_cgroup", lambda uid: None)
    monkeypatch.setattr(scripts.working_set, "time", clock)
    options = ["url=https://127.0.0.1:10250", "folder=/etc/lab", "deadline_s=10", "tolerance=5", "namespace=lab"]
    monkeypatch.setattr(sys, "argv", ["working_set.py", *options, *(words or ("a=uid-a:100",))])
    code = scripts.working_set.main()
    found = records(capsys.readouterr().out, "working-set", 2)
    assert len(of_kind(found, "poll")) == len(answers) - len(left)
    return code, len(of_kind(found, "poll")), found[-1]


@pytest.mark.parametrize(
    ("answers", "polls"),
    [
        ([seen(100, "1"), seen(100, "2")], 2),
        ([seen(100, "1"), seen(100, "1"), seen(100, "1"), seen(100, "2")], 4),
        ([seen(95, "1"), seen(105, "2")], 2),
        ([seen(94, "1"), seen(100, "2"), seen(100, "3")], 3),
        ([seen(100, "1"), seen(106, "2"), seen(100, "3"), seen(100, "4")], 4),
        ([seen(100, "1"), ERROR, seen(100, "2"), seen(100, "3")], 4),
        ([seen(100, "1"), seen(None, "2"), seen(100, "3"), seen(100, "4")], 4),
        ([{"pods": {}, "times": {}}, seen(100, "1"), seen(100, "2")], 3),
    ],
    ids=["at once", "same figure for long", "at the tolerance", "below", "above again", "error", "none", "not there"],
)
def test_the_right_size_must_be_seen_at_two_times_without_another_between(
    scripts, monkeypatch, capsys, answers, polls
):
    code, taken, end = wait(scripts, monkeypatch, capsys, answers)

    assert (code, taken, end["ok"], end["off"]) == (0, polls, True, [])


def test_every_pod_must_hold_its_size(scripts, monkeypatch, capsys):
    def both(first: int, second: int, time: str) -> dict[str, Any]:
        return {"pods": {"lab/a": first, "lab/b": second}, "times": {"lab/a": time, "lab/b": time}}

    answers = [both(100, 10, "1"), both(100, 200, "2"), both(100, 200, "3")]
    code, taken, _ = wait(scripts, monkeypatch, capsys, answers, "a=uid-a:100", "b=uid-b:200")

    assert (code, taken) == (0, 3)


def test_the_deadline_names_the_pods_that_are_off(scripts, monkeypatch, capsys):
    answers = [seen(100, "1")] + [seen(20, "2")] * 20
    code, taken, end = wait(scripts, monkeypatch, capsys, answers)

    assert (code, end["ok"], end["off"]) == (1, False, ["a"])
    assert taken == 12


def test_another_namespaces_pod_of_the_same_name_does_not_count(scripts, monkeypatch, capsys):
    other = {"pods": {"default/a": 100}, "times": {"default/a": "1"}}
    code, _, end = wait(scripts, monkeypatch, capsys, [other] * 20)

    assert (code, end["off"]) == (1, ["a"])


def test_the_captured_working_sets_end_by_the_same_rule():
    """The last poll of a real node, and one before it at another time, are within the tolerance for every pod."""
    found = records(load("v1.34.4", "eviction")["1-working-sets.jsonl"], "working-set", 2)
    wanted = {name: int(text.split(":")[1]) for name, text in found[0]["pods"].items()}
    polls = [record["summary"] for record in of_kind(found, "poll")]

    for name, size in wanted.items():
        key = f"lab/{name}"
        good = {poll["times"][key] for poll in polls if abs((poll["pods"][key] or 0) - size) <= 6291456}
        assert len(good) >= 2
        assert abs(polls[-1]["pods"][key] - size) <= 6291456
