"""Pods as the API server returned them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lab.model import ParseError
from lab.parse.node_facts import NodeFacts, feature_gates, parse_node_facts, told_gate
from lab.qos import CLASS_GATES, FIX_GATE, POD_LEVEL_GATE, Behaviour, behaviour_for

SYSTEM_CRITICAL_PRIORITY = 2_000_000_000
"""From this priority on a pod is critical (pkg/apis/scheduling/types.go, IsCriticalPod)."""


def parse_pods(text: str, namespace: str = "lab") -> dict[str, dict[str, Any]]:
    """A pod list in JSON to the pods of one namespace by name; ParseError when it is not one."""
    return {name.partition("/")[2]: pod for name, pod in all_pods(text).items() if name.startswith(f"{namespace}/")}


def critical_pods(text: str) -> set[str]:
    """Critical pods of a pod list as ``namespace/name``."""
    return {
        name for name, pod in all_pods(text).items() if pod["spec"].get("priority", 0) >= SYSTEM_CRITICAL_PRIORITY
    }


def all_pods(text: str) -> dict[str, dict[str, Any]]:
    """A pod list in JSON to pods by ``namespace/name``; ParseError when it is not one."""
    try:
        items = json.loads(text)["items"]
        return {f"{item['metadata']['namespace']}/{item['metadata']['name']}": item for item in items}
    except (ValueError, KeyError, TypeError) as error:
        raise ParseError("not a pod list", text) from error


def stored_block(pod: Mapping[str, Any]) -> str:
    """The pod-level block as stored: ``absent``, or its JSON."""
    spec = pod["spec"]
    return json.dumps(spec["resources"], sort_keys=True) if "resources" in spec else "absent"


def container_id(pod: Mapping[str, Any]) -> str | None:
    """Bare id of the first container (without ``containerd://``), or None before it has one."""
    statuses = pod.get("status", {}).get("containerStatuses", [])
    text = statuses[0].get("containerID", "") if statuses else ""
    return text.rpartition("//")[2] or None


def behaviour_on(raw: Mapping[str, str]) -> tuple[Behaviour, NodeFacts]:
    """How this node's API server classifies pods, from what the components said of themselves.

    The class of a pod that comes from the API server is the API server's; its gates decide. Missing when its metrics
    do not list a gate that decides on this version.
    """
    facts = parse_node_facts(raw["node-facts.txt"])
    gates = feature_gates(raw["gates-apiserver.txt"])
    minor = int(facts.kubelet.split(".")[1])
    told = {name: told_gate(gates, name, "apiserver") for name, since in CLASS_GATES.items() if minor >= since}
    return behaviour_for(minor, told.get(POD_LEVEL_GATE, False), told.get(FIX_GATE, False)), facts
