from __future__ import annotations

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.model import ParseError, UsageError
from lab.qos import Behaviour, affected, classify
from lab.scan import documents, workloads
from lab.scan.findings import VERSIONS, findings_of
from lab.scan.records import (
    COMPLETED_BLOCK,
    EMPTY_BLOCK,
    NO_EFFECT,
    POSTED_CLASS,
    RUNNER,
    RUNNER_VALUES,
    STORED_CLASS,
    FixedPlace,
    Item,
    ReadError,
)
from lab.scan.runner import embedded_findings, runner_findings
from lab.scan.versions import minor_of_cluster
from lab.scan.workloads import TooManyNodes, pod_sites

RESOURCES = {"requests": {"cpu": "500m", "memory": "256Mi"}}
SPEC = {"resources": {}, "containers": [{"name": "app", "image": "x", "resources": RESOURCES}]}


def item(value, kind=None, source=None):
    return Item(value=value, file="f", place=FixedPlace(first=7), kind=kind, source=source)


def pod(spec, **more):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": spec, **more}


def workload(kind, api_version, spec):
    template = {"metadata": {"labels": {"a": "b"}}, "spec": spec}
    body = {"template": template}
    if kind == "CronJob":
        body = {"jobTemplate": {"spec": body}}
    if kind == "PodTemplate":
        return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "w"}, "template": template}
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "w"}, "spec": body}


BUILT_IN = [
    ("Deployment", "apps/v1"), ("StatefulSet", "apps/v1"), ("DaemonSet", "apps/v1"), ("ReplicaSet", "apps/v1"),
    ("Job", "batch/v1"), ("CronJob", "batch/v1"), ("ReplicationController", "v1"), ("PodTemplate", "v1"),
    ("Deployment", "extensions/v1beta1"),
]  # fmt: skip

CUSTOM = {
    "spec.template.spec": {"spec": {"template": {"spec": SPEC}}},
    "spec.podTemplate.spec": {"spec": {"podTemplate": {"spec": SPEC}}},
    "spec.groups[1].template.spec": {"spec": {"groups": [{}, {"template": {"spec": SPEC}}]}},
    "spec.leaderTemplate.spec": {"spec": {"leaderTemplate": {"spec": SPEC}}},
    "spec.templates[0].spec": {"spec": {"templates": [{"spec": SPEC}]}},
    "spec.jobs[0].template.spec.template.spec": {
        "spec": {"jobs": [{"template": {"spec": {"template": {"spec": SPEC}}}}]}
    },
    "spec.manifests[0].spec.template.spec": {"spec": {"manifests": [workload("Deployment", "apps/v1", SPEC)]}},
    "spec.object.spec": {"spec": {"object": pod(SPEC)}},
}


# --- where pod specs are ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "api_version"), BUILT_IN)
def test_every_workload_kind_has_its_pod_spec(kind, api_version):
    [finding] = findings_of(item(workload(kind, api_version, SPEC)))

    assert (finding.kind, finding.affected, finding.reason) == (kind, True, EMPTY_BLOCK)
    assert finding.path.endswith("template.spec")
    assert finding.note == ""


@pytest.mark.parametrize("path", CUSTOM)
def test_custom_resources_with_a_pod_template(path):
    [finding] = findings_of(item({"apiVersion": "example.com/v1", "kind": "Thing", **CUSTOM[path]}))

    assert (finding.path, finding.affected) == (path, True)
    inside = path.startswith(("spec.manifests", "spec.object"))
    assert finding.note.startswith("inside Thing:" if inside else "a template of a custom resource:")


def test_an_object_inside_another_keeps_its_name():
    deployment = workload("Deployment", "apps/v1", SPEC)
    inner = [
        {**deployment, "metadata": {"name": "os", "namespace": "n", "labels": {"helm.sh/chart": "c-1"}}},
        {**workload("DeploymentConfig", "apps.openshift.io/v1", SPEC), "metadata": {"name": "dc"}},
        {"apiVersion": "v1", "kind": "List", "items": [pod(SPEC, status={"qosClass": "Burstable"})]},
        {**workload("DaemonSet", "apps/v1", SPEC), "metadata": {"generateName": "ds-"}},
    ]
    outer = {"apiVersion": "template.openshift.io/v1", "kind": "Template", "metadata": {"name": "t"}, "objects": inner}
    found = findings_of(item(outer))

    assert [(each.kind, each.namespace, each.name, each.path) for each in found] == [
        ("Deployment", "n", "os", "objects[0].spec.template.spec"),
        ("DeploymentConfig", None, "dc", "objects[1].spec.template.spec"),
        ("Pod", "n", "p", "objects[2].items[0].spec"),
        ("DaemonSet", None, "ds-", "objects[3].spec.template.spec"),
    ]
    assert found[0].title == "Deployment n/os"
    assert str(found[0].producer) == "Helm c-1"
    assert [each.affected for each in found] == [True, True, False, True]
    assert all(each.note.startswith("inside Template t:") for each in found if each.affected)
    assert [any(text.startswith("memory pressure") for text in each.loses) for each in found] == [
        True, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        # A Prometheus object: spec.resources are those of the prometheus container.
        {"apiVersion": "monitoring.coreos.com/v1", "kind": "Prometheus", "spec": SPEC},
        {"apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics", "containers": [{"name": "a"}]},
        {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
         "spec": {"template": {"spec": {"containers": {"items": {}}, "resources": {}}}}},
        {"apiVersion": "example.com/v1", "kind": "Thing",
         "spec": {"template": {"spec": {"resources": {}, "containers": ["a"]}}}},
        {"apiVersion": "v1", "kind": "ConfigMap", "data": {"x": "resources: {}"}},
        {"apiVersion": "v1", "kind": "Pod"}, {"apiVersion": "v1", "kind": "Pod", "spec": None}, [], None, "Pod", 3,
        {"kind": ["Pod"], "spec": {"kind": {"a": 1}, "template": {"kind": [1], "spec": {"containers": 1}}}},
    ],
)  # fmt: skip
def test_what_is_no_pod_spec_gives_nothing(value):
    assert findings_of(item(value)) == []


def test_a_deployment_of_another_group_is_searched_by_form():
    [site] = pod_sites({"apiVersion": "example.com/v1", "kind": "Deployment", "spec": {"podTemplate": {"spec": SPEC}}})

    assert (site.path, site.built_in) == (("spec", "podTemplate", "spec"), False)


def test_a_pod_in_a_pod_list_has_its_kind_from_the_list():
    [finding] = findings_of(
        item({"metadata": {"name": "p"}, "spec": SPEC, "status": {"qosClass": "BestEffort"}}, kind="Pod"), live=True
    )

    assert (finding.kind, finding.stored, finding.stored_wrong) == ("Pod", "BestEffort", True)


def test_an_object_of_too_many_nodes_is_refused(monkeypatch):
    monkeypatch.setattr(workloads, "MAX_STEPS", 10)

    with pytest.raises(TooManyNodes):
        findings_of(item({"kind": "Thing", "spec": [[{}] for _ in range(20)]}))


# --- what is affected -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [{}, {"requests": {}}, {"limits": {}}, {"requests": {}, "limits": {}}, {"claims": []},
                                   {"requests": None}])  # fmt: skip
def test_every_shape_of_an_empty_block_is_affected(block):
    [finding] = findings_of(item(pod({**SPEC, "resources": block})))

    assert finding.affected is True
    assert finding.classes == {"<= 1.33": "Burstable", "1.34-1.36": "BestEffort", "1.37+": "Burstable",
                               "1.37+ with the fix off": "BestEffort"}  # fmt: skip


def test_no_block_and_null_give_no_finding():
    assert findings_of(item(pod({"containers": SPEC["containers"]}))) == []
    assert findings_of(item(pod({**SPEC, "resources": None}))) == []


def test_an_empty_block_over_nothing_is_not_affected_and_says_what_would_change_it():
    [finding] = findings_of(item(pod({"resources": {}, "containers": [{"name": "a", "resources": {}}]})))

    assert finding.affected is False
    assert "LimitRange" in finding.note
    assert (finding.fixes, finding.loses) == ((), ())


@pytest.mark.parametrize(
    ("block", "containers", "reason", "affected"),
    [
        ({"limits": {"nvidia.com/gpu": 1}}, {"limits": {"memory": 1}}, NO_EFFECT, False),
        ({"requests": {"ephemeral-storage": "1Gi"}}, RESOURCES, COMPLETED_BLOCK, True),
        ({"requests": {"nvidia.com/gpu": 1}}, {}, NO_EFFECT, False),
        ({"limits": {"cpu": 1, "nvidia.com/gpu": 1}}, {}, NO_EFFECT, False),
        ({"claims": [{"name": "x"}]}, RESOURCES, EMPTY_BLOCK, True),
        ({"claims": []}, RESOURCES, EMPTY_BLOCK, True),
    ],
)  # fmt: skip
def test_a_block_that_api_servers_refuse_is_told_as_such(block, containers, reason, affected):
    [finding] = findings_of(item(pod({"resources": block, "containers": [{"name": "a", "resources": containers}]})))

    assert (finding.reason, finding.affected, finding.loses) == (reason, affected, ())
    assert finding.note.startswith("an API server 1.34 or later refuses this block")
    assert ("nvidia.com/gpu" in finding.note) == ("nvidia.com/gpu" in str(block))
    assert not any("upgrade" in text for text in finding.fixes)


def test_real_values_are_without_effect():
    block = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    [finding] = findings_of(item(pod({**SPEC, "resources": block})))

    assert (finding.affected, finding.reason) == (False, NO_EFFECT)


def test_a_block_that_1_37_completes():
    both = {"cpu": "1", "memory": "1Gi"}
    spec = {"resources": {"requests": both}, "containers": [{"name": "a", "resources": {"limits": both}}]}
    [finding] = findings_of(item(pod(spec)))

    assert (finding.affected, finding.reason) == (True, COMPLETED_BLOCK)
    assert (finding.classes["1.34-1.36"], finding.classes["1.37+"]) == ("Burstable", "Guaranteed")
    assert not any("remove the key" in text for text in finding.fixes)
    # A pod with pod-level values gets no exclusive CPUs on any version.
    assert not any("manager" in text for text in finding.loses)


def test_a_partial_object_is_possible():
    [finding] = findings_of(item(workload("Deployment", "apps/v1", {"resources": {}})))

    assert finding.affected is None
    assert "partial" in finding.note


def test_a_limit_range_makes_a_template_affected_and_leaves_a_live_pod_as_it_is():
    spec = {"resources": {}, "containers": [{"name": "a"}]}
    ranges = [{"spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "100m"}}]}}]

    [template] = findings_of(item(workload("Job", "batch/v1", spec)), limit_ranges=ranges)
    [live] = findings_of(item(pod(spec, status={"qosClass": "BestEffort"})), limit_ranges=ranges, live=True)
    assert (template.affected, live.affected) == (True, False)


def test_today_is_the_class_of_the_version_asked_about():
    found = {minor: findings_of(item(pod(SPEC)), minor=minor)[0].today for minor in (31, 33, 34, 36, 37, None)}

    assert found == {31: "Burstable", 33: "Burstable", 34: "BestEffort", 36: "BestEffort", 37: "Burstable", None: None}


@pytest.mark.parametrize(("stored", "wrong"), [("BestEffort", True), ("Burstable", False), (None, None)])
def test_the_stored_class_of_a_live_pod(stored, wrong):
    status = {} if stored is None else {"qosClass": stored}
    [finding] = findings_of(item(pod(SPEC, status=status)), live=True)

    assert (finding.stored, finding.stored_wrong) == (stored, wrong)


BARE = {"containers": SPEC["containers"]}


def test_a_live_pod_without_a_block_is_compared_with_what_is_stored():
    [finding] = findings_of(item(pod(BARE, status={"qosClass": "BestEffort"})), live=True)

    assert (finding.affected, finding.reason, finding.stored_wrong) == (True, STORED_CLASS, True)
    assert "recreate" in finding.fixes[0]
    assert any("1000 instead of 3" in text for text in finding.loses)
    assert findings_of(item(pod(BARE, status={"qosClass": "Burstable"})), live=True) == []


@pytest.mark.parametrize("posted", ["BestEffort", "nonsense"])
def test_an_exported_pod_keeps_its_posted_class_up_to_1_36(posted):
    [finding] = findings_of(item(pod(BARE, status={"qosClass": posted})), minor=36)

    assert (finding.affected, finding.reason, finding.stored, finding.stored_wrong) == (True, POSTED_CLASS, None, None)
    assert finding.classes == {"<= 1.33": posted, "1.34-1.36": posted, "1.37+": "Burstable",
                               "1.37+ with the fix off": "Burstable"}  # fmt: skip
    assert (finding.today, findings_of(item(pod(BARE, status={"qosClass": posted})), minor=37)[0].today) == (
        posted, "Burstable",
    )  # fmt: skip
    assert "delete the status" in finding.fixes[0]
    assert bool(finding.loses) == (posted == "BestEffort")


def test_an_exported_pod_with_a_block_needs_both_mended():
    [finding] = findings_of(item(pod(SPEC, status={"qosClass": "BestEffort"})))

    assert (finding.affected, finding.reason) == (True, EMPTY_BLOCK)
    assert all("delete the status" in text for text in finding.fixes[:-1])
    assert "remove the key" in finding.fixes[0]


def test_a_posted_class_can_hide_the_block():
    [finding] = findings_of(item(pod(SPEC, status={"qosClass": "Burstable"})))

    assert (finding.affected, finding.classes["1.34-1.36"]) == (False, "Burstable")
    assert "without it the block would give BestEffort" in finding.note


def test_a_status_without_a_class_or_of_a_right_one_is_no_finding():
    assert findings_of(item(pod(BARE, status={"phase": "Running"}))) == []
    assert findings_of(item(pod(BARE, status={"qosClass": "Burstable"}))) == []


@pytest.mark.parametrize(
    "spec",
    [
        {**SPEC, "resources": []}, {**SPEC, "resources": "x"}, {**SPEC, "resources": {"requests": {"cpu": "much"}}},
        {**SPEC, "containers": {"a": 1}},
        {"resources": {}, "containers": [{"name": "a", "resources": {"limits": [1]}}]},
    ],
)  # fmt: skip
def test_a_spec_that_no_version_accepts_is_an_error(spec):
    with pytest.raises(ParseError):
        findings_of(item(pod(spec)))


amounts = st.fixed_dictionaries(
    {}, optional={"cpu": st.sampled_from(["0", "100m", "1"]), "memory": st.sampled_from(["0", "1Gi"])}
)
blocks = st.none() | st.fixed_dictionaries(
    {}, optional={"requests": st.none() | amounts, "limits": st.none() | amounts}
)


@settings(max_examples=200, deadline=None)
@given(blocks, st.lists(blocks, min_size=1, max_size=3))
def test_affected_is_what_the_classifier_says(block, containers):
    spec = {"resources": block, "containers": [{"name": "c", "resources": each} for each in containers]}
    found = findings_of(item(pod(spec)))

    assert bool(found) == (block is not None)
    assert any(finding.affected for finding in found) == affected(spec)
    for finding in found:
        assert finding.classes == {version.label: classify(spec, version) for version in VERSIONS}
        assert bool(finding.loses) == bool(finding.fixes) == (finding.affected is True)
        json.dumps(finding.as_json())
    assert Behaviour.FIXED in VERSIONS


# --- producers --------------------------------------------------------------------------------------------------------


def test_job_pods_of_gitlab_runner_are_known_with_the_version():
    value = pod(
        {**SPEC, "initContainers": [{"name": "i", "image": "r.example/gitlab-runner-helper:alpine-x86_64-v18.11.2"}]}
    )
    value["metadata"]["annotations"] = {"job.runner.gitlab.com/id": "7"}
    [finding] = findings_of(item(value))

    assert str(finding.producer) == "GitLab Runner 18.11.2"
    assert "19.5.0" in finding.fixes[0]


@pytest.mark.parametrize(
    ("labels", "source", "producer"),
    [
        ({"job.runner.gitlab.com/pod": "x"}, None, "GitLab Runner"),
        ({"helm.sh/chart": "c-1"}, None, "Helm c-1"),
        ({"helm.sh/chart": "c-1"}, "c/templates/x.yaml", "Helm c/templates/x.yaml"),
        ({"helm.sh/chart": "c-1", "argocd.argoproj.io/instance": "app"}, None, "Argo CD app"),
        ({"app.kubernetes.io/managed-by": "some-operator"}, None, "some-operator"),
        ({}, "c/templates/x.yaml", "Helm c/templates/x.yaml"),
    ],
)
def test_producers_by_label(labels, source, producer):
    value = workload("Deployment", "apps/v1", SPEC)
    value["spec"]["template"]["metadata"]["labels"] = labels

    assert str(findings_of(item(value, source=source))[0].producer) == producer


def test_no_mark_no_producer():
    assert findings_of(item(pod(SPEC)))[0].producer is None


def test_owners_come_from_the_controller():
    value = pod(SPEC)
    value["metadata"]["ownerReferences"] = [
        {"kind": "X", "name": "x"},
        {"kind": "ReplicaSet", "name": "r", "controller": True},
    ]

    assert findings_of(item(value))[0].owners == ("ReplicaSet/r",)


# --- GitLab Runner's configuration ------------------------------------------------------------------------------------

CONFIG = """\
concurrent = 4
[[runners]]
  name = "one"
  executor = "kubernetes"
  [runners.kubernetes]
    cpu_request = "1"
[[runners]]
  name = "two"
  executor = "kubernetes"
  [runners.kubernetes]
    helper_memory_limit = "1Gi"
    pod_cpu_request = "2"
[[runners]]
  name = "three"
  executor = "docker"
  [runners.docker]
[[runners]]
  name = "four"
  executor = "kubernetes"
  [runners.kubernetes]
    pod_cpu_request = ""
"""


def test_runners_are_judged_by_their_keys():
    found = {finding.name: (finding.line, finding.affected) for finding in runner_findings(CONFIG, "config.toml")}

    assert found == {"one": (2, None), "two": (7, None), "four": (17, False)}


def test_the_reason_says_whether_there_are_pod_level_values():
    assert [finding.reason for finding in runner_findings(CONFIG, "config.toml")] == [RUNNER, RUNNER_VALUES, RUNNER]


def test_the_note_says_what_decides():
    one, two, four = runner_findings(CONFIG, "config.toml")

    assert "18.10.0" in one.note
    assert "19.5.0" in one.note
    assert "1.37 completes" in two.note
    [safe] = runner_findings("[[runners]]\n[runners.kubernetes]\npod_cpu_request = '1'\n", "config.toml")
    assert "limits hold for the job pod" in safe.note
    assert "BestEffort anyway" in four.note


@pytest.mark.parametrize(
    ("keys", "affected"),
    [
        ({"pod_cpu_request": "1", "cpu_limit": "1"}, None),
        ({"pod_memory_request": "1Gi", "helper_memory_limit_overwrite_max_allowed": "1Gi"}, None),
        ({"pod_cpu_request": "1", "pod_cpu_limit": "1", "memory_limit": "1Gi"}, None),
        ({"pod_cpu_request": "1", "cpu_request": "1"}, False),
        ({"pod_cpu_request": "1", "pod_cpu_limit": "1", "pod_memory_limit": "1Gi", "cpu_limit": "1"}, False),
    ],
)
def test_pod_level_requests_over_container_limits_are_possible(keys, affected):
    text = "[[runners]]\n[runners.kubernetes]\n" + "".join(f"{key} = '{value}'\n" for key, value in keys.items())
    [finding] = runner_findings(text, "config.toml")

    assert finding.affected is affected
    assert ("1.37 completes" in finding.note) is (affected is None)


def test_the_runners_fix_names_all_four_keys():
    text = " ".join(runner_findings(CONFIG, "config.toml")[0].fixes)

    assert all(f"pod_{name}" in text for name in ("cpu_request", "memory_request", "cpu_limit", "memory_limit"))


@pytest.mark.parametrize("text", ["[[runners", "a = ", "x" * (1 << 20) + "y"])
def test_what_is_no_configuration_is_an_error(text):
    with pytest.raises(ReadError):
        runner_findings(text, "config.toml")


@pytest.mark.parametrize("text", ["", "runners = 3", "[[other]]", "[[runners]]\nexecutor = 'kubernetes'"])
def test_a_configuration_without_such_runners_gives_nothing(text):
    assert runner_findings(text, "config.toml") == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\n\n[[runners]]\n  executor = 'x'\n  [runners.kubernetes\n", 5), ("a = [\n1,\n", 2), ("a = [", 1),
        ("x", 1),
        ("a = 1\n" * 3 + "a = 2\n", 2), ("a = " + "[" * 5000, 1),
    ],
    ids=["table", "end", "one-line", "word", "twice", "deep"],
)  # fmt: skip
def test_an_error_is_told_at_its_line(text, line):
    for first in (1, 11):
        with pytest.raises(ReadError) as caught:
            runner_findings(text, "config.toml", first)
        assert caught.value.line == line + first - 1
        assert "(at " not in caught.value.text


@pytest.mark.parametrize("heading", ["[[runners]] # first", "  [[ runners ]]", '[["runners"]]'])
def test_headings_in_every_form_have_their_line(heading):
    [finding] = runner_findings(f"a = 1\n\n{heading}\n[runners.kubernetes]\n", "config.toml")

    assert finding.line == 3


CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
data:
  config.toml: |
    concurrent = 4
    [[runners]]
      [runners.kubernetes]
        cpu_request = "1"
    [[runners]]
      [runners.kubernetes]
  config.template.toml: "[[runners]]\\n\\n[[runners]]\\n[runners.kubernetes]\\n"
  other.toml: |
    [[runners]]
      [runners.kubernetes]
  y: |
    [[runners]]
"""


def config_map(text):
    [item] = documents.read_stream(io.BytesIO(text.encode()), "f")
    return item


def test_configurations_in_config_maps_have_their_lines():
    # A quoted text has the line of its key; a key of another name is told at its object.
    assert [finding.line for finding in embedded_findings(config_map(CONFIG_MAP))] == [6, 9, 11, 1]
    assert embedded_findings(config_map(CONFIG_MAP.replace("ConfigMap", "Secret"))) == []
    assert [finding.line for finding in embedded_findings(config_map("---\n---\n" + CONFIG_MAP))] == [8, 11, 13, 3]


def test_configurations_in_a_config_map_of_json():
    value = {"kind": "ConfigMap", "data": {"config.toml": "\n[[runners]]\n[runners.kubernetes]\n"}}

    [finding] = embedded_findings(config_map(json.dumps(value, indent=1)))
    assert finding.line == 4


def test_an_error_in_a_config_map_is_told_at_its_line():
    with pytest.raises(ReadError) as caught:
        embedded_findings(config_map(CONFIG_MAP.replace("concurrent = 4", "concurrent = ")))
    assert caught.value.line == 5


def test_a_later_text_of_the_same_key_counts():
    text = 'kind: ConfigMap\ndata:\n  config.toml: |\n    a = 1\n  config.toml: "[[runners]]\\n[runners.kubernetes]"\n'

    [finding] = embedded_findings(config_map(text))
    assert finding.line == 5


# --- versions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1.36", "v1.36", "1.36+", "v1.36.3", "v1.36.3-gke.1100", "v1.36.5+k3s1", " 1.36 "])
def test_versions_as_they_are_written(text):
    assert minor_of_cluster(text) == 36


@pytest.mark.parametrize("text", ["", "36", "2.36", "1.x", "v1.", "1.36x", "1.3636"])
def test_what_is_no_version(text):
    with pytest.raises(UsageError, match="no Kubernetes version"):
        minor_of_cluster(text)
