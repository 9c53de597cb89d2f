"""The age of claims, in small real git repositories."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lab import claim_history
from lab.model import Cell, UsageError

CELL = Cell(distro="upstream", version="v1.36.3")


def claim_text(name="one", predict="x == 1", stage="cpu", title="t", when="minor >= 34"):
    return (
        f"```yaml\nid: {name}\nstage: {stage}\ntitle: {title}\nwhen: {when}\n"
        f"predict: {predict}\nfalsify: x == 2\n```\n"
    )


class Repository:
    """A git repository with commits at given Unix times."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "CLAIM.md"

    def git(self, *arguments, unix=0):
        identity = {
            f"GIT_{who}_{what}": value
            for who in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", "T"), ("EMAIL", "t@example.org"), ("DATE", f"@{unix} +0000"))
        }
        subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            env={**os.environ, **identity},
            check=True,
            capture_output=True,
            timeout=120,
        )

    def commit(self, text, unix, file="CLAIM.md"):
        (self.folder / file).write_text(text, encoding="utf-8")
        self.git("add", "--force", file)
        self.git("commit", "-q", "-m", "x", unix=unix)

    def since(self, name="one"):
        found = claim_history.read(self.path)
        digests = {claim.id: claim.digest for claim in found.claims}
        return found.since(digests[name])


@pytest.fixture
def repository(tmp_path, monkeypatch):
    # A hook that runs these tests has variables of its own repository in its environment.
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    made = Repository(tmp_path)
    made.git("init", "-q", "-b", "main")
    return made


def test_clean_file_counts_from_its_first_commit(repository):
    repository.commit(claim_text(), 1_700_000_000)
    repository.commit("other", 1_700_000_100, file="README.md")
    found = claim_history.read(repository.path)
    assert found.state == "clean"
    assert found.text == claim_text()
    assert found.since(found.claims[0].digest) == 1_700_000_000
    assert found.since("0" * 64) is None


def test_prose_and_title_keep_the_age_and_an_expression_does_not(repository):
    repository.commit(claim_text(), 1_700_000_000)
    repository.commit("# New prose\n" + claim_text(title="better"), 1_700_000_100)
    assert repository.since() == 1_700_000_000
    repository.commit(claim_text(predict="x == 1.0"), 1_700_000_200)
    assert repository.since() == 1_700_000_200


def test_each_claim_has_its_own_age(repository):
    repository.commit(claim_text(), 1_700_000_000)
    repository.commit(claim_text() + claim_text("two"), 1_700_000_100)
    assert (repository.since("one"), repository.since("two")) == (1_700_000_000, 1_700_000_100)


@pytest.mark.parametrize("between", [claim_text("two"), "no claims any more\n", "```yaml\nid: [\n```\n"])
def test_a_version_without_the_claim_or_unreadable_breaks_continuity(repository, between):
    repository.commit(claim_text(), 1_700_000_000)
    repository.commit(between, 1_700_000_100)
    repository.commit(claim_text(), 1_700_000_200)
    assert repository.since() == 1_700_000_200


def test_a_deleted_file_breaks_continuity(repository):
    repository.commit(claim_text(), 1_700_000_000)
    repository.git("rm", "-q", "CLAIM.md")
    repository.git("commit", "-q", "-m", "x", unix=1_700_000_100)
    repository.commit(claim_text(), 1_700_000_200)
    assert repository.since() == 1_700_000_200


def test_a_merged_claim_keeps_the_time_of_its_own_commit(repository):
    repository.commit("# none yet\n", 1_700_000_000)
    repository.git("checkout", "-q", "-b", "side")
    repository.commit(claim_text(), 1_700_000_100)
    repository.git("checkout", "-q", "main")
    repository.commit("other", 1_700_000_200, file="README.md")
    repository.git("merge", "-q", "--no-edit", "side", unix=1_700_000_300)
    assert repository.since() == 1_700_000_100


def test_settings_of_git_log_do_not_reach_the_walk(repository):
    repository.commit(claim_text(), 1_700_000_000)
    repository.git("config", "log.showSignature", "true")
    repository.git("config", "log.follow", "true")
    assert repository.since() == 1_700_000_000


def test_a_claim_file_in_a_sub_folder(repository):
    (repository.folder / "sub").mkdir()
    repository.commit(claim_text(), 1_700_000_000, file="sub/CLAIM.md")
    repository.commit(claim_text("two"), 1_700_000_100)
    repository.path = repository.folder / "sub" / "CLAIM.md"
    assert claim_history.read(repository.path).state == "clean"
    assert repository.since() == 1_700_000_000


def test_changes_on_disk_are_dirty_and_do_not_count(repository):
    repository.commit(claim_text(), 1_700_000_000)
    repository.path.write_text(claim_text() + claim_text("two"), encoding="utf-8")
    found = claim_history.read(repository.path)
    assert found.state == "dirty"
    assert (repository.since("one"), repository.since("two")) == (1_700_000_000, None)
    repository.git("add", "CLAIM.md")
    assert claim_history.read(repository.path).state == "dirty"


def test_changes_of_other_files_are_not_dirt(repository):
    repository.commit(claim_text(), 1_700_000_000)
    (repository.folder / "other").write_text("x")
    (repository.folder / "CLAIM.md.orig").write_text("x")
    assert claim_history.read(repository.path).state == "clean"


def test_an_edit_hidden_from_git_status_is_dirty(repository):
    repository.commit(claim_text(), 1_700_000_000)
    repository.git("update-index", "--assume-unchanged", "CLAIM.md")
    repository.path.write_text(claim_text(predict="x == 3"), encoding="utf-8")
    assert claim_history.read(repository.path).state == "dirty"


def test_states_before_the_first_commit(repository):
    repository.path.write_text(claim_text(), encoding="utf-8")
    assert claim_history.read(repository.path).state == "untracked"
    repository.git("add", "CLAIM.md")
    found = claim_history.read(repository.path)
    assert (found.state, found.since(found.claims[0].digest)) == ("dirty", None)


def test_an_ignored_file_is_untracked(repository):
    repository.commit("CLAIM.md\n", 1_700_000_000, file=".gitignore")
    repository.path.write_text(claim_text(), encoding="utf-8")
    assert claim_history.read(repository.path).state == "untracked"
    assert repository.since() is None


def test_outside_a_work_tree(repository, tmp_path_factory):
    path = tmp_path_factory.mktemp("bare") / "CLAIM.md"
    path.write_text(claim_text(), encoding="utf-8")
    found = claim_history.read(path)
    assert (found.state, found.since(found.claims[0].digest)) == ("no-git", None)


def test_without_git_installed(repository, monkeypatch):
    repository.commit(claim_text(), 1_700_000_000)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert claim_history.read(repository.path).state == "no-git"


def test_a_git_that_hangs_is_a_usage_error(repository, monkeypatch, tmp_path):
    repository.commit(claim_text(), 1_700_000_000)
    monkeypatch.setattr(claim_history, "GIT_TIMEOUT_S", 0.05)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "git").write_text("#!/bin/sh\nexec /bin/sleep 600\n")
    (tools / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(UsageError, match="gave no answer"):
        claim_history.read(repository.path)


def test_unreadable_or_faulty_files(tmp_path):
    with pytest.raises(UsageError, match="cannot read the claims"):
        claim_history.read(tmp_path / "CLAIM.md")
    (tmp_path / "CLAIM.md").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot read the claims"):
        claim_history.read(tmp_path / "CLAIM.md")
    (tmp_path / "CLAIM.md").write_text("nothing\n")
    with pytest.raises(UsageError, match="line 1: no claim found"):
        claim_history.read(tmp_path / "CLAIM.md")


def test_reasons_of_a_clean_file(repository):
    repository.commit(claim_text() + claim_text("old-only", when="minor <= 33", predict="x > 1"), 1_700_000_000)
    repository.commit(
        claim_text() + claim_text("old-only", when="minor <= 33") + claim_text("k", stage="kernel"), 1_700_000_100
    )
    found = claim_history.read(repository.path)
    reasons = claim_history.uncountable_reasons
    assert reasons(found, "cpu", CELL, 1_700_000_000) == ()
    assert reasons(found, "cpu", CELL, 1_699_999_999.5) == (
        "claim one was committed at 2023-11-14T22:13:20+00:00, after the start at 2023-11-14T22:13:19+00:00",
    )
    old = Cell(distro="upstream", version="v1.33.1")
    assert len(reasons(found, "cpu", old, 1_700_000_099)) == 1
    assert reasons(found, "cpu", old, 1_700_000_100) == ()
    assert len(reasons(found, "kernel", CELL, 1_700_000_050)) == 1
    assert reasons(found, "quota", CELL, 0) == ()


def test_reasons_of_the_other_states(repository, tmp_path_factory):
    reasons = claim_history.uncountable_reasons
    repository.path.write_text(claim_text(), encoding="utf-8")
    (only,) = reasons(claim_history.read(repository.path), "cpu", CELL, 2e9)
    assert "not committed to git" in only
    repository.commit(claim_text(), 1_700_000_000)
    repository.path.write_text(claim_text(predict="x == 4"), encoding="utf-8")
    dirty, uncommitted = reasons(claim_history.read(repository.path), "cpu", CELL, 2e9)
    assert "changes that are not committed" in dirty
    assert uncommitted == "claim one is not committed in this form"
    loose = tmp_path_factory.mktemp("bare") / "CLAIM.md"
    loose.write_text(claim_text(), encoding="utf-8")
    (only,) = reasons(claim_history.read(loose), "quota", CELL, 2e9)
    assert "not in a git work tree" in only


def test_a_cut_history_is_known_as_such(tmp_path):
    origin = tmp_path / "origin"
    origin.mkdir()
    repository = Repository(origin)
    repository.git("init", "-q")
    repository.commit(claim_text(), 1000)
    repository.commit("other\n", 2000, file="other")
    assert claim_history.read(repository.path).is_shallow is False
    subprocess.run(
        ["git", "clone", "-q", "--depth=1", f"file://{origin}", str(tmp_path / "cut")],
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert claim_history.read(tmp_path / "cut" / "CLAIM.md").is_shallow is True
