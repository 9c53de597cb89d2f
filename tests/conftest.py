"""What all tests share: the folder of binaries, what a guest needs, and which tests run without being asked for.

Marks: ``guest`` boots a real guest and is skipped, with the reason, where it cannot; ``e2e`` (every test below
``tests/e2e``) runs only with ``-m e2e`` or ``LAB_E2E=1``. A test that is both carries both.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from lab.secrets import SECRETS

ROOT = Path(__file__).resolve().parent.parent
E2E_FOLDER = ROOT / "tests" / "e2e"
UNIT_FOLDER = ROOT / "tests" / "unit"
GUEST_TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils"}
NO_ARTIFACTS = (
    "no Kubernetes binaries: set LAB_ARTIFACTS to a folder that holds them, or put it at ../shared/kubernetes "
    "beside the checkout"
)

# The same examples on every run, and no verdict that depends on how busy the machine is. `--hypothesis-profile=default`
# searches with fresh examples instead.
hypothesis.settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("ci")


def find_artifacts(given: str | None, beside: Path) -> Path | None:
    """The folder of binaries: the one given, else the one ``beside`` the checkout, else None.

    A folder that was given but is not there is an error: a typing mistake must not switch the guest tests off.
    """
    if given:
        folder = Path(given).resolve()
        if not folder.is_dir():
            raise pytest.UsageError(f"LAB_ARTIFACTS={given}: no such folder")
        return folder
    return beside.resolve() if beside.is_dir() else None


def _artifacts() -> Path | None:
    return find_artifacts(os.environ.get("LAB_ARTIFACTS"), ROOT.parent / "shared" / "kubernetes")


def guest_obstacles() -> list[str]:
    """Why no guest can be booted here; empty when one can."""
    packages = [package for tool, package in GUEST_TOOLS.items() if shutil.which(tool) is None]
    found = [f"QEMU is not installed: apt-get install {' '.join(packages)}"] if packages else []
    if _artifacts() is None:
        found.append(NO_ARTIFACTS)
    return found


def asks_for_e2e(mark_expression: str, setting: str | None) -> bool:
    """Whether the long tests were asked for: by name in ``-m``, or by LAB_E2E=1."""
    return setting == "1" or re.search(r"\be2e\b", mark_expression) is not None


@pytest.fixture(autouse=True)
def own_secrets() -> Iterator[None]:
    """What a test has registered is forgotten after it: every text is searched for all of it, in thousands of tests."""
    before = SECRETS._forms
    yield
    SECRETS._forms = before


@pytest.fixture(scope="session")
def artifacts() -> Path:
    """Folder with Kubernetes binaries, in the form that ``lab run --artifacts`` takes; skips where there is none."""
    folder = _artifacts()
    if folder is None:
        pytest.skip(NO_ARTIFACTS)
    return folder


def pytest_report_header() -> list[str]:
    """Say at the top of every report whether guest tests can run."""
    obstacles = guest_obstacles()
    return [f"guest tests: {'SKIPPED: ' + '; '.join(obstacles) if obstacles else f'with binaries of {_artifacts()}'}"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark, deselect and skip; before pytest itself reads ``-m``."""
    wanted = asks_for_e2e(config.getoption("markexpr"), os.environ.get("LAB_E2E"))
    obstacles = guest_obstacles()
    chosen, left_out = [], []
    for item in items:
        if E2E_FOLDER in item.path.parents:
            item.add_marker(pytest.mark.e2e)
        if UNIT_FOLDER not in item.path.parents:
            # Guests, ports and the cache's folder of nodes are there once: these follow one another in one process.
            item.add_marker(pytest.mark.xdist_group("machine"))
        if obstacles and item.get_closest_marker("guest"):
            item.add_marker(pytest.mark.skip(reason="; ".join(obstacles)))
        is_long = item.get_closest_marker("e2e") is not None
        (left_out if is_long and not wanted else chosen).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen
