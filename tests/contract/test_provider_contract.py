"""What every provider must do, over the fake and over the real local one (which boots a guest)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.cli.shared import cache_folder
from lab.host import Command, Deadline
from lab.model import NoSuchNode, UsageError
from lab.providers.contract import Node, NodeSpec
from lab.providers.qemu.provider import QemuProvider
from lab.providers.registry import PROVIDERS
from tests.fakes import FakeHost, FakeProvider, Reply
from tests.guests import ROOT


def _fake(folder: Path) -> FakeProvider:
    def host(name: str) -> FakeHost:
        made = FakeHost(name)
        made.answer(("cat", "/given"), Reply(stdout="a file\n"))
        return made

    return FakeProvider(root=folder / "nodes", make_host=host)


def _make(kind: str, folder: Path) -> Any:
    return _fake(folder) if kind == "fake" else QemuProvider(cache_folder(), lambda text: None)


ELSEWHERE = {
    "digitalocean": ("tests/unit/test_digitalocean_provider.py", "tests/e2e/test_droplet.py"),
    "ssh": ("tests/unit/test_own_host.py", "tests/e2e/test_own_host.py"),
}
"""Providers whose nodes need an account or a host of somebody's: their life is shown there, on a guest as well."""


def test_every_registered_provider_is_under_contract() -> None:
    assert set(PROVIDERS) == {"qemu", *ELSEWHERE}, "a new provider belongs here, or says where its life is"
    assert [name for files in ELSEWHERE.values() for name in files if not (ROOT / name).is_file()] == []


@pytest.fixture(params=["fake", pytest.param("qemu", marks=pytest.mark.guest)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def made(kind: str, tmp_path: Path) -> Iterator[tuple[Any, NodeSpec, Node]]:
    provider = _make(kind, tmp_path)
    given = tmp_path / "given"
    given.write_text("a file\n")
    spec = NodeSpec(name="contract", run_id=f"{time.time_ns():x}", files={"/given": given})
    node = provider.create(spec, Deadline.after(400))
    yield provider, spec, node
    provider.destroy(node)


def test_life_of_a_node(made: tuple[Any, NodeSpec, Node]) -> None:
    provider, spec, node = made
    # It answers as soon as create returns, and holds the files that were laid onto it.
    assert node.host.run(Command(argv=("cat", "/given"))).stdout == "a file\n"
    assert spec.name in node.id
    assert spec.run_id in node.id
    assert node.facts["vcpus"] == str(spec.vcpus)
    # The same name again is refused and takes nothing away from the first node.
    with pytest.raises(UsageError, match=node.id):
        provider.create(dataclasses.replace(spec), Deadline.after(60))
    # Kept, then found again by its id alone.
    provider.keep(node, time.time() + 600)
    again = provider.attach(node.id)
    assert again.id == node.id
    assert again.host.run(Command(argv=("cat", "/given"))).stdout == "a file\n"
    with pytest.raises(NoSuchNode, match="no node 'never-made'"):
        provider.attach("never-made")
    # Gone means gone, and once more does no harm.
    provider.destroy(again)
    with pytest.raises(NoSuchNode, match="no node"):
        provider.attach(node.id)
    provider.destroy(again)
