"""Records, their text forms, and errors with their exit codes."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab import model
from lab.model import (
    Cell,
    Environment,
    Gate,
    LabError,
    Outcome,
    ParseError,
    Stamp,
    UsageError,
    Verdict,
    canonical_json,
    heaviest_code,
    minor_of,
    sha256_json,
    sha256_text,
)

NAMES = st.builds(str.__add__, st.sampled_from("AZaz"), st.text("AZaz09", max_size=8))
GATES = st.builds(Gate, name=NAMES, enabled=st.booleans(), component=st.sampled_from([None, "apiserver", "kubelet"]))
VERSIONS = st.builds(lambda minor, patch: f"v1.{minor}.{patch}", st.integers(0, 99), st.integers(0, 99))
CELLS = st.builds(Cell, distro=st.sampled_from(["upstream", "k3s"]), version=VERSIONS,
                  gates=st.lists(GATES, max_size=3).map(tuple))  # fmt: skip
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


class TestGate:
    @pytest.mark.parametrize(
        ("text", "name", "enabled", "component"),
        [
            ("PodLevelResources=false", "PodLevelResources", False, None),
            ("A=true", "A", True, None),
            ("A1=true@apiserver", "A1", True, "apiserver"),
            ("A=false@kubelet", "A", False, "kubelet"),
        ],
    )
    def test_parse(self, text, name, enabled, component):
        gate = Gate.parse(text)
        assert (gate.name, gate.enabled, gate.component) == (name, enabled, component)
        assert str(gate) == text

    @pytest.mark.parametrize(
        "text",
        [
            "", "A", "A=", "=true", "A=True", "A=1", "A=false@", "A=false@scheduler", "A =true", "A= true", " A=true",
            "A=true ", "A=true\n", "1A=true", "A-B=true", "A=true@kubelet@kubelet", "A=true,B=true",
        ],
    )  # fmt: skip
    def test_anything_else_is_quoted_with_an_example(self, text):
        with pytest.raises(UsageError, match=r"NAME=true or NAME=false.*example: Pod") as caught:
            Gate.parse(text)
        assert repr(text) in str(caught.value)

    @given(GATES)
    def test_text_and_back(self, gate):
        assert Gate.parse(str(gate)) == gate


class TestCell:
    def test_names(self):
        cell = Cell(distro="upstream", version="v1.37.2", gates=(Gate.parse("B=true@kubelet"), Gate.parse("A=false")))
        assert cell.name == "upstream-v1.37.2+A=false+B=true@kubelet"
        assert cell.label == "v1.37.2 A=false B=true@kubelet"
        assert cell.minor == 37
        plain = Cell(distro="k3s", version="v1.36.5+k3s1")
        assert (plain.name, plain.label, plain.minor) == ("k3s-v1.36.5+k3s1", "v1.36.5+k3s1", 36)

    def test_the_order_of_gates_makes_no_other_cell(self):
        gates = (Gate.parse("A=false"), Gate.parse("B=true"))
        one = Cell(distro="upstream", version="v1.37.2", gates=gates)
        other = Cell(distro="upstream", version="v1.37.2", gates=gates[::-1])
        assert one.name == other.name
        assert one.as_json() == other.as_json()

    @pytest.mark.parametrize(
        ("gates", "component", "expected"),
        [
            ([], "kubelet", "default"),
            (["A=false"], "kubelet", False),
            (["A=false"], "apiserver", False),
            (["A=true@apiserver"], "apiserver", True),
            (["A=true@apiserver"], "kubelet", "default"),
            (["B=false"], "kubelet", "default"),
            (["A=true@apiserver", "A=false@kubelet"], "kubelet", False),
        ],
    )
    @pytest.mark.parametrize("default", [True, False])
    def test_what_a_component_was_told(self, gates, component, expected, default):
        cell = Cell(distro="upstream", version="v1.37.2", gates=tuple(Gate.parse(text) for text in gates))
        assert cell.gate("A", component, default) is (default if expected == "default" else expected)

    @given(CELLS)
    def test_json_and_back(self, cell):
        back = Cell.from_json(json.loads(json.dumps(cell.as_json())))
        assert back.name == cell.name
        assert sorted(back.gates, key=str) == sorted(cell.gates, key=str)

    @given(CELLS, CELLS)
    def test_another_cell_has_another_folder(self, one, other):
        assert (one.name == other.name) == (one.as_json() == other.as_json())


class TestVersion:
    @pytest.mark.parametrize(("text", "minor"), [("v1.36.3", 36), ("v1.9.0", 9), ("v1.34.12+k3s1", 34), ("v1.0.0", 0)])
    def test_minor(self, text, minor):
        assert minor_of(text) == minor

    @pytest.mark.parametrize(
        "text",
        [
            "", "1.36.3", "v1.36", "v2.0.0", "v1.36.3-rc.1", "v1.36.x", "v1.36.3+k3s", "v1.36.3+rke2r1", "v1.36.3\n",
            "V1.36.3",
        ],
    )  # fmt: skip
    def test_anything_else_is_quoted(self, text):
        with pytest.raises(UsageError, match=r"is not of the form v1\.36\.3") as caught:
            minor_of(text)
        assert repr(text) in str(caught.value)


class TestErrors:
    def test_every_error_has_the_exit_code_of_its_kind(self):
        assert {
            name: getattr(model, name).exit_code
            for name in ("UsageError", "ResultsError", "NodeError", "TransportError", "CommandError", "WaitTimeout",
                         "LeftBehind", "Interrupted", "ParseError", "Missing")
        } == {
            "UsageError": 2, "ResultsError": 4, "NodeError": 5, "TransportError": 5, "CommandError": 5,
            "WaitTimeout": 5, "LeftBehind": 6, "Interrupted": 130, "ParseError": 3, "Missing": 3,
        }  # fmt: skip

    def test_all_are_lab_errors(self):
        kinds = [kind for kind in vars(model).values() if isinstance(kind, type) and issubclass(kind, Exception)]
        assert len(kinds) >= 11
        assert all(issubclass(kind, LabError) for kind in kinds)

    @pytest.mark.parametrize(("length", "shown"), [(0, 0), (200, 200), (201, 200), (100_000, 200)])
    def test_a_parse_error_quotes_the_text_within_reason(self, length, shown):
        text = str(ParseError("memory.max", "x" * length))
        assert text.startswith("memory.max: 'x" if length else "memory.max: ''")
        assert text.count("x") == shown + 1
        assert ("…" in text) == (length > shown)

    def test_line_ends_stay_visible(self):
        assert str(ParseError("a", "1\n2")) == "a: '1\\n2'"

    @pytest.mark.parametrize(
        ("codes", "heaviest"),
        [
            ([], 0), ([0], 0), ([0, 3], 3), ([3, 1], 1), ([1, 2], 2), ([2, 4], 4), ([4, 5], 5), ([5, 6], 6),
            ([6, 130], 130), ([0, 1, 3, 0], 1), ([5, 3, 1, 0], 5),
        ],
    )  # fmt: skip
    def test_the_heaviest_code_of_several(self, codes, heaviest):
        assert heaviest_code(codes) == heaviest
        assert heaviest_code(reversed(codes)) == heaviest

    def test_a_code_that_nobody_knows(self):
        with pytest.raises(ValueError, match="not in tuple"):
            heaviest_code([0, 7])


class TestJson:
    @given(JSON_VALUES)
    def test_one_text_per_value(self, value):
        text = canonical_json(value)
        assert json.loads(text) == value
        assert canonical_json(json.loads(text)) == text
        assert sha256_json(value) == sha256_text(text)

    def test_order_and_spaces_do_not_count(self):
        assert canonical_json({"b": [1, 2], "a": "ä"}) == '{"a":"ä","b":[1,2]}'

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}])
    def test_no_number_that_json_does_not_have(self, value):
        with pytest.raises(ValueError, match="JSON"):
            canonical_json(value)

    def test_known_digest(self):
        assert sha256_text("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class TestStamp:
    def test_equal_inputs_have_one_digest(self):
        one = Stamp(inputs={"a": 1, "b": {"x": [1], "y": 2}})
        other = Stamp(inputs={"b": {"y": 2, "x": [1]}, "a": 1})
        assert one.digest == other.digest
        assert one.difference(other) == []

    @pytest.mark.parametrize(
        ("one", "other"),
        [({"a": 1}, {"a": 1.0}), ({"a": 1}, {"a": True}), ({"a": 1}, {"a": "1"}), ({"a": None}, {}), ({"a": 0}, {}),
         ({"a": [1, 2]}, {"a": [2, 1]})],
    )  # fmt: skip
    def test_values_that_look_alike_differ_in_both(self, one, other):
        assert Stamp(inputs=one).digest != Stamp(inputs=other).digest
        assert Stamp(inputs=one).difference(Stamp(inputs=other)) == ["a"]

    @given(st.dictionaries(st.text(max_size=3), JSON_VALUES, max_size=4),
           st.dictionaries(st.text(max_size=3), JSON_VALUES, max_size=4))  # fmt: skip
    def test_a_difference_is_named_exactly_when_the_digests_differ(self, one, other):
        first, second = Stamp(inputs=one), Stamp(inputs=other)
        assert (first.digest == second.digest) == (first.difference(second) == [])
        assert first.difference(second) == second.difference(first)


class TestRecords:
    @given(st.text(), st.sampled_from(list(Outcome)), st.text(), st.text())
    def test_verdict_and_back(self, claim, outcome, reason, digest):
        verdict = Verdict(claim=claim, outcome=outcome, reason=reason, claim_digest=digest)
        assert Verdict.from_json(json.loads(json.dumps(verdict.as_json()))) == verdict

    def test_an_outcome_that_nobody_knows(self):
        with pytest.raises(ValueError, match="PASSED"):
            Verdict.from_json({"claim": "a", "outcome": "PASSED", "reason": "", "claim_digest": ""})

    @given(st.dictionaries(st.text(), st.text(), max_size=4), st.dictionaries(st.text(), st.text(), max_size=4))
    def test_environment_and_back(self, must_agree, shown):
        environment = Environment(must_agree=must_agree, shown=shown)
        assert Environment.from_json(json.loads(json.dumps(environment.as_json()))) == environment

    def test_records_cannot_be_changed(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            Gate.parse("A=true").enabled = False  # type: ignore[misc]
