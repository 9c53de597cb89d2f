"""What the kubelet must have taken, on what kubelets said of themselves on real nodes."""

from __future__ import annotations

import json

import pytest

from lab.distros import configz
from lab.distros.gates import with_dependents
from lab.model import Cell, Gate, NodeError, ParseError
from tests.captures_helper import CAPTURES, ROOT

LEG = "v1.37.2+PodLevelResourcesFixKubeletQOSClass=false"
PLAIN = sorted(CAPTURES.glob("*/*/configz.json"))
OFF = ROOT / "results" / f"upstream-{LEG}" / "class" / "0001" / "raw" / "configz.json"


def cell(*gates):
    return with_dependents(
        Cell(distro="upstream", version="v1.37.2", gates=tuple(Gate.parse(text) for text in gates))
    )


def refused(told, config):
    with pytest.raises(NodeError) as caught:
        configz.check("n-1", told, config)
    start = "n-1: the kubelet runs with other settings than it was told (/configz): "
    assert str(caught.value).startswith(start)
    return str(caught.value).removeprefix(start)


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: "-".join(path.parts[-3:-1]))
def test_what_a_kubelet_without_gates_said(path):
    configz.check("n-1", cell(), configz.kubelet_config(path.read_text()))


def test_what_the_kubelet_of_the_leg_said():
    config = configz.kubelet_config(OFF.read_text())
    fix = "PodLevelResourcesFixKubeletQOSClass=false"
    configz.check("n-1", cell(fix), config)
    configz.check("n-1", cell(f"{fix}@kubelet"), config)
    wanted = "featureGates is {'PodLevelResourcesFixKubeletQOSClass': False}, not "
    assert refused(cell(), config) == f"{wanted}{{}}"
    assert refused(cell(f"{fix}@apiserver"), config) == f"{wanted}{{}}"
    assert refused(cell(fix.replace("false", "true")), config) == f"{wanted}{{'{fix.partition('=')[0]}': True}}"
    both = refused(cell(fix, "MemoryQoS=false@kubelet"), config)
    assert both == f"{wanted}{{'MemoryQoS': False, 'PodLevelResourcesFixKubeletQOSClass': False}}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cgroupDriver": "cgroupfs"}, "cgroupDriver is 'cgroupfs', not 'systemd'"),
        ({"cgroupDriver": None}, "cgroupDriver is None, not 'systemd'"),
        ({"evictionHard": {"memory.available": "100Mi"}}, "evictionHard memory.available is '100Mi', not '2Gi'"),
        ({"evictionHard": {"nodefs.available": "5%"}}, "evictionHard memory.available is None, not '2Gi'"),
        ({"evictionHard": None}, "evictionHard memory.available is None, not '2Gi'"),
        ({"evictionPressureTransitionPeriod": "5m0s"}, "evictionPressureTransitionPeriod is '5m0s', not '30s'"),
        (
            {"cgroupDriver": "cgroupfs", "evictionPressureTransitionPeriod": "5m0s"},
            "cgroupDriver is 'cgroupfs', not 'systemd'; evictionPressureTransitionPeriod is '5m0s', not '30s'",
        ),
    ],
)
def test_each_field_is_named_with_what_was_wanted_and_found(change, said):
    config = {**configz.kubelet_config(PLAIN[0].read_text()), **change}
    assert refused(cell(), {name: value for name, value in config.items() if value is not None}) == said


def test_signals_for_disks_beside_that_for_memory_are_a_distributions_own():
    config = dict(configz.kubelet_config(PLAIN[0].read_text()))
    configz.check("n-1", cell(), {**config, "evictionHard": {**config["evictionHard"], "nodefs.available": "5%"}})


@pytest.mark.parametrize("text", ["", "{}", "[]", json.dumps({"kubeletconfig": []})])
def test_an_answer_without_a_configuration_is_none(text):
    with pytest.raises(ParseError):
        configz.kubelet_config(text)
