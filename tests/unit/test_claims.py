"""CLAIM.md to claims, and claims to verdicts: what may not be said, and what may not be concluded."""

from __future__ import annotations

import copy
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab import claims
from lab.model import Cell, Gate, Outcome, UsageError

CELL = Cell(distro="upstream", version="v1.36.3")
VALID = """\
# Claims

Prose with ```inline``` code.

```yaml
- id: empty-block-scores-1000
  stage: kernel
  title: An empty block is scored as BestEffort
  when: minor >= 34 and minor <= 36
  predict: pods.emp.adj == 1000
  falsify: pods['emp']['adj'] < 900
  source: pkg/kubelet/qos/policy.go
- id: second-claim
  stage: cpu
  title: "Share: under 10 %"
  when: true
  predict: >-
    median(ratios) < 0.10
    and len(ratios) >= 3
  falsify: median(ratios) >= 0.5
```

```text
id: not a claim
```
"""


def claim(predict="x == 1", falsify="x == 2", when="True", **changes):
    base = claims.Claim(id="c", stage="s", title="t", when=when, predict=predict, falsify=falsify, line=1)
    return dataclasses.replace(base, **changes)


def outcome(predict, falsify, view):
    return claims.judge(claim(predict, falsify), CELL, view).outcome


def truth(expression, view=None, cell=CELL):
    """True, False or the reason why neither; through the public door."""
    verdict = claims.judge(claim(expression, "1 == 2"), cell, view or {})
    return {Outcome.HELD: True, Outcome.MISSED: False}.get(verdict.outcome, verdict.reason)


def block(**changes):
    keys = {
        "id": "a-claim",
        "stage": "cpu",
        "title": "T",
        "when": "minor > 3",
        "predict": "x < 1",
        "falsify": "x > 2",
    } | changes
    return "\n".join(f"{key}: {value}" for key, value in keys.items() if value is not None)


def document(body):
    return f"# C\n\n```yaml\n{body}\n```\n"


# --- parsing


def test_claims_of_a_document_in_order_with_lines():
    first, second = claims.parse_claims(VALID)
    assert (first.id, first.stage, first.line) == ("empty-block-scores-1000", "kernel", 6)
    assert first.source == "pkg/kubelet/qos/policy.go"
    assert second.predict == "median(ratios) < 0.10 and len(ratios) >= 3"
    assert (second.when, second.source, second.title) == ("True", None, "Share: under 10 %")


def test_digest_covers_meaning_and_not_prose():
    one = claim()
    assert one.digest == dataclasses.replace(one, title="other", source="s.go", line=9).digest
    for key, value in {"id": "d", "stage": "z", "when": "minor > 1", "predict": "x", "falsify": "y"}.items():
        assert dataclasses.replace(one, **{key: value}).digest != one.digest


def test_refolding_an_expression_keeps_the_digest():
    folded = document(block(predict="|\n  x <\n    1"))
    assert claims.parse_claims(folded)[0].digest == claims.parse_claims(document(block()))[0].digest


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("", 1, "no claim found"),
        ("just prose\n", 1, "no claim found"),
        ("```text\nid: x\n```\n", 1, "no claim found"),
        (document("id: [1"), 4, "not YAML"),
        (document("title: a\nid: b: c"), 5, "not YAML"),
        (document(""), 4, "must be a claim"),
        (document("just words"), 4, "must be a claim"),
        (document("- " + block().replace("\n", "\n  ") + "\n- words"), 10, "must be a claim"),
        ("# C\n```yaml\n" + block(), 2, "never ends"),
        (document(block(colour="red")), 10, "unknown key 'colour'"),
        (document("1: x\n" + block()), 4, "unknown key '1'"),
        (document(block() + "\nstage: cpu"), 10, "stands twice"),
        (document(block(falsify=None)), 4, "missing falsify"),
        (document(block(id="Not_Kebab")), 4, "kebab"),
        (document(block(id="double--dash")), 4, "kebab"),
        (document(block(id="5")), 4, "must be a text"),
        (document(block(predict="''")), 8, "must be a text"),
        (document(block(predict="[x]")), 8, "must be a text"),
        (document(block(predict="true")), 8, "must be a text"),
        (document(block(predict="x <")), 8, "not a valid expression"),
        (document(block(falsify="x = 1")), 9, "not a valid expression"),
        (document(block(when="pods.emp == 1")), 4, "minor, version and gate()"),
        (document(block(when="minor < 46 or pods")), 4, "minor, version and gate()"),
        (document(block(when="minor + 1")), 4, "neither true nor false"),
        (document(block(when="version >= 'v1.36.0'")), 4, "not a number"),
        (document(block(when="gate('A')")), 4, "when of claim a-claim"),
        (document("- " + "\n- ".join([block().replace("\n", "\n  ")] * 2)), 10, "stands on line 4"),
        (document(block(title="!!python/object:os.system x")), 6, "must be a text"),
    ],
)
def test_a_faulty_document_is_one_usage_error_with_its_line(text, line, part):
    with pytest.raises(UsageError) as caught:
        claims.parse_claims(text)
    assert str(caught.value).startswith(f"CLAIM.md line {line}: ")
    assert part in str(caught.value)


@pytest.mark.parametrize(
    "expression",
    [
        "x is None",
        "x == None",
        "2 ** 3",
        "x << 2",
        "pods.values()",
        "'{}'.format(x)",
        "(lambda: True)()",
        "open('f')",
        "sum(x)",
        "f'{x}'",
        "{1: 2}",
        "{1, 2}",
        "(y := 1)",
        "len(obj=x)",
        "gate('A', True, part='kubelet')",
        "gate(**x)",
        "max(*x)",
        "all(a for a, b in x)",
        "all([a async for a in x])",
        "x == 1  # note",
        "x == '\\n'",
        "b'x' == x",
        "x; y",
        "import os",
        "not " * 60 + "x",
        "x or " * 500 + "x",
        "(" * 300 + "x" + ")" * 300,
    ],
)
def test_syntax_that_claims_may_not_use_is_refused(expression):
    body = block(predict="|\n  " + expression)
    with pytest.raises(UsageError, match=r"CLAIM\.md line 8: predict .* is not a valid expression"):
        claims.parse_claims(document(body))


@given(st.text(max_size=60))
def test_any_text_as_expression_parses_or_is_a_usage_error(text):
    escaped = text.encode("unicode_escape").decode().replace('"', '\\"')
    try:
        (parsed,) = claims.parse_claims(document(block(predict=f'"{escaped}"')))
    except UsageError:
        return
    claims.judge(parsed, CELL, {"x": 1})


# --- expressions


def test_subject_names():
    cell = Cell(distro="upstream", version="v1.37.2", gates=(Gate(name="A", enabled=False),))
    assert truth("minor == 37 and version == 'v1.37.2'", {"minor": 1, "version": "hidden"}, cell) is True
    assert truth("gate('A', True) or gate('B', False)", cell=cell) is False
    assert truth("gate('B', True)", cell=cell) is True


def test_gates_know_their_component():
    split = Cell(
        distro="upstream",
        version="v1.37.2",
        gates=(Gate(name="A", enabled=False, component="kubelet"),),
    )
    assert truth("gate('A', True, component='apiserver')", cell=split) is True
    assert truth("gate('A', True, component='kubelet')", cell=split) is False
    assert "differs between apiserver and kubelet" in truth("gate('A', True)", cell=split)
    assert truth("gate('A', False)", cell=split) is False
    assert "component=" in truth("gate('A', True, component='scheduler')", cell=split)
    with pytest.raises(UsageError, match="name a component"):
        claims.applies(claim(when="gate('A', True)"), split)


def test_applies():
    assert claims.applies(claim(when="minor >= 36"), CELL)
    assert not claims.applies(claim(when="minor >= 37"), CELL)


VIEW = {
    "pods": {"emp": {"adj": 1000, "values": 7}, "cpu-ctl": {"adj": 900}},
    "order": ["be", "emp", "ctl"],
    "ratios": [0.3, 0.1, 0.2],
    "reps": [{"ok": True, "r": 1}, {"ok": True, "r": 3}],
    "limit": "max",
}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("pods.emp.adj == 1000 and pods['emp'].adj == 1000", True),
        ("pods['cpu-ctl']['adj'] == 900", True),
        ("pods.emp.values == 7", True),
        ("order == ['be', 'emp', 'ctl']", True),
        ("order == ('be', 'emp', 'ctl')", True),
        ("['be', 'emp'] == order[:2] and order[-1] == 'ctl'", True),
        ("order != ['be']", True),
        ("'emp' in order and 'x' not in order", True),
        ("'emp' in pods", True),
        ("'ma' in limit", True),
        ("limit == 100", False),
        ("sorted(ratios) == [0.1, 0.2, 0.3] and list(order) == order", True),
        ("median(ratios) == 0.2 and median([1, 2]) == 1.5", True),
        ("min(ratios) == 0.1 and max(1, 2) == 2 and abs(-3) == 3 and round(2.26, 1) == 2.3", True),
        ("len(order) == 3 and len(pods) == 2", True),
        ("all(rep.ok for rep in reps) and not any(rep.r > 3 for rep in reps)", True),
        ("all(pods[name].adj > 899 for name in pods)", True),
        ("any(rep.r == 2 for rep in reps if rep.ok)", False),
        ("within(0.1, 0.1, 0.2) and within(0.2, 0.1, 0.2)", True),
        ("within(0.21, 0.1, 0.2)", False),
        ("same(reps[0], {}) if False else same(order, order)", None),
        ("same(reps[0].ok, reps[1].ok)", True),
        ("same(pods.emp, pods['cpu-ctl'])", False),
        ("7 // 2 == 3 and 7 % 4 == 3 and 3 / 2 == 1.5 and -1 < +1 and 2 * 3 - 1 + 1 == 6", True),
        ("1 < 2 < 3", True),
        ("(pods.emp.adj if minor > 40 else 5) == 5", True),
        ("any([])", False),
    ],
)
def test_what_an_expression_gives(expression, expected):
    if expected is None:
        with pytest.raises(UsageError):
            claims.parse_claims(document(block(predict=f'"{expression}"')))
    else:
        assert truth(expression, VIEW) is expected


@pytest.mark.parametrize(
    ("expression", "part"),
    [
        ("pods.emp.weight == 1", "pods.emp.weight was not measured"),
        ("pods['emp']['weight'] == 1", "pods.emp.weight was not measured"),
        ("pods['x-y'].adj == 1", "pods['x-y'] was not measured"),
        ("'x-y' in pods", "pods['x-y'] was not measured"),
        ("'x-y' not in pods", "pods['x-y'] was not measured"),
        ("order[3] == 'x'", "order[3] was not measured"),
        ("order[-4] == 'x'", "order[-4] was not measured"),
        ("nothing == 1", "nothing was not measured"),
        ("len == 3", "len was not measured"),
        ("pods.emp.adj.x == 1", "no record"),
        ("order.count == 1", "TypeError"),
        ("pods.emp.adj", "neither true nor false"),
        ("pods", "neither true nor false"),
        ("pods.emp.adj / 0 == 1", "ZeroDivisionError"),
        ("limit > 3", "'max' is not a number"),
        ("order > 3", "is not a number"),
        ("limit * 3 == 'x'", "is not a number"),
        ("True + True == 2", "is not a number"),
        ("all([])", "proves nothing"),
        ("all(pods)", "TypeError"),
        ("any(rep.r for rep in reps)", "TypeError"),
        ("median([]) == 0", "median"),
        ("median(order) == 0", "is not a number"),
        ("within(1, 3, 2)", "the wrong way round"),
        ("min([]) == 0", "ValueError"),
        ("max(reps) == 0", "TypeError"),
        ("pods[[1]] == 0", "TypeError"),
        ("within(1)", "TypeError"),
        ("'%99999999d' % 1 == 'x'", "is not a number"),
        ("len([a for a in version for b in version for c in version for d in version for e in version]) > 1",
         "IterableTooLong"),
    ],
)  # fmt: skip
def test_what_cannot_be_decided_is_unknown_with_the_reason(expression, part):
    for predict, falsify in ((expression, "1 == 2"), ("1 == 1", expression)):
        verdict = claims.judge(claim(predict, falsify), CELL, VIEW)
        assert verdict.outcome is Outcome.UNKNOWN
        assert part in verdict.reason


@pytest.mark.parametrize("hole", [None, float("nan"), float("inf")])
@pytest.mark.parametrize(
    "expression",
    [
        "a.b == 1",
        "a['b'] != 1",
        "a.list[1] != 1",
        "a.list != [1]",
        "[1] != a.list",
        "not same(a.list, 1)",
        "a.list[0:1] != [5]",
        "5 not in a.list",
        "len(a.list) == 2",
        "len(a) == 2",
        "any(x == 0 for x in a.list)",
        "not any(x == 5 for x in a.list)",
        "not any(k == 'z' for k in a)",
        "max(a.list) >= 0",
        "sorted(a.list) != []",
        "list(a.list) != []",
        "median(a.list) >= 0",
        "a != 1",
        "[a] != 1",
        "[a.list, 1] != 2",
        "deep != 1",
        "'b' in a",
        "not a.b",
        "(1 if a.b else 0) == 0",
        "within(a.b, 0, 1) or 1 == 1",
    ],
)
def test_every_way_of_touching_a_hole_is_unknown(expression, hole):
    view = {"a": {"b": hole, "list": [0, hole]}, "deep": [[{"x": [hole]}]]}
    assert outcome(expression, "1 == 2", view) is Outcome.UNKNOWN
    assert outcome("1 == 1", expression, view) is Outcome.UNKNOWN


def test_short_circuit_is_pythons():
    view = {"yes": True, "no": False, "hole": None}
    assert truth("yes or hole", view) is True
    assert truth("no and hole", view) is False
    assert "hole" in truth("hole or yes", view)
    assert "hole" in truth("hole and no", view)
    assert truth("1 > 2 > hole", view) is False


def test_a_type_that_json_lacks_is_unknown():
    assert "type set" in truth("x == 1", {"x": {1}})


# --- verdicts


@pytest.mark.parametrize(
    ("x", "expected"),
    [(1, Outcome.HELD), (5, Outcome.MISSED), (9, Outcome.FALSIFIED), (None, Outcome.UNKNOWN)],
)
def test_the_four_outcomes(x, expected):
    verdict = claims.judge(claim("x < 3", "x > 7"), CELL, {"x": x})
    assert verdict.outcome is expected
    assert (verdict.claim, verdict.claim_digest) == ("c", claim("x < 3", "x > 7").digest)


def test_the_articles_cpu_prediction_was_missed_and_not_falsified():
    cpu = claim("median(ratios) < 0.10", "median(ratios) >= 0.50")
    verdict = claims.judge(cpu, CELL, {"ratios": [0.106, 0.143, 0.12]})
    assert verdict.outcome is Outcome.MISSED
    assert verdict.reason.startswith("predicted median(ratios) < 0.10; found ratios[0]=0.106, ")


def test_reasons_quote_expression_and_values():
    verdict = claims.judge(claim("a.x == 1", "a.x > 7 and minor == 36"), CELL, {"a": {"x": 9, "y": 3}})
    assert verdict.reason == "falsified by a.x > 7 and minor == 36; found a.x=9, minor=36"
    assert claims.judge(claim("a.x == 9", "a.x > 9"), CELL, {"a": {"x": 9}}).reason == "as predicted; found a.x=9"


def test_long_values_are_cut_in_reasons():
    view = {"names": ["y" * 500] * 400, "x": [1] * 50}
    reason = claims.judge(claim("names == [] or all(n == 0 for n in x)", "1 == 2"), CELL, view).reason
    assert reason.endswith(", …")
    assert len(reason) < 400


def test_a_claim_that_contradicts_itself_is_unknown():
    verdict = claims.judge(claim("x > 1", "x > 2"), CELL, {"x": 3})
    assert (verdict.outcome, verdict.reason) == (Outcome.UNKNOWN, "claim contradicts itself")


def test_falsifier_decides_alone_when_the_prediction_is_open():
    assert outcome("hole == 1", "x > 2", {"x": 3}) is Outcome.FALSIFIED
    assert outcome("hole == 1", "x > 2", {"x": 1}) is Outcome.UNKNOWN
    assert outcome("x == 1", "hole == 2", {"x": 1}) is Outcome.UNKNOWN
    assert outcome("x == 9", "hole == 2", {"x": 1}) is Outcome.UNKNOWN


def test_no_record_is_unknown_with_the_callers_problem():
    assert claims.judge(claim(), CELL, None, "text cut short").reason == "text cut short"
    assert claims.judge(claim(), CELL, None).outcome is Outcome.UNKNOWN
    assert claims.judge(claim(), CELL, None).reason


NAMES = st.sampled_from(["a", "b", "c-d"])
LEAVES = st.integers(-3, 3) | st.booleans() | st.text(max_size=3) | st.floats(allow_nan=False, allow_infinity=False)
VIEWS = st.dictionaries(
    NAMES,
    st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner), max_leaves=6),
    max_size=3,
)


def leaf_paths(value, path=""):
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        here = f"{path}[{key!r}]" if path else key
        if isinstance(inner, (dict, list)):
            yield from leaf_paths(inner, here)
        else:
            yield here


def dig(value, path, *, replace=None, remove=False):
    keys = [part.rstrip("]") for part in path.split("[")]
    keys = [keys[0], *(int(key) if key.lstrip("-").isdigit() else key[1:-1] for key in keys[1:])]
    for key in keys[:-1]:
        value = value[key]
    if remove:
        del value[keys[-1]]
    else:
        value[keys[-1]] = replace


@given(VIEWS, st.data())
def test_no_view_with_a_hole_holds_a_claim_that_reads_the_hole(view, data):
    paths = [path for path in leaf_paths(view) if not path.startswith("c-d")]
    if not paths:
        return
    path = data.draw(st.sampled_from(paths))
    top = path.split("[")[0]
    whole = data.draw(st.sampled_from([f"{path} == {path}", f"same({top}, {top})", f"{top} != 'zz'"]))
    assert outcome(whole, "1 == 2", view) is Outcome.HELD
    holed = copy.deepcopy(view)
    dig(holed, path, replace=None)
    assert outcome(whole, "1 == 2", holed) is Outcome.UNKNOWN
    assert outcome("1 == 1", f"not ({whole})", holed) is Outcome.UNKNOWN


@given(VIEWS)
def test_a_verdict_is_a_pure_function(view):
    before = copy.deepcopy(view)
    subject = claim("a == b or len(a) > 1", "a != b and b == 3")
    first = claims.judge(subject, CELL, view)
    assert claims.judge(subject, CELL, copy.deepcopy(view)) == first
    assert view == before
