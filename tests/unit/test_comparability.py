"""Results of different inputs or environments never stand in one table."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.model import Cell, Environment, Gate, ResultsError, Stamp, canonical_json
from lab.report.comparability import (
    Comparison,
    Selection,
    cell_order,
    differing_inputs,
    environment_key,
    rerun_command,
    select,
    verdicts_of,
)
from lab.store import Attempt

QEMU = {"provider": "qemu", "emulation": "tcg", "vcpus": "2"}
FIX_OFF = Gate(name="PodLevelResourcesFixKubeletQOSClass", enabled=False)


def attempt(version="v1.36.5", stage="kernel", number=1, *, gates=(), distro="k3s", inputs=None, **changes):
    cell = Cell(distro=distro, version=version, gates=gates)
    values = {
        "path": Path(f"/results/{cell.name}/{stage}/{number}"),
        "cell": cell,
        "stage": stage,
        "number": number,
        "stamp": Stamp(inputs={"stage": stage} if inputs is None else inputs),
        "environment": Environment(must_agree=QEMU, shown={}),
        "run_id": "r1",
        "started": f"2026-11-02T10:{number:02d}:00Z",
        "finished": f"2026-11-02T10:{number:02d}:30Z",
        "smoke": False,
        "countable": True,
        "uncountable_reasons": (),
        "observation": {},
        "verdict": {"judge_version": 1, "verdicts": [], "problem": ""},
        "extra": {},
    }
    return Attempt(**(values | changes))


def in_environment(**facts):
    return Environment(must_agree=QEMU | facts, shown={})


def names(selection):
    return [(found.cell.name, found.stage, found.number) for found in selection.attempts]


def test_the_highest_number_of_each_cell_and_stage_is_chosen():
    attempts = [attempt(number=n) for n in (2, 10, 9)] + [attempt("v1.37.1", number=1), attempt(stage="cpu")]
    selection = select(attempts)
    assert sorted(names(selection)) == [
        ("k3s-v1.36.5", "cpu", 1),
        ("k3s-v1.36.5", "kernel", 10),
        ("k3s-v1.37.1", "kernel", 1),
    ]
    assert [found.number for found in selection.superseded] == [2, 9]
    assert selection.begun[("k3s-v1.36.5", "kernel")] == 10
    assert selection.begun[("k3s-v1.37.1", "kernel")] == 1


def test_gates_in_another_order_are_the_same_cell():
    one, two = Gate(name="A", enabled=True), Gate(name="B", enabled=False)
    selection = select([attempt(number=1, gates=(one, two)), attempt(number=2, gates=(two, one))])
    assert [found.number for found in selection.attempts] == [2]


def test_an_uncountable_newest_attempt_leaves_the_older_countable_one():
    newest = attempt(number=2, countable=False, uncountable_reasons=("outside a git checkout", "dirty tree"))
    selection = select([newest, attempt(number=1)])
    assert names(selection) == [("k3s-v1.36.5", "kernel", 1)]
    assert selection.begun[("k3s-v1.36.5", "kernel")] == 2
    assert [(entry.name, entry.reason) for entry in selection.left_out] == [
        ("k3s-v1.36.5 kernel attempt 2", "uncountable: outside a git checkout; dirty tree")
    ]


def test_smoke_runs_never_count_and_do_not_use_up_numbers():
    selection = select([attempt(number=7, smoke=True)])
    assert selection.attempts == ()
    assert selection.begun == {}
    assert [entry.reason for entry in selection.left_out] == ["smoke run (--quick)"]


def test_smoke_and_uncountable_is_left_out_once_with_both_reasons():
    selection = select([attempt(smoke=True, countable=False)])
    assert [entry.reason for entry in selection.left_out] == [
        "smoke run (--quick); uncountable: no reason recorded"
    ]


def test_every_attempt_is_either_counted_or_left_out():
    attempts = [attempt(number=1), attempt(number=2), attempt(number=3, smoke=True), attempt("v1.37.1")]
    selection = select(attempts)
    assert len(selection.attempts) + len(selection.left_out) == len(attempts)


def test_mixed_stamps_are_refused_with_the_inputs_their_values_and_the_command():
    old = {"stage": "kernel", "script/read.py": "a" * 64, "param/window_s": 20, "param/reps": 5}
    new = {"stage": "kernel", "script/read.py": "b" * 64, "param/window_s": 30, "param/reps": 5}
    older = attempt("v1.37.1", number=1, inputs=old, gates=(FIX_OFF,), started="2026-11-01T00:00:00Z")
    latest = attempt("v1.34.12", number=3, inputs=new, started="2026-11-02T00:00:00Z")
    with pytest.raises(ResultsError) as caught:
        select([older, latest])
    assert caught.value.exit_code == 4
    text = str(caught.value)
    assert text.startswith("stage kernel: ")
    digest = latest.stamp.digest[:12]
    assert f"latest: k3s-v1.34.12 attempt 3, started 2026-11-02T00:00:00Z, stamp {digest}" in text
    assert "differs: k3s-v1.37.1+PodLevelResourcesFixKubeletQOSClass=false attempt 1" in text
    assert f"script/read.py: {'a' * 12}, latest {'b' * 12}\n" in text
    assert "param/window_s: 20, latest 30\n" in text
    assert "param/reps" not in text
    assert (
        "lab run --stages kernel --versions v1.37.1 --distro k3s --provider qemu "
        "--gate PodLevelResourcesFixKubeletQOSClass=false --reps 5 --results /results\n" in f"{text}\n"
    )
    assert "--versions v1.34.12" not in text


def test_every_stage_with_a_mix_is_named_at_once():
    attempts = [
        attempt(version, stage, inputs={"param/x": version if stage != "quota" else 0})
        for version in ("v1.36.5", "v1.37.1")
        for stage in ("cpu", "kernel", "quota")
    ]
    with pytest.raises(ResultsError) as caught:
        select(attempts)
    assert re.findall(r"^stage (\w+): ", str(caught.value), re.MULTILINE) == ["cpu", "kernel"]


def test_only_chosen_attempts_can_cause_a_refusal():
    other = {"stage": "kernel", "param/x": 1}
    attempts = [
        attempt("v1.36.5", number=1, inputs=other),
        attempt("v1.36.5", number=2),
        attempt("v1.37.1", number=1),
        attempt("v1.37.1", number=2, inputs=other, smoke=True),
        attempt("v1.37.1", number=3, inputs=other, countable=False),
        attempt("v1.37.1", stage="cpu", inputs=other),
    ]
    assert len(select(attempts).attempts) == 3


@pytest.mark.parametrize(
    ("left", "right"),
    [(1, True), (1, 1.0), (None, "absent"), ("1", 1), ([1, 2], [2, 1])],
    ids=str,
)
def test_a_difference_that_python_equality_hides_is_named(left, right):
    one = Stamp(inputs={"param/x": left, "param/same": 0})
    other = Stamp(inputs={"param/same": 0} if right == "absent" else {"param/x": right, "param/same": 0})
    assert one.digest != other.digest
    assert differing_inputs(one, other) == ["param/x"]


def test_an_input_that_only_one_side_has_is_shown_as_absent():
    attempts = [
        attempt("v1.36.5", inputs={"script/hog.py": "c" * 64}, started="2026-11-01T00:00:00Z"),
        attempt("v1.37.1", inputs={}, started="2026-11-02T00:00:00Z"),
    ]
    with pytest.raises(ResultsError, match=re.escape(f"script/hog.py: {'c' * 12}, latest (absent)")):
        select(attempts)


def test_long_values_that_begin_alike_are_told_apart():
    attempts = [
        attempt(version, inputs={"param/list": [*range(100), last]})
        for version, last in (("v1.36.5", 1), ("v1.37.1", 2))
    ]
    with pytest.raises(ResultsError) as caught:
        select(attempts)
    line = next(line for line in str(caught.value).splitlines() if "param/list" in line)
    hashes = re.findall(r"sha256 ([0-9a-f]{12})", line)
    assert len(set(hashes)) == 2
    assert len(line) < 250


def test_one_number_twice_is_damage_and_not_a_choice():
    twin = attempt(path=Path("/results/copy"))
    with pytest.raises(ResultsError, match=r"/results/copy and .*k3s-v1\.36\.5 kernel attempt 1"):
        select([attempt(), twin])


def test_two_environments_are_two_comparisons_and_no_error():
    attempts = [
        attempt("v1.36.5"),
        attempt("v1.34.12"),
        attempt("v1.37.1", environment=in_environment(provider="digitalocean")),
    ]
    comparisons = select(attempts).comparisons("kernel")
    assert [[found.cell.version for found in comparison.attempts] for comparison in comparisons] == [
        ["v1.37.1"],
        ["v1.34.12", "v1.36.5"],
    ]


UPSTREAM = {"stage": "kernel", "manifest/be": "a", "script/hog.py": "h", "script/node_facts.sh": "n"}
K3S = {"stage": "kernel", "manifest/be": "a", "script/hog.py": "h", "script/k3s_facts.sh": "k"}
CLOUD = in_environment(provider="digitalocean")


def of(inputs, **changes):
    return {name: value for name, value in {**inputs, **changes}.items() if value is not None}


def test_another_environment_may_have_node_programs_of_its_own():
    attempts = [attempt(inputs=UPSTREAM), attempt("v1.37.1", inputs=K3S, environment=CLOUD)]
    assert len(select(attempts).comparisons("kernel")) == 2
    assert len(select(list(reversed(attempts))).comparisons("kernel")) == 2


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        (of(K3S, **{"script/hog.py": "other"}), 'script/hog.py: "other", latest "h"'),
        (of(K3S, **{"manifest/be": "other"}), 'manifest/be: "other", latest "a"'),
        (of(K3S, **{"manifest/be": None}), 'manifest/be: (absent), latest "a"'),
        (of(K3S, **{"param/reps": 3}), "param/reps: 3, latest (absent)"),
    ],
)
def test_all_else_must_be_the_same_in_every_environment(inputs, name):
    latest = attempt("v1.37.1", number=2, inputs=UPSTREAM)
    with pytest.raises(ResultsError) as caught:
        select([attempt(inputs=inputs, environment=CLOUD), latest])
    assert f"\n    {name}\n    run" in str(caught.value)


def test_within_one_environment_every_program_must_be_the_same_whatever_ran_last_elsewhere():
    mixed = [
        attempt("v1.36.5", inputs=UPSTREAM, environment=CLOUD),
        attempt("v1.37.1", inputs=K3S, environment=CLOUD),
    ]
    latest = attempt("v1.34.12", number=3, inputs=of(K3S, **{"script/k3s_facts.sh": None}))
    for attempts in (mixed, [*mixed, latest], [latest, *reversed(mixed)]):
        with pytest.raises(ResultsError) as caught:
            select(attempts)
        text = str(caught.value)
        assert "latest: k3s-v1.37.1 attempt 1" in text
        assert "differs: k3s-v1.36.5 attempt 1" in text
        assert 'script/k3s_facts.sh: (absent), latest "k"' in text
        assert 'script/node_facts.sh: "n", latest (absent)' in text


def test_shown_facts_do_not_split_a_comparison_but_an_absent_fact_does():
    kernel = Environment(must_agree=QEMU, shown={"kernel": "6.8"})
    unread = Environment(must_agree={"provider": "qemu", "emulation": "tcg"}, shown={})
    assert len(select([attempt(), attempt("v1.37.1", environment=kernel)]).comparisons("kernel")) == 1
    assert len(select([attempt(), attempt("v1.37.1", environment=unread)]).comparisons("kernel")) == 2


def test_a_comparison_cannot_be_made_of_results_that_do_not_belong_together():
    good = attempt()
    for bad, words in [
        (attempt("v1.37.1", inputs={"param/x": 2}), "param/x"),
        (attempt("v1.37.1", environment=in_environment(vcpus="4")), "environments"),
        (attempt("v1.37.1", stage="cpu"), "that stage alone"),
        (attempt(number=2), "one attempt per cell"),
    ]:
        with pytest.raises(ResultsError, match=words):
            Comparison(stage="kernel", environment=environment_key(good), attempts=(good, bad))
    with pytest.raises(ResultsError, match="needs attempts"):
        Comparison(stage="kernel", environment=environment_key(good), attempts=())


def test_a_selection_put_together_by_hand_is_checked_too():
    selection = Selection(attempts=(attempt(), attempt("v1.37.1", inputs={"param/x": 2})))
    with pytest.raises(ResultsError, match="param/x"):
        selection.comparisons("kernel")


def test_versions_are_ordered_as_numbers_then_gates_then_distribution():
    gate = Gate(name="A", enabled=False)
    ordered = [
        Cell(distro="k3s", version="v1.9.12"),
        Cell(distro="k3s", version="v1.36.5"),
        Cell(distro="upstream", version="v1.36.5"),
        Cell(distro="k3s", version="v1.36.5", gates=(gate,)),
        Cell(distro="k3s", version="v1.36.5+k3s1"),
        Cell(distro="k3s", version="v1.36.10"),
        Cell(distro="k3s", version="v1.37.1"),
    ]
    backwards = ordered[::-1]
    assert sorted(backwards, key=cell_order) == ordered


def test_a_version_of_another_form_is_damage():
    with pytest.raises(ResultsError, match=r"'1\.36'"):
        select([attempt("1.36")])


def test_the_rerun_command_quotes_and_omits_an_unknown_provider():
    gate = Gate(name="A", enabled=True, component="kubelet")
    unknown = attempt("v1.36.5+k3s1", gates=(gate,), environment=Environment(must_agree={}, shown={}))
    assert rerun_command(unknown, unknown.stamp) == (
        "lab run --stages kernel --versions v1.36.5+k3s1 --distro k3s --gate A=true@kubelet --results /results"
    )


def test_the_rerun_command_is_short_in_the_usual_folder_and_names_an_image_and_a_host():
    path = Path("results/k3s-v1.36.5/kernel/0001")
    droplet = Environment(must_agree=QEMU | {"provider": "digitalocean"}, shown={"image": "debian-13-x64"})
    found = attempt(path=path, environment=droplet)
    assert rerun_command(found, found.stamp).endswith("--distro k3s --provider digitalocean --image debian-13-x64")
    found = attempt(path=path, environment=in_environment(provider="ssh"))
    assert rerun_command(found, found.stamp).endswith("--distro k3s --host USER@ADDR")


@pytest.mark.parametrize(
    "verdict",
    [
        {},
        {"verdicts": [{}]},
        {"verdicts": None},
        {"verdicts": ["x"]},
        {"verdicts": [{"claim": "C1", "outcome": "held", "reason": "", "claim_digest": ""}]},
    ],
    ids=str,
)
def test_a_damaged_verdict_names_its_file(verdict):
    with pytest.raises(ResultsError, match=r"/results/k3s-v1\.36\.5/kernel/1/verdict\.json"):
        verdicts_of(attempt(verdict=verdict))


JSON_VALUES = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([1.0, "1", "a" * 64, "b" * 64])
INPUTS = st.dictionaries(st.sampled_from(["param/a", "param/b", "script/c", "manifest/d"]), JSON_VALUES)
VERSIONS = ["v1.34.4", "v1.35.9", "v1.36.5", "v1.37.1"]


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.sampled_from(VERSIONS), INPUTS, min_size=2),
    st.lists(st.integers(1, 3), min_size=4, max_size=4),
    st.randoms(use_true_random=False),
)
def test_two_stamps_raise_and_name_exactly_the_differing_inputs(inputs, days, random):
    """The reference is worked out here from the JSON texts, apart from the code under test."""
    attempts = [
        attempt(version, inputs=inputs[version], started=f"2026-11-0{day}T00:00:00Z")
        for version, day in zip(sorted(inputs), days, strict=False)
    ]
    texts = {
        found.cell.name: {name: canonical_json(value) for name, value in found.stamp.inputs.items()}
        for found in attempts
    }
    random.shuffle(attempts)
    if all(value == texts[attempts[0].cell.name] for value in texts.values()):
        assert len(select(attempts).attempts) == len(attempts)
        return
    with pytest.raises(ResultsError) as caught:
        select(attempts)
    blocks = re.split(r"\n  differs: ", str(caught.value))
    latest = re.search(r"latest: (\S+) attempt", blocks[0])[1]
    assert max(found.started for found in attempts) == next(
        found.started for found in attempts if found.cell.name == latest
    )
    named = {
        block.split(" ")[0]: set(re.findall(r"^    ((?:param|script|manifest)/\w): ", block, re.MULTILINE))
        for block in blocks[1:]
    }
    reference = texts[latest]
    expected = {
        cell: {name for name in value.keys() | reference.keys() if value.get(name) != reference.get(name)}
        for cell, value in texts.items()
        if value != reference
    }
    assert named == expected


ATTEMPTS = st.lists(
    st.builds(
        lambda version, stage, smoke, countable, vcpus: attempt(
            version, stage, smoke=smoke, countable=countable, environment=in_environment(vcpus=vcpus)
        ),
        st.sampled_from(VERSIONS),
        st.sampled_from(["class", "kernel"]),
        st.booleans(),
        st.booleans(),
        st.sampled_from(["2", "4"]),
    ),
    max_size=8,
).map(lambda found: [dataclasses.replace(one, number=index + 1) for index, one in enumerate(found)])


@settings(max_examples=100, deadline=None)
@given(ATTEMPTS, st.randoms(use_true_random=False))
def test_one_stamp_never_raises_and_order_changes_nothing(attempts, random):
    selection = select(attempts)
    shuffled = list(attempts)
    random.shuffle(shuffled)
    assert select(shuffled) == selection
    assert len(selection.attempts) + len(selection.left_out) == len(attempts)
    for found in selection.attempts:
        assert found.countable
        assert not found.smoke
        rivals = [one for one in attempts if (one.cell, one.stage) == (found.cell, found.stage)]
        assert found.number == max(one.number for one in rivals if one.countable and not one.smoke)
    tables = [table for stage in selection.stages() for table in selection.comparisons(stage)]
    assert sum(len(table.attempts) for table in tables) == len(selection.attempts)
