"""Facts of a real node (v1.36.3), and texts that are cut, empty or of a failed command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.model import ParseError
from lab.parse.node_facts import HEADER, feature_gates, parse_node_facts, sections

CAPTURES = Path(__file__).resolve().parents[1] / "captures"
CAPTURED = sorted(CAPTURES.glob("*/*/node-facts.txt"))

# What a node with kubelet v1.36.3 said.
REAL = """\
lab node-facts 1
== kernel
7.2.12+deb14-cloud-amd64
== cpu-model
QEMU TCG CPU version 2.5+
QEMU TCG CPU version 2.5+
== cpus
2
== memory-kib
4011856
== swap-kib
0
== cgroup-type
cgroup2fs
== psi
yes
== containerd
containerd github.com/containerd/containerd/v2 2.1.9+unknown\x20
== runc
runc version 1.3.6+ds1
commit: 1.3.6+ds1-1
spec: 1.2.1
go: go1.26.5
libseccomp: 2.6.1
== kubelet
Kubernetes v1.36.3
== kubelet-sha256
9e89e7925f2f7ff059ae82abc2750b4e3745007e31c8d153ec2a27882394a7c2  /opt/lab/bin/kubelet
== end
"""
SECTIONS = [
    "kernel", "cpu-model", "cpus", "memory-kib", "swap-kib", "cgroup-type", "psi", "containerd", "runc", "kubelet",
    "kubelet-sha256",
]  # fmt: skip


def with_section(name, body):
    """The real text with one section's body changed (None: the section is left out)."""
    parts = REAL.split("== ")
    kept = []
    for part in parts:
        if part.split("\n", 1)[0] == name:
            if body is not None:
                kept.append(f"{name}\n{body}\n" if body else f"{name}\n")
        else:
            kept.append(part)
    assert len(parts) - len(kept) == (body is None)
    return "== ".join(kept)


class TestRealNode:
    def test_all_facts(self):
        facts = parse_node_facts(REAL)
        assert facts.kernel == "7.2.12+deb14-cloud-amd64"
        assert facts.cpu_model == "QEMU TCG CPU version 2.5+"
        assert (facts.cpus, facts.memory_kib, facts.swap_kib) == (2, 4011856, 0)
        assert facts.cgroup_mode == "v2"
        assert facts.psi is True
        assert facts.containerd == "2.1.9+unknown"
        assert facts.runc == "1.3.6"
        assert facts.kubelet == "v1.36.3"
        assert facts.kubelet_sha256 == "9e89e7925f2f7ff059ae82abc2750b4e3745007e31c8d153ec2a27882394a7c2"
        assert facts.text == REAL

    def test_its_sections_in_order(self):
        assert [name for name in sections(REAL) if name != "end"] == SECTIONS

    def test_every_cut_is_noticed(self):
        for length in range(len(REAL) - 1):
            with pytest.raises(ParseError, match="node facts without their"):
                parse_node_facts(REAL[:length])

    def test_a_missing_last_line_end_is_no_cut(self):
        assert parse_node_facts(REAL.rstrip("\n")).kubelet == "v1.36.3"

    @pytest.mark.parametrize("name", SECTIONS)
    def test_a_section_that_is_absent_empty_or_failed_is_named(self, name):
        for body in (None, "", "sh: 1: not found\n(exit 127)"):
            with pytest.raises(ParseError, match=f"section {name}"):
                parse_node_facts(with_section(name, body))

    @pytest.mark.parametrize("name", SECTIONS)
    def test_a_command_that_failed_after_it_had_said_something(self, name):
        said = sections(REAL)[name]
        with pytest.raises(ParseError, match=f"section {name}"):
            parse_node_facts(with_section(name, f"{said}\n(exit 1)"))


class TestCaptures:
    """Every node whose words are kept in tests/captures/<version>/<stage>/."""

    def test_there_are_some(self):
        assert CAPTURED

    @pytest.mark.parametrize("path", CAPTURED, ids=lambda path: "/".join(path.parts[-3:-1]))
    def test_its_facts(self, path):
        facts = parse_node_facts(path.read_text())
        assert facts.kubelet == path.parts[-3]
        assert facts.cgroup_mode == "v2"
        assert facts.cpus > 0
        assert facts.memory_kib > 1 << 20
        assert facts.psi is True

    @pytest.mark.parametrize("path", CAPTURED, ids=lambda path: "/".join(path.parts[-3:-1]))
    def test_its_gates_and_configuration(self, path):
        for component in ("apiserver", "kubelet"):
            text = path.with_name(f"gates-{component}.txt").read_text()
            found = feature_gates(text)
            assert len(found) == len(text.splitlines())
            assert "PodLevelResources" in found
        config = json.loads(path.with_name("configz.json").read_text())["kubeletconfig"]
        assert config["cgroupDriver"] == "systemd"
        assert config["evictionHard"] == {"memory.available": "2Gi"}


class TestVariants:
    @pytest.mark.parametrize(
        ("name", "body", "field", "value"),
        [
            ("cgroup-type", "tmpfs", "cgroup_mode", "tmpfs"),
            ("psi", "no", "psi", False),
            ("swap-kib", "2097148", "swap_kib", 2097148),
            ("runc", "runc version 1.4.2\ncommit: v1.4.2-0-gabc\nspec: 1.3.0", "runc", "1.4.2"),
            ("runc", "runc version 1.5.0-rc.1", "runc", "1.5.0-rc.1"),
            (
                "containerd",
                "containerd github.com/containerd/containerd/v2 v2.2.3 fcd43222d6b07379a4be9786bda52438f0dd16a1",
                "containerd",
                "2.2.3",
            ),
            ("containerd", "containerd github.com/containerd/containerd v1.7.28 x", "containerd", "1.7.28"),
            ("kubelet", "Kubernetes v1.36.5+k3s1", "kubelet", "v1.36.5+k3s1"),
            ("cpu-model", "AMD EPYC 7B13", "cpu_model", "AMD EPYC 7B13"),
        ],
    )
    def test_value(self, name, body, field, value):
        assert getattr(parse_node_facts(with_section(name, body)), field) == value

    @pytest.mark.parametrize(
        ("name", "body"),
        [
            ("cpus", "two"),
            ("cpus", "-2"),
            ("memory-kib", "4011856 kB"),
            ("psi", "maybe"),
            ("kubelet", "v1.36.3"),
            ("kubelet-sha256", "9e89e792  /opt/lab/bin/kubelet"),
            ("runc", "crun version 1.21"),
            ("kernel", "Linux node 7.2"),
        ],
    )
    def test_malformed(self, name, body):
        with pytest.raises(ParseError, match=f"section {name}") as caught:
            parse_node_facts(with_section(name, body))
        assert repr(body) in str(caught.value)

    @pytest.mark.parametrize("text", ["", "\n", "lab node-facts 2\n== end\n", "== end\n", f" {HEADER}\n== end\n"])
    def test_another_program_or_format(self, text):
        with pytest.raises(ParseError, match="without their header"):
            parse_node_facts(text)

    @given(st.text())
    def test_any_text_is_parsed_or_refused(self, text):
        with pytest.raises(ParseError):
            parse_node_facts(text)


class TestFeatureGates:
    def test_only_this_metric_counts(self):
        text = (
            "# HELP kubernetes_feature_enabled [BETA] This metric records\n"
            'kubernetes_feature_enabled{name="A",stage="ALPHA"} 0\n'
            'kubernetes_feature_enabled{name="B",stage=""} 1\n'
            'kubernetes_feature_enabled_total{name="C",stage=""} 1\n'
            'x kubernetes_feature_enabled{name="D",stage=""} 1\n'
            'kubernetes_feature_enabled{name="E",stage=""} 2\n'
        )
        assert feature_gates(text) == {"A": False, "B": True}

    def test_nothing_said_is_nothing_known(self):
        assert feature_gates("") == {}
