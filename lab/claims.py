"""CLAIM.md as data: what is predicted, what would disprove it, and the verdict on one record.

Pure. ``predict`` and ``falsify`` are expressions over the view of a stage, run by ``simpleeval`` with a short
list of syntax: no method calls, no ``None``, arithmetic and order for numbers alone (as text, v1.34.9 comes
after v1.34.12). A value that is absent or None raises Missing wherever it is touched, also by iterating over or
counting its container, so a comparison can never come out False merely because nothing was measured.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import simpleeval
import yaml

from lab.model import GATED, Cell, Missing, Outcome, UsageError, Verdict, sha256_json

_REQUIRED = ("id", "stage", "title", "when", "predict", "falsify")
_KEYS = (*_REQUIRED, "source")
_EXPRESSIONS = ("when", "predict", "falsify")
_KEBAB = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_OPENING = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^`\s]*)[^`]*")
_MAX_LENGTH, _MAX_DEPTH, _MAX_READS = 2000, 40, 6
_PYTHON_ERRORS = (ArithmeticError, LookupError, RecursionError, TypeError, ValueError)
_ALLOWED_NODES = (
    ast.And, ast.Or, ast.Not, ast.USub, ast.UAdd, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod,
    ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Load, ast.Store, ast.keyword,
    ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.IfExp, ast.Call, ast.Name, ast.Attribute, ast.Slice,
    ast.Subscript, ast.Constant, ast.List, ast.Tuple, ast.ListComp, ast.GeneratorExp, ast.comprehension,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim. ``line`` is the line of CLAIM.md (1 = first) at which its mapping starts."""

    id: str
    stage: str
    title: str
    when: str
    predict: str
    falsify: str
    source: str | None = None
    line: int

    @property
    def digest(self) -> str:
        """sha256 over id, stage and the three expressions; a better title or source keeps it."""
        return sha256_json({key: getattr(self, key) for key in ("id", "stage", *_EXPRESSIONS)})


def parse_claims(text: str) -> tuple[Claim, ...]:
    """Claims of the fenced ``yaml`` blocks of CLAIM.md, in their order.

    A block is a mapping or a list of mappings with the keys id, stage, title, when, predict, falsify and
    optionally source. An expression may be folded over lines. Raises UsageError with the line and the repair.
    """
    claims: dict[str, Claim] = {}
    for first_line, block in _yaml_blocks(text):
        for node in _mappings(block, first_line):
            claim = _claim(node, first_line)
            if claim.id in claims:
                twin = claims[claim.id].line
                raise _fault(claim.line, f"id {claim.id!r} stands on line {twin} already; choose another")
            claims[claim.id] = claim
    if not claims:
        raise _fault(1, "no claim found; write each claim as a mapping in a ```yaml block")
    return tuple(claims.values())


def applies(claim: Claim, cell: Cell) -> bool:
    """Whether the claim is about this cell; UsageError when its ``when`` has no yes-or-no answer here."""
    answer = _evaluate(claim.when, cell, {})
    if answer.value is None:
        what = f"when of claim {claim.id} (it sees minor, version and gate()) fails for {cell.name}: "
        raise _fault(claim.line, what + answer.reason)
    return answer.value


def judge(claim: Claim, cell: Cell, view: Mapping[str, Any] | None, problem: str = "") -> Verdict:
    """Verdict on one record; the caller has asked :func:`applies` before.

    ``view`` None means that there is no readable record, and ``problem`` says why. The cell's ``minor`` and
    ``version`` hide names of the view that are spelt alike. Never raises for what a view holds or lacks.
    """
    outcome, reason = Outcome.UNKNOWN, problem or "there is no record to judge"
    if view is not None:
        predicted, falsified = (_evaluate(text, cell, view) for text in (claim.predict, claim.falsify))
        outcome, reason = _weigh(claim, predicted, falsified)
    return Verdict(claim=claim.id, outcome=outcome, reason=reason, claim_digest=claim.digest)


def _weigh(claim: Claim, predicted: _Answer, falsified: _Answer) -> tuple[Outcome, str]:
    if falsified.value is None:
        return Outcome.UNKNOWN, f"falsifier undecided: {falsified.reason}"
    if falsified.value and predicted.value:
        return Outcome.UNKNOWN, "claim contradicts itself"
    if falsified.value:
        return Outcome.FALSIFIED, f"falsified by {claim.falsify}{falsified.quoted()}"
    if predicted.value is None:
        return Outcome.UNKNOWN, f"prediction undecided: {predicted.reason}"
    if predicted.value:
        return Outcome.HELD, f"as predicted{predicted.quoted()}"
    return Outcome.MISSED, f"predicted {claim.predict}{predicted.quoted()}"


def _fault(line: int, what: str) -> UsageError:
    return UsageError(f"CLAIM.md line {line}: {what}")


def _yaml_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Line of the first content line, and content, of each fenced yaml block (CommonMark's fence rule)."""
    opening: re.Match[str] | None = None
    first_line = 1
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        match = _OPENING.fullmatch(line.rstrip())
        if opening is None:
            opening, first_line = match, number + 1
        elif match is not None and not match[2] and match[1].startswith(opening[1]):
            if opening[2].lower() in ("yaml", "yml"):
                yield first_line, "\n".join(lines[first_line - 1 : number - 1])
            opening = None
    if opening is not None:
        raise _fault(first_line - 1, f"the block opened here never ends; close it with {opening[1]}")


def _mappings(block: str, first_line: int) -> list[yaml.MappingNode]:
    """Mapping nodes of a block. Nodes, not values: they carry lines, and PyYAML would drop a doubled key."""
    try:
        root = yaml.compose(block, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = f"this is not YAML ({getattr(error, 'problem', None) or error}); quote a text that holds ': '"
        raise _fault(first_line + (mark.line if mark else 0), what) from error
    nodes = root.value if isinstance(root, yaml.SequenceNode) else [root]
    for node in nodes:
        if not isinstance(node, yaml.MappingNode):
            line = first_line + (node.start_mark.line if node is not None else 0)
            raise _fault(line, "a yaml block must be a claim or a list of claims; fence other data as text")
    return list(nodes)


def _claim(node: yaml.MappingNode, first_line: int) -> Claim:
    line = first_line + node.start_mark.line
    values: dict[str, str] = {}
    for key_node, value_node in node.value:
        key, at = key_node.value, first_line + key_node.start_mark.line
        if not isinstance(key, str) or key not in _KEYS:
            raise _fault(at, f"unknown key {str(key)[:60]!r}; the keys are {', '.join(_KEYS)}")
        if key in values:
            raise _fault(at, f"key {key!r} stands twice in one claim; keep one")
        values[key] = _scalar(key, value_node, at)
    missing = [key for key in _REQUIRED if key not in values]
    if missing:
        raise _fault(line, f"claim {values.get('id', '?')}: missing {', '.join(missing)}; add it")
    if _KEBAB.fullmatch(values["id"]) is None:
        raise _fault(line, f"id {values['id']!r} is not in kebab-case (example: empty-block-is-burstable)")
    claim = Claim(**values, line=line)
    for minor in range(28, 48):  # a faulty when must show here, with its line, and not hours into a run
        applies(claim, Cell(distro="upstream", version=f"v1.{minor}.0"))
    return claim


def _scalar(key: str, node: yaml.Node, line: int) -> str:
    if key == "when" and node.tag == "tag:yaml.org,2002:bool":
        return str(node.value.lower() in ("true", "yes", "on"))
    is_text = isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:str"
    if not is_text or not node.value.strip():
        raise _fault(line, f"{key} must be a text that is not empty; put it in quotes")
    if key not in _EXPRESSIONS:
        return str(node.value.strip())
    # Joined here, so that folding a long expression differently keeps the digest.
    expression = " ".join(part.strip() for part in node.value.strip().splitlines())
    try:
        _compiled(expression)
    except _BadExpression as error:
        raise _fault(line, f"{key} {expression[:120]!r} is not a valid expression: {error}") from error
    return expression


class _BadExpression(Exception):
    """An expression uses what a claim may not use."""


@functools.lru_cache(maxsize=1024)
def _compiled(expression: str) -> ast.expr:
    """Syntax tree of an expression in which only allowed syntax occurs."""
    if len(expression) > _MAX_LENGTH or "#" in expression or "\\" in expression:
        raise _BadExpression(f"no comment, no backslash and at most {_MAX_LENGTH} characters are allowed")
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _BadExpression(str(error)) from error
    pending: list[tuple[ast.AST, int]] = [(tree, 1)]
    while pending:
        node, depth = pending.pop()
        if depth > _MAX_DEPTH:
            raise _BadExpression("it is nested too deeply")
        _check_node(node)
        pending.extend((child, depth + 1) for child in ast.iter_child_nodes(node))
    return tree


def _check_node(node: ast.AST) -> None:
    if not isinstance(node, _ALLOWED_NODES):
        raise _BadExpression(f"{type(node).__name__} is not allowed")
    if isinstance(node, ast.Constant) and type(node.value) not in (bool, int, float, str):
        raise _BadExpression(f"{node.value!r} is not allowed")
    if isinstance(node, ast.comprehension) and (node.is_async or not isinstance(node.target, ast.Name)):
        raise _BadExpression("a comprehension has one plain name as its target")
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name != "gate" and name not in _FUNCTIONS:
            raise _BadExpression(f"the functions are {', '.join(sorted([*_FUNCTIONS, 'gate']))}")
        if any(name != "gate" or keyword.arg != "component" for keyword in node.keywords):
            raise _BadExpression(f"{name}() has no such named argument")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    value: bool | None  # None: undecided, and reason says why
    reason: str = ""
    reads: Mapping[str, Any]

    def quoted(self) -> str:
        """The values that were read, for a reason: ``; found pods.emp.adj=1000``."""
        shown = [f"{path}={_short(value)}" for path, value in list(self.reads.items())[:_MAX_READS]]
        more = ", …" if len(self.reads) > _MAX_READS else ""
        return f"; found {', '.join(shown)}{more}" if shown else ""


def _evaluate(expression: str, cell: Cell, view: Mapping[str, Any]) -> _Answer:
    reads: dict[str, Any] = {}
    names = _Record("", {**view, "minor": cell.minor, "version": cell.version}, reads)
    gate = functools.partial(_gate, cell, reads)
    try:
        value = _evaluator(names, gate).eval(expression, previously_parsed=_compiled(expression))
    except Missing as error:
        return _Answer(value=None, reason=str(error), reads=reads)
    except (simpleeval.InvalidExpression, _BadExpression, *_PYTHON_ERRORS) as error:
        return _Answer(value=None, reason=f"{expression}: {type(error).__name__}: {error}", reads=reads)
    problem = "" if isinstance(value, bool) else f"{expression} is neither true nor false"
    return _Answer(value=None if problem else value, reason=problem, reads=reads)


def _evaluator(names: _Record, gate: Callable[..., bool]) -> Any:
    evaluator = simpleeval.EvalWithCompoundTypes(operators=dict(_OPERATORS), names=names)
    # The constructor adds list, tuple, dict and set of its own; none of them may stay.
    evaluator.functions = {**_FUNCTIONS, "gate": gate}
    evaluator.nodes = {kind: run for kind, run in evaluator.nodes.items() if kind in _ALLOWED_NODES}
    # The library would try Python attributes first: pods.values would be a method, not the key of that name.
    evaluator.nodes[ast.Attribute] = lambda node: _attribute(evaluator._eval(node.value), node.attr)
    return evaluator


def _attribute(value: Any, name: str) -> Any:
    if not isinstance(value, _Record):
        raise TypeError(f".{name} is asked of {_short(value)}, which is no record")
    return value[name]


class _Record:
    """A mapping or list of the view together with its path; touching a hole in it raises Missing."""

    __slots__ = ("_path", "_raw", "_reads", "is_mapping")

    def __init__(self, path: str, raw: Any, reads: dict[str, Any]) -> None:
        self._path, self._raw, self._reads = path, raw, reads
        self.is_mapping = isinstance(raw, Mapping)

    def _label(self, key: Any) -> str:
        if isinstance(key, str) and key.isidentifier():
            return f"{self._path}.{key}" if self._path else key
        return f"{self._path}[{key!r}]"

    def _child(self, key: Any) -> Any:
        label, value = self._label(key), self._raw[key]
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            raise Missing(f"{label} was not measured: its value is {value}")
        if isinstance(value, (Mapping, list, tuple)):
            return _Record(label, value, self._reads)
        if not isinstance(value, (bool, int, float, str)):
            raise ValueError(f"{label} has the type {type(value).__name__}, which a claim cannot read")
        return value

    def _children(self) -> dict[Any, Any]:
        return {key: self._child(key) for key in (self._raw if self.is_mapping else range(len(self._raw)))}

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return list(self)[key]
        if key not in self._raw if self.is_mapping else not -len(self._raw) <= key < len(self._raw):
            raise Missing(f"{self._label(key)} was not measured: the record has no such value")
        child = self._child(key)
        if not isinstance(child, _Record):
            self._reads[self._label(key)] = child
        return child

    def __iter__(self) -> Iterator[Any]:
        return iter([key if self.is_mapping else self[key] for key in self._children()])

    def __len__(self) -> int:
        self._reads[f"len({self._path})"] = count = len(self._children())
        return count

    def bare(self) -> Any:
        """The plain value, once no hole is anywhere in it."""
        bare = {key: _bare(child) for key, child in self._children().items()}
        self._reads[self._path] = value = bare if self.is_mapping else list(bare.values())
        return value


def _bare(value: Any) -> Any:
    if isinstance(value, _Record):
        return value.bare()
    return [_bare(item) for item in value] if isinstance(value, (list, tuple)) else value


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _gate(cell: Cell, reads: dict[str, Any], name: str, default: bool, component: str | None = None) -> bool:
    parts = GATED if component is None else (component,)
    if not isinstance(default, bool) or component not in (None, *GATED):
        raise TypeError("write gate(name, True or False) or add component='apiserver' or 'kubelet'")
    values = [cell.gate(name, part, default) for part in parts]
    if len(set(values)) > 1:
        raise Missing(f"gate {name} differs between apiserver and kubelet; the claim must name a component")
    reads[f"gate {name}" + (f"@{component}" if component else "")] = values[0]
    return values[0]


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{_short(value)} is not a number")
    return value


def _numeric(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *operands: function(*map(_number, operands))


def _equal(left: Any, right: Any) -> bool:
    return bool(_bare(left) == _bare(right))


def _contains(wanted: Any, container: Any) -> bool:
    # A key that is absent from a mapping was not measured, so the lookup raises rather than saying no.
    if isinstance(container, _Record) and container.is_mapping:
        return container[wanted] is not None
    return _bare(wanted) in _bare(container)


def _any(values: Any) -> bool:
    truths = list(values)
    if not all(isinstance(truth, bool) for truth in truths):
        raise TypeError("all() and any() take comparisons, each true or false")
    return any(truths)


def _all(values: Any) -> bool:
    if not (truths := list(values)):
        raise Missing("all() was given an empty list, which proves nothing")
    return _any(truths) and all(truths)


def _median(values: Any) -> float:
    return float(statistics.median([_number(value) for value in values]))


def _within(value: Any, low: Any, high: Any) -> bool:
    if _number(low) > _number(high):
        raise ValueError(f"within() has its limits {low} and {high} the wrong way round")
    return bool(low <= _number(value) <= high)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "all": _all, "any": _any, "abs": abs, "min": min, "max": max, "len": len, "round": round,
    "sorted": sorted, "list": list, "median": _median, "within": _within, "same": _equal,
}  # fmt: skip
_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    **{kind: _numeric(getattr(operator, name)) for kind, name in {
        ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv",
        ast.Mod: "mod", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.USub: "neg",
        ast.UAdd: "pos"}.items()},
    ast.Not: operator.not_, ast.Eq: _equal, ast.NotEq: lambda left, right: not _equal(left, right),
    ast.In: _contains, ast.NotIn: lambda wanted, container: not _contains(wanted, container),
}  # fmt: skip
