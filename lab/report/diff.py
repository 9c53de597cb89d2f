"""Two sides set beside each other: what went in first, then what was measured. Pure.

A side is a set of cells with their newest counted attempts, or what an article publishes. Cells are matched by minor
version and gates; nothing is said of differences beyond their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lab.model import JSON, Stamp, UsageError, canonical_json
from lab.report import measured
from lab.report.comparability import MUST_AGREE, differing_inputs
from lab.report.measured import Against, Datum
from lab.report.sides import Pair, Pool, Side, SideCell, StageResult, match, pairs_of, stage_order
from lab.report.tables import short

LONGEST_INPUT = 40
BOOKKEEPING = frozenset({"stage", "collect_version"})
"""Inputs of a stamp that say which collector of the lab it was: no article could state them."""

# --- records ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRow:
    """An input or a fact that is not the same; None where a side lacks it. ``must_agree`` as in the environment."""

    name: str
    where: str
    a: str | None
    b: str | None
    must_agree: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRow:
    """One value of one pair, or of several pairs together (``pairs`` are labels); None where a side lacks it."""

    name: str
    pairs: tuple[str, ...]
    a: Datum | None
    b: Datum | None
    where: str = ""
    note: str = ""

    @property
    def against(self) -> Against:
        """B against A."""
        return measured.against(self.a, self.b)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """The whole comparison. ``stages`` maps stage names to rows; ``only_a`` and ``only_b`` are cells without a partner.

    ``unstated`` are inputs and facts that a partial side does not state.
    """

    a: Side
    b: Side
    pairs: tuple[Pair, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    inputs: tuple[InputRow, ...]
    unstated: tuple[str, ...]
    stages: Mapping[str, tuple[ValueRow, ...]]

    def as_json(self) -> JSON:
        """One document, every value of every pair with all its points."""
        return {
            **{side: _side_json(getattr(self, side)) for side in ("a", "b")},
            "pairs": [
                {"pair": pair.label, "a": pair.a.cell.as_json(), "b": pair.b.cell.as_json(), "note": pair.note}
                for pair in self.pairs
            ],
            "without_partner": {"a": list(self.only_a), "b": list(self.only_b)},
            "inputs_that_differ": [
                {"input": row.name, "where": row.where, "a": row.a, "b": row.b, "must_agree": row.must_agree}
                for row in self.inputs
            ],
            "inputs_not_stated": list(self.unstated),
            "stages": {
                stage: [
                    {
                        "value": row.name, "pairs": list(row.pairs), "published_in": row.where, "note": row.note,
                        "a": measured.as_json(row.a), "b": measured.as_json(row.b), **row.against.as_json(),
                    }
                    for row in rows
                ]
                for stage, rows in self.stages.items()
            },
        }  # fmt: skip


def _side_json(side: Side) -> JSON:
    sources = {cell.cell.name: {name: stage.source for name, stage in cell.stages.items()} for cell in side.cells}
    return {"name": side.name, "what": side.description, "remarks": list(side.remarks), "sources": sources}


# --- inputs -----------------------------------------------------------------------------------------------------------

_Spot = tuple[str, str]


def _inputs(a: Side, b: Side, pairs: Sequence[Pair]) -> tuple[tuple[InputRow, ...], tuple[str, ...]]:
    """Rows for what differs, facts that must agree first; and the names that a partial side does not state."""
    spots = [(pair.label, stage) for pair in pairs for stage in pair.stages()]
    merged: dict[tuple[bool, str, str | None, str | None], list[_Spot]] = {}
    unstated: dict[str, None] = {}
    for pair in pairs:
        for stage in pair.stages():
            one, other = pair.a.stages[stage], pair.b.stages[stage]
            for is_input, must_agree, name, left, right in _differences(one, other):
                if (left is None and a.is_partial) or (right is None and b.is_partial):
                    unstated[name] = None
                    continue
                # An input belongs to its stage: the same name in two stages is two inputs.
                merged.setdefault((must_agree, f"{stage} {name}" if is_input else name, left, right), []).append(
                    (pair.label, stage)
                )
    rows = [
        InputRow(name=name, where=_spots_text(found, spots), a=left, b=right, must_agree=must_agree)
        for (must_agree, name, left, right), found in merged.items()
    ]
    rows.sort(key=lambda row: (not row.must_agree, MUST_AGREE.index(row.name) if row.name in MUST_AGREE else 99))
    return tuple(rows), tuple(sorted(unstated))


def partial_names(found: Diff) -> str:
    """The names of the sides that do not state everything."""
    return " and ".join(dict.fromkeys(side.name for side in (found.a, found.b) if side.is_partial))


def unstated_text(found: Diff) -> str:
    """One sentence on what a partial side does not state; empty when there is nothing.

    Inputs are counted by their kind: a reader need not see each manifest's hash that an article cannot give.
    """
    groups = {"manifest/": "manifests", "script/": "node scripts", "param/": "sampling parameters"}
    counted = dict.fromkeys(groups.values(), 0)
    told = []
    for name in found.unstated:
        group = next((text for start, text in groups.items() if name.startswith(start)), None)
        if group is not None:
            counted[group] += 1
        elif name not in BOOKKEEPING:
            told.append(name)
    told += [f"{count} {group}" for group, count in counted.items() if count]
    return f"Not stated by {partial_names(found)}, so not compared: {', '.join(told)}." if told else ""


def _differences(a: StageResult, b: StageResult) -> Iterable[tuple[bool, bool, str, str | None, str | None]]:
    """(is a stamp input, must agree, name, left, right) of every fact and input that is not the same."""
    for must_agree, left, right in (
        (True, a.environment.must_agree, b.environment.must_agree),
        (False, a.environment.shown, b.environment.shown),
    ):
        for name in sorted({*left, *right}):
            if left.get(name) != right.get(name):
                yield False, must_agree, name, _shown(left.get(name)), _shown(right.get(name))
    one, other = Stamp(inputs=a.inputs), Stamp(inputs=b.inputs)
    for name in differing_inputs(one, other):
        yield True, False, name, _input(one, name), _input(other, name)


def _shown(value: str | None) -> str | None:
    return None if value is None else short(value)


def _input(stamp: Stamp, name: str) -> str | None:
    """An input's value in short; None when it is not there."""
    if name not in stamp.inputs:
        return None
    value = stamp.inputs[name]
    text = short(value) if isinstance(value, str) else canonical_json(value)
    return text if len(text) <= LONGEST_INPUT else f"{text[:LONGEST_INPUT]}…"


def _spots_text(found: Sequence[_Spot], every: Sequence[_Spot]) -> str:
    """Where a difference is: ``all``, labels of pairs, or stages and labels when a pair has it in some stages only."""
    if set(found) == set(every):
        return "all"
    labels = list(dict.fromkeys(label for label, _ in found))
    if {spot for spot in every if spot[0] in labels} == set(found):
        return ", ".join(labels)
    stages = list(dict.fromkeys(stage for _, stage in found))
    if {spot for spot in every if spot[1] in stages} == set(found):
        return ", ".join(stages)
    return "; ".join(f"{stage} {', '.join(label for label, own in found if own == stage)}" for stage in stages)


# --- values -----------------------------------------------------------------------------------------------------------


def compare(a: Side, b: Side, stages: Sequence[str] = ()) -> Diff:
    """Inputs and values of two sides; ``stages`` gives their order. UsageError when no cell has a partner."""
    found = match(a, b)
    if not found:
        raise UsageError(
            f"nothing to compare: no cell of {a.name} ({_names(a)}) has the minor version and gates of one of {b.name} "
            f"({_names(b)}); name one cell on each side to compare them all the same"
        )
    pairs = pairs_of(found)
    inputs, unstated = _inputs(a, b, pairs)
    present = dict.fromkeys(stage for pair in pairs for stage in (*pair.a.stages, *pair.b.stages))
    ordered = sorted(present, key=lambda stage: stage_order(stage, stages))
    matched = [{id(pair.a) for pair in pairs}, {id(pair.b) for pair in pairs}]
    return Diff(
        a=a,
        b=b,
        pairs=pairs,
        only_a=tuple(cell.cell.name for cell in a.cells if id(cell) not in matched[0]),
        only_b=tuple(cell.cell.name for cell in b.cells if id(cell) not in matched[1]),
        inputs=inputs,
        unstated=unstated,
        stages={stage: tuple(_rows(a, b, pairs, stage)) for stage in ordered},
    )


def _names(side: Side) -> str:
    return ", ".join(cell.cell.name for cell in side.cells)


def _rows(a: Side, b: Side, pairs: Sequence[Pair], stage: str) -> Iterable[ValueRow]:
    """Value by value, pair by pair; then what a side gives for several cells together."""
    ran = [pair for pair in pairs if stage in pair.a.stages or stage in pair.b.stages]
    lefts = {pair.label: _values(pair.a, stage) for pair in ran}
    rights = {pair.label: _values(pair.b, stage) for pair in ran}
    for name in dict.fromkeys(name for found in (*lefts.values(), *rights.values()) for name in found):
        for pair in ran:
            left, right = lefts[pair.label].get(name), rights[pair.label].get(name)
            if left is not None or right is not None:
                place = [cell.stages[stage].where.get(name) for cell in (pair.a, pair.b) if stage in cell.stages]
                where = "; ".join(text for text in place if text)
                yield ValueRow(name=name, pairs=(pair.label,), a=left, b=right, where=where)
    for pool in a.pools:
        if pool.stage == stage and (inside := [pair for pair in pairs if pair.a.cell.name in pool.cells]):
            yield _pool_row(pool, b, inside, lambda pair: pair.b, is_left=True)
    both = {(pool.stage, pool.name, pool.cells) for pool in a.pools}
    for pool in b.pools:
        if (pool.stage, pool.name, pool.cells) in both:
            continue
        if pool.stage == stage and (inside := [pair for pair in pairs if pair.b.cell.name in pool.cells]):
            yield _pool_row(pool, a, inside, lambda pair: pair.a, is_left=False)


def _values(cell: SideCell, stage: str) -> Mapping[str, Datum]:
    return cell.stages[stage].values if stage in cell.stages else {}


def _pool_row(
    pool: Pool, other: Side, pairs: Sequence[Pair], pick: Callable[[Pair], SideCell], *, is_left: bool
) -> ValueRow:
    """A published value of several cells beside the other side's own of the same cells, pooled."""
    have = [pair for pair in pairs if pool.name in _values(pick(pair), pool.stage)]
    environments = {tuple(sorted(pick(pair).stages[pool.stage].environment.must_agree.items())) for pair in have}
    lacking = [pair.label for pair in pairs if pair not in have]
    notes = [f"{other.name} has no value for {', '.join(lacking)}"] if have and lacking else []
    mine = None
    same = [own for own in other.pools if (own.stage, own.name, own.cells) == (pool.stage, pool.name, pool.cells)]
    if same:
        mine, notes = same[0].datum, []
    elif len(environments) > 1:
        notes = [f"{other.name} measured it in several environments, which are not pooled"]
    elif have:
        mine = measured.pooled([_values(pick(pair), pool.stage)[pool.name] for pair in have])
    absent = len({*pool.cells}) - len(pairs)
    if absent:
        notes.append(f"published for {len(pool.cells)} cells together, matched here: {len(pairs)}")
    return ValueRow(
        name=pool.name,
        pairs=tuple(pair.label for pair in pairs),
        a=pool.datum if is_left else mine,
        b=mine if is_left else pool.datum,
        where=pool.where,
        note="; ".join(notes),
    )


def stated(rows: Sequence[ValueRow], a: Side, b: Side) -> list[ValueRow]:
    """Rows without those that a partial side does not give: an article that says nothing is nothing to compare with."""
    return [row for row in rows if not ((row.a is None and a.is_partial) or (row.b is None and b.is_partial))]


def counts(rows: Sequence[ValueRow]) -> str:
    """How the values of a stage compare, one count a row: ``12 same, 2 differ, 1 against a range, 3 on one side``."""
    words = {"same": "same", "differs": "differ", "range": "against a range", "-": "on one side only"}
    found = [row.against.verdict for row in rows]
    return ", ".join(f"{found.count(verdict)} {word}" for verdict, word in words.items() if verdict in found)


def spans(labels: Sequence[str], every: Sequence[str]) -> str:
    """Labels of pairs in short: ``all``, and neighbours in ``every`` as ``1.34 to 1.36``."""
    if tuple(labels) == tuple(every):
        return "all"
    runs: list[list[str]] = []
    for label in labels:
        if runs and every.index(runs[-1][-1]) + 1 == every.index(label):
            runs[-1].append(label)
        else:
            runs.append([label])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def merged(rows: Sequence[ValueRow]) -> list[tuple[str, tuple[str, ...], ValueRow]]:
    """Rows of one value whose cells show the same texts, as one: name, labels of pairs, and the first such row."""
    found: dict[tuple[str, str, str, str, bool], tuple[list[str], ValueRow]] = {}
    for row in rows:
        # A value of several pairs together must not fall in with that of one pair.
        key = (row.name, measured.text(row.a), measured.text(row.b), row.note, len(row.pairs) > 1)
        found.setdefault(key, ([], row))[0].extend(row.pairs)
    return [(key[0], tuple(labels), row) for key, (labels, row) in found.items()]
