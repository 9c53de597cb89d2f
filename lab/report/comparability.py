"""Which stored attempts may stand in one table, and why the others may not.

Two rules decide. Within a stage every attempt must have been collected from the same inputs (one stamp):
otherwise :func:`select` refuses and names the inputs. Within a table every attempt must come from the same
environment (``Environment.must_agree``): attempts of several environments are kept apart. Only between these may one
have node programs that the other does not use, since another distribution has its own. :class:`Comparison`
checks both when it is made, so a table of mixed results cannot be built by any caller.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from lab.model import (
    VERSION_PATTERN,
    Cell,
    Environment,
    ResultsError,
    Stamp,
    Verdict,
    canonical_json,
    sha256_json,
)

if TYPE_CHECKING:
    from pathlib import Path

# The facts that a reader expects to see equal, in the order in which they are printed.
MUST_AGREE = (
    "provider",
    "emulation",
    "cgroup_mode",
    "cgroup_driver",
    "vcpus",
    "memory_class",
    "control_plane",
)
SHORT_DIGEST = 12
LONGEST_VALUE = 60
ABSENT = "(absent)"
DEFAULT_RESULTS = "results"
FLAG_OF = {"order": "--order", "reps": "--reps", "pairs": "--reps", "repetitions": "--reps"}
"""Sampling parameters that a flag of `lab run` decides; a stage has one for each flag at most."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


class AttemptRecord(Protocol):
    """What the reports read of a stored attempt (``lab.store.Attempt``)."""

    @property
    def path(self) -> Path: ...  # noqa: D102
    @property
    def cell(self) -> Cell: ...  # noqa: D102
    @property
    def stage(self) -> str: ...  # noqa: D102
    @property
    def number(self) -> int: ...  # noqa: D102
    @property
    def stamp(self) -> Stamp: ...  # noqa: D102
    @property
    def environment(self) -> Environment: ...  # noqa: D102
    @property
    def run_id(self) -> str: ...  # noqa: D102
    @property
    def started(self) -> str: ...  # noqa: D102
    @property
    def smoke(self) -> bool: ...  # noqa: D102
    @property
    def countable(self) -> bool: ...  # noqa: D102
    @property
    def uncountable_reasons(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def observation(self) -> dict[str, Any] | None: ...  # noqa: D102
    @property
    def verdict(self) -> dict[str, Any]: ...  # noqa: D102
    @property
    def extra(self) -> dict[str, Any]: ...  # noqa: D102


EnvironmentKey = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """One attempt (``name``: cell, stage, number) that no table shows, and the reason in words."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The attempts of one stage that one table may hold: one stamp, one environment, one attempt per cell.

    Raises ResultsError when the attempts do not belong together, whoever put them there.
    """

    stage: str
    environment: EnvironmentKey
    attempts: tuple[AttemptRecord, ...]

    def __post_init__(self) -> None:
        names = [attempt.cell.name for attempt in self.attempts]
        if {attempt.stage for attempt in self.attempts} != {self.stage}:
            raise ResultsError(f"a table of stage {self.stage} needs attempts, and of that stage alone")
        if {environment_key(attempt) for attempt in self.attempts} != {self.environment}:
            raise ResultsError(f"stage {self.stage}: several environments cannot stand in one table")
        if len(set(names)) != len(names):
            raise ResultsError(f"stage {self.stage}: one table holds one attempt per cell, not {names}")
        _refuse_mixed(self.attempts)

    @property
    def stamp(self) -> Stamp:
        """The stamp that all attempts share."""
        return self.attempts[0].stamp


Today = Callable[[Comparison], Stamp | None]
"""The stamp that the attempts of a table would get now; None when that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The attempts that count (newest per cell and stage) and an account of all others.

    ``begun`` is the highest attempt number per (cell name, stage), smoke runs aside. ``superseded`` are
    countable attempts that a newer countable one of the same cell and stage replaces.
    """

    attempts: tuple[AttemptRecord, ...] = ()
    superseded: tuple[AttemptRecord, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    begun: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def stages(self) -> list[str]:
        """Names of the stages with a counted attempt, sorted."""
        return sorted({attempt.stage for attempt in self.attempts})

    def environments(self) -> list[EnvironmentKey]:
        """The environments of the counted attempts, sorted."""
        return sorted({environment_key(attempt) for attempt in self.attempts})

    def comparisons(self, stage: str) -> list[Comparison]:
        """The tables of one stage: one per environment, rows by Kubernetes version, then gates."""
        groups: dict[EnvironmentKey, list[AttemptRecord]] = defaultdict(list)
        for attempt in self.attempts:
            if attempt.stage == stage:
                groups[environment_key(attempt)].append(attempt)
        return [
            Comparison(stage=stage, environment=key, attempts=tuple(sorted(groups[key], key=attempt_order)))
            for key in sorted(groups)
        ]


def environment_key(attempt: AttemptRecord) -> EnvironmentKey:
    """The facts that must agree, as a value to compare by; an absent fact equals only an absent one."""
    return tuple(sorted(attempt.environment.must_agree.items()))


def cell_order(cell: Cell) -> tuple[Any, ...]:
    """Sort key: Kubernetes version by number (v1.9.0 before v1.10.0), then gates, then distribution."""
    match = VERSION_PATTERN.match(cell.version)
    if match is None:
        raise ResultsError(f"stored results name a version {cell.version!r} that is not of the form v1.36.3")
    build = int(match[3].removeprefix("+k3s")) if match[3] else 0
    return int(match[1]), int(match[2]), build, sorted(str(gate) for gate in cell.gates), cell.distro


def attempt_order(attempt: AttemptRecord) -> tuple[Any, ...]:
    """Sort key of an attempt: cell, stage, number."""
    return *cell_order(attempt.cell), attempt.stage, attempt.number


def attempt_name(attempt: AttemptRecord) -> str:
    """``k3s-v1.36.5 kernel attempt 2``: the same on every machine, unlike the path."""
    return f"{attempt.cell.name} {attempt.stage} attempt {attempt.number}"


def verdicts_of(attempt: AttemptRecord) -> tuple[Verdict, ...]:
    """The stored verdicts of an attempt; ResultsError when verdict.json has another form."""
    try:
        return tuple(Verdict.from_json(data) for data in attempt.verdict["verdicts"])
    except (KeyError, TypeError, ValueError) as error:
        raise ResultsError(
            f"{attempt.path}/verdict.json is not a verdict record ({error!r}): run `lab judge` to remake it"
        ) from error


def differing_inputs(one: Stamp, other: Stamp) -> list[str]:
    """Names of the inputs that make two stamps differ, sorted.

    Compared as the digest does, by canonical JSON: ``1`` is not ``True``, and null is not absent.
    """
    names = set(one.inputs) | set(other.inputs)
    return sorted(name for name in names if _input_text(one, name) != _input_text(other, name))


def select(attempts: Iterable[AttemptRecord]) -> Selection:
    """Choose the attempts that count: the newest countable, non-smoke attempt of each cell and stage.

    Raises ResultsError (exit 4) when attempts of one stage were collected from different inputs, naming them.
    """
    ordered = sorted(attempts, key=lambda attempt: (*attempt_order(attempt), str(attempt.path)))
    begun: dict[tuple[str, str], int] = {}
    newest: dict[tuple[str, str], AttemptRecord] = {}
    superseded: list[AttemptRecord] = []
    left_out: list[LeftOut] = []
    for attempt in ordered:
        key = (attempt.cell.name, attempt.stage)
        if not attempt.smoke:
            begun[key] = max(attempt.number, begun.get(key, 0))
        reason = _reason_against(attempt)
        if reason is not None:
            left_out.append(LeftOut(name=attempt_name(attempt), reason=reason))
            continue
        older = newest.get(key)
        if older is not None:
            if older.number == attempt.number:
                raise ResultsError(f"{older.path} and {attempt.path} are both {attempt_name(attempt)}")
            superseded.append(older)
            left_out.append(LeftOut(name=attempt_name(older), reason="replaced by a newer attempt"))
        newest[key] = attempt
    _refuse_mixed(newest.values())
    return Selection(
        attempts=tuple(newest.values()),
        superseded=tuple(superseded),
        left_out=tuple(sorted(left_out, key=lambda entry: (entry.reason, entry.name))),
        begun=begun,
    )


def _reason_against(attempt: AttemptRecord) -> str | None:
    """Why an attempt does not count; None when it does."""
    reasons = ["smoke run (--quick)"] if attempt.smoke else []
    if not attempt.countable:
        reasons.append("uncountable: " + ("; ".join(attempt.uncountable_reasons) or "no reason recorded"))
    return "; ".join(reasons) or None


def _refuse_mixed(attempts: Iterable[AttemptRecord]) -> None:
    """ResultsError with one paragraph per stage whose attempts have more than one stamp."""
    by_stage: dict[str, list[AttemptRecord]] = defaultdict(list)
    for attempt in attempts:
        by_stage[attempt.stage].append(attempt)
    problems = [_mixed_text(stage, mixed) for stage in sorted(by_stage) if (mixed := _mixed(by_stage[stage]))]
    if problems:
        raise ResultsError("\n".join(problems))


def _mixed(attempts: Sequence[AttemptRecord]) -> list[tuple[AttemptRecord, AttemptRecord, list[str]]]:
    """In order of cells: each attempt that disagrees with the latest of all, or else of its own environment; in which
    inputs."""
    latest = max(attempts, key=_age)
    latest_in: dict[EnvironmentKey, AttemptRecord] = {}
    for attempt in attempts:
        best = latest_in.setdefault(environment_key(attempt), attempt)
        if _age(attempt) > _age(best):
            latest_in[environment_key(attempt)] = attempt
    found = []
    for attempt in sorted(attempts, key=attempt_order):
        for other in (latest, latest_in[environment_key(attempt)]):
            names = differing_inputs(attempt.stamp, other.stamp)
            if environment_key(other) != environment_key(attempt):
                names = [name for name in names if not _is_own_program(name, attempt.stamp, other.stamp)]
            if names:
                found.append((attempt, other, names))
                break
    return found


def _age(attempt: AttemptRecord) -> tuple[Any, ...]:
    """Sort key: start times are UTC texts of one form, so their order as text is their order in time."""
    return attempt.started, attempt_order(attempt)


def _is_own_program(name: str, one: Stamp, other: Stamp) -> bool:
    return name.startswith("script/") and not (name in one.inputs and name in other.inputs)


def _mixed_text(stage: str, mixed: Sequence[tuple[AttemptRecord, AttemptRecord, list[str]]]) -> str:
    """The refusal for one stage: each attempt that disagrees with the latest one, input by input."""
    lines = [f"stage {stage}: results of different inputs cannot stand in one table"]
    told: AttemptRecord | None = None
    for attempt, latest, names in mixed:
        if latest is not told:
            lines.append(f"  latest: {_identity(latest)}")
            told = latest
        lines.append(f"  differs: {_identity(attempt)}")
        lines += [f"    {name}: {_shown(attempt.stamp, name)}, latest {_shown(latest.stamp, name)}" for name in names]
        lines.append(f"    run the stage again for it: {rerun_command(attempt, latest.stamp)}")
    return "\n".join(lines)


def rerun_command(attempt: AttemptRecord, like: Stamp) -> str:
    """The command line that collects one stage of one cell again, at the same kind of provider, into the same folder.

    Sampling parameters are those of the stamp that it is to have, ``like``; the other inputs are the project's.
    """
    words = ["lab", "run", "--stages", attempt.stage, "--versions", attempt.cell.version]
    words += ["--distro", attempt.cell.distro, *_place(attempt.environment)]
    for gate in sorted(attempt.cell.gates, key=str):
        words += ["--gate", str(gate)]
    for name, flag in FLAG_OF.items():
        if f"param/{name}" in like.inputs:
            words += [flag, str(like.inputs[f"param/{name}"])]
    results = attempt.path.parents[2]
    return shlex.join(words if str(results) == DEFAULT_RESULTS else [*words, "--results", str(results)])


def _place(environment: Environment) -> list[str]:
    """Flags for the same kind of node; an own host's address is in no record, so a person puts it in."""
    provider = environment.must_agree.get("provider")
    if provider == "ssh":
        return ["--host", "USER@ADDR"]
    image = environment.shown.get("image") if provider == "digitalocean" else None
    return ([] if provider is None else ["--provider", provider]) + ([] if image is None else ["--image", image])


def _identity(attempt: AttemptRecord) -> str:
    digest = attempt.stamp.digest[:SHORT_DIGEST]
    return f"{attempt.cell.name} attempt {attempt.number}, started {attempt.started}, stamp {digest}"


def _input_text(stamp: Stamp, name: str) -> str | None:
    return canonical_json(stamp.inputs[name]) if name in stamp.inputs else None


def _shown(stamp: Stamp, name: str) -> str:
    """An input's value in short: a hash by its first digits, a long value by its beginning and its hash."""
    if name not in stamp.inputs:
        return ABSENT
    value = stamp.inputs[name]
    if isinstance(value, str) and _SHA256.fullmatch(value):
        return value[:SHORT_DIGEST]
    text = canonical_json(value)
    if len(text) <= LONGEST_VALUE:
        return text
    return f"{text[:LONGEST_VALUE]}… (sha256 {sha256_json(value)[:SHORT_DIGEST]})"
