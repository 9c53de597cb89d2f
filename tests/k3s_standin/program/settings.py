"""config.yaml and the kubelet's drop-in: the part of YAML that the lab writes, and the keys that it uses. Pure.

Strict in both: a form or a key that is not known here is refused, never passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .layout import NODE_NAME, Refused

Scalar = str | int | bool
Value = Scalar | list[Scalar] | dict[str, Scalar]

_LINE = re.compile(r"(?P<indent> *)(?P<item>- )?(?:(?P<key>[A-Za-z][A-Za-z0-9.-]*):(?: (?P<value>.+))?|(?P<text>.+))")
_PLAIN = re.compile(r"[A-Za-z0-9/][A-Za-z0-9./:=,_+-]*")
_OTHER_TYPE = re.compile(
    r"[0-9][0-9:_-]*(?:\.[0-9_]*)?(?:e[+-][0-9]+)?|0[box][0-9a-f_]+|yes|no|on|off|null|true|false|=", re.IGNORECASE
)
"""Plain words that YAML takes for a number, a date, a truth value or nothing."""

_QUOTED = re.compile(r"'((?:[^']|'')*)'")

DISABLE = ("coredns", "local-storage", "metrics-server", "servicelb", "traefik")
_GATES = re.compile(r"feature-gates=(?P<gates>[A-Za-z0-9]+=(?:true|false)(?:,[A-Za-z0-9]+=(?:true|false))*)")
_DURATION = re.compile(r"[1-9][0-9]*s")
_QUANTITY = re.compile(r"[1-9][0-9]*(?:Mi|Gi)")


@dataclass(frozen=True)
class Config:
    """What config.yaml says. ``gates`` are those of the API server, which are everybody's."""

    pause_image: str
    verbosity: int
    gates: Mapping[str, bool] = field(default_factory=dict)


def parse_yaml(text: str, source: str) -> dict[str, Value]:
    """A mapping of plain or single-quoted scalars, of lists and of mappings of them; Refused quotes any other line."""
    found: dict[str, Value] = {}
    open_key: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{source}, line {number}: {line!r}"
        match = _LINE.fullmatch(line)
        if match is None or len(match["indent"]) not in (0, 2):
            raise Refused(f"{where} is of a form that the lab does not write")
        if match["item"] and not match["indent"] and match["text"] and open_key is not None:
            values = found[open_key] = found[open_key] or []
            if not isinstance(values, list):
                raise Refused(f"{where} mixes a list with something else")
            values.append(_scalar(match["text"], where))
        elif match["indent"] and match["key"] and match["value"] and not match["item"] and open_key is not None:
            values = found[open_key] = found[open_key] or {}
            if not isinstance(values, dict) or match["key"] in values:
                raise Refused(f"{where} has a key twice, or mixes a mapping with something else")
            values[match["key"]] = _scalar(match["value"], where)
        elif match["key"] and not match["indent"] and not match["item"]:
            _close(found, open_key, source)
            if match["key"] in found:
                raise Refused(f"{where} has a key twice")
            open_key = None if match["value"] else match["key"]
            found[match["key"]] = _scalar(match["value"], where) if match["value"] else ""
        else:
            raise Refused(f"{where} is of a form that the lab does not write")
    _close(found, open_key, source)
    return found


def _close(found: Mapping[str, Value], open_key: str | None, source: str) -> None:
    if open_key is not None and not found[open_key]:
        raise Refused(f"{source}: {open_key} has no value")


def _scalar(text: str, where: str) -> Scalar:
    quoted = _QUOTED.fullmatch(text)
    if quoted:
        return quoted[1].replace("''", "'")
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"0|[1-9][0-9]*", text):
        return int(text)
    if not _PLAIN.fullmatch(text) or text.endswith(":") or _OTHER_TYPE.fullmatch(text):
        raise Refused(f"{where}: {text} is of a form that the lab does not write")
    return text


def config(text: str) -> Config:
    """config.yaml. Refused names a key or value that the lab does not write, and each one that is missing."""
    source = "config.yaml"
    found = parse_yaml(text, source)
    _check(found, source, {
        "bind-address": lambda value: value == "127.0.0.1",
        "disable": lambda value: value == list(DISABLE),
        "node-name": lambda value: value == NODE_NAME,
        "pause-image": lambda value: isinstance(value, str) and ":" in value,
        "v": lambda value: type(value) is int,
        "write-kubeconfig-mode": lambda value: value == "0600",
        "kube-apiserver-arg": lambda value: _is_gates(value),
    }, optional=("kube-apiserver-arg",))  # fmt: skip
    arguments = found.get("kube-apiserver-arg")
    gates = _gates(arguments[0]) if isinstance(arguments, list) else {}
    return Config(pause_image=str(found["pause-image"]), verbosity=int(str(found["v"])), gates=gates)


def check_drop_in(text: str, source: str, gates: Mapping[str, bool]) -> None:
    """The kubelet's drop-in, which the kubelet itself reads; Refused also when its gates are not the API server's.

    k3s has one registry of gates in its one process. Here are several processes, so a difference could not be shown.
    """
    found = parse_yaml(text, source)
    _check(found, source, {
        "apiVersion": lambda value: value == "kubelet.config.k8s.io/v1beta1",
        "kind": lambda value: value == "KubeletConfiguration",
        "address": lambda value: value == "127.0.0.1",
        "evictionHard": lambda value: _is_threshold(value),
        "evictionPressureTransitionPeriod": lambda value: bool(_DURATION.fullmatch(str(value))),
        "nodeStatusUpdateFrequency": lambda value: bool(_DURATION.fullmatch(str(value))),
        "featureGates": lambda value: isinstance(value, dict) and all(type(entry) is bool for entry in value.values()),
    }, optional=("featureGates",))  # fmt: skip
    if found.get("featureGates", {}) != dict(gates):
        raise Refused(f"{source}: featureGates are not those of kube-apiserver-arg in config.yaml: {dict(gates)}")


def _check(
    found: Mapping[str, Value], source: str, known: Mapping[str, Callable[[Value], bool]], *, optional: tuple[str, ...]
) -> None:
    for key, value in found.items():
        if key not in known:
            raise Refused(f"{source}: the key {key} is not among those that the lab uses (docs/k3s.md)")
        if not known[key](value):
            raise Refused(f"{source}: {key}: {value!r} is not what the lab is known to write (docs/k3s.md)")
    missing = sorted(known.keys() - found.keys() - set(optional))
    if missing:
        raise Refused(f"{source}: {', '.join(missing)} is missing")


def _is_gates(value: Value) -> bool:
    return isinstance(value, list) and len(value) == 1 and bool(_GATES.fullmatch(str(value[0])))


def _gates(argument: Scalar) -> dict[str, bool]:
    pairs = [part.split("=") for part in str(argument).removeprefix("feature-gates=").split(",")]
    return {name: state == "true" for name, state in pairs}


def _is_threshold(value: Value) -> bool:
    return (
        isinstance(value, dict)
        and list(value) == ["memory.available"]
        and bool(_QUANTITY.fullmatch(str(value["memory.available"])))
    )
