"""Expected cgroup values and paths: what a request, a limit and a QoS class become on a node.

Two formulas turn CPU shares into ``cpu.weight``. The kubelet writes pod cgroups and the QoS slices with the
linear one; a container runtime writes containers, with the linear one before runc 1.3.2 and with the
log-quadratic one since.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lab.model import ParseError, UsageError

MIN_SHARES = 2
MAX_SHARES = 262144
QUOTA_PERIOD_US = 100_000
MIN_QUOTA_US = 1_000

GUARANTEED = "Guaranteed"
BURSTABLE = "Burstable"
BEST_EFFORT = "BestEffort"
_TIERS = {GUARANTEED: "", BURSTABLE: "burstable", BEST_EFFORT: "besteffort"}
_CLASSES = {"": GUARANTEED, "burstable": BURSTABLE, "besteffort": BEST_EFFORT}

GUARANTEED_OOM_SCORE_ADJ = -997
BEST_EFFORT_OOM_SCORE_ADJ = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormula:
    """A named conversion of CPU shares to ``cpu.weight``."""

    name: str
    weight: Callable[[int], int]


def milli_cpu_to_shares(milli: int) -> int:
    """CPU shares of a request in millicores (``MilliCPUToShares``, ``pkg/kubelet/cm/helpers_linux.go``).

    UsageError when negative.
    """
    _not_negative("a CPU request", milli)
    return min(max(milli * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def weight_linear(shares: int) -> int:
    """``cpu.weight`` as the kubelet computes it for pods and slices, and runc before 1.3.2 for containers.

    ``getCPUWeight``, ``pkg/kubelet/cm/cgroup_manager_linux.go``. Zero shares mean unset and stay 0.
    UsageError when negative.
    """
    _not_negative("CPU shares", shares)
    if shares == 0:
        return 0
    clamped = min(max(shares, MIN_SHARES), MAX_SHARES)
    return 1 + (clamped - MIN_SHARES) * 9999 // (MAX_SHARES - MIN_SHARES)


def weight_log_quadratic(shares: int) -> int:
    """``cpu.weight`` as runc 1.3.2 and later computes it for containers.

    ``ConvertCPUSharesToCgroupV2Value``, ``opencontainers/cgroups`` v0.0.3, ``utils.go``. Zero shares mean
    unset and stay 0. UsageError when negative.
    """
    _not_negative("CPU shares", shares)
    if shares == 0:
        return 0
    if shares <= MIN_SHARES:
        return 1
    if shares >= MAX_SHARES:
        return 10000
    log = math.log2(shares)
    return math.ceil(math.pow(10, (log * log + 125 * log) / 612 - 7 / 34))


LINEAR = WeightFormula(name="linear", weight=weight_linear)
LOG_QUADRATIC = WeightFormula(name="log-quadratic", weight=weight_log_quadratic)

_RUNC_VERSION = re.compile(r"(?:runc version )?v?(\d+)\.(\d+)\.(\d+)(?![\d.])", re.ASCII)


def container_weight_formula(runc_version: str) -> WeightFormula:
    """Formula that this runc uses for a container's ``cpu.weight``.

    ``runc_version`` is ``1.3.2``, ``v1.3.2`` or the output of ``runc --version``. The change came with
    1.3.2 and is in every 1.4; the 1.2 line never got it. ParseError when no version can be read.
    """
    match = _RUNC_VERSION.match(runc_version.strip())
    if match is None:
        raise ParseError("not a runc version", runc_version)
    version = (int(match[1]), int(match[2]), int(match[3]))
    return LOG_QUADRATIC if version >= (1, 3, 2) else LINEAR


def cpu_max(limit_milli: int | None) -> str:
    """``cpu.max`` of a CPU limit in millicores, None or 0 for no limit: ``50000 100000``, ``max 100000``.

    ``MilliCPUToQuota``, ``pkg/kubelet/cm/helpers_linux.go``, with the default period. A runtime on the
    systemd driver may round a limit that is no multiple of 10m up to one. UsageError when negative.
    """
    if limit_milli is None or limit_milli == 0:
        return f"max {QUOTA_PERIOD_US}"
    _not_negative("a CPU limit", limit_milli)
    return f"{max(limit_milli * QUOTA_PERIOD_US // 1000, MIN_QUOTA_US)} {QUOTA_PERIOD_US}"


def memory_max(limit_bytes: int | None, page_bytes: int = 4096) -> str:
    """``memory.max`` of a limit in bytes, None or 0 for no limit, as it reads back: whole pages, or ``max``.

    ``memory_max_write`` counts pages and drops a fraction (``mm/memcontrol.c``). UsageError when negative.
    """
    if limit_bytes is None or limit_bytes == 0:
        return "max"
    _not_negative("a memory limit", limit_bytes)
    return str(limit_bytes // page_bytes * page_bytes)


def oom_score_adj(qos: str, memory_request_bytes: int, capacity_bytes: int) -> int:
    """``oom_score_adj`` of a regular container's processes.

    ``GetContainerOOMScoreAdjust``, ``pkg/kubelet/qos/policy.go``. ``memory_request_bytes`` is the
    container's request, ``capacity_bytes`` the machine's memory, not the allocatable part. Node-critical
    pods, sidecars and real pod-level requests follow further rules that are not here. UsageError for an
    unknown class, a negative request or no capacity.
    """
    _tier(qos)
    _not_negative("a memory request", memory_request_bytes)
    if capacity_bytes <= 0:
        raise UsageError(f"node memory of {capacity_bytes} bytes is not positive: give the machine's memory")
    if qos == GUARANTEED:
        return GUARANTEED_OOM_SCORE_ADJ
    if qos == BEST_EFFORT:
        return BEST_EFFORT_OOM_SCORE_ADJ
    adjust = 1000 - 1000 * memory_request_bytes // capacity_bytes
    return min(max(adjust, 1000 + GUARANTEED_OOM_SCORE_ADJ), BEST_EFFORT_OOM_SCORE_ADJ - 1)


def qos_path(qos: str, driver: str, root: str = "") -> str:
    """Cgroup of a QoS class below the cgroup mount, without a leading slash.

    ``driver`` is ``systemd`` or ``cgroupfs``; ``root`` the kubelet's ``cgroupRoot`` (``/kubelet`` under
    kind). Guaranteed pods sit directly under ``kubepods``. Source: ``ToSystemd`` and ``ToCgroupfs``,
    ``pkg/kubelet/cm/cgroup_manager_linux.go``. UsageError for an unknown class or driver.
    """
    return _path(_parts(qos, root), driver)


def pod_path(uid: str, qos: str, driver: str, root: str = "") -> str:
    """Cgroup of a pod below the cgroup mount; arguments and errors as :func:`qos_path`.

    ``uid`` is ``metadata.uid``, for a static pod its config hash (``GetPodContainerName``,
    ``pkg/kubelet/cm/pod_container_manager_linux.go``).
    """
    if not uid or "/" in uid:
        raise UsageError(f"pod UID {uid!r} cannot be part of a cgroup path: give metadata.uid of the pod")
    return _path([*_parts(qos, root), f"pod{uid}"], driver)


def qos_slice(qos: str) -> str:
    """:func:`qos_path` for the systemd driver and the default root."""
    return qos_path(qos, "systemd")


def pod_slice(uid: str, qos: str) -> str:
    """:func:`pod_path` for the systemd driver and the default root."""
    return pod_path(uid, qos, "systemd")


def container_scope(container_id: str, driver: str, runtime: str = "containerd") -> str:
    """Name of a container's cgroup inside its pod's cgroup.

    ``container_id`` is bare, or with its scheme as in the pod status (``containerd://…``). ``runtime`` is
    ``containerd`` or ``crio``. UsageError for another runtime or driver.
    """
    bare = container_id.rpartition("//")[2]
    prefixes = {("containerd", "systemd"): "cri-containerd-", ("containerd", "cgroupfs"): ""}
    prefixes |= {("crio", "systemd"): "crio-", ("crio", "cgroupfs"): "crio-"}
    if (runtime, driver) not in prefixes:
        raise UsageError(
            f"runtime {runtime!r} with cgroup driver {driver!r} is not known: "
            "use containerd or crio with systemd or cgroupfs"
        )
    return prefixes[runtime, driver] + bare + (".scope" if driver == "systemd" else "")


# The back-references make slice, tier and pod agree: a BestEffort pod below the Burstable slice is no match.
_SYSTEMD_PATH = re.compile(
    r"(?:^|/)(?P<root>(?:[^/]+-)?)kubepods\.slice/(?P=root)kubepods"
    r"(?:-pod[\w.]+\.slice(?=/|$)|-(?P<tier>burstable|besteffort)\.slice"
    r"(?:$|/(?P=root)kubepods-(?P=tier)-pod[\w.]+\.slice(?=/|$)))"
)
_CGROUPFS_PATH = re.compile(
    r"(?:^|/)kubepods/(?:pod[\w.-]+(?=/|$)|(?P<tier>burstable|besteffort)(?:$|/pod[\w.-]+(?=/|$)))"
)


def qos_from_path(path: str) -> str | None:
    """QoS class that a cgroup path stands for; None when it is neither a pod's nor a QoS tier's.

    ``path`` may be a line of ``/proc/PID/cgroup`` (``0::/kubepods.slice/…``), a path under the mount, below a
    pod, or below another cgroup (kind, nested nodes); the innermost match counts. ``kubepods`` alone is None:
    all classes live below it.
    """
    text = path.strip().rstrip("/")
    found = [*_SYSTEMD_PATH.finditer(text), *_CGROUPFS_PATH.finditer(text)]
    if not found:
        return None
    return _CLASSES[max(found, key=lambda match: match.start())["tier"] or ""]


def fair_share(
    cpus: float, tree: Mapping[str, tuple[float, Mapping[str, tuple[float, float]]]]
) -> dict[str, dict[str, float]]:
    """Cores that an ideal fluid scheduler gives each pod of a two-level tree of weights.

    ``tree``: slice name to (weight, pods), pods: name to (weight, demand in cores). What a slice or pod
    does not demand goes to its siblings by weight. A Guaranteed pod is a slice of its own with its pod's
    weight. Real weights act per run queue, so a measurement may differ. UsageError for weights or CPUs that
    are not positive, or negative demand.
    """
    if not cpus > 0:
        raise UsageError(f"{cpus} CPUs cannot be shared: give a positive number")
    slices = {name: (weight, sum(demand for _, demand in pods.values())) for name, (weight, pods) in tree.items()}
    shares = _fill(cpus, slices)
    return {name: _fill(shares[name], pods) for name, (_, pods) in tree.items()}


def _fill(capacity: float, children: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Water-filling: children (weight, demand) in order of demand per weight, so each pass is final."""
    for name, (weight, demand) in children.items():
        if not weight > 0 or not demand >= 0:
            raise UsageError(f"{name}: weight {weight} must be positive and demand {demand} not negative")
    ordered = sorted(children.items(), key=lambda item: item[1][1] / item[1][0])
    left = capacity
    given: dict[str, float] = {}
    for position, (name, (weight, demand)) in enumerate(ordered):
        waiting = math.fsum(other for _, (other, _) in ordered[position:])
        given[name] = min(demand, left * weight / waiting)
        left -= given[name]
    return {name: given[name] for name in children}


def _parts(qos: str, root: str) -> list[str]:
    """Internal cgroup name of a class, as in ``NewCgroupName``."""
    tier = _tier(qos)
    return [*(part for part in root.split("/") if part), "kubepods", *([tier] if tier else [])]


def _path(parts: list[str], driver: str) -> str:
    """The parts as the driver's path; in systemd's each prefix is a directory and a dash an underscore."""
    if driver == "cgroupfs":
        return "/".join(parts)
    if driver == "systemd":
        escaped = [part.replace("-", "_") for part in parts]
        return "/".join("-".join(escaped[: end + 1]) + ".slice" for end in range(len(escaped)))
    raise UsageError(f"cgroup driver {driver!r} is not known: use systemd or cgroupfs")


def _tier(qos: str) -> str:
    """Name of the class in cgroup paths, empty for Guaranteed."""
    if qos not in _TIERS:
        raise UsageError(f"QoS class {qos!r} is not known: use {', '.join(_TIERS)}")
    return _TIERS[qos]


def _not_negative(what: str, value: int) -> None:
    if value < 0:
        raise UsageError(f"{what} cannot be negative: {value}")
