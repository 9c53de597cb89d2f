"""Whether a host can be a node: one probe that only reads, its raw text, and what speaks against it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lab.model import ParseError

PROJECT_FOLDER = "/opt/lab"
"""Where distributions put what they bring; removed as a whole afterwards, so it must not be there before."""

HEADER = "lab preflight 1"
LEAST_MEMORY_KIB = 3584 * 1024
LEAST_CPUS = 2
OLDEST_PYTHON = (3, 9)
CONTROLLERS = ("cpu", "memory")
PORTS = {6443: "API server", 10250: "kubelet"}
LISTEN = "0A"
"""TCP_LISTEN in include/net/tcp_states.h, as /proc/net/tcp shows it."""

# The kernel cuts names to 15 characters.
PROCESSES = re.compile(
    r"kubelet|kubelite|k3s(?:-server|-agent)?|rke2|k0s|kube-(?:apiserver|controller|scheduler|proxy)"
)
UNITS = re.compile(
    r"(?:lab-|snap\.[\w-]+\.)?kubelet\.service|k3s(?:-agent)?\.service|rke2-(?:server|agent)\.service"
    r"|k0s(?:controller|worker)\.service|snap\.microk8s\.[\w.-]+\.service"
)
PATHS = (
    "/etc/kubernetes", "/var/lib/kubelet", "/etc/rancher", "/var/lib/rancher", "/var/lib/k0s", "/var/snap/microk8s",
)  # fmt: skip

SCRIPT = f"""\
LC_ALL=C; export LC_ALL; PATH=$PATH:/usr/sbin:/sbin
echo "{HEADER}"
section() {{ echo "== $1"; shift; "$@" 2>/dev/null; }}
there() {{ for path; do [ -e "$path" ] && echo "$path"; done; }}
section system uname -s -m
section init cat /proc/1/comm
section booted there /run/systemd/system
section cgroup stat -f -c %T /sys/fs/cgroup
section controllers cat /sys/fs/cgroup/cgroup.controllers
section python python3 -c 'import http.client, json, ssl, sys; print("%d.%d" % sys.version_info[:2])'
section cpus getconf _NPROCESSORS_ONLN
section memory sed -n 's/^\\(MemTotal\\|SwapTotal\\): *\\([0-9]*\\) kB/\\1 \\2/p' /proc/meminfo
section virtualization systemd-detect-virt --vm
section os sed -n 's/^PRETTY_NAME="*\\([^"]*\\)"*$/\\1/p' /etc/os-release
section processes sh -c 'cat /proc/[0-9]*/comm | sort -u'
section units systemctl list-unit-files --full --plain --no-legend --no-pager
section paths there {" ".join(PATHS)} {PROJECT_FOLDER}
section tcp cat /proc/net/tcp /proc/net/tcp6
echo "== end"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the probe saw. A value that could not be read is None."""

    system: str | None
    init: str | None
    cgroup_type: str | None
    controllers: tuple[str, ...]
    python: tuple[int, int] | None
    cpus: int | None
    memory_kib: int | None
    swap_kib: int | None
    virtualization: str | None
    os_name: str | None
    has_project_folder: bool
    kubernetes: tuple[str, ...]

    @property
    def memory_class_mib(self) -> int:
        """Memory as it is sold: the kernel keeps 1-4 % for itself, so up to the next eighth of a power of two."""
        if self.memory_kib is None:
            raise ValueError("the memory is not known")
        mib = -(-self.memory_kib // 1024)
        step = 1 << max(0, mib.bit_length() - 4)
        return -(-mib // step) * step


def parse(text: str) -> Findings:
    """Output of :data:`SCRIPT`; ParseError when it is not whole."""
    found = _sections(text)

    def one(name: str, pattern: str) -> str | None:
        match = re.search(pattern, found[name], re.MULTILINE)
        return match[1] if match else None

    def number(name: str, pattern: str) -> int | None:
        digits = one(name, pattern)
        return None if digits is None else int(digits)

    python = re.fullmatch(r"(\d+)\.(\d+)", found["python"].strip())
    paths = found["paths"].split()
    return Findings(
        system=one("system", r"^(\S+ \S+)$"),
        init=one("init", r"^(\S+)$") if found["booted"].strip() else None,
        cgroup_type=one("cgroup", r"^(\S+)$"),
        controllers=tuple(found["controllers"].split()),
        python=None if python is None else (int(python[1]), int(python[2])),
        cpus=number("cpus", r"^(\d+)$"),
        memory_kib=number("memory", r"^MemTotal (\d+)$"),
        swap_kib=number("memory", r"^SwapTotal (\d+)$"),
        virtualization=one("virtualization", r"^(\S+)$"),
        os_name=one("os", r"^(.+)$"),
        has_project_folder=PROJECT_FOLDER in paths,
        kubernetes=_kubernetes(found, [path for path in paths if path != PROJECT_FOLDER]),
    )


def _sections(text: str) -> dict[str, str]:
    lines = text.splitlines()
    if not lines or lines[0] != HEADER or lines[-1] != "== end":
        raise ParseError("the probe of the host has no header or no end", text)
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines[1:-1]:
        if line.startswith("== "):
            current = found.setdefault(line[3:], [])
        else:
            current.append(line)
    missing = set(re.findall(r"^section (\w+)", SCRIPT, re.MULTILINE)) - found.keys()
    if missing:
        raise ParseError(f"the probe of the host lacks {', '.join(sorted(missing))}", text)
    return {name: "\n".join(body) for name, body in found.items()}


def _kubernetes(found: Mapping[str, str], paths: list[str]) -> tuple[str, ...]:
    """Everything that tells of a Kubernetes on the host, in words."""
    processes = [name for name in found["processes"].splitlines() if PROCESSES.fullmatch(name)]
    units = [line.split()[0] for line in found["units"].splitlines() if line.strip()]
    signs = [f"process {name}" for name in processes]
    signs += [f"unit {name}" for name in units if UNITS.fullmatch(name)]
    signs += paths
    signs += [f"port {port} ({PORTS[port]})" for port in sorted(_listening(found["tcp"]) & PORTS.keys())]
    return tuple(signs)


def _listening(text: str) -> set[int]:
    """TCP ports in state LISTEN, from /proc/net/tcp and tcp6 (``sl local_address rem_address st …``)."""
    rows = [line.split() for line in text.splitlines()]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and row[3] == LISTEN}


def problems(found: Findings, *, accept_kubernetes: bool) -> list[str]:
    """What speaks against using the host, each with what to do; empty when nothing does."""
    said = [*_kernel_problems(found), *_size_problems(found)]
    if found.python is None:
        said.append("python3 is missing or lacks a part of its library; install the package python3")
    elif found.python < OLDEST_PYTHON:
        said.append("its python3 is {}.{}; {}.{} or later is needed".format(*found.python, *OLDEST_PYTHON))
    if found.virtualization is None:
        said.append("systemd-detect-virt says nothing, so results could not be compared with others")
    if found.has_project_folder:
        said.append(
            f"{PROJECT_FOLDER} is there already, and would be removed afterwards; if an earlier run left it, "
            f"`sh {PROJECT_FOLDER}/node-scripts/upstream_remove.sh` takes it away"
        )
    if found.kubernetes and not accept_kubernetes:
        said.append(
            f"Kubernetes is on it: {', '.join(found.kubernetes)}; use another host, or --accept-kubernetes if both may "
            "suffer"
        )
    return said


def _kernel_problems(found: Findings) -> list[str]:
    said = []
    if found.system != "Linux x86_64":
        said.append(f"it is {found.system or 'of unknown kind'}; the binaries that are measured are for Linux x86_64")
    if found.init != "systemd":
        said.append(f"PID 1 is {found.init or 'unknown'}, not systemd, which runs the kubelet's unit and its slices")
    if found.cgroup_type != "cgroup2fs":
        said.append(
            f"/sys/fs/cgroup is {found.cgroup_type or 'unknown'}, not cgroup2fs; boot with "
            "systemd.unified_cgroup_hierarchy=1"
        )
        return said
    lacking = [name for name in CONTROLLERS if name not in found.controllers]
    if lacking:
        said.append(f"it has no cgroup controller for {', '.join(lacking)} (see cgroup_disable in /proc/cmdline)")
    return said


def _size_problems(found: Findings) -> list[str]:
    said = []
    if found.cpus is None or found.cpus < LEAST_CPUS:
        have = "an unknown number of" if found.cpus is None else str(found.cpus)
        said.append(f"it has {have} CPUs; at least {LEAST_CPUS} are needed")
    if found.memory_kib is None or found.memory_kib < LEAST_MEMORY_KIB:
        have = "an unknown number of" if found.memory_kib is None else str(found.memory_kib // 1024)
        said.append(f"it has {have} MiB of memory; at least {LEAST_MEMORY_KIB // 1024} are needed")
    return said


def facts(found: Findings) -> dict[str, str]:
    """Facts of a host without :func:`problems`; what a distribution records of it."""
    known = {
        # QEMU without an accelerator is all that systemd-detect-virt(1) calls qemu.
        "emulation": "tcg" if found.virtualization == "qemu" else str(found.virtualization),
        "vcpus": str(found.cpus),
        "memory_mib": str(found.memory_class_mib),
    }
    if found.os_name is not None:
        known["image"] = found.os_name
    if found.swap_kib is not None:
        known["swap_mib"] = str(found.swap_kib // 1024)
    return known

