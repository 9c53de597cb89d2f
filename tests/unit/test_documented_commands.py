"""Every command in the documents that a new user follows is run: as it stands, or as `lab plan` where it needs a node.

The project that they run in is a copy of this one with a part of its results; qemu is a fake, and DigitalOcean is the
local API. A command that no rule below covers fails: whoever adds it says how it runs here.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.cli import readiness
from lab.providers.digitalocean import account
from lab.stages import registry
from tests.digitalocean_api.server import TOKEN, LocalDigitalOcean
from tests.projects import ROOT, Bench, Ended, make_bench

DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/quick-start.md", "docs/reading.md", "docs/errors.md")
NODE = "ID"
"""A place to fill in: the id that `lab nodes` shows."""
AFFECTED = """\
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  resources: {}
  containers: [{name: c, image: x, resources: {requests: {cpu: 100m}}}]
"""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One command of a document: where it stands, and its words."""

    place: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.place}: {' '.join(self.words)}"


def shown_in(document: str, text: str) -> Iterator[Shown]:
    """Commands of the fenced ``sh`` blocks, comments cut off, several on a line taken apart."""
    for block in re.finditer(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        first = text[: block.start()].count("\n") + 2
        for number, line in enumerate(block[1].splitlines(), start=first):
            for part in re.split(r";|&&", re.sub(r"(^|\s)#.*", "", line)):
                if part.strip():
                    yield Shown(place=f"{document}:{number}", words=tuple(shlex.split(part)))


def all_shown() -> list[Shown]:
    return [shown for name in DOCUMENTS for shown in shown_in(name, (ROOT / name).read_text())]


# --- how each is run


def succeeds(bench: Bench, words: list[str]) -> None:
    ended = bench.lab(*words)
    assert ended.code == 0, ended.err


def is_planned(bench: Bench, words: list[str]) -> None:
    """`lab run` needs a node; `lab plan` takes the same flags, checks them alike, and touches nothing."""
    before = sorted(bench.project.rglob("*"))
    ended = bench.lab("plan", *(NODE_FLAGS.get(word, word) for word in words[1:]))
    assert ended.code == 0, ended.err
    assert "node(s) from" in ended.out
    assert sorted(bench.project.rglob("*")) == before


def finds_something(bench: Bench, words: list[str]) -> None:
    ended = bench.lab(*words)
    assert ended.code == 1, ended.err
    assert "affected" in ended.out


def has_no_cluster(bench: Bench, words: list[str]) -> None:
    """Here is no kubeconfig: bad input that names it, once the flags are understood."""
    ended = bench.lab(*words)
    assert ended.code == 2, ended.err
    assert "no cluster to read" in ended.error or "context" in ended.error


def misses_what_is_named(bench: Bench, words: list[str]) -> None:
    """There is no such node or run here: the flags are understood, and it is looked for by its name."""
    ended = bench.lab(*words)
    assert ended.code == 2, ended.err
    assert words[-1] in ended.error


def reports(bench: Bench, words: list[str]) -> None:
    """The doctor of a machine that may lack something."""
    ended = bench.lab(*words)
    assert ended.code in (0, 5), ended.err
    assert "CLAIM.md" in ended.out


NODE_FLAGS = {NODE: "node-1"}
RULES: tuple[tuple[str, Callable[[Bench, list[str]], None]], ...] = (
    (r"run --resume RUN$", misses_what_is_named),
    (r"run\b", is_planned),
    (r"plan\b", succeeds),
    (r"doctor$", reports),
    (r"demo$", succeeds),
    (r"(summary|judge|verify|diff)\b", succeeds),
    (r"scan --live\b", has_no_cluster),
    (r"scan --promql$", succeeds),
    (r"scan\b", finds_something),
    (r"nodes$", succeeds),
    (r"gc\b", succeeds),
    (r"(ssh|logs|down) ID$", misses_what_is_named),
)
OTHER = re.compile(r"(git clone|cd|export|\.|TERM=dumb .*script) ")
"""What is neither the lab nor make, and is not run."""


def rule_for(words: tuple[str, ...]) -> Callable[[Bench, list[str]], None] | None:
    text = " ".join(words[1:])
    return next((run for pattern, run in RULES if re.match(pattern, text)), None)


@pytest.fixture
def bench(tmp_path, monkeypatch, capfd) -> Iterator[Bench]:
    """A copy of the project with the class and quota results of two versions, and files for a scan."""
    made = make_bench(tmp_path, monkeypatch, capfd, stages=registry.STAGES, claims=(ROOT / "CLAIM.md").read_text())
    for version in ("v1.36.3", "v1.37.2"):
        for stage in ("class", "quota"):
            place = f"results/upstream-{version}/{stage}"
            shutil.copytree(ROOT / place, made.project / place)
    (made.project / "manifests" / "affected.yaml").write_text(AFFECTED)
    (made.project / "deploy.yaml").write_text(AFFECTED)
    assert made.lab("summary").code == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(AFFECTED.encode())))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(readiness, "DEADLINE_S", 20.0)
    monkeypatch.setattr(account, "public_address", lambda url: "203.0.113.7")
    for name in ("DIGITALOCEAN_TOKEN", "DIGITALOCEAN_ACCESS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    for name in ("KUBERNETES", "ETCD", "K3S"):
        monkeypatch.setenv(f"LAB_{name}_MIRROR", "http://127.0.0.1:9")
    with LocalDigitalOcean() as cloud:
        monkeypatch.setenv("LAB_DIGITALOCEAN_API", cloud.url)
        yield made
        assert not {"POST", "PUT", "DELETE"} & {call.method for call in cloud.requests}


LAB = [shown for shown in all_shown() if shown.words[0] == "lab"]


@pytest.mark.parametrize("shown", LAB, ids=str)
def test_a_command_of_the_lab_runs(bench, monkeypatch, shown):
    if "--max-cost" in shown.words:
        monkeypatch.setenv("DIGITALOCEAN_TOKEN", TOKEN)
    rule = rule_for(shown.words)
    assert rule is not None, f"{shown}: say in RULES how it is run here"
    rule(bench, list(shown.words[1:]))


@pytest.mark.parametrize("shown", [shown for shown in all_shown() if shown.words[0] == "make"], ids=str)
def test_a_target_of_make_is_known(shown):
    done = subprocess.run(
        ["make", "--dry-run", *shown.words[1:]], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr


def test_every_command_is_of_a_kind_that_is_known():
    rest = [shown for shown in all_shown() if shown.words[0] not in ("lab", "make")]

    assert [str(shown) for shown in rest if not OTHER.match(" ".join(shown.words) + " ")] == []


def test_the_documents_begin_where_a_new_user_does():
    commands = [shown.words for shown in shown_in("", (ROOT / "docs" / "quick-start.md").read_text())]

    assert commands[0][:2] == ("git", "clone")
    assert ("lab", "demo") in commands[:6]
    assert len(LAB) > 20


def test_a_command_without_a_rule_and_one_with_a_wrong_flag_are_found(bench):
    assert rule_for(("lab", "frob")) is None
    with pytest.raises(AssertionError, match="warp"):
        is_planned(bench, ["run", "--versions", "v1.36.3", "--warp", "9"])
    with pytest.raises(AssertionError, match="no such folder"):
        succeeds(bench, ["verify", "--results", "nowhere"])


def test_commands_are_read_as_a_shell_would():
    text = "```sh\nlab a 'b c'; lab d   # lab e\n\ncd x && make y\n```\n```\nlab not-sh\n```\n"

    assert [shown.words for shown in shown_in("T", text)] == [
        ("lab", "a", "b c"), ("lab", "d"), ("cd", "x"), ("make", "y"),
    ]  # fmt: skip
    assert [shown.place for shown in shown_in("T", text)] == ["T:2", "T:2", "T:4", "T:4"]


def test_no_document_of_the_list_is_gone():
    assert [name for name in DOCUMENTS if not Path(ROOT / name).is_file()] == []


def test_the_environment_of_the_person_who_tests_does_not_matter(bench):
    ended: Ended = bench.lab("nodes")

    assert ended.code == 0
    assert not any(name in os.environ for name in ("DIGITALOCEAN_TOKEN", "GITHUB_ACTIONS"))
