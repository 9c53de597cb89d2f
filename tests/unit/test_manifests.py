"""Every case of the project renders, and the pairs that are compared differ in one thing only."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from lab import processes
from lab.host import Deadline, wait_until
from lab.manifests import Manifests, pod_command
from lab.model import UsageError
from lab.stages import registry

FOLDER = Path(__file__).resolve().parents[2] / "manifests"
PROJECT = Manifests.load(FOLDER)
CASES = sorted(tomllib.loads((FOLDER / "cases.toml").read_text())["cases"])
PODS = [case for case in CASES if PROJECT.cases[case]["template"] == "pod.yaml.j2"]
PAIRS = [
    ("ctl-burstable", "emp-burstable"),
    ("ctl-guaranteed", "emp-guaranteed"),
    ("cpu-ctl", "cpu-emp"),
]


def load(case, **changes):
    documents = list(yaml.safe_load_all(PROJECT.render(case, **changes)))
    assert len(documents) == 1
    return documents[0]


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "manifests")
    return tmp_path / "manifests"


class TestProject:
    @pytest.mark.parametrize("case", CASES)
    def test_every_case_is_one_object_with_a_name(self, case):
        found = load(case)
        assert found["kind"] in {"Pod", "Namespace", "ResourceQuota", "PriorityClass"}
        assert found["apiVersion"]
        assert found["metadata"]["name"]
        assert PROJECT.render(case).endswith("\n")
        assert PROJECT.render(case) == PROJECT.render(case)

    @pytest.mark.parametrize("case", PODS)
    def test_every_pod_ends_at_once_and_runs_without_network_or_registry(self, case):
        found = load(case)
        spec = found["spec"]
        assert found["metadata"]["name"] == PROJECT.cases[case]["name"] == case
        assert spec["restartPolicy"] == "Never"
        assert spec["hostNetwork"] is True
        (container,) = spec["containers"]
        assert container["imagePullPolicy"] == "Never"
        assert container["command"] == pod_command(PROJECT.cases[case]["busy"], PROJECT.cases[case]["memory_mib"])
        assert "schedulerName" not in spec

    def test_every_case_of_every_stage_exists(self):
        for stage in registry.STAGES:
            assert set(stage.cases) <= set(CASES)

    @pytest.mark.parametrize(("control", "empty"), PAIRS)
    def test_an_empty_block_is_the_only_difference(self, control, empty):
        one, other = load(control), load(empty)
        assert other["spec"].pop("resources") == {}
        assert one["metadata"].pop("name") == control
        assert other["metadata"].pop("name") == empty
        assert one == other

    @pytest.mark.parametrize(("control", "empty"), PAIRS)
    def test_and_the_only_line_of_text(self, control, empty):
        one = PROJECT.render(control).splitlines()
        other = PROJECT.render(empty).splitlines()
        assert [line for line in other if line not in one] == [f"  name: {empty}", "  resources: {}"]
        assert [line for line in one if line not in other] == [f"  name: {control}"]

    @pytest.mark.parametrize("case", ["evict-emp", "evict-gua-emp"])
    def test_eviction_pods_with_an_empty_block(self, case):
        assert load(case)["spec"]["resources"] == {}

    @pytest.mark.parametrize("case", ["be", "evict-be", "probe"])
    def test_a_pod_without_any_resources(self, case):
        assert "resources" not in load(case)["spec"]
        assert "resources" not in load(case)["spec"]["containers"][0]

    def test_requests_and_limits_are_those_of_the_table(self):
        container = load("ctl-guaranteed")["spec"]["containers"][0]
        assert container["resources"] == {
            "requests": {"cpu": "200m", "memory": "256Mi"},
            "limits": {"cpu": "200m", "memory": "256Mi"},
        }
        assert load("cpu-neighbour")["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "1"}}

    def test_values_at_pod_level_only(self):
        spec = load("plr-burstable")["spec"]
        assert spec["resources"]["limits"] == {"cpu": "500m", "memory": "512Mi"}
        assert spec["resources"]["requests"] == {"cpu": "100m", "memory": "256Mi"}
        assert "resources" not in spec["containers"][0]

    def test_the_quota_refuses_best_effort_pods_of_its_namespace(self):
        quota = load("quota")
        assert quota["spec"] == {"hard": {"pods": "0"}, "scopes": ["BestEffort"]}
        assert quota["metadata"]["namespace"] == load("quota-namespace")["metadata"]["name"]

    def test_the_low_priority_is_the_one_that_its_pod_names(self):
        assert load("priority-low")["value"] < 0
        assert load("priority-low")["metadata"]["name"] == load("evict-low")["spec"]["priorityClassName"]

    def test_parameters_may_be_changed_for_one_rendering(self):
        assert load("be", namespace="lab-quota")["metadata"]["namespace"] == "lab-quota"
        assert load("be", scheduled=False)["spec"]["schedulerName"] == "nobody"
        assert load("be")["metadata"]["namespace"] == "lab"

    @pytest.mark.parametrize("value", [{"cpu": 'a"b: {x}'}, {"cpu": "ä # no comment"}, {}])
    def test_values_cannot_break_out_of_their_place(self, value):
        assert load("be", requests=value)["spec"]["containers"][0]["resources"]["requests"] == value


class TestErrors:
    def test_an_unknown_case_names_those_that_exist(self):
        with pytest.raises(UsageError, match=r"no manifest case 'ctl'; cases.toml has: be, .*ctl-burstable"):
            PROJECT.render("ctl")

    @pytest.mark.parametrize("use", ["{{ missing }}", "{{ missing | flow }}", "{{ name.missing }}"])
    def test_a_parameter_that_nobody_gave_names_the_case(self, folder, use):
        (folder / "pod.yaml.j2").write_text(f"a: {use}\n")
        with pytest.raises(UsageError, match=r"manifest case be: .*missing"):
            Manifests.load(folder).render("be")

    def test_a_template_that_is_not_there_names_the_case(self, folder):
        (folder / "pod.yaml.j2").unlink()
        with pytest.raises(UsageError, match=r"manifest case be: .*pod\.yaml\.j2"):
            Manifests.load(folder).render("be")

    def test_a_template_with_a_mistake_names_the_case(self, folder):
        (folder / "pod.yaml.j2").write_text("{% if %}")
        with pytest.raises(UsageError, match="manifest case be: "):
            Manifests.load(folder).render("be")

    def test_a_rendering_that_is_no_yaml_names_the_case(self, folder):
        (folder / "pod.yaml.j2").write_text("a: b: {{ name }}\n")
        with pytest.raises(UsageError, match="manifest case be: "):
            Manifests.load(folder).render("be")

    def test_a_missing_or_broken_table_is_named(self, folder, tmp_path):
        with pytest.raises(UsageError, match=r"cases\.toml: .*No such file"):
            Manifests.load(tmp_path)
        (folder / "cases.toml").write_text("[cases.be\n")
        with pytest.raises(UsageError, match=r"cases\.toml: "):
            Manifests.load(folder)

    def test_a_case_may_override_every_default(self, folder):
        (folder / "cases.toml").write_text('[defaults]\ntemplate = "namespace.yaml.j2"\n[cases.x]\nnamespace = "y"\n')
        assert yaml.safe_load(Manifests.load(folder).render("x"))["metadata"]["name"] == "y"


class TestPodCommand:
    def test_neither_is_sleep(self):
        assert pod_command(0, 0) == ["sleep", "100000000"]

    @pytest.mark.parametrize("busy", [1, 2, 5])
    def test_busy_processes_are_counted_and_waited_for(self, busy):
        shell, flag, script = pod_command(busy, 0)
        assert (shell, flag) == ("sh", "-c")
        assert script.count("while :; do :; done &") == busy
        assert script.endswith("wait")

    def test_the_memory_is_held_and_touched(self, tmp_path):
        child = processes.start(pod_command(0, 20), folder=tmp_path, log=tmp_path / "log")
        try:
            held = wait_until(
                "the memory", lambda: ((size := _largest_anonymous(tmp_path)) >= 20 << 10 or None, f"{size} KiB"),
                Deadline.after(30), interval_s=0.05,
            )  # fmt: skip
            assert held
            assert _largest_anonymous(tmp_path) < 30 << 10
        finally:
            assert processes.end_marked(tmp_path) == []
            child.wait()

    def test_the_script_is_one_a_plain_shell_reads(self):
        for command in (pod_command(2, 0), pod_command(0, 50)):
            subprocess.run(["sh", "-n", "-c", command[2]], check=True)


def _largest_anonymous(folder):
    """KiB of anonymous memory of the largest marked process."""
    sizes = [0]
    for process in processes.marked(folder):
        try:
            text = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            continue
        sizes += [int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon:")]
    return max(sizes)


def test_no_stray_file_lies_beside_the_templates():
    used = {case["template"] for case in PROJECT.cases.values()}
    assert {name for name in os.listdir(FOLDER) if name.endswith(".j2")} == used
