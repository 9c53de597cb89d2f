"""Cells from the command line: in order, each once, and every mistake named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.config import OLDEST_MINOR, make_cells
from lab.model import UsageError


def names(versions="", gates=(), legs=()):
    return [cell.name for cell in make_cells("upstream", versions, tuple(gates), tuple(legs))]


class TestCells:
    @pytest.mark.parametrize(
        "versions",
        [
            "v1.36.3,v1.37.2", "1.36.3,1.37.2", " v1.36.3 , v1.37.2 ", "v1.36.3,,v1.37.2,", "v1.36.3 v1.37.2",
            "v1.36.3\n1.37.2",
        ],
    )  # fmt: skip
    def test_versions_in_the_order_given(self, versions):
        assert names(versions) == ["upstream-v1.36.3", "upstream-v1.37.2"]

    def test_gates_hold_for_every_version(self):
        assert names("v1.37.2,v1.36.3", ["A=false", "B=true@kubelet"]) == [
            "upstream-v1.37.2+A=false+B=true@kubelet",
            "upstream-v1.36.3+A=false+B=true@kubelet",
        ]

    def test_a_leg_is_one_more_cell_with_its_gates_only(self):
        assert names("v1.37.2", ["C=true"], ["v1.37.2:A=false,B=true@apiserver", "1.36.3:A=false"]) == [
            "upstream-v1.37.2+C=true",
            "upstream-v1.37.2+A=false+B=true@apiserver",
            "upstream-v1.36.3+A=false",
        ]

    def test_legs_alone_are_enough(self):
        assert names("", [], ["v1.37.2:A=false"]) == ["upstream-v1.37.2+A=false"]

    def test_the_distribution_is_part_of_the_name(self):
        assert make_cells("k3s", "v1.36.5+k3s1", (), ())[0].name == "k3s-v1.36.5+k3s1"

    @given(st.lists(st.tuples(st.integers(OLDEST_MINOR, 60), st.integers(0, 20)), min_size=1, max_size=5, unique=True))
    def test_any_versions_come_back(self, pairs):
        versions = [f"v1.{minor}.{patch}" for minor, patch in pairs]
        assert [cell.version for cell in make_cells("upstream", ",".join(versions), (), ())] == versions


class TestErrors:
    @pytest.mark.parametrize(
        ("versions", "gates", "legs", "said"),
        [
            ("", [], [], r"no version given; example: v1\.36\.3,v1\.37\.2$"),
            (" , ", [], [], r"no version given"),
            ("latest", [], [], r"version 'latest' is not of the form v1\.36\.3"),
            ("v1.36", [], [], r"version 'v1\.36' is not of the form"),
            ("1.36", [], [], r"version '1\.36' is not of the form"),
            ("v2.0.0", [], [], r"version 'v2\.0\.0' is not of the form"),
            ("v1.20.0", [], [], r"version v1\.20\.0: the oldest"),
            ("v1.036.3", [], [], r"version 'v1\.036\.3' is not of the form"),
            ("v1.٣٦.3", [], [], r"version 'v1\.٣٦\.3' is not of the form"),
            ("v1.36.3+k3s1", [], [], r"version v1\.36\.3\+k3s1 belongs to k3s, not to upstream"),
            ("v1.33.9", [], [], r"version v1\.33\.9: the oldest that the lab measures is v1\.34"),
            ("v1.36.3,v1.36.3", [], [], r"upstream-v1\.36\.3 is asked for twice"),
            ("v1.36.3,1.36.3", [], [], r"upstream-v1\.36\.3 is asked for twice"),
            ("v1.37.2", ["A=off"], [], r"--gate 'A=off' is not NAME=true"),
            ("v1.37.2", [], ["A=false"], r"--gate-leg 'A=false' is not VERSION:NAME=false"),
            ("v1.37.2", [], ["v1.37.2:"], r"--gate-leg 'v1\.37\.2:' is not VERSION:NAME=false"),
            ("v1.37.2", [], ["v1.37.2: ,"], r"--gate-leg 'v1\.37\.2: ,' is not VERSION:NAME=false"),
            ("v1.37.2", [], [":A=false"], r"--gate-leg ':A=false': version '' is not of the form"),
            ("v1.37.2", [], ["v1.33.1:A=false"], r"--gate-leg 'v1\.33\.1:A=false': version v1\.33\.1: the oldest"),
            ("v1.37.2", [], ["v1.37.2:A=maybe"], r"--gate-leg 'v1\.37\.2:A=maybe': 'A=maybe' is not NAME=true"),
            ("v1.37.2", ["A=false"], ["v1.37.2:A=false"], r"upstream-v1\.37\.2\+A=false is asked for twice"),
            ("v1.37.2", [], ["v1.37.2:B=true,A=false", "v1.37.2:A=false,B=true"], r"is asked for twice"),
        ],
    )
    def test_each_mistake_is_named(self, versions, gates, legs, said):
        with pytest.raises(UsageError, match=said):
            names(versions, gates, legs)

    @pytest.mark.parametrize(
        ("versions", "legs", "said"),
        [
            ("v1.34.12,v1.34.12+k3s1", [], "k3s-v1.34.12+k3s1 is asked for twice (v1.34.12 and v1.34.12+k3s1 are one"),
            ("v1.34.12+k3s1,1.34.12", [], "k3s-v1.34.12 is asked for twice (v1.34.12+k3s1 and v1.34.12 are one rel"),
            ("v1.37.1+k3s1", ["v1.37.1:A=false", "v1.37.1+k3s1:A=false"], "k3s-v1.37.1+k3s1+A=false is asked for"),
            ("v1.34.12+k3s2,v1.34.12+k3s2", [], "k3s-v1.34.12+k3s2 is asked for twice"),
        ],
    )
    def test_one_release_of_k3s_is_one_cell_whatever_it_is_called(self, versions, legs, said):
        with pytest.raises(UsageError) as caught:
            make_cells("k3s", versions, (), tuple(legs))
        assert said in str(caught.value)

    def test_other_releases_of_k3s_and_other_gates_are_other_cells(self):
        cells = make_cells("k3s", "v1.34.12,v1.34.12+k3s2", (), ("v1.34.12+k3s1:A=false",))
        assert [cell.release for cell in cells] == ["v1.34.12+k3s1", "v1.34.12+k3s2", "v1.34.12+k3s1"]

    @pytest.mark.parametrize(
        "gates",
        [
            ["A=false", "A=true"],
            ["A=false", "A=false"],
            ["A=false", "A=true@kubelet"],
            ["A=true@kubelet", "A=false"],
            ["A=true@kubelet", "A=false@kubelet"],
            ["B=true", "A=false@apiserver", "A=false"],
        ],
    )
    def test_nobody_has_to_guess_which_of_two_values_holds(self, gates):
        with pytest.raises(UsageError, match=r"v1\.37\.2: the (apiserver|kubelet) is told both A="):
            names("v1.37.2", gates)
        with pytest.raises(UsageError, match="is told both A="):
            names("", [], [f"v1.37.2:{','.join(gates)}"])

    def test_one_value_for_each_component_is_a_split_gate(self):
        assert names("v1.37.2", ["A=true@apiserver", "A=false@kubelet"]) == [
            "upstream-v1.37.2+A=false@kubelet+A=true@apiserver"
        ]
