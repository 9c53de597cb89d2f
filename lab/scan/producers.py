"""Who makes a pod, as far as its labels, annotations and images tell. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lab.model import JSON
from lab.scan.workloads import PodSite

RUNNER_FIRST = "18.10.0"
RUNNER_FIXED = "19.5.0"
"""GitLab Runner's Kubernetes executor sends an empty block from the first to below the second of these versions."""

RUNNER_KEYS = ("pod_cpu_request", "pod_memory_request", "pod_cpu_limit", "pod_memory_limit")

_HELPER = re.compile(r"gitlab-runner-helper:[^ ]{0,64}?v(\d+\.\d+\.\d+)", re.ASCII)
_GITLAB = ("job.runner.gitlab.com/pod", "job.runner.gitlab.com/id", "job.runner.gitlab.com/url")
_MANAGED_BY = "app.kubernetes.io/managed-by"

# Label or annotation, who sets it, and where the pod's form is decided. The first that is there counts.
_MARKS: tuple[tuple[str, str, str], ...] = (
    ("workflows.argoproj.io/workflow", "Argo Workflows", "the workflow's podSpecPatch"),
    ("tekton.dev/taskRun", "Tekton", "the TaskRun's podTemplate"),
    ("actions.github.com/scale-set-name", "GitHub Actions Runner Controller", "the scale set's pod template"),
    ("jenkins/label", "Jenkins Kubernetes plugin", "the pod template of the Jenkins cloud"),
    ("kubernetes_executor", "Airflow", "the pod template file or pod_override"),
    ("spark-role", "Spark", "the pod template of driver or executor"),
    ("serving.knative.dev/revision", "Knative", "the Service's template"),
    ("helm.toolkit.fluxcd.io/name", "Flux", "the HelmRelease's chart or values"),
    ("kustomize.toolkit.fluxcd.io/name", "Flux", "the Kustomization's source"),
    ("argocd.argoproj.io/tracking-id", "Argo CD", "the Application's source"),
    ("argocd.argoproj.io/instance", "Argo CD", "the Application's source"),
    ("meta.helm.sh/release-name", "Helm", "the chart's template or its values"),
    ("helm.sh/chart", "Helm", "the chart's template or its values"),
)


@dataclass(frozen=True, slots=True)
class Producer:
    """Who makes a pod. ``detail`` is a name or version, ``fix`` what to do there; both may be empty."""

    name: str
    detail: str = ""
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.detail}".strip()

    def as_json(self) -> JSON:
        """Plain form for ``--json``."""
        return {"name": self.name, "detail": self.detail, "fix": self.fix}


def runner_fix() -> str:
    """What to do about job pods of GitLab Runner."""
    return (
        f"upgrade GitLab Runner to {RUNNER_FIXED} or later; until then set {', '.join(RUNNER_KEYS[:-1])} "
        f"and {RUNNER_KEYS[-1]} under [runners.kubernetes] (real pod-level values: the limits "
        "then hold for the job pod as a whole, and the static CPU and memory managers pass over it)"
    )


def producer_of(value: Mapping[str, Any], site: PodSite, source: str | None) -> Producer | None:
    """Producer of a pod spec; None when nothing tells it. ``source`` is the template that Helm names in its output.

    Marks of the whole ``value`` count, of the object inside it that the spec belongs to, and of the pod's template.
    """
    marks = _marks(value.get("metadata"), site.holder.get("metadata"), site.metadata)
    if any(name in marks for name in _GITLAB):
        # The helper image carries the runner's own version.
        versions = (match[1] for image in _images(site.spec) if (match := _HELPER.search(image)))
        return Producer("GitLab Runner", next(versions, ""), runner_fix())
    for mark, name, where in _MARKS:
        if mark in marks and not (name == "Helm" and source):
            return Producer(name, marks[mark], f"change it where it comes from: {where}")
    if source is not None:
        return Producer("Helm", source, "change it where it comes from: the chart's template or its values")
    managed = marks.get(_MANAGED_BY)
    return Producer(managed, "", f"change it where it comes from: {managed} writes this object") if managed else None


def _images(spec: Mapping[str, Any]) -> Iterator[str]:
    for key in ("containers", "initContainers"):
        items = spec.get(key)
        for item in items if isinstance(items, list) else ():
            if isinstance(item, Mapping) and isinstance(item.get("image"), str):
                yield item["image"]


def _marks(*metadata: Any) -> dict[str, str]:
    """Labels and annotations of objects and pod template together; the later ones win."""
    found: dict[str, str] = {}
    for each in metadata:
        for key in ("annotations", "labels"):
            entries = each.get(key) if isinstance(each, Mapping) else None
            if isinstance(entries, Mapping):
                found |= {str(name): str(text) for name, text in entries.items()}
    return found
