"""Findings as JSON and SARIF, one by one as they come, and queries. Pure: what is printed is decided here, not where.

How many findings there are is up to other people's files, so none is kept: a document is written as text whose array of
findings comes first and whose counts come last.
"""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass, field
from typing import Any

from lab.model import EXIT_FALSIFIED, EXIT_OK, EXIT_USAGE, JSON
from lab.qos import Behaviour
from lab.scan.findings import Finding
from lab.scan.records import (
    COMPLETED_BLOCK,
    EMPTY_BLOCK,
    NO_EFFECT,
    POSTED_CLASS,
    RUNNER,
    RUNNER_VALUES,
    STORED_CLASS,
    TEMPLATE,
    Problem,
)

TOOL = "node lab scan"
SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

RULES = {
    EMPTY_BLOCK: "empty-block",
    COMPLETED_BLOCK: "completed-block",
    TEMPLATE: "template",
    RUNNER: "gitlab-runner",
    RUNNER_VALUES: "gitlab-runner-values",
    POSTED_CLASS: "posted-class",
    STORED_CLASS: "stored-class",
}
_UNREADABLE = "unreadable"

_URI_BYTES = frozenset(b"/-._~abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_LEVELS = {True: "error", None: "warning"}


MAX_PROBLEMS = 100
"""Per input; a file that is no manifest at all would else be told line by line."""


@dataclass(slots=True)
class Report:
    """What a scan came to. ``objects`` counts everything that was read, with or without a pod spec.

    The findings themselves are only counted: affected, possibly so, and without consequence (runners' configurations
    apart from blocks).
    """

    problems: list[Problem] = field(default_factory=list)
    objects: int = 0
    affected: int = 0
    possible: int = 0
    harmless: int = 0
    harmless_runners: int = 0
    minor: int | None = None
    _hidden: dict[str, int] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        """Count a finding."""
        self.affected += finding.affected is True
        self.possible += finding.affected is None
        if finding.affected is False:
            is_runner = finding.reason in (RUNNER, RUNNER_VALUES)
            self.harmless_runners += is_runner
            self.harmless += not is_runner

    def tell(self, problem: Problem) -> None:
        """Keep a problem; beyond MAX_PROBLEMS of one input only their number."""
        told = self._hidden.setdefault(problem.file, -MAX_PROBLEMS)
        self._hidden[problem.file] += 1
        if told < 0:
            self.problems.append(problem)

    def close(self) -> None:
        """After the last input: say of which more problems are not shown."""
        more = {file: number for file, number in self._hidden.items() if number > 0}
        self._hidden.clear()
        for file, number in more.items():
            self.problems.append(Problem(file=file, line=0, text=f"{count(number, 'more problem')} not shown"))

    @property
    def exit_code(self) -> int:
        """2 when something could not be read, else 1 when something is affected or possibly so, else 0."""
        if self.problems:
            return EXIT_USAGE
        return EXIT_FALSIFIED if self.affected or self.possible else EXIT_OK


class LongDocument:
    """A JSON document with one long array, written element by element: ``opening`` ends with the array's bracket."""

    def __init__(self, opening: str, closing: str = "") -> None:
        self._before = opening
        self._closing = closing
        self._empty = True

    def element(self, value: JSON) -> str:
        """The text that one more element adds."""
        text = f"{self._before}\n    {_indented(value, '    ')}"
        self._before, self._empty = ",", False
        return text

    def end(self, rest: JSON) -> str:
        """The text after the last element, with what else the object that has the array holds."""
        before = self._before if self._empty else "\n  "
        return f"{before}],\n{json.dumps(rest, indent=2)[2:]}{self._closing}\n"


_encoded = json.JSONEncoder().encode


def _indented(value: Any, indent: str) -> str:
    """JSON text as ``json.dumps`` indents it, several times as fast: that one's own encoder does not indent."""
    if not value or not isinstance(value, dict | list):
        return _encoded(value)
    inner = indent + "  "
    if isinstance(value, dict):
        lines = [f"{_encoded(key)}: {_indented(each, inner)}" for key, each in value.items()]
        return f"{{\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}}}"
    return f"[\n{inner}" + f",\n{inner}".join(_indented(each, inner) for each in value) + f"\n{indent}]"


def printable(text: str) -> str:
    """The text with control characters and what cannot be encoded written out: it comes from other people's files."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def count(number: int, noun: str) -> str:
    """``1 pod`` or ``2 pods``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def json_document() -> LongDocument:
    """The document of ``--json``: its elements are findings in their plain form, its rest :func:`json_rest`."""
    return LongDocument('{\n  "findings": [')


def json_rest(report: Report) -> JSON:
    """What the document of ``--json`` holds beside the findings."""
    return {
        "cluster_version": None if report.minor is None else f"1.{report.minor}",
        "objects": report.objects,
        "affected": report.affected,
        "possible": report.possible,
        "problems": [
            {"file": problem.file, "line": problem.line or None, "text": problem.text} for problem in report.problems
        ],
    }


def summary(report: Report) -> str:
    """One line: how much was read and what was found."""
    parts = [f"{count(report.objects, 'object')} read", f"{report.affected} affected"]
    if report.possible:
        parts.append(f"{report.possible} possibly affected")
    for noun, number in (("pod-level block", report.harmless), ("runner configuration", report.harmless_runners)):
        if number:
            parts.append(f"{count(number, noun)} without consequence")
    if report.problems:
        parts.append(f"{count(len(report.problems), 'problem')} in reading")
    return ", ".join(parts)


def sarif_document() -> LongDocument:
    """A SARIF 2.1.0 log with one run: its elements are :func:`sarif_result`, its rest :func:`sarif_rest`."""
    head = f'{{\n"$schema": "{SARIF_SCHEMA}",\n"version": "2.1.0",\n"runs": [\n'
    return LongDocument(f'{head}{{\n  "results": [', "\n]\n}")


def sarif_result(finding: Finding, folder: str) -> JSON | None:
    """The result of a finding; None for one without consequence.

    Live objects have logical locations, files physical ones. Paths inside ``folder``, the absolute path of the working
    directory, are relative to it: code-scanning pages know files by their path in the repository. The template that
    Helm names is a related location.
    """
    if finding.affected is False or finding.reason == NO_EFFECT:
        return None
    return {
        "ruleId": RULES[finding.reason],
        "ruleIndex": list(RULES).index(finding.reason),
        "level": _LEVELS[finding.affected],
        "message": {"text": _message(finding)},
        "locations": [_location(finding, folder)],
        **_related(finding),
        "partialFingerprints": {"podSpec/v1": "|".join([finding.title, finding.path, finding.reason])},
    }


def sarif_rest(report: Report, version: str, folder: str) -> JSON:
    """What the run of a SARIF log holds beside the results. ``version`` is the lab's."""
    notifications = [
        {
            "descriptor": {"id": _UNREADABLE},
            "level": "error",
            "message": {"text": problem.text},
            "locations": [_physical(problem.file, problem.line or None, folder)],
        }
        for problem in report.problems
    ]
    rules = [_rule(RULES[reason], reason) for reason in RULES]
    notes = [{"id": _UNREADABLE, "shortDescription": {"text": "input that could not be read"}}]
    return {
        "tool": {"driver": {"name": TOOL, "version": version, "rules": rules, "notifications": notes}},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": not notifications, "toolExecutionNotifications": notifications}],
    }


def promql() -> str:
    """Queries for a fleet, with what each needs."""
    return _PROMQL


_PROMQL = """\
# Pods whose class is BestEffort although a container requests cpu or memory. Mostly this fault makes them; others are
# pods that were created with a status (up to 1.36 its class is stored unread), and for some scrapes pods that came or
# went meanwhile. Needs kube-state-metrics. The second half of the union covers pods whose init containers alone request
# something.
  (kube_pod_status_qos_class{qos_class="BestEffort"} == 1)
and on (namespace, pod, uid)
  (
      sum by (namespace, pod, uid) (kube_pod_container_resource_requests{resource=~"cpu|memory"}) > 0
    or
      sum by (namespace, pod, uid) (kube_pod_init_container_resource_requests{resource=~"cpu|memory"}) > 0
  )

# The same, counted by namespace and without pods that have ended.
count by (namespace) (
    (kube_pod_status_qos_class{qos_class="BestEffort"} == 1)
  and on (namespace, pod, uid)
    (
        sum by (namespace, pod, uid) (kube_pod_container_resource_requests{resource=~"cpu|memory"}) > 0
      or
        sum by (namespace, pod, uid) (kube_pod_init_container_resource_requests{resource=~"cpu|memory"}) > 0
    )
  and on (namespace, pod, uid)
    (kube_pod_status_phase{phase=~"Pending|Running"} == 1)
)

# API servers from 1.37 on that were told to keep the old behaviour. Needs their /metrics.
kubernetes_feature_enabled{name="PodLevelResourcesFixKubeletQOSClass"} == 0

# API servers on which the pod-level block counts at all.
kubernetes_feature_enabled{name="PodLevelResources"} == 1

# From 1.37 (alpha metric of the kubelet): admitted pods by class. An empty block counts as container_level here.
sum by (config_mode, qos_class) (rate(kubelet_pod_level_resources_admission_total[1h]))
"""


def _rule(identity: str, text: str) -> JSON:
    return {
        "id": identity,
        "shortDescription": {"text": text},
        "fullDescription": {"text": "Kubernetes 1.34-1.36 give such a pod another QoS class than 1.37 does."},
        "help": {
            "text": "Remove the pod-level key, set real requests and limits for cpu and memory in it (not in a pod "
            "that is to get exclusive CPUs: the static managers pass over pods with pod-level values), delete a status "
            "that the manifest carries, or upgrade to 1.37 and recreate the pods."
        },
    }


def _message(finding: Finding) -> str:
    old = finding.classes.get(Behaviour.EMPTY_BLOCK_SHADOWS.label)
    new = finding.classes.get(Behaviour.FIXED.label)
    text = f"{finding.title}: {finding.reason}"
    if finding.affected and old and new:
        text += f"; {old} on 1.34-1.36, {new} on 1.37"
    if finding.note:
        text += f"; {finding.note}"
    return f"{text}. Fix: {finding.fixes[0]}." if finding.fixes else f"{text}."


def _inside(file: str, folder: str) -> str:
    """The path relative to ``folder`` when it is inside it, else as it was given."""
    if not file.startswith(("/", "./", "../")) and "/../" not in file:
        return file
    base = posixpath.join(folder, "")
    whole = posixpath.normpath(posixpath.join(base, file))
    return whole.removeprefix(base) if whole.startswith(base) else file.removeprefix("./")


def _related(finding: Finding) -> JSON:
    if finding.source is None:
        return {}
    where = _physical(finding.source, None, "")
    return {"relatedLocations": [{"id": 1, **where, "message": {"text": "the template that renders it"}}]}


def _location(finding: Finding, folder: str) -> JSON:
    if finding.line is None:
        return {"logicalLocations": [{"fullyQualifiedName": finding.title, "kind": "resource"}]}
    return _physical(finding.file, finding.line, folder)


def _physical(file: str, line: int | None, folder: str) -> JSON:
    path = _inside(file.replace("\\", "/"), folder).encode("utf-8", "surrogatepass")
    uri = "".join(chr(byte) if byte in _URI_BYTES else f"%{byte:02X}" for byte in path)
    found: JSON = {"artifactLocation": {"uri": uri}}
    if line is not None:
        found["region"] = {"startLine": line}
    return {"physicalLocation": found}
