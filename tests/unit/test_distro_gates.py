"""What follows from a gate that is off, and whether what runs is what was asked for."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.distros import gates as shared
from lab.distros.gates import check_gates_took, check_versions, gate_lines, with_dependents
from lab.model import Cell, Gate, NodeError
from lab.parse.node_facts import feature_gates

VERSIONS = ("v1.34.4", "v1.35.4", "v1.36.3", "v1.37.2")
OFF = "PodLevelResources=false"


def cell(*gates, version="v1.37.2"):
    return Cell(distro="upstream", version=version, gates=tuple(Gate.parse(text) for text in gates))


def told(*gates, version="v1.37.2"):
    return sorted(str(gate) for gate in with_dependents(cell(*gates, version=version)).gates)


class TestDependents:
    SINCE = (
        ("InPlacePodLevelResourcesVerticalScaling", 35),
        ("PodLevelResourceManagers", 36),
        ("PodLevelResourcesFixDefaulting", 37),
        ("PodLevelResourcesFixKubeletQOSClass", 37),
    )

    @pytest.mark.parametrize("version", VERSIONS)
    def test_each_version_has_its_own(self, version):
        minor = int(version.split(".")[1])
        expected = [f"{name}=false" for name, since in self.SINCE if since <= minor]
        assert told(OFF, version=version) == sorted([OFF, *expected])

    @pytest.mark.parametrize(
        "gates", [[], ["PodLevelResources=true"], ["Other=false"], ["PodLevelResourceManagers=false"]]
    )
    def test_nothing_is_added_without_the_gate_off(self, gates):
        assert told(*gates) == gates

    @pytest.mark.parametrize("component", ["apiserver", "kubelet"])
    def test_one_component_only(self, component):
        gates = told(f"{OFF}@{component}")
        assert len(gates) == 5
        assert all(gate.endswith(f"=false@{component}") for gate in gates)

    def test_the_fix_alone_takes_nothing_with_it(self):
        assert told("PodLevelResourcesFixKubeletQOSClass=false") == ["PodLevelResourcesFixKubeletQOSClass=false"]

    @pytest.mark.parametrize("value", ["true", "false"])
    def test_what_the_user_named_stays_as_named(self, value):
        gates = told(OFF, f"PodLevelResourceManagers={value}")
        assert [gate for gate in gates if gate.startswith("PodLevelResourceManagers")] == [
            f"PodLevelResourceManagers={value}"
        ]
        assert len(gates) == 5

    def test_named_for_one_component_it_is_added_for_the_other(self):
        gates = told(OFF, "PodLevelResourceManagers=true@kubelet")
        assert [gate for gate in gates if gate.startswith("PodLevelResourceManagers")] == [
            "PodLevelResourceManagers=false@apiserver",
            "PodLevelResourceManagers=true@kubelet",
        ]

    @given(
        st.sampled_from(VERSIONS),
        st.dictionaries(
            st.sampled_from(["PodLevelResources", "PodLevelResourceManagers", "PodLevelResourcesFixDefaulting", "X"]),
            st.sampled_from(["=true", "=false", "=true@kubelet", "=false@apiserver", "=true@apiserver@kubelet"]),
        ),
    )
    def test_no_component_is_ever_told_two_values(self, version, chosen):
        gates = []
        for name, value in chosen.items():
            if value.count("@") == 2:
                gates += [f"{name}=true@apiserver", f"{name}=false@kubelet"]
            else:
                gates.append(name + value)
        asked = cell(*gates, version=version)
        full = with_dependents(asked)
        assert full.gates[: len(asked.gates)] == asked.gates
        for component in ("apiserver", "kubelet"):
            names = [gate.name for gate in full.gates if gate.component in (None, component)]
            assert len(names) == len(set(names))
            for gate in asked.gates:
                if gate.component in (None, component):
                    assert full.gate(gate.name, component, default=not gate.enabled) is gate.enabled
        assert with_dependents(full).gates == full.gates

    def test_the_cell_keeps_the_name_that_the_user_gave(self):
        assert cell(OFF).name == f"upstream-v1.37.2+{OFF}"


class TestGatesTook:
    @pytest.mark.parametrize(
        ("gate", "found"),
        [
            ("A=false", {"apiserver": {"A": False}, "kubelet": {"A": False}}),
            ("A=true", {"apiserver": {"A": True, "B": False}, "kubelet": {"A": True}}),
            ("A=false@kubelet", {"apiserver": {"A": True}, "kubelet": {"A": False}}),
            ("A=false@apiserver", {"apiserver": {"A": False}, "kubelet": {}}),
        ],
    )
    def test_as_told(self, gate, found):
        check_gates_took(cell(gate), found)

    @pytest.mark.parametrize(
        ("gate", "found", "said"),
        [
            ("A=false", {"apiserver": {"A": False}, "kubelet": {"A": True}}, "on the kubelet, but .* say true"),
            ("A=true", {"apiserver": {"A": False}, "kubelet": {"A": True}}, r"on the apiserver, .* say false"),
            ("A=false", {"apiserver": {"A": False}, "kubelet": {}}, "on the kubelet, .* say nothing of it"),
            ("A=false@apiserver", {"apiserver": {}, "kubelet": {"A": False}}, "on the apiserver, .* nothing of it"),
        ],
    )
    def test_otherwise(self, gate, found, said):
        with pytest.raises(NodeError, match=said):
            check_gates_took(cell(gate), found)

    def test_a_dependent_gate_that_did_not_go_off_is_found(self):
        on = {name: name != "PodLevelResources" for name, _ in TestDependents.SINCE} | {"PodLevelResources": False}
        with pytest.raises(NodeError, match="InPlacePodLevelResourcesVerticalScaling=false was set"):
            check_gates_took(with_dependents(cell(OFF)), {"apiserver": on, "kubelet": on})

    def test_no_gates_nothing_to_check(self):
        check_gates_took(cell(), {"apiserver": {}, "kubelet": {}})


class TestGateLines:
    METRICS = (
        "# TYPE kubernetes_feature_enabled gauge\n"
        'kubernetes_feature_enabled{name="PodLevelResources",stage="BETA"} 1\n'
        'kubernetes_feature_enabled{name="AllAlpha",stage="ALPHA"} 0\n'
        'kubernetes_feature_enabled{name="WatchList",stage="BETA"} 1\n'
        "process_cpu_seconds_total 5\n"
    )

    def test_what_touches_resources_and_what_the_user_set(self):
        kept = gate_lines(self.METRICS, cell("WatchList=true"))
        assert feature_gates(kept) == {"PodLevelResources": True, "WatchList": True}
        assert kept.endswith("\n")
        assert feature_gates(gate_lines(self.METRICS, cell())) == {"PodLevelResources": True}

    def test_every_gate_that_the_lab_itself_turns_off_is_kept(self):
        for name in ("PodLevelResources", *(name for name, _ in TestDependents.SINCE)):
            assert shared.RELEVANT_GATE.search(name)


class TestVersions:
    def test_the_right_ones(self):
        check_versions(cell(), "v1.37.2", "v1.37.2")

    @pytest.mark.parametrize(
        ("api_server", "kubelet", "said"),
        [
            ("v1.36.3", "v1.37.2", "the API server says that it is v1.36.3, asked for was v1.37.2"),
            ("v1.37.2", "v1.37.1", "the kubelet says that it is v1.37.1"),
            ("", "v1.37.2", "the API server says that it is nothing"),
            ("v1.37.2+k3s1", "v1.37.2", "the API server says"),
        ],
    )
    def test_others(self, api_server, kubelet, said):
        with pytest.raises(NodeError, match=re.escape(said)):
            check_versions(cell(), api_server, kubelet)
