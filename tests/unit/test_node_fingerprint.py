"""The program that takes a fingerprint: on folders made for it, and whole on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.fingerprint import compare, parse
from lab.parse.lines import of_kind, records
from tests.node_programs import SCRIPTS, imported

PROGRAM = SCRIPTS / "fingerprint.py"
# Of what Debian's and Ubuntu's libpython3-minimal hold; json and shutil are not among it.
MINIMAL = {"__future__", "collections", "hashlib", "os", "re", "stat", "subprocess", "sys"}

UNIT_FILES = "ssh.service enabled enabled\nlab-kubelet.service static -\n"
UNITS = (
    "ssh.service loaded active running OpenBSD Secure Shell server\n"
    "● lab-kubelet.service not-found failed failed lab-kubelet.service\n"
    "kubepods.slice loaded active active libcontainer container kubepods.slice\n"
)
MOUNTINFO = r"""
24 1 252:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,discard
30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw
36 24 0:31 / /mnt/two\040words ro,relatime - tmpfs none rw
37 36 0:32 / /mnt/two\040words rw shared:3 master:1 - tmpfs none rw
"""


@pytest.fixture
def program(monkeypatch, tmp_path):
    """The program with an empty folder as its root, and commands that are answered by ``program.answers``."""
    with imported(monkeypatch) as programs:
        module = programs.fingerprint
        module.answers = {}
        monkeypatch.setattr(module, "ROOT", str(tmp_path))
        monkeypatch.setattr(module, "run", lambda argv: module.answers.get(tuple(argv)))
        yield module


@pytest.fixture
def root(tmp_path):
    """Write files below the program's root: path to text; gives the folder."""

    def put(files):
        for path, text in files.items():
            place = tmp_path / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        return tmp_path

    return put


@pytest.fixture
def said(capsys):
    """Run a section; what it said, name to value, in order."""

    def call(section):
        section()
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [(row["kind"], row["name"], row["value"]) for row in rows]

    return call


def test_it_needs_nothing_outside_the_minimal_package():
    lines = [line.split() for line in PROGRAM.read_text().splitlines() if line.startswith(("import ", "from "))]
    assert {words[1].split(".")[0] for words in lines} <= MINIMAL


@given(st.text())
def test_quoted_text_is_json_in_ascii(text):
    program = _module()
    shown = program.quoted(text.encode("utf-8", "surrogatepass").decode("utf-8", "replace"))
    assert shown.isascii()
    assert "\n" not in shown
    assert json.loads(shown) == text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def test_a_file_name_that_is_no_utf8_is_shown_by_its_bytes():
    assert json.loads(_module().quoted(os.fsdecode(b"a\xffb"))) == "a\\xffb"


def _module():
    sys.path.insert(0, str(SCRIPTS))
    try:
        import fingerprint  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(SCRIPTS))
    return fingerprint


LIST = ("--full", "--plain", "--no-legend", "--no-pager")


class TestSections:
    def test_units(self, program, said):
        program.answers[("systemctl", "list-unit-files", *LIST)] = (0, UNIT_FILES, "")
        program.answers[("systemctl", "list-units", *LIST, "--all")] = (0, UNITS, "")
        assert said(program.units) == [
            ("unit-file", "lab-kubelet.service", "static"),
            ("unit-file", "ssh.service", "enabled"),
            ("unit", "kubepods.slice", "loaded active active"),
            ("unit", "lab-kubelet.service", "not-found failed failed"),
            ("unit", "ssh.service", "loaded active running"),
        ]

    @pytest.mark.parametrize("answer", [None, (1, "", "no bus\n")])
    def test_without_systemd_there_is_no_fingerprint(self, program, answer):
        if answer:
            program.answers[("systemctl", "list-unit-files", *LIST)] = answer
        with pytest.raises(SystemExit, match=r"systemctl list-unit-files: (not installed|no bus)"):
            program.units()

    def test_mounts(self, program, root, said):
        root({"/proc/1/mountinfo": MOUNTINFO.lstrip()})
        assert said(program.mounts) == [
            ("mount", "/", ["ext4 /dev/vda1 rw shared"]),
            ("mount", "/mnt/two words", ["tmpfs none ro", "tmpfs none rw shared"]),
            ("mount", "/sys/fs/cgroup", ["cgroup2 cgroup2 rw shared"]),
        ]

    def test_swap(self, program, root, said):
        head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
        root({"/proc/swaps": f"{head}/swapfile                               file\t\t2097148\t\t77\t\t-2\n"})
        assert said(program.swaps) == [("swap", "/swapfile", "file 2097148 KiB")]

    def test_cgroups_to_four_levels_without_those_of_logins(self, program, root, said):
        base = "/sys/fs/cgroup"
        root({f"{base}/user.slice/user-0.slice/x": "", f"{base}/init.scope/x": "", f"{base}/a/b/c/d/e/x": ""})
        names = [name for _, name, _ in said(program.cgroups)]
        assert names == ["/a", "/a/b", "/a/b/c", "/a/b/c/d"]

    def test_interfaces(self, program, root, said):
        base = "/sys/class/net"
        folder = root(
            {
                f"{base}/cni0/type": "1\n",
                f"{base}/cni0/uevent": "DEVTYPE=bridge\nINTERFACE=cni0\nIFINDEX=5\n",
                f"{base}/eth0/type": "1\n",
                f"{base}/eth0/uevent": "INTERFACE=eth0\nIFINDEX=2\n",
                f"{base}/eth0/device/vendor": "0x1af4\n",
                f"{base}/bonding_masters": "\n",
            }
        )
        assert folder.exists()
        assert said(program.interfaces) == [
            ("interface", "cni0", "type 1 bridge virtual"),
            ("interface", "eth0", "type 1 with a device"),
        ]

    def test_the_firewall_by_each_tool_that_is_there(self, program, said):
        program.answers[("iptables-save",)] = (0, "*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n", "")
        program.answers[("nft", "--stateless", "list", "ruleset")] = (1, "", "Error: no\n  netlink\n")
        found = {name: value for _, name, value in said(program.firewall)}
        assert list(found) == [*program.SAVE_TOOLS, "nft"]
        assert found.pop("iptables-save") == ["*filter", ":INPUT ACCEPT [0:0]", "COMMIT"]
        assert found.pop("nft") == ["(exit 1) Error: no netlink"]
        assert set(map(tuple, found.values())) == {("(not installed)",)}

    def test_sysctls_that_are_there(self, program, root, said):
        root(
            {
                "/proc/sys/vm/overcommit_memory": "1\n",
                "/proc/sys/kernel/keys/root_maxkeys": "1000000\n",
                "/proc/sys/net/bridge/bridge-nf-call-iptables": "1\n",
                "/proc/sys/vm/swappiness": "60\n",
            }
        )
        assert said(program.sysctls) == [
            ("sysctl", "kernel.keys.root_maxkeys", "1000000"),
            ("sysctl", "net.bridge.bridge-nf-call-iptables", "1"),
            ("sysctl", "vm.overcommit_memory", "1"),
        ]

    def test_modules_and_accounts(self, program, root, said):
        root(
            {
                "/proc/modules": "overlay 151552 1 - Live 0x0\nbr_netfilter 32768 0 - Live 0x0\n",
                "/etc/passwd": "root:x:0:0:root:/root:/bin/bash\n+nis::::::\nbroken\n",
                "/etc/group": "root:x:0:\netcd:x:998:\n",
            }
        )
        assert said(program.modules) == [("module", "br_netfilter", ""), ("module", "overlay", "")]
        assert said(program.accounts) == [("user", "root", "0"), ("group", "etcd", "998"), ("group", "root", "0")]

    def test_processes_by_name_by_cgroup_and_by_program(self, program, root, said):
        pods = "0::/kubepods.slice/kubepods-besteffort.slice/x.scope\n"
        folder = root(
            {
                "/proc/1/comm": "systemd\n",
                "/proc/1/cgroup": "0::/init.scope\n",
                "/proc/20/comm": "containerd-shim\n",
                "/proc/20/cgroup": "0::/system.slice/lab-containerd.service\n",
                "/proc/21/comm": "containerd-shim\n",
                "/proc/21/cgroup": "0::/system.slice/lab-containerd.service\n",
                "/proc/30/comm": "sh\n",
                "/proc/30/cgroup": pods,
                "/proc/40/comm": "x\n",
                "/proc/40/cgroup": "0::/lab.slice/x.service\n",
                "/proc/50/comm": "gone before its cgroup was read\n",
                "/proc/self/comm": "kubelet\n",
            }
        )
        (folder / "proc/40/exe").symlink_to("/opt/lab/bin/x")
        assert said(program.processes) == [
            ("process", "containerd-shim", "2"),
            ("process", "sh", "1"),
            ("process", "x", "1"),
        ]


class TestFiles:
    def test_content_size_and_names(self, program, root, said):
        folder = root({"/etc/lab/ca.crt": "abc", "/opt/cni/bin/x": "abcd"})
        root({"/var/lib/kubelet/a/b": "", "/var/lib/x/y": ""})
        (folder / "etc/lab/ca.crt").chmod(0o600)
        (folder / "opt/cni/link").symlink_to("bin/x")
        owner = f"{os.getuid()}:{os.getgid()}"
        found = {name: value for _, name, value in said(program.files)}
        # sha256("abc") begins with ba7816bf8f01cfea (FIPS 180-2, B.1).
        assert found["/etc/lab/ca.crt"] == f"-rw------- {owner} 3 bytes sha256:ba7816bf8f01cfea"
        assert found["/opt/cni/bin/x"].endswith(f"{owner} 4 bytes")
        assert found["/opt/cni/link"] == f"lrwxrwxrwx {owner} -> bin/x"
        assert found["/var/lib/kubelet/a/b"].endswith(owner)
        assert "/var/lib/x" in found
        assert "/var/lib/x/y" not in found
        assert list(found) == sorted(found)

    def test_a_change_of_the_same_size_in_etc_is_seen(self, program, root, said):
        root({"/etc/x": "abc"})
        before = said(program.files)
        root({"/etc/x": "abd"})
        assert said(program.files) != before

    def test_only_dot_files_of_root_folders_of_logs_and_our_own_temporary_files(self, program, root, said):
        root(
            {
                "/root/.kube/config": "x", "/root/notes": "x", "/var/log/syslog": "x", "/var/log/pods/a/b": "x",
                "/tmp/lab-put-1/x": "x", "/tmp/ssh-abc": "x", "/var/tmp/kubectl-edit": "x", "/run/lab/x": "x",
            }
        )  # fmt: skip
        found = [name for _, name, _ in said(program.files)]
        for name in ("/root/.kube", "/root/.kube/config", "/var/log/pods", "/var/log/pods/a", "/run/lab"):
            assert name in found
        for name in ("/tmp/lab-put-1", "/var/tmp/kubectl-edit"):
            assert name in found
        for name in ("/root/notes", "/var/log/syslog", "/var/log/pods/a/b", "/tmp/ssh-abc", "/run/lab/x"):
            assert name not in found

    def test_links_are_not_followed(self, program, root, said):
        folder = root({"/srv/data/deep": "x"})
        (folder / "opt").mkdir()
        (folder / "opt/link").symlink_to(folder / "srv/data")
        assert "/opt/link/deep" not in [name for _, name, _ in said(program.files)]


@pytest.fixture
def take(tmp_path):
    """The whole program as the lab runs it: from standard input, in an empty working directory."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "list-unit-files").write_text(UNIT_FILES)
    (tools / "list-units").write_text(UNITS)
    (tools / "systemctl").write_text('#!/bin/sh\nexec cat "${0%/*}/$1"\n')
    (tools / "systemctl").chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()

    def go(text=None):
        done = subprocess.run(
            [sys.executable, "-I", "-B", "-"],
            input=text or PROGRAM.read_text(),
            capture_output=True,
            text=True,
            cwd=work,
            env={"PATH": f"{tools}:/usr/bin:/bin"},
            timeout=120,
            check=False,
        )
        assert list(work.iterdir()) == []
        return done

    return go


@pytest.mark.skipif(os.getuid() != 0, reason="the program is made for root")
def test_this_machine_equals_itself_and_nothing_is_left(take):
    if not Path("/proc/1/mountinfo").exists() or shutil.which("systemd-run") is None:
        pytest.skip("no Linux with systemd's programs")
    first, second = take(), take()
    assert first.returncode == 0, first.stderr
    found = parse(first.stdout)
    assert found.entries["unit", "lab-kubelet.service"] == "failed"
    assert ("file", "/etc/passwd") in found.entries
    assert of_kind(records(first.stdout, "fingerprint"), "mount")
    # Other programs of this machine may come and go meanwhile; what lies in /etc does not.
    assert [text for text in compare(found, parse(second.stdout)) if text.startswith(("file /etc", "unit"))] == []


def test_a_program_cut_on_its_way_says_nothing_that_could_be_taken_for_a_fingerprint(take):
    text = PROGRAM.read_text()
    done = take(text[: text.index("def main")])
    assert done.stdout == ""
