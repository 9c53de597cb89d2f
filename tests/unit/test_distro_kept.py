"""What is written down of a node's cell, and which cell may use a kept node again."""

from __future__ import annotations

import pytest

from lab.distros import kept
from lab.host import Deadline
from lab.model import Cell, Gate, UsageError
from lab.providers.contract import NodeSpec
from tests.fakes import FakeProvider

FIX = "PodLevelResourcesFixKubeletQOSClass"


def cell(*gates, distro="upstream", version="v1.37.2"):
    return Cell(distro=distro, version=version, gates=tuple(Gate.parse(text) for text in gates))


@pytest.fixture
def node(tmp_path):
    return FakeProvider(root=tmp_path / "nodes").create(NodeSpec(name="n", run_id="r"), Deadline.after(60))


SAME = [
    ([], []),
    (["A=false"], ["A=false"]),
    (["A=false", "B=true"], ["B=true", "A=false"]),
    (["A=false"], ["A=false@kubelet", "A=false@apiserver"]),
    # What follows from a gate that is off is the same when it is named.
    (["PodLevelResources=false"], ["PodLevelResources=false", f"{FIX}=false"]),
]
OTHER = [
    (["MemoryQoS=false"], [], "the gate MemoryQoS=false; asked for was v1.37.2 with no gate set: give --gate M"),
    ([], ["A=false"], "with no gate set; asked for was v1.37.2 with the gate A=false: leave out --gate, or"),
    (["A=false"], ["A=true"], "the gate A=false; asked for was v1.37.2 with the gate A=true: give --gate A=false, or"),
    (["A=false"], ["A=false@kubelet"], "asked for was v1.37.2 with the gate A=false@kubelet: give --gate A=false"),
    (["B=true", "A=false@kubelet"], ["B=true"], "gates A=false@kubelet, B=true; asked for was v1.37.2 with the gate B"),
    (["B=true", "A=false@kubelet"], ["B=true"], "give --gate A=false@kubelet --gate B=true, or leave out --node"),
]


@pytest.mark.parametrize(("was", "asked"), SAME)
def test_the_same_gates_are_the_same_whatever_words_they_took(node, was, asked):
    kept.remember(node, cell(*was))
    kept.require_same(node, cell(*asked))


@pytest.mark.parametrize(("was", "asked", "said"), OTHER)
def test_other_gates_are_refused_with_both_sets_and_what_to_type(node, was, asked, said):
    kept.remember(node, cell(*was))
    with pytest.raises(UsageError) as caught:
        kept.require_same(node, cell(*asked))
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"node {node.id} runs v1.37.2 with ")


def test_the_last_cell_of_a_node_counts(node):
    kept.remember(node, cell("A=false"))
    kept.remember(node, cell())
    kept.require_same(node, cell())


def test_another_distribution_is_refused(node):
    kept.remember(node, cell(distro="k3s"))
    with pytest.raises(UsageError, match=r"runs k3s-v1\.37\.2: use it with --distro k3s"):
        kept.require_same(node, cell())


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"distro": "upstream", "version": "v1", "gates": ["x"]}'])
def test_a_node_of_which_nobody_wrote_it_down_is_refused_with_the_way_out(node, text):
    if text is not None:
        (node.folder / kept.RECORD).write_text(text)
    with pytest.raises(UsageError, match=f"not written down .* `lab down {node.id}` removes it, and without --node"):
        kept.require_same(node, cell())
