"""From raw texts to an observation and verdicts, and the stamp of what a stage collects."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lab import judging
from lab.claims import Claim, parse_claims
from lab.distros.registry import DISTROS, INSTEAD
from lab.manifests import Manifests
from lab.model import Cell, Gate, Interrupted, Missing, ParseError, sha256_text
from lab.providers.registry import PROVIDERS, SITES
from lab.stages import cpu, eviction, qos_class, quota, registry
from lab.stages.contract import Stage
from tests.captures_helper import ROOT, cell_of, claims, edit_json, load, versions
from tests.fakes import said_by

CELL = Cell(distro="upstream", version="v1.36.3")
SAID = said_by(CELL)
OPTIONS = {"quick": False, "reps": 3, "order": "random"}


def stage(parse: Any = None, view: Any = None) -> Stage:
    """A stage that reads one number."""
    return dataclasses.replace(
        qos_class.STAGE,
        name="number",
        judge_version=7,
        parse=parse or (lambda raw: {"value": int(raw["number.txt"])}),
        view=view or (lambda observation: observation),
    )


def claim(name: str = "is-three", **changed: str) -> Claim:
    parts = {"stage": "number", "when": '"True"', "predict": "value == 3", "falsify": "value > 5", **changed}
    lines = [f"id: {name}", "title: t", *(f"{key}: {text}" for key, text in parts.items())]
    return parse_claims("```yaml\n" + "\n".join(lines) + "\n```\n")[0]


# --- judge ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "outcome"), [("3", "HELD"), ("4", "MISSED"), ("5", "MISSED"), ("6", "FALSIFIED"), ("x", "UNKNOWN")]
)
def test_one_number_to_a_verdict(text, outcome):
    observation, record = judging.judge(stage(), CELL, {**SAID, "number.txt": text}, [claim()])

    assert observation == (None if text == "x" else {"value": int(text)})
    assert [(entry["claim"], entry["outcome"]) for entry in record["verdicts"]] == [("is-three", outcome)]
    assert record["judge_version"] == 7
    assert record["verdicts"][0]["claim_digest"] == claim().digest


def test_only_claims_of_the_stage_and_for_the_cell_are_judged():
    given = [
        claim("mine"),
        claim("of-another-stage", stage="class"),
        claim("of-another-version", when='"minor >= 37"'),
        claim("of-another-gate", when="not gate('X', True)"),
    ]
    _, record = judging.judge(stage(), CELL, {"number.txt": "3"}, given)

    assert [entry["claim"] for entry in record["verdicts"]] == ["mine"]


def test_without_claims_there_is_an_observation_and_no_verdict():
    observation, record = judging.judge(stage(), CELL, {"number.txt": "3"}, [])

    assert (observation, record["verdicts"]) == ({"value": 3}, [])


def test_what_ended_the_collection_early_is_the_reason_when_nothing_was_read():
    raw = {judging.PROBLEM: "the node was lost\n"}
    observation, record = judging.judge(stage(), CELL, raw, [claim()])

    assert observation is None
    assert record["problem"].startswith("the node was lost; the number stage's texts could not be read: KeyError")
    assert record["verdicts"][0]["outcome"] == "UNKNOWN"
    assert record["verdicts"][0]["reason"] == record["problem"]


def test_what_ended_the_collection_early_is_kept_beside_what_was_read():
    raw = {**SAID, judging.PROBLEM: "the node was lost", "number.txt": "3"}
    observation, record = judging.judge(stage(), CELL, raw, [claim()])

    assert (observation, record["problem"]) == ({"value": 3}, "the node was lost")
    assert record["verdicts"][0]["outcome"] == "HELD"


@pytest.mark.parametrize(
    ("gates", "component", "line", "reason"),
    [
        ((), "kubelet", ("Resources", 1, 0), "the kubelet had PodLevelResources=false, which is not so in "),
        (("MemoryQoS=false@kubelet",), "kubelet", ("MemoryQoS", 0, 1), "the kubelet had MemoryQoS=true, which is"),
        (("MemoryQoS=false@kubelet",), "kubelet", ("MemoryQoS", 0, None), "does not say whether MemoryQoS is on (only"),
    ],
)
def test_every_gate_of_the_cell_must_be_read_back_as_told(gates, component, line, reason):
    cell = Cell(distro="upstream", version="v1.36.3", gates=tuple(Gate.parse(text) for text in gates))
    raw = {**said_by(cell), "number.txt": "3"}
    name, was, becomes = line
    old = f'{name}",stage="BETA"}} {was}'
    assert old in raw[f"gates-{component}.txt"]
    new = "" if becomes is None else f'{name}",stage="BETA"}} {becomes}'
    changed = {**raw, f"gates-{component}.txt": raw[f"gates-{component}.txt"].replace(old, new)}

    assert judging.judge(stage(), cell, raw, [claim()])[1]["verdicts"][0]["outcome"] == "HELD"
    verdict = judging.judge(stage(), cell, changed, [claim()])[1]["verdicts"][0]
    assert verdict["outcome"] == "UNKNOWN"
    assert reason in verdict["reason"]


@pytest.mark.parametrize(
    ("version", "api_server", "kubelet", "reason"),
    [
        ("v1.36.3", "v1.36.3", "v1.36.3", ""),
        ("v1.36.3", "v1.36.3+k3s1", "v1.36.3+k3s1", ""),
        ("v1.36.3+k3s2", "v1.36.3+k3s2", "v1.36.3+k3s2", ""),
        ("v1.36.3", "v1.37.2", "v1.36.3", "the apiserver was v1.37.2, which is not upstream-v1.36.3"),
        ("v1.36.3", "v1.36.3", "v1.36.4", "the kubelet was v1.36.4, which is not upstream-v1.36.3"),
        ("v1.36.3+k3s2", "v1.36.3+k3s1", "v1.36.3+k3s2", "the apiserver was v1.36.3+k3s1, which is not upstream-"),
    ],
)
def test_both_components_must_be_of_the_cells_version(version, api_server, kubelet, reason):
    cell = Cell(distro="upstream", version=version)
    said = said_by(dataclasses.replace(cell, version=kubelet))
    said["apiserver-version.json"] = said_by(dataclasses.replace(cell, version=api_server))["apiserver-version.json"]
    verdict = judging.judge(stage(), cell, {**said, "number.txt": "3"}, [claim()])[1]["verdicts"][0]

    assert verdict["outcome"] == ("UNKNOWN" if reason else "HELD")
    assert reason in verdict["reason"]


def test_a_signal_while_it_is_read_what_ran_is_no_fault_of_the_texts(monkeypatch):
    monkeypatch.setattr(judging, "feature_gates", raising(Interrupted("stopped by SIGTERM")))

    with pytest.raises(Interrupted):
        judging.judge(stage(), CELL, {**SAID, "number.txt": "3"}, [claim()])


def test_judging_does_not_change_the_texts():
    raw = load("v1.34.4", "class")
    before = dict(raw)

    judging.judge(registry.BY_NAME["class"], cell_of("v1.34.4"), raw, claims())

    assert raw == before


@pytest.mark.parametrize("version", versions("class"))
def test_judging_twice_gives_the_same(version):
    for entry in registry.STAGES:
        if version in versions(entry.name):
            first, second = (
                judging.judge(entry, cell_of(version), load(version, entry.name), claims()) for _ in range(2)
            )
            assert first == second


# --- observe ----------------------------------------------------------------------------------------------------------


def raising(error: Exception) -> Any:
    def parse(raw: object) -> Any:
        raise error

    return parse


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ParseError("not a list", "abc"), "not a list: 'abc'"),
        (Missing("nothing was measured"), "nothing was measured"),
        (KeyError("spec"), "the number stage's texts could not be read: KeyError: 'spec'"),
        (IndexError("no poll"), "the number stage's texts could not be read: IndexError: no poll"),
        (TypeError("x"), "the number stage's texts could not be read: TypeError: x"),
        (ValueError("x"), "the number stage's texts could not be read: ValueError: x"),
        (ZeroDivisionError("x"), "the number stage's texts could not be read: ZeroDivisionError: x"),
        (AttributeError("x"), "the number stage's texts could not be read: AttributeError: x"),
        (RecursionError("x"), "the number stage's texts could not be read: RecursionError: x"),
    ],
)
def test_a_text_of_another_form_is_a_reason_and_no_error(error, said):
    assert judging.observe(stage(raising(error)), {}) == (None, said)


def test_null_in_the_place_of_an_object_is_a_reason_and_no_error():
    raw = load("v1.34.4", "class")
    edit_json(raw, "pods.json", lambda data: [item.update(status=None) for item in data["items"]])

    observation, reason = judging.observe(qos_class.STAGE, raw)

    assert observation is None
    assert "could not be read" in reason


@pytest.mark.parametrize(
    "error", [RuntimeError("a fault of the lab"), MemoryError(), OSError("disk"), Interrupted("stopped by SIGTERM")]
)
def test_a_fault_of_the_machine_or_a_signal_is_not_taken_for_one_of_the_text(error):
    with pytest.raises(type(error)):
        judging.observe(stage(raising(error)), {})


def test_an_observation_that_the_view_cannot_read_is_kept_and_unknown():
    entry = stage(view=lambda observation: {"value": observation["other"]})
    observation, record = judging.judge(entry, CELL, {**SAID, "number.txt": "3"}, [claim()])

    assert observation == {"value": 3}
    assert record["verdicts"][0]["outcome"] == "UNKNOWN"
    assert record["problem"] == "the number stage's texts could not be read: KeyError: 'other'"


@pytest.mark.parametrize("entry", registry.STAGES, ids=lambda entry: entry.name)
def test_no_text_at_all_is_unknown_for_every_claim_of_every_stage(entry):
    for version in ("v1.34.4", "v1.36.3", "v1.37.2", "v1.37.2+PodLevelResourcesFixKubeletQOSClass=false"):
        observation, record = judging.judge(entry, cell_of(version), {}, claims())

        assert observation is None
        assert record["verdicts"], f"no claim of stage {entry.name} is made for {version}"
        assert {verdict["outcome"] for verdict in record["verdicts"]} == {"UNKNOWN"}


# --- stamp ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def manifests() -> Manifests:
    return Manifests.load(ROOT / "manifests")


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    return {path.name: path.read_text() for path in (ROOT / "node-scripts").iterdir() if path.is_file()}


def test_inputs_of_a_stamp_are_named_and_complete(manifests, scripts):
    for entry in registry.STAGES:
        inputs = judging.stamp(entry, manifests, scripts, OPTIONS, {}).inputs

        assert set(inputs) == {
            "stage",
            "collect_version",
            *(f"manifest/{case}" for case in entry.cases),
            *(f"script/{name}" for name in entry.scripts),
            *(f"param/{name}" for name in entry.params(OPTIONS)),
        }
        assert (inputs["stage"], inputs["collect_version"]) == (entry.name, entry.version)


def test_a_stamp_holds_the_manifests_as_the_stage_renders_them(manifests, scripts):
    inputs = judging.stamp(quota.STAGE, manifests, scripts, OPTIONS, {}).inputs

    assert inputs["manifest/be"] == sha256_text(manifests.render("be", **quota.CHANGES))
    other = judging.stamp(qos_class.STAGE, manifests, scripts, OPTIONS, {}).inputs
    assert inputs["manifest/be"] != other["manifest/be"]


def test_an_edit_to_a_program_changes_the_stamps_of_the_stages_that_use_it_alone(manifests, scripts):
    edited = {**scripts, "hog.py": scripts["hog.py"] + "\n"}
    changed = {
        entry.name: judging.stamp(entry, manifests, scripts, OPTIONS, {}).difference(
            judging.stamp(entry, manifests, edited, OPTIONS, {})
        )
        for entry in registry.STAGES
    }

    assert {name: found for name, found in changed.items() if found} == {
        "eviction": ["script/hog.py"],
        "eviction-priority": ["script/hog.py"],
    }


IMAGE = ("class", "kernel", "cpu", "eviction", "eviction-priority")
EVERY = (*IMAGE, "quota")
NODES = {
    "upstream-qemu": {"node_facts.sh": EVERY, "oci_image.py": IMAGE},
    "upstream-digitalocean": {"node_facts.sh": EVERY, "oci_image.py": IMAGE, "busybox_image.py": IMAGE},
    "upstream-ssh": {"node_facts.sh": EVERY, "oci_image.py": IMAGE, "busybox_image.py": IMAGE},
    "k3s-digitalocean": {"k3s_facts.sh": EVERY, "oci_image.py": IMAGE, "busybox_image.py": IMAGE},
    "k3s-ssh": {"k3s_facts.sh": EVERY, "oci_image.py": IMAGE, "busybox_image.py": IMAGE},
}
"""By distribution and provider: what says what a node is and what makes the pods' image, with the stages it is for."""


@pytest.mark.parametrize("where", NODES)
def test_the_programs_that_collect_on_such_nodes_are_inputs_and_those_that_install_are_not(manifests, scripts, where):
    distro, _, provider = where.partition("-")
    instead = INSTEAD[distro](SITES[provider])

    def stamps(texts):
        return {entry.name: judging.stamp(entry, manifests, texts, OPTIONS, instead) for entry in registry.STAGES}

    plain, changed = stamps(scripts), {}
    for name in scripts:
        found = stamps({**scripts, name: scripts[name] + "\n"})
        changed[name] = {stage for stage, stamp in found.items() if stamp != plain[stage]}
    assert {name: changed[name] for name in changed if name.endswith(("_facts.sh", "_image.py"))} == {
        name: set(NODES[where].get(name, ())) for name in scripts if name.endswith(("_facts.sh", "_image.py"))
    }
    unused = {"k3s_before.sh", "k3s_remove.sh", "k3s_start.sh", "k3s_confirm.sh", "upstream_before.sh",
              "upstream_remove.sh", "fingerprint.py"}  # fmt: skip
    assert {name for name, found in changed.items() if not found} - set(NODES["k3s-ssh"]) - {"node_facts.sh"} == unused


def test_every_distribution_and_provider_has_its_programs():
    assert set(INSTEAD) == set(DISTROS)
    assert set(SITES) == set(PROVIDERS)


def test_sampling_parameters_and_collect_version_are_inputs(manifests, scripts):
    full = judging.stamp(cpu.STAGE, manifests, scripts, OPTIONS, {})
    newer = dataclasses.replace(cpu.STAGE, version=cpu.STAGE.version + 1)

    more = judging.stamp(cpu.STAGE, manifests, scripts, {**OPTIONS, "reps": 5}, {})
    assert full.difference(more) == ["param/pairs"]
    assert full.difference(judging.stamp(newer, manifests, scripts, OPTIONS, {})) == ["collect_version"]
    assert full.difference(judging.stamp(cpu.STAGE, manifests, scripts, {**OPTIONS, "quick": True}, {})) == [
        "param/pairs", "param/warmup_s", "param/window_s",
    ]  # fmt: skip


def test_the_judges_version_is_no_input(manifests, scripts):
    newer = dataclasses.replace(eviction.STAGE, judge_version=99)

    assert judging.stamp(newer, manifests, scripts, OPTIONS, {}) == judging.stamp(
        eviction.STAGE, manifests, scripts, OPTIONS, {}
    )


def test_scripts_that_a_stage_imports_are_among_its_inputs(scripts):
    """A program's own imports of other node programs decide what it does, so they must be stamped with it."""
    for entry in registry.STAGES:
        for name in entry.scripts:
            lines = scripts[name].splitlines()
            imported = {line.split()[1] + ".py" for line in lines if line.startswith(("from ", "import "))}
            assert imported & set(scripts) <= set(entry.scripts), f"{entry.name}: {name}"


# --- small things -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1970-01-01T00:00:01Z", 1.0), ("1970-01-01T01:00:00+01:00", 0.0), ("2026-11-30T07:42:24.5+00:00", 1796024544.5)],
)
def test_unix_time_of_a_stored_time(text, seconds):
    assert judging.unix(text) == seconds
