"""The whole program on real guests: all stages of one version, a run as an ordinary user, and kills in later phases."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from lab import processes
from lab.cli.shared import cache_folder
from lab.providers import folders
from lab.providers.qemu import image
from lab.store import Store
from tests.excuses import complaints
from tests.guests import ROOT, Lab, assert_nothing_left, guests_of, leftovers, wait_for

pytestmark = [pytest.mark.guest, pytest.mark.e2e]

NOBODY = 65534


@pytest.fixture
def lab(tmp_path: Path, artifacts: Path) -> Lab:
    return Lab(results=tmp_path / "results", artifacts=artifacts)


def test_all_stages_of_one_version(lab: Lab) -> None:
    done = lab.measure(*lab.run_words("v1.36.3", "--json"), timeout_s=2400)
    (cell,) = json.loads(done.stdout)
    outcomes = {verdict["claim"]: verdict["outcome"] for verdict in cell["verdicts"]}
    store = Store(lab.results)
    assert store.verify() == []
    attempts = store.attempts(smoke=True)
    assert complaints(outcomes, attempts) == [], done.stderr
    assert done.returncode == (3 if "UNKNOWN" in outcomes.values() else 0), done.stderr
    assert {"cpu-starved", "eviction-order", "eviction-no-kernel-kill", "priority-between"} <= set(outcomes)
    stages = ["class", "cpu", "eviction", "eviction-priority", "kernel", "quota"]
    assert sorted(attempt.stage for attempt in attempts) == stages
    observations = {attempt.stage: attempt.observation or {} for attempt in attempts}
    assert {window["target_class"] for window in observations["cpu"]["windows"]} == {"BestEffort", "Burstable"}
    (repetition,) = observations["eviction"]["repetitions"]
    assert repetition["critical"]["ranked"] == ["kube-system/critical"]
    if outcomes["eviction-order"] == "HELD":
        assert repetition["order"] == ["be", "ctl", "gua-ctl", "emp", "gua-emp"]
    assert leftovers() == []


def test_ordinary_user_with_another_version(tmp_path: Path, artifacts: Path) -> None:
    """The same program under a user without any right, with the image already in that user's cache."""
    python = "/usr/bin/python3"
    version = subprocess.run(
        [python, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True, check=False
    ).stdout.strip()
    if os.geteuid() != 0:
        pytest.skip("already an ordinary user: every other test shows the same")
    if version != str(sys.version_info[:2]):
        pytest.skip(f"{python} is {version or 'not there'}, the tests run under {sys.version_info[:2]}")
    home = tmp_path / "home"
    source = image.ensure(cache_folder(), print).folder
    images = home / "cache" / "images"
    images.mkdir(parents=True)
    subprocess.run(["cp", "-r", "--sparse=always", str(source), str(images / source.name)], check=True)
    project = home / "project"
    for name in ("lab", "manifests", "node-scripts", "CLAIM.md"):
        origin = ROOT / name
        if origin.is_dir():
            shutil.copytree(origin, project / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(origin, project / name)
    packages = home / "packages"
    shutil.copytree(sysconfig.get_path("purelib"), packages, ignore=shutil.ignore_patterns("__pycache__", "*mypy*"))
    subprocess.run(["cp", "-r", str(artifacts), str(home / "artifacts")], check=True)
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(home)], check=True)
    for folder in [tmp_path, *tmp_path.parents]:
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    argv = [
        "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
        "env", "-i", "PATH=/usr/sbin:/usr/bin:/bin", f"HOME={home}", f"LAB_CACHE={home / 'cache'}",
        f"PYTHONPATH={project}:{packages}", python, "-m", "lab", "run",
        "--versions", "v1.37.2", "--quick", "--stages", "class", "--no-download", "--no-build", "--json",
        "--artifacts", str(home / "artifacts"), "--results", str(home / "results"),
    ]  # fmt: skip
    done = subprocess.run(argv, cwd=project, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr
    (cell,) = json.loads(done.stdout)
    assert {verdict["claim"]: verdict["outcome"] for verdict in cell["verdicts"]}["class-fixed"] == "HELD"
    assert {path.stat().st_uid for path in (home / "results").rglob("*")} == {NOBODY}


def _killed_at(lab: Lab, what: str, line: str) -> folders.NodeFolder:
    """Start a run, wait for a line of its progress, kill it with SIGKILL; its guest."""
    child = lab.start(*lab.run_words("v1.37.2", "--stages", "class"))
    assert child.stdout is not None
    for text in child.stdout:
        if line in text:
            break
    else:
        raise AssertionError(f"the run ended before {what}")
    (guest,) = guests_of(child.pid)
    child.kill()
    child.stdout.close()
    child.wait(timeout=30)
    return guest


def test_killed_in_a_stage_then_gc(lab: Lab) -> None:
    guest = _killed_at(lab, "the first stage", "stage class")
    assert len(processes.marked(guest.folder)) >= 5, "guest and four control-plane processes survive the kill"
    assert lab.call("gc", timeout_s=180).returncode == 0
    assert_nothing_left(guest)
    store = Store(lab.results)
    assert store.verify() == []
    assert len(store.partials()) == 1


def test_killed_in_a_stage_then_resumed(lab: Lab) -> None:
    guest = _killed_at(lab, "the first stage", "stage class")
    (run,) = (lab.results / "_runs").iterdir()
    done = lab.call("run", "--resume", run.name, "--results", str(lab.results), "--json", timeout_s=1200)
    assert done.returncode == 0, done.stderr
    assert_nothing_left(guest)
    assert leftovers() == []
    (cell,) = json.loads(done.stdout)
    assert {verdict["outcome"] for verdict in cell["verdicts"]} == {"HELD"}
    store = Store(lab.results)
    assert store.verify() == []
    assert store.partials() == []
    (attempt,) = store.attempts(smoke=True)
    assert (attempt.stage, attempt.number, attempt.run_id) == ("class", 1, run.name)
    again = lab.call("run", "--resume", run.name, "--results", str(lab.results), timeout_s=180)
    assert again.returncode == 0
    assert f"run {run.name} is complete: nothing to do" in again.stderr


def test_kept_node_runs_one_stage_again(lab: Lab) -> None:
    first = lab.call(*lab.run_words("v1.37.2", "--stages", "class", "--keep", "always", "--json"), timeout_s=1200)
    assert first.returncode == 0, first.stderr
    node = json.loads(first.stdout)[0]["kept"]
    try:
        assert leftovers() == []
        shown = lab.call("nodes", "--json", timeout_s=180)
        assert node in [entry["id"] for entry in json.loads(shown.stdout)]
        assert "kubelet" in lab.call("logs", node, "--lines", "20", timeout_s=180).stdout
        assert "cloud-amd64" in lab.call("ssh", node, "uname", "-r", timeout_s=180).stdout
        again = lab.call(*lab.run_words("v1.37.2", "--stages", "class", "--node", node, "--json"), timeout_s=900)
        assert again.returncode == 0, again.stderr
        assert [attempt.number for attempt in Store(lab.results).attempts(smoke=True)] == [1, 2]
        wrong = lab.call(*lab.run_words("v1.36.3", "--stages", "class", "--node", node), timeout_s=300)
        assert wrong.returncode == 2
        assert f"node {node} runs v1.37.2, not v1.36.3" in wrong.stderr
        wait_for("the node to be listed again", lambda: node in lab.call("nodes", timeout_s=120).stdout, 60)
    finally:
        down = lab.call("down", node, timeout_s=180)
    assert down.returncode == 0
    assert node not in lab.call("nodes", timeout_s=120).stdout
