"""What a node says of itself, pure: the sections of ``node_facts.sh`` and the gates in a component's metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lab.model import Missing, ParseError

HEADER = "lab node-facts 1"
FAILED = re.compile(r"^\(exit \d+\)$", flags=re.MULTILINE)
"""What node_facts.sh writes below the output of a command that failed; that output is an error text, not a fact."""

KUBELET = r"^Kubernetes (v\S+)$"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Facts of one node. ``text`` is the whole output.

    ``runc`` is a bare version (``1.3.6``), since what it does depends on it; ``containerd`` keeps its build's suffix.
    """

    kernel: str
    cpu_model: str
    cpus: int
    memory_kib: int
    swap_kib: int
    cgroup_mode: str
    psi: bool
    containerd: str
    runc: str
    kubelet: str
    kubelet_sha256: str
    text: str


def sections(text: str) -> dict[str, str]:
    """Section name to its text; ParseError when the header or the end mark is missing."""
    lines = text.splitlines()
    if not lines or lines[0] != HEADER:
        raise ParseError("node facts without their header", text)
    if lines[-1] != "== end":
        raise ParseError("node facts without their end", text[-200:])
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines[1:]:
        if line.startswith("== "):
            current = found.setdefault(line[3:], [])
        else:
            current.append(line)
    return {name: "\n".join(body).strip() for name, body in found.items()}


def parse_node_facts(text: str) -> NodeFacts:
    """Output of ``node_facts.sh`` to facts; ParseError names the section that is missing or malformed."""
    found = sections(text)

    def pick(name: str, pattern: str) -> str:
        return _pick(found, name, pattern)

    cgroup_type = pick("cgroup-type", r"^(\S+)$")
    return NodeFacts(
        kernel=pick("kernel", r"^(\S+)$"),
        cpu_model=pick("cpu-model", r"^(.+)$"),
        cpus=int(pick("cpus", r"^(\d+)$")),
        memory_kib=int(pick("memory-kib", r"^(\d+)$")),
        swap_kib=int(pick("swap-kib", r"^(\d+)$")),
        cgroup_mode="v2" if cgroup_type == "cgroup2fs" else cgroup_type,
        psi=pick("psi", r"^(yes|no)$") == "yes",
        containerd=pick("containerd", r"\bv?(\d+\.\d+\.\d+\S*)"),
        runc=pick("runc", r"^runc version (\d+\.\d+\.\d+[^\s+]*)"),
        kubelet=pick("kubelet", KUBELET),
        kubelet_sha256=pick("kubelet-sha256", r"^([0-9a-f]{64})\b"),
        text=text,
    )


def kubelet_version(text: str) -> str:
    """What the kubelet calls itself in the output of ``node_facts.sh`` (``v1.36.3``); ParseError when it does not."""
    return _pick(sections(text), "kubelet", KUBELET)


def _pick(found: Mapping[str, str], name: str, pattern: str) -> str:
    match = re.search(pattern, found.get(name, ""), flags=re.MULTILINE)
    if match is None or FAILED.search(found[name]):
        raise ParseError(f"node facts, section {name}", found.get(name, "(absent)"))
    return match[1]


def feature_gates(metrics: str) -> dict[str, bool]:
    """Gate name to on/off from ``kubernetes_feature_enabled{name="…",stage="…"} 1``."""
    pattern = r'^kubernetes_feature_enabled\{name="([^"]+)",stage="[^"]*"\} ([01])$'
    return {name: value == "1" for name, value in re.findall(pattern, metrics, re.MULTILINE)}


def told_gate(gates: Mapping[str, bool], name: str, component: str) -> bool:
    """Whether a gate is on by :func:`feature_gates`; Missing when the component's metrics do not list it.

    A component lists every gate of its version: one that is not there was not read, and has no default here.
    """
    if name not in gates:
        listed = f"only {', '.join(sorted(gates))}" if gates else "no gate at all"
        raise Missing(f"what was read of the {component}'s metrics does not say whether {name} is on ({listed})")
    return gates[name]
