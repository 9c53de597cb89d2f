"""How fast `lab scan` is beside jq, kube-score and kube-linter, on the same generated manifests.

Made are 10,000 Deployments, one in a hundred with an empty pod-level block: as one JSON List, as one YAML stream, and
as a directory of files. Each round starts every program once, in turn, as a user would; the table shows medians of
wall and of processor time, start-up included, and the largest memory. The two linters look for other things (none
reads a pod-level block), so they say what reading such manifests costs a common tool; jq does the search of the
article, in the wider form that finds templates too. A program that is not there is named and left out. ``--big GB``
adds the memory for a long stream, ``--affected`` that for a stream in which every object is affected, which is where
the findings themselves would fill it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from tabulate import tabulate

JQ = '[.items[] | select([.. | objects | select(has("containers")) | .resources] | any(. == {}))] | length'
GO_PROGRAMS = {
    "kube-score": ("github.com/zegl/kube-score", "./cmd/kube-score"),
    "kube-linter": ("golang.stackrox.io/kube-linter", "./cmd/kube-linter"),
}
BUILD_TIMEOUT_S = 1200


def manifest(number: int, rng: random.Random, affected: bool) -> dict[str, Any]:
    """A Deployment as charts make them."""
    name = f"app-{number}"
    full = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}}
    container = {
        "name": "app",
        "image": f"registry.example/app:{number}",
        "ports": [{"containerPort": 8080, "name": "http"}],
        "env": [{"name": f"KEY_{key}", "value": f"value {key}"} for key in range(4)],
        "resources": full if affected else rng.choice([{}, full]),
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 10},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    spec: dict[str, Any] = {
        "serviceAccountName": "app",
        "containers": [container],
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    if affected:
        spec["resources"] = {}

    def labels() -> dict[str, str]:
        # A new one each time: the dumper would write an alias for one that is shared.
        return {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "bench"}

    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": f"ns-{number % 50}", "labels": labels()},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels()},
            "template": {"metadata": {"labels": labels()}, "spec": spec},
        },
    }


def inputs_in(folder: Path) -> tuple[Path, Path, Path]:
    """Where the JSON List, the YAML stream and the directory are."""
    return folder / "all.json", folder / "all.yaml", folder / "manifests"


def write_inputs(folder: Path, count: int) -> None:
    """The manifests as a JSON List, a YAML stream and a directory."""
    rng = random.Random(6)
    items = [manifest(number, rng, number % 100 == 7) for number in range(count)]
    documents = [yaml.dump(item, Dumper=yaml.CSafeDumper, sort_keys=False) for item in items]
    as_json, as_yaml, as_folder = inputs_in(folder)
    as_json.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=4))
    as_yaml.write_text("".join(f"---\n{text}" for text in documents))
    as_folder.mkdir()
    for number, text in enumerate(documents):
        (as_folder / f"{number:05d}.yaml").write_text(text)


def go_program(name: str, folder: Path) -> str | None:
    """The program from PATH, or built from its Go module; None, loudly, when it cannot be had."""
    found = shutil.which(name)
    if found or not shutil.which("go"):
        return found
    module, package = GO_PROGRAMS[name]
    environment = {**os.environ, "GOBIN": str(folder)}
    command = ["go", "install", f"{module}/{package.removeprefix('./')}@latest"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        print(f"{name}: cannot be built: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return str(folder / name)


def programs(
    folder: Path, inputs: tuple[Path, Path, Path], options: argparse.Namespace
) -> Iterator[tuple[str, str, list[str]]]:
    """Input, program and command line of everything that can be run here."""
    as_json, as_yaml, as_folder = inputs
    scan = [sys.executable, "-m", "lab", "scan", "--json"]
    alone = [sys.executable, "-m", "lab.cli.scan", "--json"]
    for label, path in (("JSON", as_json), ("YAML", as_yaml), ("directory", as_folder)):
        if options.verb:
            yield label, "lab scan", [*scan, str(path)]
        yield label, "kubectl-lab_qos", [*alone, str(path)]
    jq = shutil.which("jq")
    if jq:
        yield "JSON", "jq", [jq, JQ, str(as_json)]
    else:
        print("jq: not on PATH, left out", file=sys.stderr)
    score = go_program("kube-score", folder)
    if score:
        yield "YAML", "kube-score", [score, "score", "--output-format", "ci", str(as_yaml)]
    linter = go_program("kube-linter", folder)
    if linter:
        yield "YAML", "kube-linter", [linter, "lint", str(as_yaml)]
        yield "directory", "kube-linter", [linter, "lint", str(as_folder)]
    for name, path in (("kube-score", score), ("kube-linter", linter)):
        if path is None:
            print(f"{name}: not on PATH and not built, left out", file=sys.stderr)


def measure(command: list[str], feed: Callable[[Any], None] | None = None) -> tuple[float, float, int]:
    """Wall seconds, processor seconds and largest memory (KiB) of one run."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL if feed is None else subprocess.PIPE,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    if feed is not None:
        threading.Thread(target=feed, args=(process.stdin,), daemon=True).start()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{command[:4]} ended with {process.returncode}")
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def long_stream(kind: str, size: int, *, affected: bool = False) -> Callable[[Any], None]:
    """A writer of one List of about ``size`` bytes."""
    item = manifest(1, random.Random(1), affected=affected)

    def write(stream: Any) -> None:
        with stream:
            if kind == "YAML":
                text = yaml.dump([item], Dumper=yaml.CSafeDumper).encode()
                stream.write(b"apiVersion: v1\nitems:\n")
                for _ in range(size // len(text)):
                    stream.write(text)
                stream.write(b"kind: List\n")
            else:
                text = json.dumps(item).encode() + b",\n"
                stream.write(b'{"apiVersion": "v1", "items": [')
                for _ in range(size // len(text)):
                    stream.write(text)
                stream.write(text.rstrip(b",\n") + b'], "kind": "List"}\n')

    return write


def main() -> None:
    """Run every program in turn and print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--count", type=int, default=10_000, help="manifests")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--big", type=float, default=0.0, metavar="GB", help="also scan one List of this size")
    options.add_argument("--affected", type=float, default=0.0, metavar="GB", help="and one List, all affected")
    options.add_argument("--no-verb", dest="verb", action="store_false", help="leave out `lab scan`")
    options.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.write:
        write_inputs(given.write, given.count)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # In a process of its own: Linux counts the memory of the process that starts a program as the program's.
        subprocess.run([sys.executable, __file__, "--write", name, "--count", str(given.count)], check=True)
        chosen = list(programs(folder, inputs_in(folder), given))
        runs: dict[int, list[tuple[float, float, int]]] = {number: [] for number in range(len(chosen))}
        for _ in range(given.rounds):
            for number, (_, _, command) in enumerate(chosen):
                runs[number].append(measure(command))
    rows = [
        [label, program, *(f"{statistics.median(run[part] for run in runs[number]):.2f}" for part in (0, 1)),
         max(run[2] for run in runs[number]) >> 10]
        for number, (label, program, _) in enumerate(chosen)
    ]  # fmt: skip
    print(tabulate(sorted(rows), headers=["input", "program", "wall s", "processor s", "MiB"]))
    if given.big:
        command = [sys.executable, "-m", "lab.cli.scan", "-"]
        big = [[kind, *measure(command, long_stream(kind, int(given.big * 1e9)))] for kind in ("JSON", "YAML")]
        headers = [f"List of {given.big:g} GB", "wall s", "processor s", "MiB"]
        table = [[kind, f"{wall:.0f}", f"{used:.0f}", memory >> 10] for kind, wall, used, memory in big]
        print(tabulate(table, headers=headers))
    if given.affected:
        rows = []
        for flags in (["--json"], ["--sarif"], []):
            command = [sys.executable, "-m", "lab.cli.scan", *flags, "-"]
            wall, used, memory = measure(command, long_stream("JSON", int(given.affected * 1e9), affected=True))
            rows.append([" ".join(flags) or "table", f"{wall:.0f}", f"{used:.0f}", memory >> 10])
        print(tabulate(rows, headers=[f"{given.affected:g} GB, all affected", "wall s", "processor s", "MiB"]))


if __name__ == "__main__":
    main()
