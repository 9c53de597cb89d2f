"""The classifier against real API servers: generated pods by server-side dry run, class and quota answer compared.

Each version runs natively, its control plane alone. For every pod the class in ``status.qosClass`` must be the
classifier's, and a ResourceQuota that allows no BestEffort pod must refuse it exactly when that class is BestEffort.
What the API server refuses for another reason has no class; the share of such pods is bounded.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from lab import processes, qos
from lab.artifacts import Sources, load_releases, resolve_upstream
from lab.cli.shared import cache_folder
from lab.distros.gates import with_dependents
from lab.distros.upstream import control_plane
from lab.host import Deadline
from lab.model import Cell, Gate
from lab.report import shapes
from tests.guests import wait_for
from tests.pod_strategies import LIMIT_RANGES, SHAPES, DrawnPod, limit_range, pods

PODS_EACH = 2000
LEAST_ADMITTED = 0.6
LEAST_OF_EACH = 30
"""Admitted pods of each shape and each class, at least."""

CELLS = (
    ("v1.34.4",),
    ("v1.35.4",),
    ("v1.36.3",),
    ("v1.37.2",),
    ("v1.37.2", f"{qos.FIX_GATE}=false"),
    ("v1.37.2", f"{qos.DEFAULTING_GATE}=false"),
    ("v1.36.3", f"{qos.POD_LEVEL_GATE}=false"),
    ("v1.37.2", f"{qos.POD_LEVEL_GATE}=false"),
)
MAY_BE_REFUSED = ("empty `claims`", "ephemeral container")
"""Documented shapes that validation refuses, the first where the block counts, the second at create."""

PATIENCE_S = 180
"""How long a control plane on a busy machine may take to make what follows from an object, or to be able to answer."""

QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "no-best-effort"},
    "spec": {"hard": {"pods": "0"}, "scopes": ["BestEffort"]},
}


@dataclass(frozen=True)
class Server:
    """One connection to an API server as its administrator."""

    name: str
    minor: int
    gates: dict[str, bool]
    connection: http.client.HTTPSConnection

    @property
    def behaviour(self) -> qos.Behaviour:
        return qos.behaviour_of(self.minor, self.gates)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        self.connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = self.connection.getresponse()
        return response.status, json.loads(response.read())

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any], int]:
        """Status, answer and number of tries: again while it speaks of the server itself, as when etcd was too slow."""
        deadline = Deadline.after(PATIENCE_S)
        tries = 0
        while True:
            status, answer = self.call("POST", path, body)
            tries += 1
            if (status < 500 and status != 429) or deadline.remaining_s() <= 0:
                return status, answer, tries
            time.sleep(1)

    def make(self, path: str, body: dict[str, Any]) -> None:
        status, answer, tries = self.post(path, body)
        # What was made although the server could not say so is there at the next try.
        assert status == 201 or (status == 409 and tries > 1), answer

    def dry_run(self, namespace: str, pod: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return self.post(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)[:2]


def manifest(spec: dict[str, Any]) -> dict[str, Any]:
    # Nothing will run, so no token is asked for.
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "generated"},
        "spec": {**spec, "automountServiceAccountToken": False},
    }


def make_namespaces(server: Server) -> None:
    """For every LimitRange a namespace without and one with the quota; ready for pods."""
    for name, items in LIMIT_RANGES.items():
        for namespace in (name, f"{name}-quota"):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            server.make("/api/v1/namespaces", body)
            if items:
                server.make(f"/api/v1/namespaces/{namespace}/limitranges", limit_range(items))
        server.make(f"/api/v1/namespaces/{name}-quota/resourcequotas", QUOTA)
    for name in LIMIT_RANGES:
        for namespace in (name, f"{name}-quota"):
            account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
            wait_for("service account", lambda path=account: server.call("GET", path)[0] == 200, PATIENCE_S)
        quota = f"/api/v1/namespaces/{name}-quota/resourcequotas/no-best-effort"
        wait_for(
            "quota status",
            lambda path=quota: "hard" in server.call("GET", path)[1].get("status", {}), PATIENCE_S,
        )  # fmt: skip


@pytest.fixture(scope="module", params=CELLS, ids="+".join)
def server(
    request: pytest.FixtureRequest, artifacts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    version, *gates = request.param
    folder = tmp_path_factory.mktemp("differential")
    cell = with_dependents(Cell(distro="upstream", version=version, gates=tuple(Gate.parse(gate) for gate in gates)))
    sources = Sources(cache=cache_folder(), releases=load_releases(), folder=artifacts, download=False)
    binaries = resolve_upstream(version, sources, lambda text: None)
    try:
        plane, _ = control_plane.start(
            binaries=binaries,
            cell=cell,
            folder=folder / "control-plane",
            node_folder=folder,
            addresses=("127.0.0.1",),
            deadline=Deadline.after(300),
        )
        keys = folder / "control-plane" / "pki"
        context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        context.load_cert_chain(keys / "admin.crt", keys / "admin.key")
        connection = http.client.HTTPSConnection("127.0.0.1", plane.api_port, context=context, timeout=PATIENCE_S)
        found = Server(
            "+".join(request.param), cell.minor, {gate.name: gate.enabled for gate in cell.gates}, connection
        )
        make_namespaces(found)
        yield found
        connection.close()
    finally:
        assert processes.end_marked(folder) == []


def compare(server: Server, drawn: DrawnPod, counted: Counter[tuple[str, str]]) -> None:
    """One pod in the namespace of its LimitRange, without and with the quota."""
    limit_ranges = [limit_range(LIMIT_RANGES[drawn.ranges])]
    pod = manifest(drawn.spec)
    status, answer = server.dry_run(drawn.ranges, pod)
    quota_status, quota_answer = server.dry_run(f"{drawn.ranges}-quota", pod)
    if status != 201:
        assert status in (403, 422), answer
        assert quota_status == status, quota_answer
        counted["refused", drawn.shape] += 1
        return
    stored = answer["status"]["qosClass"]
    expected = qos.stored_class(pod, server.minor, server.gates, limit_ranges)
    assert stored == expected, f"stored {stored}, classifier {expected}; spec as stored: {answer['spec']}"
    if expected == "BestEffort":
        assert quota_status == 403, quota_answer
        assert "exceeded quota: no-best-effort" in quota_answer["message"]
        assert "requested: pods=1" in quota_answer["message"]
    else:
        assert quota_status == 201, quota_answer
        assert quota_answer["status"]["qosClass"] == expected
    counted["shape", drawn.shape] += 1
    counted["class", expected] += 1


def test_class_and_quota_answer_are_the_api_servers(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    counted: Counter[tuple[str, str]] = Counter()

    phases = [hypothesis.Phase.generate, hypothesis.Phase.shrink]

    @hypothesis.settings(max_examples=PODS_EACH, database=None, phases=phases)
    @hypothesis.given(pods())
    def sent(drawn: DrawnPod) -> None:
        compare(server, drawn, counted)

    sent()
    admitted = sum(number for (kind, _), number in counted.items() if kind == "class")
    refused = sum(number for (kind, _), number in counted.items() if kind == "refused")
    classes = ", ".join(f"{name} {number}" for (kind, name), number in sorted(counted.items()) if kind == "class")
    with capsys.disabled():
        print(
            f"\n{server.name} ({server.behaviour.label}): {admitted + refused} pods sent, {admitted} agreed on "
            f"({classes}), {refused} refused; {time.monotonic() - begun:.0f} s"
        )
        print("  by shape: " + "; ".join(f"{name} {counted['shape', name]}" for name in SHAPES))
    assert admitted + refused >= PODS_EACH
    assert admitted >= LEAST_ADMITTED * (admitted + refused)
    short = {name: counted["shape", name] for name in SHAPES if counted["shape", name] < LEAST_OF_EACH}
    short |= {
        name: counted["class", name]
        for name in ("BestEffort", "Burstable", "Guaranteed")
        if counted["class", name] < LEAST_OF_EACH
    }
    assert short == {}


def documented(label: str) -> dict[str, str]:
    """The column of docs/shapes.md for a behaviour, by shape; empty when it has none."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "shapes.md").read_text()
    table = [line for line in text.split("\n\n## Static pods")[0].splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return {row[0]: row[header.index(label)] for row in rows} if label in header else {}


def with_images(spec: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("initContainers", "containers", "ephemeralContainers")
    images = {"image": "registry.invalid/none"}
    return {**spec, **{key: [{**images, **each} for each in spec[key]] for key in keys if key in spec}}


def test_every_documented_shape_has_the_class_of_its_column(server: Server) -> None:
    column = documented(server.behaviour.label)
    found: dict[str, str] = {}
    expected: dict[str, str] = {}
    namespaces: dict[str, str] = {}
    for shape in shapes.SHAPES:
        key = json.dumps(shape.limit_ranges)
        if key not in namespaces:
            name = namespaces[key] = f"shapes-{len(namespaces)}"
            server.make("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            for number, own in enumerate(shape.limit_ranges):
                body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": f"l{number}"}, **own}
                server.make(f"/api/v1/namespaces/{name}/limitranges", body)
            account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
            wait_for("service account", lambda path=account: server.call("GET", path)[0] == 200, PATIENCE_S)
        status, answer = server.dry_run(namespaces[key], manifest(with_images(shape.spec)))
        if status != 201:
            assert status == 422, answer
            assert shape.name.startswith(MAY_BE_REFUSED), f"{shape.name}: {answer}"
            continue
        found[shape.name] = answer["status"]["qosClass"]
        # One behaviour has no column; the classifier speaks for it.
        by_classifier = qos.classify(shape.spec, server.behaviour, shape.limit_ranges)
        expected[shape.name] = column[shape.name] if column else by_classifier
    assert found == expected
    assert len(found) >= len(shapes.SHAPES) - len(MAY_BE_REFUSED)


@pytest.mark.parametrize("posted", ["Guaranteed", "nonsense"])
def test_posted_class_is_kept_up_to_1_36(server: Server, posted: str) -> None:
    pod = manifest({"containers": [{"name": "c", "image": "registry.invalid/none"}]})
    pod["status"] = {"qosClass": posted}
    expected = qos.stored_class(pod, server.minor, server.gates)
    assert expected == (posted if server.minor < 37 else "BestEffort")
    status, answer = server.dry_run("none", pod)
    assert (status, answer["status"]["qosClass"]) == (201, expected)
    assert server.dry_run("none-quota", pod)[0] == (403 if expected == "BestEffort" else 201)
