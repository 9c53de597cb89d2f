"""The programs that write a machine down and get it back, run in a folder that stands for the machine."""

from __future__ import annotations

import json
import os
import re
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab.host import Command, Deadline, LocalHost, wait_until

SCRIPTS = Path(__file__).resolve().parents[2] / "node-scripts"
PLACES = re.compile(r"(?<![\w}])/(?=(?:opt/lab|etc/lab|etc/systemd|var/|run/|sys/|usr/libexec|proc/sys|proc/net)\b)")
"""Where a path begins that must be one of the folder's."""

TOOL = """#!/bin/sh
echo "$NAME $*" >> "$LOG"
case "$NAME $*" in
    "systemctl is-active --quiet"*) exit 3;;
    "systemctl stop "*" "*) echo "Failed to enqueue jobs: a unit is not loaded" >&2; exit 5;;
    "systemctl is-active"*) echo "${UNIT_STATE:-inactive}"; exit 3;;
    *-save*) [ -z "$CHAINS" ] || cat "$CHAINS";;
    "iptables-nft"*) [ -z "$CHAINS" ] || [ "${*#*-X}" = "$*" ] || : > "$CHAINS";;
esac
"""

SYSCTLS = {
    "vm/overcommit_memory": "0", "vm/panic_on_oom": "0", "kernel/panic": "0", "kernel/panic_on_oops": "0",
    "kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}  # fmt: skip


class Root:
    """A folder with what the programs touch of a machine; ``run`` runs one of them in it."""

    def __init__(self, folder):
        self.folder = folder
        for place in ("var/lib", "var/log", "run", "etc/systemd/system", "sys/fs/cgroup", "sys/module", "tools"):
            (folder / place).mkdir(parents=True)
        self.write("sys/fs/cgroup/cgroup.subtree_control", "cpu memory\n")
        for key, value in SYSCTLS.items():
            self.write(f"proc/sys/{key}", f"{value}\n")
        for name in ("systemctl", "modprobe", "umount", "iptables-nft", "iptables-nft-save"):
            tool = folder / "tools" / name
            tool.write_text(TOOL.replace("$NAME", name).replace("$LOG", str(folder / "calls")))
            tool.chmod(0o755)

    def write(self, path, text=""):
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def run(self, name, **env):
        text = PLACES.sub(f"{self.folder}/", (SCRIPTS / name).read_text())
        settings = {"PATH": f"{self.folder / 'tools'}:/usr/bin:/bin", "CHAINS": "", **env}
        return LocalHost().run(Command(argv=("sh", "-s"), stdin=text, env=settings, check=False, timeout_s=120))

    def calls(self):
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def state(self):
        """Every path below the machine's folders, and the text of what is a file."""
        found = {}
        for place, _, names in os.walk(self.folder):
            found[place] = None
            for name in names:
                path = Path(place) / name
                if path.name not in ("calls", "chains"):
                    found[str(path)] = path.read_text() if path.is_file() else "link"
        return found


@pytest.fixture
def root(tmp_path):
    return Root(tmp_path)


def install(root):
    """What an installation, and the kubelet, leave on a machine."""
    for path in (
        "opt/lab/bin/kubelet", "opt/lab/node-scripts/x.py", "opt/lab/out/window", "etc/lab/pki/ca.crt",
        "etc/systemd/system/lab-kubelet.service", "etc/systemd/system/lab-apiserver.service",
        "var/lib/kubelet/pods/1/volumes/x", "var/lib/lab/etcd/db", "run/lab/containerd/x", "run/lab/kubectl/x",
        "var/log/containers/a.log", "sys/module/overlay/refcnt",
    ):  # fmt: skip
        root.write(path)
    (root.folder / "run/containerd/s").mkdir(parents=True, exist_ok=True)
    (root.folder / "run/lab/containerd/io.containerd.runtime.v2.task/k8s.io/abc").mkdir(parents=True)
    (root.folder / "sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice").mkdir(parents=True)
    for key, value in {"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}.items():
        root.write(f"proc/sys/{key}", f"{value}\n")
    # A kernel takes the folder of a module away with it.
    (root.folder / "tools" / "modprobe").write_text(f'#!/bin/sh\nrm -r "{root.folder}/sys/module/overlay"\n')


def test_what_was_installed_goes_and_the_rest_is_as_before(root):
    before = root.state()
    assert root.run("upstream_before.sh").stdout == "saved\n"
    install(root)
    done = root.run("upstream_remove.sh")
    assert (done.stdout, done.exit_status) == ("removed\n", 0), done.stderr
    after = root.state()
    del before[str(root.folder / "tools" / "modprobe")], after[str(root.folder / "tools" / "modprobe")]
    assert {path.removeprefix(str(root.folder)) for path in set(before) ^ set(after)} <= {"/opt"}
    assert {path: text for path, text in after.items() if path in before} == before
    calls = root.calls()
    for unit in ("lab-measure-*", "lab-kubelet", "lab-etcd", "lab-containerd", "kubepods.slice", "lab.slice"):
        assert calls.index(f"systemctl stop {unit}") < calls.index("systemctl daemon-reload")
    assert "systemctl thaw lab-control.slice" in calls


def test_again_there_is_nothing_to_do(root):
    root.run("upstream_before.sh")
    install(root)
    root.run("upstream_remove.sh")
    number = len(root.calls())
    done = root.run("upstream_remove.sh")
    assert (done.stdout, done.exit_status) == ("nothing installed\n", 0)
    assert len(root.calls()) == number


def test_a_machine_without_a_record_is_left_alone(root):
    install(root)
    before = root.state()
    assert root.run("upstream_remove.sh").stdout == "nothing installed\n"
    assert (root.state(), root.calls()) == (before, [])


def test_what_is_there_already_is_not_taken(root):
    """A containerd of the owner's with its socket, and logs of something else."""
    root.write("run/containerd/s/other", "socket")
    root.write("var/log/containers/owner.log", "lines")
    root.write("sys/module/overlay/refcnt")
    root.run("upstream_before.sh")
    install(root)
    (root.folder / "var/log/containers/a.log").unlink()
    (root.folder / "var/log/containers/lab.log").symlink_to("/var/lib/lab/pod-logs/x")
    done = root.run("upstream_remove.sh")
    assert done.stdout == "removed\n", done.stdout
    assert (root.folder / "run/containerd/s/other").read_text() == "socket"
    assert (root.folder / "var/log/containers/owner.log").exists()
    assert (root.folder / "sys/module/overlay").exists()


def test_the_socket_of_a_pods_shim_is_found(root):
    root.run("upstream_before.sh")
    install(root)
    bundles = root.folder / "run/lab/containerd"
    script = f"printf '%s' '{bundles}/containerd.sock/k8s.io/abc' | sha256sum | cut -d' ' -f1"
    name = LocalHost().run(Command(argv=("sh", "-c", script))).stdout.strip()
    root.write(f"run/containerd/s/{name}")
    root.write("run/containerd/s/foreign")
    root.run("upstream_remove.sh")
    assert os.listdir(root.folder / "run/containerd/s") == ["foreign"]


def test_what_stays_is_named_and_the_record_with_it(root):
    root.run("upstream_before.sh")
    install(root)
    done = root.run("upstream_remove.sh", UNIT_STATE="active")
    assert done.exit_status == 1
    assert "left: unit lab-kubelet is active" in done.stdout.splitlines()
    assert (root.folder / "opt/lab/before").is_dir()
    assert root.run("upstream_remove.sh").stdout == "removed\n"


CHAINS = "*mangle\n:PREROUTING ACCEPT [0:0]\n:KUBE-OLD - [0:0]\nCOMMIT\n"
MORE = CHAINS.replace(
    "COMMIT",
    ':KUBE-FIREWALL - [0:0]\n-A OUTPUT -j KUBE-FIREWALL\n-A INPUT -m comment --comment "a b" -j KUBE-FIREWALL\nCOMMIT',
)


def test_only_new_chains_go(root):
    chains = root.folder / "chains"
    chains.write_text(CHAINS)
    root.run("upstream_before.sh", CHAINS=str(chains))
    assert (root.folder / "opt/lab/before/chains").read_text() == "iptables-nft mangle KUBE-OLD\n"
    chains.write_text(MORE)
    done = root.run("upstream_remove.sh", CHAINS=str(chains))
    assert done.stdout == "removed\n", done.stderr
    assert [call for call in root.calls() if call.startswith("iptables-nft -w")] == [
        "iptables-nft -w 5 -t mangle -D OUTPUT -j KUBE-FIREWALL",
        "iptables-nft -w 5 -t mangle -D INPUT -m comment --comment a b -j KUBE-FIREWALL",
        "iptables-nft -w 5 -t mangle -F KUBE-FIREWALL",
        "iptables-nft -w 5 -t mangle -X KUBE-FIREWALL",
    ]


@pytest.mark.parametrize(
    "path",
    [
        "var/lib/kubelet", "etc/lab", "var/lib/lab", "sys/fs/cgroup/kubepods.slice", "opt/lab/notes",
        "etc/systemd/system/lab-etcd.service",
    ],
)  # fmt: skip
def test_what_would_be_mixed_with_is_refused(root, path):
    root.write(f"{path}/x")
    before = root.state()
    done = root.run("upstream_before.sh")
    assert (done.stdout, done.exit_status) == (f"refused: {root.folder}/{path}\n", 3)
    assert root.state() == before


def test_files_that_were_laid_down_at_boot_are_the_labs_own(root):
    root.write("opt/lab/bin/kubelet")
    root.write("opt/lab/node-scripts/node_facts.sh")
    assert root.run("upstream_before.sh").stdout == "saved\n"


def test_the_first_record_is_kept(root):
    root.run("upstream_before.sh")
    root.write("proc/sys/kernel/panic", "10\n")
    done = root.run("upstream_before.sh")
    assert (done.stdout, done.exit_status) == ("saved before\n", 0)
    assert "kernel/panic 0\n" in (root.folder / "opt/lab/before/sysctls").read_text()


def test_a_record_that_was_cut_short_is_made_again(root):
    root.write("opt/lab/before.part/sysctls", "kern")
    assert root.run("upstream_before.sh").stdout == "saved\n"
    assert (root.folder / "opt/lab/before/sysctls").read_text().count("\n") == len(SYSCTLS)


@pytest.mark.parametrize("status", [0, 1])
def test_the_image_is_made_of_the_busybox_that_was_brought(tmp_path, status):
    (tmp_path / "busybox").write_bytes(b"a static program")
    ctr = tmp_path / "ctr"
    ctr.write_text(f'#!/bin/sh\ncat > {tmp_path}/seen\necho "$*"\nexit {status}\n')
    ctr.chmod(0o755)
    argv = ("python3", str(SCRIPTS / "busybox_image.py"), str(tmp_path / "busybox"), str(ctr), "/run/x.sock")
    done = LocalHost().run(Command(argv=argv, check=False))
    start, end = (json.loads(line) for line in done.stdout.splitlines())
    assert (start["program"], end["ok"], done.exit_status) == ("busybox-image", status == 0, status)
    assert end["message"] == "--address /run/x.sock -n k8s.io images import -\n"
    with tarfile.open(tmp_path / "seen") as image:
        index = json.load(image.extractfile("index.json"))
        assert index["manifests"][0]["digest"] == end["digest"]
        layers = [image.extractfile(member).read() for member in image if member.name.startswith("blobs/")]
    assert any(b"a static program" in content for content in layers)


def overlapping(root, name):
    """Run a program that writes the machine down twice, the second time while the first is reading the rules."""
    begun, go = root.folder / "begun", root.folder / "go"
    wait = f'#!/bin/sh\ntouch "{begun}"\nuntil [ -e "{go}" ]; do sleep 0.05; done\n'
    (root.folder / "tools" / "iptables-nft-save").write_text(wait)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(root.run, name)
        try:
            wait_until("the first", lambda: (begun.exists() or None, "not begun"), Deadline.after(60), interval_s=0.02)
            second = pool.submit(root.run, name)
            # Without a lock it takes away, in this time, what the first is writing.
            time.sleep(1)
        finally:
            go.touch()
        done = first.result(), second.result()
    return [(each.stdout, each.exit_status) for each in done]


def test_a_second_try_waits_for_the_first_that_lost_its_connection(root):
    assert overlapping(root, "upstream_before.sh") == [("saved\n", 0), ("saved before\n", 0)]
