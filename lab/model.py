"""The records that every other module speaks in, and the errors that carry an exit code.

Nothing here does I/O. Units stand in the names (``timeout_s``, ``memory_bytes``, ``cpu_milli``).
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

JSON = dict[str, Any]

EXIT_OK = 0
EXIT_FALSIFIED = 1
EXIT_USAGE = 2
EXIT_UNKNOWN = 3
EXIT_RESULTS = 4
EXIT_NODE = 5
EXIT_LEFT_BEHIND = 6
EXIT_INTERRUPTED = 130


_WEIGHT = (
    EXIT_INTERRUPTED, EXIT_LEFT_BEHIND, EXIT_NODE, EXIT_RESULTS, EXIT_USAGE, EXIT_FALSIFIED, EXIT_UNKNOWN, EXIT_OK,
)  # fmt: skip


def heaviest_code(codes: Iterable[int]) -> int:
    """The one exit code of several: 130 > 6 > 5 > 4 > 2 > 1 > 3 > 0; 0 for none."""
    return min(codes, key=_WEIGHT.index, default=EXIT_OK)


class LabError(Exception):
    """Base of every error that the lab reports to a person: one text, one exit code."""

    exit_code = EXIT_NODE


class UsageError(LabError):
    """Bad input: a flag, a file that a person wrote, an unknown name. Says what to do instead."""

    exit_code = EXIT_USAGE


class NoSuchNode(UsageError):
    """No node has this name: where it would be known, it was looked for. Never raised when that could not be done."""


class ResultsError(LabError):
    """Stored results are damaged or do not belong together."""

    exit_code = EXIT_RESULTS


class NodeError(LabError):
    """The provider, the connection or the installation failed."""

    exit_code = EXIT_NODE


class TransportError(NodeError):
    """The connection to a node failed; whether the command ran is not known."""


class CommandError(NodeError):
    """A command ended with an exit status that its caller did not expect."""


class WaitTimeout(NodeError):
    """A wait passed its deadline; the text carries the last state seen."""


class LeftBehind(LabError):
    """Clean-up could not remove everything; the text carries the ids."""

    exit_code = EXIT_LEFT_BEHIND


class Interrupted(BaseException):
    """A person or a signal ended the run.

    No Exception, as KeyboardInterrupt is none: what goes on after an error must not take it for one.
    """

    exit_code = EXIT_INTERRUPTED


class ParseError(LabError):
    """Text from a node does not have the expected form; the message quotes the text."""

    exit_code = EXIT_UNKNOWN

    def __init__(self, what: str, text: str) -> None:
        shown = text if len(text) <= 200 else text[:200] + "…"
        super().__init__(f"{what}: {shown!r}")


class Missing(LabError):
    """A value that a claim needs was not measured; the verdict is UNKNOWN, never a pass."""

    exit_code = EXIT_UNKNOWN


VERSION_PATTERN = re.compile(r"^v1\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(\+k3s[1-9][0-9]*)?$")
GATED = ("apiserver", "kubelet")
"""The components that feature gates can be set for."""
GATE_PATTERN = re.compile(r"^([A-Za-z][A-Za-z0-9]*)=(true|false)(?:@(apiserver|kubelet))?$")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Gate:
    """One feature gate set by the user; ``component`` None means API server and kubelet alike."""

    name: str
    enabled: bool
    component: str | None = None

    @classmethod
    def parse(cls, text: str) -> Gate:
        """``NAME=true|false[@apiserver|@kubelet]`` as on the command line; UsageError for anything else."""
        match = GATE_PATTERN.fullmatch(text)
        if match is None:
            raise UsageError(
                f"{text!r} is not NAME=true or NAME=false, optionally with @apiserver or @kubelet "
                "(example: PodLevelResourcesFixKubeletQOSClass=false)"
            )
        return cls(name=match[1], enabled=match[2] == "true", component=match[3])

    def __str__(self) -> str:
        suffix = f"@{self.component}" if self.component else ""
        return f"{self.name}={'true' if self.enabled else 'false'}{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One column of the experiment: a distribution, a version and its gates."""

    distro: str
    version: str
    gates: tuple[Gate, ...] = ()

    @property
    def minor(self) -> int:
        """36 for ``v1.36.3``."""
        return minor_of(self.version)

    @property
    def name(self) -> str:
        """Folder name: ``upstream-v1.37.2+PodLevelResourcesFixKubeletQOSClass=false``."""
        return "+".join([f"{self.distro}-{self.version}", *(str(gate) for gate in sorted(self.gates, key=str))])

    @property
    def label(self) -> str:
        """Short text for a table row: ``v1.37.2 PodLevelResourcesFixKubeletQOSClass=false``."""
        return " ".join([self.version, *(str(gate) for gate in sorted(self.gates, key=str))])

    @property
    def release(self) -> str:
        """What of the distribution is installed for it: cells of one release and the same gates are one."""
        return k3s_release(self.version) if self.distro == "k3s" else self.version

    def gate(self, name: str, component: str, default: bool) -> bool:
        """Value that ``component`` (apiserver or kubelet) was told for a gate, else ``default``."""
        for gate in self.gates:
            if gate.name == name and gate.component in (None, component):
                return gate.enabled
        return default

    def as_json(self) -> JSON:
        """Plain form for stamp.json."""
        return {"distro": self.distro, "version": self.version, "gates": sorted(str(gate) for gate in self.gates)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cell:
        """Inverse of :meth:`as_json`."""
        gates = tuple(Gate.parse(text) for text in data["gates"])
        return cls(distro=data["distro"], version=data["version"], gates=gates)


def minor_of(version: str) -> int:
    """Minor number of a Kubernetes version; UsageError when it is not ``v1.N.P``."""
    match = VERSION_PATTERN.fullmatch(version)
    if match is None:
        raise UsageError(f"version {version!r} is not of the form v1.36.3")
    return int(match[1])


def k3s_release(version: str) -> str:
    """The release that a version on the command line means: ``v1.34.12`` is ``v1.34.12+k3s1``, ``+k3sN`` stays.

    UsageError when it is no Kubernetes version.
    """
    minor_of(version)
    return version if "+" in version else f"{version}+k3s1"


class Outcome(enum.StrEnum):
    """What a claim came to. MISSED: the prediction was wrong, the claim is not falsified."""

    HELD = "HELD"
    MISSED = "MISSED"
    FALSIFIED = "FALSIFIED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One claim judged against one attempt."""

    claim: str
    outcome: Outcome
    reason: str
    claim_digest: str

    def as_json(self) -> JSON:
        """Plain form for verdict.json."""
        return {
            "claim": self.claim,
            "outcome": self.outcome.value,
            "reason": self.reason,
            "claim_digest": self.claim_digest,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Inverse of :meth:`as_json`."""
        return cls(
            claim=data["claim"],
            outcome=Outcome(data["outcome"]),
            reason=data["reason"],
            claim_digest=data["claim_digest"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where an attempt ran.

    ``must_agree`` (provider, emulation, cgroup_mode, cgroup_driver, vcpus, memory_class, control_plane): cells
    of one comparison agree on all of it. ``shown`` (kernel, cpu_model, containerd, runc, artifact sha256 …): columns
    and notes only. Values are text; a fact that could not be read is absent.
    """

    must_agree: Mapping[str, str] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)

    @property
    def barred(self) -> tuple[str, ...]:
        """Why nothing that was measured here may ever count; empty when it may. A stand-in says that it is one."""
        return ("it ran on a stand-in for k3s",) if "stand-in" in self.shown.get("k3s", "") else ()

    def as_json(self) -> JSON:
        """Plain form for stamp.json."""
        return {"must_agree": dict(sorted(self.must_agree.items())), "shown": dict(sorted(self.shown.items()))}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Environment:
        """Inverse of :meth:`as_json`."""
        return cls(must_agree=dict(data["must_agree"]), shown=dict(data["shown"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What went into collecting one attempt. ``inputs`` maps an input's name to its sha256 or its JSON value.

    Names: ``stage``, ``collect_version``, ``manifest/<case>``, ``script/<file>``, ``param/<name>``.
    """

    inputs: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON of the inputs."""
        return sha256_json(dict(self.inputs))

    def difference(self, other: Stamp) -> list[str]:
        """Names of the inputs whose values differ, sorted."""
        names = set(self.inputs) | set(other.inputs)
        return sorted(name for name in names if _canonical(self.inputs, name) != _canonical(other.inputs, name))


def _canonical(inputs: Mapping[str, Any], name: str) -> str | None:
    """One text per value, so that 1, 1.0 and true differ here as they do in the digest; None when absent."""
    return canonical_json(inputs[name]) if name in inputs else None


def canonical_json(value: Any) -> str:
    """One text per value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_json(value: Any) -> str:
    """sha256 (hex) of :func:`canonical_json`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sha256_text(text: str) -> str:
    """sha256 (hex) of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()
