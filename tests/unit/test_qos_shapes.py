"""The shapes of docs/shapes.md: their classes worked out by hand from the source, and the page as it is committed.

Hand-worked from: pkg/apis/core/helper/qos/qos.go (ComputePodQOS; v1.36.3 for <= 1.33 and 1.34-1.36, v1.37.2 for 1.37+),
pkg/apis/core/v1/defaults.go (SetDefaults_Pod, defaultPodRequests, defaultHugePagePodLimits),
pkg/api/pod/util.go (DefaultPodLevelResources, v1.37.2), plugin/pkg/admission/limitranger/admission.go.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab.qos import Behaviour, affected, classify
from lab.report import shapes

ROOT = Path(__file__).resolve().parent.parent.parent
BE, BU, GU = "BestEffort", "Burstable", "Guaranteed"

# Shape: <= 1.33, 1.34-1.36, 1.37+, 1.37+ with the fix off.
BY_HAND = {
    "nothing set": (BE, BE, BE, BE),
    "container `{}` alone": (BE, BE, BE, BE),
    "container below its limits": (BU, BU, BU, BU),
    "container with limits alone": (GU, GU, GU, GU),
    "`null` block": (GU, GU, GU, GU),
    "empty block, Burstable container": (BU, BE, BU, BE),
    "empty block, Guaranteed container": (GU, BE, GU, BE),
    "empty block, nothing in the container": (BE, BE, BE, BE),
    "empty `requests`": (GU, BE, GU, BE),
    "empty `limits`": (GU, BE, GU, BE),
    "both empty": (GU, BE, GU, BE),
    "empty `claims` (refused where the gate is on)": (GU, BE, GU, BE),
    "zero at pod level": (BE, BE, BE, BE),
    "zero cpu at pod level, memory in the container": (BU, BE, BU, BU),
    "pod-level requests": (BE, BU, BU, BU),
    "pod-level limits": (BE, GU, GU, GU),
    "pod-level limits, smaller requests in the container": (GU, BU, BU, BU),
    "pod-level requests, limits in every container": (GU, BU, GU, GU),
    "pod-level requests, a container without limits": (BU, BU, BU, BU),
    "one resource at pod level": (GU, BU, BU, BU),
    "huge pages at pod level": (BU, BU, BU, BU),
    "extended resource alone": (BE, BE, BE, BE),
    "init container without resources": (BU, BU, BU, BU),
    "sidecar with requests": (BU, BU, BU, BU),
    "ephemeral container": (GU, GU, GU, GU),
    "LimitRange, nothing set": (GU, GU, GU, GU),
    "LimitRange, empty block": (GU, BE, GU, BE),
    "LimitRange, pod-level limits": (GU, GU, BU, BU),
}
BEHAVIOURS = (Behaviour.BEFORE_1_34, Behaviour.EMPTY_BLOCK_SHADOWS, Behaviour.FIXED, Behaviour.FIX_OFF)


@pytest.mark.parametrize("shape", shapes.SHAPES, ids=lambda shape: shape.name)
def test_class_of_each_shape(shape):
    expected = BY_HAND[shape.name]
    assert tuple(classify(shape.spec, behaviour, shape.limit_ranges) for behaviour in BEHAVIOURS) == expected
    assert affected(shape.spec, shape.limit_ranges) == (expected[1] != expected[2])


def test_every_shape_is_worked_out_once():
    assert [shape.name for shape in shapes.SHAPES] == list(BY_HAND)
    assert shapes.SHOWN == BEHAVIOURS


def test_page_is_what_the_classifier_gives():
    assert (ROOT / "docs" / "shapes.md").read_text() == shapes.page(), "python -m lab.report.shapes > docs/shapes.md"


def test_page_is_written_as_it_says():
    done = subprocess.run(
        [sys.executable, "-m", "lab.report.shapes"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == shapes.page()
    assert "`python -m lab.report.shapes > docs/shapes.md`" in done.stdout


def test_rows_show_shape_classes_and_difference():
    rows = {
        cells[0]: cells[1:]
        for line in shapes.page().split("## Static pods")[0].splitlines()
        if line.startswith("|")
        for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
    }
    assert rows["Shape"][2:] == ["<= 1.33", "1.34-1.36", "1.37+", "1.37+ with the fix off", "Differs"]
    assert rows["empty `limits`"][0] == "`{limits: {}}`"
    assert rows["empty `limits`"][2:] == [GU, BE, GU, BE, "differs"]
    assert rows["`null` block"] == ["`null`", "`{limits: {cpu: 100m, memory: 64Mi}}`", GU, GU, GU, GU, "-"]
    assert rows["init container without resources"][1].endswith(", init none")
    assert len(rows) == len(BY_HAND) + 2


def test_static_pods_are_listed_where_they_differ():
    static = shapes.page().split("## Static pods")[1]
    listed = [line.split("|")[1].strip() for line in static.splitlines() if line.startswith("| ")][1:]
    assert listed == [
        "zero cpu at pod level, memory in the container",
        "pod-level limits",
        "pod-level requests, limits in every container",
    ]
