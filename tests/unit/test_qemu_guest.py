"""The guest's seed, command line, ports and console."""

from __future__ import annotations

import io
import itertools
import os
import socket
import subprocess
import tarfile
import threading

import paramiko
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab import processes
from lab.model import NodeError
from lab.providers.qemu import guest
from lab.providers.qemu.image import Image
from lab.ssh_keys import make_key_pair
from tests.captures_helper import ROOT


@pytest.fixture
def image(tmp_path):
    return Image(folder=tmp_path / "images" / "0123", digest="0123")


def command_line(image, folder, **changes):
    settings = {
        "image": image, "overlay": folder / "disk.qcow2", "seed": folder / "seed.tar",
        "console": folder / "console.log", "forwards": {40022: 22}, "accel": "tcg", "vcpus": 2, "memory_mib": 4096,
    }  # fmt: skip
    return guest.command_line(**{**settings, **changes})


def option(argv, name):
    return [value for key, value in itertools.pairwise(argv) if key == name]


class TestKeys:
    def test_both_halves_belong_together_and_paramiko_reads_them(self):
        private, public = make_key_pair("lab-node")
        key = paramiko.Ed25519Key.from_private_key(io.StringIO(private))
        assert public == f"ssh-ed25519 {key.get_base64()} lab-node\n"

    def test_the_private_key_ends_with_a_line_end_as_sshd_wants(self):
        assert make_key_pair("x")[0].endswith("-----END OPENSSH PRIVATE KEY-----\n")

    def test_no_key_twice(self):
        assert make_key_pair("x") != make_key_pair("x")


TEXTS = {
    "/etc/ssh/ssh_host_ed25519_key": ("PRIVATE ä\n", 0o600),
    "/etc/ssh/ssh_host_ed25519_key.pub": ("public\n", 0o644),
    "/root/.ssh/authorized_keys": ("controller\n", 0o600),
}


class TestSeed:
    @pytest.fixture
    def entries(self, tmp_path):
        kubelet = tmp_path / "kubelet"
        kubelet.write_bytes(b"\x7fELF" * 1000)
        kubelet.chmod(0o400)
        guest.write_seed(tmp_path / "seed.tar", TEXTS, {"/opt/lab/bin/kubelet": kubelet})
        with tarfile.open(tmp_path / "seed.tar") as tar:
            return [(entry, tar.extractfile(entry).read() if entry.isfile() else None) for entry in tar]

    def test_names_modes_and_contents(self, entries):
        found = {entry.name: (entry.mode, content) for entry, content in entries}
        assert found == {
            "etc/ssh/ssh_host_ed25519_key": (0o600, "PRIVATE ä\n".encode()),
            "etc/ssh/ssh_host_ed25519_key.pub": (0o644, b"public\n"),
            "root/.ssh": (0o700, None),
            "root/.ssh/authorized_keys": (0o600, b"controller\n"),
            "opt/lab": (0o755, None),
            "opt/lab/bin": (0o755, None),
            "opt/lab/bin/kubelet": (0o755, b"\x7fELF" * 1000),
        }

    def test_everything_belongs_to_root(self, entries):
        assert {(entry.uid, entry.gid) for entry, _ in entries} == {(0, 0)}

    def test_folders_come_before_what_is_in_them(self, entries):
        names = [entry.name for entry, _ in entries]
        for name in names:
            parent = name.rpartition("/")[0]
            assert parent not in names or names.index(parent) < names.index(name)

    def test_folders_that_every_system_has_are_left_alone(self, entries):
        names = {entry.name for entry, _ in entries}
        assert names.isdisjoint({"", "etc", "etc/ssh", "root", "opt"})

    def test_nobody_else_may_read_it(self, entries, tmp_path):
        assert (tmp_path / "seed.tar").stat().st_mode & 0o777 == 0o600

    def test_the_guests_own_command_unpacks_it(self, entries, tmp_path):
        root = tmp_path / "root"
        (root / "etc" / "ssh").mkdir(parents=True)
        (root / "root").mkdir(mode=0o700)
        (root / "opt").mkdir()
        argv = ["tar", "--extract", f"--file={tmp_path / 'seed.tar'}", f"--directory={root}"]
        subprocess.run([*argv, "--preserve-permissions", "--no-overwrite-dir"], check=True)
        assert (root / "etc/ssh/ssh_host_ed25519_key").stat().st_mode & 0o777 == 0o600
        assert os.access(root / "opt/lab/bin/kubelet", os.X_OK)

    def test_a_disk_of_whole_sectors(self, entries, tmp_path):
        assert (tmp_path / "seed.tar").stat().st_size % 512 == 0

    @given(text=st.text(st.characters(codec="utf-8"), max_size=50), mode=st.sampled_from([0o600, 0o644, 0o755]))
    @settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_any_text_is_kept(self, tmp_path, text, mode):
        guest.write_seed(tmp_path / "any.tar", {"/a": (text, mode)}, {})
        with tarfile.open(tmp_path / "any.tar") as tar:
            (entry,) = tar.getmembers()
            assert tar.extractfile(entry).read() == text.encode()
            assert entry.mode == mode


class TestCommandLine:
    def test_no_key_stands_in_it(self, image, tmp_path):
        private, public = make_key_pair("lab-node")
        guest.write_seed(tmp_path / "seed.tar", {"/etc/ssh/ssh_host_ed25519_key": (private, 0o600)}, {})
        text = "\n".join(command_line(image, tmp_path))
        assert "ssh-ed25519" not in text
        assert "PRIVATE KEY" not in text
        for line in [*private.splitlines()[1:-1], public.split()[1]]:
            assert line not in text

    def test_the_port_is_open_on_loopback_only(self, image, tmp_path):
        (network,) = option(command_line(image, tmp_path, forwards={40023: 22}), "-netdev")
        assert network == "user,id=net0,hostfwd=tcp:127.0.0.1:40023-:22"

    def test_the_image_is_only_read(self, image, tmp_path):
        disk, seed = option(command_line(image, tmp_path), "-drive")
        assert f"file={tmp_path}/disk.qcow2,format=qcow2" in disk
        assert f"file={tmp_path}/seed.tar,format=raw" in seed
        assert "readonly=on" in seed
        assert str(image.disk) not in "\n".join(command_line(image, tmp_path))

    def test_size_kernel_and_console(self, image, tmp_path):
        argv = command_line(image, tmp_path, vcpus=3, memory_mib=1234)
        assert option(argv, "-smp") == ["3"]
        assert option(argv, "-m") == ["1234"]
        assert option(argv, "-kernel") == [str(image.kernel)]
        assert option(argv, "-initrd") == [str(image.initrd)]
        assert option(argv, "-serial") == [f"file:{tmp_path}/console.log"]
        assert "psi=1" in option(argv, "-append")[0].split()
        assert all(isinstance(word, str) for word in argv)

    def test_virtual_cpu_threads_have_names(self, image, tmp_path):
        assert option(command_line(image, tmp_path), "-name") == ["lab-node,debug-threads=on"]

    @pytest.mark.parametrize(("accel", "cpu", "start"), [("kvm", "host", "kvm"), ("tcg", "max", "tcg,thread=multi")])
    def test_acceleration(self, image, tmp_path, accel, cpu, start):
        argv = command_line(image, tmp_path, accel=accel)
        assert option(argv, "-cpu") == [cpu]
        (found,) = option(argv, "-accel")
        assert found.startswith(start)

    def test_a_comma_in_a_path_stays_part_of_it(self, image, tmp_path):
        disk, _ = option(command_line(image, tmp_path / "a,b"), "-drive")
        assert f"file={tmp_path}/a,,b/disk.qcow2,format" in disk


class TestOverlay:
    def test_a_failure_carries_what_the_tool_said(self, tmp_path, monkeypatch, image):
        tool = tmp_path / "bin" / "qemu-img"
        tool.parent.mkdir()
        tool.write_text('#!/bin/sh\necho "$@" >&2\nexit 1\n')
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:/bin:/usr/bin")
        with pytest.raises(NodeError, match="could not make the node's disk: create -q -f qcow2 -F raw -b") as caught:
            guest.make_overlay(image, tmp_path / "disk.qcow2")
        assert f"{image.disk} {tmp_path}/disk.qcow2" in str(caught.value)


class TestAccelerator:
    @pytest.mark.parametrize("forced", ["kvm", "tcg"])
    def test_the_user_decides(self, image, tmp_path, monkeypatch, forced):
        monkeypatch.setenv("LAB_ACCEL", forced)
        assert guest.accelerator(image, tmp_path) == forced

    def test_a_device_that_cannot_be_opened_is_not_usable(self, image, tmp_path, monkeypatch):
        monkeypatch.delenv("LAB_ACCEL", raising=False)
        monkeypatch.setattr(guest.os, "access", lambda path, mode: False)
        assert guest.accelerator(image, tmp_path) == "tcg"

    @pytest.mark.parametrize(("boots", "answer"), [(True, "kvm"), (False, "tcg")])
    def test_a_device_is_tried_once_a_boot(self, image, tmp_path, monkeypatch, boots, answer):
        tried = []

        def probe(used, folder):
            tried.append(folder)
            return boots

        monkeypatch.delenv("LAB_ACCEL", raising=False)
        monkeypatch.setattr(guest.os, "access", lambda path, mode: True)
        monkeypatch.setattr(guest, "_boots_with_kvm", probe)
        image.folder.mkdir(parents=True)
        assert [guest.accelerator(image, tmp_path) for _ in range(3)] == [answer] * 3
        assert tried == [tmp_path]

    @pytest.mark.parametrize(
        ("script", "usable"),
        [
            ("echo '[    0.000000] Linux version 7.2.12' > \"$console\"; exec sleep 1000", True),
            ("exit 1", False),
            ("echo 'SeaBIOS' > \"$console\"", False),
        ],
    )
    def test_only_a_kernel_that_speaks_is_a_proof(self, image, tmp_path, monkeypatch, script, usable):
        tool = tmp_path / "bin" / "qemu-system-x86_64"
        tool.parent.mkdir()
        find = 'for word; do case "$word" in file:*) console="${word#file:}";; esac; done'
        tool.write_text(f"#!/bin/sh\n{find}\n{script}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:/bin:/usr/bin")
        assert guest._boots_with_kvm(image, tmp_path) is usable


class TestFreePort:
    def test_it_can_be_listened_on(self):
        port = guest.free_port()
        assert 1024 <= port < 65536
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))

    def test_a_port_in_use_is_not_given(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            used = taken.getsockname()[1]
            assert used not in {guest.free_port() for _ in range(20)}


    def test_several_at_once_all_differ_although_the_kernel_gives_a_free_one_again(self, monkeypatch):
        """Sockets of a kernel that always gives the lowest port which nobody holds."""
        held = set()

        class Probe:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                held.discard(self.port)

            def bind(self, address):
                assert address == ("127.0.0.1", 0)
                self.port = next(port for port in itertools.count(40000) if port not in held)
                held.add(self.port)

            def getsockname(self):
                return "127.0.0.1", self.port

        monkeypatch.setattr(guest.socket, "socket", Probe)
        assert guest.free_ports(5) == [40000, 40001, 40002, 40003, 40004]
        assert held == set()


class TestConsole:
    def test_the_last_lines_without_control_sequences(self, tmp_path):
        console = tmp_path / "console.log"
        text = "".join(f"line {number}\r\n" for number in range(30)) + "\x1b[1;31mred\x1b[0m \x1b[?25lend \xff"
        console.write_bytes(text.encode("latin-1"))
        assert guest.console_tail(console, 3) == "line 28\nline 29\nred end \ufffd"
        assert len(guest.console_tail(console).splitlines()) == 15

    def test_what_systemd_writes_for_a_terminal_is_left_out(self, tmp_path):
        # From the console of a guest with Debian 14.
        text = (
            "Begin: Running /scripts/init-bottom ... done.\r\n\x1bP+q6E616D65\x1b\\\x1b[18t\x1b7\x1b[32766;32766H"
            "\x1b[6n\x1b8\x1b[!p\x1b]104\x1b\\\x1b[0m\x1b[?7h\x1b[1G\x1b[0J\r\n\x1b[0;1;39mWelcome to \x1b[0m\x1b[1m"
            "Debian GNU/Linux forky/sid\x1b[0m\x1b[0;1;39m!\x1b[0m\r\n\r\r\n\x1b]3008;start=2652;user=root;type=boot"
            "\x1b\\[\x1b[0;32m  OK  \x1b[0m] Created slice \x1b[0;1;39msystem-getty.slice\x1b[0m "
            "- Slice /system/getty.\r\r\n"
        )
        (tmp_path / "console.log").write_bytes(text.encode())
        assert guest.console_tail(tmp_path / "console.log").splitlines() == [
            "Begin: Running /scripts/init-bottom ... done.",
            "Welcome to Debian GNU/Linux forky/sid!",
            "[  OK  ] Created slice system-getty.slice - Slice /system/getty.",
        ]

    @pytest.mark.parametrize("said", ["", "qemu-system-x86_64: terminating on signal 15\n"])
    def test_the_last_words_are_the_consoles_and_qemus_own(self, tmp_path, said):
        (tmp_path / "console.log").write_text("node login: ")
        (tmp_path / "qemu.log").write_text(said)
        assert guest.last_words(tmp_path) == f"node login:\n{said}".rstrip()

    @pytest.mark.parametrize("content", [None, "", "\x1b[2J\x1b[H"])
    def test_no_output(self, tmp_path, content):
        if content is not None:
            (tmp_path / "console.log").write_text(content)
        assert guest.console_tail(tmp_path / "console.log") == "(no console output)"


class TestThreads:
    def test_only_virtual_cpus_count(self):
        stop = threading.Event()
        ready = []

        def virtual_cpu(name):
            with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
                file.write(name)
            ready.append(threading.get_native_id())
            stop.wait(60)

        threads = [threading.Thread(target=virtual_cpu, args=(name,)) for name in ("CPU 0/TCG", "CPU 1/KVM", "worker")]
        for thread in threads:
            thread.start()
            while len(ready) <= threads.index(thread):
                stop.wait(0.01)
        try:
            assert guest.thread_names(os.getpid()) == {ready[0]: "CPU 0/TCG", ready[1]: "CPU 1/KVM"}
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def test_a_guest_that_has_ended_has_none(self):
        assert guest.thread_names(2**22 + 1) == {}


def test_a_guest_whose_process_has_ended_is_gone_and_shows_its_console(tmp_path):
    (tmp_path / "console.log").write_text("[    0.0] Linux version 7.2.12\n")
    assert (
        said_when_gone(tmp_path, "[   94.1] login:")
        == "the guest is gone, its QEMU process PID has ended; console:\n[   94.1] login:"
    )


# The console of a guest in which a quota was set and taken away while both CPUs were busy, under QEMU 7.2.
PANIC = (ROOT / "tests" / "captures_special" / "panic-int3" / "console.log").read_text()


@pytest.mark.parametrize(
    ("console", "why"),
    [
        (PANIC, "Oops: int3: 0000 [#1] SMP NOPTI"),
        ("[ 9.1] Kernel panic - not syncing: Attempted to kill init!", "Attempted to kill init!"),
    ],
    ids=["oops", "panic alone"],
)
def test_a_guest_whose_kernel_gave_up_says_so_first(tmp_path, console, why):
    first, *rest = said_when_gone(tmp_path, console).split("\n")
    assert first == f"the guest is gone, its kernel panicked ({why}); console:"
    assert any("Kernel panic - not syncing" in line for line in rest)


@pytest.mark.parametrize("console", ["", "[ 3.1] Oops: int3: 0000 [#1] SMP NOPTI"], ids=["none", "an oops alone"])
def test_a_kernel_that_did_not_give_up_has_no_reason(tmp_path, console):
    (tmp_path / "console.log").write_text(console)
    assert guest.panic(tmp_path) is None


def said_when_gone(folder, console):
    child = processes.start(["sleep", "60"], folder=folder, log=folder / "qemu.log")
    check = guest.watchman(child.pid, folder)
    check()
    (folder / "console.log").write_text(console)
    child.kill()
    child.wait()
    with pytest.raises(NodeError) as caught:
        check()
    return str(caught.value).replace(f"process {child.pid} ", "process PID ")


class TestOutOfTime:
    """Programs that do not end in time are errors of the node, which a run records, and no traceback."""

    def test_qemu_img(self, image, tmp_path, monkeypatch):
        run = subprocess.run
        monkeypatch.setattr(subprocess, "run", lambda argv, **options: run(["sleep", "60"], **options))
        monkeypatch.setattr(guest, "OVERLAY_S", 0.01)
        with pytest.raises(NodeError, match=r"qemu-img did not make .*disk\.qcow2 within"):
            guest.make_overlay(image, tmp_path / "disk.qcow2")

    def test_a_probe_of_kvm_that_will_not_die(self, image, tmp_path, monkeypatch):
        class Stuck:
            pid = 4242

            def poll(self):
                return 0

            def kill(self):
                pass

            def wait(self, timeout):
                raise subprocess.TimeoutExpired(["qemu"], timeout)

        monkeypatch.setattr(processes, "start", lambda *_, **__: Stuck())
        with pytest.raises(NodeError, match=r"process 4242.*did not end.*LAB_ACCEL=tcg"):
            guest._boots_with_kvm(image, tmp_path)
