"""`lab doctor` and `lab fetch`: every line with its fix, and binaries that are there or are not."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple

import pytest

from lab import artifacts
from lab.cli import doctor, shared
from lab.providers.digitalocean import account
from lab.providers.qemu import image
from tests.digitalocean_api.server import TOKEN, LocalDigitalOcean
from tests.projects import commit_claims, make_bench, tree

Usage = namedtuple("Usage", "total used free")
GIB = 1 << 30
ETCD = artifacts.load_releases().etcd


@pytest.fixture
def bench(tmp_path, monkeypatch, capfd):
    """A bench on a machine that lacks nothing."""
    made = make_bench(tmp_path, monkeypatch, capfd)
    monkeypatch.setattr(image, "missing_tools", lambda *, for_build: [])
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(100 * GIB, 50 * GIB, 50 * GIB))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    return made


def lines(bench, code):
    """The doctor's lines by name; the plain form must show the same texts."""
    ended = bench.lab("doctor", "--json")
    assert ended.code == code
    found = {entry["name"]: entry for entry in ended.json()}
    plain = bench.lab("doctor")
    assert plain.code == code
    assert plain.err == ""
    for entry in found.values():
        for text in (entry["name"], entry["state"], entry["fix"]):
            assert text in plain.out
    return found


def test_a_machine_that_is_ready(bench):
    found = lines(bench, 0)
    assert list(found) == [
        "QEMU", "guest image", "KVM", "disk", "cores", "Go", "LAB_ARTIFACTS", "DigitalOcean", "CLAIM.md",
    ]  # fmt: skip
    assert "local guests" in found["DigitalOcean"]["state"]
    assert {entry["fix"] for entry in found.values()} == {""}
    assert found["CLAIM.md"]["state"] == "1 claims, clean"
    assert found["disk"]["state"] == f"50 GiB free at {bench.root}"
    assert found["guest image"]["state"] == "not built yet; there"


def test_looking_touches_nothing(bench):
    before = tree(bench.root)
    bench.lab("doctor")
    assert tree(bench.root) == before


def test_missing_packages_come_with_the_command_that_installs_them(bench, monkeypatch):
    lacking = {False: ["qemu-system-x86"], True: ["mmdebstrap", "qemu-system-x86"]}
    monkeypatch.setattr(image, "missing_tools", lambda *, for_build: lacking[for_build])
    found = lines(bench, 5)
    assert found["QEMU"]["state"] == "missing: qemu-system-x86"
    assert found["QEMU"]["fix"] == "apt-get install qemu-system-x86"
    assert found["guest image"]["fix"] == "apt-get install mmdebstrap qemu-system-x86"


def test_an_image_that_is_built_needs_no_tools_to_build_it(bench, monkeypatch):
    lacking = {False: [], True: ["mmdebstrap"]}
    monkeypatch.setattr(image, "missing_tools", lambda *, for_build: lacking[for_build])
    assert lines(bench, 5)["guest image"]["state"] == "not built yet; missing: mmdebstrap"
    folder = bench.root / "cache" / "images" / image.NODE.digest
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    assert lines(bench, 0)["guest image"]["fix"] == ""


@pytest.mark.parametrize(("free", "code"), [(6 * GIB, 5), (6 * GIB + 1, 0), (0, 5)])
def test_free_disk(bench, monkeypatch, free, code):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(100 * GIB, 0, free))
    assert ("LAB_CACHE" in lines(bench, code)["disk"]["fix"]) is (code == 5)


@pytest.mark.parametrize(("cores", "code"), [(None, 5), (1, 5), (2, 0), (64, 0)])
def test_cores(bench, monkeypatch, cores, code):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert ("2 cores" in lines(bench, code)["cores"]["fix"]) is (code == 5)


def test_claims_that_are_not_committed(bench):
    with (bench.project / "CLAIM.md").open("a") as file:
        file.write("more\n")
    entry = lines(bench, 5)["CLAIM.md"]
    assert entry["state"] == "1 claims, dirty"
    assert entry["fix"].startswith("commit CLAIM.md")


def test_claims_that_do_not_parse(bench):
    commit_claims(bench.project, "nothing\n")
    entry = lines(bench, 5)["CLAIM.md"]
    assert entry["state"].startswith("CLAIM.md line 1: ")
    assert entry["fix"] == f"mend {bench.project / 'CLAIM.md'}"


def test_go_and_artifacts_are_shown_and_not_required(bench, monkeypatch):
    folder = bench.root / "bin"
    folder.mkdir()
    (folder / "git").symlink_to(str(shutil.which("git")))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("LAB_ARTIFACTS", "/some/folder")
    found = lines(bench, 0)
    assert found["Go"]["state"].startswith("not on PATH")
    assert found["LAB_ARTIFACTS"]["state"] == "/some/folder"
    (folder / "go").write_text("")
    (folder / "go").chmod(0o755)
    assert lines(bench, 0)["Go"]["state"] == str(folder / "go")


# --- fetch


@pytest.fixture
def binaries(bench, monkeypatch):
    """A folder with stand-ins for v1.36.3 and v1.37.2, no pins, and a record of images that were asked for."""
    folder = bench.root / "binaries"
    folder.mkdir()
    for name in ("hyperkube-v1.36.3", "hyperkube-v1.37.2", f"etcd-{ETCD}"):
        (folder / f"{name}-linux-amd64").write_bytes(name.encode())
    releases = artifacts.Releases(known=("v1.36.3", "v1.37.2"), etcd=ETCD, pins=())
    for module in (shared, doctor):
        monkeypatch.setattr(module, "load_releases", lambda: releases)
    return folder


@pytest.fixture
def images(monkeypatch):
    asked = []
    monkeypatch.setattr(image, "ensure", lambda cache, progress: asked.append(cache))
    return asked


def fetch(bench, versions, folder, *words):
    return bench.lab("fetch", versions, "--artifacts", str(folder), "--no-download", "--no-build", *words)


@pytest.mark.parametrize(
    ("versions", "wanted"), [("v1.36.3", ["v1.36.3"]), ("known", ["v1.36.3", "v1.37.2"]), ("1.37.2", ["v1.37.2"])]
)
def test_fetch_fills_the_cache(bench, binaries, images, versions, wanted):
    ended = fetch(bench, versions, binaries)
    assert (ended.code, ended.out) == (0, "")
    names = {path.name for path in (bench.root / "cache" / "artifacts").iterdir() if path.is_dir()}
    assert names == {f"etcd-{ETCD}-linux-amd64", *(f"kubernetes-{version}-linux-amd64" for version in wanted)}
    assert images == [bench.root / "cache"]
    for version in wanted:
        assert f"{version}: " in ended.err
    shutil.rmtree(binaries)
    (bench.root / "empty").mkdir()
    assert fetch(bench, versions, bench.root / "empty").code == 0, "the cache is enough from now on"


@pytest.mark.parametrize(
    ("versions", "code", "part"),
    [
        ("v1.35.4", 5, "kubernetes v1.35.4 could not be had from any source"),
        ("v1.33.1", 2, "oldest"),
        ("newest", 2, "'vnewest'"),
        ("v1.36.3+k3s1", 2, "belongs to k3s"),
        ("", 2, "no version given"),
        ("v1.36.3,v1.36.3", 2, "asked for twice"),
    ],
)
def test_what_cannot_be_fetched(bench, binaries, images, versions, code, part):
    ended = fetch(bench, versions, binaries)
    assert ended.code == code
    assert part in ended.error
    assert images == []


def test_a_pin_is_only_for_official_files(bench, binaries, images, monkeypatch):
    releases = bench.root / "releases.toml"
    monkeypatch.setattr(doctor, "DEFAULT_PATH", releases)
    ended = fetch(bench, "v1.36.3", binaries, "--pin")
    assert ended.code == 0
    assert "kubernetes v1.36.3: came from artifacts, nothing to pin" in ended.err
    assert not releases.exists()


class TestCloud:
    """With a token the account is asked; what is wrong stands in one line."""

    @pytest.fixture
    def cloud(self, monkeypatch):
        with LocalDigitalOcean() as server:
            monkeypatch.setenv("LAB_DIGITALOCEAN_API", server.url)
            monkeypatch.setenv("LAB_PUBLIC_ADDRESS_URL", "http://127.0.0.1:9/")
            yield server
            assert server.unexpected == []

    def line(self, bench, code):
        ended = bench.lab("doctor", "--json")
        assert ended.code == code
        (found,) = [entry for entry in ended.json() if entry["name"] == "DigitalOcean"]
        return found

    def test_a_usable_account_with_its_price(self, bench, monkeypatch, cloud):
        monkeypatch.setenv("DIGITALOCEAN_TOKEN", TOKEN)
        monkeypatch.setattr(account, "public_address", lambda url: "203.0.113.7")
        assert self.line(bench, 0) == {
            "name": "DigitalOcean",
            "state": "token and account are usable; $0.03571 a node and hour",
            "fix": "",
        }
        assert not {"POST", "PUT"} & {call.method for call in cloud.requests}

    def test_a_wrong_token(self, bench, monkeypatch, cloud):
        monkeypatch.setenv("DIGITALOCEAN_TOKEN", "dop_v1_of_somebody_else")
        line = self.line(bench, 5)
        assert (line["state"], "401" in line["fix"]) == ("not usable", True)
        assert "dop_v1_of_somebody_else" not in str(line)

    def test_no_public_address(self, bench, monkeypatch, cloud):
        monkeypatch.setenv("DIGITALOCEAN_TOKEN", TOKEN)
        assert "--allow-from" in self.line(bench, 5)["fix"]
