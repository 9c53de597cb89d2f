"""A guest that ends while it boots: tried again when its kernel panicked under software emulation, and only then.

QEMU is a shell script here that writes a console and ends; everything else is the provider's own.
"""

from __future__ import annotations

import contextlib

import pytest

from lab import processes
from lab.host import Deadline
from lab.model import NodeError
from lab.providers.contract import NodeSpec
from lab.providers.qemu import guest, image
from lab.providers.qemu import provider as qemu
from lab.providers.qemu.provider import QemuProvider
from lab.ssh_connect import HostKeyMismatch
from tests.ssh_server import SshServer

free_port = guest.free_port

SAID = "[    1.8] CR2: ff45ccb433601000\n[    1.9] Kernel panic - not syncing: Fatal exception in interrupt"


@pytest.fixture
def boots(tmp_path, monkeypatch):
    """Overlays and starts, in order; ``said`` is what each console says, ``accel`` how the guest is run."""
    seen = {"overlays": 0, "starts": 0, "said": SAID, "accel": "tcg", "scripts": []}

    def overlay(disk_image, target):
        seen["overlays"] += 1

    def command_line(*, console, **_):
        seen["starts"] += 1
        if seen["scripts"]:
            return ["sh", "-c", seen["scripts"].pop(0)]
        return ["sh", "-c", 'sleep 0.4; printf "%s\\n" "$1" >"$2"', "sh", seen["said"], str(console)]

    monkeypatch.setattr(image, "ensure", lambda cache, progress: image.Image(folder=tmp_path, digest="0123"))
    monkeypatch.setattr(image, "require_tools", lambda for_build: None)
    monkeypatch.setattr(image, "is_built", lambda cache: True)
    monkeypatch.setattr(guest, "accelerator", lambda disk_image, folder: seen["accel"])
    monkeypatch.setattr(guest, "make_overlay", overlay)
    monkeypatch.setattr(guest, "command_line", command_line)
    # Scripts end by themselves, however late.
    monkeypatch.setattr(qemu, "LISTEN_S", 300.0)
    return seen


def create(tmp_path, error=NodeError, **options):
    lines = []
    spec = NodeSpec(
        name="n", run_id="20261130t000000z-0000-1", vcpus=2, memory_mib=4096, files={}, expires_s=4102444800.0
    )
    with pytest.raises(error) as caught:
        QemuProvider(tmp_path / "cache", lines.append, **options).create(spec, Deadline.after(600))
    return str(caught.value), lines


def test_a_panic_under_software_emulation_is_tried_again_on_a_fresh_disk(tmp_path, boots):
    text, lines = create(tmp_path)
    assert boots["starts"] == boots["overlays"] == qemu.BOOT_TRIES == 3
    assert "the guest ended by itself" in text
    assert "Kernel panic - not syncing" in text
    assert sum("its kernel panicked while it booted; once more" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("change", "expected"),
    [({"said": "systemd[1]: Shutting down."}, "Shutting down"), ({"accel": "kvm"}, "Kernel panic")],
)
def test_another_end_and_a_panic_on_real_hardware_are_no_matter_of_luck(tmp_path, boots, change, expected):
    boots.update(change)
    text, _ = create(tmp_path)
    assert boots["starts"] == 1
    assert expected in text


def test_nothing_is_left_of_a_guest_that_never_came_up(tmp_path, boots):
    create(tmp_path)
    nodes = tmp_path / "cache" / "nodes"
    left = list(nodes.iterdir()) if nodes.exists() else []
    assert not [path for path in left if path.is_dir()]
    with contextlib.suppress(FileNotFoundError):
        assert processes.marked(nodes / "n-20261130t000000z-0000-1") == []


# --- the port: QEMU says that it cannot have it only when the rest of the machine is set up

TAKEN = "echo \"qemu: Could not set up host forwarding rule 'tcp:127.0.0.1:1-:22'\" >&2; exit 1"
LATE = "sleep 1; " + TAKEN


@pytest.fixture
def other_guest(tmp_path):
    """A guest of somebody else behind the port, with a host key of its own."""
    server = SshServer(tmp_path / "other").start()
    yield server
    server.stop()


@pytest.mark.parametrize("script", [TAKEN, LATE], ids=["at once", "late"])
def test_another_port_is_tried_when_the_first_was_taken(tmp_path, boots, monkeypatch, other_guest, script):
    ports = [other_guest.port]
    monkeypatch.setattr(guest, "free_port", lambda: ports.pop(0) if ports else free_port())
    boots["scripts"] = [script]
    text, lines = create(tmp_path)
    assert f"n-20261130t000000z-0000-1: somebody else took port {other_guest.port} meanwhile" in "\n".join(lines)
    assert boots["starts"] == 1 + qemu.BOOT_TRIES, "a port that was taken is no panic"
    assert "Kernel panic" in text
    assert "host forwarding" not in text, "what the first try said is not the answer of the last"


@pytest.mark.parametrize("script", [TAKEN, LATE], ids=["at once", "late"])
def test_a_port_that_the_user_named_is_told(tmp_path, boots, other_guest, script):
    boots["scripts"] = [script]
    text, _ = create(tmp_path, NodeError, ssh_port=other_guest.port)
    assert text == f"port {other_guest.port} on 127.0.0.1 is taken; give another one with --ssh-port"
    assert boots["starts"] == 1


def test_ports_are_tried_so_often_and_no_more(tmp_path, boots):
    boots["scripts"] = [TAKEN] * 9
    create(tmp_path, NodeError)
    assert boots["starts"] == qemu.PORT_TRIES


def test_another_key_behind_a_port_that_qemu_did_not_complain_of(tmp_path, boots, monkeypatch, other_guest):
    monkeypatch.setattr(qemu, "LISTEN_S", 0.2)
    boots["scripts"] = ["sleep 1000"]
    text, _ = create(tmp_path, HostKeyMismatch, ssh_port=other_guest.port)
    assert "another host key" in text
