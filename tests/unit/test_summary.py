"""The summary's text: what a reader must find in it, and what must never be in it."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.model import Cell, Environment, Gate, Outcome, ResultsError, Stamp, Verdict
from lab.report.comparability import Selection, select
from lab.report.outcomes import outcome_exit_code
from lab.report.phases import phase_table, render_phases
from lab.report.summary import render
from lab.report.tables import markdown
from lab.stages.contract import Stage
from lab.store import Attempt

DROPLET = {
    "provider": "digitalocean",
    "emulation": "none",
    "cgroup_mode": "v2",
    "cgroup_driver": "systemd",
    "vcpus": "2",
    "memory_class": "4 GB",
    "control_plane": "on node",
}
FIX_OFF = Gate(name="PodLevelResourcesFixKubeletQOSClass", enabled=False)
CLAIMS = {"C2": "CPU share below 10 %", "C1": "empty block is BestEffort", "C3": "no judge"}


def verdicts(*found, problem="", judge_version=1):
    entries = [
        {"claim": claim, "outcome": outcome, "reason": reason, "claim_digest": "d" * 64}
        for claim, outcome, reason in found
    ]
    return {"judge_version": judge_version, "verdicts": entries, "problem": problem}


def attempt(version="v1.36.5", stage="kernel", number=1, *, gates=(), distro="k3s", inputs=None, **changes):
    cell = Cell(distro=distro, version=version, gates=gates)
    values = {
        "path": Path(f"/home/someone/results/{cell.name}/{stage}/{number}"),
        "cell": cell,
        "stage": stage,
        "number": number,
        "stamp": Stamp(inputs={"stage": stage} if inputs is None else inputs),
        "environment": Environment(must_agree=DROPLET, shown={}),
        "run_id": "r-17",
        "started": "2026-11-02T10:11:12Z",
        "finished": "2026-11-02T10:12:00Z",
        "smoke": False,
        "countable": True,
        "uncountable_reasons": (),
        "observation": {"weight": "1", "oom": "1000"},
        "verdict": verdicts(),
        "extra": {},
    }
    return Attempt(**(values | changes))


def stage(name="kernel", title="Kernel numbers"):
    return Stage(
        name=name,
        title=title,
        version=1,
        judge_version=1,
        cases=(),
        scripts=(),
        params=lambda options: {},
        budget_s=lambda options: 1.0,
        collect=lambda context: None,
        parse=lambda raw: {},
        view=lambda observation: {},
        row=lambda observation: {key: value for key, value in observation.items() if key != "notes"},
        notes=lambda observation: list(observation.get("notes", [])),
    )


STAGES = {"kernel": stage(), "cpu": stage("cpu", "CPU next to a busy neighbour")}


def text_of(*attempts, stages=STAGES, claims=CLAIMS, today=None):
    now = None if today is None else lambda comparison: today.get(comparison.stage)
    return render(select(attempts), stages, claims, now)


def section(text, heading):
    """The lines of one ``##`` section."""
    lines = text.split("\n")
    start = lines.index(f"## {heading}")
    rest = [index for index, line in enumerate(lines) if line.startswith("## ") and index > start]
    return lines[start : rest[0] if rest else len(lines)]


def tables(lines):
    """Every Markdown table of some lines: lists of rows, which are lists of cell texts, headings first."""
    found, current = [], []
    for line in [*lines, ""]:
        if line.startswith("|"):
            if not set(line) <= set("|:-"):
                current.append([cell.strip() for cell in line.strip("|").replace("\\|", "¦").split("|")])
        elif current:
            found.append(current)
            current = []
    return found


def test_the_verdict_matrix_has_claims_as_rows_in_their_order_and_cells_as_columns():
    text = text_of(
        attempt("v1.37.1", gates=(FIX_OFF,), verdict=verdicts(("C1", "HELD", "x"))),
        attempt("v1.37.1", verdict=verdicts(("C1", "FALSIFIED", "x"))),
        attempt("v1.9.0", "cpu", verdict=verdicts(("C2", "MISSED", "x"), ("C9", "UNKNOWN", "x"))),
    )
    assert tables(section(text, "Verdicts")) == [
        [
            ["claim", "title", "v1.9.0", "v1.37.1", "v1.37.1 PodLevelResourcesFixKubeletQOSClass=false"],
            ["C2", "CPU share below 10 %", "MISSED", "-", "-"],
            ["C1", "empty block is BestEffort", "-", "FALSIFIED", "HELD"],
            ["C3", "no judge", "-", "-", "-"],
            ["C9", "(not in CLAIM.md)", "UNKNOWN", "-", "-"],
        ]
    ]


@pytest.mark.parametrize("first", [True, False])
def test_a_good_verdict_does_not_hide_a_bad_one_on_the_same_claim(first):
    pair = [("C1", "HELD", "x"), ("C1", "UNKNOWN", "x")]
    kernel, cpu = pair if first else pair[::-1]
    text = text_of(attempt(verdict=verdicts(kernel)), attempt(stage="cpu", verdict=verdicts(cpu)))
    assert tables(section(text, "Verdicts"))[0][2][2] == "UNKNOWN"


def test_how_to_read_explains_every_outcome_word():
    lines = section(text_of(), "How to read")
    for outcome in Outcome:
        assert any(line.startswith(f"- {outcome.value}: ") for line in lines)


def test_a_stage_table_has_versions_as_rows_in_version_order():
    text = text_of(
        attempt("v1.36.10"),
        attempt("v1.36.9", observation={"weight": "4", "slice": "kubepods|x"}),
    )
    assert tables(section(text, "Stage: Kernel numbers (kernel)")) == [
        [
            ["version", "weight", "slice", "oom"],
            ["v1.36.9", "4", "kubepods¦x", "-"],
            ["v1.36.10", "1", "-", "1000"],
        ]
    ]


def test_numbers_stay_as_the_stage_wrote_them():
    frame = pd.DataFrame([["0.50", "1e3", "007", ""]], columns=["a", "a", "b|c", "d"], dtype=object)
    assert tables(markdown(frame).split("\n")) == [[["a", "a", "b¦c", "d"], ["0.50", "1e3", "007", "-"]]]


def test_rows_name_the_distribution_only_when_there_are_several():
    one = attempt()
    other = attempt(distro="upstream")
    assert "| k3s v1.36.5" not in text_of(one)
    rows = tables(section(text_of(one, other), "Stage: Kernel numbers (kernel)"))[0]
    assert [row[0] for row in rows] == ["version", "k3s v1.36.5", "upstream v1.36.5"]


def test_stages_stand_in_the_given_order_and_those_without_results_are_named():
    stages = {"cpu": STAGES["cpu"], "kernel": STAGES["kernel"], "quota": stage("quota", "Quota")}
    text = text_of(attempt(), attempt(stage="cpu"), stages=stages)
    assert text.index("## Stage: CPU") < text.index("## Stage: Kernel")
    assert "No attempt counts for: quota." in section(text, "Not run")
    assert "## Not run" not in text_of(attempt(), attempt(stage="cpu"))


def test_stamp_attempt_run_and_date_stand_under_the_table():
    found = attempt(number=2, extra={"seed": 0, "phases": {"install": 3.0}})
    lines = section(text_of(found, attempt(number=1), attempt("v1.37.1")), "Stage: Kernel numbers (kernel)")
    assert f"- stamp: `{found.stamp.digest[:12]}`" in lines
    assert "- v1.36.5: attempt 2 of 2, run r-17, 2026-11-02, seed 0" in lines
    assert "- v1.37.1: attempt 1 of 1, run r-17, 2026-11-02" in lines


def test_environment_facts_are_split_into_agreed_equal_and_varying():
    def place(**shown):
        return Environment(must_agree=DROPLET, shown={"kernel": "6.8.0", **shown})

    text = text_of(
        attempt("v1.34.4", environment=place(containerd="2.0", artifact="a" * 64)),
        attempt("v1.36.5", environment=place(containerd="2.1", artifact="b" * 64)),
        attempt("v1.37.1", environment=place(containerd="2.1")),
    )
    lines = section(text, "Stage: Kernel numbers (kernel)")
    assert (
        "### Environment: provider digitalocean, emulation none, cgroup_mode v2, cgroup_driver systemd, "
        "vcpus 2, memory_class 4 GB, control_plane on node" in lines
    )
    assert "- same on every row: kernel 6.8.0" in lines
    assert tables(lines)[1] == [
        ["version", "artifact", "containerd"],
        ["v1.34.4", "a" * 12, "2.0"],
        ["v1.36.5", "b" * 12, "2.1"],
        ["v1.37.1", "not read", "2.1"],
    ]
    assert not any("not known to agree" in line for line in lines)


def test_facts_that_no_node_told_are_not_taken_as_agreeing():
    bare = Environment(must_agree={"provider": "qemu", "emulation": "kvm"}, shown={})
    lines = section(text_of(attempt(environment=bare)), "Stage: Kernel numbers (kernel)")
    assert (
        "- not read on any row, so not known to agree: "
        "cgroup_mode, cgroup_driver, vcpus, memory_class, control_plane" in lines
    )
    empty = Environment(must_agree={}, shown={})
    assert "### Environment: not read" in text_of(attempt(environment=empty)).split("\n")


def test_two_environments_are_two_tables_and_said_so():
    guest = Environment(must_agree=DROPLET | {"provider": "qemu", "emulation": "tcg"}, shown={})
    text = text_of(
        attempt("v1.36.5", verdict=verdicts(("C1", "HELD", ""))),
        attempt("v1.37.1", environment=guest, verdict=verdicts(("C1", "HELD", ""))),
    )
    lines = section(text, "Stage: Kernel numbers (kernel)")
    assert [[row[0] for row in table] for table in tables(lines)] == [
        ["version", "v1.36.5"],
        ["version", "v1.37.1"],
    ]
    assert any(
        "2 environments, which must not be compared" in line
        and line.endswith("they differ in emulation (none / tcg), provider (digitalocean / qemu).")
        for line in lines
    )
    assert [table[0] for table in tables(section(text, "Verdicts"))] == [
        ["claim", "title", "v1.36.5"],
        ["claim", "title", "v1.37.1"],
    ]


def test_verdicts_that_did_not_hold_stand_with_their_reasons_and_held_ones_do_not():
    text = text_of(
        attempt(
            verdict=verdicts(
                ("C1", "HELD", "as expected"),
                ("C2", "MISSED", "14.3 %\nnot < 10 %"),
                ("C3", "UNKNOWN", "steal too high"),
            )
        ),
        attempt("v1.37.1", verdict=verdicts(("C1", "FALSIFIED", "still BestEffort"))),
    )
    lines = section(text, "Stage: Kernel numbers (kernel)")
    assert "- v1.36.5: C2 MISSED: 14.3 % not < 10 %" in lines
    assert "- v1.36.5: C3 UNKNOWN: steal too high" in lines
    assert "- v1.37.1: C1 FALSIFIED: still BestEffort" in lines
    assert "as expected" not in text


def test_a_blank_row_shows_its_problem_in_the_table():
    blank = attempt("v1.37.1", observation=None, verdict=verdicts(problem="cpu.max: 'x'\nis no quota"))
    whole = attempt(verdict=verdicts(problem="one file was cut short"))
    lines = section(text_of(blank, whole), "Stage: Kernel numbers (kernel)")
    assert tables(lines)[0] == [
        ["version", "weight", "oom", "problem"],
        ["v1.36.5", "1", "1000", "-"],
        ["v1.37.1", "-", "-", "cpu.max: 'x' is no quota"],
    ]
    assert [line for line in lines if "problem: " in line] == ["- v1.36.5: problem: one file was cut short"]


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        (None, "there is no observation"),
        ({}, "nothing was measured"),
        ({"weight": " "}, "nothing was measured"),
    ],
)
def test_an_empty_row_without_a_stored_problem_says_so(observation, expected):
    table = tables(section(text_of(attempt(observation=observation)), "Stage: Kernel numbers (kernel)"))[0]
    assert table[0][-1] == "problem"
    assert table[1][-1] == expected


def test_results_of_a_stage_that_is_gone_are_kept_in_view():
    text = text_of(attempt(stage="old", verdict=verdicts(("C1", "FALSIFIED", "why"))))
    lines = section(text, "Stage: old")
    assert tables(lines)[0][1] == ["v1.36.5", "this lab has no stage old"]
    assert "- v1.36.5: C1 FALSIFIED: why" in lines


def test_notes_that_all_rows_share_stand_once():
    shared, own = "n too small for a test", "one window repeated"
    lines = section(
        text_of(
            attempt(observation={"weight": "1", "notes": [own, shared]}),
            attempt("v1.37.1", observation={"weight": "1", "notes": [shared]}),
        ),
        "Stage: Kernel numbers (kernel)",
    )
    assert lines[lines.index("Notes:") + 2 :][:3] == [f"- {shared}", f"- v1.36.5: {own}", ""]


def test_stale_results_are_labelled_with_the_inputs_and_still_shown():
    found = attempt(inputs={"stage": "kernel", "script/hog.py": "a", "param/window_s": 20})
    today = {"kernel": Stamp(inputs={"stage": "kernel", "script/hog.py": "b", "param/reps": 5})}
    lines = section(text_of(found, today=today), "Stage: Kernel numbers (kernel)")
    assert "- stale: today's inputs differ in param/reps, param/window_s, script/hog.py" in lines
    assert tables(lines)[0][1] == ["v1.36.5", "1", "1000"]
    for fresh in (None, {}, {"kernel": found.stamp}, {"cpu": today["kernel"]}):
        assert "stale" not in text_of(found, today=fresh)


def test_old_judging_and_changed_claim_wording_are_said():
    other = verdicts(("C1", "HELD", ""), judge_version=0)
    other["verdicts"][0]["claim_digest"] = "e" * 64
    text = text_of(attempt(verdict=verdicts(("C1", "HELD", ""))), attempt("v1.37.1", verdict=other))
    assert f"- claim C1 was judged in 2 wordings ({'d' * 12}, {'e' * 12}): run `lab judge`" in text
    assert "- v1.37.1: judged by version 0 of this stage, today's is 1: run `lab judge`" in text
    assert "- v1.36.5: judged by" not in text


def test_nothing_countable_is_said_and_leaves_no_table_of_results():
    barred = attempt(countable=False, uncountable_reasons=("dirty tree",))
    text = text_of(barred, attempt(number=2, smoke=True))
    assert "There is no countable result" in text
    assert "## Verdicts" not in text
    assert "## Stage" not in text
    assert tables(section(text, "Left out")) == [
        [
            ["reason", "attempts", "which"],
            ["smoke run (--quick)", "1", "k3s-v1.36.5 kernel attempt 2"],
            ["uncountable: dirty tree", "1", "k3s-v1.36.5 kernel attempt 1"],
        ]
    ]
    assert "Nothing: every stored attempt is in a table." in text_of(attempt())


def test_left_out_counts_by_reason():
    smoke = [attempt(number=number, smoke=True) for number in (1, 2)]
    selection = select([*smoke, attempt(number=3, countable=False)])
    text = render(selection, STAGES, CLAIMS, None)
    assert "Attempts that no table shows: 3." in section(text, "Left out")
    assert [row[:2] for row in tables(section(text, "Left out"))[0][1:]] == [
        ["smoke run (--quick)", "2"],
        ["uncountable: no reason recorded", "1"],
    ]


def test_repeating_until_a_claim_holds_is_visible():
    first = verdicts(("C1", "FALSIFIED", "x"), ("C2", "HELD", ""))
    text = text_of(
        attempt(number=1, inputs={"param/x": 1}, verdict=first),
        attempt(number=2, verdict=verdicts(("C1", "UNKNOWN", "x"))),
        attempt(number=3, verdict=verdicts(("C1", "HELD", ""))),
    )
    lines = section(text, "Left out")
    assert [line for line in lines if line.startswith("- ")] == [
        "- k3s-v1.36.5 kernel attempt 1 (other inputs): C1 FALSIFIED, now HELD",
        "- k3s-v1.36.5 kernel attempt 1 (other inputs): C2 HELD, now not judged",
        "- k3s-v1.36.5 kernel attempt 2 (same inputs): C1 UNKNOWN, now HELD",
    ]


def test_a_selection_that_mixes_stamps_cannot_be_rendered():
    mixed = Selection(attempts=(attempt(), attempt("v1.37.1", inputs={"param/x": 1})))
    with pytest.raises(ResultsError, match="param/x"):
        render(mixed, STAGES, CLAIMS, None)


def test_a_damaged_verdict_stops_the_summary():
    with pytest.raises(ResultsError, match=r"verdict\.json"):
        text_of(attempt(verdict={"verdicts": [{"claim": "C1"}]}))


VERSIONS = ["v1.34.4", "v1.36.5", "v1.37.1"]
WORDS = st.sampled_from(["", " ", "trailing  ", "a|b", "two\nlines", "x\u2028y"])


@st.composite
def attempt_lists(draw):
    found = []
    for number in range(1, draw(st.integers(0, 6)) + 1):
        countable = draw(st.booleans())
        smoke = draw(st.booleans())
        mark = "COUNTED" if countable and not smoke else "BARRED"
        outcome = draw(st.sampled_from([outcome.value for outcome in Outcome]))
        found.append(
            attempt(
                draw(st.sampled_from(VERSIONS)),
                draw(st.sampled_from(["kernel", "cpu", "gone"])),
                number,
                countable=countable,
                smoke=smoke,
                run_id=mark,
                observation={draw(WORDS): f"{mark} {draw(WORDS)}", "notes": [f"{mark} {draw(WORDS)}"]},
                verdict=verdicts((f"C{number}", outcome, f"{mark} {draw(WORDS)}"), problem=draw(WORDS)),
                environment=Environment(
                    must_agree=DROPLET | {"vcpus": draw(st.sampled_from("24"))}, shown={"kernel": draw(WORDS)}
                ),
            )
        )
    return found


@settings(max_examples=60, deadline=None)
@given(attempt_lists(), st.randoms(use_true_random=False))
def test_order_changes_no_byte_and_what_does_not_count_is_in_no_table(attempts, random):
    text = text_of(*attempts)
    shuffled = list(attempts)
    random.shuffle(shuffled)
    assert text_of(*shuffled) == text
    assert "BARRED" not in text
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert all(line == line.rstrip() for line in text.split("\n"))
    assert "/home/someone" not in text
    lines = text.split("\n")
    for above, blank, bullet in zip(lines, lines[1:], lines[2:], strict=False):
        # Two lists with only a blank line between them would be read as one.
        assert not (above.startswith("- ") and blank == "" and bullet.startswith("- "))
    for table in tables(text.split("\n")):
        assert len({len(row) for row in table}) == 1


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ("", 3),
        ("HELD", 0),
        ("HELD MISSED", 0),
        ("HELD UNKNOWN MISSED", 3),
        ("UNKNOWN FALSIFIED", 1),
        ("FALSIFIED UNKNOWN HELD", 1),
    ],
)
def test_exit_code_precedence(outcomes, code):
    found = [
        Verdict(claim="C", outcome=Outcome(word), reason="", claim_digest="") for word in outcomes.split()
    ]
    assert outcome_exit_code(iter(found)) == code


def test_phases_stand_in_order_with_total_and_share_of_windows():
    phases = {"boot": 12.04, "cpu window": 60, "Settle-window": 15.0, "window setup": 12.96, "windows": 25.0}
    assert phase_table(phases) == [
        ("boot", "12.0 s"),
        ("cpu window", "60.0 s"),
        ("Settle-window", "15.0 s"),
        ("window setup", "13.0 s"),
        ("windows", "25.0 s"),
        ("total", "125.0 s"),
        ("share in windows", "80 %"),
    ]


def test_phases_without_time_have_no_share():
    assert phase_table({}) == []
    assert render_phases({}) == "no phase was timed\n"
    assert phase_table({"window": 0.0})[-1] == ("share in windows", "-")


def test_phase_text_is_aligned():
    assert render_phases({"boot": 2.0, "cpu window": 100.0}) == (
        "boot                2.0 s\n"
        "cpu window        100.0 s\n"
        "total             102.0 s\n"
        "share in windows     98 %\n"
    )


def test_an_earlier_run_that_did_not_tell_ready_from_install_says_so():
    phases = {"install": 8.0, "ready": 22.5}
    assert render_phases(phases, {"install": 31.0}) == (
        "install            8.0 s  (before: 31.0 s with ready)\n"
        "ready             22.5 s\n"
        "total             30.5 s  (before: 31.0 s)\n"
        "share in windows     0 %  (before: 0 %)\n"
    )
    assert "(before: 7.0 s)\n" in render_phases(phases, {"install": 7.0, "ready": 23.0})


@pytest.mark.parametrize("seconds", [-0.1, math.nan, math.inf])
def test_a_time_that_cannot_be_is_refused(seconds):
    with pytest.raises(ResultsError, match="'boot'"):
        phase_table({"boot": seconds})
