"""What the node-side programs share: line output, cgroup look-up, the kubelet's stats summary.

Only the standard library, since a node has nothing else. Output is one JSON object a line; the first line names the
program and the version of its format, the last line has kind "end". A reader that misses the end line knows that the
text is cut.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
import time
from typing import Any
from urllib.parse import urlsplit

CGROUPS = "/sys/fs/cgroup"


def emit(kind: str, **facts: Any) -> None:
    """One line of output, flushed at once, with the wall clock in seconds."""
    sys.stdout.write(json.dumps({"kind": kind, "t": round(time.time(), 3), **facts}, sort_keys=True) + "\n")
    sys.stdout.flush()


def read(path: str) -> str | None:
    """Text of a file without its last newline, or None when it is not there (any more)."""
    try:
        with open(path, errors="replace") as file:
            return file.read().rstrip("\n")
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in (19, 95):  # ENODEV, EOPNOTSUPP: the cgroup is being removed, or the file means nothing here
            return None
        raise


def pod_cgroup(uid: str) -> str | None:
    """Folder of a pod's cgroup, found by its uid in either spelling, or None."""
    wanted = (f"pod{uid}", f"pod{uid.replace('-', '_')}")
    for folder, names, _ in os.walk(CGROUPS):
        depth = folder[len(CGROUPS) :].count("/")
        for name in names:
            if any(part in name for part in wanted):
                return os.path.join(folder, name)
        # Pods are at most four levels down (kind: kubelet.slice/…/…-burstable.slice/…-pod); containers are below them.
        names[:] = [name for name in names if "kube" in name or depth > 0] if depth < 4 else []
    return None


def container_cgroups(pod: str) -> list[str]:
    """Folders of the containers (the sandbox included) in a pod's cgroup."""
    return sorted(entry.path for entry in os.scandir(pod) if entry.is_dir())


def processes(folder: str) -> list[int]:
    """Process ids in a cgroup and in those below it."""
    found: list[int] = []
    for place, _, _ in os.walk(folder):
        text = read(os.path.join(place, "cgroup.procs"))
        found += [int(word) for word in (text or "").split()]
    return found


def keyed(text: str | None, key: str) -> int | None:
    """Value of ``key`` in a flat keyed file such as cpu.stat or memory.stat, or None."""
    for line in (text or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == key:
            return int(words[1])
    return None


def meminfo_kib(key: str) -> int | None:
    """One line of /proc/meminfo in KiB, or None."""
    for line in (read("/proc/meminfo") or "").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    return None


class Summary:
    """The kubelet's /stats/summary over one kept connection."""

    def __init__(self, url: str, folder: str) -> None:
        context = ssl.create_default_context(cafile=f"{folder}/ca.crt")
        context.load_cert_chain(f"{folder}/reader.crt", f"{folder}/reader.key")
        self._context = context
        self._place = urlsplit(url)
        self._connection: http.client.HTTPSConnection | None = None

    def read(self) -> dict[str, Any]:
        """See :func:`condense`; or an error text under ``error``."""
        try:
            if self._connection is None:
                self._connection = http.client.HTTPSConnection(
                    str(self._place.hostname), self._place.port, timeout=8, context=self._context
                )
            self._connection.request("GET", "/stats/summary?only_cpu_and_memory=true")
            answer = self._connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                return {"error": f"status {answer.status}"}
            return condense(json.loads(body))
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            self._connection = None
            return {"error": f"{type(error).__name__}: {error}"}


def condense(data: dict[str, Any]) -> dict[str, Any]:
    """The memory part of a stats summary: node figures, and by namespace/name working set (bytes) and its time."""
    memory = data["node"]["memory"]
    pods = {}
    for pod in data["pods"] or []:
        pods[f"{pod['podRef']['namespace']}/{pod['podRef']['name']}"] = pod.get("memory", {})
    return {
        "available": memory.get("availableBytes"),
        "working_set": memory.get("workingSetBytes"),
        "time": memory.get("time"),
        "pods": {name: figures.get("workingSetBytes") for name, figures in pods.items()},
        "times": {name: figures.get("time") for name, figures in pods.items()},
    }


def pod_memory(pods: dict[str, str]) -> dict[str, dict[str, int | None] | None]:
    """For each pod name (to its cgroup folder): bytes charged and inactive file bytes, or None when it is gone."""
    found: dict[str, dict[str, int | None] | None] = {}
    for name, folder in pods.items():
        current = read(f"{folder}/memory.current")
        if current is None:
            found[name] = None
        else:
            inactive = keyed(read(f"{folder}/memory.stat"), "inactive_file")
            found[name] = {"current": int(current), "inactive_file": inactive}
    return found


def pairs(words: list[str]) -> dict[str, str]:
    """``name=value`` arguments to a dict."""
    return dict(word.split("=", 1) for word in words)
