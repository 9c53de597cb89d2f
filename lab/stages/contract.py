"""The shape of a stage. A stage is a record of functions; nothing registers itself.

``collect(ctx)`` is the only part that does I/O: it saves every text that a node gives through ``ctx.save`` before
anything reads it. ``parse``, ``view`` and ``row`` get no context, so they cannot do I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.stages.context import StageContext

Raw = Mapping[str, str]
Observation = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One measurement.

    ``version`` changes when ``collect`` does (it is part of the stamp); ``judge_version`` when parsing or judging does.
    ``cases`` are manifest names in ``manifests/cases.toml``, ``scripts`` file names in ``node-scripts/``.
    ``params(options)`` gives the sampling parameters (JSON values; part of the stamp). ``parse(raw)`` raises ParseError
    when a text that is there has the wrong form, and stores None where a value was not measured. ``view(observation)``
    gives the names that claims may use; None means not measured. ``row(observation)`` gives one row of the summary's
    table, column title to text, and must never raise. ``changes`` are manifest parameters that differ
    from the cases' own. ``budget_s(options)`` is the expected time for ``lab plan``, ``windows_s(options)`` the part of
    it that is waited on purpose, on however fast a machine.
    """

    name: str
    title: str
    version: int
    judge_version: int
    cases: tuple[str, ...]
    scripts: tuple[str, ...]
    params: Callable[[Mapping[str, Any]], dict[str, Any]]
    budget_s: Callable[[Mapping[str, Any]], float]
    collect: Callable[[StageContext], None]
    parse: Callable[[Raw], Observation]
    view: Callable[[Observation], dict[str, Any]]
    row: Callable[[Observation], dict[str, str]]
    notes: Callable[[Observation], list[str]]
    changes: Mapping[str, Any] = field(default_factory=dict)
    windows_s: Callable[[Mapping[str, Any]], float] = lambda options: 0.0
