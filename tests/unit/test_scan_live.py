from __future__ import annotations

import http.server
import json
import socket
import threading
import urllib.parse

import pytest
import yaml

from lab.cli import scan
from lab.model import UsageError
from lab.scan import live
from lab.scan.records import Item

SPEC = {"resources": {}, "containers": [{"name": "app", "resources": {"requests": {"cpu": "1"}}}]}
LISTS = {
    "/apis/apps/v1/deployments": "DeploymentList", "/apis/apps/v1/statefulsets": "StatefulSetList",
    "/apis/apps/v1/daemonsets": "DaemonSetList", "/apis/apps/v1/replicasets": "ReplicaSetList",
    "/apis/batch/v1/cronjobs": "CronJobList", "/apis/batch/v1/jobs": "JobList",
    "/api/v1/replicationcontrollers": "ReplicationControllerList", "/api/v1/podtemplates": "PodTemplateList",
    "/api/v1/pods": "PodList", "/api/v1/limitranges": "LimitRangeList",
}  # fmt: skip


def meta(name, uid, owner=None, namespace="n"):
    found = {"name": name, "namespace": namespace, "uid": uid}
    if owner:
        kind, owner_name, owner_uid = owner
        found["ownerReferences"] = [{"kind": kind, "name": owner_name, "uid": owner_uid, "controller": True}]
    return found


def template(spec):
    return {"template": {"spec": spec}}


class Cluster:
    """The few paths of an API server that a scan needs. Any other request is kept as an offence."""

    def __init__(self):
        self.lists = {path: [] for path in LISTS}
        self.refused: dict[str, int] = {}
        self.requests: list[tuple[str, str]] = []
        self.offences: list[str] = []
        self.page = 2
        self.version = (200, {"major": "1", "minor": "36", "gitVersion": "v1.36.3"})

    def answer(self, method, target):
        path, _, query = target.partition("?")
        options = dict(urllib.parse.parse_qsl(query))
        self.requests.append((path, query))
        if method == "GET" and path == "/version/":
            return self.version
        plain = path
        namespace = None
        parts = path.split("/")
        if "namespaces" in parts:
            at = parts.index("namespaces")
            namespace = parts[at + 1]
            plain = "/".join([*parts[:at], *parts[at + 2 :]])
        if method != "GET" or plain not in LISTS or not set(options) <= {"limit", "continue"}:
            self.offences.append(f"{method} {target}")
            return 404, {"kind": "Status", "message": "no such path"}
        if plain in self.refused:
            return self.refused[plain], {"kind": "Status", "message": f"{plain} is forbidden"}
        items = [item for item in self.lists[plain] if namespace in (None, item["metadata"]["namespace"])]
        start = int(options.get("continue", "0"))
        limit = min(self.page, int(options["limit"]))
        more = {"continue": str(start + limit)} if start + limit < len(items) else {}
        return 200, {"kind": LISTS[plain], "apiVersion": "v1", "metadata": more, "items": items[start : start + limit]}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    state = Cluster()

    class Handler(http.server.BaseHTTPRequestHandler):
        def _any(self):
            status, value = state.answer(self.command, self.path)
            body = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "lab",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    # The client reads KUBECONFIG once, when it is first imported.
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield state
    server.shutdown()
    server.server_close()
    assert state.offences == []


def run(capsys, *argv):
    code = scan.run_alone([*argv, "--json"], name="lab scan")
    out = capsys.readouterr().out
    return code, json.loads(out) if out else None


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ((200, {}), "its answer names none: {}"),
        ((200, {"major": "", "minor": "", "gitVersion": None}), "its answer names none"),
        ((200, {"gitVersion": "latest"}), "its answer names none"),
        ((403, {"kind": "Status", "message": "no one may ask"}), "the cluster refused with 403: no one may ask"),
        ((200, b"<html>"), "the cluster's answer is no JSON"),
    ],
    ids=["nothing", "empty", "other", "refused", "html"],
)
def test_a_version_that_is_not_known_is_told_and_the_rest_is_read(version, said, cluster, capsys):
    cluster.version = version
    cluster.lists["/api/v1/pods"] = [
        {"metadata": meta("p", "p1"), "spec": SPEC, "status": {"qosClass": "BestEffort"}}
    ]

    code, data = run(capsys, "--live")
    assert (code, data["cluster_version"]) == (2, None)
    [finding] = data["findings"]
    assert (finding["affected"], finding["today"], finding["classes"]["1.37+"]) == ("yes", None, "Burstable")
    [problem] = data["problems"]
    assert problem["text"].startswith(f"the API server's version is not known: {said}")
    assert problem["text"].endswith("; give it by --cluster-version")
    assert run(capsys, "--live", "--cluster-version", "1.36")[0] == 1


def test_a_version_without_its_git_name_is_taken_from_its_parts(cluster, capsys):
    cluster.version = (200, {"major": "1", "minor": "35+"})

    assert run(capsys, "--live")[1]["cluster_version"] == "1.35"


def test_pods_are_read_in_pages_with_their_owner_chain_and_stored_class(cluster, capsys):
    cluster.lists["/apis/apps/v1/deployments"] = [
        {"metadata": meta("web", "d1"), "spec": template({"containers": [{"name": "a"}]})}
    ]
    cluster.lists["/apis/apps/v1/replicasets"] = [
        {"metadata": meta("web-1", "r1", ("Deployment", "web", "d1")), "spec": template(SPEC)}
    ]
    cluster.lists["/api/v1/pods"] = [
        {"metadata": meta(f"web-1-{n}", f"p{n}", ("ReplicaSet", "web-1", "r1")), "spec": SPEC,
         "status": {"qosClass": "BestEffort" if n else "Burstable"}}
        for n in range(5)
    ]  # fmt: skip

    code, data = run(capsys, "--live")
    assert code == 1
    assert data["cluster_version"] == "1.36"
    assert [finding["name"] for finding in data["findings"]] == [f"web-1-{n}" for n in range(5)]
    assert {tuple(finding["owners"]) for finding in data["findings"]} == {("ReplicaSet/web-1", "Deployment/web")}
    assert [finding["stored_wrong"] for finding in data["findings"]] == [False, True, True, True, True]
    assert {finding["today"] for finding in data["findings"]} == {"BestEffort"}
    assert {finding["fixes"][0].partition(",")[0] for finding in data["findings"]} == {
        "change the template of Deployment/web"
    }
    assert sum(path == "/api/v1/pods" for path, _ in cluster.requests) == 3


def test_from_1_37_on_the_advice_for_a_pod_is_to_recreate_it(cluster, capsys):
    cluster.version = (200, {"major": "1", "minor": "37", "gitVersion": "v1.37.2"})
    cluster.lists["/api/v1/pods"] = [{"metadata": meta("a", "a"), "spec": SPEC, "status": {"qosClass": "BestEffort"}}]

    _, data = run(capsys, "--live")
    assert [finding["fixes"] for finding in data["findings"]] == [["recreate the pod"]]


def test_a_controlled_replica_set_is_told_once_by_its_deployment(cluster, capsys):
    cluster.lists["/apis/apps/v1/deployments"] = [{"metadata": meta("web", "d1"), "spec": template(SPEC)}]
    cluster.lists["/apis/apps/v1/replicasets"] = [
        {"metadata": meta("web-1", "r1", ("Deployment", "web", "d1")), "spec": template(SPEC)}
    ]

    _, data = run(capsys, "--live")
    assert [(finding["kind"], finding["apiVersion"]) for finding in data["findings"]] == [("Deployment", "apps/v1")]


def test_limit_ranges_of_the_namespace_count_for_templates(cluster, capsys):
    bare = {"resources": {}, "containers": [{"name": "a"}]}
    cluster.lists["/apis/batch/v1/jobs"] = [
        {"metadata": meta(f"job-{namespace}", namespace, namespace=namespace), "spec": template(bare)}
        for namespace in ("limited", "free")
    ]
    cluster.lists["/api/v1/limitranges"] = [
        {"metadata": meta("l", "l", namespace="limited"),
         "spec": {"limits": [{"type": "Container", "default": {"cpu": "1"}}]}}
    ]  # fmt: skip

    _, data = run(capsys, "--live")
    assert {finding["name"]: finding["affected"] for finding in data["findings"]} == {
        "job-limited": "yes",
        "job-free": "no",
    }


def test_one_namespace_asks_for_that_namespace_only(cluster, capsys):
    cluster.lists["/api/v1/pods"] = [
        {"metadata": meta("a", "a", namespace="one"), "spec": SPEC, "status": {"qosClass": "BestEffort"}},
        {"metadata": meta("b", "b", namespace="two"), "spec": SPEC, "status": {"qosClass": "BestEffort"}},
    ]

    _, data = run(capsys, "--live", "--namespace", "two")
    assert [finding["name"] for finding in data["findings"]] == ["b"]
    assert all("/namespaces/two/" in path for path, _ in cluster.requests if path != "/version/")


def test_what_may_not_be_listed_is_a_problem_and_the_rest_is_read(cluster, capsys):
    cluster.refused = {"/apis/batch/v1/jobs": 403, "/api/v1/limitranges": 403}
    cluster.lists["/api/v1/pods"] = [{"metadata": meta("a", "a"), "spec": SPEC, "status": {"qosClass": "BestEffort"}}]

    code, data = run(capsys, "--live")
    assert code == 2
    assert len(data["findings"]) == 1
    assert ["jobs is forbidden" in problem["text"] for problem in data["problems"]] == [False, True]
    assert "LimitRanges" in data["problems"][0]["text"]


def test_the_version_flag_spares_the_question(cluster, capsys):
    _, data = run(capsys, "--live", "--cluster-version", "v1.37.2")

    assert data["cluster_version"] == "1.37"
    assert "/version/" not in [path for path, _ in cluster.requests]


def test_the_plugin_reads_the_cluster_by_itself(cluster, capsys):
    cluster.lists["/api/v1/pods"] = [{"metadata": meta("a", "a"), "spec": SPEC, "status": {"qosClass": "BestEffort"}}]

    assert scan.run_alone(["--json"], name="kubectl lab-qos", obj=scan.KUBECTL) == 1
    assert len(json.loads(capsys.readouterr().out)["findings"]) == 1


def test_an_answer_that_is_no_json_is_an_error(cluster, capsys, monkeypatch):
    monkeypatch.setattr(cluster, "answer", lambda method, target: (200, b"<html>"))

    assert scan.run_alone(["--live"], name="lab scan") == 2
    assert "no JSON" in capsys.readouterr().err


def test_what_a_custom_resource_controls_is_told(cluster, capsys):
    cluster.lists["/apis/apps/v1/statefulsets"] = [
        {"metadata": meta("prometheus-x", "s1", ("Prometheus", "x", "c1")), "spec": template(SPEC)}
    ]

    code, data = run(capsys, "--live")
    assert (code, [finding["kind"] for finding in data["findings"]]) == (1, ["StatefulSet"])
    assert data["findings"][0]["owners"] == ["Prometheus/x"]


def test_a_live_pod_without_a_block_is_compared_with_what_is_stored(cluster, capsys):
    cluster.lists["/api/v1/pods"] = [
        {"metadata": meta(name, name), "spec": {"containers": SPEC["containers"]}, "status": {"qosClass": name}}
        for name in ("BestEffort", "Burstable")
    ]

    _, data = run(capsys, "--live")
    assert [(finding["name"], finding["stored_wrong"]) for finding in data["findings"]] == [("BestEffort", True)]


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe\x00\x81", b"[]", b"a: 1", b"contexts: 3\nclusters: {}", b"\0"])
def test_a_damaged_kubeconfig_is_one_clear_error(content, tmp_path, monkeypatch, capsys):
    path = tmp_path / "kubeconfig"
    path.write_bytes(content)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    assert scan.run_alone(["--live"], name="lab scan") == 2
    line, explained = capsys.readouterr().err.splitlines()
    assert line.startswith(("error: the kubeconfig cannot be read: ", "error: no cluster to read: "))
    assert explained.startswith("help: docs/errors.md#")


def test_a_damaged_service_account_is_a_usage_error(monkeypatch, tmp_path):
    from kubernetes import config

    def broken(**arguments):
        raise PermissionError(13, "no", str(tmp_path))

    monkeypatch.setattr(config, "load_incluster_config", broken)
    with pytest.raises(UsageError, match="service account"):
        live._inside(config, ValueError("x"))


@pytest.mark.parametrize("flags", [[], ["--cluster-version", "1.36"]])
def test_an_unreachable_cluster_is_a_problem_beside_what_else_was_found(flags, cluster, tmp_path, capsys, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        config = yaml.safe_load((tmp_path / "kubeconfig").read_text())
        config["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{taken.getsockname()[1]}"
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
        pod = tmp_path / "pod.yaml"
        pod.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": SPEC}))

        assert scan.run_alone([str(pod), "--live", *flags], name="lab scan") == 2
        out, err = capsys.readouterr()
        [line] = err.splitlines()
        assert line.startswith("error: cluster: the cluster does not answer")
        assert "1 affected" in out
        assert scan.run_alone(["--live", *flags], name="lab scan") == 2
        # Asked once: no retries, which would be warned of, and no resource after the first.
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_no_cluster_is_a_problem_beside_files(cluster, tmp_path, capsys):
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "spec": SPEC}))

    code, data = run(capsys, str(tmp_path / "pod.yaml"), "--live", "--context", "gone")
    assert (code, len(data["findings"]), len(data["problems"])) == (2, 1, 1)
    assert data["problems"][0]["file"] == "cluster gone"


def test_an_unknown_context_is_a_usage_error(cluster):
    with pytest.raises(UsageError, match="--context gone"):
        live.LiveCluster("gone", None)


def test_items_carry_no_line(cluster):
    cluster.lists["/api/v1/pods"] = [{"metadata": meta("a", "a"), "spec": {}}]

    [item] = live.LiveCluster("lab", None).items()
    assert isinstance(item, Item)
    assert (item.kind, item.file, item.place.line_of(("spec",))) == ("Pod", "cluster lab", 0)
