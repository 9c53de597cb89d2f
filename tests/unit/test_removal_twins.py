"""The four scripts of installation and removal can each be run alone on a node, so they repeat each other's functions.

What they repeat must stay the same, word for word: a fault mended in one of them is mended in all.
"""

from __future__ import annotations

import itertools
import re

import pytest

from tests.node_programs import SCRIPTS

NAMES = ("k3s_before.sh", "k3s_remove.sh", "upstream_before.sh", "upstream_remove.sh")
OF_THE_DISTRIBUTION = {
    "absent", "changed_sysctls", "end_units", "folders", "left", "main", "mounts", "new_chains", "note_sockets",
    "obstacles", "programs", "remove_files", "restore_kernel", "sysctls", "unmount",
}  # fmt: skip
"""What differs on purpose: paths, units, keys and order."""


def functions(name):
    """Each function of a script with its text."""
    found = dict(re.findall(r"^(\w+)\(\) \{\n(.*?)^\}$", (SCRIPTS / name).read_text(), re.MULTILINE | re.DOTALL))
    assert len(found) > 4
    return found


@pytest.mark.parametrize("pair", list(itertools.combinations(NAMES, 2)), ids=" and ".join)
def test_what_two_scripts_share_is_the_same_in_both(pair):
    first, second = map(functions, pair)
    shared = first.keys() & second.keys()
    different = {name for name in shared if first[name] != second[name]}
    assert different <= OF_THE_DISTRIBUTION


def test_what_differs_on_purpose_still_differs():
    every = [functions(name) for name in NAMES]
    for name in OF_THE_DISTRIBUTION:
        texts = {script[name] for script in every if name in script}
        assert len(texts) > 1, f"{name} need not be listed"


def test_the_repeated_ones_are_found_at_all():
    shared = (functions("k3s_remove.sh").keys() & functions("upstream_remove.sh").keys()) - OF_THE_DISTRIBUTION
    assert {"noted", "was_absent", "stop", "end_group", "remove_group"} <= shared
    assert functions("k3s_before.sh")["rules"] == functions("k3s_remove.sh")["rules"]
    assert functions("upstream_before.sh")["chains"] == functions("upstream_remove.sh")["chains"]
