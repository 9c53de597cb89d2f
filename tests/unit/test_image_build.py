"""Building the guest image with stand-ins for its tools: what becomes of them and their files, however it ends."""

from __future__ import annotations

import io
import os
import shutil
import signal
import tarfile
from pathlib import Path

import pytest

from lab import processes
from lab.model import LeftBehind, NodeError
from lab.providers.qemu import build_folder, image
from tests.fetch_process import ENOUGH_S, FetchProcess, fixture_of

SOURCES = "deb http://mirror.example.invalid/debian trixie main\n"
DIGEST = image.NODE.digest
PART = f"images/{DIGEST}.part"

# What the real one does as well: a tree below TMPDIR, children, and on SIGTERM it waits for them and deletes the tree.
MMDEBSTRAP = """\
#!/bin/sh
tree=$(mktemp -d "$TMPDIR/mmdebstrap.XXXXXXXXXX")
echo half a system > "$tree/file"
{trap}
sh -c 'trap "" HUP; while :; do sleep 0.1; done' &
echo "$! $$ $tree" > "{told}.part"
mv "{told}.part" "{told}"
while :; do sleep 0.1; done
"""
POLITE = """trap 'wait; rm -r "$tree"; echo deleted > "{told}.bye"; exit 1' TERM"""
STUBBORN = "trap '' TERM"

# The verb, with a release whose binaries are small stand-ins and a machine that has all tools.
FETCH = """\
import sys
from lab import artifacts
from lab.cli import fetch, main, shared
from lab.providers.qemu import build_folder, image

releases = artifacts.Releases(known=("v1.36.3",), etcd="v3.6.0", pins=())
shared.load_releases = fetch.load_releases = lambda: releases
image._source_texts = lambda: [{sources!r}]
image.require_tools = lambda *, for_build: None
build_folder.GRACE_S = float(sys.argv[1])
sys.exit(main.main(["fetch", "v1.36.3", "--artifacts", sys.argv[2], "--no-download", "--no-build"]))
"""


class Build(FetchProcess):
    """In the middle of its image."""

    def __init__(self, bench, monkeypatch):
        super().__init__(bench, monkeypatch)
        self.binaries = bench.root / "binaries"
        self.binaries.mkdir()
        for name in ("hyperkube-v1.36.3", "etcd-v3.6.0"):
            (self.binaries / f"{name}-linux-amd64").write_bytes(name.encode())

    def mmdebstrap(self, trap=POLITE):
        self.tool("mmdebstrap", MMDEBSTRAP.format(trap=trap.format(told=self.told), told=self.told))

    def start(self, *, grace_s=ENOUGH_S):
        """Start it; returned once mmdebstrap and its child are at work."""
        self.tree = Path(self.begin("-c", FETCH.format(sources=SOURCES), str(grace_s), str(self.binaries)))
        assert self.tree.is_dir()

    def marks(self):
        return [self.cache / PART]

    def ended(self):
        self.lab.wait(ENOUGH_S)
        return self.lab.returncode, self.errors.read_text()

    def assert_nothing_is_left(self):
        assert [tool for tool in self.tools if tool.is_alive()] == []
        assert list(self.temporary.iterdir()) == []
        assert {path.name for path in (self.cache / "images").iterdir()} == {f"{DIGEST}.lock", f"{DIGEST}.log"}
        assert self.bench.lab("gc").err == "nothing is left over\n"


@pytest.fixture
def bench(bench):
    # It is its cache that is looked at here.
    bench.use_local_provider()
    return bench


build = fixture_of(Build)


@pytest.mark.usefixtures("signals")
class TestStopped:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_a_signal_to_the_lab_alone_stops_the_tools_which_clean_up(self, build, number):
        build.mmdebstrap()
        build.start()
        build.lab.send_signal(number)
        code, errors = build.ended()
        assert code == 130, errors
        assert f"error: stopped by {number.name}" in errors
        assert "Traceback" not in errors
        assert Path(f"{build.told}.bye").read_text() == "deleted\n"
        build.assert_nothing_is_left()

    def test_a_tool_that_does_not_listen_is_killed_and_its_tree_deleted(self, build):
        build.mmdebstrap(STUBBORN)
        build.start(grace_s=0.2)
        build.lab.send_signal(signal.SIGTERM)
        code, errors = build.ended()
        assert code == 130, errors
        build.assert_nothing_is_left()

    def test_a_second_signal_does_not_cut_the_removal_short(self, build):
        build.mmdebstrap(
            """trap 'echo > "{told}.stopping"; until [ -e "{told}.go" ]; do sleep 0.1; done; exit 1' TERM"""
        )
        build.start()
        build.lab.send_signal(signal.SIGINT)
        build.wait_for("the removal", Path(f"{build.told}.stopping").exists)
        build.lab.send_signal(signal.SIGINT)
        said = "still removing what was built of the guest image"
        build.wait_for("the second signal", lambda: said in build.errors.read_text())
        assert build.lab.poll() is None
        Path(f"{build.told}.go").touch()
        code, errors = build.ended()
        assert code == 130, errors
        build.assert_nothing_is_left()


class TestKilled:
    def test_gc_names_it_ends_its_tools_and_removes_it(self, build, bench):
        build.mmdebstrap()
        build.start()
        build.lab.kill()
        assert build.ended()[0] == -signal.SIGKILL
        assert all(tool.is_alive() for tool in build.tools)
        dry = bench.lab("gc", "--dry-run")
        assert (dry.code, dry.err) == (0, f"would remove {PART}\n")
        assert build.tree.is_dir()
        assert all(tool.is_alive() for tool in build.tools)
        assert bench.lab("gc", "--dry-run", "--json").json() == {"dry_run": True, "removed": [PART]}
        ended = bench.lab("gc")
        assert (ended.code, ended.err) == (0, f"removed {PART}\n")
        assert Path(f"{build.told}.bye").exists()
        build.assert_nothing_is_left()

    def test_one_that_is_under_way_is_left_alone(self, build, bench):
        build.mmdebstrap()
        build.start()
        for words in (("gc", "--dry-run"), ("gc",)):
            assert bench.lab(*words).err == "nothing is left over\n"
        assert build.tree.is_dir()
        assert all(tool.is_alive() for tool in build.tools)

    def test_the_next_build_removes_it_first(self, build, monkeypatch):
        build.mmdebstrap()
        build.start()
        build.lab.kill()
        build.ended()
        build.tool("mmdebstrap", "#!/bin/sh\nls \"$TMPDIR\"; exit 25\n")
        monkeypatch.setattr(image, "_source_texts", lambda: [SOURCES])
        monkeypatch.setattr(image, "require_tools", lambda *, for_build: None)
        monkeypatch.setattr(build_folder.tempfile, "gettempdir", lambda: str(build.temporary))
        with pytest.raises(NodeError, match=r"mmdebstrap failed \(25\)"):
            image.ensure(build.cache, lambda text: None)
        build.assert_nothing_is_left()

    def test_one_of_an_older_lab_has_nothing_but_its_folder(self, build, bench):
        part = build.cache / PART
        part.mkdir(parents=True)
        (part / "root.tar").write_text("x")
        assert bench.lab("gc").err == f"removed {PART}\n"
        assert not part.exists()


@pytest.fixture
def machine(build, monkeypatch):
    """Builds in this process."""
    monkeypatch.setattr(image, "_source_texts", lambda: [SOURCES])
    monkeypatch.setattr(image, "require_tools", lambda *, for_build: None)
    monkeypatch.setattr(image.os, "geteuid", lambda: 0)
    monkeypatch.setattr(build_folder.tempfile, "gettempdir", lambda: str(build.temporary))
    return build


def system(path):
    """An archive as mmdebstrap writes it, of what is read from it."""
    files = {"./boot/vmlinuz-7": b"kernel", "./boot/initrd.img-7": b"initrd", "./var/lib/dpkg/status": b""}
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


class TestInThisProcess:
    @pytest.mark.parametrize("relative", [False, True], ids=["absolute", "relative"])
    def test_what_was_built_is_all_that_stays(self, machine, monkeypatch, relative):
        system(machine.bench.root / "system.tar")
        log = machine.bench.root / "left-running"
        machine.tool(
            "mmdebstrap",
            f"#!/bin/sh\nsleep 1000 & echo $! > {log}\nmktemp -d \"$TMPDIR/mmdebstrap.gpghome.XXXX\"\n"
            f"while [ $# -gt 2 ]; do shift; done; cp {machine.bench.root / 'system.tar'} \"$1\"\n",
        )
        machine.tool("mke2fs", "#!/bin/sh\nexit 0\n")
        monkeypatch.chdir(machine.bench.root)
        made = image.ensure(Path("cache") if relative else machine.cache, lambda text: None)
        assert made.kernel.read_bytes() == b"kernel"
        assert sorted(path.name for path in made.folder.iterdir()) == ["disk.raw", "initrd", "manifest.json", "vmlinuz"]
        left_running = processes.identity(int(log.read_text()))
        assert left_running is None or not left_running.is_alive()
        assert list(machine.temporary.iterdir()) == []
        assert not (machine.cache / PART).exists()

    def test_a_tool_that_takes_too_long(self, machine, monkeypatch):
        machine.mmdebstrap(STUBBORN)
        monkeypatch.setattr(image, "BUILD_TIMEOUT_S", 1.0)
        monkeypatch.setattr(build_folder, "GRACE_S", 0.2)
        with pytest.raises(NodeError, match="mmdebstrap took over 1 s"):
            image.ensure(machine.cache, lambda text: None)
        assert processes.marked(machine.cache / PART) == []
        assert list(machine.temporary.iterdir()) == []
        assert not (machine.cache / PART).exists()


class TestRemove:
    @pytest.fixture
    def part(self, tmp_path, monkeypatch):
        monkeypatch.setattr(build_folder.tempfile, "gettempdir", lambda: str(tmp_path))
        with build_folder.made(tmp_path / "image") as folder:
            (folder / "scratch" / "mmdebstrap.x").mkdir()
            (folder / "scratch" / "mmdebstrap.x" / "null").write_text("")
            yield folder

    def test_others_can_pass_through_the_temporary_folder_but_not_list_it(self, part):
        assert (part / "scratch").resolve().stat().st_mode & 0o777 == 0o711

    def test_what_is_mounted_is_unmounted_inner_first(self, part, monkeypatch, tmp_path):
        scratch = (part / "scratch").resolve()
        mounted = [f"{scratch}/mmdebstrap.x/dev", f"{scratch}/mmdebstrap.x/dev/pts"]
        tool = tmp_path / "bin" / "umount"
        tool.parent.mkdir()
        tool.write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/unmounted\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
        answers = {scratch: [mounted, []], part: [[], []]}
        monkeypatch.setattr(build_folder, "_mounts", lambda folder: answers[folder].pop(0))
        build_folder.remove(part)
        assert (tmp_path / "unmounted").read_text().splitlines() == mounted[::-1]
        assert not part.exists()
        assert not scratch.exists()

    def test_what_stays_mounted_is_not_deleted_through(self, part, monkeypatch):
        scratch = (part / "scratch").resolve()
        with monkeypatch.context() as patch:
            patch.setattr(build_folder, "_mounts", lambda folder: [f"{scratch}/mmdebstrap.x"])
            patch.setattr(build_folder.LocalHost, "run", lambda host, command: None)
            with pytest.raises(LeftBehind, match="something is mounted there"):
                build_folder.remove(part)
        assert (scratch / "mmdebstrap.x" / "null").exists()
        build_folder.remove(part)

    def test_mount_points_are_those_below_a_folder(self, tmp_path, monkeypatch):
        root = tmp_path / "with space"
        lines = [
            "22 1 0:20 / / rw - ext4 /dev/vda rw",
            f"23 22 0:21 / {str(root).replace(' ', chr(92) + '040')}/x/proc rw,nosuid - proc proc rw",
            f"24 22 0:22 / {tmp_path}/with rw - tmpfs tmpfs rw",
            f"25 22 0:22 / {str(root).replace(' ', chr(92) + '040')} rw - tmpfs tmpfs rw",
        ]
        monkeypatch.setattr(build_folder.Path, "read_text", lambda path, errors: "\n".join(lines))
        assert build_folder._mounts(root) == [f"{root}/x/proc"]

    def test_what_belongs_to_the_users_of_a_namespace_goes_by_mmdebstrap(self, part, monkeypatch, tmp_path):
        scratch = (part / "scratch").resolve()
        tool = tmp_path / "bin" / "mmdebstrap"
        tool.parent.mkdir()
        tool.write_text('#!/bin/sh\n[ "$1" = --unshare-helper ] || exit 2\nshift\nexec "$@"\n')
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
        monkeypatch.setattr(build_folder.os, "geteuid", lambda: 1000)
        real = shutil.rmtree

        def rmtree(path, ignore_errors=False):
            if not list(Path(path).glob("mmdebstrap.*")):
                real(path, ignore_errors=ignore_errors)

        monkeypatch.setattr(shutil, "rmtree", rmtree)
        build_folder.remove(part)
        assert not part.exists()
        assert not scratch.exists()
