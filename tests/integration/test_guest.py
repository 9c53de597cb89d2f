"""A real guest with a real kubelet: the class stage through the program, and a guest that is interrupted or refused."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lab import processes
from lab.cli.shared import cache_folder
from lab.host import Command, Deadline
from lab.model import WaitTimeout
from lab.providers import folders
from lab.providers.contract import NodeSpec
from lab.providers.qemu import guest as machine
from lab.providers.qemu.provider import QemuProvider
from lab.store import Store
from tests.guests import Lab, assert_nothing_left, guests_of, leftovers, wait_for

pytestmark = pytest.mark.guest


@pytest.fixture
def lab(tmp_path: Path, artifacts: Path) -> Lab:
    return Lab(results=tmp_path / "results", artifacts=artifacts)


def test_class_stage_on_a_real_kubelet_and_nothing_is_left(lab: Lab) -> None:
    done = lab.measure(*lab.run_words("v1.36.3", "--stages", "class,kernel,quota", "--json"), timeout_s=1200)
    assert done.returncode == 0, done.stderr
    (cell,) = json.loads(done.stdout)
    outcomes = {verdict["claim"]: verdict["outcome"] for verdict in cell["verdicts"]}
    assert outcomes["class-empty-block"] == "HELD"
    assert outcomes["kernel-empty-block"] == "HELD"
    assert outcomes["kernel-formulas"] == "HELD"
    assert outcomes["quota-empty-block"] == "HELD"
    assert set(outcomes.values()) == {"HELD"}
    assert {"boot", "install", "ready", "pods"} <= set(cell["phases_s"])
    store = Store(lab.results)
    assert store.verify() == []
    assert [attempt.stage for attempt in store.attempts(smoke=True)] == ["class", "kernel", "quota"]
    assert store.attempts() == []
    assert leftovers() == []


def test_guest_that_never_answers_ends_at_its_deadline_with_its_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = machine.command_line

    def mute(*, forwards: Mapping[int, int], **rest: Any) -> list[str]:
        """Nobody in the guest listens at its port 9."""
        return real(forwards=dict.fromkeys(forwards, 9), **rest)

    monkeypatch.setattr(machine, "command_line", mute)
    provider = QemuProvider(cache_folder(), lambda text: None)
    with pytest.raises(WaitTimeout, match=r"gave up waiting for ssh(?s:.)*console of"):
        provider.create(NodeSpec(name="mute", run_id=tmp_path.name.lower()), Deadline.after(2.0))
    assert [guest.id for guest in provider.records() if guest.id.startswith("mute-")] == []


FIRST_QUOTAS = """
set -e
cd /sys/fs/cgroup
echo +cpu > cgroup.subtree_control
mkdir quota busy
trap "echo 1 > $PWD/busy/cgroup.kill" EXIT
for each in 1 2 3; do
    (echo 0 > busy/cgroup.procs; while :; do /bin/true; done) &
done
each=0
while [ $each -lt 4000 ]; do
    echo 50000 100000 > quota/cpu.max
    echo max > quota/cpu.max
    each=$((each + 1))
done
echo set $each
"""


def test_no_first_quota_patches_the_kernel_of_an_emulated_guest_at_work(tmp_path: Path) -> None:
    provider = QemuProvider(cache_folder(), print)
    spec = NodeSpec(name="quota", run_id=tmp_path.name.lower().replace("_", "-"))
    node = provider.create(spec, Deadline.after(400))
    try:
        if node.facts["emulation"] != "tcg":
            pytest.skip("this machine has KVM, whose CPUs patch the kernel as real ones do")
        state = "systemctl is-system-running --wait; nproc; cat /sys/fs/cgroup/statickeys.slice/cpu{.max,set.cpus}"
        said = node.host.run(Command(argv=("bash", "-c", state), timeout_s=300)).stdout.split("\n")
        assert said[:4] == ["running", "2", "100000 100000", "0"]
        # Without the slice no guest of four got as far as 200.
        assert node.host.run(Command(argv=("sh", "-c", FIRST_QUOTAS), timeout_s=600)).stdout == "set 4000\n"
    finally:
        provider.destroy(node)


def test_port_that_is_taken_is_one_clear_error(lab: Lab) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = lab.call(*lab.run_words("v1.36.3", "--stages", "class", "--ssh-port", str(port)), timeout_s=400)
    assert done.returncode == 5
    assert f"port {port} on 127.0.0.1 is taken" in done.stderr
    assert "Traceback" not in done.stderr
    assert leftovers() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_booting_removes_the_guest(lab: Lab, number: signal.Signals) -> None:
    child = lab.start(*lab.run_words("v1.36.3", "--stages", "class"))
    found: list[folders.NodeFolder] = []

    def booting() -> bool:
        found[:] = [guest for guest in guests_of(child.pid) if (guest.folder / "console.log").exists()]
        return bool(found)

    wait_for("the guest's boot", booting, 300)
    child.send_signal(number)
    output, _ = child.communicate(timeout=90)
    assert child.returncode == 130, output
    assert "Traceback" not in output
    assert_nothing_left(found[0])


def test_killed_while_booting_then_gc(lab: Lab) -> None:
    child = lab.start(*lab.run_words("v1.36.3", "--stages", "class"))
    wait_for("the guest's process", lambda: [g for g in guests_of(child.pid) if processes.marked(g.folder)], 300)
    (guest,) = guests_of(child.pid)
    child.kill()
    child.communicate(timeout=90)
    assert guest.id in leftovers()
    done = lab.call("gc", timeout_s=180)
    assert done.returncode == 0
    assert f"removed {guest.id}" in done.stderr
    assert_nothing_left(guest)
