"""Findings as JSON, SARIF, tables and queries. Pure: what is printed is decided here, not where."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lab.model import EXIT_FALSIFIED, EXIT_OK, EXIT_USAGE, JSON
from lab.qos import Behaviour
from lab.scan.findings import Finding
from lab.scan.records import (
    COMPLETED_BLOCK,
    EMPTY_BLOCK,
    NO_EFFECT,
    POSTED_CLASS,
    RUNNER,
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
    POSTED_CLASS: "posted-class",
    STORED_CLASS: "stored-class",
}
_UNREADABLE = "unreadable"

COLUMNS = ("object", "where", "on 1.34-1.36", "on 1.37+", "today", "stored", "made by")
_URI_BYTES = frozenset(b"/-._~abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_LEVELS = {True: "error", None: "warning"}


@dataclass(slots=True)
class Report:
    """What a scan came to. ``objects`` counts everything that was read, with or without a pod spec."""

    findings: list[Finding] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    objects: int = 0
    minor: int | None = None

    @property
    def told(self) -> list[Finding]:
        """Findings that are affected or possibly so, in the order of the input."""
        return [finding for finding in self.findings if finding.affected is not False]

    @property
    def exit_code(self) -> int:
        """2 when something could not be read, else 1 when something is affected or possibly so, else 0."""
        if self.problems:
            return EXIT_USAGE
        return EXIT_FALSIFIED if self.told else EXIT_OK


def printable(text: str) -> str:
    """The text with control characters and what cannot be encoded written out: it comes from other people's files."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def as_json(report: Report) -> JSON:
    """The document of ``--json``."""
    return {
        "cluster_version": None if report.minor is None else f"1.{report.minor}",
        "objects": report.objects,
        "affected": sum(finding.affected is True for finding in report.findings),
        "possible": sum(finding.affected is None for finding in report.findings),
        "findings": [finding.as_json() for finding in report.findings],
        "problems": [
            {"file": problem.file, "line": problem.line or None, "text": problem.text} for problem in report.problems
        ],
    }


def table_rows(report: Report) -> list[list[str]]:
    """Rows below COLUMNS, one per finding that is told."""
    return [
        [
            printable(finding.title),
            printable(finding.where),
            finding.classes.get(Behaviour.EMPTY_BLOCK_SHADOWS.label, "possibly BestEffort"),
            finding.classes.get(Behaviour.FIXED.label, "by its containers"),
            finding.today or "-",
            printable(finding.stored or "-") + (" (wrong)" if finding.stored_wrong else ""),
            printable(" < ".join([*finding.owners, *([str(finding.producer)] if finding.producer else [])]) or "-"),
        ]
        for finding in report.told
    ]


def explanation(report: Report) -> list[str]:
    """Lines below the table: what is lost, what mends it and what does not, each said once with its objects."""
    lines: list[str] = []
    for heading, texts in (
        ("What they lose by the class of 1.34-1.36", _grouped(report.told, lambda finding: finding.loses)),
        ("What mends it (one is enough)", _grouped(report.told, lambda finding: finding.fixes)),
        ("What does not help", _grouped(report.told, lambda finding: finding.no_help)),
        ("Notes", _grouped(report.told, lambda finding: (finding.note,) if finding.note else ())),
    ):
        if texts:
            lines += ["", f"{heading}:", *(f"  - {printable(text)}" for text in texts)]
    wrong = [finding for finding in report.told if finding.stored_wrong]
    if wrong:
        count = f"{_count(len(wrong), 'live pod')} {'has' if len(wrong) == 1 else 'have'}"
        lines += ["", f"{count} the wrong class stored; it stays, through an upgrade too, until the pod is recreated."]
    return lines


def summary(report: Report) -> str:
    """One line: how much was read and what was found."""
    sure = sum(finding.affected is True for finding in report.findings)
    possible = len(report.told) - sure
    parts = [f"{_count(report.objects, 'object')} read", f"{sure} affected"]
    if possible:
        parts.append(f"{possible} possibly affected")
    harmless = len(report.findings) - len(report.told)
    if harmless:
        parts.append(f"{_count(harmless, 'pod-level block')} without consequence")
    if report.problems:
        parts.append(f"{_count(len(report.problems), 'problem')} in reading")
    return ", ".join(parts)


def as_sarif(report: Report, version: str, folder: str) -> JSON:
    """A SARIF 2.1.0 log with one run. Live objects have logical locations, files physical ones.

    Paths inside ``folder``, the absolute path of the working directory, are relative to it: code-scanning pages know
    files by their path in the repository. The template that Helm names is a related location.
    """
    rules = [_rule(RULES[reason], reason) for reason in RULES]
    identities = list(RULES.values())
    results = [
        {
            "ruleId": RULES[finding.reason],
            "ruleIndex": identities.index(RULES[finding.reason]),
            "level": _LEVELS[finding.affected],
            "message": {"text": _message(finding)},
            "locations": [_location(finding, folder)],
            **_related(finding),
            "partialFingerprints": {"podSpec/v1": "|".join([finding.title, finding.path, finding.reason])},
        }
        for finding in report.told
        if finding.reason != NO_EFFECT
    ]
    notifications = [
        {
            "descriptor": {"id": _UNREADABLE},
            "level": "error",
            "message": {"text": problem.text},
            "locations": [_physical(problem.file, problem.line or None, folder)],
        }
        for problem in report.problems
    ]
    invocation = {"executionSuccessful": not notifications, "toolExecutionNotifications": notifications}
    notes = [{"id": _UNREADABLE, "shortDescription": {"text": "input that could not be read"}}]
    driver = {"name": TOOL, "version": version, "rules": rules, "notifications": notes}
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "invocations": [invocation],
                  "results": results}],
    }  # fmt: skip


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


def _grouped(findings: Sequence[Finding], texts_of: Callable[[Finding], Sequence[str]]) -> list[str]:
    """Texts of all findings, each once; with the objects it is for where it is not for all."""
    titles: dict[str, list[str]] = {}
    for finding in findings:
        for text in texts_of(finding):
            titles.setdefault(text, []).append(finding.title)
    return [
        text if len(names) == len(findings) else f"{text} [{', '.join(names[:3])}{_more(len(names) - 3)}]"
        for text, names in titles.items()
    ]


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _rule(identity: str, text: str) -> JSON:
    return {
        "id": identity,
        "shortDescription": {"text": text},
        "fullDescription": {"text": "Kubernetes 1.34-1.36 give such a pod another QoS class than 1.37 does."},
        "help": {
            "text": "Remove the pod-level key, set real requests and limits for cpu and memory in it, delete a status "
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
