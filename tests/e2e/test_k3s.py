"""k3s from the first byte of its release to a host as it was before, on a guest, with the stand-in in the place of k3s.

What only a real k3s can show is in docs/k3s.md; `make confirm-k3s` tries it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cli.shared import cache_folder
from lab.distros.k3s.settings import START_S
from lab.host import Command
from lab.model import EXIT_NODE, EXIT_OK, EXIT_UNKNOWN
from lab.ssh_keys import make_key_pair
from lab.store import Store
from tests.cloud_guests import runtime_files
from tests.e2e.test_own_host import Machine, machine  # noqa: F401 - a fixture
from tests.excuses import complaints
from tests.k3s_standin import builder
from tests.k3s_standin.bench import Bench, Ended
from tests.k3s_standin.mirror import Fault, Mirror
from tests.k3s_standin.program.layout import ENDS, ENDS_ONCE, NEVER_READY, WORKS

OLD, NEW = "v1.36.3", "v1.37.2"
FIX = "PodLevelResourcesFixKubeletQOSClass"
TRACES = (
    "/opt/lab", "/etc/rancher", "/var/lib/rancher", "/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/run/k3s",
    "/run/flannel", "/run/lab", "/sys/class/net/cni0", "/sys/class/net/flannel.1", "/sys/fs/cgroup/kubepods.slice",
)  # fmt: skip
BEGINS_S = 600.0
"""Until a run has installed something: its start, the host's first look-over, and giving the host back, emulated."""


def tag(version: str) -> str:
    return f"{version}+k3s1"


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    """An empty mirror; a request for what no release has fails the test."""
    (tmp_path / "mirror").mkdir()
    with Mirror(tmp_path / "mirror") as server:
        yield server


@pytest.fixture
def bench(tmp_path: Path, mirror: Mirror, machine: Machine) -> Bench:  # noqa: F811
    made = Bench(tmp_path, mirror, machine.words)
    made.give_busybox(runtime_files() / "busybox")
    return made


def publish(mirror: Mirror, artifacts: Path, version: str, behaviour: str) -> int:
    """A whole release; its size in bytes."""
    executables = builder.binaries(version, cache=cache_folder(), folder=artifacts, runtime=runtime_files())
    made = builder.program(tag(version), executables, behaviour=behaviour)
    return builder.publish(mirror.folder, tag(version), made).stat().st_size


def as_root(machine: Machine, script: str) -> str:  # noqa: F811
    return machine.root.run(Command(argv=("sh", "-c", script), timeout_s=120, repeatable=True)).stdout.strip()


def assert_as_before(machine: Machine) -> None:  # noqa: F811
    """The host as its own root sees it. The run itself has compared its fingerprints, and would have ended with 6."""
    assert as_root(machine, f"ls -d {' '.join(TRACES)} 2>/dev/null || true") == ""
    assert as_root(machine, "iptables-save | grep -e KUBE- -e FLANNEL -e CNI- || true") == ""
    assert as_root(machine, "grep -e rancher -e cni- /proc/self/mountinfo || true") == ""
    listed = as_root(machine, "ps -e -o comm=").split()
    assert not {"k3s", "kubelet", "containerd", "containerd-shim", "etcd", "kube-apiserver"} & set(listed)


def told(ended: Ended, machine: Machine) -> str:  # noqa: F811
    """What explains an exit code that was not expected; of a folder that is left, the run tells only its name."""
    return ended.err + as_root(machine, "find /run/containerd /run/k3s /run/netns 2>/dev/null | head -n 50")


def outcomes(cell: dict[str, object]) -> dict[str, str]:
    assert cell["problem"] is None
    verdicts = cell["verdicts"]
    assert isinstance(verdicts, list)
    return {verdict["claim"]: verdict["outcome"] for verdict in verdicts}


def test_two_versions_on_one_host_which_is_as_it_was(
    artifacts: Path,
    bench: Bench,
    mirror: Mirror,
    machine: Machine,  # noqa: F811
) -> None:
    sizes = [publish(mirror, artifacts, OLD, WORKS), publish(mirror, artifacts, NEW, ENDS_ONCE)]
    received = int(as_root(machine, "cat /sys/class/net/eth0/statistics/rx_bytes"))
    ended = bench.run(f"{OLD},{NEW}", "--reuse-node", "--stages", "class,kernel,quota,cpu,eviction", timeout_s=5400)
    received = int(as_root(machine, "cat /sys/class/net/eth0/statistics/rx_bytes")) - received
    assert "Traceback" not in ended.err
    assert ended.code in (EXIT_OK, EXIT_UNKNOWN), told(ended, machine)
    old, new = (outcomes(cell) for cell in json.loads(ended.out))
    # The question of the whole project, answered by both versions.
    assert old["class-empty-block"] == "HELD"
    assert new["class-fixed"] == "HELD"

    # Nothing of it counts, and the record says on what it was measured.
    store = Store(bench.results)
    assert store.verify() == []
    attempts = store.attempts(smoke=True)
    assert len(attempts) == 10
    for found, version in ((old, OLD), (new, NEW)):
        mine = [attempt for attempt in attempts if attempt.cell.version == version]
        assert complaints(found, mine) == [], found
        assert "eviction-order" in found
    assert ("cpu-starved" in old, "cpu-equal" in new) == (True, True)
    for attempt in attempts:
        assert not attempt.countable
        assert "it ran on a stand-in for k3s" in attempt.uncountable_reasons
        assert attempt.environment.must_agree["control_plane"] == "in the k3s process"
        assert attempt.environment.must_agree["cgroup_driver"] == "systemd"
        assert attempt.environment.shown["k3s"] == f"{tag(attempt.cell.version)} (stand-in)"
    starts = {attempt.cell.version: attempt.raw()["k3s-start.txt"] for attempt in attempts}
    assert "unit: active after 1 start," in starts[OLD]
    assert "unit: active after 2 starts," in starts[NEW]

    # Both releases went over the link once, and the host is as it was: in between, and at the end.
    assert received < 1.1 * sum(sizes)
    assert "k3s is off; all " in ended.err
    assert_as_before(machine)

    # The gate that takes the fix away takes it from the API server, which is where it counts.
    ended = bench.run(NEW, "--gate", f"{FIX}=false", "--stages", "class", timeout_s=1800)
    assert ended.code == EXIT_OK, told(ended, machine)
    (leg,) = json.loads(ended.out)
    assert outcomes(leg)["class-empty-block"] == "HELD"
    assert mirror.asked == [f"/{tag(version)}/{name}" for version in (OLD, NEW) for name in (builder.SUMS, "k3s")]
    assert_as_before(machine)


def test_every_fault_of_a_node_is_one_error_and_the_host_is_as_it_was(
    tmp_path: Path,
    bench: Bench,
    mirror: Mirror,
    machine: Machine,  # noqa: F811
) -> None:
    def run(version: str, within_s: float) -> Ended:
        ended = bench.run(version, "--stages", "class", timeout_s=within_s + 60)
        assert ended.code == EXIT_NODE, told(ended, machine)
        assert ended.seconds < within_s
        assert_as_before(machine)
        return ended

    # Its clock is wrong.
    builder.publish(mirror.folder, tag("v1.36.1"), builder.program(tag("v1.36.1"), {}, behaviour=ENDS))
    as_root(machine, f"date -s @{int(time.time()) + 3600}")
    ended = run("v1.36.1", BEGINS_S)
    as_root(machine, f"date -s @{int(time.time())}")
    assert "its clock is 3" in ended.error
    assert "ahead of this machine's; set both (NTP) and run again" in ended.error

    # k3s ends at every start. Its unit never restarts it; the lab tries three times.
    ended = run("v1.36.1", BEGINS_S)
    assert "unit: k3s ended 3 times while it started" in ended.error
    assert "this release ends at every start" in ended.error
    assert "this release ends at every start" in saved_log(bench, ended)

    # Its disk is full: the release does not fit.
    ballast = tmp_path / "ballast"
    ballast.write_bytes(secrets.token_bytes(64 << 20))
    builder.publish(mirror.folder, tag("v1.36.2"), builder.program(tag("v1.36.2"), {"ballast": ballast}))
    free = int(as_root(machine, "df --output=avail -B1 /var/tmp | tail -n 1"))
    as_root(machine, f"fallocate -l {free - (32 << 20)} /var/tmp/filler")
    ended = run("v1.36.2", BEGINS_S)
    as_root(machine, "rm /var/tmp/filler")
    assert "is its disk full?" in ended.error

    # k3s never says that it is ready.
    builder.publish(mirror.folder, tag("v1.36.4"), builder.program(tag("v1.36.4"), {}, behaviour=NEVER_READY))
    ended = run("v1.36.4", BEGINS_S + START_S)
    assert f"unit: not started within {START_S} s" in ended.error
    assert "Waiting for cri connection" in saved_log(bench, ended)


def saved_log(bench: Bench, ended: Ended) -> str:
    """The journal of k3s that a failed run has fetched."""
    (line,) = [line for line in ended.err.splitlines() if ": logs are in " in line]
    folder = Path(line.rpartition(": logs are in ")[2])
    assert bench.folder in folder.parents
    return (folder / "k3s.log").read_text()


def test_a_mirror_that_hangs_is_one_error_within_a_minute_and_a_half(tmp_path: Path, mirror: Mirror) -> None:
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(f"127.0.0.1 {make_key_pair('host')[1]}")
    mirror.faults = {f"{tag(OLD)}/{builder.SUMS}": Fault.HANGS}
    bench = Bench(tmp_path, mirror, ("--host", "root@127.0.0.1", "--known-hosts", str(known_hosts)))
    ended = bench.run(OLD, "--stages", "class", timeout_s=300)
    assert ended.code == EXIT_NODE
    assert "timed out" in ended.error
    assert 59 < ended.seconds < 90
