"""`lab doctor` and `lab fetch`: every line with its fix, and binaries that are there or are not."""

from __future__ import annotations

import os
import shutil
import threading
from collections import namedtuple
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from lab import artifacts
from lab.cli import cloud_readiness, fetch, readiness, shared
from lab.config import TOKEN_VARIABLES
from lab.providers.digitalocean import address
from lab.providers.qemu import image
from tests.artifacts_bench import ENOUGH
from tests.digitalocean_api.account import ALL_SCOPES
from tests.digitalocean_api.server import TOKEN, LocalDigitalOcean
from tests.projects import commit_claims, make_bench, tree
from tests.unit.test_artifacts_runtime import STATIC

Usage = namedtuple("Usage", "total used free")
GIB = 1 << 30
ETCD = artifacts.load_releases().etcd


class Mirror(BaseHTTPRequestHandler):
    """Has every file that is asked for; or none, when its server says so."""

    def do_GET(self):
        self.server.asked.append(self.path)
        body = b"0" * 64 + b"\n"
        self.send_response(404 if self.server.is_empty else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


@pytest.fixture
def mirror():
    """Releases on loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as server:
        server.asked, server.is_empty = [], False
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def bench(tmp_path, monkeypatch, capfd, mirror):
    """A bench on a machine that lacks nothing."""
    made = make_bench(tmp_path, monkeypatch, capfd)
    for name in TOKEN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(image, "missing_tools", lambda *, for_build: [])
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(100 * GIB, 50 * GIB, 50 * GIB))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(readiness, "KVM", str(tmp_path / "kvm"))
    # Nothing here is slow: only a machine that stands still would reach the program's own limits.
    monkeypatch.setattr(readiness, "REACH", ENOUGH)
    monkeypatch.setattr(readiness, "GO_S", 60.0)
    for name in ("KUBERNETES", "ETCD", "K3S"):
        monkeypatch.setenv(f"LAB_{name}_MIRROR", f"http://127.0.0.1:{mirror.server_address[1]}/{name.lower()}")
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
        "QEMU", "guest image", "KVM", "disk", "cores", "Go", "LAB_ARTIFACTS", "releases", "CLAIM.md",
        "DigitalOcean token",
    ]  # fmt: skip
    assert "local guests" in found["DigitalOcean token"]["state"]
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


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def without_go(bench):
    """A PATH that has no Go, and its folder."""
    folder = bench.root / "bin"
    folder.mkdir()
    (folder / "git").symlink_to(str(shutil.which("git")))
    bench.monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.mark.parametrize(
    ("says", "state"),
    [
        ("echo go version go1.26.8 linux/amd64", "1.26 at {go}"),
        ("echo go version go1.25.1 linux/amd64", "1.25 at {go}, older than 1.26; used only to build"),
        ("echo nothing", "{go} does not run (ParseError); used only to build"),
    ],
)
def test_go_is_shown_and_not_required(bench, says, state):
    folder = without_go(bench)
    assert lines(bench, 0)["Go"]["state"].startswith("not on PATH")
    program(folder / "go", says)
    assert lines(bench, 0)["Go"]["state"].startswith(state.format(go=folder / "go"))


def test_a_go_that_is_no_program(bench, monkeypatch):
    (bench.root / "bin").mkdir()
    (bench.root / "bin" / "go").write_text("")
    (bench.root / "bin" / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bench.root / 'bin'}:{os.environ['PATH']}")
    assert "does not run" in lines(bench, 0)["Go"]["state"]


def test_a_folder_of_binaries_that_is_not_there(bench, monkeypatch):
    monkeypatch.setenv("LAB_ARTIFACTS", str(bench.root / "none"))
    entry = lines(bench, 5)["LAB_ARTIFACTS"]
    assert entry["state"] == str(bench.root / "none")
    assert entry["fix"].startswith("no such folder")
    (bench.root / "none").mkdir()
    assert lines(bench, 0)["LAB_ARTIFACTS"]["fix"] == ""


def test_a_kvm_that_this_user_may_not_open_is_worth_a_note(bench, monkeypatch):
    device = bench.root / "kvm"
    device.write_text("")
    access = os.access
    # Root, who often runs these tests, may open every device.
    monkeypatch.setattr(os, "access", lambda path, *rest: path != str(device) and access(path, *rest))
    entry = lines(bench, 0)["KVM"]
    assert "group kvm" in entry["fix"]
    assert entry["needed"] is False


def test_a_kvm_that_this_user_may_open(bench):
    (bench.root / "kvm").write_text("")
    assert lines(bench, 0)["KVM"]["state"] == "device is there, tried at boot"


# --- releases


def test_releases_are_asked_for_small_files_that_a_run_would_ask_for(bench, mirror):
    entry = lines(bench, 0)["releases"]
    assert entry["state"].startswith("reachable: http://127.0.0.1")
    known = artifacts.load_releases().known[-1]
    assert set(mirror.asked) == {
        f"/kubernetes/{known}/bin/linux/amd64/kubelet.sha256", f"/etcd/{ETCD}/SHA256SUMS",
    }  # fmt: skip


@pytest.mark.parametrize("way", ["empty", "closed"])
def test_releases_that_cannot_be_reached_and_nothing_at_hand(bench, mirror, monkeypatch, way):
    without_go(bench)
    mirror.is_empty = True
    if way == "closed":
        monkeypatch.setenv("LAB_ETCD_MIRROR", "http://127.0.0.1:9")
    entry = lines(bench, 5)["releases"]
    assert entry["state"].startswith("not reachable: http://127.0.0.1")
    assert "LAB_ARTIFACTS" in entry["fix"]
    assert entry["needed"] is True


@pytest.mark.parametrize(("minor", "code"), [(25, 5), (26, 0)])
def test_releases_are_not_needed_where_go_can_build_them(bench, mirror, minor, code):
    mirror.is_empty = True
    program(without_go(bench) / "go", f"echo go version go1.{minor}.8 linux/amd64")
    entry = lines(bench, code)["releases"]
    assert "or let Go build them" in entry["fix"]
    assert entry["needed"] is (code == 5)
    assert ("there is a Go to build them" in entry["state"]) is (code == 0)


def test_nobody_can_build_a_release_of_k3s(bench, mirror):
    mirror.is_empty = True
    program(without_go(bench) / "go", "echo go version go1.26.8 linux/amd64")
    ended = bench.lab("doctor", "--provider", "ssh", "--json")
    assert ended.code == 5
    [entry] = [entry for entry in ended.json() if entry["name"] == "releases"]
    assert (entry["needed"], "Go" in entry["fix"]) == (True, False)


def test_releases_are_not_needed_when_binaries_are_at_hand(bench, mirror, monkeypatch):
    without_go(bench)
    mirror.is_empty = True
    (bench.root / "cache" / "artifacts" / "etcd").mkdir(parents=True)
    entry = lines(bench, 0)["releases"]
    assert "there is the cache" in entry["state"]
    assert entry["needed"] is False
    monkeypatch.setenv("LAB_ARTIFACTS", str(bench.root))
    assert "there is LAB_ARTIFACTS and the cache" in lines(bench, 0)["releases"]["state"]


def test_a_mirror_that_is_no_address(bench, monkeypatch):
    monkeypatch.setenv("LAB_ETCD_MIRROR", "ftp://127.0.0.1")
    assert "ftp://127.0.0.1" in lines(bench, 5)["releases"]["fix"]


# --- deadlines, and what is needed where


def test_a_check_that_hangs_holds_up_no_other_and_is_named(monkeypatch):
    release, others = threading.Event(), []

    def quick():
        others.append(threading.current_thread())
        return [readiness.Check(name="quick", state="well")]

    def monotonic():
        """The time is over when all that can be looked at has been."""
        while not others:
            release.wait(0.01)
        others[0].join()
        return next(moments)

    moments = iter([0.0, 5.0, 5.0])
    monkeypatch.setattr(readiness, "time", SimpleNamespace(monotonic=monotonic))
    jobs = [
        readiness.Job(name="slow", run=lambda: [release.wait(60) or readiness.Check(name="slow", state="late")]),
        readiness.Job(name="quick", run=quick),
    ]
    found = readiness.all_of(jobs, deadline_s=5)
    release.set()
    assert [(check.name, check.word) for check in found] == [("slow", "fix"), ("quick", "ok")]
    assert "no answer within 5 s" in found[0].state


def test_a_check_that_fails_is_a_line_with_the_reason():
    def run():
        raise OSError(13, "Permission denied", "/cache")

    [check] = readiness.all_of([readiness.Job(name="disk", run=run)])
    assert (check.name, check.word) == ("disk", "fix")
    assert "/cache" in check.fix


def test_what_a_local_guest_needs_is_a_note_for_other_providers(bench, monkeypatch):
    monkeypatch.setattr(image, "missing_tools", lambda *, for_build: ["qemu-system-x86"])
    assert lines(bench, 5)["QEMU"]["needed"] is True
    ended = bench.lab("doctor", "--provider", "ssh", "--json")
    assert ended.code == 0
    found = {entry["name"]: entry for entry in ended.json()}
    assert found["QEMU"]["needed"] is found["guest image"]["needed"] is False
    assert found["QEMU"]["fix"] == "apt-get install qemu-system-x86"


def test_a_provider_that_does_not_exist(bench):
    ended = bench.lab("doctor", "--provider", "azure")
    assert ended.code == 2
    assert "qemu, digitalocean, ssh" in ended.error
    assert bench.lab("doctor", "--provider", "").code == 2, "an empty one is not the usual one"


def test_other_providers_ask_for_k3s(bench, mirror):
    assert bench.lab("doctor", "--provider", "ssh").code == 0
    assert [path.split("/")[1] for path in mirror.asked] == ["k3s"]


def test_droplets_without_a_token(bench):
    ended = bench.lab("doctor", "--provider", "digitalocean", "--json")
    assert ended.code == 5
    [entry] = [entry for entry in ended.json() if entry["name"] == "DigitalOcean token"]
    assert "export DIGITALOCEAN_TOKEN" in entry["fix"]


# --- fetch


@pytest.fixture
def binaries(bench, monkeypatch):
    """A folder with stand-ins for v1.36.3 and v1.37.2, no pins, and a record of images that were asked for."""
    folder = bench.root / "binaries"
    folder.mkdir()
    for name in ("hyperkube-v1.36.3", "hyperkube-v1.37.2", f"etcd-{ETCD}"):
        (folder / f"{name}-linux-amd64").write_bytes(name.encode())
    releases = artifacts.Releases(known=("v1.36.3", "v1.37.2"), etcd=ETCD, pins=())
    for module in (shared, fetch):
        monkeypatch.setattr(module, "load_releases", lambda: releases)
    return folder


@pytest.fixture
def images(monkeypatch):
    asked = []
    monkeypatch.setattr(image, "ensure", lambda cache, progress: asked.append(cache))
    return asked


def fetched(bench, versions, folder, *words):
    return bench.lab("fetch", versions, "--artifacts", str(folder), "--no-download", "--no-build", *words)


@pytest.mark.parametrize(
    ("versions", "wanted"), [("v1.36.3", ["v1.36.3"]), ("known", ["v1.36.3", "v1.37.2"]), ("1.37.2", ["v1.37.2"])]
)
def test_fetch_fills_the_cache(bench, binaries, images, versions, wanted):
    ended = fetched(bench, versions, binaries)
    assert (ended.code, ended.out) == (0, "")
    names = {path.name for path in (bench.root / "cache" / "artifacts").iterdir() if path.is_dir()}
    assert names == {f"etcd-{ETCD}-linux-amd64", *(f"kubernetes-{version}-linux-amd64" for version in wanted)}
    assert images == [bench.root / "cache"]
    for version in wanted:
        assert f"{version}: " in ended.err
    shutil.rmtree(binaries)
    (bench.root / "empty").mkdir()
    assert fetched(bench, versions, bench.root / "empty").code == 0, "the cache is enough from now on"


@pytest.mark.parametrize(
    ("versions", "code", "part"),
    [
        ("v1.35.4", 5, "kubernetes v1.35.4 could not be had from any source"),
        ("v1.33.1", 2, "oldest"),
        ("newest", 2, "'newest'"),
        ("v1.36.3+k3s1", 2, "belongs to k3s"),
        ("", 2, "no version given"),
        ("v1.36.3,v1.36.3", 2, "asked for twice"),
    ],
)
def test_what_cannot_be_fetched(bench, binaries, images, versions, code, part):
    ended = fetched(bench, versions, binaries)
    assert ended.code == code
    assert part in ended.error
    assert images == []


def test_a_runtime_for_nodes_without_one(bench, binaries, images, monkeypatch):
    releases = artifacts.Releases(known=("v1.36.3",), etcd=ETCD, pins=(), containerd="v2.1.9", runc="v1.3.6")
    monkeypatch.setattr(shared, "load_releases", lambda: releases)
    (folder := binaries / "containerd-v2.1.9-linux-amd64").mkdir()
    for name in ("containerd", "containerd-shim-runc-v2", "ctr"):
        (folder / name).write_bytes(name.encode())
    (binaries / "runc-v1.3.6-linux-amd64").write_bytes(b"runc")
    # The head of a static executable: what stands in it is all that is looked at.
    (binaries / "busybox-linux-amd64").write_bytes(STATIC)
    ended = fetched(bench, "v1.36.3", binaries, "--runtime")
    assert ended.code == 0, ended.err
    assert "runtime: " in ended.err
    names = {path.name.partition("-")[0] for path in (bench.root / "cache" / "artifacts").iterdir() if path.is_dir()}
    assert names == {"kubernetes", "etcd", "containerd", "runc", "busybox"}


def test_k3s_brings_its_own_runtime(bench, binaries, images):
    ended = fetched(bench, "v1.36.3", binaries, "--distro", "k3s", "--runtime")
    assert ended.code == 2
    assert "--runtime is for --distro upstream" in ended.error


def test_flags_of_fetch_are_looked_at_before_anything_is_fetched(bench, binaries, images):
    for words, part in (
        (("--airgap-images",), "--airgap-images is for --distro k3s"),
        (("--distro", ""), "--distro"),
        (("--distro", "k3s", "--runtime"), "--runtime is for --distro upstream"),
    ):
        ended = fetched(bench, "v1.36.3", binaries, *words)
        assert ended.code == 2
        assert part in ended.error
    assert bench.lab("fetch", "v1.36.3", "--artifacts", str(bench.root / "nowhere")).code == 2
    assert bench.lab("fetch", "v1.36.3", "--no-such-flag").code == 2
    for nothing in ("", " ,"):
        assert "no version given" in fetched(bench, nothing, binaries).error
    assert images == []
    assert not (bench.root / "cache").exists()


def test_a_pin_is_only_for_official_files(bench, binaries, images, monkeypatch):
    releases = bench.root / "releases.toml"
    monkeypatch.setattr(fetch, "DEFAULT_PATH", releases)
    ended = fetched(bench, "v1.36.3", binaries, "--pin")
    assert ended.code == 0
    assert "kubernetes v1.36.3: came from artifacts, nothing to pin" in ended.err
    assert not releases.exists()


class TestCloud:
    """With a token the account is asked; each line says what is there, and what is wrong."""

    @pytest.fixture
    def cloud(self, bench, monkeypatch):
        with LocalDigitalOcean() as server:
            monkeypatch.setenv("LAB_DIGITALOCEAN_API", server.url)
            monkeypatch.setenv("LAB_PUBLIC_ADDRESS_URL", "http://127.0.0.1:9/")
            monkeypatch.setenv("DIGITALOCEAN_TOKEN", TOKEN)
            monkeypatch.setattr(cloud_readiness, "public_address", lambda url: "203.0.113.7")
            yield server
            assert server.unexpected == []
            assert not {"POST", "PUT", "PATCH"} & {call.method for call in server.requests}

    def found(self, bench, code):
        ended = bench.lab("doctor", "--json")
        assert ended.code == code, ended.out
        assert TOKEN not in ended.out
        entries = {entry["name"]: entry for entry in ended.json()}
        return {name: entries[name] for name in list(entries)[9:]}

    def test_a_usable_account(self, bench, cloud):
        found = self.found(bench, 0)
        assert list(found) == ["DigitalOcean token", "droplet limit", "droplet", "public address"]
        assert found["DigitalOcean token"]["state"].startswith("usable; 12 scopes tried")
        assert found["droplet"]["state"] == (
            "s-2vcpu-4gb with ubuntu-24-04-x64 in fra1: $0.03571 a node and hour"
        )
        assert found["droplet limit"]["state"] == "0 of 10 droplets in use"
        assert found["public address"]["state"].startswith("203.0.113.7: ")

    def test_a_wrong_token(self, bench, monkeypatch, cloud):
        monkeypatch.setenv("DIGITALOCEAN_TOKEN", "dop_v1_of_somebody_else")
        found = self.found(bench, 5)
        assert list(found) == ["DigitalOcean token", "public address"]
        line = found["DigitalOcean token"]
        assert (line["state"], "401" in line["fix"]) == ("not usable", True)
        assert "dop_v1_of_somebody_else" not in str(line)

    def test_scopes_that_are_missing_are_all_named(self, bench, cloud):
        scopes = ALL_SCOPES - {"tag:read", "droplet:delete"}
        cloud.account.tokens = {TOKEN: frozenset(scopes)}
        line = self.found(bench, 5)["DigitalOcean token"]
        assert line["state"] == "2 of 12 scopes that were tried are missing"
        assert line["fix"] == "give the token these scopes too: tag:read, droplet:delete"

    @pytest.mark.parametrize(
        ("change", "part"), [({"droplet_limit": 0}, "lab gc"), ({"status": "locked"}, "ask DigitalOcean")]
    )
    def test_no_room(self, bench, cloud, change, part):
        for name, value in change.items():
            setattr(cloud.account, name, value)
        assert part in self.found(bench, 5)["droplet limit"]["fix"]

    def test_no_public_address(self, bench, monkeypatch, cloud):
        monkeypatch.setattr(cloud_readiness, "public_address", address.public_address)
        assert "--allow-from" in self.found(bench, 5)["public address"]["fix"]

    def test_another_provider_asks_nothing(self, bench, cloud):
        assert bench.lab("doctor", "--provider", "qemu").code == 0
        assert cloud.requests == []
