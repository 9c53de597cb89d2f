"""Releases of k3s: by download from a server on loopback, from a folder, against the release's list and the pins."""

from __future__ import annotations

import pytest

from lab.artifacts import (
    K3S_FILES,
    Request,
    WrongHash,
    add_pin,
    k3s_release,
    load_releases,
    pins_for,
    resolve,
    resolve_k3s,
    resolve_k3s_images,
)
from lab.model import NodeError, UsageError
from tests.artifacts_bench import ENOUGH, SHORT, left_in, quiet, sha, sources
from tests.unit.test_artifacts_download import server  # noqa: F401 - a fixture
from tests.unit.test_artifacts_runtime import STATIC

TAG = "v1.36.9+k3s1"
K3S = Request(kind="k3s", version=TAG)
IMAGES = Request(kind="k3s-images", version=TAG)
ARCHIVE = "k3s-airgap-images-amd64.tar.zst"
SUMS = "sha256sum-amd64.txt"
PROGRAM, ARCHIVED = b"k3s program " * 40, b"images " * 40


def listed(**contents):
    """The release's list, in the form of sha256sum."""
    return "".join(f"{sha(content)}  {name}\n" for name, content in contents.items()).encode()


def publish(release, *, program=PROGRAM):
    """A release at the server, its list of the names that real ones have."""
    whole = {"k3s": PROGRAM, ARCHIVE: ARCHIVED, "k3s-airgap-images-amd64.tar": b"other"}
    release.paths |= {
        f"/{TAG}/{SUMS}": listed(**whole),
        f"/{TAG}/k3s": program,
        f"/{TAG}/{ARCHIVE}": ARCHIVED,
    }


class TestRequests:
    @pytest.mark.parametrize(
        ("text", "release"),
        [("v1.34.12", "v1.34.12+k3s1"), ("v1.34.12+k3s1", "v1.34.12+k3s1"), ("v1.34.12+k3s12", "v1.34.12+k3s12")],
    )
    def test_a_version_means_its_first_release(self, text, release):
        assert k3s_release(text) == release

    @pytest.mark.parametrize("text", ["1.34.12", "v1.34", "v1.34.12+rke2r1", "v1.34.12+k3s", ""])
    def test_what_is_no_version_is_refused(self, text):
        with pytest.raises(UsageError, match="not of the form"):
            k3s_release(text)

    @pytest.mark.parametrize("kind", K3S_FILES)
    @pytest.mark.parametrize(
        "version", ["v1.36.9", "v1.36.9+k3s0", "v1.36.9+k3s01", "v1.36.9+k3s1\n", "v1.36.9+k3s1/.."]
    )
    def test_a_request_names_the_release(self, kind, version):
        with pytest.raises(UsageError, match=r"not of the form v1\.34\.12\+k3s1"):
            Request(kind=kind, version=version)

    def test_an_old_one_is_refused(self):
        with pytest.raises(UsageError, match=r"the oldest is v1\.34\.0"):
            Request(kind="k3s", version="v1.33.9+k3s1")

    def test_names(self):
        assert (K3S.name, K3S.components) == (f"k3s-{TAG}-linux-amd64", ("k3s",))
        assert (IMAGES.name, IMAGES.components) == (f"k3s-images-{TAG}-linux-amd64", (ARCHIVE,))
        assert IMAGES.brought_as == f"{TAG}/{ARCHIVE}"


class TestDownload:
    def test_program_and_busybox_come_as_one(self, tmp_path, server):  # noqa: F811
        publish(server)
        busybox = tmp_path / "busybox"
        busybox.write_bytes(STATIC)
        options = sources(tmp_path, download=True, k3s_mirror=server.url, busybox=busybox)
        found = resolve_k3s("v1.36.9", options, quiet)
        assert (found.kind, found.version) == ("k3s", TAG)
        assert {name: path.read_bytes() for name, path in found.components.items()} == {
            "k3s": PROGRAM,
            "busybox": STATIC,
        }
        assert found.components["k3s"].stat().st_mode & 0o111
        assert found.first_origin == "k3s download, busybox machine"
        # The plus sign travels as it is, the list comes first, and the archive is not asked for.
        assert server.asked == [f"/{TAG}/{SUMS}", f"/{TAG}/k3s"]

    def test_images_alone(self, tmp_path, server):  # noqa: F811
        publish(server)
        options = sources(tmp_path, download=True, k3s_mirror=f"{server.url}/")
        found = resolve_k3s_images(TAG, options, quiet)
        assert found.components[ARCHIVE].read_bytes() == ARCHIVED
        assert found.detail == f"{server.url}/{TAG}/{ARCHIVE}; not pinned"

    def test_the_second_time_it_comes_from_the_cache(self, tmp_path, server):  # noqa: F811
        publish(server)
        options = sources(tmp_path, download=True, k3s_mirror=server.url)
        resolve(K3S, options, quiet)
        number = len(server.asked)
        assert resolve(K3S, options, quiet).origin == "cache"
        assert len(server.asked) == number

    @pytest.mark.parametrize(
        ("paths", "said"),
        [
            ({f"/{TAG}/{SUMS}": None}, "HTTP 404"),
            ({f"/{TAG}/{SUMS}": listed(**{"k3s-arm64": b"x"})}, "has no line for k3s"),
            ({f"/{TAG}/{SUMS}": b"<html>"}, "not a line of sha256sum output"),
            ({f"/{TAG}/k3s": None}, "HTTP 404"),
            ({f"/{TAG}/k3s": lambda handler: handler.server.stop.wait(60)}, "timed out"),
        ],
    )
    def test_a_release_that_cannot_be_had_is_one_error(self, tmp_path, server, paths, said):  # noqa: F811
        publish(server)
        server.paths |= paths
        limits = SHORT if said == "timed out" else ENOUGH
        options = sources(tmp_path, download=True, k3s_mirror=server.url, limits=limits)
        with pytest.raises(NodeError, match=said) as caught:
            resolve(K3S, options, quiet)
        assert f"{TAG}/k3s with --artifacts, or make the release reachable (LAB_K3S_MIRROR)" in str(caught.value)
        assert left_in(tmp_path) == []

    def test_a_short_transfer_leaves_nothing(self, tmp_path, server):  # noqa: F811
        def cut(handler):
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(PROGRAM)))
            handler.end_headers()
            handler.wfile.write(PROGRAM[:100])

        publish(server, program=cut)
        with pytest.raises(NodeError, match=f"ended after 100 of {len(PROGRAM)} bytes"):
            resolve(K3S, sources(tmp_path, download=True, k3s_mirror=server.url), quiet)
        assert left_in(tmp_path) == []

    def test_another_file_than_listed_stops(self, tmp_path, server):  # noqa: F811
        publish(server, program=b"altered")
        with pytest.raises(WrongHash) as caught:
            resolve(K3S, sources(tmp_path, download=True, k3s_mirror=server.url), quiet)
        assert (caught.value.expected, caught.value.actual) == (sha(PROGRAM), sha(b"altered"))
        assert left_in(tmp_path) == []

    def test_downloads_can_be_switched_off(self, tmp_path):
        with pytest.raises(NodeError, match="downloads are switched off"):
            resolve(K3S, sources(tmp_path), quiet)


class TestPins:
    def pin(self, content):
        return pins_for(K3S, {"k3s": sha(content)}, "official")[0]

    def test_a_pin_that_fits_is_told(self, tmp_path, server):  # noqa: F811
        publish(server)
        options = sources(tmp_path, self.pin(PROGRAM), download=True, k3s_mirror=server.url)
        assert resolve(K3S, options, quiet).detail.endswith("; pinned")

    def test_a_release_that_changed_with_its_list_is_found_before_it_is_fetched(self, tmp_path, server):  # noqa: F811
        publish(server)
        options = sources(tmp_path, self.pin(b"as it was"), download=True, k3s_mirror=server.url)
        with pytest.raises(WrongHash) as caught:
            resolve(K3S, options, quiet)
        assert sha(b"as it was") in str(caught.value)
        assert sha(PROGRAM) in str(caught.value)
        assert server.asked == [f"/{TAG}/{SUMS}"]

    def test_a_cached_file_is_held_to_a_later_pin(self, tmp_path, server):  # noqa: F811
        publish(server)
        resolve(K3S, sources(tmp_path, download=True, k3s_mirror=server.url), quiet)
        with pytest.raises(WrongHash):
            resolve(K3S, sources(tmp_path, self.pin(b"other")), quiet)

    def test_a_pin_does_not_change(self, tmp_path):
        path = tmp_path / "releases.toml"
        path.write_text('[upstream]\nknown = []\netcd = "v3.6.16"\n')
        assert add_pin(path, self.pin(b"a"))
        with pytest.raises(UsageError, match=sha(b"a")) as caught:
            add_pin(path, self.pin(b"b"))
        assert sha(b"b") in str(caught.value)


class TestFolder:
    @pytest.fixture
    def folder(self, tmp_path):
        place = tmp_path / "given"
        (place / TAG).mkdir(parents=True)
        (place / TAG / "k3s").write_bytes(PROGRAM)
        return place

    def test_without_any_list(self, tmp_path, folder):
        found = resolve(K3S, sources(tmp_path, folder=folder), quiet)
        assert (found.origin, found.components["k3s"].read_bytes()) == ("artifacts", PROGRAM)
        assert "checked" not in found.detail

    def test_the_releases_own_list_counts(self, tmp_path, folder):
        (folder / TAG / SUMS).write_bytes(listed(k3s=PROGRAM))
        # It is there for other files.
        (folder / "SHA256SUMS").write_bytes(listed(hyperkube=b"x"))
        assert "checked against sha256sum-amd64.txt" in resolve(K3S, sources(tmp_path, folder=folder), quiet).detail

    @pytest.mark.parametrize("place", [f"{TAG}/{SUMS}", "SHA256SUMS"])
    def test_a_list_that_says_otherwise_stops(self, tmp_path, folder, place):
        name = "k3s" if place.endswith(SUMS) else f"{TAG}/k3s"
        (folder / place).write_bytes(listed(**{name: b"other"}))
        with pytest.raises(WrongHash):
            resolve(K3S, sources(tmp_path, folder=folder), quiet)

    def test_a_list_without_it_stops(self, tmp_path, folder):
        (folder / TAG / SUMS).write_bytes(listed(**{"k3s-arm64": b"x"}))
        with pytest.raises(NodeError, match="has no line for k3s"):
            resolve(K3S, sources(tmp_path, folder=folder), quiet)

    def test_another_release_is_not_taken(self, tmp_path, folder):
        with pytest.raises(NodeError, match=r"has no v1\.36\.9\+k3s2/k3s"):
            resolve(Request(kind="k3s", version="v1.36.9+k3s2"), sources(tmp_path, folder=folder), quiet)


class TestReleasesFile:
    def test_the_articles_releases_are_known(self):
        assert load_releases().k3s == ("v1.34.12+k3s1", "v1.35.9+k3s1", "v1.36.5+k3s1", "v1.37.1+k3s1")

    @pytest.mark.parametrize("table", ['known = "v1.36.9"', "other = []", 'known = ["v1.33.1"]', 'known = ["latest"]'])
    def test_a_malformed_table_is_refused(self, tmp_path, table):
        path = tmp_path / "releases.toml"
        path.write_text(f'[upstream]\nknown = []\netcd = "v3.6.16"\n[k3s]\n{table}\n')
        with pytest.raises(UsageError):
            load_releases(path)
