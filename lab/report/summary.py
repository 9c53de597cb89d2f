"""The text of ``results/summary.md``: a pure function of the stored results, so anyone can make it again.

No clock, no path of a machine, no order of a set goes into it: the same results give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lab.model import Outcome
from lab.report import statistics
from lab.report.comparability import (
    MUST_AGREE,
    SHORT_DIGEST,
    AttemptRecord,
    Comparison,
    EnvironmentKey,
    Selection,
    Today,
    attempt_name,
    differing_inputs,
    verdicts_of,
)
from lab.report.tables import (
    in_environment,
    is_blank,
    labels,
    left_out_frame,
    markdown,
    one_line,
    problem_text,
    short,
    shown_facts,
    stage_frame,
    stage_row,
    varying_frame,
    verdict_frame,
    verdicts_by_claim,
)

if TYPE_CHECKING:
    from lab.stages.contract import Stage

HOW_TO_READ = """\
Every claim was written down, with a prediction and with what would disprove it, before it was measured.

- HELD: the prediction came true.
- MISSED: the prediction was wrong, but nothing that would disprove the claim was seen.
- FALSIFIED: what was written down as disproof of the claim was seen.
- UNKNOWN: it could not be judged, because a value is missing or a window was not valid. This is not a pass.
- `-`: the claim does not apply to that column, or the stage that measures it has not run there.

A table holds attempts of one environment, collected from the same inputs (the stamp), the newest of each
cell. Compare within a table, never between two environments."""


def render(
    selection: Selection,
    stages: Mapping[str, Stage],
    claims: Mapping[str, str],
    today: Today | None,
    notes: str = "",
    predicted: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """The whole summary in Markdown, ending with one newline.

    ``notes`` is Markdown that a person wrote about these results (``results/notes.md``); it is passed through.

    ``stages`` maps names to stages in the order of their sections; ``claims`` maps claim ids to titles in the
    order of their rows; ``today`` gives the stamp that the attempts of a table would get now, to label
    stale results; ``predicted`` the order that the claims of a stage name beforehand. Raises ResultsError
    when a stored verdict is damaged or ``selection`` mixes inputs.
    """
    blocks = ["# Summary of results", "## How to read", HOW_TO_READ]
    if selection.attempts:
        blocks += _verdict_blocks(selection, claims)
        stored = selection.stages()
        for name in [*stages, *(name for name in stored if name not in stages)]:
            if name in stored:
                blocks += _stage_blocks(selection, name, stages.get(name), today, (predicted or {}).get(name))
        missing = [name for name in stages if name not in stored]
        if missing:
            blocks += ["## Not run", f"No attempt counts for: {', '.join(missing)}."]
    else:
        blocks.append("There is no countable result: no attempt is stored, or all are left out (below).")
    if notes.strip():
        blocks += ["## Notes by hand", notes.strip()]
    blocks += _left_out_blocks(selection)
    lines = "\n\n".join(blocks).split("\n")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def environment_text(key: EnvironmentKey) -> str:
    """``provider qemu, …``: the facts that agree, in the usual order, unusual ones last."""
    facts = dict(key)
    usual = [name for name in MUST_AGREE if name in facts]
    unusual = [name for name in facts if name not in MUST_AGREE]
    return ", ".join(f"{name} {one_line(facts[name])}" for name in usual + unusual) or "not read"


def _environment_heading(key: EnvironmentKey) -> str:
    return f"### Environment: {environment_text(key)}"


def _bullets(lines: list[str], lead: str) -> list[str]:
    """A sentence and the Markdown list under it; no block for no lines.

    The lead keeps two lists apart: without text between them Markdown makes them one.
    """
    return [lead, "\n".join(f"- {line}" for line in lines)] if lines else []


def _verdict_blocks(selection: Selection, claims: Mapping[str, str]) -> list[str]:
    blocks = ["## Verdicts"]
    environments = selection.environments()
    if len(environments) > 1:
        blocks.append(f"The results come from {len(environments)} environments; each has a table of its own.")
    for key in environments:
        blocks.append(_environment_heading(key))
        frame = verdict_frame(selection, key, claims)
        blocks.append(markdown(frame) if len(frame) else "No claim was judged.")
        blocks += _bullets(_changed_claims(selection, key), "The wording of claims has changed:")
    return blocks


def _changed_claims(selection: Selection, key: EnvironmentKey) -> list[str]:
    """One line per claim whose wording was not the same when its cells were judged."""
    lines = []
    for claim, by_cell in sorted(verdicts_by_claim(in_environment(selection, key)).items()):
        digests = sorted({verdict.claim_digest for verdicts in by_cell.values() for verdict in verdicts})
        if len(digests) > 1:
            shown = ", ".join(short(digest) for digest in digests)
            lines.append(f"claim {claim} was judged in {len(digests)} wordings ({shown}): run `lab judge`")
    return lines


def _stage_blocks(
    selection: Selection, name: str, stage: Stage | None, today: Today | None, predicted: Sequence[str] | None
) -> list[str]:
    title = f"{one_line(stage.title)} ({name})" if stage is not None else name
    blocks = [f"## Stage: {title}"]
    comparisons = selection.comparisons(name)
    if len(comparisons) > 1:
        blocks.append(several_environments(comparisons))
    label = labels(selection)
    for comparison in comparisons:
        blocks.append(_environment_heading(comparison.environment))
        blocks.append(markdown(stage_frame(comparison, stage, label)))
        blocks += _origin_blocks(selection, comparison, today, label)
        blocks += _bullets(statistics_lines(comparison, stage, label, predicted), "What the repetitions allow to say:")
        blocks += _bullets(remark_lines(comparison, stage, label), "Not held, and problems:")
        blocks += _bullets(note_lines(comparison, stage, label), "Notes:")
    return blocks


def statistics_lines(
    comparison: Comparison, stage: Stage | None, label: Mapping[str, str], predicted: Sequence[str] | None
) -> list[str]:
    """Spread, ratio, stability and chance of each row, as far as its stage has repetitions."""
    if stage is None:
        return []
    return [
        f"{label[attempt.cell.name]}: {line}"
        for attempt in comparison.attempts
        if attempt.observation is not None
        for line in statistics.lines(attempt.observation, stage.view(attempt.observation), predicted)
    ]


def remark_lines(comparison: Comparison, stage: Stage | None, label: Mapping[str, str]) -> list[str]:
    """Verdicts that are not HELD, problems, and rows that another version of the stage judged."""
    found = _verdict_lines(comparison, label) + _problem_lines(comparison, stage, label)
    return found + _judge_lines(comparison, stage, label)


def several_environments(comparisons: list[Comparison]) -> str:
    """The sentence that keeps a reader from comparing two tables of one stage."""
    facts = [dict(comparison.environment) for comparison in comparisons]
    differing = []
    for name in sorted({name for fact in facts for name in fact}):
        values = list(dict.fromkeys(one_line(fact.get(name, "not read")) for fact in facts))
        if len({fact.get(name) for fact in facts}) > 1:
            differing.append(f"{name} ({' / '.join(values)})")
    return (
        f"This stage ran in {len(comparisons)} environments, which must not be compared with each other; "
        f"they differ in {', '.join(differing)}."
    )


def origin_lines(
    selection: Selection, comparison: Comparison, today: Today | None, label: Mapping[str, str]
) -> list[str]:
    """Where a table's numbers come from: stamp, environment, attempts. The stamp stands in backticks."""
    lines = [f"stamp: `{comparison.stamp.digest[:SHORT_DIGEST]}`"]
    now = None if today is None else today(comparison)
    if now is not None and now.digest != comparison.stamp.digest:
        names = ", ".join(differing_inputs(comparison.stamp, now))
        lines.append(f"stale: today's inputs differ in {names}")
    known = dict(comparison.environment)
    unread = [name for name in MUST_AGREE if name not in known]
    if unread:
        lines.append(f"not read on any row, so not known to agree: {', '.join(unread)}")
    equal, _ = shown_facts(comparison)
    if equal:
        facts = ", ".join(f"{name} {short(text)}" for name, text in equal.items())
        lines.append(f"same on every row: {facts}")
    for attempt in comparison.attempts:
        begun = selection.begun.get((attempt.cell.name, attempt.stage), attempt.number)
        seed = f", seed {attempt.extra['seed']}" if attempt.extra.get("seed") is not None else ""
        lines.append(
            f"{label[attempt.cell.name]}: attempt {attempt.number} of {begun}, run {attempt.run_id}, "
            f"{attempt.started[:10]}{seed}"
        )
    return lines


def _origin_blocks(
    selection: Selection, comparison: Comparison, today: Today | None, label: Mapping[str, str]
) -> list[str]:
    """:func:`origin_lines` as a list, and a table of the facts that vary."""
    blocks = _bullets(origin_lines(selection, comparison, today, label), "Where this table comes from:")
    _, varying = shown_facts(comparison)
    if varying:
        blocks += ["Facts that vary between the rows:", markdown(varying_frame(comparison, varying, label))]
    return blocks


def _verdict_lines(comparison: Comparison, label: Mapping[str, str]) -> list[str]:
    """Every verdict that is not HELD, with its reason."""
    return [
        f"{label[attempt.cell.name]}: {verdict.claim} {verdict.outcome.value}: {one_line(verdict.reason)}"
        for attempt in comparison.attempts
        for verdict in verdicts_of(attempt)
        if verdict.outcome is not Outcome.HELD
    ]


def _problem_lines(comparison: Comparison, stage: Stage | None, label: Mapping[str, str]) -> list[str]:
    """Problems of rows that do show values; the table itself has those of blank rows."""
    texts = [(attempt, problem_text(attempt, stage)) for attempt in comparison.attempts]
    return [
        f"{label[attempt.cell.name]}: problem: {text}"
        for attempt, text in texts
        if text and not is_blank(stage_row(attempt, stage))
    ]


def _judge_lines(comparison: Comparison, stage: Stage | None, label: Mapping[str, str]) -> list[str]:
    """Rows whose verdicts were made by another version of the stage's judging code."""
    if stage is None:
        return []
    return [
        f"{label[attempt.cell.name]}: judged by version {attempt.verdict.get('judge_version')} of this "
        f"stage, today's is {stage.judge_version}: run `lab judge`"
        for attempt in comparison.attempts
        if attempt.verdict.get("judge_version") != stage.judge_version
    ]


def note_lines(comparison: Comparison, stage: Stage | None, label: Mapping[str, str]) -> list[str]:
    """The stage's notes in the order of the rows; a note that every row has stands once, without a label."""
    if stage is None:
        return []
    observations = [attempt.observation for attempt in comparison.attempts]
    per_row = [
        [one_line(note) for note in stage.notes(observation)] if observation is not None else []
        for observation in observations
    ]
    shared = [note for note in dict.fromkeys(per_row[0]) if all(note in notes for notes in per_row)]
    own = [
        f"{label[attempt.cell.name]}: {note}"
        for attempt, notes in zip(comparison.attempts, per_row, strict=True)
        for note in dict.fromkeys(notes)
        if note not in shared
    ]
    return shared + own


def _left_out_blocks(selection: Selection) -> list[str]:
    blocks = ["## Left out"]
    if not selection.left_out:
        return [*blocks, "Nothing: every stored attempt is in a table."]
    total = len(selection.left_out)
    blocks.append(f"Attempts that no table shows: {total}.")
    blocks.append(markdown(left_out_frame(selection.left_out)))
    lead = "Replaced attempts that had come to another outcome than the newest one:"
    return blocks + _bullets(_changed_outcomes(selection), lead)


def _changed_outcomes(selection: Selection) -> list[str]:
    """Verdicts of replaced attempts that the newest does not repeat: repeating until it holds must show."""
    newest: dict[tuple[str, str], AttemptRecord] = {
        (attempt.cell.name, attempt.stage): attempt for attempt in selection.attempts
    }
    lines = []
    for attempt in selection.superseded:
        now = newest[(attempt.cell.name, attempt.stage)]
        outcomes = {verdict.claim: verdict.outcome for verdict in verdicts_of(now)}
        inputs = "same inputs" if attempt.stamp.digest == now.stamp.digest else "other inputs"
        for verdict in verdicts_of(attempt):
            if verdict.outcome is not outcomes.get(verdict.claim):
                current = outcomes.get(verdict.claim)
                lines.append(
                    f"{attempt_name(attempt)} ({inputs}): {verdict.claim} {verdict.outcome.value}, "
                    f"now {current.value if current is not None else 'not judged'}"
                )
    return lines
