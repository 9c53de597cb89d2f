"""The guest image: its identity, the mirror, the tools, and what is taken out of the built archive."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.model import NodeError, UsageError
from lab.providers.qemu import image

DEB822 = """\
# The distribution's own archive.
Types: deb
URIs: http://mirror.example.invalid/debian
Suites: trixie trixie-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://security.example.invalid/debian-security
Suites: trixie-security
Components: main
"""

# Stanzas as dpkg 1.22 writes them, shortened.
STATUS = """\
Package: adduser
Status: install ok installed
Priority: important
Section: admin
Installed-Size: 686
Maintainer: Debian Adduser Developers <adduser@packages.debian.org>
Architecture: all
Multi-Arch: foreign
Version: 3.134
Depends: passwd
Conffiles:
 /etc/adduser.conf cc3493ecd2d09837ffdcc3e25fdfff18
Description: add and remove users and groups
 This package includes the 'adduser' and 'deluser' commands for creating
 and removing users.
 .
  - 'adduser' creates new users and groups;
 .
 Version: 9 of this text is not a field.

Package: gone
Status: deinstall ok config-files
Priority: optional
Section: net
Architecture: amd64
Version: 2.0-1
Config-Version: 2.0-1
Conffiles:
 /etc/gone.conf 0123456789abcdef0123456789abcdef

Package: never-there
Status: unknown ok not-installed
Priority: optional
Section: libs

Package: containerd
Status: install ok installed
Architecture: amd64
Source: containerd (2.1.9+ds1-4)
Version: 2.1.9+ds1-5

Package: mount
Essential: yes
Status: hold ok installed
Version: 1:2.42.4-1
"""


class TestRecipe:
    def test_the_digest_is_short_and_the_same_every_time(self):
        assert image.NODE.digest == image.NODE.digest
        assert len(image.NODE.digest) == 12
        json.dumps(image.NODE.as_json())

    @pytest.mark.parametrize(
        ("name", "change"),
        [
            ("suite", lambda old: "sid"),
            ("packages", lambda old: (*old, "vim")),
            ("packages", lambda old: old[:-1]),
            ("files", lambda old: {**old, "/etc/hostname": "other\n"}),
            ("files", lambda old: {**old, "/etc/new": ""}),
            ("files", lambda old: dict(list(old.items())[1:])),
            ("setup", lambda old: (*old, "true")),
            ("setup", lambda old: old[::-1]),
            ("disk_bytes", lambda old: old + 1),
        ],
    )
    def test_it_changes_with_each_input(self, name, change):
        changed = dataclasses.replace(image.NODE, **{name: change(getattr(image.NODE, name))})
        assert changed.digest != image.NODE.digest

    def test_every_input_of_the_build_is_in_the_digest(self):
        assert set(image.NODE.as_json()) == {field.name for field in dataclasses.fields(image.Recipe)}

    def test_the_images_of_two_recipes_do_not_meet(self, tmp_path):
        other = dataclasses.replace(image.NODE, suite="sid")
        folder = tmp_path / "images" / other.digest
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text('{"packages": {}}')
        assert image.is_built(tmp_path, other)
        assert not image.is_built(tmp_path)
        assert image.ensure(tmp_path, pytest.fail, other).folder == folder

    def test_the_image_is_found_by_its_digest_and_not_built_again(self, tmp_path):
        folder = tmp_path / "images" / image.NODE.digest
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text('{"packages": {"runc": "1.3.6+ds1-1"}}')
        told = []
        found = image.ensure(tmp_path, told.append)
        assert (found.folder, found.digest, told) == (folder, image.NODE.digest, [])
        assert found.packages() == {"runc": "1.3.6+ds1-1"}
        assert {found.kernel.parent, found.initrd.parent, found.disk.parent} == {folder}


class TestHooks:
    """The files of the recipe arrive in the image as they stand there."""

    def test_each_file_is_written_to_the_byte(self, tmp_path):
        argv = image._mmdebstrap(tmp_path / "root.tar", "http://mirror.example.invalid/debian", image.NODE)
        hooks = [word.removeprefix("--customize-hook=") for word in argv if word.startswith("--customize-hook=mkdir")]
        assert len(hooks) == len(image.NODE.files)
        for hook in hooks:
            subprocess.run(["sh", "-e", "-c", hook, "sh", tmp_path / "root"], check=True)
        for path, text in image.NODE.files.items():
            assert (tmp_path / f"root{path}").read_bytes() == text.encode()

    def test_no_text_needs_an_escape_that_the_hook_does_not_make(self):
        for text in image.NODE.files.values():
            assert not set("'\\") & set(text)
        for command in image.NODE.setup:
            assert "'" not in command

    def test_packages_suite_and_mirror(self, tmp_path):
        argv = image._mmdebstrap(tmp_path / "root.tar", "http://mirror.example.invalid/debian", image.NODE)
        assert argv[0] == "mmdebstrap"
        assert f"--include={','.join(image.NODE.packages)}" in argv
        last = f"deb http://mirror.example.invalid/debian {image.NODE.suite} main"
        assert argv[-3:] == [image.NODE.suite, str(tmp_path / "root.tar"), last]


class TestMirror:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            (DEB822, "http://mirror.example.invalid/debian"),
            ("URIs: https://a.example.invalid/debian/\n", "https://a.example.invalid/debian/"),
            ("URIs:   http://a.example.invalid/debian   \n", "http://a.example.invalid/debian"),
            ("Types: deb\nURIs:\n http://a.example.invalid/debian\nSuites: x\n", "http://a.example.invalid/debian"),
            ("URIs: http://a.example.invalid/x http://b.example.invalid/debian\n", "http://b.example.invalid/debian"),
            ("deb http://a.example.invalid/debian trixie main\n", "http://a.example.invalid/debian"),
            ("deb  \thttp://a.example.invalid/debian/ trixie main", "http://a.example.invalid/debian/"),
            (
                "deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] http://a.example.invalid/debian trixie main\n",
                "http://a.example.invalid/debian",
            ),
            (
                "deb http://a.example.invalid/debian-security trixie-security main\n"
                "deb http://b.example.invalid/debian trixie main\n",
                "http://b.example.invalid/debian",
            ),
            ("deb http://a.example.invalid:8080/sub/debian x main\n", "http://a.example.invalid:8080/sub/debian"),
            (
                "Enabled: no\nURIs: http://off.example.invalid/debian\n\nURIs: http://on.example.invalid/debian\n",
                "http://on.example.invalid/debian",
            ),
            (
                "Enabled: yes\nURIs: http://on.example.invalid/debian\n",
                "http://on.example.invalid/debian",
            ),
        ],
    )  # fmt: skip
    def test_it_is_found(self, text, found):
        assert image.apt_mirror([text]) == found

    @pytest.mark.parametrize(
        "texts",
        [
            [],
            [""],
            ["# deb http://a.example.invalid/debian trixie main\n"],
            ["deb-src http://a.example.invalid/debian trixie main\n"],
            ["#URIs: http://a.example.invalid/debian\n"],
            ["URIs: http://a.example.invalid/debian-security\nSuites: /debian\n"],
            ["URIs: http://a.example.invalid/ubuntu\nX-Note: see http://b.example.invalid/debian\n"],
            ["deb http://a.example.invalid/ubuntu noble main\n"],
            ["Enabled: No\nURIs: http://a.example.invalid/debian\n"],
        ],
    )
    def test_none_is_bad_input_with_a_way_out(self, texts):
        with pytest.raises(UsageError, match=r"no Debian mirror .*; build it on a Debian machine"):
            image.apt_mirror(texts)

    def test_the_first_of_several_files_wins(self):
        texts = ["deb http://a.example.invalid/ubuntu x main\n", DEB822, "deb http://z.example.invalid/debian x main\n"]
        assert image.apt_mirror(texts) == "http://mirror.example.invalid/debian"


class TestTools:
    @pytest.fixture
    def bin_folder(self, tmp_path, monkeypatch):
        folder = tmp_path / "bin"
        folder.mkdir()
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.setattr(image.shutil, "which", lambda tool, path: _which(tool, path.split(os.pathsep)[0]))

        def add(*names):
            for name in names:
                (folder / name).write_text("")
                (folder / name).chmod(0o755)

        return add

    def test_for_booting(self, bin_folder):
        assert image.missing_tools(for_build=False) == ["qemu-system-x86", "qemu-utils"]
        bin_folder("qemu-img")
        assert image.missing_tools(for_build=False) == ["qemu-system-x86"]
        bin_folder("qemu-system-x86_64")
        assert image.missing_tools(for_build=False) == []
        image.require_tools(for_build=False)

    @pytest.mark.parametrize(
        ("uid", "missing"),
        [(0, ["e2fsprogs", "mmdebstrap"]), (1000, ["e2fsprogs", "fakeroot", "mmdebstrap", "uidmap"])],
    )
    def test_for_building(self, bin_folder, monkeypatch, uid, missing):
        monkeypatch.setattr(image.os, "geteuid", lambda: uid)
        bin_folder("qemu-img", "qemu-system-x86_64")
        assert image.missing_tools(for_build=True) == missing
        bin_folder("mmdebstrap", "mke2fs", "fakeroot", "newuidmap")
        assert image.missing_tools(for_build=True) == []

    def test_the_error_is_the_command_to_type(self, bin_folder):
        with pytest.raises(UsageError, match=r"install with: apt-get install qemu-system-x86 qemu-utils$"):
            image.require_tools(for_build=False)


def _which(tool, folder):
    return tool if os.access(os.path.join(folder, tool), os.X_OK) else None


class TestDpkgStatus:
    def test_only_what_is_installed_counts(self):
        assert image.parse_dpkg_status(STATUS) == {
            "adduser": "3.134",
            "containerd": "2.1.9+ds1-5",
            "mount": "1:2.42.4-1",
        }

    def test_a_package_without_version_does_not_take_the_next_ones(self):
        text = "Package: a\nStatus: install ok installed\n\nPackage: b\nStatus: install ok installed\nVersion: 2\n"
        assert image.parse_dpkg_status(text) == {"b": "2"}

    @pytest.mark.parametrize("status", ["install ok half-installed", "install ok unpacked", "purge ok not-installed"])
    def test_half_way_is_not_installed(self, status):
        assert image.parse_dpkg_status(f"Package: a\nStatus: {status}\nVersion: 1\n") == {}

    @given(
        st.dictionaries(
            st.text("abz09+.-", min_size=1, max_size=8), st.text("AZaz09.+~:-", min_size=1, max_size=8), max_size=5
        )
    )
    def test_any_names_and_versions(self, packages):
        text = "\n".join(f"Package: {n}\nStatus: install ok installed\nVersion: {v}\n" for n, v in packages.items())
        assert image.parse_dpkg_status(text) == packages


class TestUnpackBoot:
    def archive(self, folder, files):
        path = folder / "root.tar"
        with tarfile.open(path, "w") as tar:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                if content is None:
                    entry.type, entry.linkname = tarfile.SYMTYPE, "elsewhere"
                    tar.addfile(entry)
                else:
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))
        return path

    @pytest.mark.parametrize("prefix", ["", "./"])
    def test_kernel_initrd_and_packages(self, tmp_path, prefix):
        files = {
            "boot/vmlinuz-7.2.12": b"kernel", "boot/initrd.img-7.2.12": b"initrd", "vmlinuz": None,
            "boot/config-7.2.12": b"x", "var/lib/dpkg/status": STATUS.encode(),
        }  # fmt: skip
        archive = self.archive(tmp_path, {prefix + name: content for name, content in files.items()})
        work = tmp_path / "work"
        work.mkdir()
        assert image._unpack_boot(archive, work)["containerd"] == "2.1.9+ds1-5"
        assert (work / "vmlinuz").read_bytes() == b"kernel"
        assert (work / "initrd").read_bytes() == b"initrd"
        assert sorted(os.listdir(work)) == ["initrd", "vmlinuz"]

    @pytest.mark.parametrize(("present", "lacking"), [("vmlinuz-7", "initrd"), ("initrd.img-7", "vmlinuz")])
    def test_an_archive_without_one_of_them(self, tmp_path, present, lacking):
        archive = self.archive(tmp_path, {f"boot/{present}": b"x"})
        with pytest.raises(NodeError, match=f"holds no {lacking}"):
            image._unpack_boot(archive, tmp_path)


class TestBuild:
    def test_a_failed_step_shows_the_end_of_its_log_and_leaves_no_image(self, tmp_path, monkeypatch):
        tool = tmp_path / "bin" / "mmdebstrap"
        tool.parent.mkdir()
        tool.write_text("#!/bin/sh\nseq 1 100\necho E: Unable to fetch >&2\nexit 25\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:/bin:/usr/bin")
        monkeypatch.setattr(image, "_source_texts", lambda: [DEB822])
        monkeypatch.setattr(image, "require_tools", lambda *, for_build: None)
        told = []
        with pytest.raises(NodeError, match=r"mmdebstrap failed \(25\); log: .*\.log\n") as caught:
            image.ensure(tmp_path, told.append)
        lines = str(caught.value).splitlines()
        assert lines[-1] == "E: Unable to fetch"
        assert len(lines) == 16
        assert len(told) == 1
        assert not (tmp_path / "images" / image.NODE.digest).exists()
