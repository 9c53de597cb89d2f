from __future__ import annotations

import re
from pathlib import Path

import yaml

from lab.scan import live

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "scan.md").read_text()


def blocks():
    return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)]


def test_the_role_allows_what_is_listed_and_no_more():
    [role] = [block for block in blocks() if block.get("kind") == "ClusterRole"]
    listed = {resource.replace("_", "") + "s" for resource, _, _ in live.RESOURCES} | {"limitranges"}

    assert {name for rule in role["rules"] for name in rule["resources"]} == listed
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"list"}


def test_the_hooks_that_are_shown_exist():
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    [shown] = [block for block in blocks() if "repos" in block]

    assert [hook["id"] for hook in shown["repos"][0]["hooks"]] == [hook["id"] for hook in hooks]
    assert all(re.compile(hook.get("files", "")) for hook in hooks)
