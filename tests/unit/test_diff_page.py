"""`lab diff --html`: the page shows what the text shows, loads nothing, and nothing of a node becomes markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from lab.cli.diff import side
from lab.report import diff_page
from lab.report.diff import compare
from lab.stages import registry
from tests.projects import ROOT, make_bench

VOID = {"meta", "br"}


class Checked(HTMLParser):
    """Tags must close in order; rows of a table must have as many cells as its head."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def read(text):
    checked = Checked()
    checked.feed(text)
    checked.close()
    assert checked.open == []
    return checked


def found(first, second):
    results = ROOT / "results"
    return compare(side(first, results), side(second, results), tuple(registry.BY_NAME))


@pytest.fixture(scope="module")
def two_versions():
    return found("v1.36.3", "v1.37.2")


def test_it_is_one_file_that_loads_nothing(two_versions):
    text = diff_page.page_text(two_versions, str)
    page = read(text)

    assert {tag for tag, _ in page.tags} & {"script", "img", "link", "iframe", "object", "a", "form"} == set()
    assert not any(name.startswith(("on", "src", "href", "style")) for _, attrs in page.tags for name in attrs)
    assert re.search(r"https?:|url\(|@import", text) is None
    assert ("meta", {"http-equiv": "Content-Security-Policy",
                     "content": "default-src 'none'; style-src 'unsafe-inline'"}) in page.tags  # fmt: skip
    assert text.endswith("</html>\n")


def test_it_shows_the_values_and_marks_what_differs(two_versions):
    text = diff_page.page_text(two_versions, str)

    assert re.search(r'<tr class="differs"><th scope="row">emp-burstable class</th><td>BestEffort</td>', text)
    assert re.search(r'<tr class="same"><th scope="row">ctl-burstable class</th><td>Burstable</td>', text)
    assert "Stage class: 14 same, 4 differ" in text


def test_changed_leaves_out_what_is_the_same_and_counts_it(two_versions):
    text = diff_page.page_text(two_versions, str, changed=True)

    assert "emp-burstable class" in text
    assert "ctl-burstable class" not in text
    assert 'class="same"' not in text
    assert "Stage class: 14 same, 4 differ" in text


def test_every_row_has_as_many_cells_as_its_table(two_versions):
    for one in (two_versions, found("results", "article")):
        for table in re.findall(r"<table>.*?</table>", diff_page.page_text(one, str), re.DOTALL):
            rows = re.findall(r"<tr.*?</tr>", table, re.DOTALL)
            assert len({len(re.findall(r"<t[hd]\b", row)) for row in rows}) == 1, table[:200]


def test_the_article_has_its_places_and_the_warning():
    text = diff_page.page_text(found("results", "article"), str)

    assert "published in" in text
    assert 'class="warning"' in text
    assert "values that one side does not give are left out" in text


@pytest.mark.parametrize("bad", ["<img src=x onerror=y>", "</title><script>x</script>", "\x00\x1b[31m"])
def test_nothing_that_is_named_becomes_markup(two_versions, bad):
    import dataclasses

    named = dataclasses.replace(two_versions, a=dataclasses.replace(two_versions.a, name=bad, remarks=(bad,)))
    text = diff_page.page_text(named, str)

    assert bad not in text
    assert {tag for tag, _ in read(text).tags} & {"script", "img"} == set()


def test_secrets_are_masked(two_versions):
    text = diff_page.page_text(two_versions, lambda words: words.replace("BestEffort", "***"))

    assert "BestEffort" not in text
    assert "***" in text


def test_the_command_writes_it_and_prints_what_it_prints_without(tmp_path, monkeypatch, capfd):
    bench = make_bench(tmp_path, monkeypatch, capfd, stages=registry.STAGES, claims=(ROOT / "CLAIM.md").read_text())
    words = ["diff", "v1.36.3", "v1.37.2", "--results", str(ROOT / "results"), "--changed"]
    target = tmp_path / "new" / "diff.html"
    ended = bench.lab(*words, "--html", str(target))

    assert ended.code == 0
    assert ended.out == bench.lab(*words).out
    assert read(target.read_text()).tags
    assert bench.lab(*words, "--html", str(tmp_path)).code == 2


def test_all_and_changed_are_opposites(tmp_path, monkeypatch, capfd):
    bench = make_bench(tmp_path, monkeypatch, capfd)
    ended = bench.lab("diff", "article", "article", "--all", "--changed")

    assert ended.code == 2
    assert "opposites" in ended.error
