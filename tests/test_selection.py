"""Which tests run where: what conftest decides about binaries, guests and long tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import conftest

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 120
SETTINGS = ("LAB_ARTIFACTS", "LAB_E2E", "PYTEST_ADDOPTS")


def test_a_folder_of_binaries_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(pytest.UsageError, match="no such folder"):
        conftest.find_artifacts(str(tmp_path / "gone"), tmp_path)


def test_binaries_are_taken_from_the_folder_given_then_from_beside_the_checkout(tmp_path):
    (tmp_path / "given").mkdir()
    (tmp_path / "beside").mkdir()

    assert conftest.find_artifacts(str(tmp_path / "given"), tmp_path / "beside") == tmp_path / "given"
    assert conftest.find_artifacts(None, tmp_path / "beside") == tmp_path / "beside"
    assert conftest.find_artifacts("", tmp_path / "gone") is None


@pytest.mark.parametrize(
    ("expression", "setting", "wanted"),
    [("", None, False), ("", "1", True), ("", "0", False), ("guest", None, False), ("e2e and not guest", None, True)],
)
def test_long_tests_run_only_when_asked_for(expression, setting, wanted):
    assert conftest.asks_for_e2e(expression, setting) is wanted


def test_a_guest_test_is_skipped_with_its_reason_and_a_long_one_deselected(tmp_path):
    """The real conftest in a small project of its own, on a PATH without QEMU and with no binaries."""
    tests = tmp_path / "project" / "tests"
    (tests / "e2e").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "conftest.py", tests)
    (tmp_path / "project" / "pytest.ini").write_text("[pytest]\nmarkers =\n    guest: boots\n    e2e: long\n")
    (tests / "test_small.py").write_text("import pytest\n@pytest.mark.guest\ndef test_boot():\n    raise SystemExit\n")
    (tests / "e2e" / "test_long.py").write_text("def test_long():\n    raise SystemExit\n")
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider"],
        cwd=tmp_path / "project", env={**environment, "PATH": str(tmp_path)}, capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip

    assert "1 skipped, 1 deselected" in done.stdout
    assert "QEMU is not installed: apt-get install qemu-system-x86 qemu-utils; no Kubernetes binaries" in done.stdout
