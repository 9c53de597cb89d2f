from __future__ import annotations

import pytest
from hypothesis import given, settings

from lab.cgroups import BEST_EFFORT, BURSTABLE, GUARANTEED
from lab.qos import Behaviour, affected, classify
from lab.scan.findings import findings_of
from lab.scan.records import FixedPlace, Item
from tests.pod_strategies import SHAPES, pods

BOTH = {"cpu": "2", "memory": "1Gi"}
SMALL = {"resources": {}, "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]}
WHOLE = {"resources": {}, "containers": [{"name": "a", "resources": {"limits": BOTH}}]}
COMPLETED = {"resources": {"requests": BOTH}, "containers": [{"name": "a", "resources": {"limits": BOTH}}]}
OWNERS = ("ReplicaSet/web-1", "Deployment/web")


def find(spec, *, kind="Pod", stored=None, annotations=None, labels=None, owners=None, **more):
    """The finding of an object; of a live pod with a stored class when one is given."""
    metadata = {"name": "p", "annotations": annotations or {}, "labels": labels or {}}
    if kind == "Pod":
        value = {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}
    else:
        value = {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": {"template": {"spec": spec}}}
    if stored is not None:
        value["status"] = {"qosClass": stored}
    item = Item(value=value, file="f", place=FixedPlace(first=1))
    [found] = findings_of(item, live=stored is not None, owners=owners, **more)
    return found


# --- what to change in the block --------------------------------------------------------------------------------------


def test_a_burstable_pod_may_have_values_set():
    found = find(SMALL)

    assert [text.partition(":")[0].partition(" (")[0] for text in found.fixes] == [
        "remove the key", "set it", "upgrade the API server to 1.37 or later",
    ]  # fmt: skip
    # Requests alone over containers with limits are affected again, so they are no fix.
    assert "real requests and limits" in found.fixes[1]
    assert affected({**WHOLE, "resources": {"requests": BOTH}})
    assert not affected({**WHOLE, "resources": {"requests": BOTH, "limits": BOTH}})
    assert "PodLevelResourceManagers" in found.fixes[1]


@pytest.mark.parametrize("more", [{}, {"stored": BEST_EFFORT, "owners": OWNERS, "minor": 36}, {"kind": "Deployment"}])
def test_a_guaranteed_pod_is_not_told_to_set_what_costs_its_exclusive_cpus(more):
    found = find(WHOLE, **more)

    assert any(text.startswith("CPU manager") for text in found.loses)
    assert not any("set it" in text for text in found.fixes)
    [text] = [text for text in found.no_help if text.startswith("real values at pod level")]
    assert "PodLevelResourceManagers" in text


def test_a_completed_block_has_no_exclusive_cpus_in_any_case():
    found = find(COMPLETED)

    assert found.fixes[0].startswith("set both requests and limits")
    assert "without exclusive CPUs, as before" in found.fixes[0]


def test_the_runners_fix_says_what_it_costs():
    found = find(WHOLE, labels={"job.runner.gitlab.com/pod": "x"})

    assert "the static CPU and memory managers pass over it" in found.fixes[0]


# --- live pods --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [SMALL, WHOLE, {"containers": SMALL["containers"]}])
@pytest.mark.parametrize("minor", [37, 38])
def test_from_1_37_on_a_live_pod_is_recreated_and_no_more(spec, minor):
    alone, owned = (find(spec, stored=BEST_EFFORT, minor=minor, owners=owners) for owners in ((), OWNERS))

    assert alone.fixes == ("recreate the pod",)
    [text] = owned.fixes
    assert text.startswith("recreate the pod: delete it")
    assert not any("upgrade" in text or "LimitRange" in text for text in owned.no_help)


@pytest.mark.parametrize("minor", [34, 36, None])
def test_below_1_37_the_owners_template_is_changed(minor):
    found = find(SMALL, stored=BEST_EFFORT, minor=minor, owners=OWNERS)

    assert found.owners == OWNERS
    assert found.fixes[0].startswith("change the template of Deployment/web")
    assert "remove the key" in found.fixes[0]
    assert all("recreate the pod" in text for text in found.fixes)
    assert any("running pod" in text for text in found.no_help)
    assert find(SMALL, stored=BEST_EFFORT, minor=minor).fixes[0].startswith("change the manifest that it comes from")


def test_a_live_pod_whose_stored_class_is_right_has_lost_nothing():
    before, after = (find(SMALL, stored=BURSTABLE, minor=minor) for minor in (36, 37))

    assert (before.affected, before.stored_wrong, before.loses) == (True, False, ())
    assert "gives BestEffort to the pod that replaces this one" in before.note
    assert before.fixes
    assert (after.affected, after.fixes, after.loses) == (True, (), ())


def test_losses_of_a_live_pod_are_those_of_the_stored_class():
    found = find(WHOLE, stored=BURSTABLE, minor=36)

    assert any("Burstable slice instead of directly" in text for text in found.loses)


def test_a_producer_comes_first_and_the_pod_after_it():
    found = find(SMALL, stored=BEST_EFFORT, labels={"job.runner.gitlab.com/pod": "x"}, minor=36)

    assert found.fixes[0].startswith("upgrade GitLab Runner")
    assert found.fixes[0].endswith("then recreate the pod")


def test_a_static_pod_is_mended_in_its_file_and_by_its_kubelet():
    found = find(SMALL, stored=BEST_EFFORT, annotations={"kubernetes.io/config.mirror": "x"}, owners=("Node/n",))

    assert "file on its node" in found.fixes[0]
    assert "kubelet" in found.fixes[1]
    assert not any("a newer kubelet" in text for text in found.no_help)


# --- templates and files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("minor", "upgrade"), [(36, True), (None, True), (37, False)])
@pytest.mark.parametrize("kind", ["Pod", "Deployment"])
def test_an_upgrade_is_no_advice_where_it_is_done(minor, upgrade, kind):
    found = find(SMALL, kind=kind, minor=minor)

    assert any("upgrade the API server" in text for text in found.fixes) is upgrade
    assert any("recreate the pods from before" in text for text in found.fixes) is not upgrade
    assert any("an upgrade to 1.37" in text for text in found.no_help) is upgrade


@settings(max_examples=200, deadline=None)
@given(pods(SHAPES))
def test_every_affected_pod_is_told_a_fix_that_does_not_cost_what_it_lost(drawn):
    if drawn.spec.get("resources") is None:
        return
    found = find(drawn.spec)

    assert bool(found.fixes) == (found.affected is True)
    if classify(drawn.spec, Behaviour.FIXED) == GUARANTEED and any("manager" in text for text in found.loses):
        assert not any("set it" in text for text in found.fixes)
