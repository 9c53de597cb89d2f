"""Claims as JUnit: outcomes to elements, in the shape that readers of such files expect."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.claims import Claim
from lab.model import Cell, Environment, Gate, Outcome, Stamp, Verdict
from lab.report import junit
from lab.report.comparability import select

# Attributes (required, optional) and children in order with their greatest number, as in junit-10.xsd of the Jenkins
# xUnit plug-in and, where both have it, in JUnit.xsd of Ant; `time` is required by Ant's alone and left out (see docs).
SHAPE: dict[str, tuple[set[str], set[str], tuple[tuple[frozenset[str], int | None], ...]]] = {
    "testsuites": (set(), {"name", "tests", "failures", "errors", "disabled", "time"}, (({"testsuite"}, None),)),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"skipped", "timestamp", "hostname", "id", "package", "time"},
        (({"properties"}, 1), ({"testcase"}, None), ({"system-out"}, 1), ({"system-err"}, 1)),
    ),
    "properties": (set(), set(), (({"property"}, None),)),
    "property": ({"name", "value"}, set(), ()),
    "testcase": (
        {"name", "classname"},
        {"time"},
        (({"skipped", "error", "failure"}, 1), ({"system-out"}, 1), ({"system-err"}, 1)),
    ),
    "skipped": (set(), {"message"}, ()),
    "error": ({"type"}, {"message"}, ()),
    "failure": ({"type"}, {"message"}, ()),
    "system-out": (set(), set(), ()),
}  # type: ignore[assignment]
WITH_TEXT = {"error", "failure", "system-out", "skipped"}
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


def shape_problems(element: ElementTree.Element) -> list[str]:
    """What an element and those in it have against SHAPE."""
    if element.tag not in SHAPE:
        return [f"<{element.tag}> is not known"]
    required, optional, parts = SHAPE[element.tag]
    found = [f"<{element.tag}> lacks {name}" for name in sorted(required - set(element.attrib))]
    found += [f"<{element.tag}> has {name}" for name in sorted(set(element.attrib) - required - optional)]
    if element.tag not in WITH_TEXT and (element.text or "").strip():
        found.append(f"<{element.tag}> has text")
    waiting = [child.tag for child in element]
    for names, most in parts:
        count = 0
        while waiting and waiting[0] in names and (most is None or count < most):
            waiting.pop(0)
            count += 1
    found += [f"<{tag}> is not expected there in <{element.tag}>" for tag in waiting]
    if "timestamp" in element.attrib and not TIMESTAMP.fullmatch(element.attrib["timestamp"]):
        found.append(f"timestamp {element.attrib['timestamp']}")
    for name in ("tests", "failures", "errors", "skipped"):
        if name in element.attrib and not element.attrib[name].isdigit():
            found.append(f"{name}={element.attrib[name]}")
    return found + [problem for child in element for problem in shape_problems(child)]


@dataclass(kw_only=True)
class Record:
    """A stored attempt in memory."""

    cell: Cell
    stage: str
    verdict: dict[str, Any]
    number: int = 1
    stamp: Stamp = field(default_factory=lambda: Stamp(inputs={"stage": "x"}))
    environment: Environment = field(default_factory=lambda: Environment(must_agree={"provider": "qemu"}))
    path: Path = Path("/results")
    run_id: str = "run-1"
    started: str = "2026-11-30T09:06:53.431+00:00"
    smoke: bool = False
    countable: bool = True
    uncountable_reasons: tuple[str, ...] = ()
    observation: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def record(version="v1.36.3", stage="class", gates=(), reason="found it", **outcomes):
    verdicts = [
        Verdict(claim=name.replace("_", "-"), outcome=Outcome(word), reason=reason, claim_digest="0" * 64).as_json()
        for name, word in outcomes.items()
    ]
    return Record(
        cell=Cell(distro="upstream", version=version, gates=gates), stage=stage, verdict={"verdicts": verdicts}
    )


def claim(name, stage="class", when="minor >= 34"):
    return Claim(id=name, stage=stage, title=f"Title of {name}", when=when, predict="True", falsify="False", line=1)


def rendered(records, claims):
    text = junit.render(select(records), claims)
    root = ElementTree.fromstring(text)
    assert shape_problems(root) == []
    return root


def kind_of(root, name):
    [case] = [case for case in root.iter("testcase") if case.get("name") == name]
    return [child.tag for child in case], case


@pytest.mark.parametrize(
    ("word", "tags"),
    [("HELD", ["system-out"]), ("MISSED", ["system-out"]), ("FALSIFIED", ["failure"]), ("UNKNOWN", ["error"])],
)
def test_each_outcome_has_its_element(word, tags):
    root = rendered([record(a=word)], [claim("a")])
    found, case = kind_of(root, "a")

    assert found == tags
    assert case.get("classname") == "upstream-v1.36.3.class"
    assert f"{word}: found it" in (case[0].text or "")
    assert "Title of a" in (case[0].text or "")
    suite = root.find("testsuite")
    assert suite is not None
    counts = [suite.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counts == ["1", str(int(word == "FALSIFIED")), str(int(word == "UNKNOWN")), "0"]
    assert [root.get(name) for name in ("tests", "failures", "errors")] == counts[:3]


def test_what_does_not_apply_and_what_was_not_measured_is_skipped_and_never_passes():
    root = rendered([record(a="HELD")], [claim("a"), claim("later", when="minor >= 37"), claim("cpu", stage="cpu")])

    assert kind_of(root, "later")[0] == ["skipped"]
    assert "does not apply to v1.36.3: minor >= 37" in kind_of(root, "later")[1][0].get("message")
    assert "stage cpu has no counted attempt" in kind_of(root, "cpu")[1][0].get("message")
    assert root.find("testsuite").get("skipped") == "2"


def test_a_claim_that_was_not_judged_where_it_applies_is_an_error():
    root = rendered([record(a="HELD")], [claim("a"), claim("new")])
    found, case = kind_of(root, "new")

    assert found == ["error"]
    assert "lab judge" in case[0].get("message")


def test_a_claim_that_is_gone_still_fails():
    root = rendered([record(a="HELD", old="FALSIFIED")], [claim("a")])
    found, case = kind_of(root, "old")

    assert found == ["failure"]
    assert "not in CLAIM.md" in case[0].text
    assert root.get("failures") == "1"


def test_one_bad_verdict_is_not_hidden_by_a_good_one_on_the_same_claim():
    both = record(a="HELD")
    both.verdict["verdicts"] += record(a="UNKNOWN").verdict["verdicts"]

    assert kind_of(rendered([both], [claim("a")]), "a")[0] == ["error"]


def test_a_suite_for_each_cell_in_the_order_of_versions():
    off = (Gate(name="A", enabled=False),)
    records = [record("v1.37.2", gates=off, a="HELD"), record("v1.34.12", a="HELD"), record("v1.34.4", a="HELD")]

    names = [suite.get("name") for suite in rendered(records, [claim("a")])]

    assert names == ["upstream-v1.34.4", "upstream-v1.34.12", "upstream-v1.37.2+A=false"]


def test_environments_of_one_cell_are_both_named():
    other = record(stage="cpu", b="HELD")
    other.environment = Environment(must_agree={"provider": "ssh"})
    other.started = "2026-11-29T00:00:00.000+00:00"
    suite = rendered([record(a="HELD"), other], [claim("a"), claim("b", stage="cpu")]).find("testsuite")

    values = {entry.get("name"): entry.get("value") for entry in suite.iter("property")}
    assert values["environment.provider"] == "qemu / ssh" or values["environment.provider"] == "ssh / qemu"
    assert suite.get("timestamp") == "2026-11-29T00:00:00"


def test_nothing_stored_is_a_document_without_a_suite():
    root = rendered([], [claim("a")])

    assert (len(root), root.get("tests")) == (0, "0")


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("\x00", r"\x00"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x7f\x85", "\x7f\x85"),
        ("\udc80", r"\udc80"),
        ("\ufffe", r"\ufffe"),
        ("a<b>&\"'é𝒳\ttab", "a<b>&\"'é𝒳\ttab"),
        ("]]>", "]]>"),
    ],
)
def test_what_xml_forbids_is_written_out(given_text, shown):
    root = rendered([record(reason=given_text, a="FALSIFIED")], [claim("a")])

    assert shown in kind_of(root, "a")[1][0].get("message")


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_gives_a_document_that_parsers_read(text):
    document = junit.render(select([record(reason=text, a="MISSED")]), [claim("a")])

    assert shape_problems(ElementTree.fromstring(document.encode())) == []


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ('<testsuites><testsuite name="a" tests="1" failures="0"/></testsuites>', "<testsuite> lacks errors"),
        ('<testcase name="a" classname="b"><failure type="x"/><error type="x"/></testcase>', "<error> is not expected"),
        ('<testcase name="a" classname="b" colour="red"/>', "<testcase> has colour"),
        ('<testsuites><testcase name="a" classname="b"/></testsuites>', "<testcase> is not expected"),
        ("<report/>", "<report> is not known"),
    ],
)
def test_the_shape_refuses_what_is_not_junit(document, problem):
    assert problem in "\n".join(shape_problems(ElementTree.fromstring(document)))
