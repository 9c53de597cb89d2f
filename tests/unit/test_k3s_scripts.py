"""The node's programs for k3s, run in a folder that stands for the machine, with tools that answer as a test says."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess

import pytest

from lab.host import Command, LocalHost
from lab.parse.node_facts import feature_gates, parse_node_facts, sections
from tests.node_programs import late_in_a_second
from tests.unit.test_upstream_scripts import SCRIPTS, Root, overlapping

PLACES = re.compile(
    r"(?<![\w}])/(?=(?:opt/|etc/|var/|run/|sys/|usr/libexec|usr/local/bin/k3s|proc/sys|proc/net|proc/modules"
    r"|proc/uptime|proc/self)(?!lab/node-scripts/busybox_image))"
)
"""Where a path begins that must be one of the folder's."""

SAVED = """\
*filter
:INPUT ACCEPT [0:0]
:ufw-user - [0:0]
-A INPUT -p tcp -m tcp --dport 22 -j ufw-user
COMMIT
"""
MORE = """\
*filter
:INPUT ACCEPT [0:0]
:ufw-user - [0:0]
:KUBE-ROUTER-INPUT - [0:0]
:FLANNEL-FWD - [0:0]
:LATER - [0:0]
-A INPUT -p tcp -m tcp --dport 22 -j ufw-user
-A INPUT -m comment --comment "kube-router netpol - 4IA2" -j KUBE-ROUTER-INPUT
-A INPUT -m comment --comment "rule to explicitly ACCEPT traffic that comply to network policies" -j ACCEPT
-A KUBE-ROUTER-INPUT -d 10.43.0.0/16 -m comment --comment "allow" -j RETURN
-A INPUT -j LATER
COMMIT
"""


class Machine(Root):
    """The folder, with what k3s and its network leave on a machine."""

    def __init__(self, folder):
        super().__init__(folder)
        for place in ("sys/class/net/eth0", "sys/class/net/lo", "opt"):
            (folder / place).mkdir(parents=True)
        self.write("proc/modules", "nf_tables 1 0 - Live 0x0\next4 1 1 - Live 0x0\n")
        self.write("proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        self.write("proc/sys/net/ipv4/ip_forward", "0\n")
        for name in ("ip", "rmmod", "ipset"):
            self.tool(name, "")
        self.tool("ip", 'rm -r "$SYS/class/net/$3"')
        self.tool("umount", 'grep -vF " $1 " "$MOUNTS" > "$MOUNTS.new"; mv "$MOUNTS.new" "$MOUNTS"')
        self.tool("iptables-nft-save", 'cat "$RULES"')
        self.tool("iptables-nft", '[ "${*#*-X}" = "$*" ] || cp "$RULES.before" "$RULES"')
        self.write("rules", SAVED)
        self.write("rules.before", SAVED)

    def tool(self, name, text):
        place = self.folder / "tools" / name
        place.write_text(f'#!/bin/sh\necho "{name} $*" >> "{self.folder}/calls"\n{text}\n')
        place.chmod(0o755)

    def run(self, name, *words, **env):
        text = PLACES.sub(f"{self.folder}/", (SCRIPTS / name).read_text())
        settings = {
            "PATH": f"{self.folder / 'tools'}:/usr/bin:/bin",
            "SYS": str(self.folder / "sys"),
            "MOUNTS": str(self.folder / "proc/self/mountinfo"),
            "RULES": str(self.folder / "rules"),
            **env,
        }
        return LocalHost().run(Command(argv=("sh", "-s", *words), stdin=text, env=settings, check=False, timeout_s=120))

    def install(self):
        """What an installation leaves."""
        for path in (
            "opt/lab/bin/k3s", "opt/lab/node-scripts/x.py", "opt/lab/images/a.tar.zst", "opt/lab/credentials/x",
            "etc/rancher/k3s/config.yaml", "etc/rancher/node/password", "etc/systemd/system/k3s.service",
            "var/lib/rancher/k3s/data/1/bin/containerd", "var/lib/kubelet/pods/1/volumes/x", "var/lib/cni/flannel/x",
            "var/log/pods/lab_be_1/main/0.log", "run/k3s/x", "run/flannel/subnet.env", "run/lab/kubectl/x",
            "sys/class/net/flannel.1/x", "sys/class/net/cni0/x", "sys/class/net/veth0/x",
            "run/containerd/runc/k8s.io/0a1b/state.json", "run/nri/nri.sock",
        ):  # fmt: skip
            self.write(path)
        (self.folder / "sys/class/net/veth0/master").symlink_to("../cni0")
        (self.folder / "var/log/containers").mkdir()
        (self.folder / "var/log/containers/be.log").symlink_to("/var/log/pods/lab_be_1/main/0.log")
        (self.folder / "sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice").mkdir(parents=True)
        self.write("proc/sys/net/ipv4/ip_forward", "1\n")
        self.write("proc/sys/vm/overcommit_memory", "1\n")
        self.write("rules", MORE)
        self.write("rules.before", SAVED)
        for line in ("/run/k3s/containerd/rootfs", "/var/lib/kubelet/pods/1/volumes/x", "/run/netns/cni-1"):
            with (self.folder / "proc/self/mountinfo").open("a") as file:
                file.write(f"40 30 0:40 / {line} rw - tmpfs tmpfs rw\n")
        with (self.folder / "proc/modules").open("a") as file:
            file.write("vxlan 1 0 - Live 0x0\nxt_comment 1 9 - Live 0x0\nusbhid 1 0 - Live 0x0\n")


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


class TestBeforeAndRemove:
    def test_what_was_installed_goes_and_the_rest_is_as_before(self, machine):
        before = machine.state()
        assert machine.run("k3s_before.sh").stdout == "saved\n"
        machine.install()
        done = machine.run("k3s_remove.sh")
        assert (done.stdout, done.exit_status) == ("removed\n", 0), done.stderr
        after = machine.state()
        gone = {path.removeprefix(str(machine.folder)) for path in before.keys() - after.keys()}
        new = {path.removeprefix(str(machine.folder)) for path in after.keys() - before.keys()}
        assert (gone, new) == (set(), set())
        different = {path.removeprefix(str(machine.folder)) for path in after if after[path] != before[path]}
        # The tools that unload modules only tell what they were asked.
        assert different == {"/proc/modules"}

    def test_in_the_right_order_and_only_what_is_ours(self, machine):
        machine.run("k3s_before.sh")
        machine.install()
        machine.run("k3s_remove.sh")
        calls = machine.calls()
        for unit in ("lab-measure-*", "k3s", "kubepods.slice", "lab.slice"):
            assert calls.index(f"systemctl stop {unit}") < calls.index("systemctl daemon-reload")
        assert {call for call in calls if call.startswith("ip link")} == {
            "ip link delete flannel.1", "ip link delete cni0", "ip link delete veth0",
        }  # fmt: skip
        assert {call for call in calls if call.startswith("rmmod")} == {"rmmod vxlan", "rmmod xt_comment"}
        assert {call.split()[-1] for call in calls if call.startswith("umount")} == {
            "/run/k3s/containerd/rootfs", "/var/lib/kubelet/pods/1/volumes/x", "/run/netns/cni-1",
        }  # fmt: skip
        assert [call.removeprefix("iptables-nft -w 5 -t filter ") for call in calls if " -w 5 " in call] == [
            "-F KUBE-ROUTER-INPUT",
            "-F FLANNEL-FWD",
            "-D INPUT -m comment --comment kube-router netpol - 4IA2 -j KUBE-ROUTER-INPUT",
            "-D INPUT -m comment --comment rule to explicitly ACCEPT traffic that comply to network policies -j ACCEPT",
            "-D KUBE-ROUTER-INPUT -d 10.43.0.0/16 -m comment --comment allow -j RETURN",
            "-X KUBE-ROUTER-INPUT",
            "-X FLANNEL-FWD",
        ]

    def test_again_there_is_nothing_to_do(self, machine):
        machine.run("k3s_before.sh")
        machine.install()
        machine.run("k3s_remove.sh")
        number = len(machine.calls())
        assert machine.run("k3s_remove.sh").stdout == "nothing installed\n"
        assert len(machine.calls()) == number

    def test_a_machine_without_a_record_is_left_alone(self, machine):
        machine.install()
        before = machine.state()
        assert machine.run("k3s_remove.sh").stdout == "nothing installed\n"
        assert (machine.state(), machine.calls()) == (before, [])

    def test_half_of_it_is_enough(self, machine):
        machine.run("k3s_before.sh")
        machine.write("opt/lab/bin/k3s")
        machine.write("etc/systemd/system/k3s.service")
        assert machine.run("k3s_remove.sh").stdout == "removed\n"

    def test_what_is_there_already_is_not_taken(self, machine):
        machine.write("var/lib/cni/networks/podman/10.88.0.2")
        machine.write("run/containerd/s/other", "socket")
        machine.write("run/containerd/runc/moby/1c2d/state.json")
        machine.write("run/nri/nri.sock", "another containerd's")
        machine.write("sys/class/net/flannel-wg/x")
        machine.write("var/log/pods/other_web_1/main/0.log")
        machine.run("k3s_before.sh")
        machine.install()
        assert machine.run("k3s_remove.sh").stdout == "removed\n"
        for path in (
            "var/lib/cni/networks/podman/10.88.0.2", "run/containerd/s/other", "sys/class/net/flannel-wg/x",
            "var/log/pods/other_web_1/main/0.log", "run/containerd/runc/moby/1c2d/state.json", "run/nri/nri.sock",
        ):  # fmt: skip
            assert (machine.folder / path).exists()
        assert not (machine.folder / "run/containerd/runc/k8s.io").exists()
        assert not (machine.folder / "var/log/pods/lab_be_1").exists()

    def test_what_stays_is_named_and_the_record_with_it(self, machine):
        machine.run("k3s_before.sh")
        machine.install()
        machine.tool("ip", "exit 2")
        machine.tool("umount", "exit 1")
        done = machine.run("k3s_remove.sh", UNIT_STATE="active")
        lines = done.stdout.splitlines()
        assert done.exit_status == 1
        assert "left: unit k3s is active" in lines
        assert "left: link flannel.1" in lines
        assert "left: mounted: /run/k3s/containerd/rootfs" in lines
        # Where something is mounted nothing is deleted.
        assert (machine.folder / "var/lib/kubelet/pods/1/volumes/x").exists()
        assert (machine.folder / "opt/lab/k3s-before").is_dir()

    def test_a_second_record_is_not_made(self, machine):
        machine.run("k3s_before.sh")
        machine.install()
        assert machine.run("k3s_before.sh").stdout == "saved before\n"
        assert "net/ipv4/ip_forward 0\n" in (machine.folder / "opt/lab/k3s-before/sysctls").read_text()

    @pytest.mark.parametrize(
        "path",
        [
            "etc/rancher", "var/lib/rancher", "var/lib/kubelet", "run/k3s", "sys/fs/cgroup/kubepods.slice",
            "opt/lab/before", "opt/lab/.hidden", "sys/class/net/cni0", "usr/local/bin/k3s", "etc/lab",
        ],
    )  # fmt: skip
    def test_what_would_be_mixed_with_is_refused(self, machine, path):
        machine.write(f"{path}/x")
        done = machine.run("k3s_before.sh")
        assert (done.stdout, done.exit_status) == (f"refused: {machine.folder}/{path}\n", 3)
        assert not (machine.folder / "opt/lab/k3s-before").exists()

    def test_shims_that_outlive_the_unit_are_ended(self, machine):
        machine.run("k3s_before.sh")
        place = machine.folder / "var/lib/rancher/k3s/data/1/bin/containerd-shim-runc-v2"
        place.parent.mkdir(parents=True)
        shutil.copy("/bin/sleep", place)
        with subprocess.Popen([place, "300"]) as shim:
            try:
                assert machine.run("k3s_remove.sh").stdout == "removed\n"
                assert shim.wait(timeout=30) == -signal.SIGKILL
            finally:
                shim.kill()


K3S = """#!/bin/sh
echo "${0##*/} $*" >> "$LOG"
case "$*" in
    --version) echo "k3s version v1.37.1+k3s1 (0123abcd)"; echo "go version go1.26.8";;
    *" get --raw /readyz") [ -e "$STATE/readyz" ] && echo ok || { echo 'refused' >&2; exit 1; };;
    *" get --raw /version") printf '{"gitVersion": "v1.37.1+k3s1"}';;
    *" get --raw /metrics") cat "$STATE/metrics";;
    *" get node node -o name") echo node/node;;
    *" get node node -o jsonpath="*) cat "$STATE/conditions";;
    *" get namespace lab "*) [ -e "$STATE/namespace" ] && echo namespace/lab; exit 0;;
    *" create namespace lab") : > "$STATE/namespace"; echo namespace/lab;;
    *" get serviceaccount default --namespace "*) echo serviceaccount/default;;
    *) exit 9;;
esac
"""
LIMITS = ("50", "50", "20", "20", "20", "20", "20", "20", "node", "lab")
CONDITIONS = "MemoryPressure=False DiskPressure=False PIDPressure=False Ready=True "


class Starting(Machine):
    """A machine on which everything is laid down, and k3s starts unless a test says otherwise."""

    def __init__(self, folder):
        super().__init__(folder)
        self.write("opt/lab/bin/k3s", K3S)
        (folder / "opt/lab/bin/k3s").chmod(0o755)
        for name in ("readyz", "ctr"):
            self.write(f"state/{name}")
        self.write("state/conditions", CONDITIONS)
        self.write("state/metrics", 'x 1\nkubernetes_feature_enabled{name="A",stage="BETA"} 1\n')
        uptime = folder / "proc/uptime"
        os.symlink("/proc/uptime", uptime)
        self.tool("journalctl", "echo 'last line of the journal'")
        self.tool("python3", "exit 0")
        self.systemctl("exit 0")

    def systemctl(self, start, active="exit 0"):
        self.tool(
            "systemctl",
            f'case "$*" in start*) {start};; is-active*) {active};; show*) echo ActiveState=failed;; esac',
        )

    def only_sleeping_takes_time(self):
        """The machine's clock is one that `sleep` alone puts forward."""
        uptime = self.folder / "proc/uptime"
        uptime.unlink()
        uptime.write_text("1000.25 0.00\n")
        self.tool(
            "sleep", f'IFS=. read -r seconds rest < "{uptime}"; echo "$((seconds + $1)).$rest" > "{uptime}"'
        )

    def start(self, *words):
        return self.run(
            "k3s_start.sh", *(words or LIMITS), STATE=str(self.folder / "state"), LOG=str(self.folder / "calls")
        )


@pytest.fixture
def starting(tmp_path):
    return Starting(tmp_path)


class TestStart:
    def test_in_order(self, starting):
        done = starting.start()
        assert done.exit_status == 0, done.stdout
        steps = [line.partition(":")[0] for line in done.stdout.splitlines() if not line.startswith("serviceaccount")]
        assert steps == [
            "unit", "readyz", "node", "Ready", "image", "default service account", "no memory pressure", "ready",
        ]  # fmt: skip
        calls = starting.calls()
        assert calls.index("systemctl daemon-reload") < calls.index("systemctl start k3s")
        folder = starting.folder
        assert f"python3 -B /opt/lab/node-scripts/busybox_image.py {folder}/opt/lab/bin/busybox " in " ".join(calls)
        assert os.readlink(folder / "opt/lab/bin/ctr") == "k3s"
        assert os.readlink(folder / "opt/lab/credentials/reader.key").endswith("/server/tls/client-admin.key")
        assert (folder / "opt/lab/credentials").stat().st_mode & 0o777 == 0o700

    def test_again_is_harmless(self, starting):
        starting.start()
        assert starting.start().stdout.splitlines()[-1] == "ready"

    def test_images_are_linked_into_k3ss_folder(self, starting):
        starting.write("opt/lab/images/a.tar.zst", "images")
        starting.start()
        assert (starting.folder / "var/lib/rancher/k3s/agent/images/a.tar.zst").read_text() == "images"

    def test_a_unit_that_always_ends_is_given_up_after_three_starts(self, starting):
        starting.only_sleeping_takes_time()
        starting.systemctl("echo 'Job failed.' >&2; exit 1")
        done = starting.start()
        assert done.exit_status == 1
        first, *rest = done.stdout.splitlines()
        assert first.startswith("failed: unit: k3s ended 3 times while it started; last seen: ActiveState=failed")
        assert (first.endswith("Job failed."), rest) == (True, ["last line of the journal"])
        assert starting.calls().count("systemctl start k3s") == 3

    def test_a_second_start_may_succeed_and_is_told(self, starting):
        starting.only_sleeping_takes_time()
        count = starting.folder / "count"
        starting.systemctl(f'[ -e "{count}" ] && exit 0; : > "{count}"; exit 1')
        assert starting.start().stdout.startswith("unit: active after 2 starts, 2 s\n")

    def test_a_start_that_hangs_ends_at_its_limit(self, starting):
        starting.systemctl("sleep 600; exit 0")
        done = starting.start("50", "1", *LIMITS[2:])
        assert done.stdout.startswith("failed: unit: not started within 1 s")

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda machine: (machine.folder / "state/readyz").unlink(), "failed: readyz: not within "),
            (
                lambda machine: machine.write("state/conditions", "MemoryPressure=False Ready=False "),
                "failed: Ready: not within ",
            ),
            (
                lambda machine: machine.write("state/conditions", "MemoryPressure=True Ready=True "),
                "failed: no memory pressure: not within ",
            ),
            (
                lambda machine: machine.write(
                    "state/conditions", f"{CONDITIONS}node.cloudprovider.kubernetes.io/uninitialized"
                ),
                "failed: no memory pressure: not within ",
            ),
            (lambda machine: machine.tool("python3", "echo 'no socket'; exit 1"), "failed: image: not within "),
        ],
    )
    def test_each_step_has_its_limit_and_its_last_state(self, starting, change, said):
        starting.only_sleeping_takes_time()
        change(starting)
        done = starting.start("50", "50", "1", "1", "1", "1", "1", "1", "node", "lab")
        assert done.exit_status == 1
        [failed] = [line for line in done.stdout.splitlines() if line.startswith("failed: ")]
        assert failed.startswith(f"{said}1 s; last seen: ")
        assert starting.calls().count("sleep 1") == 1
        assert "last seen: nothing" not in failed
        assert done.stdout.splitlines()[-1] == "last line of the journal"

    def test_the_whole_has_a_limit_too(self, starting):
        starting.only_sleeping_takes_time()
        (starting.folder / "state/readyz").unlink()
        assert "failed: readyz: not within 20 s" in starting.start("20", "50", "50", *LIMITS[3:]).stdout
        assert starting.calls().count("sleep 1") == 20

    def test_a_step_has_its_whole_time_however_late_in_a_second_it_begins(self, starting):
        (starting.folder / "state/readyz").unlink()
        starting.tool("sleep", "")
        late_in_a_second()
        done = starting.start("50", "50", "1", *LIMITS[3:])
        assert re.search(r"^failed: readyz: not within [1-9]\d* s; ", done.stdout, re.MULTILINE)
        assert done.seconds > 0.98

    def test_k3s_that_ends_while_it_is_waited_for(self, starting):
        (starting.folder / "state/readyz").unlink()
        starting.systemctl("exit 0", active="exit 3")
        assert "failed: readyz: k3s has ended; ActiveState=failed" in starting.start().stdout


class TestFacts:
    def test_the_form_is_that_of_every_node(self, starting):
        starting.write("var/lib/rancher/k3s/data/current/bin/runc", "#!/bin/sh\necho runc version 1.4.2\n")
        starting.write(
            "var/lib/rancher/k3s/data/current/bin/containerd", "#!/bin/sh\necho containerd x v2.3.4-k3s1 abc\n"
        )
        for name in ("runc", "containerd"):
            (starting.folder / f"var/lib/rancher/k3s/data/current/bin/{name}").chmod(0o755)
        curl = 'case "$*" in *configz) printf \'{"kubeletconfig": {}}\';; *metrics) cat "$STATE/metrics";; esac'
        starting.tool("curl", curl)
        (starting.folder / "sys/fs/cgroup").mkdir(exist_ok=True)
        done = starting.run("k3s_facts.sh", STATE=str(starting.folder / "state"), LOG=str(starting.folder / "calls"))
        found = sections(done.stdout)
        assert found["configz"] == '{"kubeletconfig": {}}'
        assert found["api-version"] == '{"gitVersion": "v1.37.1+k3s1"}'
        assert found["k3s"].startswith("k3s version v1.37.1+k3s1 (0123abcd)\n")
        assert feature_gates(found["gates-apiserver"]) == feature_gates(found["gates-kubelet"]) == {"A": True}
        facts = parse_node_facts(done.stdout)
        assert (facts.kubelet, facts.runc, facts.containerd) == ("v1.37.1+k3s1", "1.4.2", "2.3.4-k3s1")
        # The certificate is named, and never its key's text.
        assert "--cert" in " ".join(starting.calls())

    def test_every_section_of_the_general_program_is_there(self):
        general, own = (
            set(re.findall(r"^section (\S+)", (SCRIPTS / name).read_text(), re.MULTILINE))
            for name in ("node_facts.sh", "k3s_facts.sh")
        )
        assert general <= own


def test_a_second_try_waits_for_the_first_that_lost_its_connection(machine):
    assert overlapping(machine, "k3s_before.sh") == [("saved\n", 0), ("saved before\n", 0)]
