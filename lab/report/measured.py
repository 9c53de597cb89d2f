"""What a stage measured, value by value, in a form in which two results can be set side by side. Pure.

A value is a :class:`Word`, a :class:`Number` (a setting or a count), a :class:`Sample` (one point a window or
repetition), a :class:`Share` or, for numbers that were only published, a :class:`Summary`. A value that was not
measured is not there: no function here makes one up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lab import stats
from lab.model import JSON, Missing

if TYPE_CHECKING:
    from lab.stages.contract import Stage

MIB = 1 << 20
MOST_POINTS = 10
"""A sample of more points is shown by median, range and size; JSON has them all."""
SHORT_GAP_S = 4.0
"""The article counts the gaps between evictions up to this length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A class, an answer, an order: equal or not."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One number that is no sample; its unit stands in the value's name."""

    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Points as measured, in order; at least one."""

    points: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise Missing("a sample without a point")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """``count`` of ``of`` cases."""

    count: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What was published of a sample whose points were not; None for what was not said. ``n``: number of points."""

    median: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None


Datum = Word | Number | Sample | Share | Summary


# --- text and comparison ----------------------------------------------------------------------------------------------


def number_text(value: float) -> str:
    """A number with at most four significant digits below 1000, whole above."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def text(datum: Datum | None) -> str:
    """A value for a table cell: samples as median with every point; ``-`` for one that is not there."""
    match datum:
        case None:
            return "-"
        case Word():
            return datum.text
        case Number():
            return number_text(datum.value)
        case Share():
            return f"{datum.count} of {datum.of}"
        case Sample():
            return _sample_text(datum.points)
        case Summary():
            return _summary_text(datum)


def _sample_text(points: Sequence[float]) -> str:
    if len(points) == 1:
        return number_text(points[0])
    if len(points) <= MOST_POINTS:
        inside = ", ".join(number_text(point) for point in points)
    else:
        inside = f"{number_text(min(points))} to {number_text(max(points))}, n = {len(points)}"
    return f"{number_text(stats.median(points))} ({inside})"


def _summary_text(datum: Summary) -> str:
    span = ""
    if datum.low is not None and datum.high is not None:
        span = f"{number_text(datum.low)} to {number_text(datum.high)}"
    elif datum.low is not None:
        span = f"at least {number_text(datum.low)}"
    elif datum.high is not None:
        span = f"at most {number_text(datum.high)}"
    inside = ", ".join(part for part in (span, "" if datum.n is None else f"n = {datum.n}") if part)
    if datum.median is None:
        return inside
    return f"{number_text(datum.median)} (median{'; ' + inside if inside else ''})"


def centre(datum: Datum | None) -> float | None:
    """The one number that stands for a value: itself, or the median; None for words, shares and bare ranges."""
    match datum:
        case Number():
            return datum.value
        case Sample():
            return stats.median(datum.points)
        case Summary():
            return datum.median
        case _:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """The second value against the first.

    ``verdict``: ``same``, ``differs``, ``range`` (``within`` says how many points lie inside a range that was published
    without its points) or ``-`` (one is missing, or two ranges). ``difference`` is second minus first, ``ratio`` second
    over first (None unless both are above 0), of the medians where there are points.
    """

    verdict: str = "-"
    difference: float | None = None
    ratio: float | None = None
    within: Share | None = None

    @property
    def text(self) -> str:
        """For a table cell."""
        if self.within is not None:
            return f"{text(self.within)} within"
        if self.verdict != "differs" or self.difference is None:
            return self.verdict
        shown = number_text(self.difference)
        signed = shown if shown.startswith("-") else f"+{shown}"
        return signed if self.ratio is None else f"{signed} (x{number_text(round(self.ratio, 3))})"

    def as_json(self) -> JSON:
        """Plain form."""
        within = None if self.within is None else as_json(self.within)
        return {"verdict": self.verdict, "difference": self.difference, "ratio": self.ratio, "within": within}


def against(first: Datum | None, second: Datum | None) -> Against:
    """Compare two values; nothing is said of the chance that they differ by chance."""
    if first is None or second is None:
        return Against()
    if isinstance(first, Share) and isinstance(second, Share):
        equal = first.count * second.of == second.count * first.of and bool(first.of) == bool(second.of)
        return Against(verdict="same" if equal else "differs")
    one, other = centre(first), centre(second)
    if one is not None and other is not None:
        difference = round(other - one, 9)
        ratio = other / one if one > 0 and other > 0 else None
        return Against(verdict="same" if difference == 0 else "differs", difference=difference, ratio=ratio)
    for bounds, inner in ((first, second), (second, first)):
        points = _points(inner)
        if isinstance(bounds, Summary) and points:
            return Against(verdict="range", within=_inside(bounds, points))
    if isinstance(first, Summary) and isinstance(second, Summary) and first != second:
        return Against()
    return Against(verdict="same" if first == second else "differs")


def _points(datum: Datum) -> tuple[float, ...]:
    match datum:
        case Number():
            return (datum.value,)
        case Sample():
            return datum.points
        case _:
            return ()


def _inside(bounds: Summary, points: Sequence[float]) -> Share:
    inside = [
        point
        for point in points
        if (bounds.low is None or point >= bounds.low) and (bounds.high is None or point <= bounds.high)
    ]
    return Share(count=len(inside), of=len(points))


def pooled(data: Sequence[Datum]) -> Datum | None:
    """Several cells' values as one: points together, shares added, anything else only when all are equal; else None."""
    if data and all(isinstance(datum, Sample) for datum in data):
        return Sample(points=tuple(point for datum in data if isinstance(datum, Sample) for point in datum.points))
    if data and all(isinstance(datum, Share) for datum in data):
        shares = [datum for datum in data if isinstance(datum, Share)]
        return Share(count=sum(share.count for share in shares), of=sum(share.of for share in shares))
    return data[0] if data and all(datum == data[0] for datum in data) else None


def as_json(datum: Datum | None) -> JSON | None:
    """Plain form: ``kind`` and what the kind holds, all points included."""
    match datum:
        case None:
            return None
        case Word():
            return {"kind": "word", "text": datum.text}
        case Number():
            return {"kind": "number", "value": datum.value}
        case Share():
            return {"kind": "share", "count": datum.count, "of": datum.of}
        case Sample():
            return {"kind": "sample", "median": stats.median(datum.points), "points": list(datum.points)}
        case Summary():
            return {"kind": "summary", "median": datum.median, "low": datum.low, "high": datum.high, "n": datum.n}


# --- from observations ------------------------------------------------------------------------------------------------

Found = Iterator[tuple[str, Datum | None]]


def values(stage: Stage, observation: Mapping[str, Any]) -> dict[str, Datum]:
    """Every measured value of an observation by name; a stage without values of its own gives the words of its row."""
    plain = dict(observation)
    read = _READERS.get(stage.name)
    if read is not None:
        return {name: datum for name, datum in read(plain, stage.view(plain)) if datum is not None}
    row = stage.row(plain)
    return {title: Word(text=shown) for title, shown in row.items() if shown.strip() not in ("", "-")}


def _word(value: object) -> Word | None:
    return None if value is None else Word(text=str(value))


def _number(value: float | None) -> Number | None:
    return None if value is None else Number(value=float(value))


def _sample(found: Sequence[float | None]) -> Sample | None:
    """A sample of all or of nothing: one that lacks a repetition is not the sample that was asked for."""
    known = [float(value) for value in found if value is not None]
    return Sample(points=tuple(known)) if known and len(known) == len(found) else None


def _class(observation: Mapping[str, Any], view: Mapping[str, Any]) -> Found:
    del view
    for name, pod in observation["pods"].items():
        yield f"{name} class", _word(pod["status_class"])
    for name, pod in observation["pods"].items():
        yield f"{name} cgroup class", _word(pod["cgroup_class"])
    for name, pod in observation["pods"].items():
        yield f"{name} stored block", _word(pod["stored"])


def _kernel(observation: Mapping[str, Any], view: Mapping[str, Any]) -> Found:
    del view
    for name, pod in observation["pods"].items():
        # /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice: the slice that the pod sits in.
        yield f"{name} slice", None if pod["path"] is None else _word(pod["path"].split("/")[-2].removesuffix(".slice"))
        for level in ("pod", "container"):
            files = pod[level]
            yield f"{name} {level} cpu.weight", _number(files["cpu_weight"])
            yield f"{name} {level} cpu.max (CPUs)", _cpus(files["cpu_max"])
            yield f"{name} {level} memory.max (MiB)", _mebibytes(files["memory_max"])
            kept = [files[f"memory_{file}"] for file in ("min", "low", "high", "swap_max")]
            shown = None if None in kept else "min {}, low {}, high {}, swap {}".format(*kept)
            yield f"{name} {level} memory protection", _word(shown)
        yield f"{name} oom_score_adj", _number(pod["oom_score_adj"])
        yield f"{name} oom_score", _number(pod["oom_score"])
    for name, files in sorted(observation["parents"].items()):
        yield f"{name} cpu.weight", _number(files["cpu_weight"])


def _cpus(value: str | None) -> Datum | None:
    quota, _, period = (value or "").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return Number(value=int(quota) / int(period))
    return Word(text="max") if quota == "max" else _word(value)


def _mebibytes(value: str | None) -> Datum | None:
    return Number(value=int(value) / MIB) if value is not None and value.isdigit() else _word(value)


def _quota(observation: Mapping[str, Any], view: Mapping[str, Any]) -> Found:
    del observation
    for name, pod in view["pods"].items():
        yield f"{name} answer", _word(pod["answer"])


def _cpu(observation: Mapping[str, Any], view: Mapping[str, Any]) -> Found:
    control, empty = view["control_all"] or [], view["empty_all"] or []
    yield "cpu-ctl (cores)", _sample(control)
    yield "cpu-emp (cores)", _sample(empty)
    yield "cpu-emp of cpu-ctl (%)", None if view["ratio"] is None else Number(value=round(100 * view["ratio"], 1))
    if control and empty:
        below = sum(value < min(control) for value in empty)
        yield "cpu-emp below every cpu-ctl", Share(count=below, of=len(empty))
    valid = [window for window in observation["windows"] if not window["why_not"]]
    filled = {(window["pair"], window["pod"]) for window in valid}
    yield "slots with a window that counts", Share(count=len(filled), of=len(observation["slots"]))
    yield "neighbour (cores)", _sample([window["cores"].get("neighbour-pod") for window in valid])
    for pod in ("cpu-ctl", "cpu-emp"):
        seen = [window["weights"] for window in valid if window["pod"] == pod]
        for title, key in (
            (f"{pod} pod cpu.weight", "target-pod"),
            (f"burstable slice cpu.weight beside {pod}", "burstable"),
            (f"besteffort slice cpu.weight beside {pod}", "besteffort"),
        ):
            weights = {weight.get(key) for weight in seen}
            yield title, _number(int(weights.pop())) if len(weights) == 1 and None not in weights else None


def _eviction(observation: Mapping[str, Any], view: Mapping[str, Any]) -> Found:
    entries = observation["repetitions"]
    yield "order", _orders(view["orders"])
    yield "kubelet's first ranking", _orders(view["rankings"])
    yield "models that fit", None if view["models"] is None else Word(text=", ".join(view["models"]) or "none")
    yield "kernel OOM kills", _number(view["oom_kills"])
    last = view["critical_last"]
    yield "critical pod ranked last", None if last is None else Word(text="yes" if last else "no")
    refused = [entry["critical"] for entry in entries]
    if None not in refused:
        count = sum(bool(critical["refused"]) for critical in refused)
        yield "critical pod refused as victim", Share(count=count, of=len(refused))
    sets = [entry["working_sets_mib"] or {} for entry in entries]
    for name in dict.fromkeys(name for found in sets for name in found):
        yield f"{name} working set (MiB)", _sample([found.get(name) for found in sets])
    for title, key in (
        ("first reclaim (s)", "first_reclaim_s"),
        ("first eviction (s)", "first_eviction_s"),
        ("last eviction (s)", "last_eviction_s"),
        ("available at first eviction (MiB)", "first_available_mib"),
    ):
        yield title, _sample([entry[key] for entry in entries])
    ends = [(entry["first_reclaim_s"], entry["first_eviction_s"]) for entry in entries]
    yield (
        "first eviction after first reclaim (s)",
        _sample([None if None in pair else round(pair[1] - pair[0], 3) for pair in ends]),
    )
    lists = [entry["gaps_s"] for entry in entries]
    if None not in lists:
        gaps = [gap for found in lists for gap in found]
        yield "gaps between evictions (s)", _sample(gaps)
        yield f"gaps of at most {SHORT_GAP_S:.1f} s", Share(count=sum(gap <= SHORT_GAP_S for gap in gaps), of=len(gaps))


def _orders(orders: Sequence[Sequence[str]] | None) -> Word | None:
    """One order when every repetition had it; else each with its count."""
    if not orders:
        return None
    texts = [" > ".join(order) for order in orders]
    different = list(dict.fromkeys(texts))
    counted = "; ".join(f"{order} ({texts.count(order)}x)" for order in different)
    return Word(text=different[0] if len(different) == 1 else counted)


_READERS = {
    "class": _class,
    "kernel": _kernel,
    "quota": _quota,
    "cpu": _cpu,
    "eviction": _eviction,
    "eviction-priority": _eviction,
}
