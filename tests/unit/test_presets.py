"""Presets: the packaged one is the article's experiment, and flags win over it."""

from __future__ import annotations

import pytest

from lab import article, presets
from lab.cli import flags
from lab.distros.registry import DISTROS
from lab.model import UsageError
from lab.providers.registry import PROVIDERS

LEG = "v1.37.1:PodLevelResourcesFixKubeletQOSClass=false"
GOOD = """\
[small]
distro = "upstream"
versions = ["v1.36.3"]
gate_legs = []
order = "random"
reps = 1
"""


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "presets.toml"
        path.write_text(text)
        return path

    return write


def chosen(provider="qemu", /, **given):
    return flags.experiment_of(flags.Flags(**given), provider)


def test_the_articles_preset_is_what_the_article_ran():
    preset = presets.get("article")
    ran = [cell.cell for cell in article.load().cells]
    assert preset.distro == ran[0].distro == "k3s"
    assert preset.versions.split(",") == [cell.version for cell in ran if not cell.gates]
    assert preset.gate_legs == (LEG,) == tuple(f"{cell.version}:{cell.gates[0]}" for cell in ran if cell.gates)
    assert (preset.order, preset.reps) == ("alternate", 3)


def test_a_preset_gives_what_no_flag_gives():
    found = chosen(preset="article")
    assert found.versions == "v1.34.12,v1.35.9,v1.36.5,v1.37.1"
    assert (found.gate_legs, found.distro, found.order, found.reps) == ((LEG,), "k3s", "alternate", 3)


def test_explicit_flags_win_one_by_one():
    found = chosen(preset="article", distro="upstream", order="random", reps=5, gate_leg=["v1.36.5:A=true"])
    assert found.versions == "v1.34.12,v1.35.9,v1.36.5,v1.37.1"
    assert (found.gate_legs, found.distro, found.order, found.reps) == (("v1.36.5:A=true",), "upstream", "random", 5)


@pytest.mark.parametrize(
    ("versions", "legs"),
    [
        ("v1.34.12", ()), ("v1.34.12, 1.37.1", (LEG,)), ("v1.37.2", ()), ("v1.37.1", (LEG,)), ("v1.37.1+k3s1", (LEG,)),
        ("v1.37.1+k3s2", ()),
    ],
)  # fmt: skip
def test_a_leg_belongs_to_its_version(versions, legs):
    found = chosen(preset="article", versions=versions)
    assert (found.versions, found.gate_legs) == (versions, legs)


@pytest.mark.parametrize(("provider", "distro"), [("qemu", "upstream"), ("digitalocean", "k3s"), ("ssh", "k3s")])
def test_without_a_preset_the_distribution_is_that_of_the_provider(provider, distro):
    found = chosen(provider, versions="v1.36.3")
    assert (found.versions, found.gate_legs) == ("v1.36.3", ())
    assert (found.distro, found.order, found.reps) == (distro, "random", 3)
    assert chosen(provider, versions="v1.36.3", distro="upstream").distro == "upstream"


def test_each_provider_has_a_distribution():
    assert set(flags.DISTRO_OF) == set(PROVIDERS)
    assert set(flags.DISTRO_OF.values()) <= set(DISTROS)


def test_neither_versions_nor_preset():
    with pytest.raises(UsageError, match=r"no version given.*--versions.*--preset article"):
        chosen()
    with pytest.raises(UsageError, match="no version given"):
        chosen(gate_leg=[LEG])


def test_an_unknown_preset_names_the_known_ones():
    with pytest.raises(UsageError, match="--preset nightly: there is only article"):
        chosen(preset="nightly")


@pytest.mark.parametrize("reps", [0, 51, -1])
def test_a_given_zero_is_not_taken_for_nothing_given(reps):
    assert chosen(preset="article", reps=reps).reps == reps


def test_a_preset_file(file):
    assert presets.load(file(GOOD))["small"].versions == "v1.36.3"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("x = [", "cannot be read as presets"),
        ("small = 1", "needs exactly"),
        (GOOD.replace("reps = 1\n", ""), "needs exactly"),
        (GOOD + "extra = 1\n", "needs exactly"),
        (GOOD.replace("reps = 1", "reps = true"), "whole number"),
        (GOOD.replace("reps = 1", "reps = 1.5"), "whole number"),
        (GOOD.replace('"random"', "3"), "are texts"),
        (GOOD.replace('["v1.36.3"]', '"v1.36.3"'), "lists of texts"),
        (GOOD.replace('["v1.36.3"]', "[36]"), "lists of texts"),
        (GOOD.replace("v1.36.3", "latest"), "version 'latest'"),
        (GOOD.replace('["v1.36.3"]', "[]"), "no version given"),
        (GOOD.replace("gate_legs = []", 'gate_legs = ["v1.36.3"]'), "VERSION:NAME=false"),
    ],
)
def test_a_bad_preset_file_is_named(file, text, part):
    path = file(text)
    with pytest.raises(UsageError) as caught:
        presets.load(path)
    assert str(path) in str(caught.value)
    assert part in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="cannot be read as presets"):
        presets.load(tmp_path / "none.toml")


# --- the command line


def test_plan_with_the_preset(bench):
    ended = bench.lab("plan", "--preset", "article", "--distro", "upstream", "--json")
    assert ended.code == 0
    assert [entry["cell"] for entry in ended.json()["attempts"]] == [
        "upstream-v1.34.12", "upstream-v1.35.9", "upstream-v1.36.5", "upstream-v1.37.1",
        "upstream-v1.37.1+PodLevelResourcesFixKubeletQOSClass=false",
    ]  # fmt: skip


def test_the_run_records_order_and_repetitions(bench):
    words = ("--preset", "article", "--distro", "upstream", "--versions", "v1.36.5", "--results", str(bench.results))
    assert bench.lab("run", *words).code == 0
    record = bench.record()
    assert record["options"] == {"quick": False, "reps": 3, "order": "alternate"}
    assert [entry["cell"]["version"] for entry in record["cells"]] == ["v1.36.5"]


def test_a_distribution_that_is_not_there_is_told_with_the_preset_that_wants_it(bench, monkeypatch):
    monkeypatch.delitem(DISTROS, "k3s", raising=False)
    ended = bench.lab("plan", "--preset", "article")
    assert (ended.code, ended.out) == (2, "")
    assert ended.error == "--preset article with --distro k3s: there is only upstream"


def test_a_run_without_versions_is_one_error(bench):
    ended = bench.lab("run")
    assert (ended.code, ended.out) == (2, "")
    assert "--versions" in ended.error
    assert "--preset article" in ended.error
    assert bench.steps.calls == []
