"""What the page does with data that are hostile, missing, secret or changed: it says so, and never links wrongly."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from lab import claim_history
from lab.report import comparability
from lab.secrets import MASK, Secrets
from lab.stages import registry
from lab.store import Store
from tests.page_reader import excerpts, links, make, only, read

HOSTILE = "<script>alert('1')</script>\"&amp;</pre></div>\x00\x1b[31m"
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def selection():
    """The committed attempts that count."""
    return comparability.select(Store(ROOT / "results").attempts())


@pytest.fixture(scope="module")
def claims():
    return claim_history.read(ROOT / "CLAIM.md").claims


def changed(selection, stage, name, edit):
    """One attempt with one raw text edited, read again by its stage; and where the page gets raw texts from."""
    one = only(selection, stage)
    (attempt,) = one.attempts
    raw = attempt.raw()
    after = edit(raw[name])
    assert after != raw[name], "the edit must change something"
    raw[name] = after
    observation = registry.BY_NAME[stage].parse(raw)
    return comparability.Selection(attempts=(dataclasses.replace(attempt, observation=observation),)), lambda each: raw


def page(selection, claims, stage, name, edit):
    edited, raw = changed(selection, stage, name, edit)
    return read(make(edited, claims, raw=raw))


def line_edit(number, old, new):
    """Replace once in one line (from 1)."""

    def edit(text):
        lines = text.split("\n")
        assert old in lines[number - 1]
        lines[number - 1] = lines[number - 1].replace(old, new, 1)
        return "\n".join(lines)

    return edit


# --- a changed raw value changes the page -----------------------------------------------------------------------------


def test_a_changed_weight_is_shown_beside_what_was_expected(selection, claims):
    root = page(selection, claims, "kernel", "cgroups.jsonl", line_edit(7, '"cpu.weight": "4"', '"cpu.weight": "5"'))
    tree = root.by_id("kernel-1-upstream-v1.36.3")
    (wrong,) = [element for element in tree.all("div") if element.attributes.get("class") == "unexplained"]
    assert wrong.text == "cpu.weight5 ≠ expected 4, linear (kubelet)"
    assert "1 values differ from their formulas" in root.text
    ((target, _),) = links(wrong)
    assert '"cpu.weight": "5"' in excerpts(root)[target][1]


@pytest.mark.parametrize(
    ("stage", "name", "old", "new", "table", "shown"),
    [
        ("class", "pods.json", '"qosClass": "Guaranteed"', '"qosClass": "Burstable"', "class-1-matrix", "≠"),
        (
            "class", "pods.json", '\n                "resources": {}',
            '\n                "resources": {"limits": {"cpu": "3"}}', "class-1-matrix", "block limits cpu 3",
        ),
        (
            "quota", "answer-emp-burstable-create.json", '"exit": 1', '"exit": 0', "quota-1-answers",
            "dry run: refused",
        ),
        (
            "quota", "answer-be-create.json", "used: pods=0", "used: pods=7", "quota-1-words", "used: pods=7",
        ),
        (
            "eviction", "1-hog.jsonl", '"mem_available_kib": 2984692', '"mem_available_kib": 1024000',
            "eviction-1-upstream-v1.36.3-1-samples", "1000",
        ),
        (
            "eviction", "1-kubelet.log", 'available="1474608Ki"', 'available="1024Ki"',
            "eviction-1-upstream-v1.36.3-1-events", "1.0",
        ),
    ],
)  # fmt: skip
def test_a_changed_raw_value_changes_what_is_shown(selection, claims, stage, name, old, new, table, shown):
    before = read(make(only(selection, stage), claims)).by_id(table).text
    after = page(selection, claims, stage, name, lambda text: text.replace(old, new)).by_id(table).text
    assert after != before
    assert shown in after


def test_the_charts_follow_the_raw_values(selection, claims):
    key = "eviction-1-upstream-v1.36.3-1-chart"

    def lines(root):
        return [path.attributes["d"] for path in root.by_id(key).all("path") if "line" in path.attributes["class"]]

    before = lines(read(make(only(selection, "eviction"), claims)))
    after = lines(page(selection, claims, "eviction", "1-hog.jsonl", lambda t: t.replace("1034740", "1734740", 1)))
    assert len(before) == len(after) == 3 + 5
    assert [one != other for one, other in zip(before, after, strict=True)] == [True] + [False] * 7


# --- no link to a wrong line ------------------------------------------------------------------------------------------


def test_a_value_whose_line_is_gone_is_shown_without_a_link(selection, claims):
    one = only(selection, "kernel")

    def without_levels(attempt):
        return attempt.raw() | {"cgroups.jsonl": '{"kind": "start"}\n'}

    root = read(make(one, claims, raw=without_levels))
    tree = root.by_id("kernel-1-upstream-v1.36.3")
    assert [value.text.split(" ")[0] for value in tree.all("dd")][:1] == ["79"]
    assert not tree.all("a")


def test_a_raw_text_that_says_something_else_than_the_observation_is_not_linked(selection, claims):
    one = only(selection, "kernel")

    def altered(attempt):
        texts = attempt.raw()
        return texts | {"cgroups.jsonl": texts["cgroups.jsonl"].replace('"cpu.weight": "17"', '"cpu.weight": "18"')}

    values = read(make(one, claims, raw=altered)).by_id("kernel-1-upstream-v1.36.3").all("dd")
    of_17 = [value for value in values if value.text.startswith("17 ")]
    assert len(of_17) == 2
    assert not any(value.all("a") for value in of_17)
    assert all(value.all("a") for value in values if not value.text.startswith("17 "))


def test_cores_that_the_samples_do_not_give_are_not_linked(selection, claims):
    one = only(selection, "cpu", "v1.34.4")

    def altered(attempt):
        texts = attempt.raw()
        name = "window-1-cpu-ctl-1.jsonl"
        return texts | {name: texts[name].replace('"target-container": 5660692', '"target-container": 5560692')}

    (first, *others) = read(make(one, claims, raw=altered)).by_id("cpu-1-windows").all("tbody")[0].all("tr")
    assert (first.all("td")[0].text, first.all("td")[0].all("a")) == ("0.564", [])
    assert all(row.all("td")[0].all("a") for row in others)


# --- hostile and secret texts -----------------------------------------------------------------------------------------


def test_what_a_node_says_is_never_markup(selection, claims):
    pod = json.dumps({"exit": 1, "stderr": HOSTILE, "stdout": ""})
    root = page(selection, claims, "quota", "answer-be-create.json", lambda text: pod)
    assert not root.all("script")
    shown = HOSTILE.replace("\x00", "�").replace("\x1b", "�")
    words = root.by_id("quota-1-words").text
    assert shown in words
    (excerpt,) = [text for label, text in excerpts(root).values() if "answer-be-create" in label]
    assert "<script>" in excerpt


def test_names_of_pods_and_problems_are_never_markup(selection, claims):
    (attempt,) = only(selection, "class").attempts
    observation = json.loads(json.dumps(attempt.observation).replace("EMPTY_BLOCK_SHADOWS", "x"))
    observation["pods"]["be"]["status_class"] = HOSTILE
    observation["pods"]["be"]["cgroup_path"] = f"/{HOSTILE}/pod"
    verdict = json.loads(json.dumps(attempt.verdict)) | {"problem": HOSTILE}
    verdict["verdicts"][0]["reason"] = HOSTILE
    hostile = dataclasses.replace(attempt, observation=observation, verdict=verdict)
    root = read(make(comparability.Selection(attempts=(hostile,)), claims, notes=HOSTILE))
    assert not root.all("script")
    assert root.text.count("<script>alert('1')</script>") >= 4


def test_a_chart_is_never_markup(selection, claims):
    (attempt,) = only(selection, "eviction").attempts
    label = "x\"><script>alert(1)</script>"
    cell = dataclasses.replace(attempt.cell, version="v1.36.3", distro=label)
    other = dataclasses.replace(only(selection, "eviction", "v1.35.4").attempts[0])
    two = comparability.Selection(attempts=(dataclasses.replace(attempt, cell=cell), other))
    root = read(make(two, claims))
    assert not root.all("script")
    titles = [title.text for title in root.all("title")]
    assert any("<script>" in title for title in titles), "both distributions stand in the labels"


def test_secrets_are_masked_in_every_place(selection, claims):
    secrets = Secrets()
    secrets.add("s3cr3t<&>token")

    def edit(text):
        said = json.loads(text)
        return json.dumps(said | {"stderr": said["stderr"] + "s3cr3t<&>token"})

    edited, raw = changed(selection, "quota", "answer-be-create.json", edit)
    text = make(edited, claims, raw=raw, mask=secrets.mask, notes="s3cr3t<&>token")
    assert "s3cr3t" not in text
    assert text.count(MASK) >= 3


# --- missing ----------------------------------------------------------------------------------------------------------


def test_a_stage_that_has_not_run_is_named_and_has_no_picture(selection, claims):
    root = read(make(only(selection, "class"), claims))
    for name in registry.BY_NAME:
        heading = root.by_id(f"stage-{name}")
        (section,) = [s for s in root.all("section") if s.attributes["aria-labelledby"] == heading.attributes["id"]]
        is_empty = "Not run: no attempt counts, so there is no picture." in section.text
        assert is_empty == (name != "class")
        assert bool(section.all("table", "svg", "figure")) == (name == "class")


def test_a_version_without_an_attempt_is_named(selection, claims):
    both = (*only(selection, "class").attempts, *only(selection, "cpu", "v1.34.4").attempts)
    text = read(make(comparability.Selection(attempts=both), claims)).text
    assert "v1.36.3: not run" in text
    assert "v1.34.4: not run" in text


def test_an_attempt_without_an_observation_says_why(selection, claims):
    (attempt,) = only(selection, "cpu", "v1.34.4").attempts
    blank = dataclasses.replace(
        attempt, observation=None, verdict={**attempt.verdict, "problem": "the node went away", "verdicts": []}
    )
    root = read(make(comparability.Selection(attempts=(blank,)), claims))
    assert "v1.34.4: the node went away" in root.text
    assert not root.all("svg")


def test_what_was_not_measured_is_never_a_number(selection, claims):
    (attempt,) = only(selection, "kernel").attempts
    observation = json.loads(json.dumps(attempt.observation))
    observation["pods"]["be"]["pod"]["cpu_weight"] = None
    observation["pods"]["be"]["oom_score_adj"] = None
    gone = dataclasses.replace(attempt, observation=observation)
    tree = read(make(comparability.Selection(attempts=(gone,)), claims)).by_id("kernel-1-upstream-v1.36.3")
    missing = [value for value in tree.all("dd") if "not measured" in value.text]
    assert [value.text for value in missing] == ["not measured expected 1", "not measured expected 1000"]
    assert not any(value.all("a") for value in missing)


def test_windows_that_do_not_count_are_shown_and_give_no_ratio(selection, claims):
    (attempt,) = only(selection, "cpu", "v1.34.4").attempts
    observation = json.loads(json.dumps(attempt.observation))
    observation["windows"][0]["why_not"] = ["steal 3.0%"]
    other = dataclasses.replace(attempt, observation=observation)
    root = read(make(comparability.Selection(attempts=(other,)), claims))
    assert "steal 3.0%" in root.by_id("cpu-1-windows").text
    assert "5 of 6 slots have a window that counts" in root.by_id("cpu-1-ratios").text
    assert "8.7%" not in root.by_id("cpu-1-ratios").text
    svg = root.by_id("cpu-1-chart")
    crosses = [path for path in svg.all("path") if "cross" in path.attributes["class"]]
    assert len(crosses) == 2, "the window, and the legend"
    assert "ratio of medians" not in svg.text


@pytest.mark.parametrize(
    ("name", "said", "charts"),
    [
        ("2-kubelet.log", "No whole order was seen.", ["1-chart", "2-chart", "3-chart"]),
        ("2-hog.jsonl", "No timeline: not collected: hog.jsonl.", ["1-chart", "3-chart"]),
        ("2-pods-before.json", "No timeline: not collected: pods-before.json.", ["1-chart", "3-chart"]),
    ],
)
def test_a_repetition_that_lacks_a_text_says_so(selection, claims, name, said, charts):
    (attempt,) = only(selection, "eviction").attempts
    texts = {key: text for key, text in attempt.raw().items() if key != name}
    observation = registry.BY_NAME["eviction"].parse(texts)
    one = comparability.Selection(attempts=(dataclasses.replace(attempt, observation=observation),))
    root = read(make(one, claims, raw=lambda each: texts))
    assert said in root.text
    assert f"not collected: {name[2:]}" in root.text
    assert [svg.attributes["id"][-7:] for svg in root.all("svg")] == charts
    key = "eviction-1-upstream-v1.36.3-2-chart"
    if "2-chart" in charts:
        assert not [line for line in root.by_id(key).all("line") if "moment" in line.attributes["class"]]


def test_no_result_at_all_is_said(claims):
    root = read(make(comparability.Selection(), claims))
    assert "There is no countable result" in root.text
    assert not root.all("svg", "table")
