"""containerd, runc and busybox: from a folder, from a mirror of the releases, from this machine, and by a builder."""

from __future__ import annotations

import io
import struct
import tarfile
from pathlib import Path

import pytest

from lab.artifacts import Request, WrongHash, load_releases, resolve, resolve_runtime
from lab.artifacts.files import static_elf_problem
from lab.model import NodeError, UsageError
from tests.artifacts_bench import must_not_build, quiet, sha, sources
from tests.unit.test_artifacts_download import server  # noqa: F401 - a fixture

CONTAINERD = Request(kind="containerd", version="v2.1.99")
RUNC = Request(kind="runc", version="v1.3.99")
BUSYBOX = Request(kind="busybox", version="static")
PROGRAMS = {name: f"{name} program".encode() for name in CONTAINERD.components}


def elf(*types, kind=2, machine=62, start=b"\x7fELF\x02\x01"):
    """A file with nothing but an ELF header and program headers of these types (elf(5))."""
    head = struct.pack("<16sHHIQQQIHHHHHH", start, kind, machine, 1, 0, 64, 0, 0, 64, 56, len(types), 0, 0, 0)
    return head + b"".join(struct.pack("<I52x", item) for item in types)


STATIC = elf(1, 1, 7)


def archive(programs, prefix="bin/"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in {"containerd-stress": b"x", **programs}.items():
            member = tarfile.TarInfo(f"{prefix}{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path):
    result = tmp_path / "given"
    result.mkdir()
    return result


class TestRequests:
    @pytest.mark.parametrize(
        ("kind", "version"),
        [
            ("containerd", "v1.7.27"),
            ("containerd", "2.1.9"),
            ("containerd", "v2.1"),
            ("runc", "1.3.6"),
            ("runc", "v1.3.6-rc.1"),
            ("runc", "v1.3.6\n"),
            ("busybox", "v1.37.0"),
            ("busybox", ""),
        ],
    )
    def test_a_version_of_another_form_is_refused(self, kind, version):
        with pytest.raises(UsageError, match=f"{kind} version .* is not of the form"):
            Request(kind=kind, version=version)

    def test_components(self):
        assert CONTAINERD.components == ("containerd", "containerd-shim-runc-v2", "ctr")
        assert (RUNC.components, BUSYBOX.components) == (("runc",), ("busybox",))
        assert (CONTAINERD.single_file, RUNC.single_file) == (None, "runc")

    def test_the_packaged_versions_are_named(self):
        known = load_releases()
        assert Request(kind="containerd", version=known.containerd).kind == "containerd"
        assert Request(kind="runc", version=known.runc).kind == "runc"

    @pytest.mark.parametrize("table", ["crun = 'v1.2.3'", "runc = '1.3.6'", "containerd = 'v1.7.0'"])
    def test_a_table_of_other_things_is_refused(self, tmp_path, table):
        path = tmp_path / "releases.toml"
        path.write_text(f'[upstream]\nknown = []\netcd = "v3.6.16"\n[runtime]\n{table}\n')
        with pytest.raises(UsageError, match=r"runtime|runc|containerd"):
            load_releases(path)


class TestFolder:
    @pytest.mark.parametrize("name", ["containerd-v2.1.99-linux-amd64.tar.gz", "containerd-2.1.99-linux-amd64.tar.gz"])
    @pytest.mark.parametrize("prefix", ["bin/", "./bin/"])
    def test_an_archive_as_released(self, tmp_path, folder, name, prefix):
        (folder / name).write_bytes(archive(PROGRAMS, prefix))
        found = resolve(CONTAINERD, sources(tmp_path, folder=folder), quiet)
        assert {item: path.read_bytes() for item, path in found.components.items()} == PROGRAMS
        assert found.sha256 == {item: sha(content) for item, content in PROGRAMS.items()}
        assert found.detail.endswith("not pinned")
        assert resolve(CONTAINERD, sources(tmp_path), quiet).origin == "cache"

    @pytest.mark.parametrize("place", ["containerd-v2.1.99-linux-amd64", "v2.1.99"])
    def test_plain_files_in_a_folder(self, tmp_path, folder, place):
        (folder / place).mkdir()
        for name, content in PROGRAMS.items():
            (folder / place / name).write_bytes(content)
        found = resolve(CONTAINERD, sources(tmp_path, folder=folder), quiet)
        assert found.sha256 == {name: sha(content) for name, content in PROGRAMS.items()}

    @pytest.mark.parametrize("place", ["runc-v1.3.99-linux-amd64", "v1.3.99/runc"])
    def test_runc(self, tmp_path, folder, place):
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).write_bytes(b"runc program")
        found = resolve(RUNC, sources(tmp_path, folder=folder), quiet)
        assert found.sha256 == {"runc": sha(b"runc program")}

    def test_an_archive_without_a_program_is_an_error(self, tmp_path, folder):
        rest = {name: content for name, content in PROGRAMS.items() if name != "ctr"}
        (folder / "containerd-2.1.99-linux-amd64.tar.gz").write_bytes(archive(rest))
        with pytest.raises(NodeError, match="holds no bin/ctr"):
            resolve(CONTAINERD, sources(tmp_path, folder=folder, builder=must_not_build), quiet)

    def test_a_cut_archive_is_an_error(self, tmp_path, folder):
        (folder / "containerd-2.1.99-linux-amd64.tar.gz").write_bytes(archive(PROGRAMS)[:-20])
        with pytest.raises(NodeError, match=r"not a whole \.tar\.gz file"):
            resolve(CONTAINERD, sources(tmp_path, folder=folder, builder=must_not_build), quiet)

    def test_sums_are_held_against_archive_and_plain_files(self, tmp_path, folder):
        name = "containerd-v2.1.99-linux-amd64.tar.gz"
        (folder / name).write_bytes(archive(PROGRAMS))
        (folder / "SHA256SUMS").write_text(f"{'0' * 64}  {name}\n")
        with pytest.raises(WrongHash):
            resolve(CONTAINERD, sources(tmp_path, folder=folder, builder=must_not_build), quiet)
        (folder / name).unlink()
        plain = folder / CONTAINERD.name
        plain.mkdir()
        for item, content in PROGRAMS.items():
            (plain / item).write_bytes(content)
        with pytest.raises(NodeError, match=f"has no line for {CONTAINERD.name}/containerd"):
            resolve(CONTAINERD, sources(tmp_path, folder=folder, builder=must_not_build), quiet)

    def test_a_missing_one_names_what_to_bring(self, tmp_path, folder):
        with pytest.raises(NodeError) as caught:
            resolve(CONTAINERD, sources(tmp_path, folder=folder), quiet)
        text = str(caught.value)
        assert "containerd-v2.1.99-linux-amd64.tar.gz" in text.splitlines()[-1]
        assert "LAB_CONTAINERD_MIRROR" in text.splitlines()[-1]


class TestDownload:
    def test_containerd(self, tmp_path, server):  # noqa: F811
        path = "/v2.1.99/containerd-2.1.99-linux-amd64.tar.gz"
        server.paths[path] = archive(PROGRAMS)
        server.paths[f"{path}.sha256sum"] = f"{sha(archive(PROGRAMS))}  {path[9:]}\n".encode()
        found = resolve(CONTAINERD, sources(tmp_path, download=True, containerd_mirror=server.url), quiet)
        assert (found.origin, found.detail) == ("download", f"{server.url}{path}; not pinned")
        assert sorted(item.name for item in found.components["ctr"].parent.iterdir()) == sorted(PROGRAMS)

    def test_runc(self, tmp_path, server):  # noqa: F811
        server.paths["/v1.3.99/runc.amd64"] = b"runc program"
        sums = f"{'1' * 64}  runc.arm64\n{sha(b'runc program')}  runc.amd64\n"
        server.paths["/v1.3.99/runc.sha256sum"] = sums.encode()
        found = resolve(RUNC, sources(tmp_path, download=True, runc_mirror=server.url), quiet)
        assert found.components["runc"].read_bytes() == b"runc program"

    def test_another_file_than_announced_stops(self, tmp_path, server):  # noqa: F811
        server.paths["/v1.3.99/runc.amd64"] = b"something else"
        server.paths["/v1.3.99/runc.sha256sum"] = f"{sha(b'runc program')}  runc.amd64\n".encode()
        with pytest.raises(WrongHash):
            resolve(RUNC, sources(tmp_path, download=True, runc_mirror=server.url, builder=must_not_build), quiet)

    @pytest.mark.parametrize("text", [b"", b"<html>", f"{'1' * 64}  runc.arm64\n".encode()])
    def test_without_a_hash_nothing_is_taken(self, tmp_path, server, text):  # noqa: F811
        server.paths["/v1.3.99/runc.amd64"] = b"runc program"
        server.paths["/v1.3.99/runc.sha256sum"] = text
        with pytest.raises(NodeError, match="could not be had"):
            resolve(RUNC, sources(tmp_path, download=True, runc_mirror=server.url), quiet)

    @pytest.mark.parametrize("mirror", ["containerd_mirror", "runc_mirror"])
    def test_a_mirror_must_be_a_url(self, tmp_path, mirror):
        with pytest.raises(UsageError, match="not a URL"):
            sources(tmp_path, **{mirror: "ftp://x"})


class TestStaticElf:
    @pytest.mark.parametrize("content", [STATIC, elf(1, 2), elf(1, kind=3)])
    def test_static(self, tmp_path, content):
        (tmp_path / "file").write_bytes(content)
        assert static_elf_problem(tmp_path / "file") == ""

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (elf(6, 3, 1), "shared libraries"),
            (elf(2), "nothing in it to be loaded"),
            (elf(), "cut within|nothing in it"),
            (elf(1, machine=183), "no executable for x86-64"),
            (elf(1, kind=1), "no executable"),
            (elf(1, start=b"\x7fELF\x01\x01"), "no 64-bit"),
            (b"#!/bin/sh\n" * 20, "no 64-bit"),
            (b"", "no 64-bit"),
            (STATIC[:-1], "cut within its program headers"),
        ],
    )
    def test_anything_else(self, tmp_path, content, problem):
        (tmp_path / "file").write_bytes(content)
        assert static_elf_problem(tmp_path / "file")
        assert any(part in static_elf_problem(tmp_path / "file") for part in problem.split("|"))

    def test_a_program_of_this_machine_that_has_libraries(self):
        assert static_elf_problem(Path("/bin/cat")) == "it needs shared libraries"


class TestBusybox:
    @pytest.mark.parametrize("name", ["busybox", "busybox-v1.37.0-linux-amd64", "busybox-static"])
    def test_from_the_folder(self, tmp_path, folder, name):
        (folder / name).write_bytes(STATIC)
        found = resolve(BUSYBOX, sources(tmp_path, folder=folder, busybox=tmp_path / "none"), quiet)
        assert found.sha256 == {"busybox": sha(STATIC)}
        assert found.origin == "artifacts"

    def test_several_are_one_too_many(self, tmp_path, folder):
        for name in ("busybox-a", "busybox-b"):
            (folder / name).write_bytes(STATIC)
        with pytest.raises(NodeError, match="several: busybox-a, busybox-b"):
            resolve(BUSYBOX, sources(tmp_path, folder=folder), quiet)

    def test_one_that_needs_libraries_stops(self, tmp_path, folder):
        (folder / "busybox-1").write_bytes(elf(3, 1))
        (tmp_path / "own").write_bytes(STATIC)
        with pytest.raises(NodeError, match="needs shared libraries"):
            resolve(BUSYBOX, sources(tmp_path, folder=folder, busybox=tmp_path / "own"), quiet)

    def test_this_machines_own(self, tmp_path, folder):
        (tmp_path / "own").write_bytes(STATIC)
        found = resolve(BUSYBOX, sources(tmp_path, folder=folder, busybox=tmp_path / "own"), quiet)
        assert (found.origin, found.detail) == ("machine", str(tmp_path / "own"))

    @pytest.mark.parametrize("content", [None, elf(3, 1)])
    def test_without_one_the_package_is_named(self, tmp_path, content):
        if content is not None:
            (tmp_path / "own").write_bytes(content)
        with pytest.raises(NodeError, match=r"install the package busybox-static on this machine$"):
            resolve(BUSYBOX, sources(tmp_path, busybox=tmp_path / "own"), quiet)


def named(tmp_path):
    (tmp_path / "releases.toml").write_text(
        '[upstream]\nknown = []\netcd = "v3.6.99"\n[runtime]\ncontainerd = "v2.1.99"\nrunc = "v1.3.99"\n'
    )


def test_the_whole_runtime_is_one_record(tmp_path):
    named(tmp_path)
    (tmp_path / "own").write_bytes(STATIC)

    def builder(request, output, progress):
        for name in request.components:
            (output if request.single_file else output / name).write_bytes(name.encode())
        return f"{request} built"

    options = sources(tmp_path, builder=builder, busybox=tmp_path / "own")
    found = resolve_runtime(options, quiet)
    assert (found.kind, found.version) == ("runtime", "containerd v2.1.99, runc v1.3.99")
    assert set(found.components) == {"containerd", "containerd-shim-runc-v2", "ctr", "runc", "busybox"}
    assert found.sha256["ctr"] == sha(b"ctr")
    assert found.origin == "containerd build, runc build, busybox machine"
    again = resolve_runtime(options, quiet)
    assert (again.origin, again.first_origin) == ("cache", found.origin)


def test_a_builder_that_leaves_one_out_is_an_error(tmp_path):
    def builder(request, output, progress):
        (output / "containerd").write_bytes(b"x")
        return "built"

    with pytest.raises(NodeError, match="without writing containerd-shim-runc-v2"):
        resolve(CONTAINERD, sources(tmp_path, builder=builder), quiet)


def test_releases_without_a_runtime_are_an_error(tmp_path):
    with pytest.raises(NodeError, match=r"table \[runtime\]"):
        resolve_runtime(sources(tmp_path), quiet)
