"""The page of the committed results, taken apart: form, links, evidence, safety, and what happens when data change."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path

import pytest

from lab import claim_history
from lab.report import comparability
from lab.stages import registry
from lab.store import Store
from tests.page_reader import excerpts, links, make, read, rows

ROOT = Path(__file__).resolve().parent.parent.parent
MIB = 1 << 20


@pytest.fixture(scope="module")
def selection():
    """The committed attempts that count."""
    return comparability.select(Store(ROOT / "results").attempts())


@pytest.fixture(scope="module")
def claims():
    return claim_history.read(ROOT / "CLAIM.md").claims


@pytest.fixture(scope="module")
def text(selection, claims):
    return make(selection, claims)


@pytest.fixture(scope="module")
def root(text):
    return read(text)


# --- form -------------------------------------------------------------------------------------------------------------


def test_it_is_whole_and_has_what_a_reader_of_screens_needs(root):
    (html,) = root.all("html")
    assert html.attributes["lang"] == "en"
    assert root.all("title")[0].text == "Results of node lab"
    assert [meta.attributes["name"] for meta in root.all("meta") if "name" in meta.attributes][:1] == ["viewport"]
    skip = root.all("body")[0].children[0]
    assert (skip.attributes["class"], skip.attributes["href"]) == ("skip", "#verdicts")
    levels = [int(element.tag[1]) for element in root.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels)), "no level left out"
    for table in root.all("table"):
        assert table.children[0].tag == "caption"
        assert table.children[0].text
        assert all(cell.attributes["scope"] in ("col", "row") for cell in table.all("th"))
    for svg in root.all("svg"):
        title, description = svg.children[:2]
        assert (title.tag, description.tag) == ("title", "desc")
        assert title.text
        assert description.text
        named = {title.attributes["id"], description.attributes["id"]}
        assert set(svg.attributes["aria-labelledby"].split()) == named
    for element in root.all("div"):
        if element.attributes.get("class") == "scroll":
            assert element.attributes["tabindex"] == "0", "a keyboard must be able to scroll it"
            assert element.attributes["aria-label"]


def test_the_verdicts_come_first_with_the_stages_in_their_order(root):
    assert [element.attributes["id"] for element in root.all("h2")] == [
        "verdicts",
        *(f"stage-{name}" for name in registry.BY_NAME),
        "left-out-title",
        "raw",
    ]


def test_nothing_comes_from_elsewhere(text, root):
    assert not root.all("script", "link", "img", "iframe", "object", "embed", "base", "form", "use")
    for element in root.all():
        for name, value in element.attributes.items():
            assert not name.startswith("on"), f"{element.tag} {name}"
            if name in ("href", "src", "action", "data", "poster", "srcset", "xlink:href"):
                assert re.fullmatch(r"#[A-Za-z0-9.-]+", value), value
    (style,) = root.all("style")
    assert "url(" not in style.text
    assert "@import" not in style.text
    assert "@font-face" not in style.text
    assert "https://" not in text.split('id="raw"')[0].replace("https://127.0.0.1", "")


def test_every_link_has_its_target_and_every_id_is_one(root):
    ids = [element.attributes["id"] for element in root.all() if "id" in element.attributes]
    assert len(set(ids)) == len(ids)
    targets = {target for target, _ in links(root)}
    assert targets <= set(ids)
    assert set(excerpts(root)) <= targets, "every raw line is one that something links to"


def test_two_makings_give_the_same_bytes_whatever_the_order_of_the_attempts(selection, claims, text):
    other = dataclasses.replace(selection, attempts=tuple(reversed(selection.attempts)))
    assert make(other, claims) == text
    assert text.endswith("</html>\n")


# --- evidence ---------------------------------------------------------------------------------------------------------


def test_every_raw_line_is_the_line_that_its_label_says(root, selection):
    raws = {}
    for attempt in selection.attempts:
        folder = f"{attempt.cell.name}/{attempt.stage}/{attempt.number:04d}/raw"
        raws |= {f"{folder}/{name}": text.split("\n") for name, text in attempt.raw().items()}
    found = excerpts(root)
    assert len(found) > 1000
    for label, text in found.values():
        place, _, numbers = label.rpartition(":")
        first, _, last = numbers.partition("-")
        lines = "\n".join(raws[place][int(first) - 1 : int(last or first)])
        if "characters …" in text:
            for piece in re.split(r"… [\d,]+ characters …", text):
                assert piece in lines
        else:
            assert text == lines


def test_class_and_kernel_numbers_stand_in_the_lines_that_they_link_to(root):
    raw = excerpts(root)
    checked = 0
    for key in ("class-1-matrix", *(e.attributes["id"] for e in root.all("figure") if "id" in e.attributes)):
        for target, shown in links(root.by_id(key)):
            value = shown.removeprefix("in ").removeprefix("block ")
            pieces = re.findall(r"[\w.{}-]+", value) if "requests" in value else [value]
            for piece in pieces:
                if piece not in ("requests", "limits", "cpu", "memory"):
                    assert piece in raw[target][1], (shown, raw[target])
            checked += 1
    assert checked > 300


def test_every_value_of_the_tree_is_linked(root):
    for figure in root.all("figure"):
        if figure.attributes.get("class") == "tree":
            for value in figure.all("dd"):
                assert len(value.all("a")) == 1, value.text


def test_the_samples_of_a_repetition_are_those_of_their_lines(root):
    raw = excerpts(root)
    table = root.by_id("eviction-1-upstream-v1.36.3-1-samples")
    titles = [cell.text for cell in table.all("thead")[0].all("th")]
    assert titles[:3] == ["seconds", "MemAvailable", "hog (RSS)"]
    lines = rows(table)
    assert len(lines) > 30
    for cells in lines:
        (target,) = {target for cell in cells for target, _ in links(cell)}
        sample = json.loads(raw[target][1])
        assert cells[1].text == f"{sample['mem_available_kib'] / 1024:.0f}"
        assert cells[2].text == f"{sample['rss_kib'] / 1024:.0f}"
        for title, cell in zip(titles[3:], cells[3:], strict=True):
            seen = sample["pods"][f"evict-{title}"]
            request = {"be": 0}.get(title, 256)
            used = None if seen is None else (seen["current"] - seen["inactive_file"]) / MIB - request
            assert cell.text == ("gone" if used is None else f"{used:.1f}")


def test_an_eviction_links_to_the_kubelets_own_words(root):
    raw = excerpts(root)
    said = {"ranks": "pods ranked for eviction", "begins": "attempting to reclaim", "refuses": "cannot evict a"}
    found = set()
    for table in root.all("table"):
        if table.attributes["id"].endswith("-events"):
            for cells in rows(table):
                ((target, words),) = links(cells[1])
                line = raw[target][1]
                kind = words.split()[0]
                found.add(kind)
                if kind == "evicted":
                    assert "is evicted successfully" in line or "successfully cleaned up" in line
                    assert f"evict-{words.split()[1]}" in line
                elif kind == "ranks":
                    places = [line.index(f"/{prefix}{name}\"") for name in words.removeprefix("ranks ").split(" > ")
                              for prefix in ("evict-", "") if f"/{prefix}{name}\"" in line]  # fmt: skip
                    assert places == sorted(places)
                    assert len(places) == len(words.split(" > "))
                else:
                    assert said[kind] in line
                figure = links(cells[2])
                if figure:
                    kib = int(re.search(r'signal="memory.available".*?available="(\d+)Ki"', raw[figure[0][0]][1])[1])
                    assert figure[0][1] == f"{kib / 1024:.1f}"
    assert found >= {"evicted", "ranks", "begins"}


def test_cores_follow_from_the_two_lines_that_they_link_to(root):
    raw = excerpts(root)
    lines = rows(root.by_id("cpu-1-windows"))
    assert len(lines) >= 12
    for cells in lines:
        for cell, name in zip(cells[1:4], ("target-container", "neighbour-pod", "system"), strict=True):
            first, last = (json.loads(raw[target][1]) for target, _ in links(cell))
            used = (last["usage_usec"][name] - first["usage_usec"][name]) / 1e6 / (last["mono"] - first["mono"])
            assert float(links(cell)[0][1]) == pytest.approx(used, abs=6e-4)


def test_the_chart_shows_every_window_of_the_table(root):
    svg = root.by_id("cpu-1-chart")
    marks = [a for a in svg.all("a") if a.all("circle", "path")]
    assert len(marks) == 2 * len(rows(root.by_id("cpu-1-windows"))), "each window has a target and a neighbour"
    assert {target for target, _ in links(svg)} <= set(excerpts(root))


def test_quota_answers_link_to_the_exit_status(root):
    raw = excerpts(root)
    for target, answer in links(root.by_id("quota-1-answers")):
        assert json.loads(raw[target][1])["exit"] == {"admitted": 0, "refused": 1}[answer]
    for target, words in links(root.by_id("quota-1-words")):
        said = json.loads(raw[target][1])
        assert words == " ".join((said["stderr"] or said["stdout"]).split())


def test_computed_numbers_lead_to_the_table_that_they_are_computed_from(root):
    targets = {target for target, _ in links(root.by_id("cpu-1-ratios"))}
    assert targets == {"cpu-1-windows"}


# --- statistics -------------------------------------------------------------------------------------------------------


def test_no_test_is_claimed_of_three_against_three(root):
    ratios = root.by_id("cpu-1-ratios").text
    assert "n too small for a test (3 v 3 cannot go below p = 0.10)" in ratios
    assert "p = 0.1," not in ratios
    assert "95 % interval 7.5% to 9.3%" in ratios
    assert "came in 3 of 3 repetitions exactly" in root.text
    assert "once in 120 repetitions" in root.text
    assert "once in 1,728,000" in root.text
