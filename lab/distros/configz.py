"""The kubelet's configuration as it says that it is (``/configz``), compared with what it was told. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.distros.contract import EVICTION_THRESHOLD, PRESSURE_TRANSITION_S
from lab.kubectl import as_object
from lab.model import Cell, NodeError, ParseError

CGROUP_DRIVER = "systemd"


def kubelet_config(configz: str) -> Mapping[str, Any]:
    """The configuration in the answer; ParseError when that is no JSON object, or holds none."""
    found = as_object(configz).get("kubeletconfig")
    if not isinstance(found, dict):
        raise ParseError("/configz without kubeletconfig", configz)
    return found


def check(node: str, told: Cell, config: Mapping[str, Any]) -> None:
    """NodeError with every field in which the kubelet of ``node`` has not taken what it was told.

    ``told`` has the dependent gates too: ``featureGates`` lists what was set, none of the defaults, and must be that
    exactly. Of ``evictionHard`` the signal for memory is compared: k3s has signals of its own for disks.
    """
    eviction = config.get("evictionHard")
    fields: dict[str, tuple[object, object]] = {
        "cgroupDriver": (CGROUP_DRIVER, config.get("cgroupDriver")),
        "evictionHard memory.available": (
            EVICTION_THRESHOLD,
            eviction.get("memory.available") if isinstance(eviction, dict) else None,
        ),
        "evictionPressureTransitionPeriod": (
            f"{PRESSURE_TRANSITION_S}s",
            config.get("evictionPressureTransitionPeriod"),
        ),
        "featureGates": (
            {gate.name: gate.enabled for gate in sorted(told.gates) if gate.component in (None, "kubelet")},
            config.get("featureGates", {}),
        ),
    }
    wrong = [f"{name} is {found!r}, not {wanted!r}" for name, (wanted, found) in fields.items() if found != wanted]
    if wrong:
        raise NodeError(f"{node}: the kubelet runs with other settings than it was told (/configz): {'; '.join(wrong)}")
