"""Claims as tests: stored verdicts in the JUnit form that continuous integration systems show. Pure.

One ``testsuite`` a cell, one ``testcase`` a claim (``classname`` is cell and stage):

========= =====================================================================================================
HELD      passes
MISSED    passes, and ``system-out`` says that the prediction was wrong: a prediction that misses is not a defect
FALSIFIED ``failure``
UNKNOWN   ``error``: never a pass
no claim  ``skipped``: the claim does not apply to the cell, or its stage has no counted attempt there
========= =====================================================================================================

No duration is written: an attempt serves several claims, and a time that was not measured is not zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

from lab import claims as claim_rules
from lab.claims import Claim
from lab.model import Cell, Outcome, Verdict
from lab.report.comparability import AttemptRecord, Selection, attempt_order, cell_order, verdicts_of
from lab.report.outcomes import SEVERITY

GONE = "the claim is not in CLAIM.md any more"
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, in whatever way it is written (production Char): control characters, lone surrogates."""


def render(selection: Selection, claims: Sequence[Claim]) -> str:
    """The whole document, ending with a newline. ``claims`` in the order of CLAIM.md; the others come last, by id."""
    root = ElementTree.Element("testsuites", name="node lab")
    cells = {attempt.cell.name: attempt.cell for attempt in selection.attempts}
    for cell in sorted(cells.values(), key=cell_order):
        attempts = sorted((one for one in selection.attempts if one.cell.name == cell.name), key=attempt_order)
        root.append(_suite(cell, attempts, claims))
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite(cell: Cell, attempts: Sequence[AttemptRecord], claims: Sequence[Claim]) -> ElementTree.Element:
    cases = [*_known_cases(cell, attempts, claims), *_gone_cases(cell, attempts, {claim.id for claim in claims})]
    counts = {
        "tests": len(cases),
        "failures": sum(case.find("failure") is not None for case in cases),
        "errors": sum(case.find("error") is not None for case in cases),
        "skipped": sum(case.find("skipped") is not None for case in cases),
    }
    # UTC throughout, and the usual schemas allow no time zone here.
    started = min(attempt.started for attempt in attempts)[:19]
    suite = ElementTree.Element(
        "testsuite",
        {"name": legal(cell.name), **{name: str(count) for name, count in counts.items()}, "timestamp": legal(started)},
    )
    suite.append(_properties(cell, attempts))
    suite.extend(cases)
    return suite


def _properties(cell: Cell, attempts: Sequence[AttemptRecord]) -> ElementTree.Element:
    """What was measured, in which environment, from which stamp and attempt."""
    facts = [
        ("distribution", cell.distro),
        ("version", cell.version),
        ("gates", ", ".join(sorted(map(str, cell.gates)))),
    ]
    environments = [attempt.environment.must_agree for attempt in attempts]
    for name in sorted({name for environment in environments for name in environment}):
        # A cell may have stages of several environments; none of them is hidden.
        values = dict.fromkeys(environment.get(name, "not read") for environment in environments)
        facts.append((f"environment.{name}", " / ".join(values)))
    for attempt in attempts:
        facts.append((f"attempt.{attempt.stage}", f"{attempt.number:04d} of run {attempt.run_id}"))
        facts.append((f"stamp.{attempt.stage}", attempt.stamp.digest))
    found = ElementTree.Element("properties")
    for name, value in facts:
        ElementTree.SubElement(found, "property", name=legal(name), value=legal(value))
    return found


def _known_cases(
    cell: Cell, attempts: Sequence[AttemptRecord], claims: Sequence[Claim]
) -> Iterable[ElementTree.Element]:
    by_stage = {attempt.stage: attempt for attempt in attempts}
    for claim in claims:
        case = _case(cell, claim.stage, claim.id)
        attempt = by_stage.get(claim.stage)
        verdict = None if attempt is None else _heaviest(claim.id, verdicts_of(attempt))
        if verdict is not None:
            _judged(case, verdict, claim.title)
        elif not claim_rules.applies(claim, cell):
            _add(case, "skipped", f"does not apply to {cell.label}: {claim.when}")
        elif attempt is None:
            _add(case, "skipped", f"stage {claim.stage} has no counted attempt for {cell.label}")
        else:
            _add(case, "error", f"UNKNOWN: attempt {attempt.number} was not judged on this claim; run `lab judge`")
        yield case


def _gone_cases(cell: Cell, attempts: Sequence[AttemptRecord], known: set[str]) -> Iterable[ElementTree.Element]:
    """Verdicts on claims that CLAIM.md no longer has: stored, so shown."""
    for attempt in attempts:
        verdicts = verdicts_of(attempt)
        for name in sorted({verdict.claim for verdict in verdicts} - known):
            case = _case(cell, attempt.stage, name)
            verdict = _heaviest(name, verdicts)
            if verdict is not None:
                _judged(case, verdict, GONE)
            yield case


def _heaviest(claim: str, verdicts: Iterable[Verdict]) -> Verdict | None:
    mine = [verdict for verdict in verdicts if verdict.claim == claim]
    return min(mine, key=lambda verdict: SEVERITY.index(verdict.outcome), default=None)


def _case(cell: Cell, stage: str, claim: str) -> ElementTree.Element:
    return ElementTree.Element("testcase", classname=legal(f"{cell.name}.{stage}"), name=legal(claim))


def _judged(case: ElementTree.Element, verdict: Verdict, title: str) -> None:
    text = f"{verdict.outcome.value}: {verdict.reason}"
    if verdict.outcome is Outcome.FALSIFIED:
        _add(case, "failure", text, title)
    elif verdict.outcome is Outcome.UNKNOWN:
        _add(case, "error", text, title)
    else:
        ElementTree.SubElement(case, "system-out").text = legal(f"{title}\n{text}")


def _add(case: ElementTree.Element, kind: str, message: str, title: str | None = None) -> None:
    """A result element; ``type`` (the outcome) only where the schemas have it."""
    found = ElementTree.SubElement(case, kind, message=legal(message))
    if title is not None:
        found.set("type", message.partition(":")[0])
        found.text = legal(f"{title}\n{message}")
    elif kind == "error":
        found.set("type", Outcome.UNKNOWN.value)


def legal(text: str) -> str:
    r"""The text with what XML forbids written as ``\x1b`` or ``\udc80``; what is legal is left alone."""
    return _FORBIDDEN.sub(lambda match: match[0].encode("ascii", "backslashreplace").decode()
                          if ord(match[0]) > 0x7F else f"\\x{ord(match[0]):02x}", text)
