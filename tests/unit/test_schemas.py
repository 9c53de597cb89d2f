"""docs/schema/ against what is stored, what the parsers make, and what the commands print."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from lab.cli.verbs import VERBS
from lab.model import LabError, NodeError
from lab.stages import registry
from tests.captures_helper import load, versions
from tests.projects import ROOT, say

SCHEMAS = ROOT / "docs" / "schema"
RESULTS = ROOT / "results"
OBSERVED = tuple(stage.name for stage in registry.STAGES)
PRINTED = ("diff", "doctor", "gc", "judge", "nodes", "plan", "run", "scan")
MALFORMED = (LabError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((SCHEMAS / f"{name}.schema.json").read_text()))


def problems(name: str, value: Any) -> list[str]:
    """What a document has against its schema, each with its place."""
    return [f"{error.json_path}: {error.message}" for error in validator(name).iter_errors(value)]


def stored() -> Iterator[tuple[str, Path]]:
    """Schema and path of every stored document."""
    for path in sorted(RESULTS.glob("**/*.json")):
        place = path.relative_to(RESULTS).parts
        if path.parent.name == "raw" or any(part.startswith(".") for part in place):
            continue
        if path.name == "observation.json":
            yield f"observation-{path.parent.parent.name}", path
        elif path.name in ("verdict.json", "stamp.json", "run.json"):
            yield path.stem, path


# --- the schemas themselves


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.name)
def test_each_is_a_schema_and_says_its_name(path):
    schema = json.loads(path.read_text())

    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == path.name
    assert schema["title"]


def test_every_stage_every_file_and_every_output_has_one():
    wanted = {f"observation-{name}" for name in OBSERVED} | {"verdict", "stamp", "run"}
    wanted |= {f"output-{name}" for name in PRINTED}

    assert {path.name.removesuffix(".schema.json") for path in SCHEMAS.glob("*.json")} == wanted


def test_every_verb_that_prints_json_is_among_them():
    printing = {
        name for name, verb in VERBS.items() if any("--json" in option.opts for option in verb.load(name).params)
    }

    assert printing == set(PRINTED)


# --- what is stored


def test_all_stored_files_fit():
    found = [(name, path) for name, path in stored()]

    assert {name for name, _ in found} >= {"verdict", "stamp", "run", "observation-class", "observation-cpu"}
    wrong = [f"{path}: {text}" for name, path in found for text in problems(name, json.loads(path.read_text()))]
    assert wrong == []


# --- what the parsers make

CAPTURES = [(stage, version) for stage in OBSERVED for version in versions(stage)]


@pytest.mark.parametrize(("stage", "version"), CAPTURES)
def test_what_is_parsed_fits_whatever_is_missing(stage, version):
    raw = load(version, stage)
    parse = registry.BY_NAME[stage].parse
    name = f"observation-{stage}"

    assert problems(name, json.loads(json.dumps(parse(raw)))) == []
    for lost in raw:
        try:
            observation = parse({key: text for key, text in raw.items() if key != lost})
        except MALFORMED:
            continue
        assert problems(name, json.loads(json.dumps(observation))) == [], f"without {lost}"


def test_captures_cover_every_stage_but_those_that_have_results():
    covered = {stage for stage, _ in CAPTURES} | {path.parent.parent.name for _, path in stored()}

    assert set(OBSERVED) <= covered


# --- they can fail


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("stamp", "cell.version"), ("stamp", "stamp"), ("stamp", "inputs.stage"), ("stamp", "environment.must_agree"),
        ("verdict", "problem"), ("verdict", "judge_version"), ("run", "cells"), ("run", "options.reps"),
        ("observation-class", "pods.be.stored"), ("observation-kernel", "capacity_bytes"),
        ("observation-cpu", "windows"),
    ],
)  # fmt: skip
def test_a_missing_or_wrong_value_is_refused(name, path):
    document = json.loads(next(file for kind, file in stored() if kind == name).read_text())
    *way, last = path.split(".")
    without, wrong = copy.deepcopy(document), copy.deepcopy(document)
    for changed in (without, wrong):
        place = changed
        for step in way:
            place = place[step]
        if changed is without:
            del place[last]
        else:
            place[last] = {"no": "such"} if last != "must_agree" else 7

    assert problems(name, document) == []
    assert problems(name, without) != []
    assert problems(name, wrong) != []


def test_a_name_that_is_not_known_is_refused_wherever_names_are_fixed():
    for name in ("verdict", "run", "stamp", "observation-quota"):
        document = json.loads(next(file for kind, file in stored() if kind == name).read_text())
        document["more"] = 1
        assert problems(name, document) != []


def test_an_outcome_that_does_not_exist_is_refused():
    document = json.loads(next(file for kind, file in stored() if kind == "verdict").read_text())
    document["verdicts"] = [{**document["verdicts"][0], "outcome": "PASSED"}]

    assert problems("verdict", document) != []


# --- what is printed


def test_outputs_of_a_run_and_of_what_is_read_afterwards(bench):
    printed = {"run": bench.run("--json", versions="v1.36.3,v1.37.2").json()}
    results = ["--results", str(bench.results)]
    printed["diff"] = bench.lab("diff", f"{bench.results}:v1.36.3", f"{bench.results}:v1.37.2", "--json").json()
    printed["plan"] = bench.lab("plan", "--versions", "v1.36.3", "--json", *results).json()
    printed["nodes"] = bench.lab("nodes", "--json").json()
    printed["gc"] = bench.lab("gc", "--dry-run", "--json").json()
    bench.use_stages(*bench_stages_that_read_otherwise())
    printed["judge"] = bench.lab("judge", "--dry-run", "--json", *results).json()

    assert printed["run"]
    assert printed["judge"]["changes"]
    for name, value in printed.items():
        assert problems(f"output-{name}", value) == [], name
    assert problems("run", bench.record()) == []


def bench_stages_that_read_otherwise():
    from tests.projects import fake_stage

    return [fake_stage(collect=say("1"), parse=lambda raw: {"number": int(raw["number.txt"]) + 1})]


def test_a_run_that_failed(bench):
    bench.steps.fail("distro.install", NodeError("no room"))
    ended = bench.run("--json")

    assert ended.code == 5
    assert problems("output-run", ended.json()) == []
    assert problems("run", bench.record()) == []


def test_output_of_the_doctor(bench, monkeypatch):
    from lab.providers.qemu import image

    monkeypatch.setattr(image, "missing_tools", lambda *, for_build: ["qemu-utils"])
    for name in ("KUBERNETES", "ETCD", "K3S"):
        monkeypatch.setenv(f"LAB_{name}_MIRROR", "http://127.0.0.1:9")

    assert problems("output-doctor", bench.lab("doctor", "--json").json()) == []


def test_output_of_diff_with_the_article(bench):
    ended = bench.lab("diff", str(RESULTS), "article", "--json")

    assert problems("output-diff", ended.json()) == []


def test_output_of_scan(bench):
    (bench.root / "pod.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  resources: {}\n  containers:\n"
        "  - {name: c, image: x, resources: {requests: {cpu: 1}}}\n"
    )
    (bench.root / "bad.yaml").write_text("a: [\n")
    ended = bench.lab("scan", "--json", str(bench.root / "pod.yaml"), str(bench.root / "bad.yaml"))
    document = ended.json()

    assert document["findings"]
    assert document["problems"]
    assert problems("output-scan", document) == []
